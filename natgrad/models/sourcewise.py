"""A state that is one function for each source."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from ..counts import Counts
from ..errors import InputError
from ..meshes import check_divides, in_parts, placed
from ..selection import Selection
from .base import Evaluation, Model
from .explicit import DEFAULT_MEMORY, Explicit
from .products import Products

PyTree = Any


class Sourcewise(Model):
    """ρ[s] = function(θ, sources[s]), stacked along a new leading axis: shots, loads, data sets.

    `sources` is an array or a pytree of arrays with one leading axis in common. A mini-batch of
    functions evaluates only the chosen sources.

    ```python
    ng.Sourcewise(lambda theta, omega: jnp.sin(omega * theta[0] * x), jnp.array([1.0, 2.0]))
    ```

    Cost: that of `function`, vmapped over the sources; Z, `mode` and `memory` as for `Explicit`.
    """

    function: Callable[[PyTree, PyTree], PyTree]
    sources: PyTree
    mode: Literal["auto", "forward", "reverse"] = eqx.field(static=True, default="auto")
    memory: int = eqx.field(static=True, default=DEFAULT_MEMORY)

    def __check_init__(self):
        lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(self.sources)}
        if len(lengths) != 1 or lengths in ({()}, {(0,)}):
            raise InputError(
                "sources",
                f"have leading axes {sorted(lengths)}",
                "arrays with one entry for each source along the first axis",
            )

    def __call__(self, theta: PyTree) -> PyTree:
        return jax.vmap(lambda source: self.function(theta, source))(self.sources)

    def restricted(self, selection: Selection) -> Model:
        if selection.of != "functions":
            return self._stacked().restricted(selection)
        sources = selection.take(self.sources)
        return Sourcewise(self.function, sources, self.mode, self.memory)

    def distributed(self, mesh: Mesh) -> "Sourcewise":
        """Each device has some of the sources."""
        for leaf in jax.tree.leaves(self.sources):
            check_divides(mesh, jnp.shape(leaf), "the sources")
        sources = placed(self.sources, lambda _: in_parts(mesh))
        return Sourcewise(self.function, sources, self.mode, self.memory)

    def _stacked(self) -> Explicit:
        return Explicit(self.__call__, self.mode, self.memory)

    def jacobian(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        return self._stacked().jacobian(unravel, flat, known)

    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> Products:
        return self._stacked().products(unravel, flat, known)
