"""Physics-informed networks on a device: milliseconds an iteration, and memory.

    python benchmarks/bench_pinn_device.py
    python benchmarks/bench_pinn_device.py --only minimize kernel        # a minute
    python benchmarks/bench_pinn_device.py --small                       # a minute on a CPU

First "linearise" (the rows of Z and the matrix G or K made of them) and "step" (solve, curve and
line search, of third order), against the time that the product 2kp·min(k, p) takes at the rate
of a large float64 matrix product measured in the same run; "all" is what the row took, with
compilation. Then whole iterations of `ng.minimize` for the Helmholtz equation, by the order of the
curve: at fixed points, and in the kernel form at points drawn anew in every one. Then the most
memory held by one iteration with the whole of J and with row blocks, each in a
process of its own.
"""

import argparse
import json
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from pinn_cases import Case, helmholtz, network, paper, sine, size
from tables import best, in_process, peak_memory, show_table

import natgrad as ng

BLOCKS = 2**27  # bytes of J held at once, in the second process
TABLES = ("iteration", "minimize", "kernel", "memory")


def matmul_rate(n: int) -> float:
    """Flops a second of a float64 product of n × n matrices."""
    A = jnp.ones((n, n))
    product = jax.jit(lambda A: A @ A)
    return 2 * n**3 / best(lambda: product(A), least=3)


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
    again = lambda: method.try_step(local, state)
    return best(linearise, 2.0, least=3), best(again, 2.0, least=3)


def iterations(cases: dict[str, Case], rate: float) -> Iterator[list]:
    """A row for each network."""
    for name, case in cases.items():
        k, p = sum(len(b.points) for b in case.pinn.blocks.values()), size(case.start)
        start = time.perf_counter()
        one, two = iteration(case)
        taken, limit = time.perf_counter() - start, 2 * k * p * min(k, p) / rate
        yield [name, p, k, 1e3 * one, 1e3 * two, 1e3 * limit, one / limit, taken]


def whole_iterations(case: Case, count: int, anew: bool = False) -> Iterator[list]:
    """Seconds of a first iteration of `ng.minimize`, and milliseconds of later ones."""
    box = ng.pinn.Box((-1.0, -1.0), (1.0, 1.0))
    sizes = {name: len(block.points) for name, block in case.pinn.blocks.items()}

    @jax.jit
    def draw(key: jax.Array) -> dict[str, jax.Array]:
        one, two = jax.random.split(key)
        inside, edge = sizes.values()
        points = box.uniform(one, inside), box.boundary.uniform(two, edge)
        return dict(zip(sizes, points, strict=True))

    def run(method: ng.NaturalGradient, n: int) -> float:
        stop, start = ng.Stop(iterations=n, gradient=0.0), time.perf_counter()
        batch = ng.Resampled(draw) if anew else None
        ng.minimize(case.pinn.problem, case.start, method, stop=stop, batch=batch)
        return time.perf_counter() - start

    settings = {"solver": ng.Kernel()} if anew else {}
    for order in (1, 3):
        method = ng.levenberg_marquardt(case.pinn.metric, order=order, **settings)
        first, _ = run(method, 1), run(method, count)  # and the clocks of a GPU rise
        yield [order, first, 1e3 * run(method, count) / count]


def peak() -> float:
    """The most memory held so far in GB: by the device, or by the process on a CPU."""
    statistics = jax.devices()[0].memory_stats() or {}
    return statistics.get("peak_bytes_in_use", peak_memory() * 2**30) / 1e9


def held(points: int, memory: int) -> list[float]:
    """In a process of its own: one iteration for the large network, and the peak."""
    case = large(points, memory)
    before = peak()
    one, two = iteration(case)
    whole = 8 * points * size(case.start) / 1e9
    return [memory / 1e9, whole, before, peak(), 1e3 * (one + two)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="fewer points, for a CPU")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--held", type=int, help="in a child: the bytes of J")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    small, only = arguments.small, arguments.only
    points = 200 if small else 2500
    if arguments.held:
        print(json.dumps(held(points, arguments.held)))
        return
    if "iteration" in only:
        cases = {"2-20-30-20-1": paper(0), "2-64-64-48-48-1": sine(0)}
        cases["2-180-180-180-180-1"] = large(points)
        rate = matmul_rate(1024 if small else 8192)
        columns = ["network", "p", "k", "linearise ms", "step ms", "limit ms", "linearise / limit"]
        rows = iterations(cases, rate)
        title = f"An iteration; the limit at {rate / 1e12:.3g} Tflop/s of a float64 product"
        show_table("iteration", [*columns, "all s"], rows, title)
        show_table("product", ["Tflop/s"], [[rate / 1e12]])
    columns = ["order of the curve", "first iteration, s", "an iteration, ms"]
    count, title = 20 if small else 100, "Whole iterations, Helmholtz, 4-30-30-30-30-1"
    if "minimize" in only:
        case = helmholtz(0, 200 if small else 6000, 20 if small else 400)
        show_table("minimize", columns, whole_iterations(case, count), title)
    if "kernel" in only:
        case = helmholtz(0, 200 if small else 2000, 20 if small else 500)
        title += ", kernel form, points drawn anew"
        show_table("kernel", columns, whole_iterations(case, count, anew=True), title)
    if "memory" in only:
        columns = ["J at once, GB", "J, GB", "before, GB", "peak, GB", "an iteration, ms"]
        words = ["--small"] if small else []
        run = lambda memory: in_process(
            *("--held", memory, *words), XLA_PYTHON_CLIENT_PREALLOCATE="false"
        )
        rows = (run(memory) for memory in (2**32, BLOCKS // 8 if small else BLOCKS))
        show_table("memory", columns, rows, f"One iteration for 98,461 parameters, {points} points")


if __name__ == "__main__":
    main()
