"""A comparison of metrics on the problem of a study: its settings, and how it is run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .registry import COMPARABLE, STUDIES
from .settings import check_names, fill, input_error

NAME = "compare"
SOLVERS = {  # their classes in natgrad, by the names of the command line
    **{"auto": "Auto", "cholesky": "Cholesky", "qr": "QR", "pivoted-qr": "PivotedQR"},
    **{"svd": "SVD", "kernel": "Kernel", "cg": "CG", "lsmr": "LSMR"},
}
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
    def restore(cls, values: Mapping[str, Any], where: str) -> "CompareSettings":
        """From the values in a settings file."""
        study = STUDIES.get(str(values.get("study")))
        if study is None or not isinstance(values.get("of"), dict):
            raise input_error(where, "names no study with settings", "natgrad compare, again")
        of = fill(study.first_preset, values["of"], where)
        blank = cls(study.name, of, (), (), None, None, None, Path())
        return fill(blank, {k: v for k, v in values.items() if k != "of"}, where)

    def check(self) -> None:
        """Raise `InputError` for what cannot be compared."""
        known = STUDIES[self.study].metrics
        if not known:
            what = f"{self.study} has no problem to compare metrics on"
            raise input_error("study", what, "one of " + ", ".join(COMPARABLE))
        check_names("metrics", self.metrics, (*known, BASELINE))
        check_names("solvers", self.solvers, SOLVERS)
        if self.metrics == (BASELINE,):
            raise input_error("metrics", "L-BFGS is alone", "some of " + ", ".join(known))
        self.stop()
        self.of.check()

    def stop(self, own: Any = None) -> Any:
        """The `ng.Stop` of a study, with the budget that is asked for, if one is."""
        from natgrad import Stop

        budget = {name: getattr(self, name) for name in ("iterations", "propagations", "seconds")}
        asked = any(value is not None for value in budget.values())
        return replace(own or Stop(), **budget) if asked else own or Stop()


def run_comparison(settings: CompareSettings, say: Callable[[str], None]) -> tuple[Path, Any]:
    """Run the comparison into its folder, or resume it; returns the page and the comparison."""
    import natgrad as ng
    from natgrad.report import ResultFolder, comparison_page, plain, save_page, versions

    settings.check()
    folder = ResultFolder(settings.output)
    with folder.claimed(NAME, settings):
        say("making the problem")
        found = STUDIES[settings.study].load("methods").comparable(settings.of)
        keys = settings.metrics or (*found.recipes, BASELINE)
        solvers = {name: getattr(ng, SOLVERS[name])() for name in settings.solvers}
        entries = found.entries([key for key in keys if key != BASELINE], solvers)
        if BASELINE in keys:
            entries["L-BFGS"] = (found.problem, ng.LBFGS(10))
        comparison = ng.compare(
            found.problem,
            found.theta0,
            entries,
            stop=settings.stop(found.stop),
            folder=folder.path / "runs",
            **found.options,
        )
    folder.write("results.json", {"versions": versions()} | _numbers(comparison))
    own, of = plain(settings), plain(settings.of)
    told = {k: v for k, v in own.items() if k != "of"} | {f"study.{k}": v for k, v in of.items()}
    page = comparison_page(comparison)
    page = replace(
        page, title=f"Metrics compared: {settings.study}", settings=told | dict(page.settings)
    )
    return save_page(page, folder.path), comparison


def _numbers(comparison: Any) -> dict[str, Any]:
    """The results file."""
    return {
        "winners": comparison.leaders,
        "compared_at": {axis: comparison.extent(axis) for axis in comparison.leaders},
        "could_not_run": dict(comparison.failures),
        "runs": {
            name: {"status": str(result.status), "loss": result.loss, "history": result.history}
            for name, result in comparison.results.items()
        },
    }
