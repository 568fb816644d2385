"""K = BBᵀ in one dimension, by the cumulative sums of `line.py`."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .factor import Factor, Solution
from .line import line_fluxes, line_fluxes_transpose, line_potentials
from .stencils import Stencil, graph_links


class LineFactor(Factor):
    """K for one staggered stencil; nothing to set up, and O(k) for each right-hand side."""

    stencils: tuple[Stencil, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]

    def _links(self) -> Array:
        return graph_links(self.stencils, self.weights)[0][0]

    def _faces(self) -> tuple[Array, int]:
        """√c at the flux positions with the sign of B, and how many there are."""
        return -self.weights[0] * abs(self.stencils[0].coefficients[0]), len(self.weights[0])

    def solve(self, zeta: Array) -> Array:
        return line_potentials(self._links(), zeta, self.stencils[0].wrap)

    def flows(
        self, zeta: Array, tolerance: float | None = None
    ) -> tuple[tuple[Array, ...], Solution]:
        """B†ζ = −f/√c from the flow f itself, which has more correct digits than φ."""
        root, faces = self._faces()
        flow = line_fluxes(self._links(), zeta, self.stencils[0].wrap)[..., :faces]
        fluxes = (jnp.where(root < 0, flow / jnp.where(root < 0, root, 1.0), 0.0),)
        return fluxes, self.solution(zeta)

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        root, faces = self._faces()
        values = jnp.where(root < 0, fluxes[0] / jnp.where(root < 0, root, 1.0), 0.0)
        missing = self._links().shape[0] - faces
        padded = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
        return line_fluxes_transpose(self._links(), padded, self.stencils[0].wrap)
