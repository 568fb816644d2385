"""Problems in time and one dimension of space: x = (t, x)."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import erf

import natgrad as ng
from natgrad.pinn import Box

from . import references
from .case import Block, Case, Field, Moved, Points, Reference
from .references import DIFFUSION, DISPERSION, KURAMOTO, VISCOSITY

TIMES, PLACES = 101, 256  # of the references
ACROSS, TURN = (-1.0, 1.0), (0.0, 2 * np.pi)
DATA, NOISE = 2000, 0.01  # of the inverse problem; relative to the spread of u
FRONT = 0.02  # width of the points' concentration at Burgers' front
SPEED, RATE = 50.0, 5.0  # β of the convection, ρ of the reaction
KS_WINDOWS = 10
HIDDEN = (40,) * 4
INTERIOR, EDGE = 12_000, 512


def periodic(period: float, length: float = 1.0) -> Callable[[Array], Array]:
    """(t, x) ↦ 2t/length − 1 and the cosine and sine of x."""
    return lambda x: ng.pinn.periodic(x.at[0].set(2 * x[0] / length - 1), {1: period})


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


def over(side: tuple[float, float], length: float = 1.0) -> Box:
    """All (t, x) with t up to `length`."""
    return Box((0.0, side[0]), (length, side[1]))


def start_from(
    function: Callable[[Array], Array], side: tuple[float, float], weight: float = 1.0
) -> Block:
    """u(0, x) − f(x)."""
    residual = lambda u, x: u(x) - function(x[1])
    return Block(residual, over(side).face(0, 0), EDGE, weight, moves=False)


def to_front(points: Array) -> Array:
    """Half of the points stay spread over x, half become Cauchy of width `FRONT` around x = 0."""
    t, x = points.T
    near = FRONT * jnp.tan(np.arctan(1 / FRONT) * (2 * x - 1))
    return jnp.stack([t, jnp.where(x < 0, 2 * x + 1, near)], axis=1)


def with_corner(x: Array) -> Array:
    """Those of `periodic` and the distance to x = ±1, smoothed as u_t = `DIFFUSION` u_xx does it.

    The start of Allen–Cahn has a corner there, which sines and cosines do not have.
    """
    distance = jnp.abs(jnp.cos(jnp.pi * x[1] / 2)) * 2 / jnp.pi
    width = jnp.sqrt(4 * DIFFUSION * x[0] + 1e-30)  # of the corner, at this time
    z = distance / width
    smooth = distance * erf(z) + width * jnp.exp(-(z**2)) / jnp.sqrt(jnp.pi)
    return jnp.append(periodic(2.0)(x), jnp.pi * smooth - 1)


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
            "interior": Block(residual, Moved(over(ACROSS), to_front), INTERIOR, 0.1),
            "initial": start_from(lambda x: -jnp.sin(jnp.pi * x), ACROSS),
            "boundary": Block(lambda u, x: u(x), over(ACROSS).sides(1), EDGE // 2, moves=False),
        },
        reference=tabulated(lambda times, x: references.burgers(times[:, None], x), x),
    )


def inverse_burgers() -> Case:
    """Both coefficients of Burgers' equation from values with noise; its points carry them."""

    def residual(u: Field, x: Array) -> Array:
        speed, viscosity = u.unknown["speed"], u.unknown["viscosity"]
        return u.d(x, 0) + speed * u(x) * u.d(x, 1) - viscosity * u.d(x, 1, 1)

    def observe(points: Array) -> Array:
        values = references.burgers(*np.asarray(points).T)
        noise = NOISE * values.std() * np.random.default_rng(0).normal(size=values.shape)
        return jnp.column_stack([points, values + noise])

    return replace(
        burgers(),
        key="burgers-inverse",
        title="Burgers, ν from noisy data",
        equation=(
            f"u_t + λ u u_x = ν u_xx on [−1, 1], λ and ν sought from {DATA:,} values of u with 1% "
            "noise; the error is that of ν = 0.01/π, relative"
        ),
        blocks={
            "interior": Block(residual, Moved(over(ACROSS), to_front), INTERIOR, 0.1),
            "data": Block(
                lambda u, x: u(x[:2]) - x[2], over(ACROSS), DATA, moves=False, carry=observe
            ),
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
        inputs=with_corner,
        hidden=HIDDEN,
        blocks={
            "interior": Block(residual, over(ACROSS), INTERIOR, 0.1),
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
        inputs=periodic(TURN[1]),
        hidden=HIDDEN,
        blocks={
            "interior": Block(
                lambda u, x: u.d(x, 0) + SPEED * u.d(x, 1), over(TURN), INTERIOR, 0.1
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
        inputs=periodic(2.0),
        hidden=HIDDEN,
        blocks={
            "interior": Block(residual, over(ACROSS), INTERIOR, 0.1),
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
                *(over(TURN), INTERIOR, 0.1),
            ),
            "initial": start_from(lambda x: jnp.exp(-8 * (x / jnp.pi - 1) ** 2), TURN),
            "boundary": Block(ends, over(TURN).face(1, 0), EDGE // 2, moves=False),
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

    def start(points: Array) -> Array:
        return jnp.column_stack([points, -jnp.sin(jnp.pi * points[:, 1])])

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
        inputs=periodic(2.0, length),
        hidden=HIDDEN,
        blocks={
            "interior": Block(residual, over(ACROSS, length), INTERIOR // 2, 0.1),
            "initial": Block(
                *(lambda u, x: u(x[:2]) - x[2], over(ACROSS, length).face(0, 0), EDGE),
                moves=False,
                carry=start,
            ),
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
