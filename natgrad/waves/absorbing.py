"""The absorbing layer: damping that grows towards the edge of the padded grid, without reflection.

Damping alone reflects waves where it grows. In the layer the equation is

    m (∂t + σ)² u − Δu − √m σ′ u = s,    σ′ the slope of σ outwards.

For a wave that leaves at a right angle it is (∂t + σ − c∂x)(∂t + σ + c∂x)u = 0, since m does not
change across the layer: the second factor is the leaving wave, damped and never reflected. At an
angle ϑ the share 1 − cos ϑ remains of what the damping would reflect without the term.

Waves cannot grow: −∂²x + (σ/c)² − (σ/c)′ = (−∂x + σ/c)(∂x + σ/c) is not negative. On the grid the
same holds with σ′ as the difference to the cell before, for layers of any thickness.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

# Chosen by benchmarks/bench_absorbing.py: among 20 cells the smallest reflection on average, over
# velocities of 0.5 to 1.5 times the nominal one and angles of 0 to 60 degrees.
POWER = 3.0
STRENGTH = 6.0


class Layer(NamedTuple):
    """σ in 1/s and its slope outwards in 1/(m s), on the padded grid."""

    damping: Array
    slope: Array

    @classmethod
    def around(
        cls, shape: tuple[int, ...], cells: int, spacing: tuple[float, ...], velocity: float
    ) -> "Layer":
        """Zero in the model, σ_max (s/S)^POWER in a layer of thickness S; those of axes add up.

        σ_max = STRENGTH · (POWER + 1) · c/(2S): a wave of velocity c that crosses the layer and
        comes back has lost a factor exp(−STRENGTH) in amplitude.
        """
        damping = slope = np.zeros(tuple(n + 2 * cells for n in shape))
        for axis, (n, h) in enumerate(zip(shape, spacing, strict=True)):
            if cells == 0:
                break
            index = np.arange(n + 2 * cells)
            depth = np.maximum(cells - index, index - (n + cells - 1)).clip(0)
            largest = STRENGTH * (POWER + 1) * velocity / (2 * cells * h)
            profile = lambda depth, largest=largest: largest * (depth / cells) ** POWER
            line = [1] * len(shape)
            line[axis] = -1
            damping = damping + profile(depth).reshape(line)
            slope = slope + ((profile(depth) - profile((depth - 1).clip(0))) / h).reshape(line)
        return cls(jnp.asarray(damping), jnp.asarray(slope))

    def astype(self, dtype: np.dtype) -> "Layer":
        return Layer(self.damping.astype(dtype), self.slope.astype(dtype))
