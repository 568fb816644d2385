"""How often a model was evaluated, linearised and transposed."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Counts(NamedTuple):
    """Evaluations ρ(θ), products Zη and products Zᵀξ: the currency of PDE-based optimisation.

    A dense Z counts as the products that make it: p linearised ones in forward mode, k adjoint
    ones in reverse mode, one adjoint pass for a pointwise model.
    """

    forward: Array | int = 0
    linearised: Array | int = 0
    adjoint: Array | int = 0

    def plus(self, forward: Array | int = 0, linearised: Array | int = 0, adjoint: Array | int = 0):
        """These counts and some more."""
        return Counts(
            jnp.asarray(self.forward + forward),
            jnp.asarray(self.linearised + linearised),
            jnp.asarray(self.adjoint + adjoint),
        )
