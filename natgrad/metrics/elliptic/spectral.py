"""Fast orthonormal transforms that diagonalise the discrete Laplacian of a grid.

Each boundary condition has a real orthonormal transform T (T Tᵀ = I) with −Δ = Tᵀ diag(Λ) T:

| grid | T | Λ along one axis, h the spacing |
|---|---|---|
| neumann | DCT-II | (2 − 2cos(πj/n))/h², j = 0..n−1 |
| periodic | Hartley (Re − Im of the FFT) | (2 − 2cos(2πj/n))/h² |
| dirichlet | DST-I | (2 − 2cos(π(j+1)/(n+1)))/h² |

Cost: O(k log k) for each transform.
"""

from collections.abc import Callable
from functools import lru_cache, partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.fft import dct, idct
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ...core.sharding import AXIS
from ...grids import Grid

Part = Callable[[Array], Array]


def transform(grid: Grid, values: Array, mesh: Mesh | None = None) -> Array:
    """T applied to the trailing axes of `values`.

    Over the devices of a mesh the function is in slabs along its first axis and the modes are cut
    along the second: each device transforms its slab along the other axes, then the slabs are
    turned. What cannot be cut so, a line for one, is transformed as a whole by all.
    """
    return _transform(grid, values, mesh, forward=True)


def inverse_transform(grid: Grid, modes: Array, mesh: Mesh | None = None) -> Array:
    """Tᵀ = T⁻¹ applied to the trailing axes of `modes`; over a mesh the slabs are turned back."""
    return _transform(grid, modes, mesh, forward=False)


def _transform(grid: Grid, values: Array, mesh: Mesh | None, forward: bool) -> Array:
    """T along all axes but the first and then along that, or T⁻¹ in the opposite order."""
    first, others = (-grid.dimension,), tuple(range(1 - grid.dimension, 0))
    axes, cuts = ((others, first), (0, 1)) if forward else ((first, others), (1, 0))
    if grid.boundary == "periodic":
        fourier = partial(jnp.fft.fftn, norm="ortho")
        before, last = (lambda v, a=a: fourier(v, axes=a) if a else v for a in axes)
        after = lambda v: _hartley(last(v))
    else:
        cosine = partial(dct if forward else idct, norm="ortho")
        along = cosine if grid.boundary == "neumann" else sine_transform
        before, after = (partial(_apply_along, along, a) for a in axes)
    if mesh is None:
        return after(before(values))
    return _transform_in_slabs(grid, values, mesh, (before, after), cuts)


def _transform_in_slabs(
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
        turn = partial(jax.lax.all_to_all, axis_name=AXIS, tiled=True)
        run = lambda v: after(turn(before(v), split_axis=cuts[1], concat_axis=cuts[0]))
        specs = tuple(P(*[AXIS if axis == cut else None for axis in (0, 1)]) for cut in cuts)
    else:
        specs = P(), P()
    spread = jax.shard_map(run, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    return spread(values)


def _apply_along(along: Callable[..., Array], axes: tuple[int, ...], values: Array) -> Array:
    for axis in axes:
        values = along(values, axis=axis)
    return values


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


@lru_cache(maxsize=64)
def laplacian_eigenvalues(grid: Grid) -> np.ndarray:
    """Λ ≥ 0 of −Δ on the grid; that of the constant is exactly zero.

    2 − 2cos is written 4 sin², which keeps the digits of the lowest modes on fine grids.
    """
    along = []
    for n, h in zip(grid.shape, grid.spacing, strict=True):
        j = np.arange(n)
        if grid.boundary == "dirichlet":
            j, n = j + 1, n + 1
        angle = (np.pi if grid.boundary == "periodic" else 0.5 * np.pi) * j / n
        along.append(4.0 * np.sin(angle) ** 2 / h**2)
    return reduce(np.add.outer, along)


def sobolev_symbol(eigenvalues: np.ndarray, s: int, homogeneous: bool) -> np.ndarray:
    """Eigenvalues of (Dˢ)ᵀDˢ from those of −Δ: Σ_{j=0..s} Λʲ, or Σ_{j=1..s} Λʲ when homogeneous.

    For s < 0 the inverse of the symbol for −s, and 0 where that is 0 (pseudo-inverse); s = 0
    gives 1 in both families.
    """
    if s == 0:
        return np.ones_like(eigenvalues)
    first = 1 if homogeneous else 0
    symbol = np.sum([eigenvalues**j for j in range(first, abs(s) + 1)], axis=0)
    if s > 0:
        return symbol
    return np.divide(1.0, symbol, out=np.zeros_like(symbol), where=symbol > 0)
