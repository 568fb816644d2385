"""The best iterate of a run, held-out losses, and the warning of too few points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import Linear, assert_same, linear_problem

# A step of 1 removes the first residual at once and lets the second grow by a tenth each time.
GROWING = ng.Problem(Linear(np.diag([1.0, 2.1**0.5])), ng.LeastSquares(jnp.zeros(2)))
START = jnp.array([10.0, 0.1])
DESCENT = ng.GradientDescent(step=ng.FixedStep(1.0, require_decrease=False))


def descend(iterations=6, **settings):
    stop = ng.Stop(iterations=iterations, gradient=0.0)
    return ng.minimize(GROWING, START, DESCENT, stop=stop, **settings)


def test_the_best_iterate_is_kept_through_files(tmp_path):
    found = descend()
    losses = found.history["loss"]
    assert found.best[1:] == (losses.min(), 1)
    np.testing.assert_allclose(found.best.theta, [0.0, -0.11], rtol=1e-12)
    assert found.loss == losses[-1] > 2 * losses[1]
    descend(3, checkpoint=tmp_path / "run.npz")
    assert_same(found, descend(checkpoint=tmp_path / "run.npz"))
    found.save(tmp_path / "result.npz")
    loaded = ng.load_result(tmp_path / "result.npz")
    assert loaded.best[1:] == found.best[1:]
    np.testing.assert_array_equal(loaded.best.theta, found.best.theta)


def test_the_last_iterate_is_the_best_where_nothing_was_better():
    first = descend(1)
    assert first.best == (first.theta, first.loss, 1)


@pytest.mark.slow
def test_the_last_iterate_stands_for_the_best_of_batches():
    """Of whose losses none can be compared."""
    problem, theta, _, _ = linear_problem(12, 3, 3)
    method = ng.NaturalGradient(ng.L2(), damping=1e-3)
    stop = ng.Stop(iterations=3)
    last = ng.minimize(problem, theta, method, batch=ng.MiniBatch(6), stop=stop)
    assert last.best == (last.theta, last.loss, len(last.history["loss"]) - 1)


def polynomial(theta, x):
    return jnp.polyval(theta, x[0])


def fit(points: np.ndarray) -> ng.Problem:
    """A polynomial of degree 11 through Runge's function."""
    target = jnp.asarray(1 / (1 + 25 * points**2))
    return ng.Problem(
        ng.Pointwise(polynomial, jnp.asarray(points)[:, None]), ng.LeastSquares(target)
    )


FEW, OTHERS = fit(np.linspace(-1, 1, 12)), fit(np.linspace(-0.98, 0.98, 40))


def interpolate(iterations=15, held_out=ng.descent.HeldOut(OTHERS, every=2), **settings):
    method = ng.NaturalGradient(ng.L2(), damping=1e-9, step=ng.FixedStep(0.5))
    stop = ng.Stop(iterations=iterations, gradient=0.0)
    return ng.minimize(FEW, jnp.zeros(12), method, stop=stop, held_out=held_out, **settings)


def test_a_held_out_loss_is_recorded_judges_and_warns():
    found = interpolate()
    seen = found.history["held_out"]
    assert list(np.flatnonzero(~np.isnan(seen))) == [0, 2, 4, 6, 8, 10, 12, 14, 15]
    value = jax.jit(lambda theta: OTHERS.value(theta, OTHERS.model(theta)))
    assert seen[-1] == pytest.approx(float(value(found.theta)), rel=1e-12)
    best = int(np.nanargmin(seen))
    assert 0 < best < 15
    assert found.best[1:] == (seen[best], best)
    assert float(value(found.best.theta)) == pytest.approx(seen[best], rel=1e-12)
    assert "take more points" in found.warning
    assert str(found).splitlines()[1] == f"Warning: {found.warning}."
    assert str(found).startswith("stopped after 15 iterations, loss ")
    assert str(found).splitlines()[0].endswith(": iteration limit reached")
    assert str(found.best) == f"Best(loss={seen[best]:.6g}, iterate={best}, theta=...)"
    early = interpolate(3)
    assert early.warning is None
    assert "arning" not in str(early)


@pytest.mark.slow
def test_a_resumed_run_has_the_held_out_losses_of_the_whole(tmp_path):
    path = tmp_path / "run.npz"
    interpolate(5, checkpoint=path)
    assert_same(interpolate(), interpolate(checkpoint=path))
    with pytest.raises(ng.InputError, match="differs in its held_out"):
        interpolate(checkpoint=path, held_out=FEW)


def test_a_comparison_holds_out_too():
    method = ng.NaturalGradient(ng.L2(), damping=1e-9, step=ng.FixedStep(0.5))
    aside = ng.descent.HeldOut(OTHERS, every=2)
    stop = ng.Stop(iterations=15, gradient=0.0)
    found = ng.compare(FEW, jnp.zeros(12), {"L²": method}, stop=stop, held_out=aside)
    assert_same(found.results["L²"], interpolate())


def test_what_is_no_problem_is_refused():
    with pytest.raises(ng.InputError, match="held_out: is an int"):
        descend(held_out=3)
    with pytest.raises(ng.InputError, match="every: 0 is not an integer"):
        ng.descent.HeldOut(GROWING, every=0)


OTHERWISE = {  # held-out problems that are not of this θ, or say nothing
    "target: has shape": ng.Problem(lambda t: t, ng.LeastSquares(jnp.ones(7))),
    "loss: .*scalar": ng.Problem(lambda t: t, lambda rho: rho),
    "model: .*complex": ng.Problem(lambda t: t + 1j, lambda rho: jnp.sum(rho.real)),
    "its loss at theta0 is nan": ng.Problem(Linear(np.full((2, 2), np.nan)), jnp.sum),
    "its loss at theta0 is inf": ng.Problem(lambda t: t, lambda rho: jnp.sum(rho**2) / 0.0),
}


@pytest.mark.parametrize("message", OTHERWISE)
def test_a_held_out_problem_is_checked(message):
    with pytest.raises(ng.InputError, match=f"held_out: {message}"):
        descend(held_out=OTHERWISE[message])
