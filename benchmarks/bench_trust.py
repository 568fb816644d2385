"""How far to solve and to step: the default beside its rivals, on many waveform inversions.

    python benchmarks/bench_trust.py                                 # thirteen problems, reduced
    python benchmarks/bench_trust.py --size paper --memory 30        # the same on a GPU
    python benchmarks/bench_trust.py --shots 2 --budgets 50 100 150  # less of it

Sections × starts, one setting for all, f/f₀ and SSIM within each budget of propagations. Nothing
was chosen on the problems marked as kept aside. Then other ways to decide how far to solve, on
three problems. Marmousi is left out where there is no file of it.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from tables import show_table

import natgrad as ng
from natgrad_studies.waveform_inversion import problem as sections
from natgrad_studies.waveform_inversion.methods import METHODS
from natgrad_studies.waveform_inversion.problem import Experiment
from natgrad_studies.waveform_inversion.settings import PRESETS, Settings

# smoothing in cells and frequency in Hz of the reduced size; cells are three times finer in the
# paper's, and waves as many cells long
STARTS = {"easy": (3.0, 2.0), "medium": (8.0, 3.0), "hard": (20.0, 3.5)}
FINER = {"reduced": 1.0, "paper": 3.0}
SECTIONS = ("folded", "faulted", "salt", "Marmousi", "folded-7")
ASIDE = (("salt", "hard"), ("Marmousi", "medium"), ("folded-7", "easy"))
COMPARED = ("GD", "Hm1", "W2", "H1", "L2", "LBFGS", "LBFGS_long")
EXPLORED = (("faulted", "medium"), ("salt", "easy"), ("Marmousi", "hard"))
EARLY = 5  # iterations after which the model should not be worse than the start

secants_off = lambda **settings: ng.solvers.Recycled(secants=False, **settings)
STRATEGIES: dict[str, Callable[[], dict[str, Any]]] = {
    "default": dict,
    "default, no secants": lambda: {"solver": ng.CG(preconditioner=secants_off())},
    "default, nothing recycled": lambda: {"solver": ng.CG(preconditioner=None)},
    "radius, residual 0.1": lambda: {"solver": ng.CG(0.1, 20, preconditioner=secants_off())},
    "radius, residual 0.7": lambda: {"solver": ng.CG(0.7, 20, preconditioner=secants_off())},
    "line search, residual 0.7": lambda: {
        "solver": ng.CG(0.7, 20, preconditioner=secants_off()),
        "step": ng.Backtracking(),
    },
    "line search, 5 steps": lambda: {
        "solver": ng.CG(0.0, 5, preconditioner=secants_off()),
        "step": ng.Backtracking(),
    },
    "line search, 10 steps": lambda: {
        "solver": ng.CG(0.0, 10, preconditioner=secants_off()),
        "step": ng.Backtracking(),
    },
    "Levenberg–Marquardt, residual 0.1": lambda: {
        "solver": ng.CG(0.1, 20, preconditioner=secants_off()),
        "damping": ng.LevenbergMarquardt(),
        "step": ng.Backtracking(),
    },
}


@dataclass(frozen=True)
class Found:
    """f/f₀ and SSIM at every budget, and the lowest SSIM after the first iterations."""

    loss: list[float]
    similarity: list[float]
    lowest: float

    @property
    def cells(self) -> list[str]:
        pairs = zip(self.loss, self.similarity, strict=True)
        return [f"{loss:.1e} / {seen:.3f}" for loss, seen in pairs]


def experiment(section: str, start: str, given: argparse.Namespace) -> Experiment:
    """The waves of a section and where the inversion starts."""
    smoothing, frequency = STARTS[start]
    finer = FINER[given.size]
    settings = replace(
        PRESETS[given.size],
        smoothing=smoothing * finer,
        frequency=frequency * finer,
        shots=given.shots or PRESETS[given.size].shots,
        memory=given.memory,
        devices=given.devices,
    )
    if section == "Marmousi":
        return Experiment.of(replace(settings, velocity=given.velocity))
    name, _, seed = section.partition("-")
    if not seed:
        return Experiment.of(replace(settings, section=name))
    own = sections.SECTIONS[name]
    sections.SECTIONS[name] = lambda *args, **more: own(*args, seed=int(seed), **more)
    try:
        return Experiment.of(replace(settings, section=name))
    finally:
        sections.SECTIONS[name] = own


def measure(where: Experiment, method: Any, budgets: list[int]) -> Found:
    """A run to the largest budget."""
    similarity = [where.similarity(where.start)]
    look = lambda seen: similarity.append(where.similarity(where.velocity(seen.theta)))
    result = ng.minimize(
        *(where.whole, where.theta0, method),
        bounds=where.bounds,
        stop=ng.Stop(iterations=10**6, propagations=max(budgets), gradient=0.0),
        callbacks=[look],
        progress=False,
    )
    spent, loss = result.spent("propagations"), result.history["loss"] / where.first_loss
    last = [int(np.flatnonzero(spent <= budget)[-1]) for budget in budgets]
    similarity += similarity[-1:] * (len(loss) - len(similarity))
    lowest = min(similarity[EARLY:], default=float("nan"))
    return Found([float(loss[i]) for i in last], [similarity[i] for i in last], lowest)


def compare(given: argparse.Namespace, found: dict[tuple[str, str], dict[str, Found]]) -> Iterator:
    """A row for each problem and method; `found` has the numbers."""
    for section in given.sections:
        for start in given.starts if "-" not in section else ["easy"]:
            aside = "aside" if (section, start) in ASIDE else ""
            where = experiment(section, start, given)
            survey, before = where.shots.survey, where.similarity(where.start)
            runs = found[section, start] = {}
            for key in given.methods:
                method = METHODS[key].recipe(survey)()
                runs[key] = now = measure(where, method, given.budgets)
                change = f"{now.lowest - before:+.3f}"
                yield [section, start, aside, METHODS[key].name, *now.cells, change]


def judge(
    budgets: list[int], found: dict[tuple[str, str], dict[str, Found]]
) -> Iterator[list[str | float | int]]:
    """f of one method over that of another: the median, the worst, and where it is not behind."""
    names = {key: METHODS[key].name for key in COMPARED}
    pairs = [("L2", "GD"), ("L2", "LBFGS"), ("L2", "LBFGS_long")]
    pairs += [(key, "GD") for key in ("H1", "Hm1", "W2")]
    for ours, theirs in pairs:
        for i, budget in enumerate(budgets):
            both = [runs for runs in found.values() if ours in runs and theirs in runs]
            if not both:
                continue
            ratio = np.array([runs[ours].loss[i] / runs[theirs].loss[i] for runs in both])
            seen = [runs[ours].similarity[i] - runs[theirs].similarity[i] for runs in both]
            ahead = f"{int(np.sum(ratio <= 1))} of {len(ratio)}"
            numbers = [float(np.median(ratio)), float(np.max(ratio)), float(np.median(seen))]
            yield [f"{names[ours]} over {names[theirs]}", budget, *numbers, ahead]


def explore(given: argparse.Namespace) -> Iterator[list[str]]:
    """Ways to decide how far to solve, in L²."""
    for section, start in EXPLORED:
        if section not in given.sections or start not in given.starts:
            continue
        where = experiment(section, start, given)
        metric, before = ng.L2(where.shots.survey.gather_grid), where.similarity(where.start)
        for name, settings in STRATEGIES.items():
            now = measure(where, ng.NaturalGradient(metric, **settings()), given.budgets)
            yield [section, start, name, *now.cells, f"{now.lowest - before:+.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add: Any = parser.add_argument
    add("--size", choices=tuple(FINER), default="reduced")
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--starts", nargs="+", choices=tuple(STARTS), default=list(STARTS))
    add("--methods", nargs="+", choices=COMPARED, default=list(COMPARED))
    add("--budgets", nargs="+", type=int, default=[50, 100, 150, 250, 400])
    add("--shots", type=int, default=0, help="0 for as many as the study has at this size")
    add("--velocity", type=Path, default=Path("marmousi.npy"), help="a file of Marmousi")
    add("--memory", type=float, default=cast(Settings, PRESETS["reduced"]).memory, help="GiB")
    add("--devices", type=int, default=0, help="parts of a CPU, as in the study")
    add("--only", choices=("problems", "strategies"))
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if not given.velocity.exists():
        given.sections = [name for name in given.sections if name != "Marmousi"]
    found: dict[tuple[str, str], dict[str, Found]] = {}
    at, end = [f"at {budget}" for budget in given.budgets], "lowest SSIM − start"
    if given.only != "strategies":
        title = f"f/f₀ / SSIM within so many propagations, {given.size} size"
        columns = ["section", "start", "kept", "method", *at, end]
        show_table("problems", columns, compare(given, found), title)
        columns = ["f of", "propagations", "median", "worst", "SSIM gained", "not behind"]
        show_table("summary", columns, judge(given.budgets, found), "Over all problems")
    if given.only != "problems":
        columns = ["section", "start", "strategy", *at, end]
        show_table("strategies", columns, explore(given), "How far to solve, L²")


if __name__ == "__main__":
    main()
