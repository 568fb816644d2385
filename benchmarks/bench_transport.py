"""The transport solve against sparse direct methods: time, growth, memory and accuracy.

    python benchmarks/bench_transport.py [--sizes 280 560 1120 2240] [--methods mixed single spqr]

−∇·(ρ∇φ) = ζ for the mixture's ρ and its two tangents on n × n cells (the paper's Fig. 1): set-up
and two right-hand sides, CPU seconds of one core, best of a few after one that warms up, each
method and size in a process of its own, bound to one core, with huge pages for all (see the page
on performance). Peak memory is that of the process.
Errors are those of η = G⁻¹g for a fixed g, against natgrad in double precision to rounding.

`double`, `mixed` and `single` are natgrad (`Elliptic(precision=...)`), asked for G to 1e-12, or for
what single precision can. The rivals take part where they are installed: `spqr` is the paper's way,
SuiteSparseQR of Bᵀ without Q (pip install sparseqr; needs libsuitesparse-dev, and libopenblas0 for
a BLAS that is not the reference one), `cholmod` (pip install scikit-sparse), `superlu`
(SciPy) and `amg`, Ruge–Stüben with conjugate gradients (pip install pyamg).
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu, spsolve_triangular
from tables import ONE_THREAD, in_process, one_core, peak_memory, show_table
from transport_cases import face_weights, mixture, prepared

METHODS = {
    "double": None,
    "mixed": None,
    "single": None,
    "spqr": "sparseqr",
    "cholmod": "sksparse",
    "superlu": None,
    "amg": "pyamg",
}
LARGEST = {"superlu": 1120, "amg": 1120}  # larger ones take minutes, or swap
SLOPE = np.array([0.3, -0.7])


def weighted_divergence(a: np.ndarray, spacing) -> sp.csc_matrix:
    """B without the row of the heaviest cell, which is grounded."""
    n, m = a.shape
    difference = lambda k, h: sp.diags([np.ones(k - 1), -np.ones(k - 1)], [0, -1], (k, k - 1)) / h
    down, across = face_weights(a)
    parts = [
        sp.kron(difference(n, spacing[0]), sp.eye(m)) @ sp.diags(down.ravel()),
        sp.kron(sp.eye(n), difference(m, spacing[1])) @ sp.diags(across.ravel()),
    ]
    kept = np.delete(np.arange(a.size), int(np.argmax(a)))
    return sp.csr_matrix(sp.hstack(parts))[kept].tocsc(), kept


def direct_information(method: str, a, zeta, spacing):
    """G/w by a sparse factorisation, as a function to time."""
    B, kept = weighted_divergence(a, spacing)
    right = zeta.reshape(2, -1)[:, kept]
    if method == "spqr":
        import sparseqr

        Bt = B.T.tocoo()

        def run():
            _, R, order, _ = sparseqr.rz(Bt, np.zeros((Bt.shape[0], 1)))
            half = spsolve_triangular(R.tocsr()[: len(kept)].T.tocsr(), right[:, order].T)
            return half.T @ half

        return run
    K = (B @ B.T).tocsc()
    if method == "cholmod":
        from sksparse.cholmod import cholesky

        return lambda: right @ cholesky(K).solve_A(right.T)
    if method == "superlu":
        options = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
        factor = lambda: splu(K, permc_spec="MMD_AT_PLUS_A", **options)
        return lambda: right @ (lambda f: np.stack([f.solve(r) for r in right], 1))(factor())
    import pyamg

    def run():
        ml = pyamg.ruge_stuben_solver(K.tocsr())
        return right @ np.stack([ml.solve(r, tol=1e-10, accel="cg") for r in right], 1)

    return run


def our_information(precision: str, tolerance: float, density, tangents, n: int):
    """G/w through the public metric, as a function to time."""
    import jax
    import jax.numpy as jnp

    import natgrad as ng

    jax.config.update("jax_enable_x64", True)
    grid = ng.Grid((-2.75,) * 2, (7.25,) * 2, (n, n))
    elliptic = ng.metrics.Elliptic("multigrid", precision=precision, tolerance=tolerance)
    metric = ng.Wasserstein(grid, elliptic=elliptic)
    rho, columns = jnp.asarray(density), jnp.asarray(tangents)
    compiled = jax.jit(lambda rho, columns: metric.at(rho).information(columns)[0])
    return lambda: np.asarray(compiled(rho, columns)) / grid.cell_volume


def child(method: str, n: int) -> None:
    """Measure one method at one size and print it as JSON."""
    one_core()
    density, tangents, spacing = mixture(n)
    if method in ("double", "mixed", "single", "reference"):
        precision = "double" if method == "reference" else method
        tolerance = 1e-20 if method == "reference" else 1e-12
        run = our_information(precision, tolerance, density, tangents, n)
    else:
        run = direct_information(method, *prepared(density, tangents), spacing)
    G, times = run(), []
    while method != "reference" and len(times) < 5 and sum(times) < 10:
        tick = time.process_time()
        run()
        times.append(time.process_time() - tick)
    eta = np.linalg.solve(G, SLOPE)
    print(json.dumps({"s": min(times, default=0), "gb": peak_memory(), "eta": list(eta)}))


def measure(method: str, n: int) -> dict:
    """`child` in a process bound to one core."""
    environment = ONE_THREAD | {"JAX_PLATFORMS": "cpu"}
    environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    return in_process("--child", method, n, **environment)


def solves(sizes: list[int], methods: list[str]) -> Iterator[list]:
    """A row for each size and method."""
    for n in sizes:
        reference = np.array(measure("reference", n)["eta"])
        rows = {m: measure(m, n) for m in methods if n <= LARGEST.get(m, n)}
        for method, row in rows.items():
            error = np.max(np.abs(np.array(row["eta"]) / reference - 1))
            ratio = row["s"] / rows["double"]["s"] if "double" in rows else None
            yield [method, n, row["s"], row["gb"], error, ratio]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[280, 560, 1120, 2240])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], int(arguments.child[1]))
        return
    installed = lambda name: name is None or importlib.util.find_spec(name) is not None
    methods = [m for m in arguments.methods if installed(METHODS[m])]
    columns = ["method", "n", "CPU s", "GiB", "error of η", "over double"]
    rows = list(solves(arguments.sizes, methods))
    show_table("solves", columns, rows, "Set-up and two right-hand sides on n × n cells, one core")
    found = {(method, n): seconds for method, n, seconds, *_ in rows}
    by_size = [[n, *(found.get((m, n)) for m in methods)] for n in arguments.sizes]
    show_table("seconds", ["n", *methods], by_size, "CPU seconds by method")
    growth = []
    for method in methods:
        times = [(n * n, found[method, n]) for n in arguments.sizes if (method, n) in found]
        growth.append(np.polyfit(*np.log(times).T, 1)[0] if len(times) > 1 else None)
    show_table("growth", methods, [growth], "The power of k = n² with which the seconds grow")


if __name__ == "__main__":
    main()
