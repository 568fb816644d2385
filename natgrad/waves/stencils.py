"""Centred differences for the Laplacian on arrays with a halo."""

import jax.numpy as jnp
from jax import Array

from ..errors import InputError

# Second derivatives of order 2q: the centre, then the neighbours at distance 1 … q.
SECOND = {
    4: (-5 / 2, 4 / 3, -1 / 12),
    8: (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560),
}


def halo(order: int) -> int:
    """How many cells the stencil reaches beyond its centre."""
    if order not in SECOND:
        raise InputError("order", f"{order!r} is not implemented", "order=4 or order=8")
    return order // 2


def laplacian(u: Array, spacing: tuple[float, ...], order: int) -> Array:
    """Δu on the cells inside the halo of u, along its last axes, by slices that XLA fuses.

    ```python
    laplacian(jnp.pad(u, 2), (10.0, 10.0), 4)        # as many cells as u
    ```

    Cost: 2d(order) + 1 reads that come from the cache, one write.
    """
    width, weights, d = halo(order), SECOND[order], len(spacing)

    def shifted(axis: int, by: int) -> Array:
        starts = [width + by * (i == axis) for i in range(d)]
        sides = [n - 2 * width for n in u.shape[-d:]]
        return u[(..., *(slice(a, a + n) for a, n in zip(starts, sides, strict=True)))]

    centre = sum(weights[0] / h**2 for h in spacing)
    total = jnp.asarray(centre, u.dtype) * shifted(0, 0)
    for axis, h in enumerate(spacing):
        for distance, weight in enumerate(weights[1:], start=1):
            pair = shifted(axis, distance) + shifted(axis, -distance)
            total = total + jnp.asarray(weight / h**2, u.dtype) * pair
    return total


def largest_eigenvalue(spacing: tuple[float, ...], order: int) -> float:
    """That of −Δ as differenced: the stencil on the oscillation from cell to cell."""
    weights = SECOND[order]
    alternating = sum(2 * w * (-1) ** k for k, w in enumerate(weights[1:], start=1))
    return sum(-(weights[0] + alternating) / h**2 for h in spacing)
