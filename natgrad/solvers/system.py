"""The linear system at one θ as products: what a matrix-free solver is given."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import each
from ..core.operators import Structure, dot, hoist
from ..models.base import Products
from ..parameters import ParameterOperator


class Factor(eqx.Module):
    """L and Lᵀ as leaves: one closure holds what both need, and the unused half costs nothing."""

    _both: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    _in: Structure = eqx.field(static=True)
    _out: Structure = eqx.field(static=True)

    def __init__(self, L: lx.AbstractLinearOperator):
        self._in, self._out = Structure(L.in_structure()), Structure(L.out_structure())
        both = lambda x, y: (L.mv(x), L.T.mv(y))
        self._both = hoist(both, L.in_structure(), L.out_structure())

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
        self._product = hoist(A.mv, A.in_structure())

    def mv(self, zeta: PyTree) -> PyTree:
        """Aζ."""
        return _applied(self._product, zeta)


class LinearSystem(eqx.Module):
    """(G + λD) η = −∂_θ f with G as a product, set up once for each θ.

    Parameters held by bounds do not take part: every vector is zero there (`free` is 1 elsewhere).
    `progress` is ‖∂_θ f‖ over that of the first iteration, for forcing terms; `memory` what the
    solver asked to keep from the iteration before, None in a single direction.
    """

    gradient: eqx.AbstractVar[Array]
    free: eqx.AbstractVar[Array | None]
    parameter: eqx.AbstractVar[ParameterOperator | None]
    progress: eqx.AbstractVar[Array]
    memory: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def information(self, eta: Array) -> tuple[PyTree, Array, Array]:
        """Zη (or zero), Gη and ⟨η, Gη⟩: one linearised and one adjoint product."""

    @abc.abstractmethod
    def zero_motion(self) -> PyTree:
        """The zero of the state's tangents."""

    @abc.abstractmethod
    def trace(self, samples: int) -> Array:
        """An estimate of trace G from this many products, seeded."""

    @property
    def indefinite(self) -> bool:
        """Whether G may have negative eigenvalues."""
        return False

    def damp(self, eta: Array) -> Array:
        """Dη."""
        if self.parameter is None:
            return eta
        return self.mask(self.parameter.apply(self.mask(eta))).astype(self.gradient.dtype)

    def mask(self, eta: Array) -> Array:
        """η on the parameters that may move, and zero on the others."""
        return eta if self.free is None else eta * self.free


class HessianSystem(LinearSystem):
    """Newton's system: G is the Hessian of the loss."""

    gradient: Array
    free: Array | None
    parameter: ParameterOperator | None
    progress: Array
    memory: Any
    rho: PyTree
    parts: tuple[Callable[[Array], Array], ...]  # products whose sum is that with the Hessian

    def information(self, eta: Array) -> tuple[PyTree, Array, Array]:
        eta = self.mask(eta)
        products = [part(eta) for part in self.parts]
        product = self.mask(sum(products[1:], products[0])).astype(eta.dtype)
        return self.zero_motion(), product, eta @ product

    def zero_motion(self) -> PyTree:
        return jax.tree.map(jnp.zeros_like, self.rho)

    def trace(self, samples: int) -> Array:
        g = self.gradient
        sample = lambda key: self.information(jax.random.rademacher(key, g.shape, g.dtype))[2]
        mean = jnp.mean(each(sample, jax.random.split(jax.random.key(0), samples)))
        return jnp.maximum(mean, 0.0)

    @property
    def indefinite(self) -> bool:
        return True


class System(LinearSystem):
    """(G + λD) η = −∂_θ f with G = ZᵀAZ, A = LᵀL, as products; set up once for each θ.

    Of the metric's operators those that the solver uses are there, `gram` or `factor` or both.
    `whitened` is a b with Yᵀb = ∂_θ f, or None where the whitened gradient leaves something over.
    """

    gradient: Array
    free: Array | None
    parameter: ParameterOperator | None
    progress: Array
    memory: Any
    products: Products
    whitened: PyTree | None
    gram: Gram | None
    factor: Factor | None

    def push(self, eta: Array) -> PyTree:
        """Zη: one linearised propagation."""
        return self.products.push(self.mask(eta))

    def pull(self, xi: PyTree) -> Array:
        """Zᵀξ: one adjoint propagation."""
        return self.mask(self.products.pull(xi)).astype(self.gradient.dtype)

    def zero_motion(self) -> PyTree:
        return jax.tree.map(jnp.zeros_like, self.products.rho)

    def rows(self, eta: Array) -> Array:
        """Cη, with D = CᵀC."""
        return eta if self.parameter is None else self.parameter.root(self.mask(eta))

    def rows_transposed(self, y: Array) -> Array:
        """Cᵀy."""
        return y if self.parameter is None else self.mask(self.parameter.root_transposed(y))

    def information(self, eta: Array) -> tuple[PyTree, Array, Array]:
        """Zη, Gη and ⟨η, Gη⟩: the paper's Algorithm 2."""
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
