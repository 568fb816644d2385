"""The examples of the gallery: small, with one number pinned, against exact answers."""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

import burgers
import dense_oracle
import density_image as di
import flax_network
import inverse_burgers
import natgrad as ng
import optimal_transport as ot
import point_cloud
import poisson_5d
from problems_for_tests import state_and_jacobian, with_slow


def discrete_optimum(grid, mu, nu):
    """The linear program of Kantorovich between the cells, by HiGHS."""
    points = np.asarray(grid.points).reshape(-1, 2)
    cost = 0.5 * ((points[:, None] - points) ** 2).sum(-1)
    ones, eye = np.ones((1, grid.size)), sparse.eye_array(grid.size)
    marginals = sparse.vstack([sparse.kron(eye, ones), sparse.kron(ones, eye)]).tocsr()
    masses = grid.cell_volume * np.append(mu, nu)
    # The last row follows from the others, and with rounding might contradict them.
    return linprog(cost.ravel(), A_eq=marginals[:-1], b_eq=masses[:-1]).fun


def gaussians(size):
    grid = ot.unit_square(size)
    return grid, ot.gaussian(grid, (0.35, 0.40), 0.06), ot.gaussian(grid, (0.62, 0.58), 0.09)


@pytest.mark.slow
def test_dual_value_against_the_linear_program():
    """Always below it, by a gap that is second order: 1.1e-2 and 2.7e-3 at 8 and 16."""
    gaps = []
    for size in (8, 16):
        grid, mu, nu = gaussians(size)
        values = ot.back_and_forth(grid, mu, nu, ot.first_step(mu, nu)).values
        assert np.all(np.diff(values) >= 0)
        gaps.append(1 - float(values[-1]) / discrete_optimum(grid, mu, nu))
    assert gaps[0] == pytest.approx(0.0106, abs=3e-4)
    assert np.log2(gaps[0] / gaps[1]) == pytest.approx(2.0, abs=0.3)


def test_limit_of_the_method():
    """Noise moves its mass by less than a cell: the dual stays well below the linear program."""
    grid = ot.unit_square(8)
    noise = np.random.default_rng(0).uniform(0.2, 1, (2, 8, 8))
    mu, nu = (ot.normalised(grid, image) for image in noise)
    value = float(ot.back_and_forth(grid, mu, nu, ot.first_step(mu, nu)).values[-1])
    assert 1 - value / discrete_optimum(grid, mu, nu) == pytest.approx(0.18, abs=0.02)


def test_the_direction_is_the_natural_gradient():
    """natgrad's own −G†∂_θf with θ = φ, Z = I: what `natural_ascent` does by a transform. JAX's
    derivative of the dual is ν − T#μ with T to the nearest cell."""
    grid, mu, nu = gaussians(8)

    def minus_dual(phi):
        return -grid.cell_volume * jnp.sum(phi * nu + ot.c_transform(grid, phi) * mu)

    phi = 0.01 * jnp.cos(3 * grid.points[..., 0]) * grid.points[..., 1]
    problem = ng.Problem(lambda phi: phi, minus_dual)
    metric = ng.HomogeneousSobolev(grid, 1)
    eta = np.asarray(ng.natural_gradient(problem, phi, metric=metric, solver=ng.SVD()).eta)
    ascent = jax.jit(lambda phi: ot.natural_ascent(grid, 1, -jax.grad(minus_dual)(phi)))(phi)
    np.testing.assert_allclose(eta - eta.mean(), ascent, rtol=1e-9, atol=1e-12)


def test_transform_and_push_forward():
    grid, mu, _ = gaussians(8)
    mu, phi = np.asarray(mu), np.random.default_rng(0).normal(size=grid.shape)
    points = np.asarray(grid.points).reshape(-1, 2)
    cost = 0.5 * ((points[:, None] - points) ** 2).sum(-1)
    expected = (cost - phi.ravel()).min(axis=1).reshape(grid.shape)
    transformed = jax.jit(partial(ot.c_transform, grid))(phi)
    np.testing.assert_allclose(transformed, expected, atol=1e-14)
    # ψ = −a·x moves everything by a; here by two cells and a half in x and one back in y.
    shift = np.array([2.5, -1.0]) / 8
    psi = -np.asarray(grid.points) @ shift
    moved = np.asarray(jax.jit(partial(ot.push_forward, grid))(psi, mu))
    assert moved.sum() == pytest.approx(mu.sum(), rel=1e-14)
    mean = lambda density: (np.asarray(grid.points) * density[..., None]).sum((0, 1))
    centre = lambda density: mean(density) / density.sum()
    np.testing.assert_allclose(centre(moved) - centre(mu), shift, atol=1e-4)


@pytest.mark.slow
def test_optimal_transport_runs_and_wins(tmp_path):
    numbers = ot.main(size=32, iterations=40, output=tmp_path)
    assert (tmp_path / "optimal_transport.png").stat().st_size > 20_000
    natural, plain = numbers["½W₂² by Ḣ¹"], numbers["½W₂² by L²"]
    assert natural == pytest.approx(0.09993, abs=2e-4)
    assert plain < natural
    assert abs(ot.gaussian_error(32, iterations=40)) < 3e-3


@pytest.mark.slow
def test_density_image_runs_and_leaves_less_behind(tmp_path, capsys):
    """At equal iterations W₂ + ℓ² FR carries off what L² leaves at the old place."""
    names = ("w2+fr", "l2")
    runs = di.main(size=48, field=16, iterations=5, names=names, output=tmp_path)
    assert (tmp_path / "density_image.png").stat().st_size > 20_000
    assert "peak memory" in capsys.readouterr().out
    grid, target, model = di.unit_square(48), di.galaxy(48), di.LogDensity(48, 16)
    behind = {}
    for name, run in runs.items():
        rho, loss = model(run.thetas[-1]), run.result.history["loss"]
        assert np.all(np.diff(loss) < 0)
        assert bool(jnp.all(rho > 0))
        assert float(rho.mean()) == pytest.approx(1.0, rel=1e-13)
        behind[name] = di.errors(grid, rho, target)[1]
    assert behind["w2+fr"] < 0.2 * behind["l2"]
    history = runs["w2+fr"].result.history["loss"]
    assert history[-1] / history[0] == pytest.approx(0.00513, rel=0.01)


@pytest.mark.slow
def test_density_image_direction_against_the_dense_oracle():
    """−G†∂_θf with every matrix written out: what conjugate gradients reach without them."""
    grid, target, model = di.unit_square(8), di.galaxy(8), di.LogDensity(8, 5)
    problem, theta = ng.Problem(model, di.losses(grid, target)["transport"]), di.spot(5)
    metric = di.metrics(grid)["w2+fr"]
    found = ng.natural_gradient(problem, theta, metric=metric, solver=ng.CG(tolerance=1e-12))
    rho, Z = map(np.asarray, state_and_jacobian(model, theta))
    Z = Z.reshape(64, 25)
    A = dense_oracle.transport(grid, rho, 0.5, "staggered")
    A += di.SCALE * np.diag(grid.cell_volume / rho.ravel())
    missing = np.asarray(rho - target).ravel()
    gradient = Z.T @ dense_oracle.sobolev(grid, -1, True) @ missing
    expected = -dense_oracle.pseudo_inverse(Z.T @ A @ Z) @ gradient
    np.testing.assert_allclose(found.eta.ravel(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_l_shape_runs(tmp_path):
    """Every metric finds the means; Gauss–Newton, L² here, takes the fewest iterations."""
    pytest.importorskip("skfem")
    l_shape = importlib.import_module("l_shape")
    runs = l_shape.main(refinements=2, output=tmp_path)
    assert (tmp_path / "l_shape.png").stat().st_size > 20_000
    for result in runs.values():
        assert result.converged
        np.testing.assert_allclose(result.theta, l_shape.END, atol=1e-5)
    assert runs["L2"].iterations == min(result.iterations for result in runs.values())


def test_burgers_reference():
    """Quadrature with twice the nodes, and the conditions that it has to meet."""
    grid, values = burgers.exact((11, 41))
    np.testing.assert_allclose(values, burgers.exact((11, 41), 200)[1], rtol=0, atol=1e-13)
    np.testing.assert_allclose(values[0], -np.sin(np.pi * grid[0, :, 1]), atol=1e-14)
    np.testing.assert_allclose(values[:, [0, -1]], 0, atol=1e-14)


@pytest.mark.slow
def test_burgers_runs(tmp_path, monkeypatch):
    """Ten times as viscous, so that a small network is enough."""
    monkeypatch.setattr(burgers, "VISCOSITY", 0.1 / np.pi)
    burgers.exact.cache_clear()
    missed = burgers.main(width=8, depth=2, count=300, iterations=40, output=tmp_path)
    burgers.exact.cache_clear()
    assert (tmp_path / "burgers.png").stat().st_size > 20_000
    assert missed < 1e-2


@pytest.mark.slow
def test_inverse_burgers_knows_its_error(tmp_path, monkeypatch):
    """Ten times as viscous: ν to two percent, and within what its deviation allows."""
    monkeypatch.setattr(burgers, "VISCOSITY", 0.1 / np.pi)
    burgers.exact.cache_clear()
    small = {"width": 10, "depth": 2, "count": 400, "measurements": 150, "iterations": 60}
    found = inverse_burgers.main(**small, output=tmp_path)
    burgers.exact.cache_clear()
    assert (tmp_path / "inverse_burgers.png").stat().st_size > 20_000
    assert abs(np.log(found.viscosity * np.pi / 0.1)) < 3 * found.deviation
    assert found.deviation == pytest.approx(0.017, abs=0.004)


@pytest.mark.slow
def test_poisson_5d_runs(tmp_path, capsys):
    """In three dimensions, with every variant: drawn points end below fixed ones."""
    found = poisson_5d.main(
        dimension=3, hidden=(12, 12), interior=60, boundary=40, iterations=40, output=tmp_path
    )
    assert (tmp_path / "poisson_5d.png").stat().st_size > 10_000
    table = capsys.readouterr().out
    assert all(name in table for name in poisson_5d.VARIANTS)
    assert found["drawn"].relative[-1] < 0.05
    assert found["drawn"].relative[-1] < found["fixed"].relative[-1]


@pytest.mark.parametrize("name", with_slow(flax_network.NETWORKS, ["equinox", "dict"]))
def test_networks_of_three_libraries(name):
    if name == "flax":
        pytest.importorskip("flax")
    network = flax_network.NETWORKS[name](jax.random.key(0))
    assert flax_network.solve(network, iterations=15) < 1e-3


@pytest.mark.slow
def test_training_loops_run_and_win(tmp_path, capsys):
    """Step by step natural gradients are ahead of Adam; flax takes part where it is installed."""
    pytest.importorskip("optax")
    import training_loops

    rates = {"natural gradient": (1.0,), "Adam": (0.1,)}
    runs = training_loops.main(steps=80, rates=rates, output=tmp_path)
    assert (tmp_path / "training_loops.png").stat().st_size > 20_000
    assert "equinox  natural gradient" in capsys.readouterr().out
    for library in {library for library, _ in runs}:
        natural, adam = (runs[library, name] for name in rates)
        assert natural.errors[-1] < 0.05
        assert natural.errors[-1] < 0.3 * adam.errors[list(adam.steps).index(80)]


@pytest.mark.slow
def test_point_cloud_runs(tmp_path, capsys):
    names = ("points", "adam")
    runs = point_cloud.main(samples=60, width=8, iterations=8, names=names, output=tmp_path)
    assert (tmp_path / "point_cloud.png").stat().st_size > 20_000
    table = capsys.readouterr().out
    assert all(name in table for name in names)
    for run in runs.values():
        assert run.losses[-1] < 0.2 * run.losses[0]
