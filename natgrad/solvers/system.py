"""The linear system at one θ as products: what a matrix-free solver is given."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

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
        return self._both(zeta, self.zero())[0]

    def rmv(self, y: PyTree) -> PyTree:
        """Lᵀy."""
        return self._both(self._in.zeros(), y)[1]

    def zero(self) -> PyTree:
        """The zero of L's range."""
        return self._out.zeros()


class System(eqx.Module):
    """(G + λD) η = −∂_θ f with G = ZᵀAZ, A = LᵀL, as products; set up once for each θ.

    Of the metric's operators the one that the solver uses is there, `gram` or `factor`. `whitened`
    is a b with Yᵀb = ∂_θ f, or None where the whitened gradient leaves something over. Parameters
    held by bounds do not take part: every vector is zero there. `progress` is ‖∂_θ f‖ over that of
    the first iteration, for forcing terms.
    """

    products: Products
    gradient: Array
    whitened: PyTree | None
    gram: Callable[[PyTree], PyTree] | None
    factor: Factor | None
    free: Array | None
    parameter: ParameterOperator | None
    progress: Array

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

    def squared_length(self, zeta: PyTree) -> Array:
        """⟨ζ, Aζ⟩."""
        if self.gram is not None:
            return dot(zeta, self.gram(zeta))
        assert self.factor is not None
        image = self.factor.mv(zeta)
        return dot(image, image)

    def trace(self, samples: int) -> Array:
        """Hutchinson's estimate of trace G: the mean of ‖LZx‖² over signs x, seeded.

        Cost: one linearised product a sample. Its standard deviation is at most trace(G)·√(2/m)
        for m samples, and far less where many eigenvalues contribute.
        """
        g = self.gradient

        def sample(key: Array) -> Array:
            signs = jax.random.rademacher(key, g.shape, g.dtype)
            return self.squared_length(self.push(signs)).astype(g.dtype)

        return jnp.mean(jax.lax.map(sample, jax.random.split(jax.random.key(0), samples)))

    def _mask(self, eta: Array) -> Array:
        return eta if self.free is None else eta * self.free
