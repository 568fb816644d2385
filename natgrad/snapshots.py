"""Iterates kept on the way, spread evenly over a run of any length."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .errors import InputError
from .parameters import flatten

PyTree = Any
FEW_PARAMETERS = 16  # every iterate is kept unasked, for plots of paths
MANY = 1000


class Snapshots:
    """At most `most` iterates θ: once there are more, every other one is dropped.

    Cost: `most` vectors like θ on the host, and in the checkpoint.
    """

    def __init__(self, most: int):
        self.most, self.every = most, 1
        self.kept: dict[int, np.ndarray] = {}

    @classmethod
    def of(cls, asked: int | None, theta: PyTree) -> "Snapshots":
        """As asked of `minimize`, with θ₀ as the first."""
        flat = flatten(theta)[0]
        if asked is None:
            asked = MANY if flat.size <= FEW_PARAMETERS else 0
        if isinstance(asked, bool) or not isinstance(asked, (int, np.integer)) or asked < 0:
            raise InputError("snapshots", f"{asked!r} is no number of iterates", "20, or None")
        found = cls(int(asked))
        found.note(0, flat)
        return found

    def note(self, iterate: int, flat: Any) -> None:
        """Keep this iterate if it is one of those wanted."""
        if self.most == 0 or iterate % self.every:
            return
        self.kept[iterate] = np.asarray(flat)
        while len(self.kept) > self.most:
            self.every *= 2
            self.kept = {i: x for i, x in self.kept.items() if i % self.every == 0}

    def iterates(self, last: int, theta: PyTree) -> dict[int, PyTree]:
        """Those kept by their place in the history, and the last, in the structure of θ."""
        if self.most == 0:
            return {}
        unravel = flatten(theta)[1]
        return {i: unravel(jnp.asarray(x)) for i, x in self.kept.items() if i < last} | {
            last: theta
        }

    def packed(self) -> tuple[list[int], list[np.ndarray]]:
        """Numbers and vectors, for a checkpoint."""
        return list(self.kept), list(self.kept.values())

    def restore(self, numbers: Sequence[int], vectors: Sequence[np.ndarray]) -> None:
        """Take up what a checkpoint has."""
        for number, vector in zip(numbers, vectors, strict=True):
            self.note(number, vector)
