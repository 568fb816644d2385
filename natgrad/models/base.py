"""What a model is: θ ↦ ρ(θ), with its Jacobian and the products Zη and Zᵀξ."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
from jax import Array
from jax.sharding import Mesh

from ..counts import Counts
from ..errors import InputError
from ..selection import Selection
from .products import Products
from .second_order import SecondOrder, differentiated_twice

PyTree = Any


class Evaluation(NamedTuple):
    """ρ at one θ, and what the model keeps of the way there for the products at the same θ.

    A solved field or a factorisation is worth keeping; None where nothing is.
    """

    rho: PyTree
    kept: Any = None


class Model(eqx.Module):
    """θ ↦ ρ(θ). θ is handed over as one flat vector and the function that gives it back its shape.

    `known` is an `Evaluation` at the same θ, where the line search has made one.
    """

    @abc.abstractmethod
    def __call__(self, theta: PyTree) -> PyTree:
        """ρ(θ)."""

    @abc.abstractmethod
    def jacobian(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        """ρ, the columns ζᵢ of Z stacked along a new leading axis, and the products spent."""

    @abc.abstractmethod
    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> Products:
        """ρ, Zη and Zᵀξ, without Z."""

    def second_order(
        self,
        unravel: Callable[[Array], PyTree],
        flat: Array,
        known: Evaluation | None,
        loss: Callable[[PyTree], Array],
    ) -> SecondOrder:
        """f(ρ(θ)), its gradient, and products with its Hessian."""
        if self.on_host or self.solves:
            raise InputError(
                "metric",
                f"Newton needs second derivatives, which a {type(self).__name__} does not have",
                "L2, which on a least-squares loss is Gauss–Newton",
            )
        return differentiated_twice(self, unravel, flat, loss)

    def restricted(self, selection: Selection) -> "Model":
        """θ ↦ Sρ(θ), for a mini-batch."""
        raise InputError(
            "batch",
            f"a {type(self).__name__} cannot be evaluated on a selection",
            "MiniBatch(..., select=function), where function(rows) returns the Problem there",
        )

    def distributed(self, mesh: Mesh) -> "Model":
        """This model with its state in parts over the devices of a mesh."""
        if self.on_host:
            raise InputError(
                "mesh",
                f"a {type(self).__name__} is code outside JAX, which has no devices to spread over",
                "a model written in JAX, or no mesh",
            )
        return self

    def evaluate(self, theta: PyTree) -> Evaluation:
        """ρ(θ) with what is worth keeping."""
        return Evaluation(self(theta))

    def check(self, theta: PyTree, known: Evaluation) -> None:
        """Raise `InputError` if the model contradicts itself at θ."""

    @property
    def on_host(self) -> bool:
        """Whether the model is Python code outside JAX, so that its runs are driven from Python."""
        return False

    @property
    def any_mesh(self) -> bool:
        """Whether the state may be in unequal parts over the devices of a mesh."""
        return False

    @property
    def solves(self) -> bool:
        """Whether every product is a solve with a PDE of the model.

        Then the model is differentiated by its products alone, a known evaluation saves the
        forward solve, and `Auto` forms no large Z.
        """
        return False
