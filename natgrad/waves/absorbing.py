"""The absorbing layer: damping that grows towards the edge of the padded grid."""

import numpy as np

# Chosen by benchmarks/bench_absorbing.py: the smallest reflection from 20 cells.
POWER = 2.0
STRENGTH = 6.0


def damping_profile(
    shape: tuple[int, ...], cells: int, spacing: tuple[float, ...], velocity: float
) -> np.ndarray:
    """σ on the padded grid, in 1/s: zero in the model, σ_max (s/S)^POWER in the layer.

    σ_max = STRENGTH · (POWER + 1) · c/(2S) for a layer of thickness S: a wave of velocity c that
    crosses it and comes back has lost a factor exp(−STRENGTH) in amplitude. Layers of several
    axes add up.
    """
    total = np.zeros(tuple(n + 2 * cells for n in shape))
    if cells == 0:
        return total
    for axis, (n, h) in enumerate(zip(shape, spacing, strict=True)):
        index = np.arange(n + 2 * cells)
        depth = np.maximum(cells - index, index - (n + cells - 1)).clip(0) / cells
        largest = STRENGTH * (POWER + 1) * velocity / (2 * cells * h)
        line = [1] * len(shape)
        line[axis] = -1
        total = total + (largest * depth**POWER).reshape(line)
    return total
