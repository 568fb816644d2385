"""The paper's physics-informed network on one core: CPU seconds to an error, and errors in time.

    taskset -c 0 python benchmarks/bench_pinn_paper.py [--seconds 60] [--seeds 0 1 2 3]

−Δu = φ on [−1, 1]² with two sine modes, a tanh network 2-20-30-20-1 (p = 1331), 48 × 48 points
inside and 196 on the boundary, γ = 0.01. For each seed: the CPU seconds until the relative L²
error on 101 × 101 points is at most 2e-5, with and without compilation, and the error after
`--seconds`. Errors are measured in a callback whose time does not count. The last column is the
ratio of the seconds, without compilation, to those of the first method on the same seed; where a
rival does not get there, a lower bound.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import jax
import numpy as np
from pinn_cases import Case, Trace, paper, timed
from tables import show_table

import natgrad as ng

TARGET = 2e-5
METHODS: dict[str, tuple[Callable[[ng.metrics.Metric], ng.descent.Method], int]] = {
    "LM, third order": (ng.levenberg_marquardt, 1),
    "LM, straight": (partial(ng.levenberg_marquardt, order=1), 1),
    "L-BFGS, 50 pairs": (lambda metric: ng.LBFGS(50), 20),  # measured in every 20th iteration
}


def prepared(name: str, case: Case) -> Callable[..., float]:
    """The method on a case; called with a number of iterations and a trace, its CPU seconds."""
    method = METHODS[name][0](case.pinn.metric)
    return partial(timed, partial(ng.minimize, case.pinn.problem, case.start, method))


def compilation(name: str) -> float:
    """What the first two iterations take beyond the same two again."""
    run = prepared(name, paper(0))
    return run(2) - run(2)


def runs(seconds: float, seeds: list[int]) -> Iterator[list]:
    """A row for each seed and method."""
    compiled = {name: compilation(name) for name in METHODS}
    for seed in seeds:
        case, first = paper(seed), np.nan
        error = case.error()
        error(case.start)  # compiled before the clock runs
        for name, (_, every) in METHODS.items():
            trace = Trace(error, seconds, every)
            prepared(name, case)(10**6, trace)
            reached, iterations = trace.reached(TARGET), every * len(trace.rows)
            first = reached if np.isnan(first) else first
            there = np.isfinite(reached)
            ratio = (reached if there else seconds) / first
            compared = ratio if there or np.isnan(ratio) else f"> {ratio:.1f}"
            times = [compiled[name], reached, reached + compiled[name], trace.at(seconds)]
            each = trace.rows[-1][0] / iterations
            yield [name, seed, *times, iterations, each, compared]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    columns = ["method", "seed", "compiling, s", f"to {TARGET:g}, s", "with compiling, s"]
    columns += [f"error after {arguments.seconds:g} s", "iterations", "s an iteration", "ratio"]
    rows = runs(arguments.seconds, arguments.seeds)
    show_table("runs", columns, rows, "CPU seconds of one core, and relative errors")


if __name__ == "__main__":
    main()
