"""Functions of θ written in JAX: Z by columns or by rows, or as products without forming it."""

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.selection import Selected, Selection
from ..core.sharding import InParts, check_divides, in_parts, put_on_mesh
from ..errors import InputError, name_kind
from .base import Evaluation, Model, Products, Unravel, differentiate, form_by_rows

DEFAULT_MEMORY = 512 * 2**20


class Explicit(Model):
    """A function θ ↦ ρ(θ) with its dense Jacobian by forward or reverse mode.

    Forward mode costs p products Zη, reverse mode k products Zᵀξ, each two to three evaluations
    of the model: `mode="auto"` takes the smaller number. Products run in chunks whose tangents
    stay below `memory` bytes. A plain function is wrapped in this with the defaults.

    For a mini-batch the whole of ρ is evaluated and then selected from: what is saved is the rest,
    which with k′ < p includes rows of Z.

    ```python
    ng.models.Explicit(lambda theta: theta["a"] * x + theta["b"], mode="forward")
    ```

    Args:
        function: θ ↦ ρ, written in JAX.
        mode: How Z is made: "auto", "forward" or "reverse".
        memory: Bytes of tangents that are held at once.
    """

    function: Callable[[PyTree], PyTree]
    mode: Literal["auto", "forward", "reverse"] = eqx.field(static=True, default="auto")
    memory: int = eqx.field(static=True, default=DEFAULT_MEMORY)

    def __check_init__(self):
        if self.mode not in ("auto", "forward", "reverse"):
            raise InputError("mode", f"{self.mode!r} is unknown", "'auto', 'forward' or 'reverse'")

    def __call__(self, theta: PyTree) -> PyTree:
        return self.function(theta)

    def restricted(self, selection: Selection) -> "Explicit":
        return Explicit(Selected(self.function, selection), self.mode, self.memory)

    def distributed(self, mesh: Mesh) -> "Explicit":
        return Explicit(InParts(self.function, mesh), self.mode, self.memory)

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        state = lambda v: self.function(unravel(v))
        structure = jax.eval_shape(state, flat)
        k = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(structure))
        p = flat.size
        reverse = self.mode == "reverse" or (self.mode == "auto" and k < p)
        chunk = max(1, self.memory // ((k + p) * flat.dtype.itemsize))
        in_chunks = lambda function, xs: jax.lax.map(function, xs, batch_size=chunk)
        if not reverse:
            rho, push = jax.linearize(state, flat)
            columns = in_chunks(push, jnp.eye(p, dtype=flat.dtype))
            return rho, columns, Counts(forward=1, linearised=p)
        rho, pull = jax.vjp(state, flat)
        columns = form_by_rows(lambda xi: pull(xi)[0], rho, in_chunks)
        return rho, columns, Counts(forward=1, adjoint=k)

    def products(self, unravel: Unravel, flat: Array, known: Evaluation | None = None) -> Products:
        return differentiate(lambda v: self.function(unravel(v)), flat, self.mode == "reverse")


class Sourcewise(Model):
    """ρ[s] = function(θ, sources[s]), stacked along a new leading axis: shots, loads, data sets.

    `sources` is an array or a pytree of arrays with one leading axis in common. A mini-batch of
    functions evaluates only the chosen sources.

    ```python
    ng.Sourcewise(lambda theta, omega: jnp.sin(omega * theta[0] * x), jnp.array([1.0, 2.0]))
    ```

    Cost: that of `function`, vmapped over the sources; Z, `mode` and `memory` as for `Explicit`.

    Args:
        function: `function(theta, source)`, the state of one source.
        sources: One entry for each source along the leading axis.
        mode: How Z is made: "auto", "forward" or "reverse".
        memory: Bytes of tangents that are held at once.
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
        sources = put_on_mesh(self.sources, lambda _: in_parts(mesh))
        return Sourcewise(self.function, sources, self.mode, self.memory)

    def _stacked(self) -> Explicit:
        return Explicit(self.__call__, self.mode, self.memory)

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        return self._stacked().jacobian(unravel, flat, known)

    def products(self, unravel: Unravel, flat: Array, known: Evaluation | None = None) -> Products:
        return self._stacked().products(unravel, flat, known)


def as_model(model: Any) -> Any:
    """Wrap a plain function; leave a model as it is."""
    if isinstance(model, Model):
        return model
    if not callable(model):
        raise InputError("model", f"{name_kind(model)} is not callable", "a function of theta")
    return Explicit(model)
