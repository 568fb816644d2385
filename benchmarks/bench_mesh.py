"""A network at collocation points and a W₂ metric on slabs: one process of several devices.

    python benchmarks/bench_mesh.py [--devices 2] [--side 512] [--points 3000]

Wall seconds of an iteration of `minimize`, the shortest of four, with the first n CPU devices as
the mesh, for each n in a process of its own with as many cores. The network has 1,326 parameters,
tanh, float64, and G by `Cholesky`; the density is a sum of two bumps on side × side cells, with ten
steps of CG and multigrid under W₂.
"""

import argparse
import json
import os

from tables import in_process, show_table


def network(points: int):
    """A residual at points inside a square and its values on two edges."""
    import jax.numpy as jnp
    import numpy as np

    import natgrad as ng

    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]))
    net = {"A": draw(2, 35), "a": draw(35), "B": draw(35, 33), "b": draw(33), "c": draw(33)}
    hidden = lambda net, x: jnp.tanh(jnp.tanh(x @ net["A"] + net["a"]) @ net["B"] + net["b"])
    u = lambda net, x: hidden(net, x) @ net["c"]
    equation = lambda net, x: ng.laplacian(lambda y: u(net, y), x) + jnp.sin(3 * x[0])
    inside, edge = rng.uniform(size=(points, 2)), rng.uniform(size=(points // 10 // 4 * 4, 2))
    model = ng.Collocation(
        interior=ng.Residual(equation, inside), boundary=ng.Residual(u, edge * [1.0, 0.0])
    )
    method = ng.NaturalGradient(model.metric, solver=ng.Cholesky(), damping=1e-4)
    return model.problem, net, method


def slabs(side: int):
    """Two bumps, moved in W₂."""
    import jax.numpy as jnp

    import natgrad as ng

    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (side, side))
    points = grid.points

    def density(theta):
        squares = jnp.sum((points[..., None, :] - theta.reshape(2, 2)) ** 2, -1)
        return jnp.exp(-squares / 0.04) @ jnp.array([0.6, 0.4]) + 0.05

    problem = ng.Problem(density, ng.LeastSquares(density(jnp.array([0.3, 0.3, 0.7, 0.6])), grid))
    metric = ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic("multigrid"))
    method = ng.NaturalGradient(metric, solver=ng.CG(0.0, max_iterations=10), damping=1.0)
    return problem, jnp.array([0.4, 0.35, 0.6, 0.55]), method


def measure(count: int, side: int, points: int) -> dict[str, float]:
    """Seconds of an iteration over `count` devices, with a core for each."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[:count]))
    import jax

    jax.config.update("jax_num_cpu_devices", count)
    jax.config.update("jax_enable_x64", True)
    import numpy as np

    import natgrad as ng

    mesh = jax.make_mesh((count,), ("devices",)) if count > 1 else None
    found, stop = {}, ng.Stop(iterations=6, gradient=0.0)
    for name, (problem, theta, method) in {
        f"a network at {points + points // 10 // 4 * 4:,} points": network(points),
        f"W₂ on {side}² cells in slabs": slabs(side),
    }.items():
        run = ng.minimize(problem, theta, method, stop=stop, mesh=mesh)
        seconds = np.diff(run.history["seconds"])[1:-1]  # the last row is of a point not linearised
        found[name] = float(seconds.min())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--points", type=int, default=3000)
    parser.add_argument("--child", type=int)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(measure(args.child, args.side, args.points)))
        return
    size = ("--side", args.side, "--points", args.points)
    one, several = (in_process("--child", count, *size) for count in (1, args.devices))
    rows = [[name, one[name], several[name], one[name] / several[name]] for name in one]
    columns = ["an iteration", "one device, s", f"{args.devices} devices, s", "faster by"]
    show_table("iteration", columns, rows)


if __name__ == "__main__":
    main()
