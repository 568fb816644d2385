"""One natural gradient direction for a million parameters, on the CPU, in L² and in W₂.

θ is a field on a 1000 × 1000 grid and the state ρ the density after one implicit step of diffusion
from e^θ, (I − tΔ)ρ = e^θ: Z is behind a linear solve, by conjugate gradients that a cosine
transform preconditions. Each metric runs in a process of its own, so that the peak of its memory is
that of the direction. Printed beside the time are the propagations, the residual of the system
after the steps, and how large the matrices would be that are not formed.

    python benchmarks/bench_million.py [--side 1000]
"""

import argparse
import json
import time

from tables import in_process, peak_memory, show_table

ITERATIONS, DAMPING = 10, 1e-3
METRICS = ("L²", "W₂")


def direction(name: str, n: int) -> list:
    import jax
    import jax.numpy as jnp
    import lineax as lx
    from jax.scipy.fft import dctn, idctn

    import natgrad as ng

    jax.config.update("jax_enable_x64", True)
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (n, n))
    x, y = grid.points[..., 0], grid.points[..., 1]
    t = 1e-4
    waves = (2 - 2 * jnp.cos(jnp.pi * jnp.arange(n) / n)) * n**2
    symbol = 1 + t * (waves[:, None] + waves)

    def minus_laplacian(u):
        padded = jnp.pad(u, 1, mode="edge")
        near = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
        return (4 * u - near) * n**2

    def smoothed(b):
        return idctn(dctn(b, norm="ortho") / symbol, norm="ortho")

    structure = jax.ShapeDtypeStruct(grid.shape, jnp.float64)
    model = ng.ImplicitModel(
        lambda rho, theta: rho + t * minus_laplacian(rho) - jnp.exp(theta),
        initial=jnp.zeros(grid.shape),
        linear=True,
        linear_solver=lx.CG(rtol=1e-10, atol=1e-12),
        tags=lx.positive_semidefinite_tag,
        preconditioner=lambda rho, theta: lx.FunctionLinearOperator(
            smoothed, structure, lx.positive_semidefinite_tag
        ),
    )
    bump = lambda a, b: jnp.exp(-60 * ((x - a) ** 2 + (y - b) ** 2))
    target = smoothed(0.2 + bump(0.6, 0.55))
    problem = ng.Problem(model, ng.LeastSquares(target, grid))
    theta = jnp.log(0.2 + bump(0.45, 0.45))
    metric = ng.L2(grid) if name == METRICS[0] else ng.Wasserstein(grid)
    solver = ng.CG(0.0, max_iterations=ITERATIONS)
    settings = {"metric": metric, "solver": solver, "damping": DAMPING}
    find = lambda: ng.natural_gradient(problem, theta, **settings)
    clock = time.perf_counter()
    find()
    first, clock = time.perf_counter() - clock, time.perf_counter()
    d = find()
    seconds = time.perf_counter() - clock
    slope = float(jnp.vdot(d.gradient, d.eta))
    spent = [*d.info.counts, float(d.info.residual), slope, str(d.info.status)]
    return [name, seconds, first, peak_memory(), *spent]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=1000, help="points of the grid along a side")
    parser.add_argument("--child", help="a metric, in a process of its own")
    arguments = parser.parse_args()
    n = arguments.side
    if arguments.child:
        print(json.dumps(direction(arguments.child, n)))
        return
    columns = ["metric", "a direction, s", "first call, s", "peak GiB"]
    columns += ["forward", "linearised", "adjoint", "residual", "⟨∂f, η⟩", "status"]
    rows = (in_process("--side", n, "--child", name) for name in METRICS)
    size = 8 * n**4 / 2**40
    title = f"p = k = {n * n:,}, {ITERATIONS} steps of CG; Z or G would take {size:.1f} TiB"
    show_table("direction", columns, rows, title)
    show_table("matrix", ["Z or G, TiB"], [[size]])


if __name__ == "__main__":
    main()
