"""Dense matrices of every metric, built from textbook formulas alone: slow, short and obvious."""

from functools import reduce

import numpy as np

from natgrad import Grid


def difference_matrix(n: int, h: float, boundary: str) -> np.ndarray:
    """Staggered gradient along one axis, from unknowns to faces, with ∇ᵀ∇ = −Δ."""
    if boundary == "neumann":
        return (np.eye(n, k=1) - np.eye(n))[: n - 1] / h
    if boundary == "periodic":
        return (np.roll(np.eye(n), 1, axis=1) - np.eye(n)) / h
    return (np.eye(n + 1, n) - np.eye(n + 1, n, k=-1)) / h


def central_matrix(n: int, h: float) -> np.ndarray:
    """The paper's C_n / 2h: zero outside."""
    return (np.eye(n, k=1) - np.eye(n, k=-1)) / (2 * h)


def along(matrix: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    """A one-dimensional matrix acting on one axis of a grid."""
    factors = [matrix if i == axis else np.eye(n) for i, n in enumerate(shape)]
    return reduce(np.kron, factors)


def laplacian(grid: Grid, scheme: str = "staggered") -> np.ndarray:
    """−Δ as the sum over axes of DᵀD."""
    total = np.zeros((grid.size, grid.size))
    for axis, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        D = (
            central_matrix(n, h)
            if scheme == "collocated"
            else difference_matrix(n, h, grid.boundary)
        )
        D = along(D, axis, grid.shape)
        total += D.T @ D
    return total


def sobolev(grid: Grid, s: int, homogeneous: bool, scheme: str = "staggered") -> np.ndarray:
    """w Σ_{j=first..|s|} (−Δ)ʲ, or its pseudo-inverse for s < 0."""
    if s == 0:
        return grid.cell_volume * np.eye(grid.size)
    minus_laplacian = laplacian(grid, scheme)
    powers = range(1 if homogeneous else 0, abs(s) + 1)
    if s > 0:
        total = sum(np.linalg.matrix_power(minus_laplacian, j) for j in powers)
        return grid.cell_volume * total
    # inverting the sum of powers would lose as many digits as its condition number has
    values, vectors = np.linalg.eigh(minus_laplacian)
    values[np.abs(values) < 1e-12 * values.max()] = 0.0
    symbol = sum(values**j for j in powers)
    inverse = np.divide(1.0, symbol, out=np.zeros_like(symbol), where=symbol > 0)
    return grid.cell_volume * (vectors * inverse) @ vectors.T


def pseudo_inverse(matrix: np.ndarray) -> np.ndarray:
    """Moore–Penrose inverse of a symmetric matrix."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    kept = np.abs(values) > 1e-11 * np.abs(values).max()
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T


def weighted_divergence(grid: Grid, a: np.ndarray, scheme: str) -> np.ndarray:
    """B: v ↦ −∇·(√a v), one block of columns per axis."""
    blocks = []
    for axis, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        if scheme == "staggered":
            D = along(difference_matrix(n, h, grid.boundary), axis, grid.shape)
            mean = along(np.abs(difference_matrix(n, h, grid.boundary)) * h / 2, axis, grid.shape)
            weight = np.sqrt(mean @ a.ravel())
            blocks.append(D.T * weight)
            continue
        if scheme == "collocated":
            C = central_matrix(n, h)
        elif scheme == "forward":
            C = (np.eye(n, k=1) - np.eye(n)) / h
        else:
            eighths = 8 * (np.eye(n, k=1) - np.eye(n, k=-1))
            C = (eighths - np.eye(n, k=2) + np.eye(n, k=-2)) / (12 * h)
        blocks.append(-along(C, axis, grid.shape) * np.sqrt(a.ravel()))
    return np.concatenate(blocks, axis=1)


def transport(grid: Grid, rho: np.ndarray, exponent: float, scheme: str) -> np.ndarray:
    """w Pᵀ (B Bᵀ)† P, with the mass projection P = I − a1ᵀ/1ᵀa of the staggered scheme."""
    a = rho ** (2 * exponent)
    B = weighted_divergence(grid, a, scheme)
    inverse = pseudo_inverse(B @ B.T)
    if scheme == "staggered":
        P = np.eye(grid.size) - np.outer(a.ravel(), np.ones(grid.size)) / a.sum()
        inverse = P.T @ inverse @ P
    return grid.cell_volume * inverse
