"""A comparison of metrics on the problem of a study: its settings, and how it is run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natgrad.errors import InputError
from natgrad.report import ResultFolder

from .registry import STUDIES
from .suggestions import check_names
from .typed import filled

if TYPE_CHECKING:  # JAX stays away from the help
    from natgrad.descent.stop import Budget

    from .running import Say

NAME = "compare"
SOLVERS = ("auto", "cholesky", "qr", "pivoted-qr", "svd", "kernel", "cg", "lsmr")
BASELINE = "LBFGS"


@dataclass(frozen=True)
class CompareSettings:
    """Which metrics and solvers, on the problem of which study, under which budget."""

    study: str
    of: Any  # the settings of the study
    metrics: tuple[str, ...]
    solvers: tuple[str, ...]
    iterations: int | None
    propagations: int | None
    seconds: float | None
    output: Path

    @classmethod
    def restored(cls, values: Mapping[str, Any], where: str) -> "CompareSettings":
        """From the values in a settings file."""
        study = STUDIES.get(str(values.get("study")))
        if study is None or not isinstance(values.get("of"), dict):
            raise InputError(where, "names no study with settings", "natgrad compare, again")
        of = filled(next(iter(study.presets.values())), values["of"], where)
        blank = cls(study.name, of, (), (), None, None, None, Path())
        return filled(blank, {k: v for k, v in values.items() if k != "of"}, where)

    def check(self) -> None:
        """Raise `InputError` for what cannot be compared."""
        known = STUDIES[self.study].metrics
        if not known:
            offering = [study.name for study in STUDIES.values() if study.metrics]
            what = f"{self.study} has no problem to compare metrics on"
            raise InputError("study", what, "one of " + ", ".join(offering))
        check_names("metrics", self.metrics, (*known, BASELINE))
        check_names("solvers", self.solvers, SOLVERS)
        if self.metrics == (BASELINE,):
            raise InputError("metrics", "L-BFGS is alone", "some of " + ", ".join(known))
        self.budget()
        self.of.check()

    def budget(self) -> "Budget":
        """What is asked for; nothing, if the study is to say."""
        from natgrad.descent.stop import Budget

        return Budget(self.iterations, self.propagations, self.seconds)


def run(settings: CompareSettings, say: "Say") -> tuple[Path, Any]:
    """Run the comparison into its folder, or go on with it; returns the page and the comparison."""
    from natgrad import Budget, compare
    from natgrad.report import comparison_page, save_page

    settings.check()
    folder = ResultFolder(settings.output)
    folder.claim(NAME, settings)
    say("making the problem")
    found = STUDIES[settings.study].part("comparable", "comparable")(settings.of)
    keys = settings.metrics or (*found.metrics, BASELINE)
    metrics = {key: found.metrics[key] for key in keys if key != BASELINE}
    shared, solvers = dict(found.settings), _solvers(settings.solvers)
    if solvers is not None:
        shared.pop("solver", None)
        metrics = {key: _without_solver(metric) for key, metric in metrics.items()}
    asked = settings.budget()
    comparison = compare(
        found.problem,
        found.theta0,
        metrics=metrics,
        solvers=solvers,
        budget=found.budget if asked == Budget() else asked,
        lbfgs=BASELINE in keys,
        folder=folder.path / "runs",
        **shared,
    )
    folder.write("results.json", _numbers(comparison))
    page = replace(comparison_page(comparison), title=f"Metrics compared: {settings.study}")
    page = replace(page, settings=_told(settings) | dict(page.settings))
    return save_page(page, folder.path), comparison


def _solvers(names: tuple[str, ...]) -> dict[str, Any] | None:
    from natgrad import CG, LSMR, QR, SVD, Auto, Cholesky, Kernel, PivotedQR

    kinds = (Auto, Cholesky, QR, PivotedQR, SVD, Kernel, CG, LSMR)
    known: dict[str, Any] = dict(zip(SOLVERS, kinds, strict=True))
    return {name: known[name]() for name in names} or None


def _without_solver(metric: Any) -> Any:
    if not isinstance(metric, Mapping):
        return metric
    return {name: value for name, value in metric.items() if name != "solver"}


def _numbers(comparison: Any) -> dict[str, Any]:
    """The results file."""
    from natgrad.report import versions
    from natgrad.result import AXES

    return {
        "versions": versions(),
        "winners": comparison.leaders,
        "compared_at": {axis: comparison.extent(axis) for axis in AXES},
        "could_not_run": dict(comparison.failures),
        "runs": {
            name: {"status": str(result.status), "loss": result.loss, "history": result.history}
            for name, result in comparison.results.items()
        },
    }


def _told(settings: CompareSettings) -> dict[str, Any]:
    from natgrad.report import plain

    own, of = plain(settings), plain(settings.of)
    return {k: v for k, v in own.items() if k != "of"} | {f"study.{k}": v for k, v in of.items()}
