"""Problems in time and one dimension of space: x = (t, x)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import references
from .case import Block, Case, Field, Points, Reference, in_box
from .references import DIFFUSION, DISPERSION, KURAMOTO, VISCOSITY

TIMES, PLACES = 101, 256  # of the references
ACROSS, TURN = (-1.0, 1.0), (0.0, 2 * np.pi)
UNIT = (0.0, 1.0)
DATA, NOISE = 2000, 0.01  # of the inverse problem; relative to the spread of u
FRONT = 0.05  # width of the points' concentration at Burgers' front
SPEED, RATE = 50.0, 5.0  # β of the convection, ρ of the reaction
KS_WINDOWS = 10
HIDDEN = (40,) * 4
INTERIOR, EDGE = 8000, 512


def periodic(wave: float, length: float = 1.0) -> Callable[[Array], Array]:
    """(t, x) ↦ (2t/length − 1, cos wx, sin wx)."""
    return lambda x: jnp.stack([2 * x[0] / length - 1, jnp.cos(wave * x[1]), jnp.sin(wave * x[1])])


def straight(low: float, high: float) -> Callable[[Array], Array]:
    """(t, x) to [−1, 1]²."""
    return lambda x: jnp.stack([2 * x[0] - 1, (2 * x[1] - low - high) / (high - low)])


def tabulated(
    solve: Callable[[np.ndarray, np.ndarray], np.ndarray], x: np.ndarray
) -> Callable[[], Reference]:
    """The reference at equidistant times in [0, 1] and these places."""

    def make() -> Reference:
        times = np.linspace(0, 1, TIMES)
        points = np.stack(np.meshgrid(times, x, indexing="ij"), axis=-1)
        return Reference(points, solve(times, x))

    return make


def start_from(
    function: Callable[[Array], Array], side: tuple[float, float], weight: float = 1.0
) -> Block:
    """u(0, x) − f(x)."""
    residual = lambda u, x: u(x) - function(x[1])
    return Block(residual, in_box((0.0, 0.0), side), 1, EDGE, weight, moves=False)


def burgers_points(unit: Any) -> Any:
    """(t, x): half of them anywhere, half Cauchy of width `FRONT` around the front."""
    xp, (t, share) = unit.__array_namespace__(), unit.T
    near = FRONT * xp.tan(np.arctan(1 / FRONT) * (4 * share - 3))
    return xp.stack([t, xp.where(share < 0.5, 4 * share - 1, near)], axis=1)


def both_ends(unit: Any) -> Any:
    """(t, ±1)."""
    xp, share = unit.__array_namespace__(), unit[:, 0]
    return xp.stack([(2 * share) % 1, xp.where(share < 0.5, -1.0, 1.0)], axis=1)


def burgers() -> Case:
    def residual(u: Field, x: Array) -> Array:
        return u.d(x, 0) + u(x) * u.d(x, 1) - VISCOSITY * u.d(x, 1, 1)

    x = np.linspace(-1, 1, PLACES + 1)
    return Case(
        key="burgers",
        title="Burgers, ν = 0.01/π",
        equation="u_t + u u_x = ν u_xx on [−1, 1], u(0, x) = −sin πx, u(t, ±1) = 0, t ≤ 1",
        inputs=straight(*ACROSS),
        hidden=HIDDEN,
        blocks={
            "interior": Block(residual, burgers_points, 2, INTERIOR, 0.1),
            "initial": start_from(lambda x: -jnp.sin(jnp.pi * x), ACROSS),
            "boundary": Block(lambda u, x: u(x), both_ends, 1, EDGE // 2, moves=False),
        },
        reference=tabulated(lambda times, x: references.burgers(times[:, None], x), x),
    )


def inverse_burgers() -> Case:
    """Both coefficients of Burgers' equation from values with noise; its points carry them."""

    def residual(u: Field, x: Array) -> Array:
        speed, viscosity = u.unknown["speed"], u.unknown["viscosity"]
        return u.d(x, 0) + speed * u(x) * u.d(x, 1) - viscosity * u.d(x, 1, 1)

    def observe(unit: np.ndarray) -> np.ndarray:
        points = in_box(UNIT, ACROSS)(unit)
        values = references.burgers(*points.T)
        noise = NOISE * values.std() * np.random.default_rng(0).normal(size=values.shape)
        return np.column_stack([points, values + noise])

    return replace(
        burgers(),
        key="burgers-inverse",
        title="Burgers, ν from noisy data",
        equation=(
            f"u_t + λ u u_x = ν u_xx on [−1, 1], λ and ν sought from {DATA:,} values of u with 1% "
            "noise; the error is that of ν = 0.01/π, relative"
        ),
        blocks={
            "interior": Block(residual, burgers_points, 2, INTERIOR, 0.1),
            "data": Block(lambda u, x: u(x[:2]) - x[2], observe, 2, DATA, moves=False),
        },
        unknown={"speed": 0.5, "viscosity": 0.05},
        truth={"viscosity": VISCOSITY},
    )


def allen_cahn() -> Case:
    def residual(u: Field, x: Array) -> Array:
        value = u(x)
        return u.d(x, 0) - DIFFUSION * u.d(x, 1, 1) - 5 * (value - value**3)

    return Case(
        key="allen-cahn",
        title="Allen–Cahn, 10⁻⁴",
        equation="u_t = 10⁻⁴ u_xx + 5(u − u³), periodic on [−1, 1], u(0, x) = x² cos πx, t ≤ 1",
        inputs=periodic(np.pi),
        hidden=HIDDEN,
        blocks={
            "interior": Block(residual, in_box(UNIT, ACROSS), 2, INTERIOR, 0.1),
            "initial": start_from(lambda x: x**2 * jnp.cos(jnp.pi * x), ACROSS),
        },
        reference=tabulated(
            lambda times, x: references.allen_cahn(times, len(x)), references.places(PLACES)
        ),
    )


def convection() -> Case:
    x = TURN[1] * np.arange(PLACES) / PLACES
    return Case(
        key="convection",
        title="convection, β = 50",
        equation="u_t + 50 u_x = 0, periodic on [0, 2π], u(0, x) = sin x, t ≤ 1",
        inputs=periodic(1.0),
        hidden=HIDDEN,
        blocks={
            "interior": Block(
                lambda u, x: (u.d(x, 0) + SPEED * u.d(x, 1)) / SPEED,
                *(in_box(UNIT, TURN), 2, INTERIOR),
            ),
            "initial": start_from(jnp.sin, TURN),
        },
        reference=tabulated(lambda times, x: np.sin(x - SPEED * times[:, None]), x),
    )


def korteweg_de_vries() -> Case:
    def residual(u: Field, x: Array) -> Array:
        return u.d(x, 0) + u(x) * u.d(x, 1) + DISPERSION * u.d(x, 1, 1, 1)

    return Case(
        key="kdv",
        title="Korteweg–de Vries, 0.022²",
        equation="u_t + u u_x + 0.022² u_xxx = 0, periodic on [−1, 1], u(0, x) = cos πx, t ≤ 1",
        inputs=periodic(np.pi),
        hidden=HIDDEN,
        blocks={
            "interior": Block(residual, in_box(UNIT, ACROSS), 2, INTERIOR, 0.1),
            "initial": start_from(lambda x: jnp.cos(jnp.pi * x), ACROSS),
        },
        reference=tabulated(
            lambda times, x: references.korteweg_de_vries(times, len(x)), references.places(PLACES)
        ),
    )


def reaction() -> Case:
    bump = lambda x: np.exp(-8 * (x / np.pi - 1) ** 2)  # exp(−(x − π)²/(2(π/4)²))

    def grown(times: np.ndarray, x: np.ndarray) -> np.ndarray:
        factor = bump(x) * np.exp(RATE * times[:, None])
        return factor / (factor + 1 - bump(x))

    ends = lambda u, x: u(x) - u(x.at[1].set(TURN[1]))
    return Case(
        key="reaction",
        title="reaction, ρ = 5",
        equation="u_t = 5 u(1 − u) on [0, 2π], u(0, x) = exp(−8(x − π)²/π²), periodic, t ≤ 1",
        inputs=straight(*TURN),
        hidden=HIDDEN,
        blocks={
            "interior": Block(
                lambda u, x: u.d(x, 0) - RATE * u(x) * (1 - u(x)),
                *(in_box(UNIT, TURN), 2, INTERIOR),
            ),
            "initial": start_from(lambda x: jnp.exp(-8 * (x / jnp.pi - 1) ** 2), TURN),
            "boundary": Block(ends, in_box(UNIT, (0.0, 0.0)), 1, EDGE // 2, moves=False),
        },
        reference=tabulated(grown, np.linspace(*TURN, PLACES + 1)),
    )


def kuramoto_sivashinsky() -> Case:
    """In time windows, each from the values where the one before ended: its points carry them."""
    alpha, beta, gamma = KURAMOTO
    length = 1 / KS_WINDOWS

    def residual(u: Field, x: Array) -> Array:
        steady = alpha * u(x) * u.d(x, 1) + beta * u.d(x, 1, 1) + gamma * u.d(x, 1, 1, 1, 1)
        return length * (u.d(x, 0) + steady)

    def start(unit: np.ndarray) -> np.ndarray:
        x = 2 * unit[:, 0] - 1
        return np.stack([np.zeros_like(x), x, -np.sin(np.pi * x)], axis=1)

    def advance(leg: int, points: Points, before: Field | None) -> Points:
        if before is None or "initial" not in points:  # those that are drawn anew have none
            return points
        end = points["initial"].at[:, 0].set(length)[:, :2]
        return points | {"initial": points["initial"].at[:, 2].set(jax.vmap(before)(end))}

    return Case(
        key="ks",
        title="Kuramoto–Sivashinsky",
        equation=(
            "u_t + 5 u u_x + ½ u_xx + 0.005 u_xxxx = 0, periodic on [−1, 1], "
            "u(0, x) = −sin πx, t ≤ 1"
        ),
        inputs=periodic(np.pi, length),
        hidden=HIDDEN,
        blocks={
            "interior": Block(residual, in_box((0.0, length), ACROSS), 2, INTERIOR // 2, 0.1),
            "initial": Block(lambda u, x: u(x[:2]) - x[2], start, 1, EDGE, moves=False),
        },
        reference=tabulated(
            lambda times, x: references.kuramoto_sivashinsky(times, len(x)),
            references.places(PLACES // 2),
        ),
        legs=KS_WINDOWS,
        windows=True,
        advance=advance,
        share=2.0,
    )
