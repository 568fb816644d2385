"""Where collocation points lie: boxes, balls and their boundaries, and how points fill them.

A shape maps the unit cube onto itself so that equal volumes stay equal; a sampler fills the cube.
"""

import abc
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jax.scipy.special import ndtri

from ..core.settings import Public, check_integer, check_number
from ..errors import InputError


class Shape(Public, abc.ABC):
    """A set of points with a measure, and samplers that are uniform on it.

    | sampler | points | from |
    |---|---|---|
    | `uniform(key, n)` | independent; also inside `jax.jit`, for `Resampled` | a key |
    | `sobol(n, seed)` | Sobol's sequence, scrambled; best where n is a power of two | a seed |
    | `latin_hypercube(n, seed)` | one in each of n slices along every axis | a seed |

    A new shape says how many coordinates of the cube it takes, and maps them (`place`). It is
    hashable: points are made by one program for each shape and number.
    """

    @property
    @abc.abstractmethod
    def coordinates(self) -> int:
        """The dimension of the cube."""

    @property
    @abc.abstractmethod
    def measure(self) -> float:
        """Length, area or volume."""

    @abc.abstractmethod
    def place(self, cube: Array) -> Array:
        """The points for rows of [0, 1)^m; equal volumes of the cube have equal measures."""

    def uniform(self, key: Array, n: int) -> Array:
        """n independent points."""
        check_integer(n, "n", 1)
        return _draw(self, key, n)

    def sobol(self, n: int, seed: int = 0) -> Array:
        """The first n points of a scrambled Sobol sequence (SciPy's)."""
        check_integer(n, "n", 1)
        sequence = scipy.stats.qmc.Sobol(self.coordinates, rng=np.random.default_rng(seed))
        return _place(self, sequence.random_base2(math.ceil(math.log2(n)))[:n])

    def latin_hypercube(self, n: int, seed: int = 0) -> Array:
        """n points, one in each of n equal slices along every axis of the cube."""
        check_integer(n, "n", 1)
        design = scipy.stats.qmc.LatinHypercube(self.coordinates, rng=np.random.default_rng(seed))
        return _place(self, design.random(n))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _draw(shape: Shape, key: Array, n: int) -> Array:
    return shape.place(jax.random.uniform(key, (n, shape.coordinates), float))


@functools.partial(jax.jit, static_argnums=0)
def _place(shape: Shape, cube: Array) -> Array:
    return shape.place(cube)


@dataclass(frozen=True, init=False)
class Box(Shape):
    """[lower, upper] in any dimension; an axis with equal ends is flat, as in a face of a box.

    ```python
    box = ng.pinn.Box((0.0, -1.0), (1.0, 1.0))                  # (t, x)
    inside, edge = box.sobol(1024), box.boundary.sobol(256)
    start, walls = box.face(0, 0).sobol(128), box.sides(1).uniform(key, 128)
    ```

    Args:
        lower: Lower end along each axis.
        upper: Upper end along each axis.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __init__(self, lower: Sequence[float], upper: Sequence[float]):
        low, high = (np.atleast_1d(np.asarray(end, dtype=float)) for end in (lower, upper))
        finite = np.all(np.isfinite(low)) and np.all(np.isfinite(high))
        if low.ndim != 1 or low.shape != high.shape or not finite or not np.all(low <= high):
            what = f"{lower} to {upper} is not a valid box"
            raise InputError("lower, upper", what, "as many finite numbers each, lower <= upper")
        object.__setattr__(self, "lower", tuple(low.tolist()))
        object.__setattr__(self, "upper", tuple(high.tolist()))

    @property
    def free(self) -> tuple[int, ...]:
        """The axes that are not flat."""
        ends = zip(self.lower, self.upper, strict=True)
        return tuple(i for i, (a, b) in enumerate(ends) if a < b)

    @property
    def coordinates(self) -> int:
        return max(len(self.free), 1)

    @property
    def measure(self) -> float:
        return math.prod(self.upper[i] - self.lower[i] for i in self.free)

    def place(self, cube: Array) -> Array:
        low, high = jnp.asarray(self.lower, cube.dtype), jnp.asarray(self.upper, cube.dtype)
        points, free = jnp.broadcast_to(low, (len(cube), low.size)), jnp.array(self.free, int)
        spread = (high - low)[free] * cube[:, : len(self.free)]
        return points.at[:, free].add(spread)

    def grid(self, *shape: int) -> Array:
        """The centres of a grid of equal cells, in rows; one number for each axis that is not flat.

        A mean over them is the midpoint rule.
        """
        if len(shape) != len(self.free):
            what = f"{len(shape)} numbers for {len(self.free)} axes"
            raise InputError("shape", what, "one for each axis that is not flat")
        axes = [(np.arange(check_integer(n, "shape", 1)) + 0.5) / n for n in shape] or [[0.5]]
        cube = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        return _place(self, cube.reshape(-1, self.coordinates))

    def face(self, axis: int, end: int) -> "Box":
        """The lower (`end=0`) or upper (`end=1`) face across an axis."""
        if axis not in self.free:
            raise InputError("axis", f"{axis!r} has no faces", f"one of {self.free}")
        if end not in (0, 1):
            raise InputError("end", f"{end!r} is neither end", "0 for the lower, 1 for the upper")
        ends = [list(self.lower), list(self.upper)]
        for other in ends:
            other[axis] = (self.lower, self.upper)[end][axis]
        return Box(*ends)

    def sides(self, *axes: int) -> "Union":
        """Both faces across each of the axes, together."""
        return Union(tuple(self.face(axis, end) for axis in axes for end in (0, 1)))

    @property
    def boundary(self) -> "Union":
        """All faces together."""
        return self.sides(*self.free)


@dataclass(frozen=True, init=False)
class Union(Shape):
    """Shapes that do not overlap, each with its share of the points, by its measure.

    Of n points a shape of share s gets ⌊ns⌋ or ⌈ns⌉, on average ns: a mean over the points is an
    unbiased mean over the union.

    Args:
        shapes: The parts, in a list or a tuple, or the first of them.
        *more: The others, after the first.
    """

    shapes: tuple[Shape, ...]

    def __init__(self, shapes: Sequence[Shape] | Shape, *more: Shape):
        parts = shapes if isinstance(shapes, Sequence) else (shapes,)
        parts = (*parts, *more)
        if not parts or not all(isinstance(shape, Shape) for shape in parts):
            raise InputError("shapes", "are not all shapes, or none", "Union((box, ball))")
        object.__setattr__(self, "shapes", parts)

    @property
    def coordinates(self) -> int:
        return 1 + max(shape.coordinates for shape in self.shapes)

    @property
    def measure(self) -> float:
        return sum(shape.measure for shape in self.shapes)

    @property
    def boundary(self) -> Shape:
        """Not known: parts that touch have none between them."""
        advice = "Union((box.face(0, 0), ball.boundary)) of the pieces that are outside"
        raise InputError("boundary", "a union has no sampler for it", advice)

    def place(self, cube: Array) -> Array:
        shares = np.cumsum([shape.measure for shape in self.shapes[:-1]]) / self.measure
        turn = (jnp.arange(len(cube)) + cube[0, 0]) / len(cube)
        which = jnp.searchsorted(jnp.asarray(shares, cube.dtype), turn, side="right")
        inner = lambda shape: shape.place(cube[:, 1 : 1 + shape.coordinates])
        placed = jnp.stack([inner(shape) for shape in self.shapes])
        return jnp.take_along_axis(placed, which[None, :, None], axis=0)[0]


@dataclass(frozen=True, init=False)
class Ball(Shape):
    """|x − centre| ≤ radius, in any dimension: a disc in two.

    ```python
    disc = ng.pinn.Ball((0.0, 0.0), 1.0)
    inside, circle = disc.sobol(1024), disc.boundary.sobol(128)
    ```

    Args:
        centre: Its centre.
        radius: Its radius.
    """

    centre: tuple[float, ...]
    radius: float

    def __init__(self, centre: Sequence[float], radius: float):
        object.__setattr__(self, "centre", tuple(map(float, centre)))
        object.__setattr__(self, "radius", float(check_number(radius, "radius", positive=True)))

    @property
    def coordinates(self) -> int:
        return 1 + self.boundary.coordinates

    @property
    def measure(self) -> float:
        d = len(self.centre)
        return math.pi ** (d / 2) / math.gamma(d / 2 + 1) * self.radius**d

    def place(self, cube: Array) -> Array:
        centre, shares = jnp.asarray(self.centre, cube.dtype), cube[:, :1] ** (1 / len(self.centre))
        return centre + shares * (self.boundary.place(cube[:, 1:]) - centre)

    @property
    def boundary(self) -> "Sphere":
        """The sphere around it."""
        return Sphere(self)


@dataclass(frozen=True)
class Sphere(Shape):
    """The boundary of a ball: a circle in two dimensions.

    Args:
        ball: The ball that it bounds.
    """

    ball: Ball

    @property
    def coordinates(self) -> int:
        d = len(self.ball.centre)
        return 1 if d == 2 else d

    @property
    def measure(self) -> float:
        return self.ball.measure * len(self.ball.centre) / self.ball.radius

    def place(self, cube: Array) -> Array:
        centre = jnp.asarray(self.ball.centre, cube.dtype)
        if centre.size == 2:
            angles = 2 * jnp.pi * cube[:, 0]
            return centre + self.ball.radius * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        least = jnp.finfo(cube.dtype).eps
        normal = ndtri(jnp.clip(cube, least, 1 - least))
        return centre + self.ball.radius * normal / jnp.linalg.norm(normal, axis=1, keepdims=True)
