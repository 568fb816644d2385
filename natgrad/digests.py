"""A number for a setting, by which two processes, or two runs, know that they have the same."""

import hashlib
import re
from typing import Any

import jax
import numpy as np


def digest(value: Any) -> str:
    """A number for its structure, types and arrays, the same in another process.

    Of an array whose parts other processes hold, only the shape and the type count.
    """
    leaves, structure = jax.tree_util.tree_flatten(value)
    found = hashlib.sha256(_without_addresses(str(structure)).encode())
    for leaf in leaves:
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            found.update(f"{leaf.dtype}{leaf.shape}".encode())
            if _at_hand(leaf):
                found.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
        else:
            found.update(_without_addresses(repr(leaf)).encode())
    return found.hexdigest()


def _at_hand(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return True
    return leaf.is_fully_addressable or leaf.is_fully_replicated


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "", text)
