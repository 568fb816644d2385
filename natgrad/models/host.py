"""Calls of code outside JAX: NumPy in, NumPy out, checked, with errors that name the call."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..control import traced
from ..counts import Counts
from ..errors import InputError
from ..operators import structure_of
from .base import Evaluation, Model
from .products import Products

PyTree = Any


class HostModel(Model):
    """A model outside JAX, driven from Python: `evaluate` and `products` are its own."""

    def __call__(self, theta: PyTree) -> PyTree:
        return self.evaluate(theta).rho

    def jacobian(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        products = self.products(unravel, flat, known)
        columns, pushed, pulled = columns_by_products(products, flat)
        return products.rho, columns, Counts(products.evaluations, pushed, pulled)

    @property
    def on_host(self) -> bool:
        return True

    @property
    def solves(self) -> bool:
        return True


class HostProducts(Products):
    """Zη and Zᵀξ by functions of Python, for a loop on the host."""

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    _push: Callable[[Array], PyTree] = eqx.field(static=True)
    _pull: Callable[[PyTree], Array] = eqx.field(static=True)

    def push(self, eta: Array) -> PyTree:
        return self._push(eta)

    def pull(self, xi: PyTree) -> Array:
        return self._pull(xi)


def named(name: str, function: Callable, *arguments: Any) -> Any:
    """`function(*arguments)`; an exception passes as it is, with a note that names the call."""
    try:
        return function(*arguments)
    except Exception as error:
        error.add_note(f"raised by {name} of the model")
        raise


def check_function(name: str, function: Any) -> None:
    """Raise `InputError` unless this is a function that a program can be kept for."""
    if not callable(function):
        raise InputError(name, f"a {type(function).__name__} is not callable", "a function")
    try:
        hash(function)
    except TypeError as error:
        raise InputError(
            name,
            "cannot be hashed, and programs are kept by the identity of the model",
            "a function or a method in place of this object",
        ) from error


def check_concrete(tree: PyTree) -> None:
    """Raise `InputError` where `tree` is being traced: outside code needs values."""
    if traced(tree):
        raise InputError(
            "model",
            "is code outside JAX and cannot be part of a compiled program",
            "the call outside of jax.jit, grad, vmap and scan",
        )


def to_numpy(tree: PyTree) -> PyTree:
    """Arrays of `tree` as NumPy copies, which the outside code may write into."""
    check_concrete(tree)
    return jax.tree.map(lambda x: np.array(x) if eqx.is_array(x) else x, tree)


def from_numpy(name: str, tree: PyTree, like: PyTree) -> PyTree:
    """What the outside code returned, as JAX arrays; it must have the shapes of `like`.

    Entries where `like` has None (those of θ that are no parameters) are ignored.
    """
    expected, treedef = jax.tree.flatten(like)
    leaves = _entries(name, tree, like) if len(expected) > 1 else jax.tree.leaves(tree)
    leaves = [np.asarray(leaf) for leaf in leaves]
    shapes, wanted = [leaf.shape for leaf in leaves], [tuple(leaf.shape) for leaf in expected]
    if shapes != wanted:
        plain = lambda found: found[0] if len(found) == 1 else found
        raise InputError(
            name, f"returns shape {plain(shapes)}", f"an array of shape {plain(wanted)}"
        )
    arrays = [jnp.asarray(a, b.dtype) for a, b in zip(leaves, expected, strict=True)]
    return jax.tree.unflatten(treedef, arrays)


def _entries(name: str, tree: PyTree, like: PyTree) -> list[Any]:
    """The entries of `tree` that stand where `like` has arrays."""
    absent = lambda x: x is None
    try:
        matched = jax.tree.map(lambda a, b: a if a is None else b, like, tree, is_leaf=absent)
    except (ValueError, TypeError) as error:
        shape = lambda found: jax.tree.structure(jax.tree.map(lambda _: 0, found))
        raise InputError(
            name, f"returns the structure {shape(tree)}", f"that of its argument, {shape(like)}"
        ) from error
    return jax.tree.leaves(matched)


def state_from_numpy(name: str, tree: PyTree) -> PyTree:
    """A state that the outside code returned, as JAX arrays."""
    try:
        return jax.tree.map(jnp.asarray, tree)
    except (TypeError, ValueError) as error:
        advice = "a NumPy array, or a tuple or dict of them"
        raise InputError(name, f"returns a {type(tree).__name__}", advice) from error


def columns_by_products(products: Products, flat: Array) -> tuple[PyTree, int, int]:
    """The columns of Z by p products Zη or k products Zᵀξ, whichever is less, and how many each."""
    structure = structure_of(products.rho)
    leaves, treedef = jax.tree.flatten(structure)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    p, k = flat.size, sum(sizes)
    if p <= k:
        basis = jnp.eye(p, dtype=flat.dtype)
        columns = [products.push(basis[i]) for i in range(p)]
        return jax.tree.map(lambda *xs: jnp.stack(xs), *columns), p, 0
    rows = []
    for index in range(k):
        unit = np.zeros(k)
        unit[index] = 1.0
        parts = np.split(unit, np.cumsum(sizes)[:-1])
        shaped = [
            jnp.asarray(part.reshape(leaf.shape), leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        rows.append(np.asarray(products.pull(jax.tree.unflatten(treedef, shaped))))
    matrix = np.stack(rows, axis=1)
    blocks = np.split(matrix, np.cumsum(sizes)[:-1], axis=1)
    stacked = [
        jnp.asarray(block.reshape(p, *leaf.shape), leaf.dtype)
        for block, leaf in zip(blocks, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, stacked), 0, k
