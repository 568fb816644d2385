"""The same waves by JAX, PyTorch, deepwave and devito: data, gradients, natural gradients.

    python benchmarks/bench_engines.py [--cells 48 96 192]

Relative differences to natgrad's own propagator of order 4, of the traces, of the gradient of a
least-squares misfit and of the L² natural gradient after three conjugate gradients, in double
precision. With the same scheme they are rounding and what leaves the edges too early. With order 8
they are the error of order 4 in space, which falls with the fourth power of the spacing.
Seconds are those of all three, with compiling. Engines that are not installed are left out:
`pip install "natgrad[torch,deepwave,devito]"`.
"""

import argparse
import importlib.util
import os
import time
import warnings
from collections.abc import Iterator

import numpy as np
from tables import show_table

ORDERS = (4, 8)


def compared(cells: list[int]) -> Iterator[list]:
    """A row for each engine, order and grid; observed orders from the grid before."""
    import engine_cases

    installed = [name for name in engine_cases.ENGINES if importlib.util.find_spec(name)]
    cases = {n: engine_cases.case(n) for n in cells}
    own = {n: engine_cases.found(case, "jax") for n, case in cases.items()}
    for order in ORDERS:
        for engine in installed:
            if (engine, order) == ("jax", 4):
                continue
            before: np.ndarray | None = None
            for n, case in cases.items():
                start = time.perf_counter()
                found = engine_cases.found(case, engine, order)
                seconds = time.perf_counter() - start
                now = np.array(found.differences(own[n]))
                last = before is None or order == 4
                rates = [None] * len(now) if last else list(np.log2(before / now))
                yield [engine, order, n, *now, *rates, seconds]
                before = now


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, nargs="+", default=[48, 96, 192])
    arguments = parser.parse_args()
    os.environ.setdefault("DEVITO_LANGUAGE", "C")
    import jax

    jax.config.update("jax_enable_x64", True)
    from natgrad.errors import PrecisionWarning

    warnings.simplefilter("ignore", PrecisionWarning)
    what = ["data", "gradient", "direction"]
    columns = ["engine", "order", "cells", *what, *(f"order of {w}" for w in what), "seconds"]
    show_table("differences", columns, compared(arguments.cells))


if __name__ == "__main__":
    main()
