"""One natural gradient direction for a million parameters, on the CPU, in L² and in W₂.

θ is a field on a 1000 × 1000 grid and the state ρ the density after one implicit step of diffusion
from e^θ, (I − tΔ)ρ = e^θ: Z is behind a linear solve, by conjugate gradients that a cosine
transform preconditions. Each metric runs in a process of its own, so that the peak of its memory is
that of the direction. Printed beside the time are the propagations, the residual of the system
after the steps, and how large the matrices would be that are not formed.

    python benchmarks/bench_million.py [points per side]
"""

import platform
import resource
import subprocess
import sys
import time

ITERATIONS, DAMPING = 10, 1e-3


def direction(name: str, n: int) -> None:
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
    metric = {"L2": ng.L2(grid), "W2": ng.Wasserstein(grid)}[name]
    solver = ng.CG(0.0, max_iterations=ITERATIONS)
    settings = {"metric": metric, "solver": solver, "damping": DAMPING}
    find = lambda: ng.natural_gradient(problem, theta, **settings)
    clock = time.perf_counter()
    find()
    first, clock = time.perf_counter() - clock, time.perf_counter()
    d = find()
    seconds = time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    slope = float(jnp.vdot(d.gradient, d.eta))
    counts = "/".join(map(str, d.info.counts))
    row = (name, f"{seconds:.1f} s", f"{first:.1f} s", f"{peak:.2f} GiB", counts)
    print(f"| {' | '.join(row)} | {d.info.residual:.1e} | {slope:.2e} | {d.info.status} |")


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{platform.processor() or platform.machine()}, p = k = {n * n:,}", end="; ")
    print(f"{ITERATIONS} steps of CG; Z or G would take {8 * n**4 / 2**40:.1f} TiB\n")
    print(
        "| metric | a direction | first call | peak memory | fwd/lin/adj | residual | ⟨∂f, η⟩ | |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in ("L2", "W2"):
        subprocess.run([sys.executable, __file__, "--one", name, str(n)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        direction(sys.argv[2], int(sys.argv[3]))
    else:
        main()
