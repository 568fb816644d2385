"""Dense kernels against NumPy and SciPy: products, rank decisions, minimum-norm solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from natgrad.core import dense as minimum_norm_module
from natgrad.core import dense as pivoting_module
from natgrad.core.dense import (
    factor_damped,
    gram,
    gram_outer,
    minimum_norm_factor,
    pivoted_qr,
    rank_tolerance,
    safe_cholesky,
    solve_and_estimate,
)
from problems_for_tests import with_slow

jax.config.update("jax_enable_x64", True)

PIVOTING = {
    "lapack": pivoting_module._pivoted_qr_lapack,
    "loop": pivoting_module._pivoted_qr_loop,
}
# Few shapes, many values: every new shape is a new compilation.
SHAPES = st.sampled_from([(1, 1), (40, 12), (12, 12), (6, 15)])
SEEDS = st.integers(0, 2**32 - 1)
compiled_estimate = jax.jit(lambda R: solve_and_estimate(R)[1])
compiled_cholesky = jax.jit(safe_cholesky)
compiled_pivoting = {name: jax.jit(pivot) for name, pivot in PIVOTING.items()}
examples = settings(max_examples=60, deadline=None)


def all_solutions(pivot):
    """Everything a `MinimumNormFactor` computes, in one program, with one pivoting algorithm."""

    def compute(Y, rtol, b, r, damping):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(minimum_norm_module, "pivoted_qr_of_core", pivot)
            factor = minimum_norm_factor(Y, rtol)
        return {
            "rank": factor.rank,
            "condition": solve_and_estimate(factor.R1)[1],
            "of b": factor.solve(b, jnp.zeros((len(r), b.shape[1])), damping),
            "of r": factor.solve(jnp.zeros(len(b)), r, damping),
            "of both": factor.solve(b[:, 0], r, damping),
        }

    return jax.jit(compute)


SOLUTIONS = {name: all_solutions(pivot) for name, pivot in PIVOTING.items()}


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


@pytest.mark.parametrize(
    ("k", "p", "dtype"),
    [
        (1, 1, np.float64),
        (300, 7, np.float64),
        (50, 131, np.float64),
        (4100, 65, np.float64),
        (6144, 64, np.float64),
        (300, 64, np.float32),
    ],
)
def test_products_match_numpy(k, p, dtype):
    Y = np.random.default_rng(0).standard_normal((k, p)).astype(dtype)
    tolerance = 8 * k * np.finfo(dtype).eps
    for product in jax.jit(lambda Y: (gram(Y), gram_outer(Y.T)))(Y):
        assert product.dtype == dtype
        np.testing.assert_allclose(product, Y.T.astype(float) @ Y, atol=tolerance, rtol=tolerance)


def test_products_batch_and_differentiate():
    Y = np.random.default_rng(0).standard_normal((2, 4100, 65))
    weights = np.random.default_rng(1).standard_normal((65, 65))

    @jax.jit
    def batch_and_gradient(Y):
        return jax.vmap(gram)(Y), jax.grad(lambda Y: jnp.sum(weights * gram(Y)))(Y[0])

    batch, gradient = batch_and_gradient(Y)
    np.testing.assert_allclose(batch, np.swapaxes(Y, 1, 2) @ Y, atol=1e-10)
    np.testing.assert_allclose(gradient, Y[0] @ (weights + weights.T), atol=1e-10)


@pytest.mark.parametrize("name", PIVOTING)
@examples
@given(matrices())
def test_pivoted_qr_factorises_and_finds_the_rank(name, drawn):
    Y, _ = drawn
    R, permutation, rank = compiled_pivoting[name](Y, 1e-10)
    permutation, rank = np.asarray(permutation), int(rank)
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
    loop, lapack = (np.asarray(compiled_pivoting[name](Y, 1e-14).R) for name in ("loop", "lapack"))
    largest = np.abs(lapack[0, 0])
    np.testing.assert_allclose(
        np.abs(np.diag(loop)), np.abs(np.diag(lapack)), rtol=1e-2, atol=1e-12 * largest
    )


def test_tall_matrices_are_reduced_first():
    rng = np.random.default_rng(0)
    Y = graded_matrix(rng, 60, 8, 5, 2)
    R, permutation, rank = map(np.asarray, jax.jit(pivoted_qr)(Y))
    expected, expected_permutation = scipy.linalg.qr(Y, mode="r", pivoting=True)
    assert rank == 5
    np.testing.assert_array_equal(permutation[:5], expected_permutation[:5])
    np.testing.assert_allclose(np.abs(np.diag(R))[:5], np.abs(np.diag(expected))[:5], rtol=1e-12)


def test_tolerance_decides_the_rank(pivoting):
    @jax.jit
    def ranks(Y):
        by_tolerance = jax.vmap(lambda rtol: pivoted_qr(Y, rtol).rank)
        return pivoted_qr(Y).rank, by_tolerance(jnp.array([1e-10, 1e-7, 1e-4]))

    by_default, chosen = ranks(np.diag([1.0, 1e-3, 1e-6, 1e-9, 1e-12]))
    assert [int(by_default), *chosen.tolist()] == [5, 4, 3, 2]
    assert int(ranks(np.zeros((5, 5)))[0]) == 0


@pytest.mark.parametrize("name", with_slow(PIVOTING, ["loop"]))
@examples
@given(matrices(), st.sampled_from([0.0, 0.0, 1e-10, 1e-4, 1.0, 1e3]))
def test_solutions_filter_the_singular_values(name, drawn, relative):
    """The pseudo-inverse without damping; σ/(σ² + λ) and 1/(σ² + λ) in general."""
    Y, rng = drawn
    k, p = Y.shape
    b, r = rng.standard_normal((k, 2)), rng.standard_normal(p)
    U, values, Vt = np.linalg.svd(Y, full_matrices=False)
    kept = values > 1e-10 * values[0]
    U, values, Vt = U[:, kept], values[kept], Vt[kept]
    damping = relative * np.max(values, initial=0.0) ** 2
    found = SOLUTIONS[name](Y, 1e-10, b, r, damping)
    assert found["rank"] == len(values)
    if not len(values):
        assert not any(np.any(found[key]) for key in ("of b", "of r", "of both"))
        return
    condition = values[0] / values[-1]
    assert condition / 2 <= found["condition"] <= condition * (1 + 1e-6)

    size = 1 / np.sqrt(values[-1] ** 2 + damping)
    atol = 1e-12 * values[0] * size**2 * np.sqrt(k)
    expected = Vt.T @ ((values / (values**2 + damping))[:, None] * (U.T @ b))
    np.testing.assert_allclose(found["of b"], expected, atol=atol)
    # the oracle's row space, and so its zeros, are exact to ε · condition only
    atol_gram = (1e-12 * values[0] * size**3 + 1e-15 * condition * size**2) * p
    expected_gram = Vt.T @ (Vt @ r / (values**2 + damping))
    if damping > 0:  # what Y does not see of r
        expected_gram += (r - Vt.T @ (Vt @ r)) / damping
        atol_gram += 1e-14 * p / damping
    np.testing.assert_allclose(found["of r"], expected_gram, atol=atol_gram)
    both = expected[:, 0] + expected_gram
    np.testing.assert_allclose(found["of both"], both, atol=atol + atol_gram)


@pytest.mark.parametrize("name", PIVOTING)
def test_the_condition_number_is_not_squared(name):
    rng = np.random.default_rng(0)
    Y = graded_matrix(rng, 40, 12, 12, 10)  # a shape of SHAPES, so that nothing is compiled anew
    exact = rng.standard_normal((12, 2))
    for damping in (0.0, 1e-40):
        found = SOLUTIONS[name](Y, 1e-14, Y @ exact, np.zeros(12), damping)
        assert found["rank"] == 12
        assert np.abs(found["of b"] - exact).max() < 1e-4  # normal equations have no digit left


@pytest.mark.parametrize("name", PIVOTING)
def test_zero_columns_get_zero_solutions_and_nan_is_not_hidden(name):
    rng = np.random.default_rng(0)
    Y, b, r = rng.standard_normal((40, 12)), rng.standard_normal((40, 2)), np.ones(12)
    Y[:, 2] = 0.0
    compute = lambda Y, damping: SOLUTIONS[name](Y, 1e-14, b, r, damping)
    assert not np.any(compute(Y, 0.0)["of b"][2])
    zero = compute(np.zeros_like(Y), 0.1)
    assert zero["rank"] == 0
    np.testing.assert_allclose(zero["of both"], r / 0.1)
    Y[3, 1] = np.nan
    assert not np.any(np.isfinite(compute(Y, 0.0)["of b"]))


def test_single_precision_and_batches(pivoting):
    rng = np.random.default_rng(0)
    Y = np.stack([graded_matrix(rng, 30, 8, r, 1) for r in (3, 8)]).astype(np.float32)
    b = rng.standard_normal(30).astype(np.float32)
    one = lambda Y: (minimum_norm_factor(Y).solve(b, jnp.zeros(8, Y.dtype)), pivoted_qr(Y).rank)
    solutions, ranks = jax.jit(jax.vmap(one))(Y)
    assert solutions.dtype == jnp.float32
    assert ranks.tolist() == [3, 8]
    for matrix, solution in zip(Y, np.asarray(solutions), strict=True):
        expected = np.linalg.pinv(matrix.astype(float), rcond=1e-5) @ b
        np.testing.assert_allclose(solution, expected, atol=1e-4)


@examples
@given(SEEDS, st.sampled_from([1, 7, 60]), st.sampled_from([0, 2, 6, 12]))
def test_condition_estimate_is_within_a_factor_of_two(seed, p, decades):
    R = np.linalg.qr(graded_matrix(np.random.default_rng(seed), p, p, p, decades))[1]
    exact = np.linalg.cond(R)
    assert exact / 2 <= compiled_estimate(R) <= exact * (1 + 1e-3)


def test_a_solve_that_comes_with_the_estimate():
    rng = np.random.default_rng(0)
    R = 1e-3 * np.linalg.qr(graded_matrix(rng, 7, 7, 7, 2))[1]
    columns = rng.standard_normal((7, 2))
    found, condition = jax.jit(solve_and_estimate)(R, columns)
    np.testing.assert_allclose(found, np.linalg.solve(R.T @ R, columns), rtol=1e-9)
    assert condition == pytest.approx(float(compiled_estimate(R)), rel=1e-12)


def test_condition_estimate_of_singular_and_extreme_triangles():
    assert compiled_estimate(np.array([[1.0, 2.0], [0.0, 0.0]], np.float32)) == np.inf
    tiny = np.diag(np.array([1e-30, 1e-34], np.float32))
    np.testing.assert_allclose(compiled_estimate(tiny), 1e4, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_safe_cholesky_factorises(dtype):
    Y = np.random.default_rng(0).standard_normal((30, 6)).astype(dtype)
    Y[:, 4] = 0.0
    L, ok = compiled_cholesky(Y.T @ Y)
    assert ok
    assert L.dtype == dtype
    solution = scipy.linalg.cho_solve((np.asarray(L), True), Y.T @ Y[:, 0])
    np.testing.assert_allclose(solution, [1, 0, 0, 0, 0, 0], atol=50 * np.finfo(dtype).eps)
    assert compiled_cholesky(np.zeros((6, 6), dtype))[1]
    assert compiled_cholesky(np.diag([1.0, 1e-17]).astype(dtype))[1]  # a unit, not a dependence


@pytest.mark.parametrize(
    "G",
    [
        np.ones((2, 2)),
        np.array([[1.0, 1e-8], [1e-8, 1e-16 * (1 + 2e-16)]]),
        np.diag([1.0, -1.0]),
        np.array([[0.0, 1.0], [1.0, 4.0]]),
        np.array([[np.nan, 0.0], [0.0, 1.0]]),
        np.diag([np.inf, 1.0]),
    ],
    ids=["rank one", "small dependent column", "indefinite", "zero pivot", "nan", "infinite"],
)
def test_safe_cholesky_says_when_it_fails(G):
    assert not compiled_cholesky(G)[1]


compiled_factors = [
    jax.jit(lambda Y, damping: factor_damped(gram(Y), damping, rank_tolerance(Y), Y)),
    jax.jit(lambda Y, damping: factor_damped(gram(Y), damping, rank_tolerance(Y))),
]


@examples
@given(SEEDS, st.floats(0.0, 18.0), st.floats(0.0, 1.0))
def test_a_damping_that_is_lost_in_the_rounding_of_G_is_kept_by_Y(seed, decades, share):
    """As accurate as a QR of [Y; √λ I]: the error grows with ‖Y‖/√λ, not with its square."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.normal(size=(n, 12)))[0] for n in (40, 12))
    Y = U * 10 ** np.linspace(0, -decades, 12) @ V.T
    eps, trace = np.finfo(float).eps, np.sum(Y**2)
    damping = trace * 1e-26**share
    b = rng.normal(size=40)
    stacked = np.concatenate([Y, np.sqrt(damping) * np.eye(12)])
    wanted = np.linalg.lstsq(stacked, np.append(b, np.zeros(12)))[0]
    L, ok = compiled_factors[0](Y, damping)
    assert ok
    found = scipy.linalg.cho_solve((np.asarray(L), True), Y.T @ b)
    limit = 100 * eps * np.sqrt(trace / damping) * np.linalg.norm(b) / np.sqrt(damping)
    if damping < 50 * eps * trace:  # else G is enough, and loses up to the square
        assert np.linalg.norm(found - wanted) <= limit


def test_strips_of_rows_give_the_factor_of_all(monkeypatch):
    Y = np.random.default_rng(2).normal(size=(40, 12)) * 10 ** np.linspace(0, -9, 12)
    damping = 1e-20 * np.sum(Y**2)
    whole, _ = compiled_factors[0](Y, damping)
    monkeypatch.setattr(minimum_norm_module, "_STRIP", 7)
    strips, ok = jax.jit(lambda Y: factor_damped(gram(Y), damping, rank_tolerance(Y), Y))(Y)
    assert ok
    np.testing.assert_allclose(strips @ strips.T, whole @ whole.T, rtol=1e-6, atol=1e-3 * damping)


def test_without_Y_such_a_damping_is_said_to_be_lost():
    Y = np.random.default_rng(0).normal(size=(40, 12)) @ np.diag([1.0] * 11 + [0.0])
    Y[:, 11] = Y[:, 0]
    damping = 1e-20 * np.sum(Y**2)
    assert not compiled_factors[1](Y, damping)[1]
    L, ok = compiled_factors[0](Y, damping)
    assert ok
    difference = np.zeros(12)
    difference[[0, 11]] = 1.0, -1.0  # which Y does not see
    assert np.linalg.norm(L.T @ difference) == pytest.approx(np.sqrt(2 * damping), rel=1e-4)


def test_reflectors_hold_what_lapack_writes_into_them():
    """`ormqr` puts ones into its input while it runs: an array that has them does not change."""
    Y = np.random.default_rng(0).standard_normal((40, 12))
    Q, R = minimum_norm_module._householder_qr(jnp.asarray(Y))
    leading = np.asarray(Q.reflectors)[:, :12]
    np.testing.assert_array_equal(np.tril(leading), np.eye(12))
    np.testing.assert_allclose(Q.apply(R), Y, atol=1e-13)


def test_symmetric_products_of_an_accelerator():
    """In halves that share columns; for rows and for columns."""
    Y = np.random.default_rng(0).standard_normal((40, 1030))
    halves = jax.jit(pivoting_module._gram_by_halves)
    np.testing.assert_allclose(halves(Y), Y.T @ Y, atol=1e-11)
    np.testing.assert_allclose(halves(Y[:, :50]), Y[:, :50].T @ Y[:, :50], atol=1e-11)
