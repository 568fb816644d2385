"""One natural gradient direction behind a PDE with 16,384 parameters: solves, seconds, memory.

    python benchmarks/bench_darcy.py [--cells 128]

The claim: with k steps of conjugate gradients a
direction costs 2k + 2 propagations and one sparse factorisation, in less than 1 GB. Then L² natural
gradients and L-BFGS are run to the noise, from the same start, in the prior's coordinates and
without, with the ratio of their propagations. Each part is a process of its own, since the peak of
a process's memory does not fall.
"""

import argparse
import json
import time
from dataclasses import replace

import jax
from tables import in_process, peak_memory, show_table

import natgrad as ng
from natgrad_studies.darcy.methods import METRICS, Method
from natgrad_studies.darcy.problem import Inversion
from natgrad_studies.darcy.run import run_method
from natgrad_studies.darcy.settings import PRESETS

STEPS = (5, 10, 20)
DIRECTIONS = {"L2": "L²", "dotHm1": "Ḣ⁻¹", "W2_L2": "W₂ + L²"}
RUNS = ("L2", "LBFGS", "LBFGS_long", "L2_prior", "LBFGS_prior", "LBFGS_long_prior")


def inversion(cells: int) -> Inversion:
    return Inversion.of("wells", replace(PRESETS["paper"], cells=cells))


def directions(cells: int, key: str) -> list[list]:
    """Propagations, factorisations and seconds of one direction, the second of its kind."""
    problem = inversion(cells)
    metric = METRICS[key](problem.grid)
    rows = []
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
        made = problem.factorisations
        rows.append([DIRECTIONS[key], k, spent, 2 * k + 2, made, wall, cpu, peak_memory()])
    return rows


def runs(cells: int) -> list[list]:
    """Runs to the noise, and the ratio of their propagations to those of the best L-BFGS."""
    problem = inversion(cells)
    found = {key: run_method(Method(key), problem) for key in RUNS}
    rows = []
    for keys in (RUNS[:3], RUNS[3:]):
        rivals = [found[key].total for key in keys if "LBFGS" in key and found[key].reached]
        for key in keys:
            r = found[key]
            ratio = r.total / min(rivals) if rivals else None
            spent = [r.iterations, r.total, ratio, r.factorisations, r.seconds]
            ends = [float(r.misfit[-1]), float(r.error[-1]), peak_memory()]
            rows.append([r.method.full_name, str(r.status), *spent, *ends])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=128)
    parser.add_argument("--child", help="a metric, or runs")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    cells, part = arguments.cells, arguments.child
    if part is not None:
        print(json.dumps(runs(cells) if part == "runs" else directions(cells, part)))
        return
    child = lambda part: in_process("--cells", cells, "--child", part)
    columns = ["metric", "k", "propagations", "2k + 2", "factorisations", "seconds", "CPU s"]
    rows = (row for key in DIRECTIONS for row in child(key))
    title = f"One direction at the start, {cells}² parameters"
    show_table("direction", [*columns, "peak GiB"], rows, title)
    columns = ["method", "status", "iterations", "propagations", "ratio", "factorisations"]
    columns += ["CPU s", "misfit", "error", "peak GiB"]
    show_table("runs", columns, child("runs"), "Runs to the noise")


if __name__ == "__main__":
    main()
