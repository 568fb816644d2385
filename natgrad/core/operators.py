"""Linear operators between pytrees that carry their own transpose, and arithmetic on pytrees."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree


def dot(x: PyTree, y: PyTree) -> Array:
    """⟨x, y⟩ over all leaves.

    >>> float(dot((jnp.ones(2), jnp.ones(3)), (jnp.ones(2), 2 * jnp.ones(3))))
    8.0
    """
    terms = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), x, y))
    return functools.reduce(jnp.add, terms)


def norm(x: PyTree) -> Array:
    """‖x‖ over all leaves."""
    return jnp.sqrt(dot(x, x))


def scale(a: Array, x: PyTree) -> PyTree:
    """a x, each leaf in its own precision."""
    return jax.tree.map(lambda leaf: a.astype(leaf.dtype) * leaf, x)


def negate(x: PyTree) -> PyTree:
    """−x."""
    return jax.tree.map(jnp.negative, x)


def axpy(a: Array, x: PyTree, y: PyTree) -> PyTree:
    """a x + y, in the precision of y."""
    return jax.tree.map(lambda u, v: a.astype(v.dtype) * u.astype(v.dtype) + v, x, y)


def pick(condition: Array, x: PyTree, y: PyTree) -> PyTree:
    """x where the condition holds, else y: an iteration that may keep its last state."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def probe(like: PyTree, seed: int = 0) -> PyTree:
    """A vector for tests of an operator: numbers that look random, of mean 0 and variance 1.

    They are a hash of their places: a few operations on integers, where a generator of random
    numbers is a long program to compile.

    >>> x = probe(jnp.zeros((100, 100)))
    >>> bool(abs(x.mean()) < 0.05), bool(abs(x.std() - 1) < 0.05)
    (True, True)
    """
    odd, width = jnp.uint32(0x9E3779B1), 3**0.5

    def fill(number: int, x: Array) -> Array:
        h = jax.lax.iota(jnp.uint32, x.size) * odd + jnp.uint32(7919 * (number + 1) + seed)
        for _ in range(3):
            h = (h ^ (h >> 15)) * odd
        return ((h >> 8).astype(x.dtype) * (width / 2**23) - width).reshape(x.shape)

    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, [fill(i, x) for i, x in enumerate(leaves)])


def structure_of(tree: PyTree) -> PyTree:
    """The shapes and dtypes of `tree`, without its values."""
    return jax.eval_shape(lambda x: x, tree)


class Structure:
    """A pytree of `ShapeDtypeStruct`s that compares by value and hashes: a static field."""

    def __init__(self, value: PyTree):
        self.value = value
        leaves, treedef = jax.tree.flatten(value)
        self._key = (tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), treedef)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def zeros(self) -> PyTree:
        """Zeros of this structure."""
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.value)


class AdjointOperator(lx.AbstractLinearOperator):
    """x ↦ L x with the adjoint y ↦ Lᵀ y written by hand.

    `mv` and `rmv` take and return pytrees of arrays with the given structures. Arrays that they
    need should be leaves (an `equinox.Module` method or `jax.tree_util.Partial`), so that the
    operator can cross a compiled boundary. `on_host` says that they are code outside JAX.

    ```python
    op = ng.metrics.AdjointOperator(lambda x: 2 * x, lambda y: 2 * y, jnp.zeros(3), jnp.zeros(3))
    op.mv(jnp.ones(3)), op.T.mv(jnp.ones(3))
    ```

    Cost: that of the functions. `as_matrix` applies `mv` to every basis vector.

    Args:
        mv: x ↦ L x.
        rmv: y ↦ Lᵀ y.
        in_structure: An x, or its shapes and dtypes.
        out_structure: A y, or its shapes and dtypes.
        tags: What lineax should know of the operator.
        on_host: Whether the functions are outside JAX.
    """

    _mv: Callable[[PyTree], PyTree]
    _rmv: Callable[[PyTree], PyTree]
    _in: PyTree = eqx.field(static=True)
    _out: PyTree = eqx.field(static=True)
    tags: frozenset[object] = eqx.field(static=True)
    on_host: bool = eqx.field(static=True)

    def __init__(
        self,
        mv: Callable[[PyTree], PyTree],
        rmv: Callable[[PyTree], PyTree],
        in_structure: PyTree,
        out_structure: PyTree,
        tags: frozenset[object] = frozenset(),
        on_host: bool = False,
    ):
        self._mv, self._rmv = mv, rmv
        self._in = Structure(structure_of(in_structure))
        self._out = Structure(structure_of(out_structure))
        self.tags, self.on_host = tags, on_host

    def mv(self, vector: PyTree) -> PyTree:
        return self._mv(vector)

    def transpose(self) -> "AdjointOperator":
        tags = self.tags & {lx.symmetric_tag, lx.positive_semidefinite_tag}
        structures = self.out_structure(), self.in_structure()
        return AdjointOperator(self._rmv, self._mv, *structures, frozenset(tags), self.on_host)

    def as_matrix(self) -> Array:
        return as_dense(self)

    def in_structure(self) -> PyTree:
        return self._in.value

    def out_structure(self) -> PyTree:
        return self._out.value


def as_dense(operator: lx.AbstractLinearOperator) -> Array:
    """The matrix of an operator between pytrees, column by column."""
    flat, _ = ravel_pytree(Structure(operator.in_structure()).zeros())
    basis = jnp.eye(flat.size, dtype=flat.dtype)
    return jax.vmap(lambda e: flat_product(operator, e), out_axes=1)(basis)


def flat_product(operator: lx.AbstractLinearOperator, x: Array) -> Array:
    """The product of an operator between pytrees, from flat vector to flat vector."""
    like, unravel = ravel_pytree(Structure(operator.in_structure()).zeros())
    return ravel_pytree(operator.mv(unravel(x.astype(like.dtype))))[0]


@lx.is_symmetric.register(AdjointOperator)
def _(operator: AdjointOperator) -> bool:
    return bool(operator.tags & {lx.symmetric_tag, lx.positive_semidefinite_tag})


@lx.is_positive_semidefinite.register(AdjointOperator)
def _(operator: AdjointOperator) -> bool:
    return lx.positive_semidefinite_tag in operator.tags


for _property in (
    lx.is_diagonal,
    lx.is_tridiagonal,
    lx.has_unit_diagonal,
    lx.is_lower_triangular,
    lx.is_upper_triangular,
    lx.is_negative_semidefinite,
):
    _property.register(AdjointOperator)(lambda operator: False)

for _identity in (lx.linearise, lx.conj):
    _identity.register(AdjointOperator)(lambda operator: operator)


@lx.materialise.register(AdjointOperator)
def _(operator: AdjointOperator) -> lx.AbstractLinearOperator:
    flat_in = structure_of(operator.in_structure())
    matrix = operator.as_matrix()
    if not isinstance(flat_in, jax.ShapeDtypeStruct) or len(flat_in.shape) != 1:
        raise ValueError(
            "operator: only one on flat vectors can be materialised. Try: operator.as_matrix()."
        )
    return lx.MatrixLinearOperator(matrix, operator.tags)


@lx.diagonal.register(AdjointOperator)
def _(operator: AdjointOperator) -> Array:
    return jnp.diag(operator.as_matrix())
