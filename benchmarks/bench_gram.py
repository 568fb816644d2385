"""Time YᵀY by `natgrad.core.dense.gram` against NumPy's BLAS and other routes through XLA.

Run as `python benchmarks/bench_gram.py`. All routes of a size take turns in one process, and the
best of many is reported, so that the ratios hold on a busy machine. GFLOP/s count kp² flops, those
of the symmetric product; the machine's peak is that of a square matrix product.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

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
    """GFLOP/s of a square matrix product, by NumPy on the host and by XLA on its device."""
    host = np.random.default_rng(0).standard_normal((n, n)).astype(dtype)
    device = jnp.asarray(host)
    square = jax.jit(lambda A: jnp.matmul(A, A, precision=jax.lax.Precision.HIGHEST))
    best = best_of_turns({"host": lambda: host @ host, "device": lambda: square(device)}, 4.0)
    return 2e-9 * n**3 / best["host"][0], 2e-9 * n**3 / best["device"][0]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for dtype in (np.float64, np.float32):
        host_peak, device_peak = matrix_product_peak(dtype)
        print(
            f"\n{dtype.__name__} on {jax.devices()[0].device_kind}; matrix product peak:", end=" "
        )
        print(f"NumPy {host_peak:.1f} GFLOP/s, XLA {device_peak:.1f} GFLOP/s")
        print(f"{'k':>6} {'p':>5} {'route':<24} {'seconds':>10} {'GFLOP/s':>9} ", end="")
        print(f"{'/NumPy':>7} {'/NumPy, CPU s':>14}")
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
            wall_numpy, cpu_numpy = best["NumPy BLAS"]
            for name, (wall, cpu) in best.items():
                rate = 1e-9 * k * p**2 / wall
                print(f"{k:>6} {p:>5} {name:<24} {wall:>10.2e} {rate:>9.1f} ", end="")
                print(f"{wall / wall_numpy:>7.2f} {cpu / cpu_numpy:>14.2f}", flush=True)


if __name__ == "__main__":
    main()
