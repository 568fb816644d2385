"""One small experiment with waves at any refinement, by four propagators.

Two shots in a square of 960 m with a smooth anomaly, recorded for 0.32 s: too short for anything to
come back from the edges. The cells in the middle are unknown, away from sources and receivers,
where the waves are smooth. The scheme in PyTorch is written out below, without a layer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import natgrad as ng
from natgrad import waves
from natgrad.waves.scheme import SECOND, halo

SIDE, DURATION, FREQUENCY = 960.0, 0.32, 8.0
LAYER = 10


class Case(NamedTuple):
    """A survey, where to linearise, the cells that are unknown, and data of another model."""

    survey: waves.Survey
    velocity: np.ndarray
    update: np.ndarray
    data: np.ndarray


class Found(NamedTuple):
    """What an engine computes: traces, ∂_θ f of least squares, and a natural gradient direction."""

    data: np.ndarray
    gradient: np.ndarray
    direction: np.ndarray

    def differences(self, other: "Found") -> list[float]:
        """Relative, in the Euclidean norm."""
        pairs = zip(self, other, strict=True)
        return [float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in pairs]


def case(cells: int) -> Case:
    """`cells` along a side, and as many steps in time for each: 48, 96, 192."""
    h = SIDE / cells
    steps = round(DURATION / (0.0002 * h))
    x, z = np.meshgrid(*[h * np.arange(cells + 1)] * 2, indexing="ij")
    bump = lambda a, b, width: np.exp(-((x - a) ** 2 + (z - b) ** 2) / width**2)
    sources = np.array([[320.0, 320.0], [640.0, 320.0]])
    receivers = np.array([[320.0 + 40.0 * i, 640.0] for i in range(9)])
    wavelet = waves.ricker(FREQUENCY, DURATION / steps, steps)
    survey = waves.Survey(x.shape, h, DURATION / steps, sources, receivers, wavelet)
    start = 2000.0 - 150.0 * bump(440.0, 520.0, 150.0)
    model = waves.Acoustic(survey, start, absorbing=LAYER, order=8, dtype=np.float64)
    data = np.asarray(model(waves.squared_slowness(2000.0 + 100.0 * bump(520.0, 480.0, 120.0))))
    return Case(survey, start, bump(480.0, 480.0, 60.0), data)


def found(case: Case, engine: str, order: int = 4) -> Found:
    """By one engine, in double precision, with the products of every step."""
    model = ENGINES[engine](case, order)
    grid = case.survey.gather_grid
    problem = ng.Problem(model, ng.LeastSquares(case.data, grid))
    theta = waves.squared_slowness(case.velocity)
    solver = ng.CG(0.0, max_iterations=3)
    d = ng.natural_gradient(problem, theta, metric=ng.L2(grid), solver=solver)
    return Found(*(np.asarray(x) for x in (model(theta), d.gradient, d.eta)))


def torch_waves(case: Case, order: int, device: str = "cpu") -> Callable[[Any], Any]:
    """u⁺ = 2u − u⁻ + dt²(Ku + s)/m in plain PyTorch: a function of θ in s²/km²."""
    import torch

    survey, width = case.survey, halo(order)
    tensor = lambda x: torch.as_tensor(np.array(x), dtype=torch.float64, device=device)
    known, update = tensor(waves.squared_slowness(case.velocity)), tensor(case.update)
    cells = lambda points: np.round(points / np.asarray(survey.spacing)).astype(int).T
    sources, receivers = cells(survey.sources), cells(survey.receivers)
    places = torch.zeros((survey.shots, *survey.shape), dtype=torch.float64, device=device)
    places[(np.arange(survey.shots), *sources)] = 1.0 / float(np.prod(survey.spacing))
    weights = [(tensor(w), k) for k, w in enumerate(SECOND[order])]

    def laplacian(u: Any) -> Any:
        (nx, nz), (hx, hz) = survey.shape, survey.spacing
        along_x = torch.nn.functional.pad(u, (0, 0, width, width))
        along_z = torch.nn.functional.pad(u, (width, width))
        total = torch.zeros_like(u)
        for weight, k in weights:
            for shift in {width + k, width - k}:
                total = total + weight / hx**2 * along_x[:, shift : shift + nx]
                total = total + weight / hz**2 * along_z[:, :, shift : shift + nz]
        return total

    def traces(theta: Any) -> Any:
        scale = survey.dt**2 * 1e6 / (known + update * (theta - known))
        before = now = torch.zeros_like(places)
        seen = []
        for sample in survey.wavelet:
            seen.append(now[:, receivers[0], receivers[1]])
            push = laplacian(now) + float(sample) * places
            before, now = now, 2 * now - before + scale * push
        return torch.stack(seen, dim=-1)

    return traces


def _jax(case: Case, order: int) -> Any:
    settings = {"update": case.update, "order": order, "absorbing": LAYER, "stored_every": 1}
    return waves.Acoustic(case.survey, case.velocity, dtype=np.float64, **settings)


def _torch(case: Case, order: int) -> Any:
    return ng.TorchModel(torch_waves(case, order))


def _deepwave(case: Case, order: int) -> Any:
    from natgrad.interop.deepwave import Deepwave

    settings = {"update": case.update, "order": order, "absorbing": LAYER}
    return Deepwave(case.survey, case.velocity, dtype=np.float64, **settings)


def _devito(case: Case, order: int) -> Any:
    from natgrad.interop.devito import Devito

    settings = {"update": case.update, "order": order, "absorbing": LAYER, "stored_every": 1}
    return Devito(case.survey, case.velocity, dtype=np.float64, **settings)


ENGINES = {"jax": _jax, "torch": _torch, "deepwave": _deepwave, "devito": _devito}
