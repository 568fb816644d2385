"""Y = A^½ Z of a pointwise model in a diagonal metric, row by row.

What does not fit into the model's memory is never whole: G = Σ YᵢᵀYᵢ is summed up and K = (YᵢYⱼᵀ)
put together from blocks of rows, and products with Y are those of the linearised model.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.dense import gram, gram_outer
from ..core.outcomes import Counts
from ..core.sharding import on_each_device
from ..errors import InputError
from ..models.base import Products
from ..models.pointwise import Part, RowModel, is_part
from ..parameters import ParameterOperator, find_free, flatten
from ..problem import differentiate_loss
from ..solvers.base import LOST_IN_G, LOST_IN_Y, DenseSolver, InformationSolver, Solver
from ..solvers.kernel import Kernel, transposed_product
from .dense import Factorised, restrict_triangle, to_coordinates
from .local import Responder, Setup, measure_energy


class Rows:
    """The rows of Y, for the root of A in the structure of the state.

    Columns of parameters that are held (`free` = 0) are zero.
    """

    def __init__(
        self,
        model: RowModel,
        unravel: Callable[[Array], PyTree],
        flat: Array,
        root: PyTree,
        free: Array | None = None,
    ):
        self._unravel, self._flat, self._free, self.memory = unravel, flat, free, model.memory
        self.mesh = model.mesh
        parts = jax.tree.leaves(model.parts(), is_leaf=is_part)
        roots = [
            jnp.asarray(leaf).reshape(len(p.points), -1)
            for p, leaf in zip(parts, jax.tree.leaves(root), strict=True)
        ]
        self._parts = list(zip(parts, roots, strict=True))
        self._dtype = jnp.result_type(flat, *roots)

    def gram(self) -> Array:
        """YᵀY, the sum over blocks of rows. Cost: that of the rows, and kp².

        Over several devices each sums up its own rows, and p² numbers are added up at the end.
        """

        def local(arrays: list[tuple[Array, Array]]) -> Array:
            total = jnp.zeros((self._flat.size, self._flat.size), self._dtype)
            for (part, _), (points, root) in zip(self._parts, arrays, strict=True):
                add = lambda G, block, part=part: (G + gram(self._rows(part, *block)), None)
                total = jax.lax.scan(add, total, self._blocks(points, root))[0]
            return total

        arrays = [(part.points, root) for part, root in self._parts]
        return on_each_device(local, self.mesh, summed=True)(arrays)

    def outer(self) -> Array:
        """YYᵀ, from pairs of blocks.

        Cost: k²p, and with m blocks m/2 times that of the rows, which are made for each pair. Over
        several devices each has the strip of its own rows, and makes all the others for it: no row
        is sent, but the symmetry saves nothing.
        """
        below = [
            [self._strips(a, b, same=i == j) for j, b in enumerate(self._parts[: i + 1])]
            for i, a in enumerate(self._parts)
        ]
        indices = range(len(below))
        entry = lambda i, j: below[i][j] if j <= i else below[j][i].T
        return jnp.block([[entry(i, j) for j in indices] for i in indices])

    def _rows(self, part: Part, points: Array, root: Array) -> Array:
        _, rows = part.rows(self._unravel, self._flat, points, self.memory)
        scaled = rows.reshape(root.size, -1) * root.reshape(-1, 1)
        return scaled if self._free is None else scaled * self._free

    def _blocks(self, points: Array, root: Array) -> tuple[Array, Array]:
        """The points and roots in blocks of one size, four of which fit; padded by zero roots."""
        width = root.shape[1] * self._flat.size * self._dtype.itemsize
        count = -(-len(root) * width // max(width, self.memory // 4))
        size = -(-len(root) // count)
        missing = count * size - len(root)
        points = jnp.concatenate([points, jnp.repeat(points[-1:], missing, 0)])
        root = jnp.pad(root, ((0, missing), (0, 0)))
        return points.reshape(count, size, -1), root.reshape(count, size, -1)

    def _strips(self, a: tuple[Part, Array], b: tuple[Part, Array], same: bool) -> Array:
        """Y_a Y_bᵀ, each device the rows of a that it has."""
        arrays = lambda entry: (entry[0].points, entry[1])
        if self.mesh is None:
            return self._pairs(a[0], b[0], arrays(a), arrays(b), same)
        local = lambda theirs, mine: self._pairs(a[0], b[0], mine, theirs, same=False)
        return on_each_device(local, self.mesh, whole=1)(arrays(b), arrays(a))

    def _pairs(
        self,
        first: Part,
        second: Part,
        a: tuple[Array, Array],
        b: tuple[Array, Array],
        same: bool,
    ) -> Array:
        """Y_a Y_bᵀ; where a and b are the same, from the pairs on and below the diagonal."""
        blocks, others = self._blocks(*a), self._blocks(*b)

        def strip(entry: tuple[Array, tuple[Array, Array]]) -> Array:
            i, block = entry
            rows = self._rows(first, *block)

            def product(other: tuple[Array, tuple[Array, Array]]) -> Array:
                j, block = other
                make = lambda block: rows @ self._rows(second, *block).T
                nothing = lambda block: jnp.zeros((len(rows), block[1].size), rows.dtype)
                return jax.lax.cond(j <= i, make, nothing, block) if same else make(block)

            return jax.lax.map(product, (jnp.arange(len(others[0])), others))

        products = jax.lax.map(strip, (jnp.arange(len(blocks[0])), blocks))
        m, n, rows, columns = products.shape
        joined = products.transpose(0, 2, 1, 3).reshape(m * rows, n * columns)
        joined = joined[: a[1].size, : b[1].size]
        return jnp.tril(joined) + jnp.tril(joined, -1).T if same else joined


class ProductMatrix(eqx.Module):
    """Y as a matrix that is never formed: `Y @ v` and `Y.T @ u` by the linearised model."""

    products: Products
    root: Array
    free: Array | None
    shape: tuple[int, int] = eqx.field(static=True)
    transposed: bool = eqx.field(static=True, default=False)

    @property
    def dtype(self) -> Any:
        return self.root.dtype

    @property
    def T(self) -> "ProductMatrix":
        rows, columns = self.shape
        flipped = not self.transposed
        return ProductMatrix(self.products, self.root, self.free, (columns, rows), flipped)

    def __matmul__(self, v: Array) -> Array:
        if not self.transposed:
            return self.root * ravel_pytree(self.products.push(self._mask(v)))[0]
        unravel = ravel_pytree(self.products.rho)[1]
        return self._mask(self.products.pull(unravel(self.root * v)))

    def _mask(self, v: Array) -> Array:
        return v if self.free is None else v * self.free


class ByRows(Factorised):
    """The system of a pointwise model in a diagonal metric, from Y = A^½ Z or from blocks of it.

    `Y` are the rows, or what multiplies by them; `scale` is the diagonal of A^½.
    """

    system: ClassVar[tuple[str, ...]] = (*Factorised.system, "Y", "scale")

    Y: Any = None
    scale: Array | None = None

    def responder(self, damping: Array) -> Responder:
        """By L = A^½, which is square also where the metric's own factor is not."""
        Y, scale, spent = self.Y, self.scale, 0 if isinstance(self.Y, Array) else 1
        assert scale is not None

        def answer(image: Array) -> tuple[Array, Counts]:
            return self.answer(image, transposed_product(Y, image), damping, adjoint=spent)

        def carry(v: Array) -> tuple[Array, Counts]:
            eta, counts = answer(Y @ v.astype(Y.dtype))
            return eta, counts.plus(linearised=spent)

        return Responder(lambda zeta: answer(scale * ravel_pytree(zeta)[0]), carry)

    @classmethod
    def prepare(cls, setup: Setup) -> "ByRows":
        """From all rows of Y at once or from blocks of them."""
        flat, unravel = flatten(setup.theta)
        model = cast(RowModel, setup.problem.model)
        assert setup.metric is not None
        assert setup.solver is not None
        state = jax.tree.leaves(jax.eval_shape(lambda v: model(unravel(v)), flat))
        shape = k, p = sum(math.prod(leaf.shape) for leaf in state), flat.size
        solver = cast(DenseSolver, setup.solver.choose(k, p, setup.damping.damps))
        D = setup.damping.operator
        summed = isinstance(solver, InformationSolver) or (isinstance(solver, Kernel) and D is None)
        # G or K is then enough, and over several devices rows would have to be sent around
        size = k * p * jnp.result_type(flat, *state).itemsize
        whole = size <= model.memory and not (summed and model.mesh is not None)
        if not whole and not summed:
            raise _does_not_fit(solver, D, shape, size, model.memory)

        rho, Z = model.rows(unravel, flat) if whole else (model(setup.theta), None)
        geometry = setup.metric.at(rho)
        root = jax.tree.map(jnp.sqrt, geometry.diagonal)
        scale = ravel_pytree(root)[0]
        derivatives = differentiate_loss(setup.problem, setup.theta, rho)
        loss, c, direct = derivatives
        dtype = jnp.result_type(flat, scale)  # θ and the state may differ in precision
        b = jnp.zeros_like(scale) if c is None else ravel_pytree(c)[0] / scale
        b = b.astype(dtype)
        if Z is not None:
            Y: Any = jnp.concatenate([rows.reshape(-1, p) for rows in Z]) * scale[:, None]
        else:
            Y = ProductMatrix(model.products(unravel, flat), scale, None, shape)
        gradient = jnp.zeros(p, dtype) if c is None else transposed_product(Y, b)
        r = jnp.zeros_like(gradient)
        if direct is not None:
            gradient, r = gradient + direct, r + direct
        triangle, free = None if D is None else D.triangle(), None
        if setup.bounds is not None:
            free = find_free(flat, gradient, setup.bounds, loss)
            gradient, r = gradient * free, r * free
            triangle = None if triangle is None else restrict_triangle(triangle, free)
            Y = Y * free if whole else ProductMatrix(Y.products, scale, free, shape)

        given, rows, blocks = Y, None, lambda: Rows(model, unravel, flat, root, free)
        if isinstance(solver, InformationSolver):
            G = gram(Y) if whole else blocks().gram()
            # a small λ that was asked for, and does not adapt, is none where G is singular
            slope, rows = gradient, Y if whole and setup.damping.adapts else None
            if triangle is not None:
                G = to_coordinates(to_coordinates(G, triangle).T, triangle)
                slope, rows = to_coordinates(gradient, triangle), None
            prepared = solver.prepare_information(G, slope, k, rows)
            trace = jnp.sum(jnp.diag(G))
        elif isinstance(solver, Kernel) and triangle is None:
            K, rest = gram_outer(Y) if whole else blocks().outer(), None if direct is None else r
            prepared, trace = solver.prepare_kernel(Y, K, b, rest), jnp.sum(jnp.diag(K))
        else:
            if triangle is not None:
                Y, r = to_coordinates(Y.T, triangle).T, to_coordinates(r, triangle)
            prepared, trace = solver.prepare(Y, b, r), jnp.sum(Y**2)
        gradient = gradient.astype(flat.dtype)
        return cls(
            setup=setup,
            loss=loss,
            gradient=gradient,
            gradient_norm=jnp.linalg.norm(gradient),
            energy=measure_energy(geometry, derivatives),
            free=free,
            trace=trace,
            counts=Counts(1 + (c is None), 0, 1 + (c is None)).plus(),
            report=geometry.report(),
            solver=solver,
            prepared=prepared,
            triangle=triangle,
            resolution=LOST_IN_G if rows is None else LOST_IN_Y,
            Y=given,
            scale=scale,
        )


def _does_not_fit(
    solver: Solver, D: ParameterOperator | None, shape: tuple[int, int], size: int, memory: int
) -> InputError:
    k, p = shape
    name = type(solver).__name__
    what = name if D is None else f"{name} with an operator D"
    return InputError(
        "solver",
        f"{what} needs all {k} × {p} entries of Y, {size} bytes, and the model has memory={memory}",
        "damping with Cholesky or Kernel, which take blocks of rows; CG; or more memory",
    )
