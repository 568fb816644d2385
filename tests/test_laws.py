"""Laws of natural gradients that hold for every metric."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import natgrad as ng
from problems_for_tests import METRIC_NAMES, all_metrics, bumps_problem

every_metric = pytest.mark.parametrize("name", METRIC_NAMES)
SOLVERS = (ng.Cholesky(), ng.QR(), ng.PivotedQR(), ng.SVD(), ng.Kernel())


@every_metric
@pytest.mark.parametrize("mass_varies", [False, True], ids=["mass fixed", "mass varies"])
def test_direction_solves_g_eta_equals_minus_gradient(name: str, mass_varies: bool):
    """Also when Σζ ≠ 0, where plain least squares would give another answer."""
    problem, start, _, grid = bumps_problem(mass_varies=mass_varies)
    metric = all_metrics(grid)[name]
    G = ng.information_matrix(problem, start, metric=metric)
    np.testing.assert_allclose(G, G.T, rtol=0, atol=1e-12 * float(jnp.abs(G).max()))
    assert float(jnp.linalg.eigvalsh(G)[0]) > 0
    gradient = jax.grad(lambda theta: problem.value(theta, problem.model(theta)))(start)
    expected = -jnp.linalg.solve(G, gradient)
    for solver in SOLVERS:
        d = ng.natural_gradient(problem, start, metric=metric, solver=solver)
        error = float(jnp.linalg.norm(d.eta - expected) / jnp.linalg.norm(expected))
        assert error < 1e-8, f"{solver.name}: {error}"
        np.testing.assert_allclose(d.gradient, gradient, rtol=1e-10, atol=1e-14)


def test_wasserstein_does_not_see_a_change_of_scale():
    """ζ = ρ is no transport: it has length zero, and the direction leaves that parameter alone."""
    problem, start, _, grid = bumps_problem()
    scaled = ng.Problem(lambda t: t[4] * problem.model(t[:4]), problem.loss)
    theta = jnp.append(start, 1.2)
    for solver in SOLVERS:
        d = ng.natural_gradient(scaled, theta, metric=ng.Wasserstein(grid), solver=solver)
        assert d.info.rank == 4
        assert d.info.status == "rank_deficient"
        assert abs(float(d.eta[4])) < 1e-6 * float(jnp.linalg.norm(d.eta))


@every_metric
@given(seed=st.integers(0, 100))
def test_motion_does_not_depend_on_the_parameterisation(name: str, seed: int):
    """θ = ψ + A sin(ψ): Zη is the same vector in both parameterisations."""
    problem, _, _, grid = bumps_problem(n=8)
    rng = np.random.default_rng(seed)
    A = jnp.asarray(0.3 * rng.normal(size=(4, 4)) / 2)
    chart = lambda psi: psi + A @ jnp.sin(psi)
    psi = jnp.asarray(rng.uniform(0.2, 0.8, size=4))
    if abs(float(jnp.linalg.det(jax.jacobian(chart)(psi)))) < 0.05:
        return
    metric = all_metrics(grid)[name]
    theta = chart(psi)
    direct = _motion(problem, theta, metric)
    again = ng.Problem(Charted(problem.model, A), problem.loss)
    charted = _motion(again, psi, metric)
    error = float(jnp.linalg.norm(direct - charted) / jnp.linalg.norm(direct))
    assert error < 1e-7


class Charted(ng.Explicit):
    """A model after a change of coordinates; A is a leaf, so that it is compiled once."""

    A: jax.Array

    def __init__(self, model, A):
        super().__init__(model)
        self.A = A

    def __call__(self, psi):
        return self.function(psi + self.A @ jnp.sin(psi))

    def jacobian(self, unravel, flat):
        return ng.Explicit(self.__call__).jacobian(unravel, flat)


def _motion(problem, theta, metric):
    eta = ng.natural_gradient(problem, theta, metric=metric, solver=ng.QR()).eta
    return jax.jvp(problem.model, (theta,), (eta,))[1].ravel()


@every_metric
def test_loss_decays_at_the_rate_of_the_projected_gradient(name: str):
    """d/dt f(ρ(θ + tη)) at 0 is −‖Zη‖²_g."""
    problem, start, _, grid = bumps_problem()
    metric = all_metrics(grid)[name]
    eta = ng.natural_gradient(problem, start, metric=metric).eta
    objective = lambda t: problem.value(start, problem.model(start + t * eta))
    rate = float(jax.grad(objective)(0.0))
    G = ng.information_matrix(problem, start, metric=metric)
    assert rate == pytest.approx(-float(eta @ G @ eta), rel=1e-9)
    h = 1e-3 / float(jnp.linalg.norm(eta))
    difference = float(objective(h) - objective(-h)) / (2 * h)
    assert difference == pytest.approx(rate, rel=1e-4)


def test_l2_with_step_one_is_gauss_newton():
    problem, start, _, grid = bumps_problem()
    Z = jax.jacobian(lambda theta: problem.model(theta).ravel())(start)
    residual = (problem.model(start) - problem.loss.target).ravel()
    gauss_newton = -np.linalg.lstsq(np.asarray(Z), np.asarray(residual), rcond=None)[0]
    eta = ng.natural_gradient(problem, start, metric=ng.L2(grid)).eta
    np.testing.assert_allclose(eta, gauss_newton, rtol=1e-10)


def test_fisher_rao_is_the_hessian_of_kullback_leibler_at_the_optimum():
    problem, _, truth, grid = bumps_problem()
    matched = ng.Problem(problem.model, ng.KullbackLeibler(problem.model(truth), grid))
    hessian = jax.hessian(lambda theta: matched.value(theta, matched.model(theta)))(truth)
    G = ng.information_matrix(matched, truth, metric=ng.FisherRao(grid))
    np.testing.assert_allclose(G, hessian, rtol=1e-9, atol=1e-9 * float(jnp.abs(G).max()))


def test_metric_of_a_norm_is_the_hessian_of_that_norm():
    problem, _, truth, grid = bumps_problem()
    for metric in (ng.L2(grid), ng.Sobolev(grid, -2), ng.HomogeneousSobolev(grid, 1)):
        matched = ng.Problem(problem.model, ng.SquaredDistance(problem.model(truth), metric))
        hessian = jax.hessian(lambda theta, m=matched: m.value(theta, m.model(theta)))(truth)
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
        x, y = jnp.moveaxis(jnp.cos(jnp.pi * grid.points), -1, 0)
        model = lambda t, x=x, y=y: jnp.exp(t[0] * x + t[1] * y + t[2] * x * y)
        problem = ng.Problem(model, ng.LeastSquares(model(jnp.array([1.0, -0.5, 0.8])), grid))
        theta = jnp.array([0.6, 0.2, -0.4])
        etas.append(ng.natural_gradient(problem, theta, metric=all_metrics(grid)[name]).eta)
    coarse = float(jnp.linalg.norm(etas[1] - etas[0]))
    fine = float(jnp.linalg.norm(etas[2] - etas[1]))
    rate = np.log2(coarse / fine)
    exact = fine < 1e-10 * float(jnp.linalg.norm(etas[2]))  # the midpoint rule, without ∇
    assert exact or rate > 1.8, f"observed order {rate:.2f}"
