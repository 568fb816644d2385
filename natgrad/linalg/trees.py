"""Vectors that are pytrees: inner products and linear combinations leaf by leaf."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

PyTree = Any


def dot(x: PyTree, y: PyTree) -> Array:
    """⟨x, y⟩ over all leaves.

    >>> float(dot((jnp.ones(2), jnp.ones(3)), (jnp.ones(2), 2 * jnp.ones(3))))
    8.0
    """
    terms = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), x, y))
    return functools.reduce(jnp.add, terms)


def norm(x: PyTree) -> Array:
    """‖x‖ over all leaves."""
    return jnp.sqrt(dot(x, x))


def scaled(a: Array, x: PyTree) -> PyTree:
    """a x, each leaf in its own precision."""
    return jax.tree.map(lambda leaf: a.astype(leaf.dtype) * leaf, x)


def axpy(a: Array, x: PyTree, y: PyTree) -> PyTree:
    """a x + y, in the precision of y."""
    return jax.tree.map(lambda u, v: a.astype(v.dtype) * u.astype(v.dtype) + v, x, y)


def pick(condition: Array, x: PyTree, y: PyTree) -> PyTree:
    """x where the condition holds, else y: an iteration that may keep its last state."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)
