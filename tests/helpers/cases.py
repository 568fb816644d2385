"""Lists that drive the generic tests: a new metric, model, solver, method or step is a line."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PyTree

import dense_oracle as oracle
import natgrad as ng
from natgrad_studies.appendix_b import CollocatedSobolev, CollocatedTransport

BOUNDARIES = ("neumann", "periodic", "dirichlet")
SHAPES = ((7,), (4, 5), (2, 3, 4))


@dataclass(frozen=True)
class Case:
    """A metric on a grid, its dense oracle A(ρ), and whether tangents must conserve mass.

    A slow case runs the code of another one with other numbers, and these are checked elsewhere.
    """

    name: str
    grid: ng.Grid
    metric: ng.metrics.Metric
    dense: Callable[[np.ndarray], np.ndarray]
    mean_free: bool = False
    slow: bool = False

    def __str__(self) -> str:
        return self.name


def make_grid(shape: tuple[int, ...], boundary: str) -> ng.Grid:
    """A box with a different spacing along each axis."""
    upper = tuple(1.0 + 0.3 * i for i in range(len(shape)))
    return ng.Grid((0.0,) * len(shape), upper, shape, boundary)  # pyright: ignore


def symmetric(size: int) -> np.ndarray:
    """A fixed positive definite matrix."""
    root = np.random.default_rng(0).normal(size=(size, size))
    return root @ root.T + np.eye(size)


def grid_cases(shape: tuple[int, ...], boundary: str) -> list[Case]:
    """Every metric that takes this grid."""
    grid = make_grid(shape, boundary)
    w, k = grid.cell_volume, grid.size
    label = f"{'x'.join(map(str, shape))}-{boundary}"
    closed, plane = boundary != "dirichlet", len(shape) == 2
    A = symmetric(k)
    cases = [
        Case("L2", grid, ng.L2(grid), lambda rho: w * np.eye(k)),
        Case("L2()", grid, ng.L2(), lambda rho: np.eye(k), slow=not plane),  # L² with w = 1
        Case("FisherRao", grid, ng.FisherRao(grid), lambda rho: np.diag(w / rho.ravel())),
        Case(
            "Sum of diagonals",
            grid,
            ng.L2(grid) + 0.3 * ng.FisherRao(grid),
            lambda rho: np.diag(w + 0.3 * w / rho.ravel()),
            slow=not plane,
        ),
        Case("MatrixMetric", grid, ng.MatrixMetric(A), lambda rho: A),
        Case("FactorMetric", grid, ng.FactorMetric(A), lambda rho: A.T @ A),
        Case(
            "Sum",
            grid,
            ng.HomogeneousSobolev(grid, 1) + 0.1 * ng.FisherRao(grid),
            lambda rho: oracle.sobolev(grid, 1, True) + np.diag(0.1 * w / rho.ravel()),
        ),
    ]
    # s enters through the symbol alone, which test_grids.py checks for every s
    for s in range(-3, 4):
        cases += [
            Case(
                f"Sobolev({s})",
                grid,
                ng.Sobolev(grid, s),
                lambda rho, s=s: oracle.sobolev(grid, s, False),
                slow=s not in (-1, 2),
            ),
            Case(
                f"HomogeneousSobolev({s})",
                grid,
                ng.HomogeneousSobolev(grid, s),
                lambda rho, s=s: oracle.sobolev(grid, s, True),
                mean_free=closed and s != 0,
                slow=s not in (-2, 0, 1),
            ),
        ]
    if closed:
        cases += [
            Case(
                "Wasserstein",
                grid,
                ng.Wasserstein(grid),
                lambda rho: oracle.transport(grid, rho, 0.5, "staggered"),
                mean_free=True,
            ),
            Case(
                "Mobility(0.8)",
                grid,
                ng.Mobility(grid, 0.8),
                lambda rho: oracle.transport(grid, rho, 0.8, "staggered"),
                mean_free=True,
                slow=not plane,  # W₂ with another exponent
            ),
        ]
    if boundary != "periodic":
        for s in (-2, -1, 1, 2):
            cases.append(
                Case(
                    f"collocated Sobolev({s})",
                    grid,
                    CollocatedSobolev(grid, s),
                    lambda rho, s=s: oracle.sobolev(grid, s, False, "collocated"),
                    slow=s not in (-1, 2),
                )
            )
        for scheme in ("collocated", "forward", "fourth_order"):
            cases.append(
                Case(
                    f"{scheme} Wasserstein",
                    grid,
                    CollocatedTransport(grid, 0.5, scheme),
                    lambda rho, scheme=scheme: oracle.transport(grid, rho, 0.5, scheme),
                    slow=not closed and not plane,  # zero outside on either boundary
                )
            )
    return [replace(case, name=f"{case.name}-{label}") for case in cases]


CASES = [
    case for shape in SHAPES for boundary in BOUNDARIES for case in grid_cases(shape, boundary)
]
SMALL_CASES = [case for case in CASES if case.grid.shape == (4, 5)]
FAST_SMALL_CASES = [case for case in SMALL_CASES if not case.slow]


def parametrised(cases: list[Case], slow: Callable[[Case], bool] = lambda case: False):
    """One test a case, marked where the case is slow or, for this test, `slow` says so."""
    mark = lambda case: [pytest.mark.slow] * (case.slow or slow(case))
    return pytest.mark.parametrize(
        "case", [pytest.param(case, marks=mark(case)) for case in cases], ids=str
    )


def defines(metric: ng.metrics.Metric, method: str) -> bool:
    """Whether a metric has this method of its own, where the default refuses."""
    return getattr(type(metric), method) is not getattr(ng.metrics.Metric, method)


def density(grid: ng.Grid, seed: int, contrast: float = 1.0) -> jnp.ndarray:
    """A positive random state."""
    values = np.random.default_rng(seed).normal(size=grid.shape)
    return jnp.asarray(np.exp(contrast * values))


def tangent(case: Case, seed: int) -> jnp.ndarray:
    """A random tangent, without mean where the metric conserves mass."""
    zeta = np.random.default_rng(seed).normal(size=case.grid.shape)
    if case.mean_free:
        zeta -= zeta.mean()
    return jnp.asarray(zeta)


# --- models: that of PyTorch is in test_torch.py, waves are in test_waves.py

L2 = ng.L2()


@dataclass(frozen=True)
class ModelCase:
    """A model and the plain function of the same θ that its state must agree with."""

    name: str
    model: ng.models.Model
    function: Callable[[jnp.ndarray], PyTree]
    metric: ng.metrics.Metric = L2

    def __str__(self) -> str:
        return self.name


THETA = jnp.array([0.1, 0.6, -0.4])
BASIS = np.cos(np.outer(np.arange(6.0), np.arange(1.0, 4.0)))
SYSTEM = symmetric(6)


def bent(theta):
    """ρ = B tanh(θ)."""
    return BASIS @ jnp.tanh(theta)


def bent_entry(theta, row):
    return row @ jnp.tanh(theta)


def bent_outside(theta):
    return BASIS @ np.tanh(theta)


def bent_jacobian(theta):
    return BASIS * (1 - np.tanh(theta) ** 2)


def bent_residual(rho, theta):
    """M (ρ − B tanh θ)."""
    return SYSTEM @ (rho - bent(theta))


def bent_factor(rho, theta):
    return ng.models.SparseLU(SYSTEM)


COLLOCATION = ng.Collocation(inside=ng.Residual(bent_entry, BASIS))
MODELS = [
    ModelCase("Explicit forward", ng.models.Explicit(bent, mode="forward"), bent),
    ModelCase("Explicit reverse", ng.models.Explicit(bent, mode="reverse"), bent),
    ModelCase("Pointwise", ng.Pointwise(bent_entry, BASIS), bent),
    ModelCase("Sourcewise", ng.Sourcewise(bent_entry, BASIS), bent),
    ModelCase("Collocation", COLLOCATION, lambda t: {"inside": bent(t)}, COLLOCATION.metric),
    ModelCase("ImplicitModel", ng.ImplicitModel(bent_residual, initial=np.zeros(6)), bent),
    ModelCase(
        "ImplicitModel on the host",
        ng.ImplicitModel(bent_residual, initial=np.zeros(6), linear=True, factorise=bent_factor),
        bent,
    ),
    ModelCase(
        "ExternalModel",
        ng.ExternalModel(
            bent_outside,
            lambda theta, eta: bent_jacobian(theta) @ eta,
            lambda theta, xi: bent_jacobian(theta).T @ xi,
        ),
        bent,
    ),
    ModelCase(
        "ExternalModel of a matrix",
        ng.ExternalModel.from_jacobian(bent_outside, bent_jacobian),
        bent,
    ),
]


# --- solvers: all are exact for systems of these shapes

SYSTEMS = {"tall": (9, 5, 5), "wide": (5, 9, 5), "deficient": (9, 5, 3)}  # k, p, rank
SOLVERS = {
    "Auto": ng.Auto(),
    "Cholesky": ng.Cholesky(),
    "QR": ng.QR(),
    "PivotedQR": ng.PivotedQR(),
    "SVD": ng.SVD(),
    "Kernel": ng.Kernel(),
    "NystromKernel": ng.NystromKernel(rank=9),
    "CG": ng.CG(1e-13),
    "LSMR": ng.LSMR(1e-13),
    "RandomizedSVD": ng.RandomizedSVD(rank=5),
    "Hutchinson": ng.Hutchinson(5, probes="column_space"),
}


# --- methods and steps, on residuals of two parameters

ROSENBROCK = ng.Problem(
    lambda t: jnp.stack([10.0 * (t[1] - t[0] ** 2), 1.0 - t[0]]), ng.LeastSquares(jnp.zeros(2))
)
START = jnp.array([-1.2, 1.0])
METHODS = {
    "NaturalGradient": ng.NaturalGradient(ng.L2()),
    "rejected steps": ng.NaturalGradient(
        ng.L2(), damping=ng.LevenbergMarquardt(1e-6), step=ng.FixedStep(1.0)
    ),
    "curve": ng.NaturalGradient(
        ng.L2(), damping=ng.LevenbergMarquardt(), step=ng.Backtracking(), order=2, momentum=0.3
    ),
    "matrix-free": ng.NaturalGradient(
        ng.L2(), solver=ng.CG(1e-8, preconditioner=ng.solvers.Recycled(4)), damping=1e-3
    ),
    "levenberg_marquardt": ng.levenberg_marquardt(ng.L2()),
    "gauss_newton": ng.gauss_newton(ng.L2()),
    "spring": ng.spring(ng.L2()),
    "nystrom": ng.nystrom(ng.L2()),
    "matrix_free": ng.matrix_free(ng.L2()),
    "GradientDescent": ng.GradientDescent(),
    "Newton": ng.Newton(damping=ng.LevenbergMarquardt()),
    "LBFGS": ng.LBFGS(5),
}
STEPS = {
    "FixedStep": ng.FixedStep(0.1),
    "Backtracking": ng.Backtracking(),
    "ModelStep": ng.ModelStep(),
    "ProximalStep": ng.ProximalStep(0.5),
}
