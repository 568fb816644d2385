"""The record book: its problems against their solutions, its references, its rivals, a tiny run."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad_studies.clock import CompilingClock
from natgrad_studies.keeping import Kept
from natgrad_studies.records import references, soap, ssbroyden
from natgrad_studies.records import run as study
from natgrad_studies.records.__main__ import parse
from natgrad_studies.records.case import Field, relative_error
from natgrad_studies.records.cavity import lid_velocity, solve_cavity
from natgrad_studies.records.methods import Task
from natgrad_studies.records.page import record_table
from natgrad_studies.records.problems import CASES
from natgrad_studies.records.published import PUBLISHED
from natgrad_studies.records.rla_pinns import SETTINGS, run_rla_pinns
from natgrad_studies.records.run import Run
from natgrad_studies.records.settings import MANY_DIMENSIONS, METHODS, PRESETS, PROBLEMS, Settings
from natgrad_studies.running import run_study
from problems_for_tests import with_slow

TINY = Settings(
    problems=("reaction",),
    methods=("LBFGS",),
    seconds=0.01,  # one iteration, however slow the machine
    points=0.005,
    width=0.1,
    order=1,
)


# --- the problems ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """A solution in the place of a network."""

    solution: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.solution(x)

    def d(self, x: jax.Array, *axes: int) -> jax.Array:
        return ng.derivative(self.solution, x, *axes)


def grown(x: jax.Array) -> jax.Array:
    """The solution of the reaction."""
    start = jnp.exp(-8 * (x[1] / jnp.pi - 1) ** 2)
    return start / (start + (1 - start) * jnp.exp(-5 * x[0]))


SOLUTIONS = {
    "helmholtz": lambda x: jnp.sin(jnp.pi * x[0]) * jnp.sin(4 * jnp.pi * x[1]),
    "helmholtz-50": lambda x: jnp.sin(jnp.pi * x[0]) * jnp.sin(4 * jnp.pi * x[1]),
    "convection": lambda x: jnp.sin(x[1] - 50 * x[0]),
    "reaction": grown,
    "poisson-5d": lambda x: jnp.sum(jnp.cos(jnp.pi * x)),
    "poisson-10d": lambda x: jnp.sum(x[::2] * x[1::2]) / np.sqrt(65 / 36),
    "heat-4d": lambda x: jnp.exp(-x[0]) * jnp.sum(jnp.sin(2 * x[1:])),
}


@pytest.mark.parametrize("key", with_slow(SOLUTIONS, ["poisson-10d", "heat-4d"]))
def test_the_residuals_of_a_solution_vanish_and_it_is_the_reference(key: str):
    case, u = CASES[key](), Known(SOLUTIONS[key])
    reference = case.reference()
    some = reference.points.reshape(-1, reference.points.shape[-1])[::1999]
    draws = {k: block.fixed_points(0)[:8] for k, block in case.blocks.items()}

    @jax.jit
    def evaluate(draws: dict, some: jax.Array) -> tuple[dict, jax.Array]:
        at = lambda block, points: jax.vmap(lambda x: block.residual(u, x))(points)
        return {k: at(case.blocks[k], points) for k, points in draws.items()}, jax.vmap(u)(some)

    residuals, values = evaluate(draws, some)
    assert all(np.allclose(found, 0, atol=1e-10) for found in residuals.values())
    assert np.allclose(values, reference.values.ravel()[::1999], atol=1e-13)


def interpolate(times: np.ndarray, values: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """Lagrange polynomials in t, a Fourier series in x from values at x = −1 + 2j/n."""
    coefficients = np.fft.rfft(values) / values.shape[1]
    waves = jnp.arange(coefficients.shape[1]) * jnp.pi
    doubled = jnp.asarray(np.where(np.arange(len(waves)) > 0, 2.0, 1.0) * coefficients)

    def u(x: jax.Array) -> jax.Array:
        weights = [math.prod((x[0] - b) / (a - b) for b in times if b != a) for a in times]
        phase = waves * (x[1] + 1)
        series = doubled.real @ jnp.cos(phase) - doubled.imag @ jnp.sin(phase)
        return jnp.stack(weights) @ series

    return u


@pytest.mark.parametrize(
    "key", with_slow(["burgers", "allen-cahn", "kdv", "ks"], ["allen-cahn", "ks"])
)
def test_references_satisfy_the_equations_of_their_cases(key: str):
    times = np.linspace(0, 0.04, 9)
    solve = {
        "burgers": lambda: references.burgers(times[:, None], references.places(128)),
        "allen-cahn": lambda: references.allen_cahn(times, 1024, modes=1024),
        "kdv": lambda: references.korteweg_de_vries(times, 128, modes=128),
        "ks": lambda: references.kuramoto_sivashinsky(times, 128),
    }
    u = Known(interpolate(times[4:], solve[key]()[4:]))  # the corner of Allen–Cahn's start is gone
    block = CASES[key]().blocks["interior"]
    points = jnp.stack([jnp.full(6, times[6]), jnp.linspace(-0.7, 0.6, 6)], axis=1)
    both = jax.jit(jax.vmap(lambda x: (u.d(x, 0), block.residual(u, x))))
    speeds, residuals = both(points)
    assert np.abs(residuals).max() < 1e-5 * np.abs(speeds).max()


def test_points_lie_where_they_are_wanted():
    near = CASES["burgers"]().blocks["interior"].fixed_points(0)
    assert (np.abs(near[:, 1]) <= 1).all()
    there = (np.abs(near[:, 1]) < 0.1).mean()
    assert there == pytest.approx(0.05 + 0.5 * np.arctan(5) / np.arctan(50), abs=0.01)
    walls = CASES["cavity-100"]().blocks["interior"].fixed_points(0)
    assert (walls[:, :2].min(axis=1) < 0.05).mean() > 0.2
    assert (walls[:, 2] == 100).all()
    sides = CASES["heat-4d"]().blocks["boundary"].fixed_points(0)
    on_one = ((sides[:, 1:] == 0) | (sides[:, 1:] == 1)).sum(axis=1)
    assert (on_one == 1).all()


@pytest.mark.parametrize(
    "key", with_slow(PROBLEMS, {*PROBLEMS} - {"helmholtz", "poisson-5d", "ks"})
)
def test_every_problem_has_a_network_points_and_a_draw(key: str):
    case = CASES[key]().scaled(0.01, 0.1)
    assert case.key == key
    theta, pinn = case.start(0), case.collocation(0)
    shapes = jax.eval_shape(lambda theta: pinn(theta), theta)
    assert {name: s.shape[0] for name, s in shapes.items()} == {
        name: block.count for name, block in case.blocks.items()
    }
    last = lambda points: case.advance(case.legs - 1, points, Field(case, theta))
    drawn = jax.eval_shape(case.draws(last), jax.random.key(0))
    assert all(drawn[name].shape == pinn.blocks[name].points.shape for name in drawn)
    assert "interior" in drawn


def test_time_windows_cut_the_reference_and_hand_on_their_end():
    case = CASES["ks"]()
    times = np.linspace(0, 1, 101)
    points = np.stack(np.meshgrid(times, references.places(4), indexing="ij"), axis=-1)
    whole = study.Reference(points, np.arange(404.0).reshape(101, 4))
    parts = [case.part(whole, leg) for leg in range(case.legs)]
    assert np.array_equal(np.concatenate([part.values for part in parts]), whole.values)
    assert all(part.points[..., 0].max() == pytest.approx(0.1) for part in parts)
    first = case.collocation(0).blocks["initial"].points
    end = lambda x: x[0] + x[1]
    second = case.advance(1, {"initial": first}, end)["initial"]
    assert np.allclose(second[:, 2], 0.1 + first[:, 1])
    assert np.array_equal(second[:, :2], first[:, :2])


def test_the_cavity_raises_its_reynolds_number():
    case = CASES["cavity-3200"]()
    points = {name: block.points for name, block in case.collocation(0).blocks.items()}
    numbers = [case.advance(leg, points, None)["interior"][0, 2] for leg in range(case.legs)]
    assert numbers == [100, 400, 1000, 3200]
    walls = case.blocks["boundary"]
    still = Known(lambda x: jnp.stack([lid_velocity(x[0]) * x[1] ** 9, 0.0 * x[0], x[0]]))
    at = jnp.asarray([[0.3, 1.0], [0.9, 1.0], [0.0, 0.4], [0.7, 0.0]])
    assert np.allclose(jax.vmap(lambda x: walls.residual(still, x))(at), 0, atol=1e-12)


# --- the references -------------------------------------------------------------------------------


def test_burgers_by_refinement():
    times, x = np.linspace(0, 1, 21)[:, None], np.linspace(-1, 1, 101)
    coarse, fine = (references.burgers(times, x, nodes) for nodes in (60, 100))
    assert relative_error(coarse, fine) < 1e-10
    assert np.allclose(fine[0], -np.sin(np.pi * x), atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solve", "coarse"),
    [
        (references.allen_cahn, {"modes": 4096, "steps": 14}),
        (references.korteweg_de_vries, {"modes": 256, "steps": 140}),
        (references.kuramoto_sivashinsky, {"modes": 256, "steps": 180}),
    ],
)
def test_periodic_references_by_refinement(solve: Callable, coarse: dict):
    times = np.linspace(0, 1, 101)
    assert relative_error(solve(times, 64, **coarse), solve(times, 64)) < 1e-10


def test_exponential_time_differencing_has_order_four():
    times = np.linspace(0, 0.1, 2)
    found = [references.korteweg_de_vries(times, 32, modes=32, steps=n) for n in (5, 10, 160)]
    coarse, fine = (np.linalg.norm(values - found[2]) for values in found[:2])
    assert np.log2(coarse / fine) == pytest.approx(4, abs=0.4)


HEIGHTS = (0.9766, 0.9531, 0.8516, 0.7344, 0.6172, 0.5, 0.4531, 0.2813, 0.1719)
GHIA = {  # u on the vertical centre line: Ghia, Ghia and Shin, J. Comput. Phys. 48 (1982), table I
    100: (0.84123, 0.68717, 0.23151, 0.00332, -0.13641, -0.20581, -0.2109, -0.15662, -0.1015),
    3200: (0.53236, 0.46101, 0.34682, 0.19791, 0.07156, -0.04272, -0.08664, -0.24427, -0.34323),
}


@pytest.mark.slow
@pytest.mark.parametrize(("reynolds", "degree", "apart"), [(100, 28, 6e-3), (3200, 40, 1e-2)])
def test_the_cavity_is_that_of_the_literature(reynolds: int, degree: int, apart: float):
    x = np.array([0.5, *HEIGHTS])
    found = solve_cavity(reynolds, x, degree, sharpness=np.inf)[0, 1:, 0]
    assert np.abs(found - GHIA[reynolds]).max() < apart
    if reynolds == 100:  # Botella and Peyret, Comput. Fluids 27 (1998), have more digits
        line = solve_cavity(100, np.linspace(0, 1, 401), degree, sharpness=np.inf)[200, :, 0]
        assert line.min() == pytest.approx(-0.2140424, abs=2e-5)


def test_the_cavity_converges_and_keeps_its_walls():
    x = np.linspace(0, 1, 33)
    coarse, fine = (solve_cavity(100, x, degree) for degree in (20, 26))
    assert relative_error(coarse[4:-4, 4:-4], fine[4:-4, 4:-4]) < 1e-3
    assert np.array_equal(fine[:, -1, 0], lid_velocity(x))
    assert not fine[[0, -1], :-1].any()
    assert not fine[:, 0].any()


# --- rivals ---------------------------------------------------------------------------------------


def test_self_scaled_broyden_minimises_and_keeps_the_secant():
    pytest.importorskip("optax")
    rosenbrock = lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    state = ssbroyden.init(rosenbrock, jnp.asarray([-1.2, 1.0] * 2))
    values = [float(state.value)]
    for _ in range(150):
        state = ssbroyden.step(rosenbrock, state)
        values.append(float(state.value))
        if state.stalled:
            break
    assert values[-1] < 1e-18
    assert all(after <= before for before, after in itertools.pairwise(values))
    random = np.random.default_rng(0)
    root = jnp.asarray(random.normal(size=(6, 6)))
    inverse, gradient = root @ root.T, jnp.asarray(random.normal(size=6))
    s = -0.7 * inverse @ gradient
    y = jnp.asarray(np.diag(random.random(6) + 0.1)) @ s
    updated = ssbroyden.update(inverse, s, y, gradient, jnp.asarray(0.7))
    assert np.allclose(updated @ y, s, rtol=1e-10)
    assert np.linalg.eigvalsh(updated).min() > 0
    assert np.array_equal(ssbroyden.update(inverse, s, -y, gradient, jnp.asarray(0.7)), inverse)


def test_self_scaled_broyden_on_a_quadratic_ends_in_about_as_many_steps_as_dimensions():
    pytest.importorskip("optax")
    scales = jnp.asarray(np.logspace(0, 4, 12))
    quadratic = lambda x: 0.5 * jnp.sum(scales * x**2)
    state = ssbroyden.init(quadratic, jnp.ones(12))
    for _ in range(36):
        state = ssbroyden.step(quadratic, state)
    assert float(state.value) < 1e-12


def test_soap_is_adam_in_the_eigenbasis_and_free_of_rotations():
    """On ½ tr((W − T)ᵀA(W − T)B) with rotated A and B it takes the steps of the plain ones."""
    random = np.random.default_rng(0)
    target = jnp.asarray(random.normal(size=(2, 2)))
    turns = [np.linalg.qr(random.normal(size=(2, 2)))[0] for _ in range(2)]
    scales = jnp.asarray([1.0, 30.0]), jnp.asarray([1.0, 10.0])

    def descend(a: jax.Array, b: jax.Array, target: jax.Array) -> jax.Array:
        method, w = soap.Soap(0.02), jnp.zeros((2, 2))
        state, path = method.init(w), []
        update = jax.jit(lambda w, state: method.update(a @ (w - target) @ b, state))
        for _ in range(80):
            change, state = update(w, state)
            w = w + change
            path.append(w)
        return jnp.stack(path)

    plain = descend(jnp.diag(scales[0]), jnp.diag(scales[1]), target)
    u, v = map(jnp.asarray, turns)
    rotated = descend(
        u @ jnp.diag(scales[0]) @ u.T, v @ jnp.diag(scales[1]) @ v.T, u @ target @ v.T
    )
    assert np.array_equal(plain[0], np.zeros((2, 2)))  # the first gradient sets the bases
    assert np.allclose(jnp.einsum("ij,njk,kl->nil", u.T, rotated, v), plain, atol=1e-9)
    loss = lambda w: np.sum(scales[0][:, None] * scales[1] * (w - target) ** 2)
    assert loss(plain[-1]) < 0.05 * loss(plain[0])


def test_rla_pinns_is_read_from_what_it_prints(tmp_path: Path):
    (tmp_path / "rla_pinns").mkdir()
    script = tmp_path / "rla_pinns" / "train.py"
    line = "Step: 0000012, Loss: 0.5, L2 Error: 3.2, Interior: 0.1, Boundary: 0.4, Time: 3.5s"
    script.write_text(f"import sys\nprint({line!r})\nprint(sys.argv[1:])\n")
    assert set(SETTINGS) == set(MANY_DIMENSIONS)
    assert run_rla_pinns(tmp_path, "poisson-5d", 0, 1.0) == [(12, 0.5, 3.2, 3.5)]
    settings = replace(TINY, problems=("poisson-5d",), methods=("rla-pinns",), rla_pinns=tmp_path)
    settings.check()
    case = CASES["poisson-5d"]()
    found = study.run_elsewhere(case, case.reference(), 0, settings)
    assert found.error == pytest.approx(3.2 / np.sqrt(2.5), rel=0.02)
    script.write_text("raise SystemExit('no wandb')")
    with pytest.raises(ng.InputError, match=r"rla_pinns: .* has no result: no wandb"):
        run_rla_pinns(tmp_path, "heat-4d", 0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["LM", "Adam", "Muon", "SOAP", "SSBroyden", "optimistix"])
def test_every_method_lowers_the_loss(method: str):
    case, losses = CASES["reaction"]().scaled(0.01, 0.1), []

    def count(progress: ng.result.Progress) -> bool:
        losses.append(progress.loss)
        return progress.iteration == 8

    task = Task(case, case.collocation(0), case.start(0), None, 0, TINY, count)
    theta, status, _ = study.TRAIN[method](task)
    assert status == "stopped"
    assert losses[-1] < losses[0]
    assert jax.tree.structure(theta) == jax.tree.structure(task.theta)


RUN = Run(
    problem="",
    method="",
    seed=0,
    status="max_seconds",
    seconds=np.ones(1),
    errors=np.ones(1),
    losses=np.ones(1),
    iterations=1,
    compiling=0.5,
    parameters=10,
    residuals=20,
    device="cpu",
    values=np.ones(1),
)


# --- the study ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_in_windows_covers_all_times():
    case = replace(CASES["reaction"]().scaled(0.005, 0.1), legs=2, windows=True)
    times, x = np.linspace(0, 1, 21), references.places(16)
    points = np.stack(np.meshgrid(times, x, indexing="ij"), axis=-1)
    reference = study.Reference(points, -np.sin(np.pi * points[..., 1]))
    run = study.run_one(case, reference, "LBFGS", 0, TINY)
    assert run.iterations == case.legs  # one in each window, the seconds being spent
    assert run.values.shape == reference.values.shape
    assert run.error == relative_error(run.values, reference.values)
    assert np.all(np.diff(run.seconds) >= 0)


@pytest.mark.slow
def test_the_clock_tells_compilation_apart():
    with CompilingClock() as clock:
        jax.jit(lambda x: jnp.sin(x) + 1)(1.0)  # off the clock
        assert clock.compiling == clock.spent == 0
        clock.go()
        jax.jit(lambda x: jnp.cos(x) + 2)(1.0)
        clock.stop()
        assert 0 < clock.compiling <= clock.spent


def test_settings_that_cannot_be():
    wrong = {
        "problems: name one twice": {"problems": ("burgers", "burgers")},
        "seeds: are": {"seeds": ()},
        "methods: 'LM2' is unknown": {"methods": ("LM2",)},
        "jax_ng: is None, where JAX-NG is not": {
            "methods": ("JAX-NG",),
            "problems": ("helmholtz",),
        },
    }
    for message, change in wrong.items():
        with pytest.raises(ng.InputError, match=message):
            replace(TINY, **change).check()
    for preset in PRESETS.values():
        preset.check()
    assert set(CASES) == set(PROBLEMS)
    assert set(PUBLISHED) <= set(PROBLEMS)
    assert set(METHODS) == {*study.TRAIN, "rla-pinns"}


def test_the_plain_command_line():
    given = "--preset full --problems burgers kdv --seeds 0 1 --seconds 5 --output out --order 2"
    assert parse(given.split()) == {
        **{"preset": "full", "problems": ("burgers", "kdv"), "seeds": (0, 1), "seconds": 5.0},
        **{"output": Path("out"), "order": 2},
    }


@pytest.mark.slow
def test_a_tiny_study_from_end_to_end_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings, said = replace(TINY, output=tmp_path / "out"), []
    page, result = run_study(settings, said.append)
    numbers = json.loads((page.parent / "results.json").read_text())["runs"]
    assert [(run["problem"], run["method"], run["iterations"]) for run in numbers] == [
        ("reaction", "LBFGS", 1)
    ]
    assert 0 < numbers[0]["compiling"] <= numbers[0]["seconds"][-1]
    text = page.read_text()
    assert "The record book" in text
    assert "2.9e-05 by the best known" in text
    assert record_table(result).rows[0][:2] == ("reaction, ρ = 5", "LBFGS")
    monkeypatch.setattr(study, "run_one", pytest.fail)  # finished runs are taken up
    again = study.compute(settings, said.append, Kept(page.parent / "runs", *study.KEPT))
    assert [run.error for run in again.runs] == [run.error for run in result.runs]
    elsewhere = Kept(tmp_path / "other", *study.KEPT)
    other = replace(settings, parts=(settings.output,), output=tmp_path / "other")
    assert isinstance(study.compute(other, said.append, elsewhere).runs[0], Run)
    with pytest.raises(ng.InputError, match=r"parts: .* records with another width"):
        study.compute(replace(other, width=0.2), said.append, elsewhere)


@pytest.mark.slow
def test_runs_in_processes_are_those_of_one(tmp_path: Path):
    settings = replace(TINY, seeds=(0, 1), workers=2, output=tmp_path / "out")
    kept = Kept(settings.output / "runs", *study.KEPT)
    found = study.compute(settings, lambda line: None, kept)
    alone = study.compute(replace(settings, workers=1), lambda line: None)
    assert [(run.seed, run.iterations) for run in found.runs] == [(0, 1), (1, 1)]
    for run, other in zip(found.runs, alone.runs, strict=True):
        assert run.error == pytest.approx(other.error, rel=1e-6)
    elsewhere = Kept(tmp_path / "other", *study.KEPT)
    said: list[str] = []
    unknown = replace(settings, methods=("LM", "unknown"), seeds=(0,))
    assert [run.method for run in study.compute(unknown, said.append, elsewhere).runs] == ["LM"]
    assert any("unknown, seed 0 has failed: KeyError" in line for line in said)
    with pytest.raises(KeyError):
        study.compute(replace(unknown, methods=("unknown",)), said.append, elsewhere)


def test_a_call_begins_no_run_that_it_cannot_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What is left is made by the next call; what is finished costs no time."""
    seconds = iter(range(0, 1000, 40))
    monkeypatch.setattr(study, "perf_counter", lambda: next(seconds))
    made = lambda case, reference, method, seed, settings: replace(
        RUN, problem=case.key, method=method, seed=seed
    )
    monkeypatch.setattr(study, "run_one", made)
    settings, said = replace(TINY, seeds=(0, 1, 2), seconds=30.0, within=140.0), []
    settings.check()
    kept = Kept(tmp_path, *study.KEPT)
    first = study.compute(settings, said.append, kept)
    assert [run.seed for run in first.runs] == [0, 1]  # the third would end after 170 s
    assert said[-1] == "1 of 3 runs are left: the same command goes on with them"
    second = study.compute(settings, said.append, kept)
    assert [run.seed for run in second.runs] == [0, 1]  # read, and still too late for the third
    assert len(study.compute(replace(settings, within=1e9), said.append, kept).runs) == 3
    with pytest.raises(ng.InputError, match="within: is 50 s, less than a run"):
        replace(settings, within=50.0).check()
