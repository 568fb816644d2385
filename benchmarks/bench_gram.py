"""Time YᵀY by `natgrad.core.dense.gram` against NumPy's BLAS and other routes through XLA.

Run as `python benchmarks/bench_gram.py`. All routes of a size take turns in one process, and the
best of many is reported, so that the ratios hold on a busy machine. Gflop/s count kp² flops, those
of the symmetric product; the machine's peak is that of a square matrix product.
"""

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from tables import show_table

from natgrad.core.dense import gram, gram_outer

SIZES = [(k, p) for p in (2, 20, 200) for k in (4900, 19600, 78400)] + [(2500, 1331)]
SECONDS_PER_SIZE = 4.0


def xla_symmetric_product(Y: jax.Array) -> jax.Array:
    zero = jnp.zeros((Y.shape[1], Y.shape[1]), Y.dtype)
    return jax.lax.linalg.symmetric_product(Y.T, zero, symmetrize_output=True)


def best_of_turns(routes: dict[str, Callable], seconds: float) -> dict[str, tuple[float, float]]:
    """The smallest wall-clock and CPU seconds of each route, taking turns."""
    best = dict.fromkeys(routes, (np.inf, np.inf))
    for route in routes.values():
        jax.block_until_ready(route())
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, route in routes.items():
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(route())
            spent = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = min(best[name][0], spent[0]), min(best[name][1], spent[1])
    return best


def matrix_product_peak(dtype: type, n: int = 1500) -> tuple[float, float]:
    """Gflop/s of a square matrix product, by NumPy on the host and by XLA on its device."""
    host = np.random.default_rng(0).standard_normal((n, n)).astype(dtype)
    device = jnp.asarray(host)
    square = jax.jit(lambda A: jnp.matmul(A, A, precision=jax.lax.Precision.HIGHEST))
    best = best_of_turns({"host": lambda: host @ host, "device": lambda: square(device)}, 4.0)
    return 2e-9 * n**3 / best["host"][0], 2e-9 * n**3 / best["device"][0]


def products(dtype: type) -> Iterator[list]:
    """A row for each size and route."""
    for k, p in SIZES:
        host = np.random.default_rng(0).standard_normal((k, p)).astype(dtype)
        Y, Yt = jnp.asarray(host), jnp.asarray(host.T.copy())
        stored = jax.jit(lambda A: jnp.matmul(A, A.T, precision=jax.lax.Precision.HIGHEST))
        plain = jax.jit(lambda Y: jnp.matmul(Y.T, Y, precision=jax.lax.Precision.HIGHEST))
        symmetric = jax.jit(xla_symmetric_product)
        ours, outer = jax.jit(gram), jax.jit(gram_outer)
        routes = {
            "NumPy BLAS": lambda A=host: A.T @ A,
            "Y.T @ Y": lambda f=plain, A=Y: f(A),
            "Yt @ Yt.T, stored so": lambda f=stored, A=Yt: f(A),
            "lax symmetric_product": lambda f=symmetric, A=Y: f(A),
            "natgrad gram": lambda f=ours, A=Y: f(A),
            "natgrad gram_outer": lambda f=outer, A=Yt: f(A),
        }
        best = best_of_turns(routes, SECONDS_PER_SIZE)
        (wall_numpy, cpu_numpy), (plain_wall, _) = best["NumPy BLAS"], best["Y.T @ Y"]
        for name, (wall, cpu) in best.items():
            rate, ratios = 1e-9 * k * p**2 / wall, [wall / wall_numpy, cpu / cpu_numpy]
            yield [name, k, p, 1e3 * wall, rate, *ratios, plain_wall / wall]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    columns = [
        "route",
        "k",
        "p",
        "ms",
        "Gflop/s",
        "over NumPy",
        "CPU over NumPy",
        "Y.T @ Y over it",
    ]
    peaks = []
    for dtype in (np.float64, np.float32):
        peaks.append([dtype.__name__, *matrix_product_peak(dtype)])
        show_table(dtype.__name__, columns, products(dtype), f"{dtype.__name__}, YᵀY")
    title = "Gflop/s of a square matrix product"
    show_table("peak", ["precision", "NumPy", "XLA"], peaks, title)


if __name__ == "__main__":
    main()
