"""Symmetric positive definite operators D on θ-space: diagonal, dense, or as a product."""

import abc
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from .errors import InputError
from .operators import Structure, as_dense, hoisted


class ParameterOperator(eqx.Module):
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
        self.mv = hoisted(operator.mv, operator.in_structure())

    @property
    def size(self) -> int:
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.structure.value))

    def apply(self, eta: Array) -> Array:
        flat, unravel = ravel_pytree(self.structure.zeros())
        return ravel_pytree(self.mv(unravel(eta.astype(flat.dtype))))[0]

    def triangle(self) -> Array:
        flat = ravel_pytree(self.structure.zeros())[0]
        matrix = as_dense(lx.FunctionLinearOperator(self.apply, jax.eval_shape(lambda: flat)))
        return jnp.linalg.cholesky(0.5 * (matrix + matrix.T)).T

    def root(self, eta: Array) -> Array:
        raise InputError(
            "damping",
            "LSMR needs a factor of D, and an operator has none",
            "CG, or ParameterDamping with a matrix or a diagonal",
        )

    def root_transposed(self, y: Array) -> Array:
        return self.root(y)


def parameter_operator(operator: lx.AbstractLinearOperator | Array) -> ParameterOperator:
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
