"""Other right-hand sides for a prepared solver, what is in reach, and the sketched kernel."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dense_oracle as oracle
import natgrad as ng
from natgrad.metrics import WrappedGeometry
from problems_for_tests import (
    FURTHER_METRICS,
    METRIC_NAMES,
    Linear,
    all_metrics,
    bumps_problem,
    close,
    linear_problem,
    with_slow,
)

TALL, WIDE = (12, 5), (5, 12)
SOLVERS = {
    "Cholesky": ng.Cholesky(),
    "QR": ng.QR(),
    "PivotedQR": ng.PivotedQR(),
    "SVD": ng.SVD(),
    "Kernel": ng.Kernel(),
    "NystromKernel": ng.NystromKernel(rank=12),
}


@eqx.filter_jit
def solve_aimed(solver, Y, b, r, other, damping):
    """η for the right-hand side Yᵀ`other`, from what was prepared for b and r, and factorised."""
    prepared = solver.prepare(Y, b, r)
    answer = lambda prepared: solver.solve(solver.aim(prepared, other, Y.T @ other), damping)[0]
    return answer(prepared), answer(solver.factorise(prepared, damping))


@pytest.mark.parametrize("name", with_slow(SOLVERS, ["QR", "SVD"]))
@given(
    shape=st.sampled_from([TALL, WIDE]),
    seed=st.integers(0, 50),
    damping=st.sampled_from([0.0, 1e-2, 1.0]),
    deficient=st.booleans(),
)
def test_aim_solves_for_another_right_hand_side(name, shape, seed, damping, deficient):
    """−(G + λI)†Yᵀb′, and nothing is left of the first b and r."""
    k, p = shape
    rng = np.random.default_rng(seed)
    rank = 3 if deficient else min(shape)
    U, V = (np.linalg.qr(rng.normal(size=(n, rank)))[0] for n in shape)
    Y = U * np.geomspace(1.0, 0.1, rank) @ V.T
    b, other, r = (rng.normal(size=n) for n in (k, k, p))
    found = solve_aimed(SOLVERS[name], *map(jnp.asarray, (Y, b, r, other, damping)))
    filtered = np.geomspace(1.0, 0.1, rank) / (np.geomspace(1.0, 0.01, rank) + damping)
    for answer in found:
        close(answer, -V @ (filtered * (U.T @ other)), 1e-9)


@pytest.mark.parametrize("solver", [ng.RandomizedSVD(3), ng.Hutchinson(4)], ids=lambda s: s.name)
def test_solvers_without_another_right_hand_side_say_so(solver):
    problem, theta, _, _ = linear_problem(*TALL, 5)
    for settings in ({"order": 2}, {"momentum": 0.5}):
        with pytest.raises(ng.InputError, match=solver.name) as caught:
            ng.minimize(
                problem, theta, ng.NaturalGradient(ng.L2(), solver=solver, damping=0.1, **settings)
            )
        assert caught.value.argument == "solver"


@eqx.filter_jit
def sketched(solver, Y, b, r, damping):
    return solver.solve(solver.prepare(Y, b, r), damping)


def system(k: int, p: int, rank: int, grading: float = 0.1, seed: int = 0):
    """Y with its singular values, b and r."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.normal(size=(n, rank)))[0] for n in (k, p))
    values = np.geomspace(1.0, grading, rank)
    return U * values @ V.T, values, rng.normal(size=k), rng.normal(size=p)


def dense_solution(Y, b, r, damping):
    """−(G + λI)⁻¹(Yᵀb + r), of least norm without damping."""
    G, g = Y.T @ Y + damping * np.eye(Y.shape[1]), Y.T @ b + r
    return -(np.linalg.pinv(G, rcond=1e-11) @ g if damping == 0 else np.linalg.solve(G, g))


@pytest.mark.parametrize("extra", with_slow([0, 3], [0]), ids=["rank k", "more than k"])
@pytest.mark.parametrize("shape", [TALL, WIDE], ids=["tall", "wide"])
@given(damping=st.sampled_from([0.0, 1e-3, 1.0]), seed=st.integers(0, 50), rank=st.integers(2, 5))
def test_the_sketched_kernel_is_exact_with_all_of_the_rank(shape, extra, damping, seed, rank):
    """Of deficient Y too, and with a part r that does not come through b."""
    k, p = shape
    Y, _, b, r = system(k, p, rank, seed=seed)
    solver = ng.NystromKernel(rank=k + extra)
    eta, info = sketched(solver, *map(jnp.asarray, (Y, b, r, damping)))
    close(eta, dense_solution(Y, b, r, damping), 1e-8)
    assert int(info.rank) == rank
    assert bool(info.rank_deficient) == (rank < p and damping == 0)


@pytest.mark.parametrize("damping", [0.0, 1e-2])
def test_a_truncated_sketch_divides_the_rest_by_its_smallest_eigenvalue(damping: float):
    """Against the formula, with the eigenpairs of the same sketch by NumPy."""
    Y, values, b, r = system(20, 30, 20, 1e-3)
    rank = 6
    eta, info = sketched(ng.NystromKernel(rank), *map(jnp.asarray, (Y, b, 0 * r, damping)))
    sketch = np.linalg.qr(np.asarray(jax.random.normal(jax.random.key(0), (rank, 20))).T)[0]
    K = Y @ Y.T
    nystrom = K @ sketch @ np.linalg.inv(sketch.T @ K @ sketch) @ sketch.T @ K
    eigenvalues, vectors = np.linalg.eigh(nystrom)
    eigenvalues, U = eigenvalues[-rank:], vectors[:, -rank:]
    smallest = eigenvalues[0]
    inside = U.T @ b
    inverse = U @ (inside / (eigenvalues + damping)) + (b - U @ inside) / (smallest + damping)
    close(eta, -Y.T @ inverse, 1e-7)
    assert float(info.truncation) == pytest.approx(np.sqrt(smallest / eigenvalues[-1]), rel=1e-7)
    assert int(info.rank) == rank
    assert values[-1] < float(info.truncation) < 1.0
    assert (Y.T @ b) @ np.asarray(eta) < 0


def test_another_seed_is_another_sketch():
    Y, _, b, r = system(20, 30, 20, 1e-3)
    one, two = (
        sketched(ng.NystromKernel(5, seed=s), *map(jnp.asarray, (Y, b, r, 1e-3)))[0] for s in (0, 1)
    )
    assert np.linalg.norm(one - two) > 1e-3 * np.linalg.norm(one)


def share(Z: np.ndarray, c: np.ndarray, A: np.ndarray, damping: float = 0.0) -> float:
    """⟨c, Z(G + λI)†Zᵀc⟩ / ⟨c, A⁻¹c⟩."""
    root = np.linalg.cholesky(A).T
    U, values, _ = np.linalg.svd(root @ Z, full_matrices=False)
    values = np.where(values > 1e-11 * values[0], values, 0.0)
    filters = np.divide(values**2, values**2 + damping, where=values > 0, out=np.zeros_like(values))
    b = np.linalg.solve(root.T, c)
    return float(np.sum(filters * (U.T @ b) ** 2) / (b @ b))


REACHES = {
    "undamped": (ng.QR(), 0.0, 1e-10),
    "damped": (ng.Cholesky(), 0.05, 1e-10),
    "kernel": (ng.Kernel(), 0.05, 1e-10),
    "conjugate gradients": (ng.CG(1e-6), 0.05, 1e-6),
}


@pytest.mark.parametrize("name", REACHES)
@pytest.mark.parametrize("shape", with_slow([TALL, WIDE], [WIDE]), ids=["tall", "wide"])
def test_reachable_is_the_share_that_the_range_holds(name: str, shape: tuple[int, int]):
    solver, damping, tolerance = REACHES[name]
    problem, theta, Z, target = linear_problem(*shape, 4, grading=0.1)
    d = ng.natural_gradient(
        problem, theta, metric=ng.L2(), solver=solver, damping=ng.AbsoluteDamping(damping)
    )
    expected = share(Z, Z @ theta - target, np.eye(shape[0]), damping)
    assert d.info.reachable == pytest.approx(expected, rel=tolerance)
    assert 0.0 < d.info.reachable < 1.0


def test_reachable_is_one_where_the_tangent_space_is_all():
    problem, theta, _, _ = linear_problem(*WIDE, 5, grading=0.1)
    assert ng.natural_gradient(problem, theta, metric=ng.L2()).info.reachable == pytest.approx(1.0)


def test_a_stalled_run_reaches_nothing():
    """What is left of the residual is orthogonal to the range of Z."""
    problem, theta, Z, target = linear_problem(*TALL, 5, grading=0.1)
    step = ng.FixedStep(0.9)
    result = ng.minimize(
        problem, theta, ng.NaturalGradient(ng.L2(), step=step), stop=ng.Stop(iterations=6)
    )
    reach = result.history["reachable"]
    residual = lambda t: np.asarray(Z @ t - target)
    assert reach[0] == pytest.approx(share(Z, residual(theta), np.eye(12)), rel=1e-10)
    assert np.all(np.diff(reach[: result.iterations]) < 0)
    assert reach[result.iterations - 1] < 1e-6
    assert result.loss == pytest.approx(
        0.5 * np.linalg.lstsq(Z, target, rcond=None)[1][0], rel=1e-6
    )
    stalled = Linear(np.eye(6, 2))
    problem = ng.Problem(stalled, ng.LeastSquares(jnp.array([0.0, 0.0, 1.0, 2.0, 3.0, 4.0])))
    d = ng.natural_gradient(problem, jnp.array([1e-9, 0.0]), metric=ng.L2(), damping=1e-3)
    assert 0.0 < d.info.reachable < 1e-18


@lru_cache
def bump_matrices(name: str, mass_varies: bool):
    """Z, c and the dense A of the bumps, and what `natural_gradient` says is in reach."""
    problem, start, _, grid = bumps_problem(n=8, mass_varies=mass_varies)
    Z = np.asarray(jax.jit(jax.jacobian(problem.model))(start)).reshape(64, -1)
    rho = np.asarray(problem.model(start))
    c = np.asarray(jax.grad(problem.loss)(problem.model(start))).ravel()
    w = grid.cell_volume
    dense = {
        "L2": w * np.eye(64),
        "H1": oracle.sobolev(grid, 1, False),
        "H-1": oracle.sobolev(grid, -1, False),
        "dotH1": oracle.sobolev(grid, 1, True),
        "dotH-1": oracle.sobolev(grid, -1, True),
        "FisherRao": np.diag(w / rho.ravel()),
        "Wasserstein": oracle.transport(grid, rho, 0.5, "staggered"),
        "Mobility": oracle.transport(grid, rho, 0.8, "staggered"),
    }
    metric = all_metrics(grid)[name]
    d = ng.natural_gradient(problem, start, metric=metric, solver=ng.QR())
    return Z, c, dense.get(name), d.info.reachable


@pytest.mark.parametrize(
    "name", with_slow(METRIC_NAMES, [*FURTHER_METRICS, "FisherRao", "Wasserstein"])
)
def test_reachable_in_every_metric(name: str):
    """On tangents that the metric measures; NaN for sums, whose whitened gradient is not short."""
    Z, c, A, reach = bump_matrices(name, mass_varies=False)
    if A is None:
        assert np.isnan(reach)
        return
    free = np.linalg.qr(np.eye(64) - 1 / 64)[0][:, :63]  # mass is conserved
    basis = free if name in ("dotH1", "dotH-1", "Wasserstein", "Mobility") else np.eye(64)
    expected = share(basis.T @ Z, basis.T @ c, basis.T @ A @ basis)
    assert reach == pytest.approx(expected, rel=1e-6)
    assert reach < 1.0


@pytest.mark.parametrize("name", with_slow(["dotH1", "Wasserstein"], ["dotH1"]))
def test_reachable_is_not_told_where_a_metric_sees_only_a_part(name: str):
    assert np.isnan(bump_matrices(name, mass_varies=True)[3])


class Wrapper(ng.metrics.Metric):
    """Another metric, passed on without a word about what it whitens."""

    metric: ng.metrics.Metric

    def at(self, rho):
        return WrappedGeometry(self, rho, self.metric.at(rho))


def test_reachable_is_not_told_by_a_wrapper_that_does_not_say_so():
    problem, start, _, grid = bumps_problem(n=8, mass_varies=False)
    sobolev = ng.Sobolev(grid, 1)
    for inner in (sobolev, sobolev + ng.L2(grid)):
        own, wrapped = (
            ng.natural_gradient(problem, start, metric=metric, solver=ng.QR())
            for metric in (inner, Wrapper(inner))
        )
        np.testing.assert_allclose(wrapped.eta, own.eta, rtol=1e-12)
        assert np.isnan(wrapped.info.reachable)


def test_reachable_of_a_sum_of_diagonal_metrics_is_that_of_their_weight():
    """Whichever way Y was found: a sum's own factor has twice as many rows."""
    problem, theta, Z, target = linear_problem(*TALL, 4, grading=0.1)
    metric = ng.L2() + 2.0 * ng.L2()
    expected = share(Z, Z @ theta - target, 3.0 * np.eye(12))
    for solver in (ng.QR(), ng.CG(1e-10)):
        d = ng.natural_gradient(problem, theta, metric=metric, solver=solver)
        assert d.info.reachable == pytest.approx(expected, rel=1e-8)


def test_reachable_is_not_told_of_objectives_and_regularisers():
    problem, theta, *_ = linear_problem(*TALL, 5)
    square = lambda t: jnp.sum(t**2)
    for other, solver in (
        (ng.Problem(problem.model, objective=square), ng.QR()),
        (ng.Problem(problem.model, problem.loss, regulariser=square), ng.CG()),
    ):
        d = ng.natural_gradient(other, theta, metric=ng.L2(), solver=solver, damping=0.1)
        assert np.isnan(d.info.reachable)
    once = ng.Stop(iterations=1)
    assert np.isnan(ng.minimize(problem, theta, ng.GradientDescent(), stop=once).info.reachable)
