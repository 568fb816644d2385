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

from functools import lru_cache
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.fft import dct, idct

from ..grids import Grid

Scheme = Literal["staggered", "collocated"]


def transform(grid: Grid, scheme: Scheme, values: Array) -> Array:
    """T applied to the trailing axes of `values`."""
    axes = range(-grid.dimension, 0)
    if scheme == "collocated":
        for axis in axes:
            values = sine_transform(_signs(values, axis), axis)
        return values
    if grid.boundary == "periodic":
        return hartley_transform(values, tuple(axes))
    for axis in axes:
        values = (
            dct(values, axis=axis, norm="ortho")
            if grid.boundary == "neumann"
            else sine_transform(values, axis)
        )
    return values


def inverse_transform(grid: Grid, scheme: Scheme, values: Array) -> Array:
    """Tᵀ = T⁻¹ applied to the trailing axes of `values`."""
    axes = range(-grid.dimension, 0)
    if scheme == "collocated":
        for axis in axes:
            values = _signs(sine_transform(values, axis), axis)
        return values
    if grid.boundary != "neumann":
        return transform(grid, scheme, values)  # the other two are involutions
    for axis in axes:
        values = idct(values, axis=axis, norm="ortho")
    return values


def hartley_transform(values: Array, axes: tuple[int, ...]) -> Array:
    """cas(2π k·x/n) coefficients: real, orthonormal, its own inverse."""
    spectrum = jnp.fft.fftn(values, axes=axes, norm="ortho")
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
