"""Multigrid for transport: coarsening against dense matrices, the cycle, and the solves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.metrics.elliptic import equation, multigrid
from natgrad.metrics.elliptic.divergence import Divergence, laplacian, nearest_links, pad_links
from natgrad.metrics.elliptic.iterative import iterative_factor
from natgrad.metrics.elliptic.multigrid import coarsen, prolong, restrict
from problems_for_tests import with_slow


def random_links(shape, periodic, seed=0):
    """Conductances over several orders of magnitude, none across a closed boundary."""
    generator = np.random.default_rng(seed)
    links = [np.exp(2 * generator.standard_normal(shape)) for _ in shape]
    if not periodic:
        for axis, link in enumerate(links):
            np.moveaxis(link, axis, 0)[-1] = 0
    return tuple(map(jnp.asarray, links))


def as_matrix(function, shape):
    """The matrix of a linear function of arrays of this shape, in one call."""
    basis = jnp.eye(int(np.prod(shape))).reshape(-1, *shape)
    return np.asarray(function(basis)).reshape(len(basis), -1).T


def dense(links, periodic):
    shape = next(iter(links.values())).shape
    product = jax.jit(lambda x: laplacian(pad_links(links, periodic), x, periodic))
    return as_matrix(product, shape)


def dense_by_hand(links, periodic):
    """K entry by entry."""
    shape = next(iter(links.values())).shape
    cells = np.arange(int(np.prod(shape))).reshape(shape)
    K = np.zeros((cells.size, cells.size))
    for offset, link in links.items():
        for index in np.ndindex(*shape):
            other = tuple(i + o for i, o in zip(index, offset, strict=True))
            if periodic:
                other = tuple(i % n for i, n in zip(other, shape, strict=True))
            elif not all(0 <= i < n for i, n in zip(other, shape, strict=True)):
                continue
            r, s, c = cells[index], cells[other], float(link[index])
            K[r, r] += c
            K[s, s] += c
            K[r, s] -= c
            K[s, r] -= c
    return K


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("shape", with_slow([(7,), (6, 5), (4, 3, 5)], [(6, 5), (4, 3, 5)]))
def test_coarse_operator_is_the_galerkin_product(shape, periodic):
    """PᵀKP and restriction = Pᵀ, for one axis after the other, on even and odd sides."""
    dim = len(shape)
    links = nearest_links(random_links(shape, periodic))
    np.testing.assert_allclose(dense(links, periodic), dense_by_hand(links, periodic), rtol=1e-13)
    for axis in range(dim):
        fine, n = dense(links, periodic), next(iter(links.values())).shape[axis]
        links, weights = jax.jit(coarsen, static_argnums=(1, 2))(links, axis, periodic)
        coarse_shape = next(iter(links.values())).shape
        interpolate = lambda x, w=weights, a=axis, n=n: prolong(w, a, dim, n, x, periodic)
        P = as_matrix(jax.jit(interpolate), coarse_shape)
        fine_shape = (*coarse_shape[:axis], n, *coarse_shape[axis + 1 :])
        down = lambda r, w=weights, a=axis: restrict(w, a, dim, r, periodic)
        np.testing.assert_allclose(as_matrix(jax.jit(down), fine_shape), P.T, atol=1e-15)
        np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-14)  # constants stay constant
        K = dense_by_hand(links, periodic)
        np.testing.assert_allclose(K, P.T @ fine @ P, atol=1e-12 * np.abs(K).max())


@pytest.mark.parametrize("periodic", with_slow([False, True], [False]))
@pytest.mark.parametrize("shape", with_slow([(12, 11), (6, 5, 4)], [(6, 5, 4)]))
def test_cycle_is_symmetric_and_positive(shape, periodic, monkeypatch):
    """With levels written out, levels in the loop and the direct solve all present."""
    monkeypatch.setattr(multigrid, "LOOP_CELLS", 60)
    monkeypatch.setattr(multigrid, "DENSE_CELLS", 8)
    links = random_links(shape, periodic)
    build = jax.jit(
        lambda links: multigrid.build_hierarchy(links, (1.0,) * len(shape), periodic, jnp.float64)
    )
    hierarchy = build(links)
    assert len(hierarchy.levels) >= 1
    assert (hierarchy.loop is None) == periodic
    M = as_matrix(lambda basis: jax.jit(lambda h, b: h.cycle(b))(hierarchy, basis), shape)
    assert np.abs(M - M.T).max() <= 1e-13 * np.abs(M).max()
    # positive on what K sees, and close to its inverse there
    K = dense_by_hand(nearest_links(links), periodic)
    root = np.linalg.cholesky(K + np.ones_like(K) / len(K))
    values = np.linalg.eigvalsh(root.T @ (M - M.mean(0) - M.mean(1)[:, None] + M.mean()) @ root)
    assert values[0] > -1e-10
    assert values[1] > 0.05
    assert values[-1] < 1.5


def problem(shape, periodic, spread=1.0, seed=0):
    """B of a rough density, and three right-hand sides without mass."""
    generator = np.random.default_rng(seed)
    a = np.exp(spread * generator.standard_normal(shape))
    means = [0.5 * (a + np.roll(a, -1, axis)) for axis in range(len(shape))]
    if not periodic:
        means = [np.delete(mean, -1, axis) for axis, mean in enumerate(means)]
    weights = tuple(jnp.sqrt(jnp.asarray(m)) for m in means)
    zeta = generator.standard_normal((3, *shape))
    zeta -= zeta.mean(axis=tuple(range(1, zeta.ndim)), keepdims=True)
    return Divergence(weights, tuple(1.0 / n for n in shape), periodic), jnp.asarray(zeta)


@pytest.mark.parametrize(
    "preconditioner", [pytest.param("multigrid", marks=pytest.mark.slow), "sparse"]
)
@pytest.mark.parametrize(
    ("shape", "periodic"),
    [
        pytest.param((13, 10), False, marks=pytest.mark.slow),
        ((9, 8), True),
        pytest.param((5, 4, 6), False, marks=pytest.mark.slow),
    ],
)
def test_iterative_solves_agree_with_elimination(shape, periodic, preconditioner):
    B, zeta = problem(shape, periodic)
    direct = ng.metrics.Elliptic("elimination")
    solve = jax.jit(lambda B, zeta: direct.factorise("elimination", B).pseudo_inverse(zeta))
    expected = solve(B, zeta)

    @jax.jit
    def ours(B, zeta, fluxes):
        factor = iterative_factor(B, preconditioner, tolerance=1e-13)
        return *factor.flows(zeta), factor.pseudo_inverse_transpose(fluxes)

    generator = np.random.default_rng(1)
    fluxes = tuple(jnp.asarray(generator.standard_normal(v.shape)) for v in expected)
    found, solution, transposed = ours(B, zeta, fluxes)
    for flux, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(flux, other, atol=1e-11 * float(jnp.abs(other).max()))
    forwards = sum(float(jnp.vdot(v, y)) for v, y in zip(found, fluxes, strict=True))
    assert forwards == pytest.approx(float(jnp.vdot(zeta, transposed)), rel=1e-10)
    assert bool(jnp.all(solution.converged))
    assert bool(jnp.all(solution.error <= 1e-13))


@pytest.fixture(scope="module")
def mixture():
    """The mixture of the paper on n × n cells, with the two tangents of its moving mean."""

    def make(n):
        grid = ng.Grid((-2.75,) * 2, (7.25,) * 2, (n, n))
        bump = lambda mean: jnp.exp(-((grid.points - jnp.array(mean)) ** 2).sum(-1) / 1.2) / 3.77
        moving = 0.2 * bump([5.0, 3.0])
        tangents = jnp.moveaxis((grid.points - jnp.array([5.0, 3.0])) / 0.6, -1, 0) * moving
        return grid, moving + 0.8 * bump([4.0, 3.0]), tangents

    return make


@eqx.filter_jit
def information_in(metric, rho, tangents):
    return metric.at(rho).information(tangents)


def information(grid, rho, tangents, **settings):
    metric = ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic("multigrid", **settings))
    return information_in(metric, rho, tangents)


@pytest.mark.parametrize("n", with_slow([40, 160], [160]))
def test_iterations_do_not_grow_with_the_grid(mixture, n):
    _, report = information(*mixture(n), tolerance=1e-12)
    assert report["elliptic"] == "multigrid"
    assert report["elliptic_iterations"] <= 6
    assert report["converged"]


@pytest.mark.slow
def test_error_of_the_information_matrix_is_squared(mixture):
    """Stopped at √tolerance, G has an error below the tolerance; in single precision too."""
    grid, rho, tangents = mixture(40)
    exact, _ = (
        ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic("elimination"))
        .at(rho)
        .information(tangents)
    )
    for settings, bound in (
        ({"tolerance": 1e-6}, 1e-6),
        ({"tolerance": 1e-12}, 1e-12),
        ({"tolerance": 1e-10, "precision": "single"}, 1e-9),
    ):
        G, _ = information(grid, rho, tangents, **settings)
        assert np.abs(G / np.asarray(exact) - 1)[[0, 1], [0, 1]].max() <= bound


HARD = ("deep tails", "two separated bumps", "compact support", "white noise")


def hard_density(name, n=32):
    x = (np.arange(n) + 0.5) / n
    X, Y = np.meshgrid(x, x, indexing="ij")
    bump = lambda cx, cy, s: np.exp(-((X - cx) ** 2 + (Y - cy) ** 2) / (2 * s * s))
    if name == "deep tails":
        return bump(0.5, 0.5, 0.05)
    if name == "two separated bumps":
        return bump(0.2, 0.2, 0.04) + bump(0.8, 0.7, 0.04)
    if name == "compact support":
        return np.maximum(0.0, 0.04 - (X - 0.3) ** 2 - (Y - 0.4) ** 2)
    return np.exp(2 * np.random.default_rng(0).standard_normal((n, n)))


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "double") for name in HARD),
        *(
            pytest.param(name, "mixed", marks=pytest.mark.slow)
            for name in HARD
            if name != "two separated bumps"
        ),
    ],
)
def test_hard_densities(hard_grid, name, precision):
    """Tangents ζ = Kφ₀ of smooth potentials, so that G = w φ₀ᵀKφ₀ is known at any contrast."""
    grid, compute = hard_grid
    rho = hard_density(name, grid.shape[0])
    a = np.maximum(rho, 1e-14 * rho.max())
    x, y = np.asarray(grid.points[..., 0]), np.asarray(grid.points[..., 1])
    potentials = np.stack([np.sin(3 * x + y), x - 0.3 * y**2])
    tangents, exact = np.zeros_like(potentials), np.zeros((2, 2))
    for axis, h in enumerate(grid.spacing):
        mean = np.delete(0.5 * (a + np.roll(a, -1, axis)), -1, axis)
        drop = -np.diff(potentials, axis=1 + axis) / h
        flux = np.pad(mean * drop, [(0, 0), *[(1, 1) if i == axis else (0, 0) for i in (0, 1)]])
        tangents += np.diff(flux, axis=1 + axis) / h
        exact += np.einsum("ixy,jxy->ij", drop, mean * drop) * grid.cell_volume
    G, report = compute(jnp.asarray(rho), jnp.asarray(tangents), precision)
    assert report["converged"]
    assert np.abs(np.linalg.solve(exact, G) - np.eye(2)).max() <= 1e-11


@pytest.fixture(scope="module")
def hard_grid():
    """A grid, and G on it by multigrid, compiled once for each precision."""
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (32, 32))
    return grid, lambda rho, tangents, precision: information(
        grid, rho, tangents, precision=precision
    )


@pytest.mark.slow
def test_mass_across_a_vacuum(hard_grid):
    """Mass that must leave one island for another: right in double, a status in mixed precision."""
    grid, compute = hard_grid
    rho = jnp.asarray(hard_density("two separated bumps", grid.shape[0]))
    tangents = rho * jnp.stack([grid.points[..., 0], grid.points[..., 1] ** 2])
    exact, _ = (
        ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic("elimination"))
        .at(rho)
        .information(tangents)
    )
    G, report = compute(rho, tangents, "double")
    assert report["converged"]
    assert np.abs(G - exact).max() <= 1e-9 * np.abs(exact).max()
    G, report = compute(rho, tangents, "mixed")
    assert not report["converged"]
    assert np.any(np.isnan(G))


def test_giving_up_is_a_status(mixture):
    """An iteration cut short gives NaN and says so: never a direction that is not one."""
    grid, _, _ = mixture(40)
    bump = lambda mean: jnp.exp(-((grid.points - mean) ** 2).sum(-1) / 1.2)
    fit = ng.Problem(lambda m: bump(m) + 0.1, ng.LeastSquares(bump(jnp.ones(2)), grid))
    metric = ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic("multigrid", max_iterations=2))
    theta = jnp.array([2.0, 1.0])
    direction = ng.natural_gradient(fit, theta, metric=metric, solver=ng.Cholesky())
    assert direction.info.status == "metric_not_converged"
    assert direction.info.metric["elliptic_error"] > 1e-6
    assert bool(jnp.all(jnp.isnan(direction.eta)))
    result = ng.minimize(
        fit, theta, ng.NaturalGradient(metric, solver=ng.Cholesky()), stop=ng.Stop(iterations=3)
    )
    assert result.status == ng.Status.NOT_FINITE
    assert result.info is not None
    assert result.info.status == "metric_not_converged"
    np.testing.assert_array_equal(result.theta, theta)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_batches_and_sums_take_the_same_road(monkeypatch, backend: str):
    """Several densities, in turn or together; sums and scalings with multigrid inside."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (12, 10))
    generator = np.random.default_rng(0)
    rho = jnp.asarray(np.exp(generator.standard_normal((2, 12, 10))))
    columns = jnp.asarray(generator.standard_normal((3, 2, 12, 10)))
    by = lambda method: (
        0.5 * ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic(method)) + ng.L2(grid)
    )
    rows, information_ = jax.jit(
        lambda: (
            by("multigrid").at(rho).image(columns)[0],
            by("multigrid").at(rho).information(columns)[0],
        )
    )()
    expected = by("elimination").at(rho).image(columns)[0]
    np.testing.assert_allclose(rows, expected, atol=1e-10 * float(jnp.abs(expected).max()))
    G = expected @ expected.T
    np.testing.assert_allclose(information_, G, rtol=1e-9)


def test_choice_of_the_method():
    choose = ng.metrics.Elliptic().choose
    assert choose((5_000_000,)) == "line"
    assert choose((40, 40)) == "elimination"
    assert choose((1000, 1000), 2) == "multigrid"
    assert choose((64, 64, 64), 1000) == "multigrid"
    assert choose((300, 300), 1000) == ("sparse" if jax.default_backend() == "cpu" else "multigrid")
    assert choose((300, 300)) == "multigrid"
    assert ng.metrics.Elliptic("multigrid").choose((40, 40)) == "multigrid"


def test_a_gpu_eliminates_on_small_grids_only(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    choose = ng.metrics.Elliptic().choose
    assert [choose((n, n)) for n in (20, 40)] == ["elimination", "multigrid"]


def test_a_single_cpu_has_no_host_to_call(monkeypatch):
    """There a callback would wait for itself: another method, or an error, not a hang."""
    monkeypatch.setattr(equation, "can_call_back", lambda: False)
    assert ng.metrics.Elliptic().choose((300, 300), 1000) == "multigrid"
    with pytest.raises(ng.InputError, match="second CPU"):
        ng.Wasserstein(
            ng.Grid((0.0, 0.0), (1.0, 1.0), (8, 8)), elliptic=ng.metrics.Elliptic("sparse")
        )


def test_potential_and_its_errors():
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (8, 8))
    metric = ng.Wasserstein(grid)
    x = grid.points[..., 0]
    rho = 1 + 0.5 * jnp.sin(x)
    zeta = jnp.cos(jnp.pi * x)
    with pytest.raises(ng.InputError, match=r"not compatible: its mass is 0\.\d+ of its size"):
        metric.potential(rho, zeta + 0.1)
    with pytest.raises(ng.InputError, match="shape"):
        metric.potential(rho, zeta[:4])
    with pytest.raises(ng.InputError, match="not finite"):
        metric.potential(rho, zeta.at[0, 0].set(jnp.nan))
    with pytest.raises(ng.InputError, match="negative"):
        metric.potential(rho.at[0, 0].set(-1.0), zeta)
    with pytest.raises(ng.InputError, match="zero mass"):
        metric.potential(0 * rho, zeta)
    # −φ″ = cos πx with zero slope at both ends, in a uniform density
    solution = metric.potential(jnp.ones((8, 8)), zeta)
    step = 8.0
    expected = zeta / (2 * step**2 * (1 - np.cos(np.pi / 8)))
    np.testing.assert_allclose(solution.phi, expected, atol=1e-12)


@pytest.mark.parametrize("method", with_slow(["multigrid", "sparse"], ["multigrid"]))
def test_derivative_of_a_product_with_respect_to_the_density(method):
    """Through the equation, not through the iteration: d⟨ζ, A(ρ)ζ⟩/dρ, a Taylor test."""
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (8, 7))
    metric = ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic(method))
    generator = np.random.default_rng(0)
    rho, zeta, direction = (jnp.asarray(generator.random((8, 7))) + 1 for _ in range(3))
    energy = lambda rho: jnp.vdot(zeta, metric.at(rho).gram.mv(zeta))
    value, slope = jax.jit(jax.value_and_grad(energy))(rho)
    line = jax.jit(lambda t: energy(rho + t * direction))
    first_order = float(jnp.vdot(slope, direction))
    errors = [float(line(t) - value) - t * first_order for t in (1e-2, 5e-3)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
