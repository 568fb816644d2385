"""Every metric against its dense oracle: factor, transpose, Gram, whitening, batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import natgrad as ng
from cases import (
    CASES,
    FAST_SMALL_CASES,
    SMALL_CASES,
    Case,
    density,
    make_grid,
    parametrised,
    tangent,
)
from natgrad.core.operators import as_dense
from natgrad.pinn.collocation import Weights
from problems_for_tests import with_slow

OF_THE_PAPER = ("collocated", "forward", "fourth_order")


LOCAL = ("L2", "FisherRao", "MatrixMetric", "FactorMetric", "Sum of diagonals")


def repeats_another(case: Case) -> bool:
    """Symbols and exponents off the plane, and all but one boundary where none matters."""
    plane, closed = case.grid.dimension == 2, case.grid.boundary == "neumann"
    if case.name.startswith((*OF_THE_PAPER, "Mobility", "Sum")):
        return not (plane and closed)
    if case.name.startswith(("Sobolev", "HomogeneousSobolev")):
        return not plane
    return (case.name.startswith(LOCAL) and not closed) or case.name == "Wasserstein-2x3x4-periodic"


@eqx.filter_jit
def everything(metric: ng.metrics.Metric, rho: jax.Array, c: jax.Array, zeta: jax.Array):
    """All that the tests below need of a metric, so that it is compiled once."""
    geometry = metric.at(rho)
    L, A = geometry.factor, geometry.gram
    remainder = geometry.remainder(c) if geometry.annihilates else jnp.zeros_like(c)
    dense = as_dense(L), as_dense(L.T), as_dense(A)
    return *dense, remainder, (A.mv(zeta), L.mv(zeta), geometry.whiten(c))


@eqx.filter_jit
def products(metric: ng.metrics.Metric, rho: jax.Array, zeta: jax.Array):
    geometry = metric.at(rho)
    return geometry.gram.mv(zeta), geometry.factor.mv(zeta), geometry.whiten(zeta)


@parametrised(CASES, slow=repeats_another)
def test_metric_against_its_dense_oracle(case: Case):
    rho, zeta = density(case.grid, 1), tangent(case, 2)
    c = np.random.default_rng(3).normal(size=case.grid.shape)
    dense = case.dense(np.asarray(rho))
    found = everything(case.metric, rho, jnp.asarray(c), zeta)
    forward, backward, gram, remainder = map(np.asarray, found[:-1])
    b = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found[-1][-1])])

    scale = np.abs(dense).max()
    np.testing.assert_allclose(forward.T @ forward, dense, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(gram, dense, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(
        backward, forward.T, rtol=0, atol=1e-12 * np.abs(forward).max(), err_msg="transpose"
    )
    size = np.linalg.norm(c) + np.linalg.norm(b) * np.linalg.norm(forward, 2)
    left = c.ravel() - forward.T @ b
    np.testing.assert_allclose(
        left, remainder.ravel(), rtol=0, atol=1e-12 * size, err_msg="remainder"
    )
    tangents_see_all = case.mean_free or not case.metric.at(rho).annihilates
    if tangents_see_all:  # ⟨Lζ, (Lᵀ)†c⟩ = ⟨ζ, c⟩
        dual = forward @ np.ravel(zeta) @ b
        bound = 1e-12 * size * np.linalg.norm(zeta)
        np.testing.assert_allclose(dual, np.vdot(zeta, c), rtol=0, atol=bound)


@parametrised(
    SMALL_CASES,
    slow=lambda case: case.grid.boundary != "neumann" or case.name.startswith(OF_THE_PAPER),
)
def test_a_batch_is_independent_functions(case: Case):
    if isinstance(case.metric, (ng.MatrixMetric, ng.FactorMetric)):
        pytest.skip("acts on the whole flattened state")
    rho = np.stack([density(case.grid, seed) for seed in (1, 2, 3)])[:, None]
    zeta = np.stack([tangent(case, seed) for seed in (4, 5, 6)])[:, None]
    together = products(case.metric, jnp.asarray(rho), jnp.asarray(zeta))
    assert together[0].shape == zeta.shape
    for i in range(3):
        one_rho, one_zeta = jnp.asarray(rho[i, 0]), jnp.asarray(zeta[i, 0])
        alone = everything(case.metric, one_rho, one_zeta, one_zeta)[-1]
        for batched, one in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            batched, one = np.asarray(batched), np.asarray(one)
            np.testing.assert_allclose(batched[i, 0], one, rtol=0, atol=1e-12 * np.abs(one).max())


DIAGONAL = ("L2-", "L2()-", "FisherRao-", "Sum of diagonals-")


@parametrised(CASES, slow=lambda case: case.grid.boundary != "neumann" or case.grid.dimension != 2)
def test_the_diagonal_is_all_of_the_matrix_where_there_is_one(case: Case):
    rho = density(case.grid, 1)
    entries = case.metric.at(rho).diagonal
    if entries is None:
        assert not case.name.startswith(DIAGONAL)
        return
    assert entries.shape == rho.shape
    A = np.diag(np.ravel(entries))
    np.testing.assert_allclose(A, case.dense(np.asarray(rho)), rtol=1e-13)
    rhos = jnp.stack([rho, density(case.grid, 2)])  # each is a function of its own
    both = [case.metric.at(one).diagonal for one in rhos]
    np.testing.assert_allclose(case.metric.at(rhos).diagonal, jnp.stack(both), rtol=1e-14)
    half = case.metric.at(rho.astype(jnp.float32)).diagonal
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, entries, rtol=1e-6)


def test_the_diagonal_of_composed_metrics():
    grid = ng.Grid(0.0, 1.0, 4)
    rho = {"u": jnp.arange(1.0, 5.0), "v": jnp.ones((4, 2))}
    per_point = Weights(jnp.arange(1.0, 5.0))
    metric = ng.Blocks(v=3.0 * per_point, u=ng.FisherRao(grid) + 2.0 * ng.L2())
    entries = metric.at(rho).diagonal
    np.testing.assert_allclose(entries["u"], 0.25 / np.arange(1.0, 5.0) + 2.0, rtol=1e-14)
    np.testing.assert_allclose(entries["v"], 3.0 * np.outer(np.arange(1.0, 5.0), [1, 1]))
    A = np.diag(np.concatenate([np.ravel(entries[key]) for key in ("u", "v")]))
    np.testing.assert_allclose(dense_gram(metric, rho), A, rtol=1e-13)
    full = ng.Sobolev(grid, 1)
    for not_diagonal in (full + ng.L2(grid), 2.0 * full, ng.Blocks(u=full, v=ng.L2())):
        state = rho if isinstance(not_diagonal, ng.Blocks) else rho["u"]
        assert not_diagonal.at(state).diagonal is None


@given(seed=st.integers(0, 1000), index=st.integers(0, len(FAST_SMALL_CASES) - 1))
def test_gram_is_symmetric_and_positive(seed: int, index: int):
    case = FAST_SMALL_CASES[index]
    rho, zeta = density(case.grid, seed, contrast=2.0), tangent(case, 2)
    A = np.asarray(everything(case.metric, rho, zeta, zeta)[2])
    scale = np.abs(A).max()
    np.testing.assert_allclose(A, A.T, rtol=0, atol=1e-11 * scale)
    assert np.linalg.eigvalsh(0.5 * (A + A.T)).min() > -1e-11 * scale


@eqx.filter_jit
def gram_products(metrics: list[ng.metrics.Metric], rhos: list[jax.Array], zeta: jax.Array):
    """Aζ for each metric at its state, which may be a batch."""
    along = lambda rho: jnp.broadcast_to(zeta, rho.shape)
    return [metric.at(rho).gram.mv(along(rho)) for metric, rho in zip(metrics, rhos, strict=True)]


@eqx.filter_jit
def dense_gram(metric: ng.metrics.Metric, rho) -> jax.Array:
    return as_dense(metric.at(rho).gram)


@pytest.mark.parametrize("boundary", ["neumann", "periodic"])
@pytest.mark.parametrize("shape", with_slow([(6,), (4, 5), (2, 3, 4)], [(6,), (2, 3, 4)]), ids=str)
@given(seed=st.integers(0, 1000))
def test_transport_laws(seed: int, shape: tuple[int, ...], boundary: str):
    """Mobility(½) is W₂; Mobility(0) and W₂ at ρ = 1 are Ḣ⁻¹."""
    grid = make_grid(shape, boundary)
    rho = density(grid, seed)
    case = Case("", grid, ng.L2(grid), lambda rho: np.eye(grid.size), mean_free=True)
    zeta = tangent(case, seed + 1)
    flat, half, w2 = ng.Mobility(grid, 0.0), ng.Mobility(grid, 0.5), ng.Wasserstein(grid)
    metrics = [ng.HomogeneousSobolev(grid, -1), flat, half, w2]
    batch = jnp.asarray(np.stack([rho, np.ones(shape)]))
    dual, flat, half, (w2, uniform) = gram_products(metrics, [rho, rho, rho, batch], zeta)
    dual, flat, half, w2, uniform = map(np.asarray, (dual, flat, half, w2, uniform))
    scale = np.abs(dual).max()
    np.testing.assert_allclose(flat, dual, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(uniform, dual, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(half, w2, rtol=1e-12)


@pytest.mark.parametrize("boundary", ["neumann", "periodic", "dirichlet"])
def test_sobolev_is_homogeneous_plus_l2(boundary: str):
    grid = make_grid((4, 5), boundary)
    rho = density(grid, 0)
    whole = np.asarray(dense_gram(ng.Sobolev(grid, 1), rho))
    parts = np.asarray(dense_gram(ng.HomogeneousSobolev(grid, 1) + ng.L2(grid), rho))
    np.testing.assert_allclose(whole, parts, rtol=0, atol=1e-12 * np.abs(whole).max())


def test_blocks_are_block_diagonal():
    first, second = make_grid((4,), "neumann"), make_grid((3, 2), "periodic")
    for named in (False, True):
        if named:
            metric = ng.Blocks(u=ng.Sobolev(first, 1), v=2.0 * ng.FisherRao(second))
            rho = {"u": density(first, 0), "v": density(second, 1)}
            parts = [(metric.metrics[key], rho[key]) for key in ("u", "v")]
        else:
            metric = ng.Blocks(ng.Sobolev(first, 1), 2.0 * ng.FisherRao(second))
            rho = (density(first, 0), density(second, 1))
            parts = list(zip(metric.metrics.values(), rho, strict=True))
        metric.check_structure(rho)
        A = np.asarray(dense_gram(metric, rho))
        blocks = [np.asarray(dense_gram(part, state)) for part, state in parts]
        expected = np.block(
            [
                [blocks[0], np.zeros((len(blocks[0]), len(blocks[1])))],
                [np.zeros((len(blocks[1]), len(blocks[0]))), blocks[1]],
            ]
        )
        np.testing.assert_allclose(A, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_sum_whitens_with_a_part_that_annihilates_nothing():
    grid = make_grid((4, 5), "neumann")
    metric = ng.HomogeneousSobolev(grid, 1) + 0.5 * ng.L2(grid)
    rho = density(grid, 0)
    c = jnp.asarray(np.random.default_rng(1).normal(size=grid.shape))
    assert not metric.at(rho).annihilates
    back = jax.jit(lambda rho, c: metric.factor(rho).T.mv(metric.whiten(rho, c)))(rho, c)
    np.testing.assert_allclose(back, c, rtol=1e-12)


def test_floor_is_reported():
    grid = make_grid((4, 5), "neumann")
    rho = np.array(density(grid, 0))
    rho[0, 0], rho[1, 1] = 0.0, 1e-30
    rho = np.stack([rho, 1e-20 * rho])  # each function of a batch has a floor of its own
    for metric in (ng.FisherRao(grid), ng.Wasserstein(grid), ng.Mobility(grid, 0.8)):

        def compute(rho, metric=metric):
            geometry = metric.at(rho)
            return geometry.report(), geometry.gram.mv(rho)

        report, product = jax.jit(compute)(rho)
        assert float(report["floored"]) == pytest.approx(0.1)
        assert np.all(np.isfinite(product))


def test_a_singular_factor_keeps_the_whole_gradient():
    """The periodic difference matrix annihilates constants though it is square."""
    D = np.eye(12) - np.roll(np.eye(12), 1, axis=1)
    x = np.arange(12) / 12.0
    problem = ng.Problem(
        lambda t: t[0] * jnp.sin(x) + t[1] * x**2, lambda rho: jnp.sum((rho - 1.0) ** 2)
    )
    theta = jnp.array([0.3, 0.4])
    by_factor = ng.natural_gradient(problem, theta, metric=ng.FactorMetric(D)).eta
    by_matrix = ng.natural_gradient(problem, theta, metric=ng.MatrixMetric(D.T @ D)).eta
    G = ng.information_matrix(problem, theta, metric=ng.FactorMetric(D))
    gradient = jax.jit(jax.grad(lambda t: problem.value(t, problem.model(t))))(theta)
    np.testing.assert_allclose(G @ by_factor, -gradient, rtol=1e-9)
    np.testing.assert_allclose(by_factor, by_matrix, rtol=1e-9)


def test_lowest_modes_keep_their_digits_on_fine_grids():
    from natgrad.metrics.elliptic.spectral import laplacian_eigenvalues

    n = 100_000
    for boundary, mode in (("neumann", np.pi), ("periodic", 2 * np.pi), ("dirichlet", np.pi)):
        lowest = laplacian_eigenvalues(ng.Grid(0.0, 1.0, n, boundary))
        first = lowest[1] if boundary != "dirichlet" else lowest[0]
        assert first == pytest.approx(mode**2, rel=1e-8)
