"""What a metric is: the operator L with ⟨ζ, ζ̂⟩ = (Lζ)ᵀ(Lζ̂), and a way to whiten a covector.

A `Metric` holds its settings; the `Geometry` that `metric.at(rho)` returns holds what follows from
them at one ρ.
"""

import functools
import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.compiled import is_traced
from ..core.dense import gram
from ..core.operators import AdjointOperator
from ..core.selection import Selection
from ..core.settings import Public
from ..core.sharding import to_host
from ..errors import InputError, name_kind
from ..grids import Domain

# Numbers and words for `info.metric`; "converged" = 0 marks a solve that a metric gave up.
Report = dict[str, Array | str]
GRIDS = "ng.Grid(0.0, 1.0, 64); on an ng.fem.Space a metric of ng.fem"  # what metrics take


class Geometry:
    """The metric at one ρ: L, A = LᵀL and what follows from them, each made once, on demand.

    ```python
    geometry = ng.Wasserstein(grid).at(rho)
    geometry.gram.mv(zeta), geometry.whiten(c)
    ```

    A plain object that lives inside one trace: make it where it is used, and take its parts outside
    of the loops that apply them. A metric says more than its factor by a subclass, which its `at`
    returns.

    `annihilates` says that some tangent has length zero (the constant, in a homogeneous metric).
    `whitens_shortest` says that `whiten` is known to give the b of minimum norm, so that
    ‖b‖² = ⟨c, A⁻¹c⟩ on tangents; `info.reachable` needs that b, and is NaN without. Neither
    depends on the values of ρ.
    """

    annihilates: bool = False
    whitens_shortest: bool = False

    def __init__(self, metric: "Metric", rho: PyTree):
        self.metric, self.rho = metric, rho

    @functools.cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        """L."""
        if type(self.metric).factor is Metric.factor:
            raise _incomplete(self.metric, "factor")
        return self.metric.factor(self.rho)

    @functools.cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        """A = LᵀL as one operator, which may be cheaper than L followed by Lᵀ."""
        L = self.factor
        return positive_operator(lambda x: L.T.mv(L.mv(x)), L.in_structure())

    def whiten(self, c: PyTree) -> PyTree:
        """Any b with Lᵀb = c on the tangent space; (Lᵀ)†c is the one of minimum norm."""
        if type(self.metric).whiten is Metric.whiten:
            raise _incomplete(self.metric, "whiten")
        return self.metric.whiten(self.rho, c)

    def remainder(self, c: PyTree) -> PyTree:
        """c − Lᵀb for the whitened b: what the least-squares problem does not see of c.

        Asked for only where the metric annihilates something; it acts on tangents outside the
        tangent space (those that change the mass, say) and vanishes on the others.
        """
        return jax.tree.map(jnp.subtract, c, self.factor.T.mv(self.whiten(c)))

    def image(self, columns: PyTree) -> tuple[Array, Report]:
        """Yᵀ, L applied to each of the stacked columns of Z, and what there is to tell of it."""
        L = self.factor
        return jax.vmap(lambda column: ravel_pytree(L.mv(column))[0])(columns), {}

    def information(self, columns: PyTree) -> tuple[Array, Report]:
        """G = YᵀY, which may be cheaper than by way of Y."""
        rows, report = self.image(columns)
        return gram(rows.T), report

    @functools.cached_property
    def diagonal(self) -> PyTree | None:
        """The entries of A where it is a diagonal matrix, in the structure of ρ; else None.

        Then G is a sum over the rows of Z, which need not all be held at once.
        """
        return None

    def report(self) -> Report:
        """Numbers a user should see in `info.metric`, such as how much a floor touched."""
        return {}


class Metric(Public, eqx.Module):
    """A metric on states ρ, given by its factor: A(ρ) = LᵀL.

    A new metric is one class with two methods; the rest has defaults.

    ```python
    class Weighted(ng.metrics.Metric):
        weight: jax.Array

        def factor(self, rho):
            root = jnp.sqrt(self.weight)
            return ng.metrics.AdjointOperator(lambda x: root * x, lambda y: root * y, rho, rho)

        def whiten(self, rho, c):
            return c / jnp.sqrt(self.weight)
    ```

    A metric that can do better, or has more to say, overrides `at` instead.
    """

    EXAMPLE: ClassVar[str] = "ng.L2(grid)"

    def at(self, rho: PyTree) -> Geometry:
        """L, A and what else there is of the metric at this ρ, each made once, on demand."""
        return Geometry(self, rho)

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        """L at this ρ. Set-up that depends on ρ happens here, once for every product."""
        return self.at(rho).factor

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        """Any b with Lᵀb = c on the tangent space; (Lᵀ)†c is the one of minimum norm."""
        return self.at(rho).whiten(c)

    def squared_distance(self, a: PyTree, b: PyTree) -> Array:
        """d(a, b)², with d(ρ, ρ + hζ)² = h²⟨ζ, A(ρ)ζ⟩ + o(h²); smooth where a = b.

        ```python
        ng.L2(grid).squared_distance(a, b)     # ∫ (a − b)² dx
        ```

        Leading axes are independent functions, whose squared distances are added up. First
        derivatives with respect to both states are exact; some metrics have no second ones.
        Reference: equation (5) of the paper.
        """
        raise InputError(
            "metric",
            f"{type(self).__name__} has no distance of its own",
            "ProximalStep with the quadratic form, or override squared_distance",
        )

    def distance(self, a: PyTree, b: PyTree) -> Array:
        """d(a, b), the root of `squared_distance`: not differentiable where a = b."""
        return jnp.sqrt(self.squared_distance(a, b))

    def restricted(self, selection: Selection) -> "Metric":
        """A_S, the metric on a mini-batch Sρ; the factor k/k′ makes G unbiased where it can.

        Of functions it is (k/k′) A, because leading axes are independent functions; a metric that
        couples them overrides this. Of points there is no default.
        """
        if selection.of == "functions":
            return selection.scale * self
        raise InputError(
            "batch",
            f"{type(self).__name__} needs the state everywhere, not at a sample of its points",
            "of='functions' if the state has several; else of='sublattice' on a grid, or L2",
        )

    def distributed(self, mesh: Mesh) -> "Metric":
        """This metric for states in parts over the devices of a mesh; so are those it is made of.

        XLA spreads what is written in JAX. A metric that calls the host overrides this.
        """
        inner = lambda x: isinstance(x, Metric) and x is not self
        spread = lambda x: x.distributed(mesh) if isinstance(x, Metric) else x
        return jax.tree.map(spread, self, is_leaf=inner)

    def check_structure(self, state: PyTree) -> None:
        """Raise `InputError` if this metric cannot measure states of these shapes."""

    def check_values(self, state: PyTree) -> None:
        """Raise `InputError` if this metric is not defined at this state."""

    def admissible(self, rho: PyTree) -> Array:
        """Whether the metric is defined at ρ: the compiled counterpart of `check_values`."""
        leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(rho)]
        return jnp.all(jnp.stack(leaves))

    def __add__(self, other: "Metric") -> "Metric":
        from .combine import Sum

        return Sum((self, other))

    def __mul__(self, weight: float | Array) -> "Metric":
        from .combine import Scaled

        return Scaled(self, weight)

    def __rmul__(self, weight: float | Array) -> "Metric":
        return self * weight


class FlatMetric(Metric):
    """A metric that does not depend on ρ, so that d(a, b)² = ‖L(a − b)‖²."""

    def squared_distance(self, a: PyTree, b: PyTree) -> Array:
        return squared_length(self, a, b)

    def restricted(self, selection: Selection) -> Metric:
        """At points, or on a sublattice, the principal submatrix of A."""
        from .combine import Embedded

        if selection.of == "functions":
            return super().restricted(selection)
        return Embedded(self, selection)


def one_host_only(metric: Metric) -> InputError:
    """What a metric that calls the host says to a mesh."""
    what = f"{type(metric).__name__} computes on one host and cannot be spread over devices"
    return InputError("mesh", what, "a metric on a grid, or no mesh")


def _incomplete(metric: Metric, method: str) -> InputError:
    what = f"{type(metric).__name__} does not define `{method}`"
    return InputError("metric", what, "a class with `factor` and `whiten`, or with `at`")


def squared_length(metric: Metric, a: PyTree, b: PyTree) -> Array:
    """‖L(a − b)‖² with L at a."""
    check_pair(metric, a, b)
    image = metric.factor(a).mv(jax.tree.map(jnp.subtract, a, b))
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(image)), start=jnp.zeros(()))


POSITIVE = frozenset({lx.symmetric_tag, lx.positive_semidefinite_tag})


def positive_operator(product: Callable[[PyTree], PyTree], like: PyTree) -> AdjointOperator:
    """x ↦ Ax for a symmetric positive (semi)definite A on vectors like `like`."""
    return AdjointOperator(product, product, like, like, POSITIVE)


def check_on_grid(grid: Domain, state: PyTree) -> None:
    """The state must be one real array whose trailing axes are the grid's."""
    if not hasattr(state, "shape"):
        raise InputError(
            "metric",
            f"a metric on a grid got a state that is {name_kind(state)}",
            "Blocks(...) with one metric per entry of the state",
        )
    if tuple(state.shape[-len(grid.shape) :]) != grid.shape:
        hint = f"a model that returns (..., {', '.join(map(str, grid.shape))})"
        if state.shape and math.prod(state.shape) % grid.size == 0:
            hint += ", for example by a reshape"
        hint += "; or a metric on the grid that the state lives on"
        raise InputError(
            "model",
            f"the state has shape {tuple(state.shape)} but the metric's grid has {grid.shape}",
            hint,
        )


def check_pair(metric: Metric, a: PyTree, b: PyTree) -> None:
    """Both states must be of one shape that the metric can measure."""
    metric.check_structure(a)
    shapes = [jax.tree.map(jnp.shape, state) for state in (a, b)]
    if shapes[0] != shapes[1]:
        raise InputError("b", f"has shape {shapes[1]} and a has {shapes[0]}", "states of one shape")


def check_densities(a: Array, b: Array, axes: tuple[int, ...] | None) -> Array:
    """Refuse what is no density; whether both are, where their values are not there yet."""
    for name, density in (("a", a), ("b", b)):
        if not is_traced(density):
            check_density(name, density, axes)
    return admissible_density(jnp.asarray(a), axes) & admissible_density(jnp.asarray(b), axes)


def check_density(argument: str, density: Array, axes: tuple[int, ...] | None) -> None:
    """A density must be finite and nonnegative, with positive mass in every function."""
    values = to_host(density)
    xp = values.__array_namespace__()
    infinite, negative = int(xp.sum(~xp.isfinite(values))), int(xp.sum(values < 0))
    entries = lambda n: "entry" if n == 1 else "entries"
    if infinite:
        raise InputError(
            argument,
            f"the density has {infinite} {entries(infinite)} not finite",
            "a starting point where the model is finite"
            if argument == "model"
            else "data that are finite everywhere",
        )
    if negative:
        raise InputError(
            argument,
            f"the density has {negative} negative {entries(negative)}, "
            f"the lowest {float(values.min()):.3g}",
            "a positive parameterisation, a shift, or a metric for signed states (L2, Sobolev)"
            if argument == "model"
            else "values that are nowhere negative",
        )
    if bool(xp.any(values.sum(axis=axes) == 0)):
        advice = "a starting point with ρ > 0" if argument == "model" else "a density with mass"
        raise InputError(argument, "a density has zero mass", advice)


def admissible_density(density: Array, axes: tuple[int, ...] | None) -> Array:
    """Finite and nonnegative everywhere, with positive mass in every function."""
    massive = jnp.all(jnp.any(density > 0, axis=axes))
    return jnp.all(jnp.isfinite(density)) & jnp.all(density >= 0) & massive


def grid_axes(grid: Domain) -> tuple[int, ...]:
    """The trailing axes that a metric on `grid` acts on."""
    return tuple(range(-len(grid.shape), 0))


def find_floor(density: Array, floor: float | None, axes: tuple[int, ...] | None) -> Array:
    """floor · max ρ, the maximum taken over each function of a batch.

    By default the floor is 1e-14 in double precision and 1e-8 in single.
    """
    if floor is None:
        floor = 1e-14 if jnp.finfo(density.dtype).bits == 64 else 1e-8
    largest = jnp.max(density, axis=axes, keepdims=True)
    if (
        floor <= 1e-6
    ):  # a derivative out of sight, and 0/0 where XLA computes ρ twice, rounded twice
        largest = jax.lax.stop_gradient(largest)
    return floor * largest
