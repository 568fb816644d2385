"""The line search of Moré and Thuente as a function from one look at f to the next length."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..core.operators import pick

DECREASE, CURVATURE = 1e-3, 0.9  # the strong Wolfe conditions
NARROW = 0.1  # an interval of this relative width is not searched any further
MOST_EVALUATIONS = 20


class Place(NamedTuple):
    """A point of the line search, τ, f and ⟨∂_θ f, η⟩ there."""

    length: Array
    value: Array
    slope: Array


class Interval(NamedTuple):
    """What the search for a length τ knows.

    `length` is the next one to look at. `best` and `other` are the ends of an interval that holds
    a minimum once it is `bracketed`; before, lengths from `lower` to `upper` are looked at.
    `width` and `last_width` tell whether the interval shrinks. As long as it is `tilted`, a
    function with a slope of its own is searched, which has its minimum where f decreases enough.
    """

    start: Place
    length: Array
    longest: Array
    best: Place
    other: Place
    bracketed: Array
    tilted: Array
    lower: Array
    upper: Array
    width: Array
    last_width: Array
    first: Array  # the length that was asked first
    evaluations: Array
    finite: Array  # whether f was, at the last length
    over: Array


def begin_search(value: Array, slope: Array, length: Array, longest: Array) -> Interval:
    """Before anything is known but value and slope at τ = 0; it is over if these do not descend."""
    zero = jnp.zeros_like(value)
    start = Place(zero, value, slope.astype(value.dtype))
    length, longest = length.astype(value.dtype), longest.astype(value.dtype)
    return Interval(
        *(start, length, longest, start, start),
        bracketed=jnp.zeros((), bool),
        tilted=jnp.ones((), bool),
        lower=zero,
        upper=5 * length,
        width=longest,
        last_width=2 * longest,
        first=length,
        evaluations=jnp.zeros((), int),
        finite=jnp.ones((), bool),
        over=~((slope < 0) & (slope > -jnp.inf)),
    )


def narrow(interval: Interval, value: Array, slope: Array) -> Interval:
    """One step of the search of Moré and Thuente (1994), from f and its slope at the length asked.

    Where they are not finite, a parabola takes their place that turns up a quarter of the way.
    """
    start, length, best, other = interval.start, interval.length, interval.best, interval.other
    finite = jnp.isfinite(value) & jnp.isfinite(slope)
    here = Place(
        length,
        jnp.where(finite, value, start.value - length * start.slope),
        jnp.where(finite, slope.astype(value.dtype), -3 * start.slope),
    )
    wanted = DECREASE * start.slope
    enough = here.value <= start.value + length * wanted
    flat = jnp.abs(here.slope) <= -CURVATURE * start.slope
    at_the_end = (length == interval.longest) & (here.slope <= wanted)
    found = enough & (flat | at_the_end)

    tilted = interval.tilted & ~(enough & (here.slope >= 0))
    tilt = jnp.where(tilted & ~enough & (here.value <= best.value), wanted, 0.0)
    lean = lambda p, by: Place(p.length, p.value - by * p.length, p.slope - by)
    ends = lean(best, tilt), lean(other, tilt)
    best, other, length, bracketed = _divide(*ends, lean(here, tilt), interval)
    best, other = lean(best, -tilt), lean(other, -tilt)

    width = jnp.abs(other.length - best.length)
    slow = bracketed & (width >= 0.66 * interval.last_width)
    length = jnp.where(slow, best.length + 0.5 * (other.length - best.length), length)
    ahead = length - best.length
    lower = jnp.where(bracketed, jnp.minimum(best.length, other.length), length + 1.1 * ahead)
    upper = jnp.where(bracketed, jnp.maximum(best.length, other.length), length + 4 * ahead)
    length = jnp.clip(length, 0.0, interval.longest)
    inside = (length > lower) & (length < upper) & (upper - lower > NARROW * upper)
    evaluations = interval.evaluations + 1
    return interval._replace(
        length=length,
        best=pick(found, here, best),
        other=other,
        bracketed=bracketed,
        tilted=tilted,
        lower=lower,
        upper=upper,
        width=jnp.where(bracketed, width, interval.width),
        last_width=jnp.where(bracketed, interval.width, interval.last_width),
        evaluations=evaluations,
        finite=finite,
        over=found | (bracketed & ~inside) | (evaluations >= MOST_EVALUATIONS),
    )


def _divide(
    best: Place, other: Place, here: Place, interval: Interval
) -> tuple[Place, Place, Array, Array]:
    """The ends of the interval once `here` is known, the next length, and whether it is bracketed.

    The four cases of Moré and Thuente: f is higher here, the slope has turned, it is flatter, or
    neither. Each has its own safe choice among the minima of interpolants.
    """
    bracketed = interval.bracketed
    back, level = best.length - here.length, jnp.abs(here.slope)
    higher, turned = here.value > best.value, here.slope * jnp.sign(best.slope) < 0
    flatter = level < jnp.abs(best.slope)
    limit = jnp.where(back < 0, interval.upper, interval.lower)

    share, has_minimum = _minimise_cubic(here, best)
    cubic = here.length + share * back
    secant = here.length + here.slope / (here.slope - best.slope) * back
    rise = (here.value - best.value) / back + best.slope
    parabola = best.length - 0.5 * best.slope / rise * back
    nearer = lambda a, b, p: jnp.where(jnp.abs(a - p.length) < jnp.abs(b - p.length), a, b)
    farther = lambda a, b, p: jnp.where(jnp.abs(a - p.length) > jnp.abs(b - p.length), a, b)

    mixed = nearer(cubic, 0.5 * (cubic + parabola), best)
    ahead = jnp.where(has_minimum & (share < 0), cubic, limit)
    most = here.length + 0.66 * (other.length - here.length)
    held = nearer(ahead, secant, here)
    held = jnp.where(back < 0, jnp.minimum(held, most), jnp.maximum(held, most))
    free = jnp.clip(farther(ahead, secant, here), interval.lower, interval.upper)
    share, _ = _minimise_cubic(here, other)
    beyond = here.length + share * (other.length - here.length)

    length = jnp.where(bracketed, beyond, limit)
    length = jnp.where(flatter, jnp.where(bracketed, held, free), length)
    length = jnp.where(turned, farther(cubic, secant, here), length)
    length = jnp.where(higher, mixed, length)
    other = pick(higher, here, pick(turned, best, other))
    return pick(higher, best, here), other, length, bracketed | higher | turned


def _minimise_cubic(a: Place, b: Place) -> tuple[Array, Array]:
    """Where between a (0) and b (1) the cubic with their values and slopes has its minimum.

    Also whether it has one.
    """
    way = b.length - a.length
    middle = 3 * (a.value - b.value) / way + a.slope + b.slope
    size = jnp.maximum(jnp.abs(middle), jnp.maximum(jnp.abs(a.slope), jnp.abs(b.slope)))
    square = (middle / size) ** 2 - (a.slope / size) * (b.slope / size)
    root = jnp.sign(way) * size * jnp.sqrt(jnp.maximum(square, 0.0))
    return (root - a.slope + middle) / (2 * root - a.slope + b.slope), root != 0
