"""How far 60 products of either kind get, by spectrum: low-rank solvers, Nyström on G, and CG.

Run as `python benchmarks/bench_low_rank.py`. Y is 600 × 400 with singular values σ₁ = 1, σ₂, … as
named; the gradient is Yᵀb for a random b. Every method spends 60 products with Y and 60 with Yᵀ
(random signs need the second kind only). The table has the error of (G + λI) η = −∂_θ f,
‖η − η*‖/‖η*‖, for two λ: the median of three seeds.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from tables import show_table

import natgrad as ng
from natgrad.core.randomised import nystrom

K, P, PAIRS = 600, 400, 60
SEEDS = (0, 1, 2)
DAMPINGS = (1e-4, 1e-8)
j = np.arange(P)
SPECTRA = {
    "0.6ʲ": 0.6**j,
    "0.9ʲ": 0.9**j,
    "1/j²": 1 / (1 + j) ** 2.0,
    "1/j": 1 / (1 + j),
    "1/√j": 1 / np.sqrt(1 + j),
    "20 of size 1, then 10⁻³": np.where(j < 20, 1.0, 1e-3),
}
SOLVERS = {
    'Hutchinson(60, "signs")': lambda seed: ng.Hutchinson(PAIRS, seed=seed),
    'Hutchinson(60, "column_space")': lambda seed: ng.Hutchinson(PAIRS, "column_space", seed=seed),
    "RandomizedSVD(48, power_iterations=0)": lambda seed: ng.RandomizedSVD(48, 0, seed=seed),
    "RandomizedSVD(20)": lambda seed: ng.RandomizedSVD(20, seed=seed),
    "RandomizedSVD(6, power_iterations=3)": lambda seed: ng.RandomizedSVD(6, 3, seed=seed),
    "CG, 60 iterations": lambda seed: ng.CG(0.0, PAIRS) if seed == 0 else None,
}


class Linear(eqx.Module):
    """θ ↦ Yθ, with Y as a leaf: every spectrum runs the same programs."""

    Y: jax.Array

    def __call__(self, theta: jax.Array) -> jax.Array:
        return self.Y @ theta


def operator(values: np.ndarray) -> np.ndarray:
    """A K × P matrix with these singular values."""
    rng = np.random.default_rng(0)
    U, _ = np.linalg.qr(rng.normal(size=(K, P)))
    V, _ = np.linalg.qr(rng.normal(size=(P, P)))
    return U * values @ V.T


def last_block(Y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Halko's randomised SVD as printed: one power iteration, of which the last block is kept."""
    sketch = np.random.default_rng(seed).normal(size=(P, PAIRS // 2))
    Q = np.linalg.qr(Y @ sketch)[0]
    Q = np.linalg.qr(Y @ np.linalg.qr(Y.T @ Q)[0])[0]
    _, values, Vt = np.linalg.svd(Q.T @ Y, full_matrices=False)
    return Vt.T, values**2


def nystrom_pairs(Y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    product = lambda v: Y.T @ (Y @ np.asarray(v))
    U, values = nystrom(product, P, PAIRS, jax.random.key(seed), jnp.float64)
    return np.asarray(U), np.asarray(values)


def inverted(V: np.ndarray, values: np.ndarray, gradient: np.ndarray, damping: float) -> np.ndarray:
    """With the smallest eigenvalue found in place of those that were not."""
    h = V.T @ gradient
    return -V @ (h / (values + damping)) - (gradient - V @ h) / (values[-1] + damping)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    metric, theta = ng.MatrixMetric(np.eye(K)), jnp.zeros(P)
    target = np.random.default_rng(1).normal(size=K)
    pairs = {
        "Nyström on G, rank 60": nystrom_pairs,
        "power iteration, its last block of 30": last_block,
    }
    table = {name: [] for name in [*SOLVERS, *pairs]}
    for values in SPECTRA.values():
        Y = operator(values)
        gradient = -Y.T @ target
        U, _, Vt = np.linalg.svd(Y, full_matrices=False)
        problem = ng.Problem(Linear(jnp.asarray(Y)), ng.LeastSquares(jnp.asarray(target)))
        errors: dict[str, list[list[float]]] = {name: [] for name in table}
        for damping in DAMPINGS:
            exact = Vt.T @ (values / (values**2 + damping) * (U.T @ target))
            error = lambda eta, exact=exact: float(np.linalg.norm(eta - exact))
            scale = float(np.linalg.norm(exact))
            for name, make in SOLVERS.items():
                found = []
                for solver in filter(None, map(make, SEEDS)):
                    d = ng.natural_gradient(
                        problem,
                        theta,
                        metric=metric,
                        solver=solver,
                        damping=ng.AbsoluteDamping(damping),
                    )
                    found.append(error(np.asarray(d.eta)) / scale)
                errors[name].append(found)
            for name, method in pairs.items():
                etas = [inverted(*method(Y, seed), gradient, damping) for seed in SEEDS]
                errors[name].append([error(eta) / scale for eta in etas])
        for name, found in errors.items():
            table[name].append([np.median(each) for each in found])
    for i, damping in enumerate(DAMPINGS):
        rows = [[name, *(cell[i] for cell in cells)] for name, cells in table.items()]
        title = f"‖η − η*‖/‖η*‖ for λ = {damping:g}, {K} × {P}"
        show_table(f"damping_{damping:.0e}", ["method", *SPECTRA], rows, title)


if __name__ == "__main__":
    main()
