"""Waves by deepwave, on a CPU or a GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jax.typing import DTypeLike
from numpy.typing import ArrayLike

from ..errors import InputError, import_optional
from ..waves.acoustic import DEFAULT_MEMORY, check_start
from ..waves.outside import OutsideWaves, Propagator
from ..waves.scheme import locate
from ..waves.storage import refuse_storage
from ..waves.survey import Survey

MARGIN = 1e-6  # deepwave refuses steps at its limit, which is that of the scheme


class Deepwave(OutsideWaves):
    """`waves.Acoustic` with deepwave as the propagator, and its perfectly matched layer.

    ρ is `deepwave.scalar`, Zη `deepwave.scalar_born`, Zᵀξ the gradient of the first. The step in
    time is the survey's. Fields that do not fit into `memory` bytes are computed again from
    checkpoints. With `stored_every` above 1 the adjoint uses every n-th field: Zᵀξ is then the
    transpose of Zη only as far as such fields tell.

    ```python
    model = Deepwave(survey, start, device="cuda")
    ```

    Cost: one propagation for ρ and for Zᵀξ each, two for Zη.

    Args:
        survey: As for `waves.Acoustic`, like the other arguments that it shares.
        velocity: The starting model, in m/s.
        update: Weight of every cell, 0 where the velocity is known.
        order: Order in space, 4 or 8.
        absorbing: Cells of the absorbing layer.
        memory: Bytes for stored fields.
        stored_every: Steps between two stored fields.
        device: The device of PyTorch.
        dtype: Precision of the waves.
    """

    def __init__(
        self,
        survey: Survey,
        velocity: ArrayLike,
        *,
        update: ArrayLike | None = None,
        order: int = 4,
        absorbing: int = 10,
        memory: int = DEFAULT_MEMORY,
        stored_every: int = 1,
        device: str = "cpu",
        dtype: DTypeLike = np.float32,
    ):
        arguments = (survey, velocity, update, order, absorbing, memory, stored_every, dtype)
        start = check_start(*arguments)
        refuse_storage(start.storage, start.memory, survey.shots)
        if survey.steps % start.storage.every:
            what = f"{stored_every} does not divide the {survey.steps} steps, as deepwave asks"
            raise InputError("stored_every", what, "stored_every=1, or another number of steps")
        segment = start.storage.segment
        settings = {
            "accuracy": start.order,
            "pml_width": start.absorbing,
            "pml_freq": survey.highest_frequency / 2,
            "max_vel": survey.fastest_stable(start.order),
            "model_gradient_sampling_interval": start.storage.every,
            "checkpoint_segments": None if segment is None else -(-survey.steps // segment),
        }
        super().__init__(survey, start, _Deepwave(survey, settings, device, dtype))


class _Deepwave(Propagator):
    name = "deepwave"

    def __init__(self, survey: Survey, settings: dict[str, Any], device: str, dtype: DTypeLike):
        self.engine = import_optional("deepwave", "Deepwave")
        self.torch = import_optional("torch", "Deepwave")
        if device != "cpu" and not self.torch.cuda.is_available():
            raise InputError("device", f"PyTorch finds no GPU for {device!r}", "device='cpu'")
        self.device, self.dtype = device, dtype
        place = lambda name, x: locate(name, x, survey.shape, survey.spacing, 0)
        cells, weights = place("sources", survey.sources)
        wavelets = np.broadcast_to(survey.wavelet, (survey.shots, survey.steps))
        # deepwave's equation has −s on the right, and s adds to a cell
        force = -wavelets[:, None] * weights[..., None] / np.prod(survey.spacing)
        self.force, self.sources = self._tensor(force), self._index(cells)
        cells, weights = place("receivers", survey.receivers)
        used, at = np.unique(cells.reshape(-1, cells.shape[-1]), axis=0, return_inverse=True)
        self.receivers, self.at = self._index(used), self._index(at.reshape(weights.shape))
        self.weights = self._tensor(weights[..., None])
        self.grid = list(survey.spacing), survey.dt
        per_metre = np.sqrt(np.sum(np.asarray(survey.spacing) ** -2.0))
        courant = survey.dt * settings["max_vel"] * per_metre
        self.settings = settings | {"courant_number": (1 - MARGIN) * courant}
        self.settings["max_vel"] *= 1 - 2 * MARGIN

    def simulate(self, m: np.ndarray, shots: np.ndarray, keep: bool) -> tuple[np.ndarray, Any]:
        medium = self._tensor(m).requires_grad_(keep)
        with self.torch.set_grad_enabled(keep), self._quiet():
            out = self.engine.scalar(
                medium**-0.5,
                *self.grid,
                receiver_locations=self._receivers(shots),
                **self._survey(shots),
            )
            traces = self._interpolate(out[-1])
        return self._numpy(traces), (shots, medium, traces) if keep else None

    def push(self, m: np.ndarray, change: np.ndarray, kept: Any) -> np.ndarray:
        velocity = self._tensor(m) ** -0.5
        shots, along = kept[0], -0.5 * velocity**3 * self._tensor(change)
        with self.torch.no_grad(), self._quiet():
            out = self.engine.scalar_born(
                velocity,
                *self.grid,
                dv=along,
                sc_receiver_locations=self._receivers(shots),
                **self._survey(shots),
            )
        return self._numpy(self._interpolate(out[-1]))

    def pull(self, m: np.ndarray, xi: np.ndarray, kept: Any) -> np.ndarray:
        _, medium, traces = kept
        medium.grad = None
        traces.backward(self._tensor(xi), retain_graph=True)  # checkpoints refuse autograd.grad
        return self._numpy(medium.grad)

    def _survey(self, shots: np.ndarray) -> dict[str, Any]:
        rows = self._index(shots)
        return self.settings | {
            "source_amplitudes": self.force[rows],
            "source_locations": self.sources[rows],
        }

    def _receivers(self, shots: np.ndarray) -> Any:
        return self.receivers.expand(len(shots), -1, -1)

    def _interpolate(self, recorded: Any) -> Any:
        """(shots, receivers, steps) from the cells around them."""
        return (recorded[:, self.at] * self.weights).sum(2)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without warnings of coarse grids, which the survey gives, and of older versions."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.engine.MigrationWarning)
            warnings.filterwarnings("ignore", "At least six grid cells", UserWarning)
            yield

    def _tensor(self, x: Any) -> Any:
        return self.torch.as_tensor(np.array(x, self.dtype), device=self.device)

    def _index(self, x: np.ndarray) -> Any:
        return self.torch.as_tensor(np.array(x, np.int64), device=self.device)

    def _numpy(self, tensor: Any) -> np.ndarray:
        return tensor.detach().cpu().numpy()
