"""How far to solve and to step: the default beside its rivals, on many waveform inversions.

    python benchmarks/bench_trust.py --shots 2                       # thirteen problems, reduced
    python benchmarks/bench_trust.py --shots 2 --problems salt:hard --methods GD L2
    python benchmarks/bench_trust.py --size paper --memory 30        # the same on a GPU

Sections × starts, one setting for all, f/f₀ and SSIM within each budget of propagations. Nothing
was chosen on the problems marked as kept aside. Then other ways to decide how far to solve, on
three problems. Marmousi is left out where there is no file of it.

Every run is kept in a file of `--folder` that is named after the sources, the settings, the problem
and the method. It is not made again, so that the tables can be had in parts, in any order, and by
several processes; `--made` shows those that there are.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from evidence import sources_digest
from tables import show_table

import natgrad as ng
from natgrad.waves import Survey
from natgrad_studies.waveform_inversion import problem as sections
from natgrad_studies.waveform_inversion.methods import METHODS
from natgrad_studies.waveform_inversion.problem import Experiment
from natgrad_studies.waveform_inversion.settings import PRESETS, Settings

# smoothing in cells and frequency in Hz of the reduced size; cells are three times finer in the
# paper's, and waves as many cells long
STARTS = {"easy": (3.0, 2.0), "medium": (8.0, 3.0), "hard": (20.0, 3.5)}
FINER = {"reduced": 1.0, "paper": 3.0}
SECTIONS = ("folded", "faulted", "salt", "Marmousi", "folded-7")
PROBLEMS = tuple(f"{section}:{start}" for section in SECTIONS for start in STARTS)[:-2]  # one of it
ASIDE = ("folded:hard", "Marmousi:easy", "folded-7:easy")
COMPARED = ("GD", "Hm1", "W2", "H1", "L2", "LBFGS", "LBFGS_long")
EXPLORED = ("faulted:medium", "salt:easy", "Marmousi:hard")
Kept = dict[str, dict[str, "Found"]]  # by problem and method
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
    """A run, iterate by iterate, and the seconds that it took."""

    spent: list[int]
    loss: list[float]
    similarity: list[float]
    ratio: list[float]  # of the decrease to the one predicted, of each step
    seconds: float

    def within(self, budget: int) -> tuple[float, float]:
        """f/f₀ and SSIM."""
        last = int(np.flatnonzero(np.array(self.spent) <= budget)[-1])
        return self.loss[last], self.similarity[last]

    def cells(self, budgets: list[int]) -> list[str]:
        found = (self.within(budget) for budget in budgets)
        return [f"{loss:.1e} / {seen:.3f}" for loss, seen in found]

    @property
    def lowest(self) -> float:
        """SSIM at its lowest after the first iterations, less that of the start."""
        return min(self.similarity[EARLY:], default=float("nan")) - self.similarity[0]

    def similarity_at(self, loss: float) -> float | None:
        """SSIM where f/f₀ is first as low."""
        low = np.flatnonzero(np.array(self.loss) <= loss)
        return self.similarity[low[0]] if low.size else None


def experiment(problem: str, given: argparse.Namespace) -> Experiment:
    """The waves of a section and where the inversion starts."""
    section, start = problem.split(":")
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


class Runs:
    """The runs asked for, made or taken from their files."""

    def __init__(self, given: argparse.Namespace):
        self.given, self.most, self.where = given, max(given.budgets), ("", None)
        name = f"{sources_digest()}-{given.size}-{given.shots}-{self.most}"
        self.folder = given.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)

    def find(self, problem: str, name: str, make: Callable[[Survey], Any]) -> Found | None:
        """The run of a method on a problem; None where it is not to be made now."""
        path = self.folder / f"{problem.replace(':', '-')} {name}.json"
        if path.exists():
            return Found(**json.loads(path.read_text(encoding="utf-8")))
        if self.given.made:
            return None
        if self.where[0] != problem:
            self.where = problem, experiment(problem, self.given)
        where = self.where[1]
        assert where is not None
        found = measure(where, make(where.shots.survey), self.most)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(found)), encoding="utf-8")
        new.replace(path)
        return found


def measure(where: Experiment, method: Any, budget: int) -> Found:
    """A run with so many propagations."""
    similarity, start = [where.similarity(where.start)], time.perf_counter()
    look = lambda seen: similarity.append(where.similarity(where.velocity(seen.theta)))
    result = ng.minimize(
        *(where.whole, where.theta0, method),
        bounds=where.bounds,
        stop=ng.Stop(iterations=10**6, propagations=budget, gradient=0.0),
        callbacks=[look],
        progress=False,
    )
    loss, ratio = result.history["loss"] / where.first_loss, result.history["ratio"]
    similarity += similarity[-1:] * (len(loss) - len(similarity))
    return Found(
        spent=[int(x) for x in result.spent("propagations")],
        loss=loss.tolist(),
        similarity=similarity,
        ratio=ratio[np.isfinite(ratio)].tolist(),
        seconds=time.perf_counter() - start,
    )


def compare(given: argparse.Namespace, runs: Runs, found: Kept) -> Iterator[list[Any]]:
    """A row for each problem and method; `found` has the runs."""
    for problem in given.problems:
        for key in given.methods:
            now = runs.find(problem, key, lambda survey, key=key: METHODS[key].recipe(survey)())
            if now is None:
                continue
            found.setdefault(problem, {})[key] = now
            kept = "aside" if problem in ASIDE else ""
            cells = [*now.cells(given.budgets), f"{now.lowest:+.3f}", round(now.seconds)]
            yield [*problem.split(":"), kept, METHODS[key].name, *cells]


def compare_similarity(found: Kept) -> Iterator[list[Any]]:
    """SSIM where gradient descent ends, and where others have its loss; how well the model held."""
    for problem, runs in found.items():
        if "GD" not in runs:
            continue
        last = runs["GD"].loss[-1]
        for key, run in runs.items():
            low = min(run.ratio, default=float("nan"))
            seen = [run.similarity[0], run.similarity_at(last), run.lowest, low]
            yield [*problem.split(":"), METHODS[key].name, last, *seen]


def judge(budgets: list[int], found: Kept) -> Iterator[list[str | float | int]]:
    """f of one method over that of another: the median, the worst, and where it is not behind."""
    names = {key: METHODS[key].name for key in COMPARED}
    pairs = [("L2", "GD"), ("L2", "LBFGS"), ("L2", "LBFGS_long")]
    pairs += [(key, "GD") for key in ("H1", "Hm1", "W2")]
    for ours, theirs in pairs:
        for budget in budgets:
            both = [runs for runs in found.values() if ours in runs and theirs in runs]
            if not both:
                continue
            pairs = [(runs[ours].within(budget), runs[theirs].within(budget)) for runs in both]
            ratio = np.array([ours[0] / theirs[0] for ours, theirs in pairs])
            seen = [ours[1] - theirs[1] for ours, theirs in pairs]
            ahead = f"{int(np.sum(ratio <= 1))} of {len(ratio)}"
            numbers = [float(np.median(ratio)), float(np.max(ratio)), float(np.median(seen))]
            yield [f"{names[ours]} over {names[theirs]}", budget, *numbers, ahead]


def explore(given: argparse.Namespace, runs: Runs) -> Iterator[list[Any]]:
    """Ways to decide how far to solve, in L²."""
    for problem in (name for name in EXPLORED if name in given.problems):
        for name, settings in STRATEGIES.items():
            make = lambda survey, settings=settings: ng.NaturalGradient(
                ng.L2(survey.gather_grid), **settings()
            )
            now = runs.find(problem, "L2" if name == "default" else name, make)
            if now is not None:
                cells = [*now.cells(given.budgets), f"{now.lowest:+.3f}"]
                yield [*problem.split(":"), name, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add: Any = parser.add_argument
    add("--size", choices=tuple(FINER), default="reduced")
    add("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="only these")
    add("--starts", nargs="+", choices=tuple(STARTS), default=list(STARTS), help="only these")
    add("--methods", nargs="+", choices=COMPARED, default=list(COMPARED))
    add("--budgets", nargs="+", type=int, default=[50, 100, 150, 250, 400])
    add("--shots", type=int, default=0, help="0 for as many as the study has at this size")
    add("--velocity", type=Path, default=Path("marmousi.npy"), help="a file of Marmousi")
    add("--memory", type=float, default=cast(Settings, PRESETS["reduced"]).memory, help="GiB")
    add("--devices", type=int, default=0, help="parts of a CPU, as in the study")
    add("--only", choices=("problems", "strategies"))
    add("--folder", type=Path, default=Path("results/trust"), help="where runs are kept")
    add("--made", action="store_true", help="only the runs that there are")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    apart = [problem.split(":") for problem in given.problems]
    given.problems = [
        f"{section}:{start}"
        for section, start in apart
        if section in given.sections
        and (start in given.starts or "-" in section)  # which has one start
        and (section != "Marmousi" or given.velocity.exists())
    ]
    runs, found = Runs(given), {}
    at, end = [f"at {budget}" for budget in given.budgets], "lowest SSIM − start"
    if given.only != "strategies":
        title = f"f/f₀ / SSIM within so many propagations, {given.size} size"
        columns = ["section", "start", "kept", "method", *at, end, "seconds"]
        show_table("problems", columns, compare(given, runs, found), title)
        columns = ["f of", "propagations", "median", "worst", "SSIM gained", "not behind"]
        show_table("summary", columns, judge(given.budgets, found), "Over all problems")
        columns = ["section", "start", "method", "f/f₀ that gradient descent reaches"]
        columns += ["SSIM of the start", "SSIM there", end, "lowest ratio"]
        show_table("similarity", columns, compare_similarity(found), "At the same loss")
    if given.only != "problems":
        columns = ["section", "start", "strategy", *at, end]
        show_table("strategies", columns, explore(given, runs), "How far to solve, L²")


if __name__ == "__main__":
    main()
