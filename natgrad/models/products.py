"""The Jacobian as two products, Zη and Zᵀξ, that share one linearisation."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax import Array

from ..operators import hoisted, structure_of

PyTree = Any


class Products(eqx.Module):
    """ρ(θ), η ↦ Zη and ξ ↦ Zᵀξ at one θ; η and Zᵀξ are flat vectors."""

    rho: eqx.AbstractVar[PyTree]
    evaluations: eqx.AbstractVar[int]  # forward solves that it took to make these

    @abc.abstractmethod
    def push(self, eta: Array) -> PyTree:
        """Zη, with the structure of the state."""

    @abc.abstractmethod
    def pull(self, xi: PyTree) -> Array:
        """Zᵀξ for a covector ξ with the structure of the state."""


class LinearisedProducts(Products):
    """One of the two maps is stored, with what it needs of the forward evaluation as leaves.

    So the products cross the boundary of a compiled program, and the stored arrays exist once. The
    other map is its transpose, taken while a program is traced.
    """

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    _stored: Callable[[Any], Any]
    _flat: jax.ShapeDtypeStruct = eqx.field(static=True)
    _reverse: bool = eqx.field(static=True)

    def push(self, eta: Array) -> PyTree:
        eta = eta.astype(self._flat.dtype)
        if not self._reverse:
            return self._stored(eta)
        return jax.linear_transpose(self._stored, structure_of(self.rho))(eta)[0]

    def pull(self, xi: PyTree) -> Array:
        xi = jax.tree.map(lambda x, like: x.astype(like.dtype), xi, self.rho)
        if self._reverse:
            return self._stored(xi)
        return jax.linear_transpose(self._stored, self._flat)(xi)[0]


def linearised(
    state: Callable[[Array], PyTree], flat: Array, reverse: bool = False
) -> LinearisedProducts:
    """The products of `state` at `flat`, from one evaluation in forward or in reverse mode.

    `reverse` is for functions that have a rule for the transpose only (`jax.custom_vjp`). Both
    cost one evaluation now, then about two for each product.

    ```python
    products = linearised(lambda v: jnp.tanh(W @ v), jnp.ones(3))
    products.push(jnp.ones(3)), products.pull(jnp.ones(5))
    ```
    """
    structure = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    if reverse:
        rho, pull = jax.vjp(state, flat)
        stored = hoisted(lambda xi: pull(xi)[0], structure_of(rho))
    else:
        rho, push = jax.linearize(state, flat)
        stored = hoisted(push, structure)
    return LinearisedProducts(rho, 1, stored, structure, reverse)
