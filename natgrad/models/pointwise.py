"""Models whose every value depends on θ and on one point: networks, and residuals built of them."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.selection import Selection
from ..core.settings import Public
from ..core.sharding import check_divides, in_parts, on_each_device, put_on_mesh, replace_mesh
from ..errors import InputError
from .base import Evaluation, Model, Products, Unravel, differentiate

DEFAULT_MEMORY = 2 * 2**30
# Rows of Z made at once on a CPU: as many as stay in its cache, a power of two, because 30 at once
# take twice as long as 32 (benchmarks/bench_rows.py).
CACHE = 320 * 2**10
SMALLEST_CHUNK = 4


class Part(Public, eqx.Module):
    """One array of a state: u(θ, xᵢ) at the n points `points`, each a scalar or a small array."""

    function: Callable[[PyTree, Array], Array]
    points: Array
    mesh: Mesh | None = eqx.field(static=True, default=None)

    @eqx.filter_jit
    def values(self, theta: PyTree) -> Array:
        """u(θ, xᵢ) for all i, of shape (n, …)."""
        return jax.vmap(lambda x: self.function(theta, x))(self.points)

    def rows(
        self, unravel: Unravel, flat: Array, points: Array, memory: int
    ) -> tuple[Array, Array]:
        """The values at some of the points, and their gradients along a new last axis.

        By reverse mode at each point: a few evaluations' worth of flops, and the writing of a row
        of p numbers; at most `memory` bytes of gradients at once.
        """

        @jax.jit  # the user's function is traced once for all chunks and platforms
        def one(x: Array) -> tuple[Array, Array]:
            value, pull = jax.vjp(lambda v: self.function(unravel(v), x), flat)
            if value.ndim == 0:
                return value, pull(jnp.ones_like(value))[0]
            units = jnp.eye(value.size, dtype=value.dtype).reshape(-1, *value.shape)
            return value, jax.vmap(lambda e: pull(e)[0])(units).reshape(*value.shape, -1)

        def in_chunks(points: Array, chunk: int) -> tuple[Array, Array]:
            n = len(points)
            if n <= chunk:
                return jax.vmap(one)(points)

            def fill(i: Array, filled: tuple[Array, Array]) -> tuple[Array, Array]:
                start = jnp.minimum(i * chunk, n - chunk)  # the last overlaps the one before it
                found = jax.vmap(one)(jax.lax.dynamic_slice_in_dim(points, start, chunk))
                put = lambda x, part: jax.lax.dynamic_update_slice_in_dim(x, part, start, 0)
                return jax.tree.map(put, filled, found)

            empty = jax.tree.map(lambda x: jnp.zeros((n, *x.shape), x.dtype), shapes)
            return jax.lax.fori_loop(0, -(-n // chunk), fill, empty)

        shapes = jax.eval_shape(one, points[0])
        size = math.prod(shapes[1].shape) * flat.dtype.itemsize
        chunk = max(1, memory // size)
        fitting = max(SMALLEST_CHUNK, CACHE // size)
        cached = min(chunk, 2 ** (fitting.bit_length() - 1))
        if jax.default_backend() == "cpu":  # the other program would be traced for nothing
            return in_chunks(points, cached)
        return jax.lax.platform_dependent(
            points,
            cpu=lambda points: in_chunks(points, cached),
            default=lambda points: in_chunks(points, chunk),
        )

    def all_rows(self, unravel: Unravel, flat: Array, memory: int) -> tuple[Array, Array]:
        """The values at all points and their gradients, each device those of its own points."""
        local = lambda flat, points: self.rows(unravel, flat, points, memory)
        return on_each_device(local, self.mesh, whole=1)(flat, self.points)


class RowModel(Model):
    """A model that is made of parts, so that any rows of Z can be had by themselves."""

    memory: eqx.AbstractVar[int]
    mesh: Mesh | None = eqx.field(static=True, default=None, kw_only=True)  # of the points

    @abc.abstractmethod
    def parts(self) -> PyTree:
        """A `Part` for every array of the state, in the structure of the state."""

    @abc.abstractmethod
    def as_state(self, arrays: PyTree) -> PyTree:
        """The state, from the arrays of values with one leading axis for the points."""

    def __call__(self, theta: PyTree) -> PyTree:
        return self.as_state(jax.tree.map(lambda p: p.values(theta), self.parts(), is_leaf=is_part))

    def rows(self, unravel: Unravel, flat: Array) -> tuple[PyTree, list[Array]]:
        """The state, and the rows of Z for each of its arrays, parameters along the last axis."""
        parts, treedef = jax.tree.flatten(self.parts(), is_leaf=is_part)
        both = [part.all_rows(unravel, flat, self.memory) for part in parts]
        values = jax.tree.unflatten(treedef, [values for values, _ in both])
        return self.as_state(values), [rows for _, rows in both]

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        rho, rows = self.rows(unravel, flat)
        treedef = jax.tree.structure(self.parts(), is_leaf=is_part)
        collect = lambda arrays: self.as_state(jax.tree.unflatten(treedef, arrays))
        columns = jax.vmap(collect)([jnp.moveaxis(array, -1, 0) for array in rows])
        return rho, columns, Counts(forward=1, adjoint=1)

    def products(self, unravel: Unravel, flat: Array, known: Evaluation | None = None) -> Products:
        return differentiate(lambda v: self(unravel(v)), flat)


def is_part(x: Any) -> bool:
    """Whether this is a leaf in the structure of parts."""
    return isinstance(x, Part)


class Pointwise(RowModel):
    """A state whose every value is one call of the same function: ρᵢ = u(θ, xᵢ).

    This is how networks are used. Row i of Z is the gradient of one value, by vmapped reverse
    mode at each point: all of Z costs the flops of a few evaluations of ρ and the writing of its
    entries, where reverse mode on the whole state costs k passes.

    `points` has shape `(*state, d)`; `function(theta, x)` takes one x of shape `(d,)` and returns
    a scalar. At most `memory` bytes of Z are held at once: where Z is larger and the metric is
    diagonal, G or the kernel matrix is summed up from blocks of rows.

    ```python
    ng.Pointwise(lambda net, x: net(x)[0], grid.points)
    ```

    A mini-batch evaluates only the chosen points.

    Args:
        function: u(θ, x) at one point.
        points: The points, of shape `(*state, d)`.
        memory: Bytes of Z that are held at once.
        mesh: Devices that share the points; `minimize(mesh=)` sets it.
    """

    function: Callable[[PyTree, Array], Array]
    points: Array
    memory: int = eqx.field(static=True, default=DEFAULT_MEMORY)

    def __check_init__(self):
        if self.points.ndim < 2 or self.points.size == 0:
            advice = "(*state, d) with at least one point; x[:, None] in one dimension"
            raise InputError("points", f"have shape {self.points.shape}", advice)

    def parts(self) -> Part:
        return Part(self.function, self._flat_points(), self.mesh)

    def distributed(self, mesh: Mesh) -> "Pointwise":
        """Each device has some of the points."""
        check_divides(mesh, self.points.shape, "the points")
        points = put_on_mesh(self.points, lambda _: in_parts(mesh))
        return replace_mesh(eqx.tree_at(lambda model: model.points, self, points), mesh)

    def as_state(self, arrays: Array) -> Array:
        if arrays.ndim != 1:
            what = f"returns shape {arrays.shape[1:]} at one point"
            raise InputError("function", what, "a scalar, such as net(x)[0]")
        return arrays.reshape(self.points.shape[:-1])

    def restricted(self, selection: Selection) -> "Pointwise":
        points = self.points if selection.of == "functions" else self._flat_points()
        return self.at(points[selection.rows])

    def at(self, points: Array) -> "Pointwise":
        """The same function at other points."""
        return Pointwise(function=self.function, points=points, memory=self.memory)

    def _flat_points(self) -> Array:
        return self.points.reshape(-1, self.points.shape[-1])
