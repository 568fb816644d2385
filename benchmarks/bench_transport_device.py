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
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from transport_cases import face_weights, mixture, prepared

from natgrad.metrics.elliptic.divergence import Divergence
from natgrad.metrics.elliptic.iterative import iterative_factor

MODES = {"mixed": 1e-6, "double": 1e-6, "single": 1e-5}


def best(function, budget: float = 2.0) -> float:
    """The shortest of the runs that fit into `budget` seconds, after two that warm up."""
    jax.block_until_ready(function())
    jax.block_until_ready(function())
    times, start = [], time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < budget and len(times) < 20):
        tick = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - tick)
    return min(times)


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
    return 3 * x.nbytes / best(lambda: add(x, x))


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
        "setup": best(lambda: build(B)),
        "solve": best(lambda: solve(factor, right)),
        "iterations": int(solution.iterations[0]),
        "error": float(solution.error[0]),
    }


def on_one_core(n: int, mode: str) -> dict[str, float]:
    """`measure` in a process bound to one core."""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, __file__, "--child", str(n), mode]
    preamble = ["taskset", "-c", "0"]
    done = subprocess.run(preamble + command, env=environment, capture_output=True, check=True)
    return json.loads(done.stdout.decode().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--no-core", action="store_true")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.child:
        print(json.dumps(measure(int(arguments.child[0]), arguments.child[1])))
        return
    if jax.default_backend() == "cpu" and arguments.sizes == [1024, 2048, 4096]:
        arguments.sizes = [512, 1024]
    peak = bandwidth()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, {peak / 1e9:.0f} GB/s measured")
    print(
        f"{'n':>5} {'mode':>7} {'first s':>8} {'set-up ms':>10} {'solve ms':>9} {'its':>4}"
        f" {'MB/it':>7} {'bandwidth':>9} {'one core ms':>12} {'ratio':>6}"
    )
    for n in arguments.sizes:
        for mode in MODES:
            row = measure(n, mode)
            moved = bytes_per_iteration(n, mode)
            share = moved * row["iterations"] / row["solve"] / peak
            core = ratio = float("nan")
            if not arguments.no_core and jax.default_backend() != "cpu":
                host = on_one_core(n, mode)
                core = host["setup"] + host["solve"]
                ratio = core / (row["setup"] + row["solve"])
            print(
                f"{n:5d} {mode:>7} {row['first']:8.1f} {row['setup'] * 1e3:10.2f}"
                f" {row['solve'] * 1e3:9.2f} {row['iterations']:4d} {moved / 1e6:7.0f}"
                f" {share:9.0%} {core * 1e3:12.0f} {ratio:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    np.seterr(under="ignore")
    main()
