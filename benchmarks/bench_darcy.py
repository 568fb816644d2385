"""One natural gradient direction behind a PDE with 16,384 parameters: solves, seconds, memory.

Run as `python benchmarks/bench_darcy.py`. The claim: with k steps of conjugate gradients a
direction costs 2k + 2 propagations and one sparse factorisation, in less than 1 GB. Then L² natural
gradients and L-BFGS are run to the noise, from the same start, in the prior's coordinates and
without, with the ratio of their propagations. Each part is a process of its own, since the peak of
a process's memory does not fall. `python benchmarks/bench_darcy.py 64` takes fewer cells.
"""

import resource
import subprocess
import sys
import time
from dataclasses import replace

import jax

import natgrad as ng
from natgrad.report import versions
from natgrad_studies.darcy.methods import METRICS, Method
from natgrad_studies.darcy.problem import Inversion
from natgrad_studies.darcy.run import run_method
from natgrad_studies.darcy.settings import PRESETS

STEPS = (5, 10, 20)
DIRECTIONS = ("L2", "dotHm1", "W2_L2")
RUNS = ("L2", "LBFGS", "LBFGS_long", "L2_prior", "LBFGS_prior", "LBFGS_long_prior")


def inversion(cells: int) -> Inversion:
    return Inversion.of("wells", replace(PRESETS["paper"], cells=cells))


def directions(cells: int, key: str) -> None:
    """Seconds, propagations and factorisations of one direction, the second of its kind."""
    problem = inversion(cells)
    metric = METRICS[key](problem.grid)
    for k in STEPS:
        solver = ng.CG(0.0, k, preconditioner=None)
        for _ in range(2):
            problem.factorisations = 0
            wall, cpu = time.perf_counter(), time.process_time()
            found = ng.natural_gradient(
                problem.problem, problem.start, metric=metric, solver=solver
            )
            jax.block_until_ready(found.eta)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        spent = sum(found.info.counts)
        print(
            f"{key:<8} {k:>3} {spent:>12} {2 * k + 2:>7} {problem.factorisations:>14} "
            f"{wall:>8.2f} {cpu:>8.2f} {peak():>8.2f}",
            flush=True,
        )


def runs(cells: int) -> None:
    """Runs to the noise, and the ratio of their propagations to those of the best L-BFGS."""
    problem = inversion(cells)
    found = {key: run_method(Method(key), problem) for key in RUNS}
    for keys in (RUNS[:3], RUNS[3:]):
        rivals = [found[key].total for key in keys if "LBFGS" in key and found[key].reached]
        for key in keys:
            r = found[key]
            ratio = r.total / min(rivals) if rivals else float("nan")
            print(
                f"{r.method.full_name:<26} {r.status:<16} {r.iterations:>5} {r.total:>12} "
                f"{ratio:>6.2f} {r.factorisations:>14} {r.seconds:>7.1f} {r.misfit[-1]:>7.3f} "
                f"{r.error[-1]:>6.3f}",
                flush=True,
            )
    print(f"peak memory {peak():.2f} GB")


def peak() -> float:
    """The most memory that this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    part = sys.argv[2] if len(sys.argv) > 2 else None
    if part == "runs":
        return runs(cells)
    if part is not None:
        return directions(cells, part)
    child = lambda part: subprocess.run([sys.executable, __file__, str(cells), part], check=True)
    print(versions())
    print(f"One direction at the start, {cells}² parameters")
    print(
        f"{'metric':<8} {'k':>3} {'propagations':>12} {'2k + 2':>7} {'factorisations':>14} ", end=""
    )
    print(f"{'seconds':>8} {'CPU s':>8} {'peak GB':>8}", flush=True)
    for key in DIRECTIONS:
        child(key)
    print("\nRuns to the noise")
    print(f"{'method':<26} {'status':<16} {'iter.':>5} {'propagations':>12} {'ratio':>6} ", end="")
    print(f"{'factorisations':>14} {'CPU s':>7} {'misfit':>7} {'error':>6}", flush=True)
    child("runs")


if __name__ == "__main__":
    main()
