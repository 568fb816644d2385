"""The numbers of the gallery and of the quick start, from the examples at their full size.

    python benchmarks/bench_examples.py [quickstart optimal_transport l_shape point_cloud ...]

Figures go to `results/examples`.
"""

import argparse
import contextlib
import re
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tables import peak_memory, show_table

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "results/examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))


def quickstart() -> None:
    """The comparison of the page, by its own code."""
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    upto = next(i for i, code in enumerate(blocks) if "comparison = " in code) + 1
    names: dict[str, Any] = {"__name__": "quickstart"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # it writes files
        exec("\n".join(blocks[:upto]), names)
    comparison = names["comparison"]
    for name, table in (("runs", comparison.table()), ("winners", comparison.winners())):
        show_table(f"quickstart_{name}", table.header, table.rows, table.caption)


def optimal_transport() -> None:
    """Values of the dual in both metrics, and errors for Gaussians."""
    names = example("optimal_transport")
    found = {n: names["main"](size=64, iterations=n, output=OUTPUT) for n in (60, 120)}
    best = found[120]["½W₂² by Ḣ¹"]
    rows = [[name[-2:], value, 1 - value / best] for name, value in found[60].items()]
    columns = ["metric", "½W₂² after 60 iterations", "short of the best by"]
    show_table("transport_dual", columns, rows, "64² cells; the best is that of Ḣ¹ after 120")
    rows = [[n, names["gaussian_error"](n)] for n in (32, 64, 128)]
    show_table("transport_gaussians", ["n", "relative error of ½W₂²"], rows)


def l_shape() -> None:
    """Iterations of each metric on the mesh of the figure."""
    runs = example("l_shape")["main"](refinements=4, output=OUTPUT)
    loss = lambda run: run.history["loss"]
    rows = [[name, run.iterations, loss(run)[-1] / loss(run)[0]] for name, run in runs.items()]
    show_table("l_shape", ["method", "iterations", "loss / first"], rows)


def point_cloud() -> None:
    """Where every method ends on the ring."""
    names = example("point_cloud")
    rows = []
    for name, run in names["main"](output=OUTPUT).items():
        each = run.seconds[-1] / (len(run.losses) - 1)
        rows.append([names["STYLES"][name][0], len(run.losses) - 1, run.losses[-1], each])
    columns = ["method", "iterations", "energy distance", "s an iteration"]
    show_table("point_cloud", columns, rows)


def density_image() -> None:
    """A million cells and 102,400 parameters."""
    names = example("density_image")
    grid, target = names["unit_square"](1000), names["galaxy"](1000)
    model = names["LogDensity"](1000, 320)
    runs = names["main"](size=1000, field=320, iterations=8, output=OUTPUT)
    rows = []
    for name, run in runs.items():
        loss = run.result.history["loss"]
        misplaced, behind, _ = names["errors"](grid, model(run.thetas[-1]), target)
        found = [run.seconds, loss[-1] / loss[0], misplaced, behind, run.compile_seconds]
        rows.append([names["STYLES"][name][0], *found])
    columns = ["metric", "s an iteration", "loss / first", "mass out of place"]
    columns += ["left where the spot was", "compiling, s"]
    show_table("density_image", columns, rows, "1000² cells, p = 102,400, 8 iterations")
    import jax

    statistics = jax.devices()[0].memory_stats() or {}
    peak = statistics.get("peak_bytes_in_use", peak_memory() * 2**30) / 2**30
    show_table("density_memory", ["peak GiB"], [[peak]])


def training_loops() -> None:
    """The best of the rates in every library that is installed."""
    rows = []
    for (library, method), run in example("training_loops")["main"](output=OUTPUT).items():
        each = 1e3 * run.seconds[-1] / run.steps[-1]
        rows.append([method, library, int(run.steps[-1]), run.rate, run.errors[-1], each])
    columns = ["method", "library", "steps", "rate", "relative error", "ms a step"]
    show_table("training_loops", columns, rows)


EXAMPLES: dict[str, Callable[[], None]] = {
    run.__name__: run
    for run in (quickstart, optimal_transport, l_shape, point_cloud, density_image, training_loops)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*EXAMPLES, []], default=list(EXAMPLES))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().names:
        EXAMPLES[name]()


if __name__ == "__main__":
    np.seterr(under="ignore")
    main()
