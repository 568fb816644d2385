"""Velocity in m/s and squared slowness in s²/km², the parameter of an inversion."""

from typing import Any

import jax.numpy as jnp
import numpy as np

M_PER_KM = 1000.0


def squared_slowness(velocity: Any) -> Any:
    """m = 1/c² in s²/km², numbers near one: 0.44 for water.

    ```python
    theta0 = ng.waves.squared_slowness(velocity)
    ```
    """
    return (M_PER_KM / _array(velocity)) ** 2


def velocity_of(theta: Any) -> Any:
    """c = m^(−1/2) in m/s."""
    return M_PER_KM / _array(theta) ** 0.5


def _array(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, (np.ndarray, float, int)) else jnp.asarray(x)
