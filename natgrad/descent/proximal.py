"""Implicit Euler and proximal steps: an inner problem around θ in place of a step along η."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.settings import Number, count, setting
from ..direction.local import Local
from ..direction.matrix_free import gram_at
from ..errors import InputError
from ..metrics.base import Metric
from ..parameters import flatten
from ..problem import Problem, value_and_gradient
from ..solvers.base import System
from .steps import INADMISSIBLE, NO_DECREASE, NOT_FINITE, OK, Outcome, Path, Step, Trial

Nearness = Literal["information", "distance"]


class ProximalStep(Step):
    """θ⁺ = argmin f(ρ(θ)) + Q(θ)/(2τ): the implicit Euler step of the natural gradient flow.

    | `nearness` | Q(θ), for the iterate θₗ and the damping λD |
    |---|---|
    | "information" | ⟨(G + λD)(θ − θₗ), θ − θₗ⟩, G at θₗ: equation (4) of the paper |
    | "distance" | d(ρ(θ), ρ(θₗ))² + λ⟨D(θ − θₗ), θ − θₗ⟩, d the metric's distance: equation (5) |

    In `GradientDescent` both are ‖θ − θₗ‖², equation (6); with a sum of metrics "distance" adds up
    their squared distances. To first order in τ all agree with the explicit step τη.

    The inner problem is solved by L-BFGS until its gradient is `tolerance` · ‖∂_θ f‖ or shorter, or
    for `max_iterations`, from the minimiser of its quadratic model along η (θₗ + τη for a small τ).
    The step is taken if the inner objective fell below f(θₗ).

    ```python
    ng.NaturalGradient(ng.FisherRao(grid), step=ng.ProximalStep(1.0, "distance"))
    ```

    Cost: one forward and one adjoint propagation for each inner evaluation; for "information" one
    linearised and one adjoint more. Driven from Python. Reference: section 1 of the paper,
    equations (4) to (6), and section 3.5.1 for the damped forms.

    Args:
        size: τ.
        nearness: What keeps θ near the last iterate, see the table.
        tolerance: Gradient at which the inner solve stops, relative to ‖∂_θ f‖.
        max_iterations: The most inner iterations.
    """

    size: Number = setting("size", positive=True)
    nearness: Nearness = eqx.field(static=True, default="information")
    tolerance: Number = setting("tolerance", 1e-3, positive=True, below=1.0)
    max_iterations: Number = count("max_iterations", 50)
    on_host: ClassVar[bool] = True
    follows_curves: ClassVar[bool] = False

    def __check_init__(self):
        if self.nearness not in ("information", "distance"):
            advice = "'information' or 'distance'"
            raise InputError("nearness", f"{self.nearness!r} is unknown", advice)

    def take(self, path: Path, memory: PyTree) -> tuple[Outcome, PyTree]:
        tau = float(self.size)
        inner = _Inner(path, tau, self.nearness)
        wanted = float(self.tolerance) * float(np.linalg.norm(inner.slope))
        # t with f′t + (f″ − f′/τ)t²/2 → min along η, where ⟨η, (G + λD)η⟩ = −f′
        curvature, products = path.local.curvature(path.solution)
        fall = -float(path.slope)
        first = fall / (max(float(curvature), 0.0) + fall / tau) if fall > 0 else tau
        start = inner.start(first)
        found = scipy.optimize.minimize(
            inner.value_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=inner.bounds,
            callback=lambda intermediate_result: inner.stop_below(wanted, intermediate_result.x),
            options={"maxiter": int(self.max_iterations), "ftol": 0.0, "gtol": 0.0},
        )
        trial = path.at(jnp.asarray(found.x, inner.dtype))
        inner.counts = inner.counts.plus(linearised=products)
        return _conclude(path, inner, trial, tau, float(found.fun)), memory


def _conclude(path: Path, inner: "_Inner", trial: Trial, tau: float, objective: float) -> Outcome:
    before, value = float(path.value), float(trial.value)
    status = OK if objective < before and value < before else NO_DECREASE
    status = status if bool(trial.admissible) else INADMISSIBLE
    status = status if np.isfinite(value) and np.isfinite(objective) else NOT_FINITE
    promised = trial.linear_decrease
    return Outcome(
        accepted=jnp.asarray(status == OK),
        status=jnp.asarray(status),
        tau=jnp.asarray(tau, path.value.dtype),
        theta=trial.theta,
        value=trial.value,
        halvings=jnp.zeros((), int),
        ratio=(path.value - trial.value) / jnp.where(promised == 0, 1.0, promised),
        expected=jnp.full_like(path.value, jnp.nan),
        predicted=promised,
        counts=inner.counts.plus(forward=1),
        known=trial.known,
    )


class _Inner:
    """f(ρ(θ)) + Q(θ)/(2τ) with its gradient, as SciPy calls it, and what it has cost."""

    def __init__(self, path: Path, tau: float, nearness: Nearness):
        local = path.local
        setup, (flat, self._unravel) = local.setup, flatten(local.setup.theta)
        self._flat, self.dtype, self._tau = np.asarray(flat, float), flat.dtype, tau
        self._eta, self._bounds = np.asarray(path.eta, float), setup.bounds
        self._strength = float(path.damping)
        self._operator = setup.damping.operator
        self.slope, self.counts = np.asarray(local.gradient), Counts(0, 0, 0)
        self._problem, self._information = setup.problem, None
        self._plain = setup.metric is None
        if setup.metric is not None and nearness == "information":
            self._information = self._products(local, setup.metric)
        if setup.metric is not None and nearness == "distance":
            anchor = self._anchor(local)
            self._problem = _add_penalty(setup.problem, setup.metric, anchor, tau)
        self._gradients: dict[bytes, np.ndarray] = {}

    def start(self, length: float) -> np.ndarray:
        """θₗ + `length` · η, inside the bounds."""
        point = self._flat + length * self._eta
        return point if self._bounds is None else np.clip(point, *map(np.asarray, self._bounds))

    @property
    def bounds(self) -> list[tuple[float, float]] | None:
        """As SciPy wants them."""
        if self._bounds is None:
            return None
        return list(zip(*map(np.asarray, self._bounds), strict=True))

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The inner objective; infinite where it is not finite, which shortens the step."""
        found = value_and_gradient(self._problem, self._unravel(jnp.asarray(x, self.dtype)))
        value, gradient, counts = jax.device_get((found.value, found.gradient, found.counts))
        self._count(*counts)
        moved = x - self._flat
        force = self._strength * self._damp(moved)
        if self._plain:
            force = force + moved
        if self._information is not None:
            force = force + np.asarray(self._information(jnp.asarray(moved, self.dtype)))
            self._count(0, 1, 1)
        value = float(value) + float(moved @ force) / (2 * self._tau)
        gradient = np.asarray(gradient, float) + force / self._tau
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            value, gradient = np.inf, np.zeros_like(x)
        self._gradients[x.tobytes()] = gradient
        return value, gradient

    def stop_below(self, wanted: float, x: np.ndarray) -> None:
        """End SciPy's loop at an iterate whose gradient is short enough."""
        gradient = self._gradients.get(x.tobytes())
        self._gradients.clear()
        if gradient is not None and np.linalg.norm(gradient) <= wanted:
            raise StopIteration

    def _damp(self, moved: np.ndarray) -> np.ndarray:
        if self._operator is None:
            return moved
        return np.asarray(self._operator.apply(jnp.asarray(moved, self.dtype)), float)

    def _count(self, forward: Any, linearised: Any, adjoint: Any) -> None:
        self.counts = Counts(*map(int, self.counts.plus(forward, linearised, adjoint)))

    def _products(self, local: Local, metric: Metric) -> Callable[[Array], Array]:
        """v ↦ Gv at θₗ."""
        model, (flat, unravel) = local.setup.problem.model, flatten(local.setup.theta)
        products = model.products(unravel, flat)
        self._count(products.evaluations, 0, 0)
        system = System(local.gradient, products=products, gram=gram_at(metric, products.rho))
        if model.on_host:
            return lambda v: system.information(v)[1]
        return lambda v: _apply_information(system, v)

    def _anchor(self, local: Local) -> PyTree:
        if local.rho is not None:
            return local.rho
        self._count(1, 0, 0)
        return local.setup.problem.model(local.setup.theta)


class _Anchored(eqx.Module):
    """f(ρ) + d(ρ, ρₗ)²/(2τ), f left out where it is an objective of θ."""

    loss: Callable[[PyTree], Array] | None
    metric: Metric
    anchor: PyTree
    tau: Array

    def __call__(self, rho: PyTree) -> Array:
        near = self.metric.squared_distance(rho, self.anchor) / (2 * self.tau)
        return near if self.loss is None else self.loss(rho) + near


def _add_penalty(problem: Problem, metric: Metric, anchor: PyTree, tau: float) -> Problem:
    """The problem with its loss anchored at ρₗ."""
    loss = _Anchored(problem.loss, metric, anchor, jnp.asarray(tau))
    extra = problem.regulariser if problem.objective is None else problem.objective
    return Problem(problem.model, loss, regulariser=extra)


@eqx.filter_jit
def _apply_information(system: Any, v: Array) -> Array:
    return system.information(v)[1]
