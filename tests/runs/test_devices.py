"""Runs over several devices, in this process and in two that meet on loopback, equal plain ones."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

import natgrad as ng
from cases import BOUNDARIES
from natgrad.core.sharding import InParts, in_parts, row_mesh
from natgrad.devices import Devices
from natgrad.metrics.elliptic.spectral import inverse_transform, transform
from natgrad.solvers import Kernel
from one_of_many import DIFFERENT, PROBLEMS, REFUSED, START, bumps, numbers
from problems_for_tests import with_slow

SCRIPT = Path(__file__).parents[1] / "helpers" / "one_of_many.py"
PLANE = ng.Grid((0.0, 0.0), (1.0, 1.0), (16, 12))
RING = ng.Grid((0.0, 0.0), (1.0, 1.0), (8, 12), boundary="periodic")
LINE = ng.Grid(0.0, 1.0, 32)


@pytest.fixture(scope="module")
def mesh():
    if jax.device_count() < 4:
        pytest.skip("needs four devices")
    return jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4])  # any shape will do


def same_direction(problem, theta, mesh, tolerance=1e-9, **method):
    """One direction on one device and on the mesh."""
    plain = ng.natural_gradient(problem, theta, **method)
    spread = ng.natural_gradient(problem, theta, **method, mesh=mesh)
    a, b = (np.array(numbers(d.eta)) for d in (plain, spread))
    assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(a)
    assert spread.loss == pytest.approx(plain.loss, rel=1e-12)
    assert plain.info.status == spread.info.status
    assert plain.info.counts == spread.info.counts
    assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(spread.eta))


METRICS = {
    "L2": (PLANE, ng.L2(PLANE), ng.PivotedQR()),
    "H-1": (PLANE, ng.Sobolev(PLANE, -1), ng.CG(1e-12)),
    "H1 periodic": (RING, ng.Sobolev(RING, 1), ng.Cholesky()),
    "sum on a line": (LINE, ng.Wasserstein(LINE) + 0.1 * ng.FisherRao(LINE), ng.QR()),
    "W2 by elimination": (PLANE, ng.Wasserstein(PLANE), ng.Cholesky()),
}


@pytest.mark.parametrize("name", with_slow(METRICS, {*METRICS} - {"W2 by elimination"}))
def test_a_direction_on_slabs_of_a_grid(mesh, name):
    grid, metric, solver = METRICS[name]
    same_direction(bumps(grid), START, mesh, metric=metric, solver=solver)


ROWS = [ng.Cholesky(), Kernel(), ng.QR()]


@pytest.mark.parametrize("solver", with_slow(ROWS, [ROWS[0], ROWS[2]]), ids=lambda s: s.name)
def test_a_direction_from_rows_at_points_of_every_device(mesh, solver):
    problem, net, method = PROBLEMS["pinn"]()
    settings = {"metric": method.metric, "damping": method.damping, "solver": solver}
    same_direction(problem, net, mesh, 1e-8, **settings)


def test_a_network_in_a_metric_that_is_not_diagonal(mesh):
    model = ng.Pointwise(function=lambda t, x: jnp.sin(t @ jnp.cos(x[0] * T)), points=PLANE.points)
    T = jnp.arange(4.0)
    problem = ng.Problem(model, ng.LeastSquares(np.ones(PLANE.shape), PLANE))
    same_direction(problem, START, mesh, metric=ng.Sobolev(PLANE, -1), damping=1e-2)


@pytest.mark.slow
def test_sources_and_implicit_models(mesh):
    x = jnp.linspace(0.0, 1.0, 8)
    model = ng.Sourcewise(lambda t, w: jnp.sin(w * t[0] * x + t[1:].sum()), jnp.arange(1.0, 9.0))
    problem = ng.Problem(model, ng.LeastSquares(np.ones((8, 8))))
    same_direction(problem, START, mesh, metric=ng.MatrixMetric(np.eye(64)), damping=1e-2)
    residual = lambda u, t: (3 + t[0] ** 2) * u - jnp.roll(u, 1) - jnp.roll(u, -1) - jnp.sin(x)
    implicit = ng.ImplicitModel(residual, initial=jnp.zeros(8), linear=True)
    problem = ng.Problem(implicit, ng.LeastSquares(np.ones(8)))
    same_direction(problem, START[:1], mesh, metric=ng.MatrixMetric(np.eye(8)))


@pytest.mark.slow
def test_shots_and_mini_batches_of_them(mesh):
    problem, theta, method = PROBLEMS["waves"]()
    run = {"stop": ng.Stop(iterations=2), "batch": ng.MiniBatch(3, of="functions")}
    plain = ng.minimize(problem, theta, method, **run)
    spread = ng.minimize(problem, theta, method, **run, mesh=mesh)
    assert np.allclose(plain.theta, spread.theta, rtol=1e-9)
    assert np.allclose(plain.history["loss"], spread.history["loss"], rtol=1e-9)


@pytest.mark.slow
def test_collocation_points_drawn_anew(mesh):
    problem, net, method = PROBLEMS["pinn"]()
    draw = lambda key: {"interior": jax.random.uniform(key, (24, 2))}
    run = {"stop": ng.Stop(iterations=3), "batch": ng.Resampled(draw)}
    plain, spread = (ng.minimize(problem, net, method, **run, mesh=m) for m in (None, mesh))
    assert np.allclose(numbers(plain.theta), numbers(spread.theta), rtol=1e-7)


def test_the_state_is_in_parts_and_so_is_its_target(mesh):
    row = row_mesh(mesh.devices)
    devices = Devices.over(mesh)
    (problem, _), theta = devices.spread(bumps(PLANE), START), devices.replicate(START)
    assert problem.loss.target.sharding.is_equivalent_to(in_parts(row), 2)
    assert theta.is_fully_replicated
    assert len(theta.sharding.device_set) == 4
    rho = jax.jit(problem.model)(theta)
    assert rho.sharding.shard_shape(rho.shape) == (4, 12)
    assert isinstance(problem.model.function, InParts)
    pinn, net, _ = PROBLEMS["pinn"]()
    spread = devices.spread(pinn, net)[0].model
    assert spread.blocks["interior"].points.sharding.is_equivalent_to(in_parts(row), 2)
    residuals = eqx.filter_jit(lambda model, net: model(net))(spread, net)
    assert residuals["interior"].sharding.shard_shape((24,)) == (6,)


SLABS = [(s, b) for s in ((8, 12), (8, 6), (8,), (4, 8, 3)) for b in BOUNDARIES]
FAST = [*(((8, 6), boundary) for boundary in BOUNDARIES), ((8,), "dirichlet")]


@pytest.mark.parametrize(
    ("shape", "boundary"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case not in FAST)) for case in SLABS],
    ids=str,
)
def test_transforms_in_slabs(mesh, boundary, shape):
    grid = ng.Grid((0.0,) * len(shape), (1.0,) * len(shape), shape, boundary=boundary)
    row, values = row_mesh(mesh.devices), jax.random.normal(jax.random.key(0), (2, *shape))
    both = jax.jit(
        lambda v: (
            transform(grid, v, row),
            inverse_transform(grid, transform(grid, v, row), row),
        )
    )
    modes, again = jax.vmap(both)(values)
    assert np.allclose(modes, jax.jit(lambda v: transform(grid, v))(values), atol=1e-12)
    assert np.allclose(again, values, atol=1e-12)


@pytest.mark.slow
def test_a_checkpoint_is_taken_up_by_another_number_of_devices(mesh, tmp_path):
    problem, theta, method = PROBLEMS["transport"]()
    few, more = (ng.Stop(iterations=n, gradient=0.0) for n in (2, 4))
    whole = ng.minimize(problem, theta, method, stop=more)
    path = tmp_path / "run.npz"
    ng.minimize(problem, theta, method, stop=few, mesh=mesh, checkpoint=path)
    found = ng.minimize(problem, theta, method, stop=more, checkpoint=path)
    assert found.iterations == 4
    assert np.allclose(found.history["loss"], whole.history["loss"], rtol=1e-9)


def test_bad_meshes(mesh):
    problem, metric = bumps(PLANE), ng.L2(PLANE)
    direct = lambda mesh, problem=problem, metric=metric: ng.natural_gradient(
        problem, START, metric=metric, mesh=mesh
    )
    with pytest.raises(ng.InputError, match=r"mesh: is a list. Try: jax.make_mesh"):
        direct(jax.devices())
    three = row_mesh(jax.devices()[:3])
    with pytest.raises(
        ng.InputError, match=r"its 3 devices do not divide the 16 entries.*15 or 18"
    ):
        direct(three)
    pinn, net, method = PROBLEMS["pinn"]()
    with pytest.raises(ng.InputError, match=r"do not divide the 8 .* of the block 'boundary'"):
        ng.minimize(pinn, net, method, mesh=three)
    outside = ng.Problem(
        ng.ExternalModel(lambda t: t, lambda t, v: v, lambda t, w: w), lambda rho: rho.sum()
    )
    with pytest.raises(ng.InputError, match="ExternalModel is code outside JAX"):
        direct(mesh, outside, ng.MatrixMetric(np.eye(4)))
    called = ng.FactorMetric(aslinearoperator(np.eye(PLANE.size)))
    with pytest.raises(ng.InputError, match="FactorMetric computes on one host"):
        direct(mesh, problem, 0.1 * called)
    host = ng.Wasserstein(PLANE, elliptic=ng.metrics.Elliptic("sparse"))
    with pytest.raises(ng.InputError, match="'sparse' factorises on one host"):
        direct(mesh, problem, host)


# ---- two processes on loopback, with Gloo's collectives


def launch(task, folder, count=2):
    """Start all processes of a task."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(SCRIPT)]
    return [
        subprocess.Popen(
            [*command, str(number), str(count), str(port), task, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


def finished(processes, seconds=600):
    """What they printed last, and how they ended; none outlives the test."""
    try:
        outputs = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    lines = [out.splitlines()[-1] if out.strip() else err[-2000:] for out, err in outputs]
    return lines, [process.returncode for process in processes]


@pytest.mark.slow
def test_two_processes_give_the_runs_of_one(tmp_path):
    lines, codes = finished(launch("run", tmp_path))
    assert codes == [0, 0], lines
    first, second = map(json.loads, lines)
    assert first == second  # bit for bit, as both must take the same decisions
    for name, make in PROBLEMS.items():
        problem, theta, method = make()
        alone = ng.minimize(problem, theta, method, stop=ng.Stop(iterations=2))
        assert first[name]["loss"] == pytest.approx(alone.loss, rel=1e-8)
        assert np.allclose(first[name]["theta"], numbers(alone.theta), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_a_dead_process_is_an_error_soon_and_one_process_goes_on(tmp_path):
    processes = launch("die", tmp_path)
    processes[1].wait(timeout=600)
    (line, _), (code, killed) = finished(processes)  # a heartbeat is missed after ten seconds
    assert (code, killed) == (3, -9), line
    message, notes, theta = json.loads(line)
    assert "another process of this run has died" in message
    assert "Try: its log" in message
    assert any("the same call resumes it" in note for note in notes)
    assert not (tmp_path / "run1.npz").exists()  # the leader writes
    problem, start, method = PROBLEMS["transport"]()
    stop = ng.Stop(iterations=5, gradient=0.0)
    resumed = ng.minimize(problem, start, method, stop=stop, checkpoint=tmp_path / "run0.npz")
    alone = ng.minimize(problem, start, method, stop=stop)
    assert np.allclose(resumed.history["loss"], alone.history["loss"], rtol=1e-8)
    assert len(theta) == 4
    assert resumed.iterations == 5


@pytest.mark.slow
def test_two_processes_give_the_l_bfgs_of_one(tmp_path):
    lines, codes = finished(launch("rival", tmp_path))
    assert codes == [0, 0], lines
    rival = ng.minimize(*PROBLEMS["transport"]()[:2], ng.LBFGS(10), stop=ng.Stop(iterations=2))
    for line in lines:
        assert np.allclose(json.loads(line), numbers(rival.theta), rtol=1e-9)


@pytest.mark.slow
def test_a_process_that_does_not_make_the_call_is_named(tmp_path):
    lines, codes = finished(launch("absent", tmp_path))
    assert codes == [0, 0], lines
    said, warning = json.loads(lines[0])
    assert "process 1 did not make this call within 1 s; waiting" in warning
    assert said.startswith("mesh: process 1 did not make this call within 2 s.")


@pytest.mark.slow
def test_processes_that_differ_are_told_so(tmp_path):
    lines, codes = finished(launch("differ", tmp_path))
    assert codes == [0, 0], lines
    for found in map(json.loads, lines):
        for name in DIFFERENT:
            said = found[name]
            if name in REFUSED:
                assert said.startswith(f"{REFUSED[name]}: differs from process to process"), name
            else:  # the leader's word counts
                stopped = name == "callbacks of the first"
                assert said == ("stopped 2" if stopped else "max_iterations 3"), name
