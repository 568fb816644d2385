"""Problems for runs over several devices and processes, and one process of such a run.

`python one_of_many.py NUMBER COUNT PORT TASK FOLDER`: the task `run` prints the results of all
problems as JSON, `rival` that of L-BFGS; `die` is a run with a checkpoint that the last process
does not survive; `differ` gives the second process another argument, each in turn;
in `absent` it does not make the call.
"""

import json
import os
import signal
import sys
import warnings
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
import natgrad.devices
from natgrad import waves as ngwaves

START = np.array([0.4, 0.35, 0.6, 0.55])  # no array of JAX before the processes have met
TRUTH = np.array([0.3, 0.3, 0.7, 0.6])


def bumps(grid):
    """Two bumps on a background, θ their centres, along every axis the same."""
    points = grid.points

    def density(theta):
        centres = jnp.stack([theta.reshape(2, 2)[:, i % 2] for i in range(grid.dimension)], -1)
        squares = jnp.sum((points[..., None, :] - centres) ** 2, -1)
        return jnp.exp(-squares / 0.04) @ jnp.array([0.6, 0.4]) + 0.05

    return ng.Problem(density, ng.LeastSquares(density(jnp.asarray(TRUTH)), grid))


@cache
def transport():
    """A density on a plane in W₂, by multigrid."""
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (16, 12))
    metric = ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic("multigrid"))
    return bumps(grid), jnp.asarray(START), ng.NaturalGradient(metric, damping=1e-3)


@cache
def pinn():
    """A small network at collocation points of two blocks."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
    net = {"a": draw(2, 6), "b": draw(6), "c": draw(6)}
    u = lambda net, x: jnp.tanh(x @ net["a"] + net["b"]) @ net["c"]
    inside, edge = rng.uniform(size=(24, 2)), rng.uniform(size=(8, 2)) * [1.0, 0.0]
    equation = lambda net, x: ng.laplacian(lambda y: u(net, y), x) + jnp.sin(3 * x[0])
    model = ng.Collocation(
        interior=ng.Residual(equation, inside, weight=0.1), boundary=ng.Residual(u, edge)
    )
    method = ng.NaturalGradient(model.metric, solver=ng.Cholesky(), damping=1e-3)
    return model.problem, net, method


@cache
def waves():
    """Waves of five shots, which no even number of devices divides."""
    velocity = np.full((20, 16), 2000.0)
    line = {"dt": 0.008, "steps": 80, "shots": 5, "frequency": 4.0}
    survey = ngwaves.Survey.line(velocity.shape, 40.0, **line)
    model = ngwaves.Acoustic(survey, velocity, absorbing=6, dtype=jnp.float64)
    rng = np.random.default_rng(1)
    faster = velocity * (1 + 0.1 * rng.uniform(size=velocity.shape))
    data = model(jnp.asarray(ngwaves.squared_slowness(faster)))
    problem = ng.Problem(model, ng.LeastSquares(np.asarray(data), survey.gather_grid))
    start = jnp.asarray(ngwaves.squared_slowness(velocity))
    metric = ng.L2(survey.gather_grid)
    return problem, start, ng.NaturalGradient(metric, solver=ng.CG(0.0, max_iterations=2))


PROBLEMS = {"transport": transport, "pinn": pinn, "waves": waves}


def numbers(theta):
    """θ as a list."""
    return [float(x) for leaf in jax.tree.leaves(theta) for x in np.ravel(leaf)]


def main(number: int, count: int, port: int, task: str, folder: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    address = f"127.0.0.1:{port}"
    heartbeat = 10 if task == "die" else 100  # as JAX has it
    jax.distributed.initialize(address, count, number, heartbeat_timeout_seconds=heartbeat)
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))

    def killed(progress):
        if number == count - 1 and progress.iteration == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    if task == "run":
        found = {}
        for name, make in PROBLEMS.items():
            problem, theta, method = make()
            result = ng.minimize(problem, theta, method, stop=ng.Stop(iterations=2), mesh=mesh)
            found[name] = {"loss": result.loss, "theta": numbers(result.theta)}
        print(json.dumps(found))
    elif task == "rival":
        problem, theta, _ = PROBLEMS["transport"]()
        rival = ng.minimize(
            problem, theta, ng.LBFGS(10), stop=ng.Stop(iterations=2, seconds=600), mesh=mesh
        )
        print(json.dumps(numbers(rival.theta)))
    elif task == "die":
        problem, theta, method = PROBLEMS["transport"]()
        run = {"mesh": mesh, "checkpoint": ng.Checkpoint(folder / f"run{number}.npz", seconds=0.0)}
        try:
            stop = ng.Stop(gradient=0.0)
            ng.minimize(problem, theta, method, stop=stop, **run, callbacks=[killed])
        except ng.errors.PeerError as error:
            print(json.dumps([str(error), error.__notes__, numbers(error.natgrad_result.theta)]))
            sys.stdout.flush()
            os._exit(3)  # no farewell to a process that is gone
    elif task == "differ":
        print(json.dumps({name: differ(name, number, mesh, folder) for name in DIFFERENT}))
    elif task == "absent":
        natgrad.devices.LATE, natgrad.devices.ABSENT = 1.0, 2.0
        with warnings.catch_warnings(record=True) as warned:
            found = differ("progress", 0, mesh, folder) if number == 0 else ""
        print(json.dumps([found, *(str(w.message) for w in warned)]))


def differ(name: str, number: int, mesh: jax.sharding.Mesh, folder: Path) -> str:
    """What becomes of a run for which the second process has another argument."""
    points = np.linspace(0.0, 1.0, 16)
    shift = 0.5 * number if name == "closure" else 0.0
    model = lambda theta: jnp.exp(-((points - theta[0] - shift) ** 2) / 0.1) + theta[1] * points
    target = np.sin(points) + (number if name == "target" else 0.0)
    rate = 0.2 if name == "method" and number else 0.1
    given = {
        "problem": ng.Problem(model, ng.LeastSquares(target)),
        "theta0": np.array([0.4, 0.4]),
        "method": ng.NaturalGradient(ng.L2(), damping=1e-2, step=ng.FixedStep(rate)),
        "stop": ng.Stop(iterations=3, gradient=0.0),
        "mesh": mesh,
        "progress": False,
    }
    if number:
        given |= {} if name in ("closure", "target", "method") else OTHER[name](mesh, folder)
    elif name == "callbacks of the first":
        given |= {"callbacks": [lambda progress: progress.iteration == 2]}
    try:
        result = ng.minimize(**given)
    except ng.InputError as error:
        return str(error)
    return f"{result.status} {result.iterations}"


OTHER = {  # of the second process
    "theta0": lambda mesh, folder: {"theta0": np.array([0.4, 0.5])},
    "bounds": lambda mesh, folder: {"bounds": (0.0, 1.0)},
    "iterations": lambda mesh, folder: {"stop": ng.Stop(iterations=4, gradient=0.0)},
    "seconds": lambda mesh, folder: {"stop": ng.Stop(iterations=3, gradient=0.0, seconds=60.0)},
    "damping": lambda mesh, folder: {"method": ng.NaturalGradient(ng.L2(), damping=1e-3)},
    "batch": lambda mesh, folder: {"batch": ng.MiniBatch(4)},
    "held_out": lambda mesh, folder: {"held_out": ng.Problem(jnp.sin, jnp.sum)},
    "checkpoint": lambda mesh, folder: {"checkpoint": folder / "run.npz"},
    "snapshots": lambda mesh, folder: {"snapshots": 2},
    "no method": lambda mesh, folder: {"method": None},
    "mesh": lambda mesh, folder: {"mesh": jax.sharding.Mesh(mesh.devices[::-1], mesh.axis_names)},
    "callbacks": lambda mesh, folder: {"callbacks": [lambda progress: True]},
    "callbacks of the first": lambda mesh, folder: {},
    "progress": lambda mesh, folder: {"progress": None},
}
REFUSED = {  # the argument that each is refused by; the others go on
    **{name: name for name in ("theta0", "bounds", "batch", "held_out")},
    **{name: name for name in ("checkpoint", "snapshots", "mesh")},
    **{"closure": "problem", "target": "problem", "method": "method", "damping": "method"},
    **{"iterations": "stop", "seconds": "stop", "no method": "method"},
}
DIFFERENT = ("closure", "target", "method", *OTHER)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4], Path(sys.argv[5]))
