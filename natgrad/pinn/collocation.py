"""Equations at collocation points as a model, and derivatives to write them with.

A residual is written for one point; the library batches it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.selection import Selection
from ..core.settings import Public
from ..core.sharding import check_divides, everywhere, in_parts, put_on_mesh, replace_mesh, to_host
from ..errors import InputError, count_some, name_kind
from ..metrics import Blocks, Metric
from ..metrics.base import FlatMetric
from ..metrics.diagonal import DiagonalMetric
from ..models.base import Evaluation
from ..models.pointwise import DEFAULT_MEMORY, Part, RowModel
from ..problem import Problem

Field = Callable[[Array], Array]


class Residual(Public, eqx.Module):
    """r(θ, x) at the points of one block: the equation inside, a condition on the boundary, data.

    `function(theta, x)` is written for one point x of shape `(d,)` and returns a scalar, or a
    vector for a system of equations. `weight` is the block's weight in the loss, or an array with
    one weight for each point (a quadrature rule, say). `metric` replaces the one of Gauss–Newton
    in `Collocation.metric`.

    ```python
    ng.Residual(lambda net, x: ng.laplacian(lambda y: net(y)[0], x) + source(x), inside)
    ```

    Args:
        function: The residual `function(theta, x)` at one point.
        points: The points of the block, of shape `(n, d)`.
        weight: Weight of the block in the loss, or one for each point.
        metric: Metric of the block in place of Gauss–Newton's.
    """

    function: Callable[[PyTree, Array], Array]
    points: Array
    weight: Array
    metric: Metric | None

    def __init__(
        self,
        function: Callable[[PyTree, Array], Array],
        points: Array,
        weight: float | Array = 1.0,
        metric: Metric | None = None,
    ):
        self.function, self.metric = function, metric
        self.points, self.weight = _as_array(points, "points"), _as_array(weight, "weight", float)

    def entries(self, times: float = 1.0) -> Array:
        """The weight of the square of each value: w/n, or the weights of the points; `times` it."""
        count = 1 if self.weight.ndim else len(self.points)
        if self.weight.ndim or isinstance(self.weight, jax.core.Tracer):
            return times * (self.weight / count)
        found = times * (to_host(self.weight) / count)  # by NumPy, which compiles nothing
        return jnp.asarray(np.asarray(found), self.weight.dtype)

    def check(self, name: str) -> None:
        """Raise `InputError` if there is nothing to evaluate, or the weights make no sense."""
        if not callable(self.function):
            raise InputError(name, "its residual is not callable", "a function of (theta, x)")
        if self.points.ndim != 2 or self.points.size == 0:
            raise InputError(
                name,
                f"its points have shape {self.points.shape}",
                "(n, d) with at least one point; x[:, None] in one dimension",
            )
        if self.weight.shape not in ((), (len(self.points),)):
            raise InputError(
                name,
                f"its weight has shape {self.weight.shape} for {len(self.points)} points",
                "a number, or one for each point",
            )
        weight = self.weight if isinstance(self.weight, jax.core.Tracer) else to_host(self.weight)
        known = isinstance(weight, np.ndarray)
        if known and not np.all(np.isfinite(weight) & (weight > 0)):
            raise InputError(name, "a weight is not finite and positive", "weight=1.0")

    def check_function(self, name: str, theta: PyTree) -> None:
        """Raise `InputError` unless the function returns a real scalar or vector at one point."""
        wanted = "a function of (theta, x) that returns a scalar for one point x"
        try:
            value = eqx.filter_eval_shape(self.function, theta, self.points[0])
        except (TypeError, ValueError, IndexError, KeyError) as error:
            told, _, advice = (part.rstrip(".") for part in str(error).partition(" Try: "))
            what = f"its residual fails at one point of shape {self.points.shape[1:]}: {told}"
            raise InputError(name, what, advice or wanted) from error
        real = hasattr(value, "shape") and jnp.issubdtype(value.dtype, jnp.floating)
        if not real or len(value.shape) > 1:
            raise InputError(name, f"its residual returns {value} at one point", wanted)


class Collocation(RowModel):
    """Residuals at collocation points: a model whose state is a dict with one array a block.

    f = Σ_b w_b · mean |r_b|², and `metric` is the Hessian of f in the residuals, A_b = 2w_b/n_b:
    a step of length 1 along the natural gradient is Gauss–Newton's.

    ```python
    pinn = ng.Collocation(
        interior=ng.Residual(equation, inside, weight=0.01),
        boundary=ng.Residual(lambda net, x: net(x)[0], edge),
    )
    ng.minimize(pinn.problem, net, ng.levenberg_marquardt(pinn.metric))
    ```

    θ is any pytree: an equinox module, the parameters of a flax network, a dict. At most `memory`
    bytes of Z are held at once, see `Pointwise`.

    Cost: Z takes one reverse pass at each point, see `Pointwise`.

    Args:
        memory: Bytes of Z that are held at once.
        **blocks: A `Residual` for each block, by the name of your choice.
    """

    blocks: dict[str, Residual]
    memory: int = eqx.field(static=True)

    def __init__(self, *, memory: int = DEFAULT_MEMORY, **blocks: Residual):
        if not blocks:
            raise InputError("blocks", "there are none", "interior=Residual(function, points)")
        for name, block in blocks.items():
            if not isinstance(block, Residual):
                what = f"is {name_kind(block)}"
                raise InputError(name, what, "Residual(function, points)")
            block.check(name)
        self.blocks, self.memory, self.mesh = blocks, memory, None

    def parts(self) -> dict[str, Part]:
        return {
            name: Part(block.function, block.points, self.mesh)
            for name, block in self.blocks.items()
        }

    def restricted(self, selection: Selection) -> "Collocation":
        what = "a MiniBatch selects from the state, and collocation points are redrawn"
        raise InputError("batch", what, "Resampled(draw)")

    def distributed(self, mesh: Mesh) -> "Collocation":
        """Each device has some of the points of every block."""
        for name, block in self.blocks.items():
            check_divides(mesh, block.points.shape, f"the points of the block {name!r}")
        cut = lambda x: put_on_mesh(x, lambda shape: in_parts(mesh) if shape else everywhere(mesh))
        spread = {
            name: Residual(block.function, cut(block.points), cut(block.weight), block.metric)
            for name, block in self.blocks.items()
        }
        return replace_mesh(Collocation(memory=self.memory, **spread), mesh)

    def as_state(self, arrays: PyTree) -> PyTree:
        return arrays

    def __call__(self, theta: PyTree) -> PyTree:
        real = lambda x: x.ndim < 3 and jnp.issubdtype(x.dtype, jnp.floating)
        try:
            state = super().__call__(theta)
            refused = not all(map(real, state.values()))
        except (TypeError, ValueError, IndexError, KeyError, AttributeError):
            state, refused = None, True
        if refused:  # say where: a look at every block beforehand would double the tracing
            for name, block in self.blocks.items():
                block.check_function(name, theta)
        return super().__call__(theta) if state is None else state

    def check(self, theta: PyTree, known: Evaluation) -> None:
        for name, values in known.rho.items():
            values = to_host(values)
            wrong = int((~values.__array_namespace__().isfinite(values)).sum())
            if wrong:
                lost = int(jnp.sum(~jnp.isfinite(self.blocks[name].points).all(axis=1)))
                if lost:
                    of = len(self.blocks[name].points)
                    what = f"{count_some(lost, of, 'points')} not finite"
                    raise InputError(name, what, "finite points")
                what = f"{count_some(wrong, values.size, 'residuals')} not finite at theta"
                raise InputError(name, what, "another starting point, or points off a singularity")

    def at(
        self, points: Mapping[str, Array], weights: Mapping[str, Array] | None = None
    ) -> "Collocation":
        """The same residuals at other points, or with other weights.

        The blocks that are not named keep theirs.
        """
        moved = {}
        for given in (points, weights := weights or {}):
            if unknown := sorted(set(given) - set(self.blocks)):
                what, names = f"there is no block {unknown[0]!r}", str(list(self.blocks))
                raise InputError("points" if given is points else "weights", what, names)
        for name, block in self.blocks.items():
            there = points.get(name, block.points), weights.get(name, block.weight)
            moved[name] = Residual(block.function, *there, block.metric)
            shape, wanted = moved[name].points.shape, block.points.shape
            if len(shape) == 2 and shape[1] != wanted[1]:
                what = f"those of {name} have shape {shape}, those before {wanted}"
                raise InputError("points", what, f"(n, {wanted[1]}) points")
        return Collocation(memory=self.memory, **moved)

    @property
    def loss(self) -> "WeightedSquares":
        """f = Σ_b w_b · mean |r_b|²."""
        return WeightedSquares({name: block.entries() for name, block in self.blocks.items()})

    @property
    def problem(self) -> Problem:
        """The model with its loss."""
        return Problem(self, self.loss)

    @property
    def metric(self) -> Blocks:
        """The metric of each block: its own, or the Hessian of the loss there."""
        own = lambda block: Weights(block.entries(2)) if block.metric is None else block.metric
        return Blocks(**{name: own(block) for name, block in self.blocks.items()})


class WeightedSquares(eqx.Module):
    """f(r) = Σ_b Σᵢ wᵢ |rᵢ|² over the blocks of a state."""

    weights: dict[str, Array]

    def __call__(self, residuals: dict[str, Array]) -> Array:
        squares = [
            jnp.sum(_spread(weight, residuals[name]) * residuals[name] ** 2)
            for name, weight in self.weights.items()
        ]
        return jnp.sum(jnp.stack(squares))


class Weights(DiagonalMetric, FlatMetric):
    """A = diag(w), with one weight for all values or one for each point."""

    weights: Array

    def entries(self, rho: Array) -> Array:
        return _spread(self.weights, rho)


def _spread(weights: Array, values: Array) -> Array:
    """The weights along the leading axis of the values, in their precision."""
    trailing = (1,) * (values.ndim - weights.ndim)
    return weights.reshape(*weights.shape, *trailing).astype(values.dtype)


def _as_array(value: Any, name: str, dtype: Any = None) -> Array:
    try:
        if isinstance(value, (float, np.ndarray)):  # with a dtype JAX compiles no program for it
            value = np.asarray(value)
            dtype = jax.dtypes.canonicalize_dtype(value.dtype if dtype is None else dtype)
        return jnp.asarray(value, dtype)
    except (TypeError, ValueError) as error:
        raise InputError(name, f"{name_kind(value)} is no array", "jnp.array(...)") from error


def derivative(u: Field, x: Array, *axes: int) -> Array:
    """∂u/∂x_i, ∂²u/∂x_i∂x_j, … at x, in forward mode: one axis for each order.

    `u` maps a point of shape `(d,)` to a scalar or an array.

    ```python
    u_t, u_xx = ng.derivative(u, x, 0), ng.derivative(u, x, 1, 1)
    ```

    Cost: 2 evaluations of u for each order, multiplied; equal parts of several are shared.

    Args:
        u: The function, of one point.
        x: The point, of shape `(d,)`.
        *axes: The axis of each derivative in turn.
    """
    check_point(x)
    if not axes:
        return u(x)
    *rest, last = axes
    if not isinstance(last, (int, np.integer)) or not -x.size <= last < x.size:
        what = f"{last!r} is no axis of a point of shape {x.shape}"
        wanted = "axis 0" if x.size == 1 else f"integers from 0 to {x.size - 1}"
        raise InputError("axes", what, wanted)
    inner = lambda y: derivative(u, y, *rest)
    return jax.jvp(inner, (x,), (jnp.zeros_like(x).at[last].set(1.0),))[1]


def laplacian(u: Field, x: Array) -> Array:
    """Δu = Σᵢ ∂²u/∂xᵢ² at x, the directions batched over one evaluation of u.

    ```python
    residual = lambda net, x: ng.laplacian(lambda y: net(y)[0], x) + source(x)
    ```

    Cost: about 2d + 1 evaluations of u.

    Args:
        u: The function, of one point.
        x: The point, of shape `(d,)`.
    """
    check_point(x)

    def second(direction: Array) -> Array:
        slope = lambda y: jax.jvp(u, (y,), (direction,))[1]
        return jax.jvp(slope, (x,), (direction,))[1]

    return jnp.sum(jax.vmap(second)(jnp.eye(x.size, dtype=x.dtype)), axis=0)


def check_point(x: Array) -> None:
    """Raise `InputError` unless this is one real point."""
    if jnp.ndim(x) != 1 or not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        what = f"has shape {jnp.shape(x)} and dtype {jnp.result_type(x)}"
        raise InputError("x", what, "one real point of shape (d,), and jax.vmap for several")
