"""Beside a peer's natural gradients on one core: 2D Poisson with a network of 9,873 parameters.

    taskset -c 1 python benchmarks/bench_pinn_peers.py [--seeds 0 1 2] [--seconds 120] \\
        [--peer "taskset -c 1 python runner.py --seed {seed} --seconds 250"]

−Δu = 2π² sin πx sin πy on [0, 1]², tanh network 2-64-64-48-48-1, 900 + 120 random points, float64.
`--peer` is a command line that runs a rival on the same kind of problem and prints lines of

    step,seconds,cpu_seconds,loss,rel_l2,…

with one line of those names before them; `#` begins a comment and `{seed}` stands for the seed.
It runs after ours for each seed, on the same core. Printed are the CPU seconds, compilation
included, at which the relative L² error (ours at 9,000 random points) first reaches each target,
and the ratio of the peer's to ours.
"""

import argparse
import shlex
import subprocess
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np
from pinn_cases import Trace, sine, timed
from tables import show_table

import natgrad as ng

TARGETS = (1e-5, 1e-6, 9e-7, 1e-7)


def ours(seed: int, seconds: float, damping: ng.direction.Damping) -> tuple[Trace, float]:
    """Errors over time, and the CPU seconds that compilation took."""
    case = sine(seed)
    error = case.error()
    error(case.start)
    method = ng.levenberg_marquardt(case.pinn.metric, damping=damping)
    run = partial(ng.minimize, case.pinn.problem, case.start, method)
    jax.clear_caches()
    compiled = timed(run, 2) - timed(run, 2)
    trace = Trace(error, seconds)
    timed(run, 10**6, trace)
    return trace, compiled


def peer(command: str, seed: int) -> Trace:
    """The errors over time that the command prints."""
    words = [word.replace("{seed}", str(seed)) for word in shlex.split(command)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = [line for line in printed.splitlines() if line and not line.startswith("#")]
    names = lines[0].split(",")
    columns = [names.index(name) for name in ("cpu_seconds", "rel_l2")]
    trace = Trace(lambda theta: np.nan, np.inf)
    for line in lines[1:]:
        fields = line.split(",")
        trace.rows.append((float(fields[columns[0]]), float(fields[columns[1]])))
    return trace


def row(name: str, seed: int, compiled: float, trace: Trace, ours: list[float] | None) -> list:
    """CPU seconds to each target with compilation, and over ours where the row is a rival's; a
    lower bound where it did not get there in its time."""
    reached = [trace.reached(target) + compiled for target in TARGETS]
    best = min(error for _, error in trace.rows)
    share, spent = trace.rows[-1][0] / len(trace.rows), trace.rows[-1][0]
    ratios: list[float | str | None] = [None] * len(TARGETS)
    if ours is not None:
        for i, (own, other) in enumerate(zip(ours, reached, strict=True)):
            ratios[i] = other / own if np.isfinite(other) else f"> {spent / own:.1f}"
    return [name, seed, compiled, *reached, best, len(trace.rows), share, *ratios]


def runs(arguments: argparse.Namespace, damping: ng.direction.Damping) -> Iterator[list]:
    for seed in arguments.seeds:
        trace, compiled = ours(seed, arguments.seconds, damping)
        yield row("natgrad", seed, compiled, trace, None)
        if arguments.peer:
            own = [trace.reached(target) + compiled for target in TARGETS]
            yield row("peer", seed, 0.0, peer(arguments.peer, seed), own)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--peer", help="a command line that prints a rival's errors over time")
    parser.add_argument("--floor", type=float, default=0.0, help="of the damping")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    damping = ng.LevenbergMarquardt(floor=arguments.floor)
    columns = ["who", "seed", "compiling, s", *(f"to {target:g}, s" for target in TARGETS)]
    columns += ["best error", "iterations", "s an iteration"]
    columns += [f"ratio at {target:g}" for target in TARGETS]
    title = "CPU seconds to each error, compilation included, and the peer's over ours"
    show_table("runs", columns, runs(arguments, damping), title)


if __name__ == "__main__":
    main()
