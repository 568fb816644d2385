"""Every metric against its dense oracle: factor, transpose, Gram, whitening, batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import natgrad as ng
from cases import CASES, SMALL_CASES, Case, density, make_grid, tangent
from natgrad.operators import as_dense

every_case = pytest.mark.parametrize("case", CASES, ids=str)
small_case = pytest.mark.parametrize("case", SMALL_CASES, ids=str)


@eqx.filter_jit
def everything(metric: ng.Metric, rho: jax.Array, c: jax.Array):
    L = metric.factor(rho)
    b = ravel_pytree(metric.whiten(rho, c))[0]
    remainder = metric.remainder(rho, c) if metric.annihilates else jnp.zeros_like(c)
    return as_dense(L), as_dense(L.T), as_dense(metric.gram(rho)), b, remainder


@every_case
def test_metric_against_its_dense_oracle(case: Case):
    rho, zeta = density(case.grid, 1), tangent(case, 2)
    c = jnp.asarray(np.random.default_rng(3).normal(size=case.grid.shape))
    dense = case.dense(np.asarray(rho))
    forward, backward, gram, b, remainder = everything(case.metric, rho, c)

    scale = np.abs(dense).max()
    np.testing.assert_allclose(forward.T @ forward, dense, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(gram, dense, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(
        backward, forward.T, rtol=0, atol=1e-12 * float(jnp.abs(forward).max()), err_msg="transpose"
    )
    size = float(jnp.linalg.norm(c) + jnp.linalg.norm(b) * jnp.linalg.norm(forward, 2))
    left = c.ravel() - forward.T @ b
    np.testing.assert_allclose(
        left, remainder.ravel(), rtol=0, atol=1e-12 * size, err_msg="remainder"
    )
    tangents_see_all = case.mean_free or not case.metric.annihilates
    if tangents_see_all:  # ⟨Lζ, (Lᵀ)†c⟩ = ⟨ζ, c⟩
        dual = float(forward @ zeta.ravel() @ b)
        expected = float(jnp.vdot(zeta, c))
        bound = 1e-12 * size * float(jnp.linalg.norm(zeta))
        np.testing.assert_allclose(dual, expected, rtol=0, atol=bound)


@eqx.filter_jit
def products(metric: ng.Metric, rho: jax.Array, zeta: jax.Array):
    return metric.gram(rho).mv(zeta), metric.factor(rho).mv(zeta), metric.whiten(rho, zeta)


@small_case
def test_a_batch_is_independent_functions(case: Case):
    if isinstance(case.metric, (ng.MatrixMetric, ng.FactorMetric)):
        pytest.skip("acts on the whole flattened state")
    rho = jnp.stack([density(case.grid, seed) for seed in (1, 2, 3)])[:, None]
    zeta = jnp.stack([tangent(case, seed) for seed in (4, 5, 6)])[:, None]
    together = products(case.metric, rho, zeta)
    assert together[0].shape == zeta.shape
    for i in range(3):
        alone = products(case.metric, rho[i, 0], zeta[i, 0])
        for batched, one in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            bound = 1e-12 * float(jnp.abs(one).max())
            np.testing.assert_allclose(batched[i, 0], one, rtol=0, atol=bound)


dense_gram = eqx.filter_jit(lambda metric, rho: as_dense(metric.gram(rho)))


@given(seed=st.integers(0, 1000), index=st.integers(0, len(SMALL_CASES) - 1))
def test_gram_is_symmetric_and_positive(seed: int, index: int):
    case = SMALL_CASES[index]
    A = np.asarray(dense_gram(case.metric, density(case.grid, seed, contrast=2.0)))
    scale = np.abs(A).max()
    np.testing.assert_allclose(A, A.T, rtol=0, atol=1e-11 * scale)
    assert np.linalg.eigvalsh(0.5 * (A + A.T)).min() > -1e-11 * scale


@pytest.mark.parametrize("boundary", ["neumann", "periodic"])
@pytest.mark.parametrize("shape", [(6,), (4, 5), (2, 3, 4)], ids=str)
@given(seed=st.integers(0, 1000))
def test_transport_laws(seed: int, shape: tuple[int, ...], boundary: str):
    """Mobility(½) is W₂; Mobility(0) and W₂ at ρ = 1 are Ḣ⁻¹."""
    grid = make_grid(shape, boundary)
    rho = density(grid, seed)
    case = Case("", grid, ng.L2(grid), lambda rho: np.eye(grid.size), mean_free=True)
    zeta = tangent(case, seed + 1)
    measure = lambda metric, rho: products(metric, rho, zeta)[0]
    dual = measure(ng.HomogeneousSobolev(grid, -1), rho)
    scale = float(jnp.abs(dual).max())
    flat, w2 = ng.Mobility(grid, 0.0), ng.Wasserstein(grid)
    np.testing.assert_allclose(measure(flat, rho), dual, rtol=0, atol=1e-11 * scale)
    uniform = measure(w2, jnp.ones(shape))
    np.testing.assert_allclose(uniform, dual, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(measure(ng.Mobility(grid, 0.5), rho), measure(w2, rho), rtol=1e-12)


@pytest.mark.parametrize("boundary", ["neumann", "periodic", "dirichlet"])
def test_sobolev_is_homogeneous_plus_l2(boundary: str):
    grid = make_grid((4, 5), boundary)
    rho = density(grid, 0)
    whole = as_dense(ng.Sobolev(grid, 1).gram(rho))
    parts = as_dense((ng.HomogeneousSobolev(grid, 1) + ng.L2(grid)).gram(rho))
    np.testing.assert_allclose(whole, parts, rtol=0, atol=1e-12 * float(jnp.abs(whole).max()))


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
            parts = list(zip(metric.metrics, rho, strict=True))
        metric.check_structure(rho)
        A = np.asarray(as_dense(metric.gram(rho)))
        blocks = [np.asarray(as_dense(part.gram(state))) for part, state in parts]
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
    assert not metric.annihilates
    back = metric.factor(rho).T.mv(metric.whiten(rho, c))
    np.testing.assert_allclose(back, c, rtol=1e-12)


def test_floor_is_reported():
    grid = make_grid((4, 5), "neumann")
    rho = density(grid, 0).at[0, 0].set(0.0).at[1, 1].set(1e-30)
    for metric in (ng.FisherRao(grid), ng.Wasserstein(grid), ng.Mobility(grid, 0.8)):
        assert float(metric.report(rho)["floored"]) == pytest.approx(0.1)
        assert bool(jnp.all(jnp.isfinite(metric.gram(rho).mv(rho))))


def test_a_singular_factor_keeps_the_whole_gradient():
    """The periodic difference matrix annihilates constants though it is square."""
    D = np.eye(12) - np.roll(np.eye(12), 1, axis=1)
    x = jnp.arange(12) / 12.0
    problem = ng.Problem(
        lambda t: t[0] * jnp.sin(x) + t[1] * x**2, lambda rho: jnp.sum((rho - 1.0) ** 2)
    )
    theta = jnp.array([0.3, 0.4])
    by_factor = ng.natural_gradient(problem, theta, metric=ng.FactorMetric(D)).eta
    by_matrix = ng.natural_gradient(problem, theta, metric=ng.MatrixMetric(D.T @ D)).eta
    G = ng.information_matrix(problem, theta, metric=ng.FactorMetric(D))
    gradient = jax.grad(lambda t: problem.value(t, problem.model(t)))(theta)
    np.testing.assert_allclose(G @ by_factor, -gradient, rtol=1e-9)
    np.testing.assert_allclose(by_factor, by_matrix, rtol=1e-9)


def test_lowest_modes_keep_their_digits_on_fine_grids():
    from natgrad.elliptic.spectral import laplacian_eigenvalues

    n = 100_000
    for boundary, mode in (("neumann", np.pi), ("periodic", 2 * np.pi), ("dirichlet", np.pi)):
        lowest = laplacian_eigenvalues(ng.Grid(0.0, 1.0, n, boundary), "staggered")
        first = lowest[1] if boundary != "dirichlet" else lowest[0]
        assert first == pytest.approx(mode**2, rel=1e-8)
