"""Physics-informed networks on a device: milliseconds an iteration, memory, errors in seconds.

    python benchmarks/bench_pinn_device.py [--burgers-seconds 60] [--poisson5d-seconds 100]
    python benchmarks/bench_pinn_device.py --small                       # a minute on a CPU

First "linearise" (the rows of Z and the matrix G or K made of them) and "step" (solve, curve and
line search, of third order), against the time that the product 2kp·min(k, p) takes at the rate
of a large float64 matrix product measured in the same run; "all" is what the row took, with
compilation. Then the most memory held by one iteration with the whole of J and with row blocks,
each in a process of its own. Last, errors over the seconds of two examples, beside the published
ones; compilation does not count.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pinn_cases import Case, Trace, network, paper, sine, size

import natgrad as ng
from natgrad.report import versions

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import burgers
import poisson_5d

BLOCKS = 2**27  # bytes of J held at once, in the second process
PUBLISHED = {
    "Burgers": "SSBroyden 1.6e-8 (second hand, no time given)",
    "5d Poisson": "SPRING 2.6e-7 and ENGD-W 6.8e-7, absolute, in 7000 s on an RTX 6000",
}


def best(function: Callable[[], Any], budget: float = 2.0) -> float:
    """The shortest of the runs that fit into the budget, after one that compiles."""
    jax.block_until_ready(jax.tree.leaves(function()))
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 30):
        start = time.perf_counter()
        jax.block_until_ready(jax.tree.leaves(function()))
        times.append(time.perf_counter() - start)
    return min(times)


def matmul_rate(n: int) -> float:
    """Flops a second of a float64 product of n × n matrices."""
    A = jnp.ones((n, n))
    product = jax.jit(lambda A: A @ A)
    return 2 * n**3 / best(lambda: product(A))


def large(points: int, memory: int = 2**32) -> Case:
    """The sine problem for the network 2-180-180-180-180-1 with 98,461 parameters."""
    case = sine(0, points - points // 10, points // 10, memory)
    return case._replace(start=network((2, 180, 180, 180, 180, 1), 0))


def iteration(case: Case) -> tuple[float, float]:
    """Seconds of the two halves of an iteration at the start."""
    problem, theta = case.pinn.problem, case.start
    damping, step = ng.LevenbergMarquardt(), ng.Backtracking()
    method = ng.NaturalGradient(case.pinn.metric, damping=damping, step=step, order=3)
    state = method.init(problem, theta)
    linearise = lambda: method.linearise(problem, theta, state)
    local = linearise()
    return best(linearise), best(lambda: method.try_step(local, state))


def iterations(cases: dict[str, Case], n: int) -> None:
    rate = matmul_rate(n)
    print(f"float64 products at {rate / 1e12:.3g} Tflop/s (n = {n})")
    print(
        f"{'network':<23} {'p':>7} {'k':>5} {'linearise ms':>13} {'step ms':>11}"
        f" {'limit ms':>9} {'linearise/limit':>16} {'all s':>8}"
    )
    for name, case in cases.items():
        k, p = sum(len(b.points) for b in case.pinn.blocks.values()), size(case.start)
        start = time.perf_counter()
        one, two = iteration(case)
        taken, limit = time.perf_counter() - start, 2 * k * p * min(k, p) / rate
        print(
            f"{name:<23} {p:7,d} {k:5d} {1e3 * one:13.2f} {1e3 * two:11.2f} {1e3 * limit:9.2f}"
            f" {one / limit:16.1f} {taken:8.1f}",
            flush=True,
        )


def peak() -> float:
    """The most memory held so far in GB: by the device, or by the process on a CPU."""
    statistics = jax.devices()[0].memory_stats() or {}
    # not `getrusage`, whose maximum a child takes over from the process that started it
    lines = Path("/proc/self/status").read_text().splitlines()
    host = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return statistics.get("peak_bytes_in_use", host) / 1e9


def held(points: int, memory: int) -> None:
    """In a process of its own: one iteration for the large network, and the peak."""
    case = large(points, memory)
    before = peak()
    one, two = iteration(case)
    whole = 8 * points * size(case.start) / 1e9
    print(
        f"at most {memory / 1e9:6.3f} GB of J ({whole:.2f} GB): peak {peak():.2f} GB,"
        f" {before:.2f} GB before; {1e3 * (one + two):.0f} ms an iteration",
        flush=True,
    )


def burgers_errors(seconds: float, small: bool) -> None:
    print(f"\nBurgers, ν = 0.01/π; published: {PUBLISHED['Burgers']}")
    sizes = {"width": 10 if small else 30, "depth": 3, "count": 500 if small else 8000}
    burgers.solve(**sizes, iterations=2)  # compiles
    burgers.error(burgers.solve(**sizes, iterations=1).theta)
    trace = Trace(burgers.error, seconds, every=5, clock=time.perf_counter)
    burgers.solve(**sizes, iterations=10**6, callbacks=[trace])
    checkpoints(*np.array(trace.rows).T, "relative")


def poisson_errors(seconds: float, small: bool) -> None:
    print(f"\n5d Poisson; published: {PUBLISHED['5d Poisson']}")
    sizes = {"interior": 300, "boundary": 60, "hidden": (24, 24)} if small else {}
    variants = ("fixed", "drawn", "spring", "nystrom")
    each = seconds / len(variants)
    found = poisson_5d.main(**sizes, seconds=each, variants=variants, output="results/poisson_5d")
    for name, errors in found.items():
        checkpoints(errors.seconds, errors.absolute, f"{name}, absolute")


def checkpoints(seconds: np.ndarray, errors: np.ndarray, name: str) -> None:
    """The last error at some times on the way."""
    times = seconds[-1] * np.array([0.05, 0.1, 0.2, 0.5, 1.0])
    last = lambda t: errors[max(0, np.searchsorted(seconds, t, side="right") - 1)]
    cells = [f"{last(t):.1e} at {t:.1f} s" for t in times]
    print(f"{name} error: {', '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--burgers-seconds", type=float, default=60.0)
    parser.add_argument("--poisson5d-seconds", type=float, default=100.0, help="for four variants")
    parser.add_argument("--small", action="store_true", help="fewer points, for a CPU")
    parser.add_argument("--held", type=int, help="in a child: the bytes of J")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    points = 200 if arguments.small else 2500
    if arguments.held:
        return held(points, arguments.held)
    print(f"{jax.devices()[0].device_kind}: {versions()}")
    cases = {"2-20-30-20-1": paper(0), "2-64-64-48-48-1": sine(0)}
    cases["2-180-180-180-180-1"] = large(points)
    iterations(cases, 1024 if arguments.small else 8192)
    print(f"\nOne iteration for 98,461 parameters and {points} points", flush=True)
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for memory in (2**32, BLOCKS // 8 if arguments.small else BLOCKS):
        words = [sys.executable, __file__, "--held", str(memory)]
        words += ["--small"] * arguments.small
        subprocess.run(words, env=environment, check=True)
    burgers_errors(arguments.burgers_seconds, arguments.small)
    poisson_errors(arguments.poisson5d_seconds, arguments.small)


if __name__ == "__main__":
    main()
