"""What goes around a network, written for one point: embeddings of x, and factors that vanish.

They are plain functions of a point of shape `(d,)`, to be composed with any network:

```python
u = lambda net, x: net(ng.pinn.periodic(x, {1: 2.0}))
```
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array

from ..errors import InputError
from .collocation import check_point

Ends = Sequence[float | None]


def periodic(x: Array, periods: Mapping[int, float], harmonics: int | Sequence[int] = 1) -> Array:
    """cos and sin of 2πk xᵢ/Pᵢ in place of xᵢ, for the axes i of period Pᵢ; the others as they are.

    A network of these, and with it every derivative, is periodic exactly. `harmonics` are the k,
    or their number n for k = 1, …, n.

    ```python
    ng.pinn.periodic(x, {1: 2.0})                 # (t, cos πx, sin πx) at x = (t, x)
    ng.pinn.periodic(x, {0: 1.0, 1: 1.0}, 3)      # 12 numbers
    ```

    Reference: Dong and Ni, J. Comput. Phys. 435 (2021).

    Args:
        x: One point.
        periods: The period of each periodic axis.
        harmonics: The multiples k, or their number.
    """
    check_point(x)
    if odd := [i for i in periods if i not in range(x.size)]:
        what = f"{odd[0]!r} is no axis of a point of shape {x.shape}"
        raise InputError("periods", what, f"{{axis: period}}, axes from 0 to {x.size - 1}")
    if odd := [p for p in periods.values() if not p > 0]:
        raise InputError("periods", f"{odd[0]!r} is no period", "{axis: period}")
    orders = range(1, harmonics + 1) if isinstance(harmonics, int) else harmonics
    if not orders or any(k < 1 for k in orders):
        raise InputError("harmonics", f"{harmonics!r} are none", "3, or (1, 2, 4)")
    k = 2 * jnp.pi * jnp.asarray(list(orders), x.dtype)
    waves = lambda angles: jnp.concatenate([jnp.cos(angles), jnp.sin(angles)])
    parts = [waves(k * x[i] / periods[i]) if i in periods else x[i : i + 1] for i in range(x.size)]
    return jnp.concatenate(parts)


def fourier_features(x: Array, frequencies: Array) -> Array:
    """(cos 2πBx, sin 2πBx) for the rows b of B, waves of frequency |b|: 2m numbers for m rows.

    A network of these learns the high frequencies as soon as the low ones.

    ```python
    B = 5.0 * jax.random.normal(jax.random.key(0), (32, 2))
    u = lambda net, x: net(ng.pinn.fourier_features(x, B))
    ```

    Reference: Tancik and others, NeurIPS 2020.

    Args:
        x: One point.
        frequencies: B, of shape `(m, d)`.
    """
    check_point(x)
    if jnp.ndim(frequencies) != 2 or jnp.shape(frequencies)[1] != x.size:
        what = f"have shape {jnp.shape(frequencies)} for a point of shape {x.shape}"
        raise InputError("frequencies", what, f"(m, {x.size})")
    angles = 2 * jnp.pi * jnp.asarray(frequencies, x.dtype) @ x
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)])


def vanishing(x: Array, lower: Ends, upper: Ends) -> Array:
    """φ(x), zero on the given faces of a box and positive inside: for conditions built into u.

    φ = ∏ φᵢ(xᵢ) with φᵢ = 4 (xᵢ − aᵢ)(bᵢ − xᵢ)/(bᵢ − aᵢ)², which is 1 in the middle, xᵢ − aᵢ or
    bᵢ − xᵢ where only one face is given, and 1 where both are None.

    ```python
    zero_on = lambda x: ng.pinn.vanishing(x, (0.0, -1.0), (None, 1.0))    # t = 0 and x = ±1
    u = lambda net, x: -jnp.sin(jnp.pi * x[1]) + zero_on(x) * net(x)
    ```

    Reference: Lagaris, Likas and Fotiadis, IEEE Trans. Neural Networks 9 (1998).

    Args:
        x: One point.
        lower: Lower face of each axis, None for no condition there.
        upper: Upper face of each axis, None for no condition there.
    """
    check_point(x)
    if not len(lower) == len(upper) == x.size:
        what = f"{len(lower)} and {len(upper)} ends for a point of shape {x.shape}"
        raise InputError("lower, upper", what, "one number, or None, for each axis")
    product = jnp.ones((), x.dtype)
    for xi, a, b in zip(x, lower, upper, strict=True):
        if a is not None and b is not None:
            if not a < b:
                raise InputError("lower, upper", f"{a} is not below {b}", "lower < upper")
            product = product * 4 * (xi - a) * (b - xi) / (b - a) ** 2
        elif a is not None or b is not None:
            product = product * (b - xi if a is None else xi - a)
    return product
