"""The Gaussian mixture study: its model, and its numbers against stored ones.

The study as a whole runs in test_cli.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import natgrad as ng
from natgrad.report import FolderError, ResultFolder
from natgrad_studies.gaussian_mixture import descent, landscape, methods
from natgrad_studies.gaussian_mixture.settings import PRESETS
from natgrad_studies.mixtures import BOWL_START, START, Mixture, density, isotropic
from problems_for_tests import with_slow

# --- the model -----------------------------------------------------------------------------------


def _example() -> Mixture:
    return Mixture.of(
        [0.2, 0.5, 0.3],
        [[-1.0, 0.5], [1.0, 0.0], [0.0, -1.0]],
        [[[0.5, 0.2], [0.2, 0.4]], [[0.3, 0.0], [0.0, 0.6]], [[0.4, -0.1], [-0.1, 0.3]]],
    )


def test_mixture_returns_the_weights_and_covariances_it_was_made_of():
    mixture = _example()
    assert np.allclose(mixture.weights, [0.2, 0.5, 0.3], rtol=1e-14)
    assert np.allclose(mixture.covariances[0], [[0.5, 0.2], [0.2, 0.4]], rtol=1e-14)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_mixture_density_integrates_to_one(dimension):
    rng = np.random.default_rng(dimension)
    roots = 0.1 * np.tril(rng.normal(size=(2, dimension, dimension))) + 0.8 * np.eye(dimension)
    means = 0.5 * rng.normal(size=(2, dimension))
    mixture = Mixture.of([1.0, 3.0], means, roots @ np.swapaxes(roots, 1, 2))
    n = 56 if dimension == 3 else 200
    grid = ng.Grid([-7.0] * dimension, [7.0] * dimension, [n] * dimension)
    # The midpoint rule is spectrally accurate: exp(−2π²σ²/h²) with σ/h ≥ 1 where it is coarsest.
    mass = jax.jit(lambda mixture, points: grid.integral(density(mixture, points)))
    assert float(mass(mixture, grid.points)) == pytest.approx(1, abs=1e-7)


def test_mixture_density_agrees_with_the_isotropic_formula():
    points = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
    mean = jnp.array([0.3, -0.2, 0.1])
    mixture = Mixture.of([1.0], mean[None], 0.6 * np.eye(3)[None])
    assert np.allclose(density(mixture, points), isotropic(points, mean, 0.6), rtol=1e-13)


def test_mixture_density_is_differentiable_in_every_parameter():
    points = jnp.asarray(np.random.default_rng(1).normal(size=(5, 2)))
    check_grads(jax.jit(lambda m: density(m, points)), (_example(),), order=1, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "covariances", "message"),
    [
        ([0.5, -0.5], [np.eye(2)] * 2, "weights"),
        ([0.5, 0.5], [np.eye(2), -np.eye(2)], "positive definite"),
        ([0.5], [np.eye(2)] * 2, "shapes"),
    ],
)
def test_mixture_refuses_what_is_not_one(weights, covariances, message):
    with pytest.raises(ng.InputError, match=message):
        Mixture.of(weights, [[0.0, 0.0], [1.0, 1.0]], covariances)


# --- the search for the largest step -------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.03, 0.7, 1.0, 5.0])
def test_search_upward_finds_the_end_of_an_interval(limit):
    found, bounded = descent.search_upward(lambda x: x <= limit, 1.0, bisections=30)
    assert bounded
    assert found == pytest.approx(limit, rel=1e-6)


def test_search_upward_says_when_nothing_fails():
    found, bounded = descent.search_upward(lambda x: True, 1.0, bisections=3)
    assert not bounded
    assert found > 200


# --- the paper's problem against stored values ---------------------------------------------------


@pytest.fixture(scope="module")
def explored():
    return landscape.explore(70, 81)


@pytest.mark.slow
def test_landscape(mixture_reference, explored):
    stored, found = mixture_reference["landscape"], explored.numbers()
    # The optimiser stops when the gradient has fallen by 1e-12; f is flat there, μ is not.
    assert np.allclose(found["global_minimum"], stored["global_min"], atol=1e-6)
    assert found["f_min"] == pytest.approx(stored["f_min"], rel=1e-12)
    assert found["f_start"] == pytest.approx(stored["f_start"], rel=1e-12)
    assert found["f_plateau"] == pytest.approx(stored["f_plateau_mu_to_infinity"], rel=1e-12)
    assert found["finite_minima"] == 1
    others = {point["type"]: [] for point in stored["other_critical_points"]}
    for point in stored["other_critical_points"]:
        others[point["type"]].append(point["f"])
    for kind, values in others.items():
        ours = [point["f"] for point in found["critical_points"] if point["type"] == kind]
        assert np.allclose(sorted(ours), sorted(values), rtol=1e-9)


def _method(key: str) -> methods.Method:
    return next(method for method in methods.paper_methods(70) if method.key == key)


# Well-conditioned directions agree to rounding error, which these paths do not amplify. In the
# paper's scheme for W₂, G has condition 1e6 at (5, 3) and densities go down to 1e-29: both sides
# of the comparison lose digits there.
TOLERANCE = {"W2": 1e-10}


PAPER = ["GD", "L2", "FR", "H1", "Hm1", "W2", "dotH1", "dotHm1"]


@pytest.mark.parametrize("key", with_slow(PAPER, ["H1", "Hm1", "dotHm1"]))
def test_paper_method_against_stored_iterates(mixture_reference, explored, key):
    method = _method(key)
    stored = mixture_reference["paper_reproduction"][key]
    rule = descent.Rule.of()
    run = descent.descend(method, START, explored.verdict, rule, 30)
    rtol = TOLERANCE.get(key, 1e-12)
    eta = (run.path[1] - run.path[0]) / method.step
    if key == "GD":  # the stored gradient is that of the plain sum
        eta = eta / explored.weight
    scale = np.linalg.norm(stored["eta_start"])
    assert np.allclose(eta, stored["eta_start"], rtol=0, atol=rtol * scale)
    compared = 0
    for number in (1, 3, 10, 30):
        if str(number) not in stored["iterates"] or number > run.iterations:
            continue  # the run has left the map, or the stored one had ended
        expected = stored["iterates"][str(number)]
        assert np.allclose(run.path[number], expected["mu"], rtol=rtol), number
        assert run.losses[number] / explored.weight == pytest.approx(expected["f"], rel=rtol)
        compared += 1
    assert compared >= 2
    assert run.rises == 0


def test_minimize_takes_the_same_steps_as_the_study(explored):
    method = _method("GD")
    result = ng.minimize(
        method.problem,
        jnp.array(START),
        ng.GradientDescent(step=ng.FixedStep(method.step)),
        stop=ng.Stop(iterations=10),
    )
    run = descent.descend(method, START, explored.verdict, descent.Rule.of(), 10)
    assert np.allclose(result.theta, run.path[-1], rtol=1e-12)


@pytest.mark.slow
def test_collocated_wasserstein_reaches_the_minimum(mixture_reference, explored):
    method = _method("W2")
    rule = descent.Rule.of(tolerance=1e-10)
    run = descent.descend(method, START, explored.verdict, rule, 200)
    assert run.outcome == landscape.REACHES
    stored = mixture_reference["paper_reproduction"]["W2"]["iterations_run"]
    assert run.iterations == pytest.approx(stored, abs=2)
    assert np.allclose(run.path[-1], (2.399571, 1.841651), atol=1e-6)


@pytest.mark.slow
def test_staggered_wasserstein_escapes(mixture_reference, explored):
    method = methods.corrected_wasserstein(70)
    stored = mixture_reference["honest_W2"]["staggered_neumann_normalised_cells70"]
    run = descent.descend(method, START, explored.verdict, descent.Rule.of(), 100)
    assert run.outcome == landscape.ESCAPES
    for number in ("1", "3", "10", "30", "60", "100"):
        expected = stored["iterates"][number]
        # Two different solvers with densities over 25 orders of magnitude: they agree to 2e-11
        # at the first step, and the path amplifies this as its tangents fade.
        assert np.allclose(run.path[int(number)], expected["mu"], rtol=2e-9), number
        assert run.losses[int(number)] == pytest.approx(expected["f_weighted"], rel=1e-9)


def test_the_largest_step_from_the_bowl_is_near_the_local_limit(mixture_reference, explored):
    method = _method("L2")
    found = descent.largest_step(method, BOWL_START, explored.verdict, 100, 4)
    limit = mixture_reference["paper_reproduction"]["L2"][
        "local_step_limit_at_global_min_2_over_lmax"
    ]
    assert found.bounded
    assert 0.9 * limit < found.step < 1.05 * limit


# --- folders and settings ------------------------------------------------------------------------


def test_a_folder_with_other_files_is_refused_and_a_result_is_not(tmp_path):
    folder = ResultFolder(tmp_path / "new")
    folder.claim("gaussian-mixture", PRESETS["demo"])
    folder.claim("gaussian-mixture", PRESETS["demo"])
    with pytest.raises(FolderError, match="holds a run with preset = demo, not paper"):
        folder.claim("gaussian-mixture", PRESETS["paper"])
    with pytest.raises(FolderError, match="other-study"):
        folder.claim("other-study", PRESETS["demo"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(FolderError, match="not a natgrad result"):
        ResultFolder(tmp_path / "mine").claim("gaussian-mixture", PRESETS["demo"])


def test_presets_are_valid():
    for settings in PRESETS.values():
        settings.check()
