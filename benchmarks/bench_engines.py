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

import numpy as np

ORDERS = (4, 8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, nargs="+", default=[48, 96, 192])
    arguments = parser.parse_args()
    os.environ.setdefault("DEVITO_LANGUAGE", "C")
    import jax

    jax.config.update("jax_enable_x64", True)
    import engine_cases

    from natgrad.errors import PrecisionWarning
    from natgrad.report import versions

    warnings.simplefilter("ignore", PrecisionWarning)
    print(versions())
    print(
        f"\n{'engine':<10} {'order':>5} {'cells':>6} {'data':>9} {'gradient':>9} {'direction':>9}"
    )
    installed = [name for name in engine_cases.ENGINES if importlib.util.find_spec(name)]
    cases = {n: engine_cases.case(n) for n in arguments.cells}
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
                said = " ".join(f"{x:9.1e}" for x in now)
                rates = "" if before is None or order == 4 else f"orders {np.log2(before / now)}"
                print(f"{engine:<10} {order:5} {n:6} {said} {seconds:6.1f} s  {rates}", flush=True)
                before = now


if __name__ == "__main__":
    np.set_printoptions(precision=2)
    main()
