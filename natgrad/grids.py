"""Uniform tensor grids in one, two and three dimensions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .core.selection import Sublattice
from .core.settings import Public
from .errors import InputError

Boundary = Literal["neumann", "dirichlet", "periodic"]
BOUNDARIES: tuple[Boundary, ...] = ("neumann", "dirichlet", "periodic")


class Domain(Protocol):
    """What losses need: a `Grid`, or a finite element space on a mesh (`ng.fem.Space`)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The trailing axes of a state."""
        ...

    @property
    def size(self) -> int:
        """Number of unknowns k."""
        ...

    def integrate(self, function: Callable[..., Array], *states: Array) -> Array:
        """∫ function(u, v, …) dx at quadrature points, summed over leading axes."""
        ...


@jax.tree_util.register_static  # a pytree without leaves, where a space has arrays
@dataclass(frozen=True, init=False)
class Grid(Public):
    """A uniform grid on the box [lower, upper] with `shape` unknowns.

    | boundary | unknowns | spacing h | transform |
    |---|---|---|---|
    | `"neumann"` | cell centres a + (i+½)h, i < n | (b−a)/n | DCT-II |
    | `"periodic"` | cell centres, the ends identified | (b−a)/n | FFT |
    | `"dirichlet"` | interior nodes a + (i+1)h, i < n | (b−a)/(n+1) | DST-I |

    `dimension` is the number of axes, `size` that of the unknowns, `spacing` the distance h of
    neighbours along each axis, and `cell_volume` the quadrature weight w = ∏ hᵢ that every unknown
    carries. Integrals are sums times `cell_volume`, so inner products, and with them natural
    gradients, converge as the grid is refined.

    ```python
    grid = ng.Grid(lower=(0.0, 0.0), upper=(1.0, 2.0), shape=(32, 64))
    grid.points.shape, grid.cell_volume     # (32, 64, 2), 1/1024
    ```

    Args:
        lower: Lower end of the box, one number for each dimension.
        upper: Upper end of the box.
        shape: Number of unknowns along each axis, at least 2.
        boundary: Boundary condition, see the table.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    shape: tuple[int, ...]
    boundary: Boundary
    dimension: int = field(compare=False, repr=False)
    size: int = field(compare=False, repr=False)
    spacing: tuple[float, ...] = field(compare=False, repr=False)
    cell_volume: float = field(compare=False, repr=False)

    def __init__(
        self,
        lower: float | Sequence[float],
        upper: float | Sequence[float],
        shape: int | Sequence[int],
        boundary: Boundary = "neumann",
    ):
        lower_, upper_ = _floats("lower", lower), _floats("upper", upper)
        shape_ = _integers("shape", shape)
        if not len(lower_) == len(upper_) == len(shape_):
            raise InputError(
                "lower, upper, shape",
                f"have {len(lower_)}, {len(upper_)} and {len(shape_)} entries",
                "one entry per dimension in each",
            )
        if not 1 <= len(shape_) <= 3:
            raise InputError(
                "shape", f"has {len(shape_)} dimensions", "a grid in 1, 2 or 3 dimensions"
            )
        for a, b in zip(lower_, upper_, strict=True):
            if not (math.isfinite(a) and math.isfinite(b) and a < b):
                raise InputError(
                    "upper", f"{upper_} does not exceed lower {lower_}", "finite lower < upper"
                )
        if min(shape_) < 2:
            raise InputError("shape", f"{shape_} has fewer than 2 points in a direction", "n ≥ 2")
        if boundary not in BOUNDARIES:
            raise InputError(
                "boundary", f"{boundary!r} is unknown", "one of " + ", ".join(map(repr, BOUNDARIES))
            )
        extra = 1 if boundary == "dirichlet" else 0
        sides = zip(lower_, upper_, shape_, strict=True)
        spacing = tuple((b - a) / (n + extra) for a, b, n in sides)
        values = {
            **{"lower": lower_, "upper": upper_, "shape": shape_, "boundary": boundary},
            **{"dimension": len(shape_), "size": math.prod(shape_), "spacing": spacing},
            "cell_volume": math.prod(spacing),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _axes(self) -> tuple[np.ndarray, ...]:
        offset = 1.0 if self.boundary == "dirichlet" else 0.5
        return tuple(
            a + (np.arange(n) + offset) * h
            for a, n, h in zip(self.lower, self.shape, self.spacing, strict=True)
        )

    @property
    def axes(self) -> tuple[Array, ...]:
        """Coordinates along each axis."""
        return tuple(jnp.asarray(axis, float) for axis in self._axes)

    @property
    def points(self) -> Array:
        """Coordinates of every unknown, of shape `(*shape, d)`."""
        # with a dtype, because JAX compiles a program for each shape of an array without one
        return jnp.asarray(np.stack(np.meshgrid(*self._axes, indexing="ij"), axis=-1), float)

    def integral(self, values: Array) -> Array:
        """∫ values dx over the trailing axes: the sum times the cell volume."""
        axes = tuple(range(-self.dimension, 0))
        return self.cell_volume * jnp.sum(values, axis=axes)

    def integrate(self, function: Callable[..., Array], *states: Array) -> Array:
        """∫ function(u, v, …) dx, summed over leading axes; the states may be at fewer points."""
        return self.cell_volume * jnp.sum(function(*states))

    def coarsen(self, selection: Sublattice) -> "Grid":
        """The same box with as many points as the sublattice.

        Exact on a periodic grid; at a zero-flux boundary the lattice is off by less than a coarse
        cell.
        """
        if self.shape != selection.shape or self.boundary == "dirichlet":
            raise InputError(
                "batch",
                f"a {self.boundary} grid of shape {self.shape} has no sublattices that are grids "
                f"for a state of shape {selection.shape}",
                "one function on a neumann or periodic grid, or of='points'",
            )
        return Grid(self.lower, self.upper, tuple(selection.rows.shape), self.boundary)


def _floats(name: str, value: float | Sequence[float]) -> tuple[float, ...]:
    entries = np.atleast_1d(np.asarray(value))
    if entries.ndim != 1 or entries.dtype.kind not in "fiu":
        raise InputError(name, f"{value!r} is not a sequence of real numbers", "(0.0, 0.0)")
    return tuple(float(x) for x in entries)


def _integers(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    entries = np.atleast_1d(np.asarray(value))
    if entries.ndim != 1 or entries.dtype.kind not in "iu":
        raise InputError(name, f"{value!r} is not a sequence of integers", "(64, 64)")
    return tuple(int(x) for x in entries)
