"""The transport solve on an accelerator: time, bytes moved, share of the bandwidth, and one core.

    python benchmarks/bench_transport_device.py [--sizes 1024 2048 4096] [--no-core]

−∇·(ρ∇φ) = ζ for the mixture on n × n cells: set-up of the multigrid hierarchy, and one solve, in
double (single-precision cycles inside), double throughout, and single precision, compiled, best
of several runs; "first" is the call that compiles both. "bytes" counts what an iteration cannot
avoid if every kernel reads its arguments and writes its result once; the bandwidth is measured in
the same run by y ← x + y on large vectors. "one core" is the same solve on one core of the
host, in a process of its own. On a CPU, run it with GLIBC_TUNABLES=glibc.malloc.hugetlb=1: page
faults hide the bandwidth otherwise.
"""

import argparse
import json
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from tables import ONE_THREAD, best, in_process, one_core, show_table
from transport_cases import face_weights, mixture, prepared

from natgrad.metrics.elliptic.divergence import Divergence
from natgrad.metrics.elliptic.iterative import iterative_factor

MODES = {"mixed": 1e-6, "double": 1e-6, "single": 1e-5}


def bytes_per_iteration(n: int, mode: str) -> float:
    """One conjugate gradient step and one V-cycle, each array once for each kernel that uses it."""
    outer = 4 if mode == "single" else 8
    inner = 8 if mode == "double" else 4
    # product: p, 2 links, q; two dots: p, q, r, z; updates: φ, r, p in and out, q, z
    step = (4 + 4 + 8) * outer
    cells = [n * n / 4**level for level in range(12) if n / 2**level > 5]
    cycle = 0.0
    for level, k in enumerate(cells):
        links = 2 if level == 0 else 4
        relax, residual, again = links + 3, links + 3, 2 * (links + 4)
        transfer = 2 * (1 + 1 + 0.5 + 0.5 + 0.25) + 2  # weights and vectors down and up, x + e
        cycle += k * (relax + residual + again + transfer) * inner
    return n * n * step + cycle


def bandwidth() -> float:
    """Bytes a second of y ← x + y on vectors of 512 MB (64 MB on a CPU)."""
    size = 2**23 if jax.default_backend() == "cpu" else 2**26
    x = jnp.ones(size)
    add = jax.jit(lambda x, y: x + y)
    return 3 * x.nbytes / best(lambda: add(x, x), 2.0, least=3)


def measure(n: int, mode: str) -> dict[str, float]:
    density, tangents, spacing = mixture(n)
    a, zeta = prepared(density, tangents[:1])
    B = Divergence(tuple(map(jnp.asarray, face_weights(a))), tuple(spacing), periodic=False)
    right = jnp.asarray(zeta)
    settings = {"tolerance": MODES[mode], "precision": mode}
    build = jax.jit(lambda B: iterative_factor(B, "multigrid", **settings))
    solve = jax.jit(lambda factor, z: factor.solution(z))
    tick = time.perf_counter()
    factor = jax.block_until_ready(build(B))
    solution = jax.block_until_ready(solve(factor, right))
    compiled = time.perf_counter() - tick
    return {
        "first": compiled,
        "setup": best(lambda: build(B), 2.0, least=3),
        "solve": best(lambda: solve(factor, right), 2.0, least=3),
        "iterations": int(solution.iterations[0]),
        "error": float(solution.error[0]),
    }


def solves(sizes: list[int], peak: float, cores: bool) -> Iterator[list]:
    """A row for each size and precision; with the same on one core of the host, if asked."""
    for n in sizes:
        for mode in MODES:
            row = measure(n, mode)
            moved = bytes_per_iteration(n, mode)
            share = moved * row["iterations"] / row["solve"] / peak
            core = ratio = None
            if cores:
                host = in_process("--child", n, mode, **ONE_THREAD, JAX_PLATFORMS="cpu")
                core = host["setup"] + host["solve"]
                ratio = core / (row["setup"] + row["solve"])
                core *= 1e3
            times = [row["first"], 1e3 * row["setup"], 1e3 * row["solve"], row["iterations"]]
            yield [mode, n, *times, moved / 1e9, share, core, ratio]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--no-core", action="store_true")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.child:
        one_core()
        print(json.dumps(measure(int(arguments.child[0]), arguments.child[1])))
        return
    if jax.default_backend() == "cpu" and arguments.sizes == [1024, 2048, 4096]:
        arguments.sizes = [512, 1024]
    peak = bandwidth()
    columns = ["mode", "n", "first s", "set-up ms", "solve ms", "iterations", "GB an iteration"]
    columns += ["of the bandwidth", "one core ms", "one core over it"]
    cores = not arguments.no_core and jax.default_backend() != "cpu"
    rows = solves(arguments.sizes, peak, cores)
    show_table("solve", columns, rows, f"One right-hand side; {peak / 1e9:.0f} GB/s measured")
    show_table("bandwidth", ["GB/s"], [[peak / 1e9]])


if __name__ == "__main__":
    np.seterr(under="ignore")
    main()
