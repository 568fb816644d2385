"""What a problem of the record book is made of: equations, a network, points, a reference.

A `Case` is data. `Case.collocation` makes natgrad's model of it, `Case.start` a network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng

Theta = dict[str, Any]  # "layers": weights and biases; "unknown": logarithms of coefficients
Points = dict[str, Array]


# --- the network ----------------------------------------------------------------------------------


def initial_layers(widths: tuple[int, ...], seed: int) -> tuple[tuple[Array, Array], ...]:
    """Weights of a d₁ × d₂ layer from N(0, 2/(d₁ + d₂)), biases zero."""
    random = np.random.default_rng(seed)
    scale = lambda a, b: np.sqrt(2 / (a + b))
    return tuple(
        (jnp.asarray(random.normal(size=(a, b)) * scale(a, b)), jnp.zeros(b))
        for a, b in pairwise(widths)
    )


def evaluate_layers(layers: Any, x: Array) -> Array:
    """A network with tanh, linear in its last layer."""
    for weights, biases in layers[:-1]:
        x = jnp.tanh(x @ weights + biases)
    weights, biases = layers[-1]
    return x @ weights + biases


@dataclass(frozen=True)
class Field:
    """x ↦ u(θ, x), a number or, for several unknown functions, a vector."""

    case: "Case"
    theta: Theta

    def __call__(self, x: Array) -> Array:
        found = evaluate_layers(self.theta["layers"], self.case.inputs(x))
        return found[0] if self.case.outputs == 1 else found

    @property
    def unknown(self) -> dict[str, Array]:
        """The coefficients of the equation that are fitted along, all positive."""
        return {name: jnp.exp(value) for name, value in self.theta["unknown"].items()}

    def d(self, x: Array, *axes: int) -> Array:
        """∂u/∂x_i, ∂²u/∂x_i∂x_j, …: one axis for each order."""
        return ng.derivative(self, x, *axes)


# --- points ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved(ng.pinn.Shape):
    """The points of a shape, moved by a function of all of them: denser where u is steep.

    Its measure is that of the shape, although its points are not evenly spread.
    """

    shape: ng.pinn.Shape
    move: Callable[[Array], Array]

    @property
    def coordinates(self) -> int:
        return self.shape.coordinates

    @property
    def measure(self) -> float:
        return self.shape.measure

    def place(self, cube: Array) -> Array:
        return self.move(self.shape.place(cube))


@dataclass(frozen=True)
class Block:
    """Residuals of one kind: r(u, x) for one point, and where the points lie.

    `carry` appends to the points what they carry, such as data; `moves` says whether they may be
    drawn anew.
    """

    residual: Callable[[Field, Array], Array]
    shape: ng.pinn.Shape
    count: int
    weight: float = 1.0
    moves: bool = True
    carry: Callable[[Array], Array] = lambda points: points

    def fixed_points(self, seed: int) -> Array:
        """Sobol's points, scrambled by the seed: they fill the domain more evenly than chance."""
        return jnp.asarray(self.carry(self.shape.sobol(self.count, seed)))


# --- the problem ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """Points of shape (..., d) and the values there, (...) or (..., components)."""

    points: np.ndarray
    values: np.ndarray


def hand_on(leg: int, points: Points, before: Field | None) -> Points:
    """Every leg has the same points."""
    return points


@dataclass(frozen=True)
class Case:
    """A problem.

    A run has `legs`, each from where the one before ended: `advance(leg, points, before)` changes
    what the points of its blocks carry, such as the values at the start of a time window. With
    `windows` the legs are time windows of equal length, each with a time of its own from 0 on; the
    reference is cut in as many.

    `unknown` are first guesses of coefficients that are fitted too, `truth` the values of those
    whose error is measured. Of several unknown functions the reference has the first ones.
    """

    key: str
    title: str
    equation: str
    inputs: Callable[[Array], Array]
    hidden: tuple[int, ...]
    blocks: Mapping[str, Block]
    reference: Callable[[], Reference]
    outputs: int = 1
    unknown: Mapping[str, float] = field(default_factory=dict)
    truth: Mapping[str, float] = field(default_factory=dict)
    period: int = 0
    legs: int = 1
    windows: bool = False
    advance: Callable[[int, Points, Field | None], Points] = hand_on
    share: float = 1.0

    def scaled(self, points: float, width: float) -> "Case":
        """With so many times the points and so many times as wide."""
        more = lambda count: max(8, round(count * points))
        blocks = {k: replace(b, count=more(b.count)) for k, b in self.blocks.items()}
        return replace(
            self, blocks=blocks, hidden=tuple(max(4, round(n * width)) for n in self.hidden)
        )

    def start(self, seed: int) -> Theta:
        """θ₀."""
        block = next(iter(self.blocks.values()))
        x = block.fixed_points(0)[0]
        widths = (jax.eval_shape(self.inputs, x).shape[0], *self.hidden, self.outputs)
        unknown = {name: jnp.log(value) for name, value in self.unknown.items()}
        return {"layers": initial_layers(widths, seed), "unknown": unknown}

    def collocation(self, seed: int) -> ng.Collocation:
        """The residuals at fixed points."""
        bind = lambda residual: lambda theta, x: residual(Field(self, theta), x)
        blocks: dict[str, Any] = {
            name: ng.Residual(bind(block.residual), block.fixed_points(seed), block.weight)
            for name, block in self.blocks.items()
        }
        return ng.Collocation(**blocks)

    def draws(self, change: Callable[[Points], Points], adaptive: int = 0) -> Callable[..., Any]:
        """A draw for `ng.Resampled` of new points for the blocks that move, then changed.

        With `adaptive` the first block's are chosen from so many times their number.
        """
        moving = {name: block for name, block in self.blocks.items() if block.moves}

        @jax.jit
        def draw(key: Array) -> Points:
            keys = jax.random.split(key, len(moving))
            return change(
                {
                    name: block.carry(block.shape.uniform(k, max(1, adaptive) * block.count))
                    for k, (name, block) in zip(keys, moving.items(), strict=True)
                }
            )

        if not adaptive:
            return draw
        first, block = next(iter(moving.items()))
        candidates = lambda key: {first: draw(key)[first]}
        return ng.pinn.residual_adaptive(candidates, block.count)

    def part(self, reference: Reference, leg: int) -> Reference:
        """What a leg is measured against: its window, in its own time, or the whole."""
        if not self.windows:
            return reference
        size = (len(reference.points) - 1) // self.legs
        rows = slice(leg * size + (leg > 0), (leg + 1) * size + 1)
        points = reference.points[rows].copy()
        points[..., 0] -= reference.points[leg * size, 0, 0]
        return Reference(points, reference.values[rows])


def relative_error(found: np.ndarray, truth: np.ndarray) -> float:
    """‖found − truth‖/‖truth‖."""
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
