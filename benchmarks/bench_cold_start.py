"""From `python script.py` to a first result: seconds, CPU seconds, programs compiled.

Each case is a process of its own, with the import of natgrad and nothing compiled before; then
once more with the programs of the first on disk (`ng.cache`). Python's bytecode is there in all of
them, as after an installation. The README's example runs to its end, networks make one iteration.

    python benchmarks/bench_cold_start.py --only "README, L²" "README, W₂"
"""

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from tables import in_process, show_table

Run = Callable[[], Any]


def readme(metric: str) -> Run:
    """The ten lines of the README in this metric."""
    import jax
    import jax.numpy as jnp

    import natgrad as ng

    grid = ng.Grid(0.0, 10.0, 200)

    def mixture(theta: dict[str, jnp.ndarray]) -> jnp.ndarray:
        z = (grid.points - theta["mean"]) / jnp.exp(theta["log_width"])
        weights = jnp.array([0.4, 0.6])
        return jnp.exp(-0.5 * z**2 - theta["log_width"]) @ weights / jnp.sqrt(2 * jnp.pi)

    data = jax.jit(mixture)({"mean": jnp.array([2.5, 6.5]), "log_width": jnp.array([-0.5, -0.1])})
    start = {"mean": jnp.array([4.0, 5.0]), "log_width": jnp.array([0.0, 0.0])}
    problem = ng.Problem(mixture, ng.KullbackLeibler(data, grid))
    metrics = {
        "L2": ng.L2(grid),
        "FR": ng.FisherRao(grid),
        "W2": ng.Wasserstein(grid),
        "H1": ng.Sobolev(grid, 1),
        "H-1": ng.Sobolev(grid, -1),
    }
    if metric in metrics:
        method = ng.NaturalGradient(metrics[metric])
        return lambda: ng.minimize(problem, start, method)
    methods: dict[str, Any] = {name: ng.NaturalGradient(metrics[name]) for name in metrics}
    methods |= {"gradient": ng.GradientDescent(), "L-BFGS": ng.LBFGS(10)}
    return lambda: ng.compare(problem, start, methods, stop=ng.Stop(iterations=20))


def network(name: str, order: int) -> Run:
    """The first iteration of Levenberg–Marquardt."""
    from pinn_cases import helmholtz, paper

    import natgrad as ng

    case = paper(0) if name == "paper" else helmholtz(0)
    method = ng.levenberg_marquardt(case.pinn.metric, order=order)
    stop = ng.Stop(iterations=1)
    return lambda: ng.minimize(case.pinn.problem, case.start, method, stop=stop)


CASES: dict[str, Callable[[], Run]] = {
    "README, L²": lambda: readme("L2"),
    "README, Fisher–Rao": lambda: readme("FR"),
    "README, W₂": lambda: readme("W2"),
    "compare, seven methods": lambda: readme("all"),
    "the paper's network, order 3": lambda: network("paper", 3),
    "Helmholtz, order 1": lambda: network("helmholtz", 1),
    "Helmholtz, order 2": lambda: network("helmholtz", 2),
    "Helmholtz, order 3": lambda: network("helmholtz", 3),
}


def measure(name: str, folder: str) -> list[float]:
    """In a process of its own: seconds, CPU seconds, those of the import, programs compiled."""
    began = time.perf_counter() - time.process_time()  # close to the start of the process
    import jax
    import jax.monitoring

    import natgrad as ng

    jax.config.update("jax_enable_x64", True)
    if folder:
        ng.cache(folder)
    imported, programs = time.process_time(), 0

    def note(event: str, seconds: float, **kwargs: Any) -> None:
        nonlocal programs
        programs += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(note)
    run = CASES[name]()
    run()
    return [time.perf_counter() - began, time.process_time(), imported, programs]


def rows(names: list[str]) -> Iterator[list]:
    """A row for each case."""
    run = functools.partial(in_process, PYTHONDONTWRITEBYTECODE="")
    run("--case", names[0])  # writes the bytecode
    for name in names:
        cold = run("--case", name)
        with tempfile.TemporaryDirectory() as folder:
            run("--case", name, "--folder", folder)
            warm = run("--case", name, "--folder", folder)
        yield [name, *cold, warm[0], warm[1]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--case", help="in a child: what it measures")
    parser.add_argument("--folder", default="", help="in a child: where programs are kept")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.folder)))
        return
    columns = ["case", "seconds", "CPU s", "of them import", "programs", "warm s", "warm CPU s"]
    show_table("cold_start", columns, rows(arguments.only), "From the start to a first result")


if __name__ == "__main__":
    main()
