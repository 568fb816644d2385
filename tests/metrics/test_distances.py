"""Squared distances: their leading order is the metric, W₂ is W₂, derivatives are right."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import natgrad as ng
from cases import SMALL_CASES, Case, defines, density, make_grid, parametrised, tangent
from natgrad.metrics import distances as sinkhorn
from problems_for_tests import with_slow

STEPS = np.array([2e-3, 1e-3])
TRANSPORT = ("Wasserstein", "Mobility")
ALIKE = ("L2()", "Sum of", "FactorMetric", "collocated", "Sobolev(2)")
ALIKE = (*ALIKE, "HomogeneousSobolev(-2)", "HomogeneousSobolev(0)")
PLAIN_CASES = [  # boundaries and symbols enter through L alone
    replace(
        case,
        slow=case.slow or case.grid.boundary != "neumann" or case.name.startswith(ALIKE),
    )
    for case in SMALL_CASES
    if defines(case.metric, "squared_distance") and not any(name in case.name for name in TRANSPORT)
]


@eqx.filter_jit
def measured(metric: ng.metrics.Metric, a: jax.Array, b: jax.Array, c: jax.Array, zeta: jax.Array):
    """All that the tests below need of a distance, so that it is compiled once."""
    square = metric.squared_distance
    near = jax.lax.map(lambda h: square(a, a + h * zeta) / h**2, STEPS)
    moved = jax.lax.map(lambda h: square(a + h * zeta, b - h * zeta), STEPS)
    pairs = jnp.stack([a, b, a, b, a]), jnp.stack([b, a, c, c, a])
    both = jax.value_and_grad(square, argnums=(0, 1))
    (ab, ba, ac, bc, aa), slopes = jax.lax.map(lambda pair: both(*pair), pairs)
    taylor = moved - ab - STEPS * (jnp.vdot(slopes[0][0], zeta) - jnp.vdot(slopes[1][0], zeta))
    return near, taylor, jnp.stack([ab, ba, ac, bc, aa]), jnp.stack([s[-1] for s in slopes])


def check_laws(
    metric: ng.metrics.Metric, a, b, c, zeta, quadratic: float, order: int, exact: bool = True
):
    """Leading order, Taylor, symmetry, zero at equality, and the triangle inequality."""
    near, taylor, squares, slopes = map(np.asarray, measured(metric, a, b, c, zeta))
    error = np.abs(near - quadratic) / quadratic
    if order == 0:
        np.testing.assert_allclose(error, 0, atol=1e-9)
    else:
        assert 2**order * 0.8 < error[0] / error[1] < 2**order * 1.25, error
    assert taylor[0] / taylor[1] == pytest.approx(4, rel=0.1)
    ab, ba, ac, bc, aa = squares
    assert ab == pytest.approx(ba, rel=1e-12 if exact else 1e-9)
    assert 0 <= aa < 1e-13 * ab
    np.testing.assert_allclose(slopes, 0, atol=1e-12 * quadratic)
    sides = np.sqrt([ab, bc, ac])
    assert 2 * sides.max() <= sides.sum() * (1 + 1e-12)


@parametrised(PLAIN_CASES)
def test_laws_of_a_distance(case: Case):
    a, b, c = (density(case.grid, seed) for seed in (1, 2, 3))
    zeta = tangent(case, 4)
    flat = np.ravel(zeta)
    here, there = (case.dense(np.asarray(rho)) for rho in (a, b))
    quadratic = flat @ here @ flat
    order = int(not np.array_equal(here, there))  # exact where A does not depend on ρ
    check_laws(case.metric, a, b, c, zeta, quadratic, order)


def continuum_form(grid: ng.Grid, rho: np.ndarray, zeta: np.ndarray) -> float:
    """min ∫ m²/ρ dx over fluxes with −m' = ζ, ρ and ζ constant on cells: no differences."""
    (h,) = grid.spacing
    zeta = zeta - rho * zeta.sum() / rho.sum()
    m = h * np.concatenate([[0.0], np.cumsum(zeta)])
    if grid.boundary == "periodic":
        m = m - np.sum(0.5 * (m[1:] + m[:-1]) / rho) / np.sum(1 / rho)
    return float(h * np.sum((m[1:] ** 2 + m[1:] * m[:-1] + m[:-1] ** 2) / (3 * rho)))


@pytest.mark.parametrize("boundary", ["neumann", "periodic"])
def test_laws_of_wasserstein_on_lines(boundary: str):
    """The leading order is exact for densities that are constant on cells, with any tangent."""
    grid = make_grid((7,), boundary)
    a, b, c = (density(grid, seed) for seed in (1, 2, 3))
    a, b, c = (x / np.mean(x) for x in (a, b, c))  # the triangle inequality is for one mass
    zeta = jnp.asarray(np.random.default_rng(4).normal(size=7))
    quadratic = continuum_form(grid, np.asarray(a), np.asarray(zeta))
    check_laws(ng.Wasserstein(grid), a, b, c, zeta, quadratic, order=1)


def entropic_form(grid: ng.Grid, rho: np.ndarray, zeta: np.ndarray) -> float:
    """½ ζᵀ ε T(1 − T²)⁺ (ζ/ρ), T the Markov operator of the coupling of ρ with itself."""
    steps = [np.abs(np.subtract.outer(x, x)) for x in np.indices(grid.shape).reshape(2, -1)]
    if grid.boundary == "periodic":
        steps = [np.minimum(d, n - d) for d, n in zip(steps, grid.shape, strict=True)]
    cost = sum((h * d) ** 2 for h, d in zip(grid.spacing, steps, strict=True))
    epsilon, p = 2 * max(grid.spacing) ** 2, rho.ravel() / rho.sum()
    K, scaling = np.exp(-cost / epsilon), np.ones(grid.size)
    for _ in range(100):
        scaling = np.sqrt(scaling / (K @ (p * scaling)))
    root = np.sqrt(p)  # makes T symmetric: √p T /√p
    values, vectors = np.linalg.eigh(np.outer(scaling * root, scaling * root) * K)
    below = values < 1 - 1e-9
    modes = vectors.T @ (zeta.ravel() / rho.sum() / root)
    form = np.sum(modes[below] ** 2 * values[below] / (1 - values[below] ** 2))
    return float(0.5 * epsilon * form * rho.sum() * grid.cell_volume)


@pytest.mark.parametrize("boundary", with_slow(["neumann", "periodic"], ["periodic"]))
def test_laws_of_wasserstein_in_the_plane(boundary: str):
    """On a grid of 4 × 5 cells the blur matters: the leading order is that of the divergence."""
    grid = make_grid((4, 5), boundary)
    a, b, c = (density(grid, seed, 0.5) for seed in (1, 2, 3))
    a, b, c = (x / np.mean(x) for x in (a, b, c))
    zeta = tangent(Case("", grid, ng.L2(grid), np.diag, mean_free=True), 4)
    quadratic = entropic_form(grid, np.asarray(a), np.asarray(zeta))
    check_laws(ng.Wasserstein(grid), a, b, c, zeta, quadratic, order=1, exact=False)


@jax.jit
def line_distance(a, b):
    return ng.Wasserstein(ng.Grid(0.0, 1.0, 12)).squared_distance(a, b)


@jax.jit
def ring_distance(a, b):
    return ng.Wasserstein(ng.Grid(0.0, 1.0, 12, "periodic")).squared_distance(a, b)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("square", [line_distance, ring_distance], ids=["line", "ring"])
def test_wasserstein_on_lines_against_an_assignment(square, seed: int):
    """Samples of equal mass, matched by a solver that knows nothing of quantiles."""
    grid, count = ng.Grid(0.0, 1.0, 12), 480
    a, b = (np.array(density(grid, 2 * seed + i, 2.0)) for i in (0, 1))
    a[seed], b[4 + seed] = 0.0, 0.0
    edges, levels = np.linspace(0, 1, 13), (np.arange(count) + 0.5) / count
    samples = []
    for values in (a, b):
        masses = np.maximum(values, 1e-14 * values.max())
        cumulative = np.concatenate([[0.0], np.cumsum(masses) / masses.sum()])
        samples.append(np.interp(levels, cumulative, edges))
    distance = np.abs(np.subtract.outer(*samples))
    if square is ring_distance:
        distance = np.minimum(distance, 1 - distance)
    matched = distance[linear_sum_assignment(distance**2)] ** 2
    mass = 0.5 * (a.mean() + b.mean())
    assert float(square(a, b)) == pytest.approx(mass * matched.mean(), rel=2e-3)


def gaussian(grid: ng.Grid, mean: tuple[float, ...], width: tuple[float, ...]) -> np.ndarray:
    """A Gaussian of mass 1 with independent coordinates."""
    scaled = (np.asarray(grid.points) - mean) / width
    return np.prod(np.exp(-(scaled**2) / 2) / (np.sqrt(2 * np.pi) * np.asarray(width)), axis=-1)


@eqx.filter_jit
def square_of(metric: ng.metrics.Metric, a: jax.Array, b: jax.Array) -> jax.Array:
    return metric.squared_distance(a, b)


def order_of(errors: list[float]) -> float:
    return float(np.log2(abs(errors[0]) / abs(errors[1])))


def test_gaussians_on_a_line_converge_with_order_two():
    errors = []
    for n in (64, 128):
        grid = ng.Grid(0.0, 1.0, n)
        a, b = gaussian(grid, (0.4,), (0.05,)), gaussian(grid, (0.6,), (0.07,))
        errors.append(float(square_of(ng.Wasserstein(grid), a, b)) / (0.2**2 + 0.02**2) - 1)
    assert abs(errors[1]) < 2e-5
    assert order_of(errors) == pytest.approx(2, abs=0.2)


def test_gaussians_in_the_plane_converge_with_order_four():
    """ε = 2h² and the bias is O(ε²), so this is far better than cells would suggest."""
    errors = []
    for n in (12, 24):
        grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (n, n))
        a = gaussian(grid, (0.45, 0.5), (0.08, 0.08))
        b = gaussian(grid, (0.55, 0.5), (0.08, 0.11))
        errors.append(float(square_of(ng.Wasserstein(grid), a, b)) / (0.1**2 + 0.03**2) - 1)
    assert abs(errors[1]) < 1e-3
    assert order_of(errors) > 3.5


@eqx.filter_jit
def form_and_square(metric: ng.metrics.Metric, rho: jax.Array, zeta: jax.Array):
    return jnp.vdot(zeta, metric.at(rho).gram.mv(zeta)), metric.squared_distance(rho, rho + zeta)


@pytest.mark.parametrize(
    ("dimension", "boundary", "sizes"),
    [
        pytest.param(1, "neumann", (64, 128), marks=pytest.mark.slow),
        pytest.param(1, "periodic", (64, 128), marks=pytest.mark.slow),
        (2, "neumann", (12, 24)),
    ],
)
def test_wasserstein_agrees_with_its_metric_to_order_two(dimension, boundary, sizes):
    errors = []
    for n in sizes:
        grid = ng.Grid((0.0,) * dimension, (1.0,) * dimension, (n,) * dimension, boundary)
        x, y = np.asarray(grid.points[..., 0]), np.asarray(grid.points[..., -1])
        rho = 1 + 0.3 * np.sin(2 * np.pi * x) + 0.4 * np.cos(2 * np.pi * y)
        zeta = np.cos(2 * np.pi * x + (0.3 if boundary == "periodic" else 0.0))
        form, square = form_and_square(ng.Wasserstein(grid), rho, 1e-5 * zeta)
        errors.append(float(square / form) - 1)
    assert abs(errors[1]) < 0.02
    assert 1.8 < order_of(errors) < 2.6


def test_bias_of_a_wave_on_a_uniform_density():
    """The torus has a closed form: z/sinh z of W₂², z = εκ²/4."""
    n = 12
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (n, n), "periodic")
    x = np.asarray(grid.points[..., 0])
    for waves in (1, 2, 4):
        kappa = 2 * np.pi * waves
        zeta = 1e-4 * np.cos(kappa * x)
        square = float(square_of(ng.Wasserstein(grid), np.ones((n, n)), 1 + zeta))
        z = (kappa / n) ** 2 / 2
        expected = z / np.sinh(z) * np.mean(zeta**2) / kappa**2
        assert square == pytest.approx(expected, rel=1e-5)


def test_divergence_of_products_is_the_sum_along_axes():
    shape = (4, 5, 6)
    grids = [ng.Grid(0.0, 0.1 * n, n) for n in shape]
    p, q = ([np.asarray(density(grid, seed)) for grid in grids] for seed in (0, 1))
    p, q = ([x / x.sum() for x in factors] for factors in (p, q))
    along = [float(sinkhorn.sinkhorn_divergence(*args)) for args in zip(grids, p, q, strict=True)]
    box = ng.Grid((0.0,) * 3, tuple(0.1 * n for n in shape), shape)
    outer = partial(np.einsum, "i,j,k->ijk")
    whole = sinkhorn.sinkhorn_divergence(box, outer(*p), outer(*q))
    assert float(whole) == pytest.approx(sum(along), rel=1e-8)


@pytest.mark.slow
def test_divergence_of_rough_densities_and_its_failure(monkeypatch: pytest.MonkeyPatch):
    """A contrast of e⁶⁰, on which over-relaxation has to be held back; NaN if it is cut short."""
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (32, 32), "periodic")
    a, b = np.asarray(density(grid, 8, 10.0)), np.asarray(density(grid, 9, 10.0))
    forth, back = (float(square_of(ng.Wasserstein(grid), *pair)) for pair in ((a, b), (b, a)))
    assert forth == pytest.approx(back, rel=1e-6)
    monkeypatch.setattr(sinkhorn, "MAX_ROUNDS", 1)
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (6, 6))
    assert np.isnan(square_of(ng.Wasserstein(grid), np.ones((6, 6)), np.eye(6)))


@pytest.mark.parametrize("shape", with_slow([(7,), (4, 5)], [(7,)]), ids=str)
def test_mass_scales_the_distance_and_its_change_costs_nothing(shape):
    grid = make_grid(shape, "neumann")
    a, b = np.asarray(density(grid, 0)), np.asarray(density(grid, 1))
    metric = ng.Wasserstein(grid)
    square = float(square_of(metric, a, b))
    assert float(square_of(metric, 3 * a, 3 * b)) == pytest.approx(3 * square, rel=1e-9)
    assert float(square_of(metric, a, 3 * b)) == pytest.approx(
        square * (a.mean() + 3 * b.mean()) / (a.mean() + b.mean()), rel=1e-9
    )
    assert float(square_of(metric, a, 3 * a)) == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("shape", with_slow([(7,), (4, 5)], [(7,)]), ids=str)
def test_leading_axes_are_independent_functions(shape):
    grid = make_grid(shape, "neumann")
    a = np.stack([density(grid, seed) for seed in (1, 2, 3)])
    b = np.stack([density(grid, seed) for seed in (4, 5, 6)])
    for metric in (ng.L2(grid), ng.FisherRao(grid), ng.Wasserstein(grid)):
        together = float(square_of(metric, a[:, None], b[:, None]))
        alone = [float(square_of(metric, x, y)) for x, y in zip(a, b, strict=True)]
        assert together == pytest.approx(sum(alone), rel=1e-12)


@eqx.filter_jit
def value_and_slopes(metric: ng.metrics.Metric, a: jax.Array, b: jax.Array):
    return jax.value_and_grad(metric.squared_distance, argnums=(0, 1))(a, b)


@pytest.mark.parametrize("shape", with_slow([(7,), (4, 5)], [(7,)]), ids=str)
def test_gradients_are_finite_where_a_density_is_zero(shape):
    grid = make_grid(shape, "neumann")
    a, b = np.array(density(grid, 0)), np.array(density(grid, 1))
    a[:2], b[1:3] = 0.0, 0.0
    for metric in (ng.FisherRao(grid), ng.Wasserstein(grid)):
        for other in (b, a):
            value, slopes = value_and_slopes(metric, a, other)
            assert np.isfinite(value)
            assert np.all(np.isfinite(slopes))
        np.testing.assert_allclose(slopes, 0, atol=1e-12)


@pytest.mark.parametrize("dimension", with_slow([1, 2], [1]))
def test_single_precision(dimension: int):
    n = 24
    grid = ng.Grid((0.0,) * dimension, (1.0,) * dimension, (n,) * dimension)
    a = gaussian(grid, (0.45, 0.5)[:dimension], (0.08, 0.08)[:dimension])
    b = gaussian(grid, (0.55, 0.5)[:dimension], (0.08, 0.11)[:dimension])
    double = float(square_of(ng.Wasserstein(grid), a, b))
    a, b = a.astype(np.float32), b.astype(np.float32)
    single = square_of(ng.Wasserstein(grid), a, b)
    assert single.dtype == np.float32
    assert float(single) == pytest.approx(double, rel=1e-4)
    assert float(square_of(ng.Wasserstein(grid), a, a)) < 1e-6 * double


def test_compositions_and_flat_transport():
    grid = make_grid((4, 5), "neumann")
    a, b = density(grid, 0), density(grid, 1)
    l2, fisher = ng.L2(grid), ng.FisherRao(grid)
    blocks = ng.Blocks(u=l2, v=2.0 * fisher)

    @jax.jit
    def squares(a, b):
        pair = blocks.squared_distance({"u": a, "v": b}, {"u": b, "v": a})
        return (
            l2.squared_distance(a, b),
            fisher.squared_distance(a, b),
            (l2 + 0.5 * fisher).squared_distance(a, b),
            pair,
            ng.Mobility(grid, 0.0).squared_distance(a, b),
            ng.HomogeneousSobolev(grid, -1).squared_distance(a, b),
            l2.distance(a, b),
        )

    by_l2, by_fisher, by_sum, by_blocks, flat, dual, root = map(float, squares(a, b))
    w = grid.cell_volume
    assert by_l2 == pytest.approx(w * np.sum((a - b) ** 2))
    assert by_fisher == pytest.approx(4 * w * np.sum((np.sqrt(a) - np.sqrt(b)) ** 2))
    assert by_sum == pytest.approx(by_l2 + 0.5 * by_fisher)
    assert by_blocks == pytest.approx(by_l2 + 2 * by_fisher)
    assert flat == pytest.approx(dual, rel=1e-9)
    assert root == pytest.approx(np.sqrt(by_l2))


def test_errors():
    grid = make_grid((4, 5), "neumann")
    a = density(grid, 0)
    without = (
        ng.Mobility(grid, 0.8),
        ng.L2(grid) + ng.Mobility(grid, 0.8),
    )
    for metric in without:
        with pytest.raises(ng.InputError, match=r"has no distance of its own.*ProximalStep"):
            metric.distance(a, a)
    for metric in (ng.L2(grid), ng.FisherRao(grid), ng.Wasserstein(grid)):
        with pytest.raises(ng.InputError, match="b: has shape"):
            metric.squared_distance(a, a[None])
        with pytest.raises(ng.InputError, match="model: the state has shape"):
            metric.squared_distance(a.T, a.T)
    with pytest.raises(ng.InputError, match="entries"):
        ng.Blocks(ng.L2(grid)).squared_distance((a,), (a, a))


def check_what_is_no_density(seed: int, low: float, swap: bool) -> None:
    grid = ng.Grid(0.0, 1.0, 8)
    good = jnp.asarray(np.exp(np.random.default_rng(seed).normal(size=8)))
    bad = good.at[seed % 8].set(low)
    pair = (good, bad) if swap else (bad, good)
    for metric in (ng.FisherRao(grid), ng.Wasserstein(grid), 2.0 * ng.FisherRao(grid)):
        with pytest.raises(ng.InputError, match="negative"):
            metric.distance(*pair)
        assert np.isnan(traced_distance(metric, *pair))
        assert np.isfinite(traced_distance(metric, good, good + 0.1))


traced_distance = eqx.filter_jit(lambda metric, a, b: metric.squared_distance(a, b))
no_density = {"seed": st.integers(0, 2**31), "low": st.floats(-5.0, -1e-9), "swap": st.booleans()}


@settings(max_examples=5)
@given(**no_density)
def test_what_is_no_density_has_no_distance(seed, low, swap):
    check_what_is_no_density(seed, low, swap)


@pytest.mark.slow
@settings(max_examples=200)
@given(**no_density)
def test_no_negative_density_has_a_distance(seed, low, swap):
    check_what_is_no_density(seed, low, swap)


def test_a_density_without_mass_has_no_distance():
    grid = ng.Grid(0.0, 1.0, 8)
    with pytest.raises(ng.InputError, match="zero mass"):
        ng.Wasserstein(grid).distance(jnp.zeros(8), jnp.ones(8))
