"""Implicit Euler and proximal steps: an inner problem around θ in place of a step along η."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree
from scipy.optimize import minimize as scipy_minimize

from ..core.outcomes import Counts, Status
from ..core.settings import Number, count, setting
from ..direction.damping import ParameterOperator, Undamped
from ..direction.linearisation import Linearisation, linearise
from ..direction.matrix_free import matrix_free_system
from ..errors import InputError
from ..metrics.base import Metric
from ..metrics.diagonal import Euclidean
from ..parameters import Bounds, flatten
from ..problem import Problem
from ..solvers import CG, Auto
from .steps import Outcome, Path, Step, Trial

NO_DAMPING = Undamped()
Nearness = Literal["information", "distance"]


class ProximalStep(Step):
    """θ⁺ = argmin f(ρ(θ)) + Q(θ)/(2τ): the implicit Euler step of the natural gradient flow.

    | `nearness` | Q(θ), for the iterate θₗ and the damping λD |
    |---|---|
    | "information" | ⟨(G + λD)(θ − θₗ), θ − θₗ⟩, G at θₗ: equation (4) of the paper |
    | "distance" | d(ρ(θ), ρ(θₗ))² + λ⟨D(θ − θₗ), θ − θₗ⟩, d the metric's distance: equation (5) |

    With `metric=Euclidean()` both are ‖θ − θₗ‖², equation (6); with a sum of metrics "distance"
    adds up their squared distances. To first order in τ all agree with the explicit step τη.

    The inner problem is solved by L-BFGS until its gradient is `tolerance` · ‖∂_θ f‖ or shorter, or
    for `max_iterations`, from the minimiser of its quadratic model along η (θₗ + τη for a small τ).
    The step is taken if the inner objective fell below f(θₗ).

    ```python
    ng.minimize(problem, theta, metric=ng.FisherRao(grid), step=ng.ProximalStep(1.0, "distance"))
    ```

    Cost: one forward and one adjoint propagation for each inner evaluation; for "information" one
    linearised and one adjoint more. Driven from Python. Reference: section 1 of the paper,
    equations (4) to (6), and section 3.5.1 for the damped forms.
    """

    size: Number = setting("size", positive=True)
    nearness: Nearness = eqx.field(static=True, default="information")
    tolerance: Number = setting("tolerance", 1e-3, positive=True, below=1.0)
    max_iterations: Number = count("max_iterations", 50)

    def __check_init__(self):
        if self.nearness not in ("information", "distance"):
            advice = "'information' or 'distance'"
            raise InputError("nearness", f"{self.nearness!r} is unknown", advice)

    @property
    def on_host(self) -> bool:
        return True

    def _first_length(self, path: Path, tau: float) -> float:
        """t with f′t + (f″ − f′/τ)t²/2 → min along η, where ⟨η, (G + λD)η⟩ = −f′."""
        fall, curvature = -float(path.slope), float(path.curvature())
        return fall / (max(curvature, 0.0) + fall / tau) if fall > 0 else tau

    def take(self, path: Path) -> tuple[Outcome, Any]:
        tau = float(self.size)
        inner = path.around(tau, self.nearness)
        wanted = float(self.tolerance) * np.linalg.norm(inner.slope)
        start = inner.start(self._first_length(path, tau))
        found = scipy_minimize(
            inner.value_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=inner.bounds,
            callback=lambda intermediate_result: inner.stop_below(wanted, intermediate_result.x),
            options={"maxiter": int(self.max_iterations), "ftol": 0.0, "gtol": 0.0},
        )
        trial = path.at(jnp.asarray(found.x, inner.dtype))
        return _outcome(path, inner, trial, tau, float(found.fun), int(found.nit)), trial.known


def _outcome(
    path: Path, inner: "Inner", trial: Trial, tau: float, objective: float, iterations: int
) -> Outcome:
    value, finite = float(trial.value), np.isfinite(float(trial.value)) and np.isfinite(objective)
    decreased = objective < float(path.value) and value < float(path.value)
    reason = Status.OK if decreased else Status.NO_DECREASE
    reason = reason if bool(trial.admissible) else Status.INADMISSIBLE
    reason = reason if finite else Status.NOT_FINITE
    promised = trial.linear_decrease
    spent = inner.counts
    return Outcome(
        accepted=jnp.asarray(reason == Status.OK),
        reason=jnp.asarray(reason.code),
        tau=jnp.asarray(tau, path.value.dtype),
        theta=trial.theta,
        value=trial.value,
        halvings=jnp.zeros((), int),
        ratio=(path.value - trial.value) / jnp.where(promised == 0, 1.0, promised),
        predicted=promised,
        evaluations=jnp.asarray(spent.forward + 1),
        linearised=jnp.asarray(spent.linearised + path.curvature_products),
        adjoint=jnp.asarray(spent.adjoint),
    )


class Inner:
    """f(ρ(θ)) + Q(θ)/(2τ) with its gradient, as SciPy calls it, and what it has cost."""

    def __init__(
        self,
        problem: Problem,
        theta: PyTree,
        metric: Metric,
        lin: Linearisation,
        eta: Array,
        strength: Array,
        damping_operator: ParameterOperator | None,
        box: Bounds | None,
        tau: float,
        nearness: Nearness,
    ):
        flat, self._unravel = flatten(theta)
        self._flat, self.dtype, self._tau = np.asarray(flat, float), flat.dtype, tau
        self._eta, self._box = np.asarray(eta, float), box
        self._strength, self._operator = float(strength), damping_operator
        self.slope, self.counts = np.asarray(lin.gradient), Counts(0, 0, 0)
        flat_metric = isinstance(metric, Euclidean)
        self._information = None
        if nearness == "information" and not flat_metric:
            self._information = self._products(problem, flat, metric, lin)
        self._plain = flat_metric
        anchored = nearness == "distance" and not flat_metric
        anchor = self._anchor(problem, theta, lin) if anchored else None
        self._problem = _with_penalty(problem, metric, anchor, tau)
        self._gradients: dict[bytes, np.ndarray] = {}

    def start(self, length: float) -> np.ndarray:
        """θₗ + `length` · η, inside the bounds."""
        point = self._flat + length * self._eta
        return point if self._box is None else np.clip(point, *map(np.asarray, self._box))

    @property
    def bounds(self) -> list[tuple[float, float]] | None:
        """As SciPy wants them."""
        return None if self._box is None else list(zip(*map(np.asarray, self._box), strict=True))

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The inner objective; infinite where it is not finite, which shortens the step."""
        theta = self._unravel(jnp.asarray(x, self.dtype))
        lin = linearise(self._problem, theta, Euclidean(), Auto(), NO_DAMPING, None)
        value, gradient, counts = jax.device_get((lin.loss, lin.gradient, lin.counts))
        self._count(*counts)
        moved = x - self._flat
        force = self._strength * self._damped(moved)
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

    def _damped(self, moved: np.ndarray) -> np.ndarray:
        if self._operator is None:
            return moved
        return np.asarray(self._operator.apply(jnp.asarray(moved, self.dtype)), float)

    def _count(self, forward: Any, linearised: Any, adjoint: Any) -> None:
        self.counts = Counts(*map(int, self.counts.plus(forward, linearised, adjoint)))

    def _products(
        self, problem: Problem, flat: Array, metric: Metric, lin: Linearisation
    ) -> Callable[[Array], Array]:
        """v ↦ Gv at θₗ."""
        products = problem.model.products(self._unravel, flat)
        self._count(products.evaluations, 0, 0)
        system = matrix_free_system(products, lin.gradient, metric, CG())
        if problem.model.on_host:
            return lambda v: system.information(v)[1]
        return lambda v: _information(system, v)

    def _anchor(self, problem: Problem, theta: PyTree, lin: Linearisation) -> PyTree:
        if lin.rho is not None:
            return lin.rho
        self._count(1, 0, 0)
        return problem.model(theta)


class _Anchored(eqx.Module):
    """f(ρ) + d(ρ, ρₗ)²/(2τ), f left out where it is an objective of θ."""

    loss: Any
    metric: Metric
    anchor: PyTree
    tau: Array

    def __call__(self, rho: PyTree) -> Array:
        near = self.metric.squared_distance(rho, self.anchor) / (2 * self.tau)
        return near if self.loss is None else self.loss(rho) + near


def _with_penalty(problem: Problem, metric: Metric, anchor: PyTree | None, tau: float) -> Problem:
    """The problem, with its loss anchored at ρₗ if that is given."""
    if anchor is None:
        return problem
    loss = _Anchored(problem.loss, metric, anchor, jnp.asarray(tau))
    extra = problem.regulariser if problem.objective is None else problem.objective
    return Problem(problem.model, loss, regulariser=extra)


@eqx.filter_jit
def _information(system: Any, v: Array) -> Array:
    return system.information(v)[1]
