"""S: which entries of the state a mini-batch sees."""

import abc
import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree


class Selection(eqx.Module):
    """A random S: `take` is S, `spread` is Sᵀ, and `scale` is k/k′, so that k/k′ E[SᵀS] = I.

    `rows` is a leaf: another selection of the same size does not compile again.
    """

    rows: eqx.AbstractVar[Array]
    of: ClassVar[str]

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many there are to select from."""

    @property
    def scale(self) -> float:
        """k/k′, which makes a sum over the selection an unbiased estimate of the whole."""
        return self.count / self.rows.size

    @abc.abstractmethod
    def take(self, state: PyTree) -> PyTree:
        """Sx."""

    @abc.abstractmethod
    def spread(self, values: PyTree) -> PyTree:
        """Sᵀy: y on the selection, zero elsewhere."""


class Points(Selection):
    """Entries of a state that is one array, by their flat index; Sx has the shape of `rows`.

    ```python
    Points(jnp.array([3, 5]), (4, 2)).take(jnp.arange(8.0).reshape(4, 2))     # [3, 5]
    ```
    """

    rows: Array
    shape: tuple[int, ...] = eqx.field(static=True)
    of: ClassVar[str] = "points"

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def take(self, state: PyTree) -> Array:
        return jnp.asarray(state).reshape(-1)[self.rows]

    def spread(self, values: Array) -> Array:
        zeros = jnp.zeros(self.count, values.dtype)
        return zeros.at[self.rows].set(values).reshape(self.shape)


class Sublattice(Points):
    """Every `stride`-th point along each axis: on a coarser grid, so that its metrics apply."""

    stride: int = eqx.field(static=True)
    of: ClassVar[str] = "sublattice"


class Functions(Selection):
    """Entries along the leading axis of every array of the state: shots, sources, channels."""

    rows: Array
    total: int = eqx.field(static=True)
    of: ClassVar[str] = "functions"

    @property
    def count(self) -> int:
        return self.total

    def take(self, state: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.asarray(x)[self.rows], state)

    def spread(self, values: PyTree) -> PyTree:
        zeros = lambda y: jnp.zeros((self.total, *y.shape[1:]), y.dtype)
        return jax.tree.map(lambda y: zeros(y).at[self.rows].set(y), values)


class Selected(eqx.Module):
    """x ↦ S f(x): the whole of f, then the selection."""

    function: Callable[[PyTree], PyTree]
    selection: Selection

    def __call__(self, x: PyTree) -> PyTree:
        return self.selection.take(self.function(x))
