"""Dense kernels against NumPy and SciPy: products, rank decisions, minimum-norm solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from natgrad.linalg import (
    condition_estimate,
    gram,
    gram_outer,
    minimum_norm_factor,
    pivoted_qr,
    safe_cholesky,
)
from natgrad.linalg import minimum_norm as minimum_norm_module
from natgrad.linalg import pivoting as pivoting_module

jax.config.update("jax_enable_x64", True)

PIVOTING = {
    "lapack": pivoting_module._pivoted_qr_lapack,
    "loop": pivoting_module._pivoted_qr_loop,
}
# Few shapes, many values: every new shape is a new compilation.
SHAPES = st.sampled_from([(1, 1), (12, 5), (40, 12), (12, 12), (6, 15)])
SEEDS = st.integers(0, 2**32 - 1)
# Compiled once per shape; outside `jit` every call would compile its branches anew.
solve = jax.jit(lambda factor, b, damping=0.0: factor.solve(b, damping))
solve_gram = jax.jit(lambda factor, r, damping=0.0: factor.solve_gram(r, damping))
solve_both = jax.jit(lambda factor, b, r: factor.solve_both(b, r))
condition_of = jax.jit(lambda factor: factor.condition)
compiled_estimate = jax.jit(condition_estimate)
examples = settings(max_examples=60, deadline=None)


def factorise_with(pivot):
    """`minimum_norm_factor`, compiled with the given pivoting algorithm."""

    def factorise(Y, rtol):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(minimum_norm_module, "pivoted_qr_of_core", pivot)
            return minimum_norm_factor(Y, rtol)

    return jax.jit(factorise)


FACTORISATIONS = [factorise_with(pivot) for pivot in PIVOTING.values()]


def random_orthonormal(rng, rows, columns):
    return np.linalg.qr(rng.standard_normal((rows, columns)))[0]


def graded_matrix(rng, k, p, rank, decades):
    """Singular values from 1 to 10^−decades, then zeros."""
    values = np.logspace(0, -decades, rank)
    return (random_orthonormal(rng, k, rank) * values) @ random_orthonormal(rng, p, rank).T


@st.composite
def matrices(draw, decades=st.sampled_from([0, 3, 6])):
    """A matrix with a clear rank, some of its columns exactly zero."""
    k, p = draw(SHAPES)
    rng = np.random.default_rng(draw(SEEDS))
    rank = draw(st.integers(1, min(k, p)))
    Y = graded_matrix(rng, k, p, rank, draw(decades)) * 10.0 ** draw(st.integers(-8, 8))
    if p > 1:
        Y[:, rng.random(p) < draw(st.sampled_from([0.0, 0.3]))] = 0.0
    return Y, rng


@pytest.fixture(params=PIVOTING)
def pivoting(request, monkeypatch):
    """Both pivoting algorithms, whatever this machine would choose."""
    for module in (pivoting_module, minimum_norm_module):
        monkeypatch.setattr(module, "pivoted_qr_of_core", PIVOTING[request.param])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("k", "p"), [(1, 1), (300, 7), (300, 64), (50, 131), (4100, 65), (6144, 64)]
)
def test_products_match_numpy(k, p, dtype):
    Y = np.random.default_rng(0).standard_normal((k, p)).astype(dtype)
    tolerance = 8 * k * np.finfo(dtype).eps
    for product in (gram(jnp.asarray(Y)), gram_outer(jnp.asarray(Y.T))):
        assert product.dtype == dtype
        np.testing.assert_allclose(product, Y.T.astype(float) @ Y, atol=tolerance, rtol=tolerance)


def test_products_batch_and_differentiate():
    Y = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4100, 65)))
    np.testing.assert_allclose(jax.vmap(gram)(Y), jnp.swapaxes(Y, 1, 2) @ Y, atol=1e-10)
    weights = jnp.asarray(np.random.default_rng(1).standard_normal((65, 65)))
    gradient = jax.grad(lambda Y: jnp.sum(weights * gram(Y)))(Y[0])
    np.testing.assert_allclose(gradient, Y[0] @ (weights + weights.T), atol=1e-10)


@pytest.mark.parametrize("pivot", PIVOTING.values(), ids=PIVOTING)
@examples
@given(matrices())
def test_pivoted_qr_factorises_and_finds_the_rank(pivot, drawn):
    Y, _ = drawn
    R, permutation, rank = jax.jit(pivot)(jnp.asarray(Y), 1e-10)
    R = np.asarray(R)
    assert sorted(permutation.tolist()) == list(range(Y.shape[1]))
    assert rank == np.linalg.matrix_rank(Y, rtol=1e-10)
    assert not R[rank:].any()
    np.testing.assert_array_equal(R, np.triu(R))
    pivots = np.abs(np.diag(R))
    assert (pivots[1:] <= pivots[:-1] * (1 + 1e-10)).all()
    scale = np.abs(Y).max() ** 2
    permuted = Y[:, permutation]
    np.testing.assert_allclose(R.T @ R, permuted.T @ permuted, atol=1e-12 * scale * len(Y))


@examples
@given(matrices(decades=st.sampled_from([0, 3, 6, 12])))
def test_loop_makes_the_pivots_of_lapack(drawn):
    Y, _ = drawn
    loop, lapack = (jax.jit(pivot)(jnp.asarray(Y), 1e-14) for pivot in PIVOTING.values())
    largest = np.abs(lapack.R[0, 0])
    np.testing.assert_allclose(
        np.abs(np.diag(loop.R)), np.abs(np.diag(lapack.R)), rtol=1e-2, atol=1e-12 * largest
    )


def test_tall_matrices_are_reduced_first():
    rng = np.random.default_rng(0)
    Y = graded_matrix(rng, 60, 8, 5, 2)
    R, permutation, rank = jax.jit(pivoted_qr)(Y)
    expected, expected_permutation = scipy.linalg.qr(Y, mode="r", pivoting=True)
    assert rank == 5
    np.testing.assert_array_equal(permutation[:5], expected_permutation[:5])
    np.testing.assert_allclose(np.abs(np.diag(R))[:5], np.abs(np.diag(expected))[:5], rtol=1e-12)


def test_tolerance_decides_the_rank(pivoting):
    Y = jnp.diag(jnp.array([1.0, 1e-3, 1e-6, 1e-9, 1e-12]))
    assert [int(pivoted_qr(Y, rtol).rank) for rtol in (None, 1e-10, 1e-7, 1e-4)] == [5, 4, 3, 2]
    assert int(pivoted_qr(jnp.zeros((4, 3))).rank) == 0


@examples
@given(matrices())
def test_minimum_norm_solution_is_the_pseudo_inverse(drawn):
    Y, rng = drawn
    k, p = Y.shape
    b, r = rng.standard_normal((k, 2)), rng.standard_normal(p)
    for factorise in FACTORISATIONS:
        factor = factorise(jnp.asarray(Y), 1e-10)
        inverse = np.linalg.pinv(Y, rcond=1e-10)
        values = np.linalg.svd(Y, compute_uv=False)[: factor.rank]
        assert factor.rank == np.linalg.matrix_rank(Y, rtol=1e-10)
        if factor.rank == 0:
            assert not np.any(solve(factor, jnp.asarray(b)))
            continue
        condition, norm = values[0] / values[-1], 1 / values[-1]
        assert condition / 2 <= condition_of(factor) <= condition * (1 + 1e-6)
        tolerance = 1e-13 * condition * norm * np.sqrt(k)
        np.testing.assert_allclose(solve(factor, jnp.asarray(b)), inverse @ b, atol=tolerance * 10)
        expected = inverse @ (inverse.T @ r)
        atol = 1e-12 * condition * norm**2 * p
        np.testing.assert_allclose(solve_gram(factor, jnp.asarray(r)), expected, atol=atol)
        np.testing.assert_allclose(
            solve_both(factor, jnp.asarray(b[:, 0]), jnp.asarray(r)),
            inverse @ b[:, 0] + expected,
            atol=atol + tolerance * 10,
        )


@examples
@given(matrices(), st.sampled_from([1e-10, 1e-4, 1.0, 1e3]))
def test_damped_solution_filters_the_singular_values(drawn, relative):
    Y, rng = drawn
    k, p = Y.shape
    b, r = rng.standard_normal(k), rng.standard_normal(p)
    U, values, Vt = np.linalg.svd(Y, full_matrices=False)
    kept = values > 1e-10 * values[0]
    U, values, Vt = U[:, kept], values[kept], Vt[kept]
    if not len(values):
        return
    damping = relative * values[0] ** 2
    factor = FACTORISATIONS[0](jnp.asarray(Y), 1e-10)
    condition = values[0] / np.sqrt(values[-1] ** 2 + damping)
    expected = Vt.T @ (values / (values**2 + damping) * (U.T @ b))
    size = 1 / np.sqrt(values[-1] ** 2 + damping)
    solution = solve(factor, jnp.asarray(b), damping)
    np.testing.assert_allclose(solution, expected, atol=1e-12 * condition * size * np.sqrt(k))
    expected = Vt.T @ (Vt @ r / (values**2 + damping))
    solution = solve_gram(factor, jnp.asarray(r), damping)
    np.testing.assert_allclose(solution, expected, atol=1e-12 * condition * size**2 * p)


def test_the_condition_number_is_not_squared(pivoting):
    rng = np.random.default_rng(0)
    Y = graded_matrix(rng, 80, 20, 20, 10)
    exact = rng.standard_normal(20)
    b = jnp.asarray(Y @ exact)
    factor = minimum_norm_factor(jnp.asarray(Y))
    assert factor.rank == 20
    for damping in (0.0, 1e-40):
        solution = solve(factor, b, damping)
        assert np.abs(solution - exact).max() < 1e-4  # normal equations have no digit left


def test_zero_columns_get_zero_solutions_and_nan_is_not_hidden(pivoting):
    rng = np.random.default_rng(0)
    Y = jnp.asarray(rng.standard_normal((9, 4))).at[:, 2].set(0.0)
    b = jnp.asarray(rng.standard_normal(9))
    assert minimum_norm_factor(Y).solve(b)[2] == 0
    assert not jnp.any(jnp.isfinite(minimum_norm_factor(Y.at[3, 1].set(jnp.nan)).solve(b)))
    zero = minimum_norm_factor(jnp.zeros((9, 4)))
    assert zero.rank == 0
    assert not jnp.any(zero.solve_both(b, jnp.ones(4), 0.1))


def test_single_precision_and_batches(pivoting):
    rng = np.random.default_rng(0)
    Y = jnp.asarray(np.stack([graded_matrix(rng, 30, 8, r, 1) for r in (3, 8)]), jnp.float32)
    b = jnp.asarray(rng.standard_normal(30), jnp.float32)
    solve = jax.jit(jax.vmap(lambda Y: (minimum_norm_factor(Y).solve(b), pivoted_qr(Y).rank)))
    solutions, ranks = solve(Y)
    assert solutions.dtype == jnp.float32
    assert ranks.tolist() == [3, 8]
    for matrix, solution in zip(Y, solutions, strict=True):
        expected = np.linalg.pinv(np.asarray(matrix, float), rcond=1e-5) @ np.asarray(b)
        np.testing.assert_allclose(solution, expected, atol=1e-4)


@examples
@given(SEEDS, st.sampled_from([1, 2, 7, 60]), st.sampled_from([0, 2, 6, 12]))
def test_condition_estimate_is_within_a_factor_of_two(seed, p, decades):
    R = np.linalg.qr(graded_matrix(np.random.default_rng(seed), p, p, p, decades))[1]
    exact = np.linalg.cond(R)
    assert exact / 2 <= compiled_estimate(jnp.asarray(R)) <= exact * (1 + 1e-3)


def test_condition_estimate_of_singular_and_extreme_triangles():
    assert condition_estimate(jnp.array([[1.0, 2.0], [0.0, 0.0]])) == jnp.inf
    tiny = jnp.diag(jnp.array([1e-30, 1e-34], jnp.float32))
    np.testing.assert_allclose(condition_estimate(tiny), 1e4, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_safe_cholesky_factorises(dtype):
    Y = np.random.default_rng(0).standard_normal((30, 6)).astype(dtype)
    Y[:, 4] = 0.0
    G = jnp.asarray(Y.T @ Y)
    L, ok = jax.jit(safe_cholesky)(G)
    assert ok
    assert L.dtype == dtype
    r = jnp.asarray(Y.T @ Y[:, 0])
    solution = jax.scipy.linalg.cho_solve((L, True), r)
    np.testing.assert_allclose(solution, [1, 0, 0, 0, 0, 0], atol=50 * np.finfo(dtype).eps)
    assert safe_cholesky(jnp.zeros((3, 3)))[1]


@pytest.mark.parametrize(
    "G",
    [
        np.ones((3, 3)),
        np.diag([1.0, 1e-17]),
        np.diag([1.0, -1.0]),
        np.array([[0.0, 1.0], [1.0, 4.0]]),
        np.array([[np.nan, 0.0], [0.0, 1.0]]),
        np.array([[np.inf]]),
    ],
    ids=["rank one", "tiny pivot", "indefinite", "zero pivot", "nan", "infinite"],
)
def test_safe_cholesky_says_when_it_fails(G):
    assert not safe_cholesky(jnp.asarray(G))[1]
