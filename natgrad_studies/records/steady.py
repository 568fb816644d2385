"""Problems without time, and those of many dimensions."""

import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng

from .case import Block, Case, Field, Reference, in_box, on_faces

SQUARE = ((-1.0, 1.0),) * 2
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
        inputs=lambda x: jnp.stack([jnp.sin(jnp.pi * x), jnp.cos(jnp.pi * x)], axis=1).ravel(),
        hidden=(30,) * 4,
        blocks={
            "interior": Block(residual, in_box(*SQUARE), 2, 5600, 0.01),
            "boundary": Block(lambda u, x: u(x), on_faces(*SQUARE), 2, 800),
        },
        reference=make,
    )
