"""The flow in a square cavity under a moving lid, by Chebyshev collocation: a reference.

With the stream function ψ, u = ψ_y and v = −ψ_x, the steady equations of Navier and Stokes are

    Δ²ψ/Re = ψ_y Δψ_x − ψ_x Δψ_y   on [0, 1]²,   ψ = 0 and ∂ψ/∂n given on the boundary.

The lid moves with 1 − cosh(50(x − ½))/cosh 25, which vanishes in the corners (as in the cases of
jaxpi, arXiv:2402.00326); with 1 the singular corners slow the convergence down.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

SHARPNESS = 50.0  # of the lid's velocity near the corners
COARSE = 24  # of the polynomials on which the Reynolds number is raised
RAISE = (100.0, 400.0, 1000.0, 1800.0, 2500.0, 3200.0)
TOLERANCE, MOST = 1e-10, 30  # of Newton's method


def lid_velocity(x: Any, sharpness: float = SHARPNESS) -> Any:
    """u on the lid, for arrays of NumPy or JAX; 1 for an infinite sharpness.

    cosh(s(x − ½))/cosh(s/2) = (e^{−s(1 − x)} + e^{−sx})/(1 + e^{−s}), of which nothing overflows.
    """
    exp = jnp.exp if isinstance(x, jax.Array) else np.exp
    if np.isinf(sharpness):
        return np.ones_like(x)
    return 1 - (exp(-sharpness * (1 - x)) + exp(-sharpness * x)) / (1 + np.exp(-sharpness))


def nodes(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Chebyshev's points of [0, 1], descending, and the matrix of the derivative there.

    Reference: Trefethen, Spectral Methods in MATLAB (2000), program 6.
    """
    k = np.arange(degree + 1)
    x = np.cos(np.pi * k / degree)
    c = np.where((k == 0) | (k == degree), 2.0, 1.0) * (-1.0) ** k
    matrix = np.outer(c, 1 / c) / (x[:, None] - x + np.eye(degree + 1))
    matrix -= np.diag(matrix.sum(axis=1))
    return (x + 1) / 2, 2 * matrix


def interpolation(degree: int, x: np.ndarray) -> np.ndarray:
    """The matrix from values at the nodes to values at x, by the barycentric formula."""
    known, _ = nodes(degree)
    weights = (-1.0) ** np.arange(degree + 1)
    weights[[0, -1]] /= 2
    distance = x[:, None] - known
    hit = np.abs(distance) < 1e-14
    terms = weights / np.where(hit, 1.0, distance)
    return np.where(hit.any(axis=1, keepdims=True), hit, terms / terms.sum(axis=1, keepdims=True))


class Cavity:
    """Newton's method for ψ at the nodes inside; the axes are x and y.

    The equation holds at the nodes but for the outermost ring of the inner ones, whose rows are the
    conditions on the slope at the wall beside them.
    """

    def __init__(self, degree: int, sharpness: float = SHARPNESS):
        self.degree, m = degree, degree - 1
        self.x, whole = nodes(degree)
        self.powers = [np.linalg.matrix_power(whole, k)[1:-1, 1:-1] for k in range(5)]
        self.slopes = whole[[0, -1], 1:-1]  # at x = 1 and x = 0
        self.lid = lid_velocity(self.x, sharpness)[1:-1]
        self.on_x = np.zeros((m, m), bool)
        self.on_x[[0, -1]] = True
        self.on_y = np.zeros((m, m), bool)
        self.on_y[1:-1, [0, -1]] = True

    def terms(self, psi: np.ndarray) -> dict[str, np.ndarray]:
        """The derivatives of ψ that the equation has."""
        d = self.powers
        part = lambda a, b: d[a] @ psi @ d[b].T
        return {
            "x": part(1, 0),
            "y": part(0, 1),
            "laplacian_x": part(3, 0) + part(1, 2),
            "laplacian_y": part(2, 1) + part(0, 3),
            "bilaplacian": part(4, 0) + 2 * part(2, 2) + part(0, 4),
        }

    def residual(self, psi: np.ndarray, viscosity: float) -> np.ndarray:
        at = self.terms(psi)
        found = viscosity * at["bilaplacian"] - at["y"] * at["laplacian_x"]
        found += at["x"] * at["laplacian_y"]
        found[[0, -1]] = self.slopes @ psi
        wanted = np.stack([self.lid, np.zeros_like(self.lid)], axis=1)  # at y = 1 and y = 0
        found[1:-1, [0, -1]] = (psi @ self.slopes.T - wanted)[1:-1]
        return found

    def jacobian(self, psi: np.ndarray, viscosity: float) -> np.ndarray:
        m, d, at = self.degree - 1, self.powers, self.terms(psi)
        whole = np.zeros((m, m, m, m))
        factors = [
            *((viscosity, 4, 0), (2 * viscosity, 2, 2), (viscosity, 0, 4)),
            *((-at["y"], 3, 0), (-at["y"], 1, 2), (-at["laplacian_x"], 0, 1)),
            *((at["x"], 2, 1), (at["x"], 0, 3), (at["laplacian_y"], 1, 0)),
        ]
        for factor, a, b in factors:
            scaled = np.broadcast_to(factor, (m, m))
            whole += (scaled[..., None] * d[a][:, None, :])[..., None] * d[b][None, :, None, :]
        whole[[0, -1]] = self.slopes[:, None, :, None] * np.eye(m)[None, :, None, :]
        whole[1:-1, [0, -1]] = np.eye(m)[1:-1, None, :, None] * self.slopes[None, :, None, :]
        return whole.reshape(m * m, m * m)

    def solve(self, reynolds: float, start: np.ndarray) -> np.ndarray:
        """ψ at the inner nodes, by Newton's method."""
        psi = start
        for _ in range(MOST):
            found = self.residual(psi, 1 / reynolds).ravel()
            step = scipy.linalg.solve(
                self.jacobian(psi, 1 / reynolds), found, overwrite_a=True, check_finite=False
            ).reshape(psi.shape)
            psi = psi - step
            if np.abs(step).max() <= TOLERANCE:
                return psi
        raise RuntimeError(f"Newton's method has not converged at Re = {reynolds:g}")


def solve_cavity(
    reynolds: float, x: np.ndarray, degree: int = 56, sharpness: float = SHARPNESS
) -> np.ndarray:
    """(u, v) at all pairs of x, of shape (n, n, 2): the Reynolds number is raised on few nodes."""
    solver = Cavity(min(COARSE, degree), sharpness)
    psi = np.zeros((solver.degree - 1,) * 2)
    for number in (*(r for r in RAISE if r < reynolds), reynolds):
        psi = solver.solve(number, psi)
    if degree > solver.degree:
        fine = Cavity(degree, sharpness)
        spread = interpolation(solver.degree, fine.x[1:-1])[:, 1:-1]
        solver, psi = fine, fine.solve(reynolds, spread @ psi @ spread.T)
    whole, at = np.pad(psi, 1), interpolation(degree, x)
    _, slope = nodes(degree)
    velocity = np.stack([at @ whole @ (at @ slope).T, -(at @ slope) @ whole @ at.T], axis=-1)
    on_lid, on_wall = np.abs(x - 1) < 1e-14, (x < 1e-14) | (np.abs(x - 1) < 1e-14)
    velocity[on_wall], velocity[:, on_wall] = 0.0, 0.0
    velocity[:, on_lid, 0] = lid_velocity(x, sharpness)[:, None]
    return velocity
