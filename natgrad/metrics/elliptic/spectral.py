"""Fast orthonormal transforms that diagonalise the discrete Laplacian of a grid.

Each boundary condition has a real orthonormal transform T (T Tᵀ = I) with −Δ = Tᵀ diag(Λ) T:

| grid | T | Λ along one axis, h the spacing |
|---|---|---|
| neumann | DCT-II | (2 − 2cos(πj/n))/h², j = 0..n−1 |
| periodic | Hartley (Re − Im of the FFT) | (2 − 2cos(2πj/n))/h² |
| dirichlet | DST-I | (2 − 2cos(π(j+1)/(n+1)))/h² |
| collocated differences, zero outside | DST-I with changed signs | cos²(π(j+1)/(n+1))/h² |

The last row is −Δ := CᵀC for the antisymmetric central difference C of the paper's appendix B.1:
with σ_j = (−1)^⌊j/2⌋, CᵀC = diag(σ) T² diag(σ) for the symmetric tridiagonal T = tridiag(1,0,1),
which the DST-I diagonalises.

Cost: O(k log k) for each transform.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.fft import dct, idct
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ...core.sharding import AXIS
from ...grids import Grid

Scheme = Literal["staggered", "collocated"]
Part = Callable[[Array], Array]


def transform(grid: Grid, scheme: Scheme, values: Array) -> Array:
    """T applied to the trailing axes of `values`."""
    for part in _halves(grid, scheme):
        values = part(values)
    return values


def inverse_transform(grid: Grid, scheme: Scheme, values: Array) -> Array:
    """Tᵀ = T⁻¹ applied to the trailing axes of `values`."""
    for part in _inverse_halves(grid, scheme):
        values = part(values)
    return values


def transform_in_slabs(grid: Grid, scheme: Scheme, values: Array, mesh: Mesh) -> Array:
    """T of a function in slabs along its first axis; the modes are cut along the second axis.

    Each device transforms its slab along the other axes; then the slabs are turned. What cannot be
    cut so, a line for one, is transformed as a whole by all.
    """
    return _in_slabs(grid, values, mesh, _halves(grid, scheme), (0, 1))


def inverse_transform_in_slabs(grid: Grid, scheme: Scheme, modes: Array, mesh: Mesh) -> Array:
    """Tᵀ of modes that are cut along the second axis; the function is cut along the first."""
    return _in_slabs(grid, modes, mesh, _inverse_halves(grid, scheme), (1, 0))


def _in_slabs(
    grid: Grid, values: Array, mesh: Mesh, halves: tuple[Part, Part], cuts: tuple[int, int]
) -> Array:
    # By hand, since XLA's partitioner has no transform in double precision along an axis it cut.
    before, after = halves
    run = lambda v: after(before(v))
    functions, sides = values.ndim - grid.dimension, values.shape
    if functions:  # cut along the axis that counts them
        spec = P(AXIS) if sides[0] % mesh.size == 0 else P()
        specs = spec, spec
    elif grid.dimension > 1 and all(n % mesh.size == 0 for n in sides[:2]):
        turned = partial(jax.lax.all_to_all, axis_name=AXIS, tiled=True)
        run = lambda v: after(turned(before(v), split_axis=cuts[1], concat_axis=cuts[0]))
        specs = tuple(P(*[AXIS if axis == cut else None for axis in (0, 1)]) for cut in cuts)
    else:
        specs = P(), P()
    spread = jax.shard_map(run, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    return spread(values)


def _halves(grid: Grid, scheme: Scheme) -> tuple[Part, Part]:
    """T along all axes but the first, then along that."""
    first, others = -grid.dimension, tuple(range(1 - grid.dimension, 0))
    if scheme == "staggered" and grid.boundary == "periodic":
        fourier = partial(jnp.fft.fftn, norm="ortho")
        before = lambda v: fourier(v, axes=others) if others else v
        return before, lambda v: _hartley(fourier(v, axes=(first,)))
    along = lambda v, axis: _transform_axis(grid, scheme, v, axis)
    return partial(_along, along, others), partial(_along, along, (first,))


def _inverse_halves(grid: Grid, scheme: Scheme) -> tuple[Part, Part]:
    """T⁻¹ along the first axis, then along all others."""
    first, others = -grid.dimension, tuple(range(1 - grid.dimension, 0))
    if scheme == "staggered" and grid.boundary == "periodic":
        fourier = partial(jnp.fft.fftn, norm="ortho")
        after = lambda v: _hartley(fourier(v, axes=others) if others else v)
        return partial(fourier, axes=(first,)), after
    along = lambda v, axis: _inverse_axis(grid, scheme, v, axis)
    return partial(_along, along, (first,)), partial(_along, along, others)


def _along(along: Callable[[Array, int], Array], axes: tuple[int, ...], values: Array) -> Array:
    for axis in axes:
        values = along(values, axis)
    return values


def _transform_axis(grid: Grid, scheme: Scheme, values: Array, axis: int) -> Array:
    if scheme == "collocated":
        return sine_transform(_signs(values, axis), axis)
    if grid.boundary == "neumann":
        return dct(values, axis=axis, norm="ortho")
    return sine_transform(values, axis)


def _inverse_axis(grid: Grid, scheme: Scheme, values: Array, axis: int) -> Array:
    if scheme == "collocated":
        return _signs(sine_transform(values, axis), axis)
    if grid.boundary == "neumann":
        return idct(values, axis=axis, norm="ortho")
    return sine_transform(values, axis)


def _hartley(spectrum: Array) -> Array:
    """cas(2π k·x/n) coefficients from those of Fourier: a transform that is its own inverse."""
    return spectrum.real - spectrum.imag


def sine_transform(values: Array, axis: int) -> Array:
    """Orthonormal DST-I, its own inverse, by an FFT of the odd extension of length 2(n+1)."""
    values = jnp.moveaxis(values, axis, -1)
    n = values.shape[-1]
    zero = jnp.zeros((*values.shape[:-1], 1), values.dtype)
    odd = jnp.concatenate([zero, values, zero, -values[..., ::-1]], axis=-1)
    spectrum = jnp.fft.rfft(odd, axis=-1)[..., 1 : n + 1]
    return jnp.moveaxis(-spectrum.imag / np.sqrt(2.0 * (n + 1)), -1, axis)


def _signs(values: Array, axis: int) -> Array:
    n = values.shape[axis]
    signs = np.where(np.arange(n) // 2 % 2 == 0, 1.0, -1.0)
    shape = [1] * values.ndim
    shape[axis] = n
    return values * signs.reshape(shape).astype(values.dtype)


@lru_cache(maxsize=64)
def laplacian_eigenvalues(grid: Grid, scheme: Scheme) -> np.ndarray:
    """Λ ≥ 0 of −Δ on the grid; modes that the scheme annihilates are exactly zero.

    2 − 2cos is written 4 sin², which keeps the digits of the lowest modes on fine grids.
    """
    total = np.zeros(grid.shape)
    for axis, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        j = np.arange(n)
        if scheme == "collocated":
            values = np.cos(np.pi * (j + 1) / (n + 1)) ** 2
            values[values < 1e-28] = 0.0  # cos(π/2) in floating point, n odd
        elif grid.boundary == "neumann":
            values = 4.0 * np.sin(0.5 * np.pi * j / n) ** 2
        elif grid.boundary == "periodic":
            values = 4.0 * np.sin(np.pi * j / n) ** 2
        else:
            values = 4.0 * np.sin(0.5 * np.pi * (j + 1) / (n + 1)) ** 2
        shape = [1] * grid.dimension
        shape[axis] = n
        total = total + (values / h**2).reshape(shape)
    return total


def sobolev_symbol(grid: Grid, scheme: Scheme, s: int, homogeneous: bool) -> np.ndarray:
    """Eigenvalues of (Dˢ)ᵀDˢ: Σ_{j=0..s} Λʲ, or Σ_{j=1..s} Λʲ when homogeneous.

    For s < 0 the inverse of the symbol for −s, and 0 where that is 0 (pseudo-inverse); s = 0
    gives 1 in both families.
    """
    eigenvalues = laplacian_eigenvalues(grid, scheme)
    if s == 0:
        return np.ones_like(eigenvalues)
    first = 1 if homogeneous else 0
    symbol = np.sum([eigenvalues**j for j in range(first, abs(s) + 1)], axis=0)
    if s > 0:
        return symbol
    return np.divide(1.0, symbol, out=np.zeros_like(symbol), where=symbol > 0)
