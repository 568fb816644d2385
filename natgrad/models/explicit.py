"""Functions of θ written in JAX: Z by columns or by rows, or as products without forming it."""

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from ..counts import Counts
from ..errors import InputError
from ..meshes import InParts
from ..selection import Selected, Selection
from .base import Evaluation, Model
from .products import Products, linearised

PyTree = Any
DEFAULT_MEMORY = 512 * 2**20


class Explicit(Model):
    """A function θ ↦ ρ(θ) with its dense Jacobian by forward or reverse mode.

    Forward mode costs p products Zη, reverse mode k products Zᵀξ, each two to three evaluations
    of the model: `mode="auto"` takes the smaller number. Products run in chunks whose tangents
    stay below `memory` bytes. A plain function is wrapped in this with the defaults.

    For a mini-batch the whole of ρ is evaluated and then selected from: what is saved is the rest,
    which with k′ < p includes rows of Z.

    ```python
    ng.Explicit(lambda theta: theta["a"] * x + theta["b"], mode="forward")
    ```
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
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        state = lambda v: self.function(unravel(v))
        structure = jax.eval_shape(state, flat)
        k = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(structure))
        p = flat.size
        reverse = self.mode == "reverse" or (self.mode == "auto" and k < p)
        chunk = chunk_size(self.memory, (k + p) * flat.dtype.itemsize)
        if not reverse:
            rho, push = jax.linearize(state, flat)
            columns = mapped(push, jnp.eye(p, dtype=flat.dtype), chunk)
            return rho, columns, Counts(forward=1, linearised=p)
        rho, pull = jax.vjp(state, flat)
        vector, unravel_state = ravel_pytree(rho)
        row = lambda e: pull(unravel_state(e))[0]
        rows = mapped(row, jnp.eye(k, dtype=vector.dtype), chunk)
        columns = jax.vmap(unravel_state)(rows.T.astype(vector.dtype))
        return rho, columns, Counts(forward=1, adjoint=k)

    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> Products:
        return linearised(lambda v: self.function(unravel(v)), flat, self.mode == "reverse")


def as_model(model: Any) -> Any:
    """Wrap a plain function; leave a model as it is."""
    if isinstance(model, Model):
        return model
    if not callable(model):
        raise InputError(
            "model", f"a {type(model).__name__} is not callable", "a function of theta"
        )
    return Explicit(model)


def chunk_size(memory: int, bytes_each: int) -> int:
    """How many vectors of this size fit into the memory, at least one."""
    return max(1, memory // max(1, bytes_each))


def mapped(function: Callable, xs: Array, chunk: int) -> Any:
    """`function` of every entry of `xs`, `chunk` of them at once."""
    if chunk >= xs.shape[0]:
        return jax.vmap(function)(xs)
    return jax.lax.map(function, xs, batch_size=chunk)
