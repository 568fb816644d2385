"""SOAP, a rival: Adam in the eigenbasis of Shampoo's preconditioner, for each matrix of weights.

With G the gradient of a d₁ × d₂ matrix, P ← βP + (1 − β)GGᵀ and Q ← βQ + (1 − β)GᵀG, whose
eigenvectors are the columns of U and V, Adam acts on UᵀGV:

    M ← β₁M + (1 − β₁)G,   S ← β₂S + (1 − β₂)(UᵀGV)²,   W ← W − α U [UᵀMV / (√S + ε)] Vᵀ,

with Adam's corrections of the first steps. U and V follow P and Q by a step of orthogonal iteration
now and then; the first gradient only sets them. Biases have Adam.

Cost: 10 d₁d₂(d₁ + d₂) flops a matrix. Reference: Vyas and others, arXiv:2409.11321.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

DECAY, EPSILON, EVERY = 0.95, 1e-8, 10  # those of the paper; every so many steps new eigenvectors


class Leaf(NamedTuple):
    """What is carried for one array; P, Q, U and V of a vector are empty."""

    mean: Array
    square: Array
    sums: tuple[Array, ...]
    bases: tuple[Array, ...]


class State(NamedTuple):
    count: Array
    leaves: list[Leaf]


class Soap(NamedTuple):
    """With the interface of an optax transformation: `init(theta)`, `update(g, state, theta)`."""

    rate: float

    def init(self, theta: Any) -> State:
        return State(jnp.zeros((), int), [_begin(leaf) for leaf in jax.tree.leaves(theta)])

    def update(self, gradient: Any, state: State, theta: Any = None) -> tuple[Any, State]:
        found, structure = jax.tree.flatten(gradient)
        pairs = zip(found, state.leaves, strict=True)
        both = [_follow(self.rate, g, leaf, state.count) for g, leaf in pairs]
        change = jax.tree.unflatten(structure, [change for change, _ in both])
        return change, State(state.count + 1, [leaf for _, leaf in both])


def _begin(array: Array) -> Leaf:
    zeros, sizes = jnp.zeros_like(array), array.shape if array.ndim == 2 else ()
    squares = tuple(jnp.zeros((n, n), array.dtype) for n in sizes)
    return Leaf(zeros, zeros, squares, tuple(jnp.eye(n, dtype=array.dtype) for n in sizes))


def _follow(rate: float, g: Array, leaf: Leaf, count: Array) -> tuple[Array, Leaf]:
    """The change of one array; none in the first step, which only begins the bases."""
    first = count == 0
    sums, bases = leaf.sums, leaf.bases
    if bases:
        mix = lambda old, new: jnp.where(first, new, DECAY * old + (1 - DECAY) * new)
        sums = mix(sums[0], g @ g.T), mix(sums[1], g.T @ g)
        keep = lambda first, sums, bases: bases
        bases = jax.lax.cond(count % EVERY == 0, _turn, keep, first, sums, bases)
    into = lambda x: bases[0].T @ x @ bases[1] if bases else x
    out = lambda x: bases[0] @ x @ bases[1].T if bases else x
    mean = jnp.where(first, 0.0, DECAY * leaf.mean + (1 - DECAY) * g)
    square = jnp.where(first, 0.0, DECAY * leaf.square + (1 - DECAY) * into(g) ** 2)
    grown = jnp.where(first, 1.0, 1 - DECAY ** count.astype(g.dtype))
    step = into(mean / grown) / (jnp.sqrt(square / grown) + EPSILON)
    return jnp.where(first, 0.0, -rate * out(step)), Leaf(mean, square, sums, bases)


def _turn(first: Array, sums: tuple[Array, ...], bases: tuple[Array, ...]) -> tuple[Array, ...]:
    """Eigenvectors of the sums: all of them at first, later by a step of orthogonal iteration."""
    exact = lambda P, U: jnp.linalg.eigh(P)[1]
    iterated = lambda P, U: jnp.linalg.qr(P @ U)[0]
    return tuple(
        jax.lax.cond(first, exact, iterated, P, U) for P, U in zip(sums, bases, strict=True)
    )
