"""A problem is a model and something to minimise over it; losses on states."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .core.compiled import jit_forwarding
from .core.outcomes import Counts
from .core.selection import Selection
from .core.settings import Number, Public, setting
from .errors import InputError, name_kind
from .grids import Domain
from .metrics.base import Metric, check_density, check_on_grid, grid_axes
from .models.base import Evaluation, Loss, Model, Products
from .models.explicit import as_model
from .parameters import flatten


class Problem(Public, eqx.Module):
    """min over θ of f(ρ(θ)) + R(θ), or of any F(θ) with ρ(θ) carrying only the metric.

    ```python
    ng.Problem(model, loss)                                # f sees the state
    ng.Problem(model, loss, regulariser=lambda theta: 1e-3 * jnp.sum(theta**2))
    ng.Problem(model, objective=F)                         # F sees theta (a PINN)
    ```

    The compiled programs are keyed by the identity of these functions: data that changes goes
    into a field of an `equinox.Module`, not into a closure. A new closure is traced again, since
    it may read what has changed meanwhile; with JAX's cache, `jax_compilation_cache_dir`, it is
    compiled again only if its program is another. Programs are kept; on Linux they are let go
    before they are too many for the process.

    Args:
        model: A `Model`, or a function θ ↦ ρ written in JAX.
        loss: f(ρ).
        objective: F(θ), in place of a loss.
        regulariser: R(θ), added to the loss.
    """

    EXAMPLE: ClassVar[str] = "ng.Problem(model, loss)"
    model: Model
    loss: Any  # a `Loss`, or None where there is an objective
    objective: Any
    regulariser: Any

    def __init__(
        self,
        model: Model | Callable[[PyTree], PyTree],
        loss: Loss | None = None,
        *,
        objective: Loss | None = None,
        regulariser: Loss | None = None,
    ):
        if (loss is None) == (objective is None):
            raise InputError(
                "loss, objective", "exactly one of them is needed", "Problem(model, loss)"
            )
        if objective is not None and regulariser is not None:
            raise InputError(
                "regulariser", "an objective already sees theta", "objective=F plus the term"
            )
        if not callable(model) or isinstance(model, _Loss) or isinstance(loss, Model):
            name, given = ("loss", loss) if isinstance(loss, Model) else ("model", model)
            what = f"is {name_kind(given)}; the arguments may be swapped"
            raise InputError(name, what, "ng.Problem(model, loss), with a callable model first")
        for name, given, advice in (
            ("loss", loss, "ng.LeastSquares(data)"),
            ("objective", objective, "a function of theta"),
            ("regulariser", regulariser, "lambda theta: 1e-3 * jnp.sum(theta**2)"),
        ):
            if given is not None and not callable(given):
                raise InputError(name, f"is {name_kind(given)}, not a function", advice)
        self.model = model if isinstance(model, Model) else as_model(model)
        self.loss, self.objective, self.regulariser = loss, objective, regulariser

    def value(self, theta: PyTree, rho: PyTree) -> Array:
        """F at θ, given the state ρ(θ)."""
        if self.objective is not None:
            return self.objective(theta)
        value = self.loss(rho)
        return value if self.regulariser is None else value + self.regulariser(theta)

    def restricted(self, selection: Selection) -> "Problem":
        """min over θ of f(Sρ(θ)) + R(θ), for a mini-batch: an unbiased estimate of this problem."""
        select = "MiniBatch(..., select=function), where function(rows) returns the Problem there"
        if self.objective is not None:
            raise InputError("batch", "an objective of theta has no points to select", select)
        if not hasattr(self.loss, "restricted"):
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            advice = f"LeastSquares or KullbackLeibler, or {select}"
            raise InputError("batch", f"the loss {name} is not known on a selection", advice)
        model, loss = self.model.restricted(selection), self.loss.restricted(selection)
        return Problem(model, loss, regulariser=self.regulariser)

    def check(self, theta: PyTree, structure: PyTree) -> None:
        """The value must be a real floating-point scalar."""
        name = "objective" if self.objective is not None else "loss"
        if hasattr(self.loss, "check_structure"):
            self.loss.check_structure(structure)
        value = eqx.filter_eval_shape(self.value, theta, structure)
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(
                name, f"returns {value} where a real scalar is needed", "jnp.sum or jnp.mean of it"
            )


class _Loss(Public, eqx.Module):
    """A loss against a target of the state's shape."""

    target: eqx.AbstractVar[PyTree]
    grid: eqx.AbstractVar[Domain | None]

    def check_structure(self, state: PyTree) -> None:
        """The target must have the shapes of the state, and of the grid."""
        for leaf in jax.tree.leaves(self.target):
            if not isinstance(getattr(leaf, "dtype", None), np.dtype | None):
                what = f"is {name_kind(leaf)}, not an array of JAX or NumPy"
                raise InputError("target", what, "jnp.asarray(tensor.detach().numpy())")
        shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(state)]
        targets = [tuple(np.shape(leaf)) for leaf in jax.tree.leaves(self.target)]
        if shapes != targets or jax.tree.structure(state) != jax.tree.structure(self.target):
            raise InputError(
                "target",
                f"has shapes {targets} but the model returns {shapes}",
                "a target on the same points as the state",
            )
        if self.grid is not None:
            check_on_grid(self.grid, state)

    def restricted(self, selection: Selection) -> Callable[[PyTree], Array]:
        """f(Sρ) · k/k′ for a loss that is a sum over the state."""
        target = selection.take(self.target)
        return ScaledLoss(eqx.tree_at(lambda loss: loss.target, self, target), selection.scale)


class ScaledLoss(eqx.Module):
    """c f(ρ)."""

    loss: Callable[[PyTree], Array]
    weight: Number = setting("weight", positive=True)

    def __call__(self, rho: PyTree) -> Array:
        value = self.loss(rho)
        return jnp.asarray(self.weight, value.dtype) * value


class LeastSquares(_Loss):
    """f(ρ) = ½ ∫ |ρ − ρ*|² dx, or ½ Σ |ρ − ρ*|² where no grid is given.

    `grid` is a `Grid`, or a finite element space `ng.fem.Space`.

    Args:
        target: ρ*, with the shape of the state.
        grid: Where the state lives; None for plain sums.
    """

    target: PyTree
    grid: Domain | None = None

    def __call__(self, rho: PyTree) -> Array:
        square = lambda difference: difference**2
        integral = lambda u: (
            jnp.sum(square(u)) if self.grid is None else self.grid.integrate(square, u)
        )
        squares = jax.tree.map(lambda a, b: integral(a - b), rho, self.target)
        return 0.5 * jnp.sum(jnp.stack(jax.tree.leaves(squares)))


class KullbackLeibler(_Loss):
    """f(ρ) = ∫ ρ* log(ρ*/ρ) − ρ* + ρ dx: the divergence of the target from the model.

    Zero only at ρ = ρ*, for densities of any mass; its Hessian there is the Fisher–Rao metric.
    Infinite where ρ < 0 or ρ = 0 < ρ*, which ends a step.

    Args:
        target: ρ*, not negative.
        grid: Where the densities live.
    """

    target: Array
    grid: Domain

    def __check_init__(self):
        if eqx.is_array_like(self.target) and not isinstance(self.target, jax.core.Tracer):
            check_density("target", self.target, grid_axes(self.grid))

    def __call__(self, rho: Array) -> Array:
        return self.grid.integrate(_divergence, rho, self.target)


def _divergence(rho: Array, target: Array) -> Array:
    """The integrand of Kullback and Leibler."""
    positive = target > 0
    ratio = jnp.where(positive, target, 1.0) / jnp.where(positive, rho, 1.0)
    density = target * jnp.log(ratio) - target + rho
    return jnp.where(rho < 0, jnp.inf, density)  # else unbounded below where ρ* = 0


class SquaredDistance(_Loss):
    """f(ρ) = ½ ‖ρ − ρ*‖² in a metric frozen at the target: Hˢ and Ḣˢ norms, or any other.

    ```python
    ng.SquaredDistance(target, ng.HomogeneousSobolev(grid, -1))
    ```

    Args:
        target: ρ*.
        metric: The metric; it is taken at the target.
    """

    target: PyTree
    metric: Metric
    grid: ClassVar[None] = None

    def check_structure(self, state: PyTree) -> None:
        super().check_structure(state)
        self.metric.check_structure(state)
        self.metric.check_values(self.target)

    def restricted(self, selection: Selection) -> "SquaredDistance":
        """Of functions; unbiased where the metric does not couple them."""
        if selection.of != "functions":
            raise InputError(
                "batch",
                "a distance is not a sum over points, so a sample of them does not estimate it",
                "LeastSquares, or of='functions'",
            )
        return SquaredDistance(selection.take(self.target), self.metric.restricted(selection))

    def __call__(self, rho: PyTree) -> Array:
        difference = jax.tree.map(jnp.subtract, rho, self.target)
        image = self.metric.factor(self.target).mv(difference)
        return 0.5 * jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(image)]))


class LossDerivatives(NamedTuple):
    """F, ∂_ρ f, and what θ adds by itself: ∂_θ f = Zᵀ `covector` + `direct`; None for nothing."""

    value: Array
    covector: PyTree | None
    direct: Array | None


@eqx.filter_jit
def differentiate_loss(problem: Problem, theta: PyTree, rho: PyTree) -> LossDerivatives:
    """The derivatives of the loss at the state ρ = ρ(θ), without those of the model."""
    parameters, rest = eqx.partition(theta, eqx.is_inexact_array)

    def in_theta(function: Callable[[PyTree], Array]) -> tuple[Array, Array]:
        value, slope = jax.value_and_grad(lambda t: function(eqx.combine(t, rest)))(parameters)
        return value, ravel_pytree(slope)[0]

    if problem.objective is not None:
        value, direct = in_theta(problem.objective)
        return LossDerivatives(value, None, direct)
    value, covector = jax.value_and_grad(problem.loss)(rho)
    if problem.regulariser is None:
        return LossDerivatives(value, covector, None)
    extra, direct = in_theta(problem.regulariser)
    return LossDerivatives(value + extra, covector, direct)


class ValueAndGradient(NamedTuple):
    """F(θ) and ∂_θ F as a flat vector, what they cost, and the products that gave the gradient."""

    value: Array
    gradient: Array
    counts: Counts
    products: Products | None


def value_and_gradient(
    problem: Problem, theta: PyTree, known: Evaluation | None = None
) -> ValueAndGradient:
    """F(θ) and its plain gradient, by one adjoint product.

    `known` is an evaluation of the model at θ. Compiled, unless the model is outside JAX.
    """
    run = _differentiate if problem.model.on_host else _differentiate_compiled
    return run(problem, theta, known)


def _differentiate(problem: Problem, theta: PyTree, known: Evaluation | None) -> ValueAndGradient:
    flat, unravel = flatten(theta)
    if problem.objective is not None:
        value, gradient = jax.value_and_grad(lambda v: problem.objective(unravel(v)))(flat)
        return ValueAndGradient(value, gradient, Counts(1, 0, 1), None)
    if not problem.model.solves:
        objective = lambda v: problem.value(unravel(v), problem.model(unravel(v)))
        value, gradient = jax.value_and_grad(objective)(flat)
        return ValueAndGradient(value, gradient, Counts(1, 0, 1), None)
    products = problem.model.products(unravel, flat, known)
    value, covector, direct = differentiate_loss(problem, theta, products.rho)
    gradient = products.pull(covector)
    gradient = gradient if direct is None else gradient + direct
    return ValueAndGradient(value, gradient, Counts(products.evaluations, 0, 1), products)


_differentiate_compiled = jit_forwarding(_differentiate)
