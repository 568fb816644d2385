"""Parameters as one flat vector: flattening, bounds, and operators D on θ-space."""

import abc
import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .core.compiled import is_traced
from .core.dense import in_row_order
from .core.operators import Structure, as_dense
from .core.settings import Public
from .errors import InputError


class Bounds(NamedTuple):
    """Box bounds on the flattened parameters."""

    lower: Array
    upper: Array


NEAR = 2.0**-30  # of the width of a box: as far as a step is ever shortened


def find_free(flat: Array, gradient: Array, bounds: Bounds, loss: Array) -> Array:
    """1 for parameters that may move, 0 for those that a descent would push out of the box.

    Those that are all but on a bound count too, if the way there is worth next to nothing: they
    would shorten the step of all the others to that way.
    """
    lower, upper = bounds
    width = jnp.where(jnp.isfinite(upper - lower), upper - lower, 1.0)
    room = jnp.where(gradient > 0, flat - lower, upper - flat)
    close = (room <= NEAR * width) & (jnp.abs(gradient) * room <= NEAR * jnp.abs(loss))
    held = (gradient != 0) & ((room <= 0) | close)
    return jnp.where(held, 0.0, 1.0).astype(flat.dtype)


def flatten(theta: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """The floating-point arrays of θ as one vector, and the way back; other leaves are kept."""
    parameters, rest = eqx.partition(theta, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    return flat, lambda vector: eqx.combine(unravel(vector.astype(flat.dtype)), rest)


@eqx.filter_jit
def unflatten(theta: PyTree, vector: Array) -> PyTree:
    """The vector in the structure of θ, in one program instead of one for each array."""
    return flatten(theta)[1](vector)


def strengthen(theta: PyTree) -> PyTree:
    """θ with strongly typed parameters: weakly typed ones would compile every program twice."""
    settle = lambda x: jax.lax.convert_element_type(x, x.dtype) if eqx.is_inexact_array(x) else x
    return jax.tree.map(settle, theta)


def as_bounds(bounds: tuple[PyTree, PyTree] | Bounds | None, theta: PyTree) -> Bounds | None:
    """Bounds as a user gives them, checked, on the flattened parameters."""
    if bounds is None or isinstance(bounds, Bounds):
        return bounds
    if not (isinstance(bounds, tuple) and len(bounds) == 2):
        raise InputError("bounds", f"{bounds!r} is not a pair", "(lower, upper)")
    flat, _ = flatten(theta)

    def spread(bound: PyTree, unbounded: float) -> Array:
        """On the flattened parameters: from None, a number, or a pytree like θ."""
        bound = unbounded if bound is None else bound
        if np.ndim(bound) == 0 and isinstance(
            bound, (int, float, np.number, np.ndarray, jax.Array)
        ):
            return jnp.full_like(flat, bound)
        like = lambda t, b: (
            None if t is None else jnp.broadcast_to(jnp.asarray(b, t.dtype), t.shape)
        )
        parameters = eqx.filter(theta, eqx.is_inexact_array)
        try:
            return flatten(jax.tree.map(like, parameters, bound, is_leaf=lambda x: x is None))[0]
        except (ValueError, TypeError) as error:
            shapes = [jax.tree.map(np.shape, tree) for tree in (bound, parameters)]
            what = f"have shape {shapes[0]}, theta has {shapes[1]}"
            raise InputError("bounds", what, "a scalar, or bounds shaped like theta") from error

    lower, upper = spread(bounds[0], -np.inf), spread(bounds[1], np.inf)
    if is_traced((flat, lower, upper)):
        return Bounds(lower, upper)  # nothing can be said of values that are not there yet
    # by NumPy, which compiles nothing
    at, low, high = np.asarray(flat), np.asarray(lower), np.asarray(upper)
    if np.any(np.isnan(low) | np.isnan(high)):
        raise InputError("bounds", "have entries that are not numbers", "None for no bound")
    if np.any(low > high):
        raise InputError("bounds", "a lower bound exceeds its upper bound", "lower ≤ upper")
    if np.any((at < low) | (at > high)):
        spans = f"{at.min():.6g} to {at.max():.6g}, and they {low.min():.6g} to {high.max():.6g}"
        advice = "bounds in the units of theta0, or jnp.clip(theta0, lower, upper)"
        raise InputError("theta0", f"lies outside the bounds: it spans {spans}", advice)
    return Bounds(lower, upper)


def check_parameters(theta: PyTree) -> None:
    """At least one real parameter, finite as far as its value is known, and none left out.

    What is no floating-point array stays as it is. That is right for functions, names, masks, keys,
    unsigned indices and what a module holds; other numbers were hardly meant to stay.
    """
    flat = jax.eval_shape(lambda: flatten(theta)[0])
    if flat.size == 0:
        if any(type(leaf).__module__.startswith("torch") for leaf in jax.tree.leaves(theta)):
            advice = "model.parameters of an ng.TorchModel, or jnp.asarray(tensor.detach().numpy())"
            raise InputError("theta", "holds tensors of PyTorch, not arrays of JAX", advice)
        raise InputError(
            "theta",
            "holds no floating-point array, so there is nothing to optimise (p = 0)",
            "jnp.asarray(theta, dtype=float)",
        )
    if jnp.issubdtype(flat.dtype, jnp.complexfloating):
        raise InputError("theta", "is complex", "real and imaginary parts as two arrays")
    if jnp.finfo(flat.dtype).bits < 32:
        raise InputError("theta", f"is in half precision ({flat.dtype})", "float32 or float64")
    parameters = jax.tree.leaves(eqx.filter(theta, eqx.is_inexact_array))
    finite = lambda x: bool(np.isfinite(np.asarray(x)).all())
    if not is_traced(parameters) and not all(map(finite, parameters)):
        raise InputError("theta", "has entries that are not finite", "a finite starting point")
    is_module = lambda x: isinstance(x, eqx.Module)
    for path, leaf in jax.tree_util.tree_leaves_with_path(theta, is_leaf=is_module):
        dtype = leaf.dtype if eqx.is_array(leaf) else None
        integers = dtype is not None and jnp.issubdtype(dtype, jnp.signedinteger)
        if integers or (isinstance(leaf, (float, complex)) and not isinstance(leaf, np.generic)):
            kind = f"an array of {dtype}" if integers else f"a Python {type(leaf).__name__}"
            what = f"{jax.tree_util.keystr(path)} is {kind}, which would not be optimised"
            raise InputError(
                "theta", what, "jnp.asarray(value, float); unsigned integers stay fixed"
            )


class ParameterOperator(Public, eqx.Module):
    """D = CᵀC on flattened parameters. What is not given is made where it is asked for."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of parameters."""

    @abc.abstractmethod
    def apply(self, eta: Array) -> Array:
        """Dη."""

    @abc.abstractmethod
    def triangle(self) -> Array:
        """C as a dense upper triangle, for the direct solvers."""

    @abc.abstractmethod
    def root(self, eta: Array) -> Array:
        """Cη."""

    @abc.abstractmethod
    def root_transposed(self, y: Array) -> Array:
        """Cᵀy."""


class Diagonal(ParameterOperator):
    """D = diag(c²). Cost: O(p), and p² numbers for a direct solver."""

    c: Array

    @property
    def size(self) -> int:
        return self.c.size

    def apply(self, eta: Array) -> Array:
        return self.c**2 * eta

    def triangle(self) -> Array:
        return jnp.diag(self.c)

    def root(self, eta: Array) -> Array:
        return self.c * eta

    def root_transposed(self, y: Array) -> Array:
        return self.c * y


class Dense(ParameterOperator):
    """D = CᵀC from its Cholesky factor. Cost: O(p²)."""

    C: Array

    @property
    def size(self) -> int:
        return self.C.shape[0]

    def apply(self, eta: Array) -> Array:
        return self.C.T @ (self.C @ eta)

    def triangle(self) -> Array:
        return self.C

    def root(self, eta: Array) -> Array:
        return self.C @ eta

    def root_transposed(self, y: Array) -> Array:
        return self.C.T @ y


class Product(ParameterOperator):
    """D as the product of a lineax operator on θ. A direct solver makes it dense, at O(p³)."""

    mv: Callable
    structure: Structure = eqx.field(static=True)

    def __init__(self, operator: lx.AbstractLinearOperator):
        self.structure = Structure(operator.in_structure())
        self.mv = eqx.filter_closure_convert(operator.mv, operator.in_structure())

    @property
    def size(self) -> int:
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.structure.value))

    def apply(self, eta: Array) -> Array:
        flat, unravel = ravel_pytree(self.structure.zeros())
        return ravel_pytree(self.mv(unravel(eta.astype(flat.dtype))))[0]

    def triangle(self) -> Array:
        flat = ravel_pytree(self.structure.zeros())[0]
        matrix = as_dense(lx.FunctionLinearOperator(self.apply, jax.eval_shape(lambda: flat)))
        return jnp.linalg.cholesky(in_row_order(0.5 * (matrix + matrix.T))).T

    def root(self, eta: Array) -> Array:
        raise InputError(
            "damping",
            "LSMR needs a factor of D, and an operator has none",
            "CG, or ParameterDamping with a matrix or a diagonal",
        )

    def root_transposed(self, y: Array) -> Array:
        return self.root(y)


def as_parameter_operator(operator: lx.AbstractLinearOperator | Array) -> ParameterOperator:
    """D from a matrix, from its diagonal, or from a lineax operator, checked.

    A matrix is checked by its Cholesky factorisation, an operator with three random vectors.
    """
    if isinstance(operator, lx.AbstractLinearOperator):
        product = Product(operator)
        _probe(product)
        return product
    matrix = np.asarray(operator)
    if matrix.ndim == 1:
        if not np.all(matrix > 0):
            raise _not_positive()
        return Diagonal(jnp.asarray(np.sqrt(matrix)))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError("operator", f"has shape {matrix.shape}", "p × p, or p for a diagonal")
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-6 * np.abs(matrix).max()):
        raise _not_symmetric()
    try:
        return Dense(jnp.asarray(np.linalg.cholesky(0.5 * (matrix + matrix.T)).T))
    except np.linalg.LinAlgError as error:
        raise _not_positive() from error


def _probe(D: ParameterOperator) -> None:
    """Symmetry and positivity on the span of random vectors: what a product can show cheaply."""
    vectors = np.random.default_rng(0).normal(size=(3, D.size))
    images = np.stack([np.asarray(D.apply(jnp.asarray(v))) for v in vectors])
    small = vectors @ images.T
    scale = np.linalg.norm(vectors) * np.linalg.norm(images)
    if not np.allclose(small, small.T, rtol=0, atol=1e-6 * scale):
        raise _not_symmetric()
    if not np.all(np.linalg.eigvalsh(0.5 * (small + small.T)) > 0):
        raise _not_positive()


_not_symmetric = functools.partial(InputError, "operator", "is not symmetric", "½(D + Dᵀ)")
_not_positive = functools.partial(
    InputError, "operator", "is not positive definite", "D plus a small multiple of the identity"
)
