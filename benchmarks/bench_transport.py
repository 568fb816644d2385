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
import os
import resource
import subprocess
import sys
import time

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu, spsolve_triangular
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
    elliptic = ng.Elliptic("multigrid", precision=precision, tolerance=tolerance)
    metric = ng.Wasserstein(grid, elliptic=elliptic)
    rho, columns = jnp.asarray(density), jnp.asarray(tangents)
    compiled = jax.jit(lambda rho, columns: metric.at(rho).information(columns)[0])
    return lambda: np.asarray(compiled(rho, columns)) / grid.cell_volume


def child(method: str, n: int) -> None:
    """Measure one method at one size and print it as JSON."""
    density, tangents, spacing = mixture(n)
    if method in ("double", "mixed", "single", "reference"):
        precision = "double" if method == "reference" else method
        tolerance = 1e-20 if method == "reference" else 1e-12
        run = our_information(precision, tolerance, density, tangents, n)
    else:
        run = direct_information(method, *prepared(density, tangents), spacing)
    tick = time.perf_counter()
    G = run()
    first, times = time.perf_counter() - tick, []
    while method != "reference" and len(times) < 5 and sum(times) < 10:
        tick = time.process_time()
        run()
        times.append(time.process_time() - tick)
    eta = np.linalg.solve(G, SLOPE)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"s": min(times, default=0), "first": first, "gb": peak, "eta": list(eta)}))


def measure(method: str, n: int) -> dict:
    """`child` in a process bound to one core."""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    threads["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    command = ["taskset", "-c", "0", sys.executable, __file__, "--child", method, str(n)]
    environment = os.environ | threads | {"XLA_FLAGS": flags}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{method} at {n}: {done.stderr.decode()[-800:]}")
    return json.loads(done.stdout.decode().splitlines()[-1])


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
    print(f"{'n':>5} {'method':>8} {'CPU s':>8} {'GB':>6} {'error of η':>11} {'spqr/this':>9}")
    seconds: dict[str, list[tuple[int, float]]] = {method: [] for method in methods}
    for n in arguments.sizes:
        reference = np.array(measure("reference", n)["eta"])
        rows = {m: measure(m, n) for m in methods if n <= LARGEST.get(m, n)}
        for method, row in rows.items():
            seconds[method].append((n * n, row["s"]))
            error = np.max(np.abs(np.array(row["eta"]) / reference - 1))
            ratio = rows["spqr"]["s"] / row["s"] if "spqr" in rows else float("nan")
            print(
                f"{n:5d} {method:>8} {row['s']:8.3f} {row['gb']:6.2f} {error:11.1e} {ratio:9.1f}",
                flush=True,
            )
    print("growth like k to the power of:", end=" ")
    for method, points in seconds.items():
        if len(points) > 1:
            cells, times = np.log(np.array(points)).T
            print(f"{method} {np.polyfit(cells, times, 1)[0]:.2f}", end="  ")
    print()


if __name__ == "__main__":
    main()
