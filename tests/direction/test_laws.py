"""Laws of natural gradients that hold for every metric."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import natgrad as ng
from natgrad.direction.linearise import linearise
from natgrad.direction.local import Setup
from problems_for_tests import (
    FURTHER_METRICS,
    METRIC_NAMES,
    all_metrics,
    bumps_problem,
    with_slow,
)

# Fast: a diagonal, a symbol that annihilates constants, one that depends on ρ. The others differ
# from these in the sign of s or the exponent, or are their sum, which the oracles check.
every_metric = pytest.mark.parametrize(
    "name", with_slow(METRIC_NAMES, {*METRIC_NAMES} - {"dotH1", "Wasserstein"})
)
SOLVERS = (ng.Cholesky(), ng.QR(), ng.PivotedQR(), ng.SVD(), ng.Kernel())


class Keeping(ng.QR):
    """QR that keeps Y, b and r: a metric is compiled once, and all solvers see its system."""

    def prepare(self, Y, b, r):
        return super().prepare(Y, b, r), (Y, b, r)

    def solve(self, prepared, damping):
        return super().solve(prepared[0], damping)


def solutions(problem, theta, metric):
    """η and the diagnosis of every solver on the system that `natural_gradient` builds."""
    local = linearise(Setup(problem, theta, metric, Keeping()))
    return zip(SOLVERS, by_every_solver(*local.prepared[1]), strict=True)


@jax.jit
def by_every_solver(Y, b, r):
    return [solver.solve(solver.prepare(Y, b, r), jnp.zeros(())) for solver in SOLVERS]


@eqx.filter_jit
def value_and_gradient(problem, theta):
    return jax.value_and_grad(lambda t: problem.value(t, problem.model(t)))(theta)


@eqx.filter_jit
def hessian_of(problem, theta):
    return jax.hessian(lambda t: problem.value(t, problem.model(t)))(theta)


@eqx.filter_jit
def along(problem, theta, eta, t):
    """f(θ + tη) and its derivative in t."""
    objective = lambda t: problem.value(theta, problem.model(theta + t * eta))
    return jax.value_and_grad(objective)(t)


@eqx.filter_jit
def direction(problem, theta, metric):
    """η, and the motion Zη of the state."""
    eta = linearise(Setup(problem, theta, metric, ng.QR())).solve(jnp.zeros(())).eta
    return eta, jax.jvp(problem.model, (theta,), (eta,))[1].ravel()


@every_metric
@pytest.mark.parametrize(
    "mass_varies",
    [
        pytest.param(False, id="mass fixed", marks=pytest.mark.slow),
        pytest.param(True, id="mass varies"),
    ],
)
def test_direction_solves_g_eta_equals_minus_gradient(name: str, mass_varies: bool):
    """Also when Σζ ≠ 0, where plain least squares would give another answer."""
    problem, start, _, grid = bumps_problem(mass_varies=mass_varies)
    metric = all_metrics(grid)[name]
    G = np.asarray(ng.information_matrix(problem, start, metric=metric))
    np.testing.assert_allclose(G, G.T, rtol=0, atol=1e-12 * np.abs(G).max())
    assert np.linalg.eigvalsh(G)[0] > 0
    gradient = np.asarray(value_and_gradient(problem, start)[1])
    expected = -np.linalg.solve(G, gradient)
    d = ng.natural_gradient(problem, start, metric=metric, solver=Keeping())
    np.testing.assert_allclose(d.gradient, gradient, rtol=1e-10, atol=1e-14)
    found = {solver.name: eta for solver, (eta, _) in solutions(problem, start, metric)}
    for solver, eta in (found | {"natural_gradient": d.eta}).items():
        error = np.linalg.norm(eta - expected) / np.linalg.norm(expected)
        assert error < 1e-8, f"{solver}: {error}"


def test_wasserstein_does_not_see_a_change_of_scale():
    """ζ = ρ is no transport: it has length zero, and the direction leaves that parameter alone."""
    problem, start, _, grid = bumps_problem()
    scaled = ng.Problem(lambda t: t[4] * problem.model(t[:4]), problem.loss)
    theta, metric = jnp.append(start, 1.2), ng.Wasserstein(grid)
    for solver, (eta, info) in solutions(scaled, theta, metric):
        assert info.rank == 4, solver.name
        assert bool(info.rank_deficient), solver.name
        assert abs(float(eta[4])) < 1e-6 * np.linalg.norm(eta), solver.name
    d = ng.natural_gradient(scaled, theta, metric=metric, solver=Keeping())
    assert (d.info.rank, d.info.status) == (4, "rank_deficient")
    assert abs(float(d.eta[4])) < 1e-6 * np.linalg.norm(d.eta)


@every_metric
@given(seed=st.integers(0, 100))
def test_motion_does_not_depend_on_the_parameterisation(name: str, seed: int):
    """θ = ψ + A sin(ψ): Zη is the same vector in both parameterisations."""
    problem, _, _, grid = bumps_problem(n=8)
    rng = np.random.default_rng(seed)
    A = 0.3 * rng.normal(size=(4, 4)) / 2
    psi = rng.uniform(0.2, 0.8, size=4)
    if abs(np.linalg.det(np.eye(4) + A * np.cos(psi))) < 0.05:
        return
    metric = all_metrics(grid)[name]
    _, direct = direction(problem, jnp.asarray(psi + A @ np.sin(psi)), metric)
    again = ng.Problem(Charted(problem.model, jnp.asarray(A)), problem.loss)
    _, charted = direction(again, jnp.asarray(psi), metric)
    error = np.linalg.norm(direct - charted) / np.linalg.norm(direct)
    assert error < 1e-7


class Charted(ng.models.Explicit):
    """A model after a change of coordinates; A is a leaf, so that it is compiled once."""

    A: jax.Array

    def __init__(self, model, A):
        super().__init__(model)
        self.A = A

    def __call__(self, psi):
        return self.function(psi + self.A @ jnp.sin(psi))

    def jacobian(self, unravel, flat, known=None):
        return ng.models.Explicit(self.__call__).jacobian(unravel, flat)


@pytest.mark.parametrize(
    "name", with_slow(METRIC_NAMES, [*FURTHER_METRICS, "L2", "FisherRao", "Sum"])
)
def test_loss_decays_at_the_rate_of_the_projected_gradient(name: str):
    """d/dt f(ρ(θ + tη)) at 0 is −‖Zη‖²_g."""
    problem, start, _, grid = bumps_problem()
    metric = all_metrics(grid)[name]
    eta = ng.natural_gradient(problem, start, metric=metric, solver=Keeping()).eta
    rate = float(along(problem, start, eta, np.zeros(()))[1])
    G = ng.information_matrix(problem, start, metric=metric)
    assert rate == pytest.approx(-float(eta @ G @ eta), rel=1e-9)
    h = 1e-3 / float(np.linalg.norm(eta))
    values = [float(along(problem, start, eta, np.array(t))[0]) for t in (h, -h)]
    difference = (values[0] - values[1]) / (2 * h)
    assert difference == pytest.approx(rate, rel=1e-4)


def test_l2_with_step_one_is_gauss_newton():
    problem, start, _, grid = bumps_problem()
    Z = jax.jit(jax.jacobian(lambda theta: problem.model(theta).ravel()))(start)
    residual = (problem.model(start) - problem.loss.target).ravel()
    gauss_newton = -np.linalg.lstsq(np.asarray(Z), np.asarray(residual), rcond=None)[0]
    eta = ng.natural_gradient(problem, start, metric=ng.L2(grid)).eta
    np.testing.assert_allclose(eta, gauss_newton, rtol=1e-10)


def test_fisher_rao_is_the_hessian_of_kullback_leibler_at_the_optimum():
    problem, _, truth, grid = bumps_problem()
    matched = ng.Problem(problem.model, ng.KullbackLeibler(problem.model(truth), grid))
    hessian = hessian_of(matched, truth)
    G = ng.information_matrix(matched, truth, metric=ng.FisherRao(grid))
    np.testing.assert_allclose(G, hessian, rtol=1e-9, atol=1e-9 * float(jnp.abs(G).max()))


def test_metric_of_a_norm_is_the_hessian_of_that_norm():
    problem, _, truth, grid = bumps_problem()
    for metric in (ng.L2(grid), ng.Sobolev(grid, -2), ng.HomogeneousSobolev(grid, 1)):
        matched = ng.Problem(problem.model, ng.SquaredDistance(problem.model(truth), metric))
        hessian = hessian_of(matched, truth)
        G = ng.information_matrix(matched, truth, metric=metric)
        np.testing.assert_allclose(G, hessian, rtol=1e-9, atol=1e-10 * float(jnp.abs(G).max()))


@every_metric
def test_directions_converge_at_second_order_under_refinement(name: str):
    """η changes by O(h²) from grid to grid: the quadrature weight makes it mesh independent.

    States that respect the zero-flux boundary; others have an O(h) boundary term in H¹.
    """
    etas = []
    for n in (12, 24, 48):
        grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (n, n))
        x, y = np.moveaxis(np.cos(np.pi * np.asarray(grid.points)), -1, 0)
        model = lambda t, x=x, y=y: jnp.exp(t[0] * x + t[1] * y + t[2] * x * y)
        target = np.exp(1.0 * x - 0.5 * y + 0.8 * x * y)
        problem = ng.Problem(model, ng.LeastSquares(jnp.asarray(target), grid))
        theta = jnp.array([0.6, 0.2, -0.4])
        etas.append(np.asarray(direction(problem, theta, all_metrics(grid)[name])[0]))
    coarse, fine = np.linalg.norm(etas[1] - etas[0]), np.linalg.norm(etas[2] - etas[1])
    rate = np.log2(coarse / fine)
    exact = fine < 1e-10 * np.linalg.norm(etas[2])  # the midpoint rule, without ∇
    assert exact or rate > 1.8, f"observed order {rate:.2f}"
