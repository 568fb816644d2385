"""One natural gradient direction for a million parameters, on the CPU, in L² and in W₂.

θ is a field on a 1000 × 1000 grid and the state ρ the density after one implicit step of diffusion
from e^θ, (I − tΔ)ρ = e^θ: Z is behind a linear solve, by conjugate gradients that a cosine
transform preconditions. Each metric runs in a process of its own, so that the peak of its memory is
that of the direction. Printed beside the time are the propagations, the residual of the system
after the steps, and how large the matrices would be that are not formed.

    python benchmarks/bench_million.py [--side 1000]
    python benchmarks/bench_million.py --networks          # on an accelerator
    python benchmarks/bench_million.py --networks --widths 40 80 --points 100

With `--networks`, iterations of Levenberg–Marquardt in the kernel form for networks of a hundred
thousand, a million and 12.8 million parameters on −Δu = f: K = YYᵀ is put together from blocks of
the rows of Y, which are made again for each pair of blocks, so that Y is never whole.
"""

import argparse
import json
import time

from tables import in_process, peak_memory, show_table

ITERATIONS, DAMPING = 10, 1e-3
METRICS = ("L²", "W₂")
WIDTHS = (180, 576, 2066)  # of four hidden layers
STEPS = 3


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


def network(width: int, points: int, memory: float) -> list:
    """An iteration for 2-w-w-w-w-1 with so many GB of rows at once, from the second on."""
    import jax
    from pinn_cases import network, sine, size

    import natgrad as ng

    jax.config.update("jax_enable_x64", True)
    case = sine(0, points - points // 10, points // 10, int(memory * 1e9))
    start = network((2, *(width,) * 4, 1), 0)
    method = ng.levenberg_marquardt(case.pinn.metric, solver=ng.Kernel(), order=1)

    def run(iterations: int) -> tuple[float, ng.Result]:
        stop, clock = ng.Stop(iterations=iterations, gradient=0.0), time.perf_counter()
        found = ng.minimize(case.pinn.problem, start, method, stop=stop)
        return time.perf_counter() - clock, found

    first, _ = run(1)
    seconds, found = run(STEPS)
    statistics = jax.devices()[0].memory_stats() or {}
    peak = statistics.get("peak_bytes_in_use", peak_memory() * 2**30) / 1e9
    p, losses = size(start), found.history["loss"]
    whole = 8e-9 * p * points
    return [p, points, first, seconds / STEPS, whole, memory, peak, losses[0], losses[-1]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", action="store_true", help="networks in the kernel form")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--memory", type=float, default=16.0, help="GB of rows held at once")
    parser.add_argument("--width", type=int, help="a network, in a process of its own")
    parser.add_argument("--side", type=int, default=1000, help="points of the grid along a side")
    parser.add_argument("--child", help="a metric, in a process of its own")
    arguments = parser.parse_args()
    n = arguments.side
    if arguments.child:
        print(json.dumps(direction(arguments.child, n)))
        return
    if arguments.width:
        print(json.dumps(network(arguments.width, arguments.points, arguments.memory)))
        return
    if arguments.networks:
        columns = ["p", "k", "first iteration, s", "an iteration, s", "Y, GB", "Y at once, GB"]
        columns += ["peak, GB", "first loss", f"loss after {STEPS}"]
        rows = (
            in_process(
                *("--width", width, "--points", arguments.points, "--memory", arguments.memory),
                XLA_PYTHON_CLIENT_PREALLOCATE="false",
            )
            for width in arguments.widths
        )
        show_table("networks", columns, rows, "Levenberg–Marquardt in the kernel form, by strips")
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
