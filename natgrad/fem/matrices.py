"""Sparse matrices of a finite element space on the host, and solves with them.

M = ∫ φᵢφⱼ dx, K_a = ∫ a ∇φᵢ·∇φⱼ dx, K₁ + M. A system is solved by a sparse factorisation (that of
`metrics/elliptic/sparse_direct.py`), or by conjugate gradients preconditioned with smoothed
aggregation (pyamg); with an a, conjugate gradients refine the factorisation too. M is left to
conjugate gradients with its diagonal, in some tens of iterations on any mesh. What was set up last
is remembered by the value of a.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy

from ..errors import import_optional
from ..metrics.elliptic.sparse_direct import (
    REMEMBERED_FACTORS,
    Solve,
    available_backend,
    grounded_inverse,
    symmetric_inverse,
)

System = Literal["mass", "stiffness", "both"]  # M, K_a, K₁ + M
Solver = Literal["sparse", "multigrid", "diagonal"]
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # φ, iterations, error, converged
Inverse = Callable[[np.ndarray, float, int], Rows]  # of right-hand sides as rows
ROUNDING = 4 * np.finfo(float).eps


class Elements(NamedTuple):
    """E cells with n nodes each, and two quadrature rules: for u v, and for a ∇u·∇v.

    A node that is held at zero has the number of unknowns as its index.
    """

    points: np.ndarray  # (k, d)
    cells: np.ndarray  # (E, n), indices of nodes
    values: np.ndarray  # (Q, n), the basis functions at the points of the first rule
    weights: np.ndarray  # (E, Q)
    slopes: np.ndarray  # (E, R, d, n), their gradients at the points of the second rule
    slope_values: np.ndarray  # (R, n), and their values there
    slope_weights: np.ndarray  # (E, R)


class Matrices:
    """The matrices of one mesh; two are equal only if they are one object.

    `free`: no node is held, so that constants are in the space and K_a is singular.
    """

    def __init__(self, elements: Elements, free: bool):
        self.elements, self.free = elements, free
        self.size = len(elements.points)
        n = elements.cells.shape[1]
        row, column = np.repeat(elements.cells, n, 1), np.tile(elements.cells, n)
        inside = ((row < self.size) & (column < self.size)).ravel()
        pair = row.ravel()[inside].astype(np.int64) * self.size + column.ravel()[inside]
        pairs, self._slots = np.unique(pair, return_inverse=True)
        self._inside, self._columns = inside, pairs % self.size
        self._starts = np.searchsorted(pairs, self.size * np.arange(self.size + 1, dtype=np.int64))
        self.invert = functools.lru_cache(maxsize=REMEMBERED_FACTORS)(self._invert)

    def __repr__(self) -> str:
        return f"Matrices({self.size} nodes, {len(self.elements.cells)} cells)"

    @functools.cached_property
    def parts(self) -> int:
        """Into how many connected parts the mesh falls."""
        return scipy.sparse.csgraph.connected_components(self.mass, directed=False)[0]

    @functools.cached_property
    def mass(self) -> "scipy.sparse.csr_matrix":
        """M."""
        v, w = self.elements.values, self.elements.weights
        return self._assemble(np.einsum("qi,qj,eq->eij", v, v, w, optimize=True))

    def stiffness(self, a: np.ndarray | None) -> "scipy.sparse.csr_matrix":
        """K_a, for a at the points where gradients are taken, (E, R)."""
        w = self.elements.slope_weights if a is None else a * self.elements.slope_weights
        scaled = self.elements.slopes * w[:, :, None, None]
        E, n = self.elements.cells.shape
        left, right = (g.reshape(E, -1, n) for g in (self.elements.slopes, scaled))
        return self._assemble(left.swapaxes(1, 2) @ right)

    def slope_factor(self, a: np.ndarray) -> "scipy.sparse.csr_matrix":
        """D_a, with D_aᵀD_a = K_a, of a space without held nodes."""
        E, R, d, n = self.elements.slopes.shape
        roots = np.sqrt(a * self.elements.slope_weights)[:, :, None, None]
        columns = np.broadcast_to(self.elements.cells[:, None, None], (E, R, d, n))
        starts = n * np.arange(E * R * d + 1)
        parts = (roots * self.elements.slopes).ravel(), columns.ravel(), starts
        return scipy.sparse.csr_matrix(parts, (E * R * d, self.size))

    def _assemble(self, local: np.ndarray) -> "scipy.sparse.csr_matrix":
        data = np.bincount(self._slots, local.ravel()[self._inside], len(self._columns))
        shape = (self.size, self.size)
        return scipy.sparse.csr_matrix((data, self._columns, self._starts), shape)

    def solve(
        self, system: System, solver: Solver, limits: tuple[float, int], columns: Any, a: Any = None
    ) -> Rows:
        """φ for right-hand sides (*batch, m, k) and a of (*batch, E, R) or None.

        The batch axes are those of `vmap`, of length one where an argument was not batched. φ is
        NaN where a matrix could not be factorised or an iteration ended short of the tolerance;
        `limits` are that and the number of iterations.
        """
        columns, a = np.asarray(columns), None if a is None else np.asarray(a)
        batches = () if a is None else a.shape[:-2]
        lead = np.broadcast_shapes(batches, columns.shape[: len(columns.shape) - 2])
        columns = np.broadcast_to(columns, (*lead, *columns.shape[-2:]))
        out = (
            np.empty(columns.shape, columns.dtype),
            np.empty(columns.shape[:-1], np.int32),
            np.empty(columns.shape[:-1], columns.dtype),
            np.empty(columns.shape[:-1], bool),
        )
        for index in np.ndindex(*batches):
            part = tuple(slice(None) if n == 1 else i for i, n in zip(index, batches, strict=True))
            data = None if a is None else np.asarray(a[index], np.float64).tobytes()
            inverse = self.invert(system, solver, data)
            b = columns[part].reshape(-1, self.size).astype(np.float64)
            rows = inverse(b, *limits)
            for whole, found in zip(out, rows, strict=True):
                whole[part] = found.reshape(whole[part].shape)
        return out

    def _invert(self, system: System, solver: Solver, data: bytes | None) -> Inverse:
        a = None if data is None else np.frombuffer(data).reshape(self.elements.slope_weights.shape)
        if a is not None and not np.all(np.isfinite(a) & (a > 0)):
            return unsolvable
        matrix = self.mass if system == "mass" else self.stiffness(a)
        if system == "both":
            matrix = matrix + self.mass
        singular = system == "stiffness" and self.free  # K annihilates the constants
        # Products by D keep their digits where entries differ by orders of magnitude: an error in
        # Dφ moves mass, one in the matrix itself makes mass.
        factor = None if a is None else self.slope_factor(a)
        if solver != "sparse":
            return Iterative(matrix, solver, singular, factor)
        try:
            make = grounded_inverse if singular else symmetric_inverse
            solve = make(matrix, available_backend())
        except RuntimeError:
            return unsolvable
        if factor is None:
            return functools.partial(_direct, solve)
        return Iterative(matrix, solve, singular, factor)


def unsolvable(rows: np.ndarray, tolerance: float, max_iterations: int) -> Rows:
    """NaN for every right-hand side."""
    return _direct(functools.partial(np.full_like, fill_value=np.nan), rows, tolerance, 0)


def _direct(
    solve: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    tolerance: float,
    max_iterations: int,
) -> Rows:
    phi = solve(rows)
    zero = np.zeros(len(rows))
    return phi, zero.astype(int), zero, np.all(np.isfinite(phi), axis=1)


class Iterative:
    """Conjugate gradients on the matrix scaled to a unit diagonal, one right-hand side at a time.

    The scaling takes the contrast of a density out of the entries. A singular matrix annihilates
    one vector, the scaled constant: right-hand sides and solutions are kept orthogonal to it, so
    that the solve is symmetric, and φ has no mean in proportion to the diagonal.
    """

    def __init__(self, matrix: Any, solver: Solver | Solve, singular: bool, factor: Any = None):
        self.root = np.sqrt(matrix.diagonal())
        inverse = scipy.sparse.diags(1 / self.root)
        scaled = (inverse @ matrix @ inverse).tocsr()
        self.product: Callable[[np.ndarray], np.ndarray] = lambda psi: scaled @ psi
        if factor is not None:
            D = (factor @ inverse).tocsr()
            transposed = D.T.tocsr()
            self.product = lambda psi: transposed @ (D @ psi)
        self.null = self.root / np.linalg.norm(self.root) if singular else None
        self.precondition: Callable[[np.ndarray], np.ndarray] = lambda residual: residual
        if solver == "multigrid":
            hierarchy = import_optional("pyamg", "elliptic").smoothed_aggregation_solver(
                scaled, B=self.root[:, None], max_coarse=200
            )
            self.precondition = hierarchy.aspreconditioner().matvec
        elif callable(solver):
            self.precondition = lambda residual: self.root * solver((self.root * residual)[None])[0]

    def __call__(self, rows: np.ndarray, tolerance: float, max_iterations: int) -> Rows:
        found = [self._solve(row / self.root, tolerance, max_iterations) for row in rows]
        psi, iterations, error, converged = (np.array(part) for part in zip(*found, strict=True))
        phi = np.where(converged[:, None], psi / self.root, np.nan)
        return phi, iterations, error, converged

    def _solve(
        self, b: np.ndarray, tolerance: float, most: int
    ) -> tuple[np.ndarray, int, float, bool]:
        """The solution, the iterations, the error, and whether that is small enough.

        The error is the energy norm of that of φ as a share of that of φ: with B ≈ A⁻¹ about
        ⟨r, Br⟩ over ⟨b, Bb⟩. The residual is made anew every time, because the one that is
        updated becomes small whatever b − Aφ is. Rounding of φ alone leaves eps ‖φ‖.
        """
        if not np.all(np.isfinite(b)):
            return np.full_like(b, np.nan), 0, np.nan, False
        b = self._compatible(b)
        phi, search, first, energy = np.zeros_like(b), np.zeros_like(b), 0.0, 0.0
        for iteration in range(most + 1):
            residual = self._compatible(b - self.product(phi)) if iteration else b
            z = self._compatible(self.precondition(residual))
            last, energy = energy, abs(float(residual @ z))
            first = first if iteration else energy
            enough = max(tolerance * np.sqrt(first), ROUNDING * np.linalg.norm(phi))
            if not np.sqrt(energy) > enough or iteration == most:  # NaN where a pivot was lost
                break
            search = z + (energy / last if iteration else 0.0) * search
            phi = phi + energy / float(search @ self.product(search)) * search
        error = np.sqrt(energy / first) if first else 0.0
        return phi, iteration, float(error), bool(np.sqrt(energy) <= enough)

    def _compatible(self, vector: np.ndarray) -> np.ndarray:
        return vector if self.null is None else vector - (self.null @ vector) * self.null
