"""The linear system at one θ as products: what a matrix-free solver is given."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..control import each
from ..linalg.trees import dot
from ..models.products import Products
from ..operators import Structure, hoisted
from ..parameter_operators import ParameterOperator

PyTree = Any


class Factor(eqx.Module):
    """L and Lᵀ as leaves: one closure holds what both need, and the unused half costs nothing."""

    _both: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    _in: Structure = eqx.field(static=True)
    _out: Structure = eqx.field(static=True)

    def __init__(self, L: lx.AbstractLinearOperator):
        self._in, self._out = Structure(L.in_structure()), Structure(L.out_structure())
        both = lambda x, y: (L.mv(x), L.T.mv(y))
        self._both = hoisted(both, L.in_structure(), L.out_structure())

    def mv(self, zeta: PyTree) -> PyTree:
        """Lζ."""
        return _image(self._both, zeta, self.zero())

    def rmv(self, y: PyTree) -> PyTree:
        """Lᵀy."""
        return _coimage(self._both, self._in.zeros(), y)

    def zero(self) -> PyTree:
        """The zero of L's range."""
        return self._out.zeros()


class Gram(eqx.Module):
    """A = LᵀL, with what it needs as leaves."""

    _product: Callable[[PyTree], PyTree]

    def __init__(self, A: lx.AbstractLinearOperator):
        self._product = hoisted(A.mv, A.in_structure())

    def mv(self, zeta: PyTree) -> PyTree:
        """Aζ."""
        return _applied(self._product, zeta)


class System(eqx.Module):
    """(G + λD) η = −∂_θ f with G = ZᵀAZ, A = LᵀL, as products; set up once for each θ.

    Of the metric's operators those that the solver uses are there, `gram` or `factor` or both.
    `whitened` is a b with Yᵀb = ∂_θ f, or None where the whitened gradient leaves something over.
    Parameters held by bounds do not take part: every vector is zero there. `progress` is ‖∂_θ f‖
    over that of the first iteration, for forcing terms; `memory` what the solver asked to keep
    from the iteration before, None in a single direction.
    """

    products: Products
    gradient: Array
    whitened: PyTree | None
    gram: Gram | None
    factor: Factor | None
    free: Array | None
    parameter: ParameterOperator | None
    progress: Array
    memory: Any = None

    def push(self, eta: Array) -> PyTree:
        """Zη: one linearised propagation."""
        return self.products.push(self._mask(eta))

    def pull(self, xi: PyTree) -> Array:
        """Zᵀξ: one adjoint propagation."""
        return self._mask(self.products.pull(xi)).astype(self.gradient.dtype)

    def zero_motion(self) -> PyTree:
        """The zero of the state's tangents."""
        return jax.tree.map(jnp.zeros_like, self.products.rho)

    def damp(self, eta: Array) -> Array:
        """Dη."""
        if self.parameter is None:
            return eta
        return self._mask(self.parameter.apply(self._mask(eta))).astype(self.gradient.dtype)

    def rows(self, eta: Array) -> Array:
        """Cη, with D = CᵀC."""
        return eta if self.parameter is None else self.parameter.root(self._mask(eta))

    def rows_transposed(self, y: Array) -> Array:
        """Cᵀy."""
        return y if self.parameter is None else self._mask(self.parameter.root_transposed(y))

    def information(self, eta: Array) -> tuple[PyTree, Array, Array]:
        """Zη, Gη and ⟨η, Gη⟩: the paper's Algorithm 2, one linearised and one adjoint product."""
        image = self.push(eta)
        covector = self.measured(image)
        return image, self.pull(covector), dot(image, covector).astype(eta.dtype)

    def measured(self, zeta: PyTree) -> PyTree:
        """Aζ."""
        if self.gram is not None:
            return self.gram.mv(zeta)
        assert self.factor is not None
        return self.factor.rmv(self.factor.mv(zeta))

    def trace(self, samples: int) -> Array:
        """Hutchinson's estimate of trace G: the mean of ⟨Zx, AZx⟩ over signs x, seeded.

        Cost: one linearised product a sample. Its standard deviation is at most trace(G)·√(2/m)
        for m samples, and far less where many eigenvalues contribute.
        """
        g = self.gradient

        def sample(key: Array) -> Array:
            image = self.push(jax.random.rademacher(key, g.shape, g.dtype))
            if self.factor is not None:
                image = self.factor.mv(image)
                return dot(image, image).astype(g.dtype)
            return dot(image, self.measured(image)).astype(g.dtype)

        return jnp.mean(each(sample, jax.random.split(jax.random.key(0), samples)))

    def _mask(self, eta: Array) -> Array:
        return eta if self.free is None else eta * self.free


# Compiled by themselves where the loop around them is not.


@eqx.filter_jit
def _applied(product: Callable, zeta: PyTree) -> PyTree:
    return product(zeta)


@eqx.filter_jit
def _image(both: Callable, zeta: PyTree, y: PyTree) -> PyTree:
    return both(zeta, y)[0]


@eqx.filter_jit
def _coimage(both: Callable, zeta: PyTree, y: PyTree) -> PyTree:
    return both(zeta, y)[1]
