"""Problems without time, and those of many dimensions."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.pinn import Box

from .case import Block, Case, Field, Moved, Points, Reference
from .cavity import lid_velocity, solve_cavity

SQUARE = Box((-1.0, -1.0), (1.0, 1.0))
TESTS = 10_000  # random points where the error is measured in many dimensions
PAIRS_NORM = np.sqrt(65 / 36)  # of Σ x₂ᵢ₋₁x₂ᵢ over ten coordinates in L²
PERIOD = 3  # iterations on the same points; with more, all parameters go into fitting those
RAISE = (100.0, 400.0, 1000.0, 3200.0)  # Reynolds numbers on the way to the last
HIGH = 4  # waves across the square, in the second direction; one in the first


def helmholtz(wave_number: float) -> Case:
    """Δu + k²u = f with the solution sin πx₁ sin 4πx₂ and sines and cosines as inputs."""

    def residual(u: Field, x: Array) -> Array:
        truth = jnp.sin(jnp.pi * x[0]) * jnp.sin(HIGH * jnp.pi * x[1])
        source = (wave_number**2 - np.pi**2 * (1 + HIGH**2)) * truth
        scale = max(1.0, wave_number**2 / 100)
        return (ng.laplacian(u, x) + wave_number**2 * u(x) - source) / scale

    def make() -> Reference:
        x = np.linspace(-1, 1, 101)
        points = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1)
        return Reference(
            points, np.sin(np.pi * points[..., 0]) * np.sin(HIGH * np.pi * points[..., 1])
        )

    return Case(
        key="helmholtz" if wave_number == 1 else f"helmholtz-{wave_number:g}",
        title=f"Helmholtz, k = {wave_number:g}",
        equation="Δu + k²u = f on [−1, 1]², u = sin πx₁ sin 4πx₂, u = 0 on the boundary",
        inputs=lambda x: ng.pinn.periodic(x, {0: 2.0, 1: 2.0}),
        hidden=(30,) * 4,
        blocks={
            "interior": Block(residual, SQUARE, 5600, 0.01),
            "boundary": Block(lambda u, x: u(x), SQUARE.boundary, 800),
        },
        reference=make,
    )


def cube(dimension: int) -> Box:
    """[0, 1]ᵈ."""
    return Box((0.0,) * dimension, (1.0,) * dimension)


def to_walls(points: Array) -> Array:
    """Points of [0, 1]ᵈ moved by x ↦ (1 − cos πx)/2, for the layers at the walls."""
    return (1 - jnp.cos(jnp.pi * points)) / 2


def cavity(reynolds: float) -> Case:
    """u, v and the pressure; the points inside carry the Reynolds number, which is raised."""
    numbers = [number for number in RAISE if number <= reynolds]

    def residual(flow: Field, x: Array) -> Array:
        at, (u, v, _) = x[:2], flow(x[:2])
        u_x, v_x, p_x = flow.d(at, 0)
        u_y, v_y, p_y = flow.d(at, 1)
        u_xx, v_xx, _ = flow.d(at, 0, 0)
        u_yy, v_yy, _ = flow.d(at, 1, 1)
        return jnp.stack(
            [
                u * u_x + v * u_y + p_x - (u_xx + u_yy) / x[2],
                u * v_x + v * v_y + p_y - (v_xx + v_yy) / x[2],
                u_x + v_y,
            ]
        )

    def carry(points: Array) -> Array:
        return jnp.column_stack([points, jnp.full(len(points), reynolds)])

    def advance(leg: int, points: Points, before: Field | None) -> Points:
        return points | {"interior": points["interior"].at[:, 2].set(numbers[leg])}

    def wall(flow: Field, x: Array) -> Array:
        u, v, _ = flow(x)
        return jnp.stack([u - jnp.where(x[1] == 1, lid_velocity(x[0]), 0.0), v])

    def make() -> Reference:
        x = np.linspace(0, 1, 129)
        points = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1)
        return Reference(points, solve_cavity(reynolds, x))

    return Case(
        key=f"cavity-{reynolds:g}",
        title=f"lid-driven cavity, Re = {reynolds:,.0f}",
        equation=(
            "(u·∇)u + ∇p = Δu/Re, ∇·u = 0 on [0, 1]², u = 0 on the walls, "
            "1 − cosh(50(x − ½))/cosh 25 on the lid; the error is that of the velocity"
        ),
        inputs=lambda x: 2 * x[:2] - 1,
        hidden=(40,) * 4,
        outputs=3,
        blocks={
            "interior": Block(residual, Moved(cube(2), to_walls), 4000, carry=carry),
            "boundary": Block(wall, Moved(cube(2).boundary, to_walls), 1000),
        },
        reference=make,
        legs=len(numbers),
        advance=advance,
        share=2.0,
    )


def in_many_dimensions(
    solution: Callable[[Array], Array], dimension: int
) -> Callable[[], Reference]:
    """The solution at random points of the unit cube."""

    def make() -> Reference:
        points = np.random.default_rng(0).random((TESTS, dimension))
        return Reference(points, np.asarray(jax.vmap(solution)(jnp.asarray(points))))

    return make


def poisson(dimension: int) -> Case:
    """In 5 dimensions Σ cos πxᵢ, in 10 the harmonic Σ x₂ᵢ₋₁x₂ᵢ of unit norm; points drawn anew."""
    waves, pairs = dimension == 5, lambda x: jnp.sum(x[::2] * x[1::2]) / PAIRS_NORM
    solution = (lambda x: jnp.sum(jnp.cos(jnp.pi * x))) if waves else pairs

    def residual(u: Field, x: Array) -> Array:
        return ng.laplacian(u, x) + (jnp.pi**2 * solution(x) if waves else 0.0)

    box = cube(dimension)
    return Case(
        key=f"poisson-{dimension}d",
        title=f"Poisson in {dimension} dimensions",
        equation=(
            "−Δu = π² Σ cos πxᵢ on [0, 1]⁵, u = Σ cos πxᵢ on the boundary"
            if waves
            else "Δu = 0 on [0, 1]¹⁰, u = Σ x₂ᵢ₋₁x₂ᵢ / 1.34 on the boundary"
        ),
        inputs=lambda x: x,
        hidden=(64, 64, 48, 48) if waves else (256, 256, 128, 128),
        blocks={
            "interior": Block(residual, box, 3000),
            "boundary": Block(lambda u, x: u(x) - solution(x), box.boundary, 500),
        },
        reference=in_many_dimensions(solution, dimension),
        period=PERIOD,
        share=1.0 if waves else 2.0,
    )


def heat() -> Case:
    """Time and four dimensions of space, x = (t, x₁, …, x₄); points drawn anew."""
    solution = lambda x: jnp.exp(-x[0]) * jnp.sum(jnp.sin(2 * x[1:]))
    box, known = cube(5), lambda u, x: u(x) - solution(x)

    def residual(u: Field, x: Array) -> Array:
        laplacian = ng.laplacian(lambda y: u(x.at[1:].set(y)), x[1:])
        return u.d(x, 0) - laplacian / 4

    return Case(
        key="heat-4d",
        title="heat in 4 + 1 dimensions",
        equation="u_t = Δu/4 on [0, 1]⁴, u = e⁻ᵗ Σ sin 2xᵢ at t = 0 and on the boundary, t ≤ 1",
        inputs=lambda x: x,
        hidden=(256, 256, 128, 128),
        blocks={
            "interior": Block(residual, box, 3000),
            "initial": Block(known, box.face(0, 0), 250),
            "boundary": Block(known, box.sides(1, 2, 3, 4), 250),
        },
        reference=in_many_dimensions(solution, 5),
        period=PERIOD,
    )
