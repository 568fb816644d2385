"""Products with the Hessian of f(ρ(θ)), for models that JAX differentiates."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax import Array

from ..operators import hoisted

PyTree = Any
Loss = Callable[[PyTree], Array]


class SecondOrder(eqx.Module):
    """f, ∂_θ f and η ↦ ∇²_θ f η at one θ.

    A product costs one linearised and one adjoint propagation; `evaluations` are the forward ones
    that it took to get here, besides the adjoint one of the gradient.
    """

    rho: PyTree
    value: Array
    gradient: Array
    evaluations: int = eqx.field(static=True)
    _product: Callable[[Array], Array]

    def product(self, eta: Array) -> Array:
        """∇²_θ f η."""
        return self._product(eta.astype(self.gradient.dtype))


def differentiated_twice(
    model: Callable[[PyTree], PyTree], unravel: Callable[[Array], PyTree], flat: Array, loss: Loss
) -> SecondOrder:
    """For models written in JAX: the linearised gradient, in forward over reverse mode."""

    def value_and_state(v: Array) -> tuple[Array, PyTree]:
        rho = model(unravel(v))
        return loss(rho), rho

    gradient = lambda v: jax.value_and_grad(value_and_state, has_aux=True)(v)
    ((value, rho), slope), tangent = jax.linearize(gradient, flat)
    product = hoisted(lambda eta: tangent(eta)[1], jax.ShapeDtypeStruct(flat.shape, flat.dtype))
    return SecondOrder(rho, value, slope, 1, product)
