"""The study: every method for so many CPU seconds, and what the paper says of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import process_time
from typing import Any

import numpy as np

from natgrad import Stop
from natgrad.descent import Progress, show_run

from ..clock import Clock, Trace
from ..keeping import Kept
from ..methods import label, one_by_one
from ..running import Say, pick
from .methods import Method
from .problem import Pinn, Theta
from .settings import METRICS, Settings

SHARES = (0.25, 0.5, 1.0)  # of the seconds: where losses and errors are compared
COMPILING = 2  # iterations that a method makes before its clock runs
UNLIMITED = 10**9
OWN_ENDS = ("no_decrease", "not_finite", "inadmissible", "not_descent", "precision", "converged")


# --- one run of a method --------------------------------------------------------------------------


@dataclass
class BestTrace(Trace):
    """Every loss, the best iterate, and its error at shares of the time."""

    pinn: Pinn
    whole: bool
    best: tuple[float, Theta | None] = (np.inf, None)
    marks: list[tuple[float, float]] = field(default_factory=list)  # loss and error at the shares

    def begin(self) -> None:
        """The start of the run, before its clock runs."""
        self._write(self.pinn.loss(self.pinn.start), self.pinn.start)
        self.clock.go()

    def note(self, progress: Progress, over: bool) -> float:
        loss = progress.loss if self.whole else self.pinn.loss(progress.theta)
        self._write(loss, progress.theta)
        return loss

    def _write(self, loss: float, theta: Theta) -> None:
        self.losses.append(loss)
        self.seconds.append(self.clock.spent)
        if loss < self.best[0]:
            self.best = loss, theta
        reached = sum(self.clock.spent >= share * self.budget for share in SHARES)
        self._mark(reached)

    def _mark(self, count: int) -> None:
        """The loss and the error of the best iterate, for each share of the time just reached."""
        loss, theta = self.best
        if len(self.marks) < count and theta is not None:
            self.marks += [(loss, self.pinn.error(theta))] * (count - len(self.marks))

    def end(self) -> None:
        """A run that ended early stays where it is."""
        self._mark(len(SHARES))


@dataclass(frozen=True)
class Run:
    """The end of a run and its history, one entry per iterate, the start first."""

    method: Method
    status: str
    losses: np.ndarray
    seconds: np.ndarray  # of the CPU, without compiling
    marks: list[tuple[float, float]]
    theta: Theta  # where the loss was lowest
    error: float

    @property
    def iterations(self) -> int:
        """The steps that were taken."""
        return len(self.losses) - 1

    @property
    def final(self) -> float:
        """The lowest loss."""
        return float(self.losses.min())

    @property
    def seconds_per_iteration(self) -> float:
        """The mean."""
        return float(self.seconds[-1] / max(self.iterations, 1))

    @property
    def ended_by_itself(self) -> bool:
        """Whether it found no further step, rather than the end of its budget."""
        return self.status in OWN_ENDS

    def after(self, iterations: int) -> float:
        """The lowest loss within so many iterations."""
        return float(self.losses[: iterations + 1].min())

    def within(self, seconds: float) -> float:
        """The lowest loss within so many CPU seconds."""
        return float(self.losses[self.seconds <= seconds].min())

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        return {
            "name": self.method.name,
            **pick(self, "status", "iterations"),
            "loss": self.final,
            "relative_error": self.error,
            "cpu_seconds": self.seconds[-1],
            "loss_and_error_at_shares_of_the_time": self.marks,
            **pick(self, "losses", "seconds"),
        }


def run_method(method: Method, pinn: Pinn) -> Run:
    """From θ₀ until the seconds are spent. Some iterations before that compile, uncounted."""
    settings = pinn.settings
    most = UNLIMITED if method.cheap else settings.max_iterations
    with label(method.name):
        method.run(pinn, lambda progress: False, COMPILING)
    pinn.error(pinn.start)  # compiled before the clock runs
    with label(method.name), show_run(Stop(seconds=settings.seconds)) as watch:
        clock = Clock(process_time)
        trace = BestTrace(settings.seconds, clock, watch, pinn, not method.batched)
        trace.begin()
        status = method.run(pinn, trace, most)
    trace.end()
    theta = trace.best[1]
    assert theta is not None
    return Run(
        method=method,
        status="max_seconds" if status == "stopped" else str(status),
        losses=np.array(trace.losses),
        seconds=np.array(trace.seconds),
        marks=trace.marks,
        theta=theta,
        error=pinn.error(theta),
    )


# --- what the paper says of its figure 4, held against the runs -----------------------------------


Loss = Callable[[Run], float]


@dataclass(frozen=True)
class Claim:
    """A statement, and whether it holds per iteration and by CPU seconds; None where not run."""

    text: str
    by_iterations: bool | None
    by_seconds: bool | None


def claims(runs: dict[str, Run]) -> list[Claim]:
    """The paper's statements on the metrics that were run."""
    found = {key: run for key, run in runs.items() if key in METRICS}
    iterations = int(common_spending(found, lambda run: run.iterations))
    seconds = common_spending(found, lambda run: run.seconds[-1])
    views: tuple[Loss, Loss] = (lambda run: run.after(iterations), lambda run: run.within(seconds))
    statements = {
        "every natural gradient is below gradient descent": _all_below_gd,
        "H¹ and Ḣ¹ are the lowest": _h1_leads,
        "H⁻¹ and Ḣ⁻¹ are above L²": _dual_behind,
    }
    told = [
        Claim(text, *(holds({key: view(run) for key, run in found.items()}) for view in views))
        for text, holds in statements.items()
    ]
    late = (
        _late_decay(found, lambda run: run.after(iterations // 2), views[0]),
        _late_decay(found, lambda run: run.within(seconds / 2), views[1]),
    )
    return [*told, Claim("in its second half W₂ falls by a larger factor than H⁻¹ and Ḣ⁻¹", *late)]


def common_spending(runs: dict[str, Run], spent: Callable[[Run], float]) -> float:
    """What all of the metrics' runs have spent, but for those that ended by themselves."""
    going = [run for run in runs.values() if not run.ended_by_itself]
    return min(map(spent, going or runs.values()), default=0)


def order(runs: dict[str, Run], loss: Loss) -> list[Run]:
    """The runs of the paper's metrics, the lowest loss first."""
    return sorted((run for key, run in runs.items() if key in METRICS), key=loss)


def _all_below_gd(losses: dict[str, float]) -> bool | None:
    others = [loss for key, loss in losses.items() if key != "GD"]
    return max(others) < losses["GD"] if "GD" in losses and others else None


def _h1_leads(losses: dict[str, float]) -> bool | None:
    """Of those that were run: the first one or two places."""
    leaders = [losses[key] for key in ("H1", "dotH1") if key in losses]
    others = [loss for key, loss in losses.items() if key not in ("H1", "dotH1", "GD")]
    return max(leaders) < min(others) if leaders and others else None


def _dual_behind(losses: dict[str, float]) -> bool | None:
    dual = [losses[key] for key in ("Hm1", "dotHm1") if key in losses]
    return min(dual) > losses["L2"] if dual and "L2" in losses else None


def _late_decay(runs: dict[str, Run], early: Loss, late: Loss) -> bool | None:
    factors = {key: np.log(early(run) / late(run)) for key, run in runs.items()}
    dual = [factors[key] for key in ("Hm1", "dotHm1") if key in factors]
    return bool(factors["W2"] > max(dual)) if "W2" in factors and dual else None


# --- the whole study ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    pinn: Pinn
    start_loss: float
    start_error: float
    runs: dict[str, Run]
    batched: dict[str, Run]

    @property
    def best(self) -> Run:
        """The run with the lowest loss of all."""
        return min(self.runs.values(), key=lambda run: run.final)

    def best_of(self, keys: tuple[str, ...]) -> Run | None:
        """The run with the lowest loss among these methods."""
        found = [self.runs[key] for key in keys if key in self.runs]
        return min(found, key=lambda run: run.final, default=None)

    @property
    def best_metric(self) -> Run | None:
        """The best natural gradient in a metric on values."""
        return self.best_of(METRICS[1:])

    @property
    def claims(self) -> list[Claim]:
        """What the paper says, and whether it holds here."""
        return claims(self.runs)

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {
            "parameters": self.pinn.parameters,
            "start": {"loss": self.start_loss, "relative_error": self.start_error},
            "runs": {key: run.numbers() for key, run in self.runs.items()},
            "mini_batches": {key: run.numbers() for key, run in self.batched.items()},
            "claims_of_the_paper": [asdict(claim) for claim in self.claims],
        }


KEPT = (Run,)


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of finished runs."""
    pinn = Pinn(settings)

    def found(method: Method, name: str) -> Run:
        run = kept.part(name, lambda: run_method(method, pinn), method=method)
        say(
            f"{method.name}: loss {run.final:.3g}, error {run.error:.2g}, {run.iterations} "
            f"iterations in {run.seconds[-1]:.1f} CPU s ({run.status})"
        )
        return run

    return StudyResult(
        settings=settings,
        pinn=pinn,
        start_loss=pinn.loss(pinn.start),
        start_error=pinn.error(pinn.start),
        runs={key: found(Method(key), key) for key in one_by_one(settings.methods)},
        batched={
            key: found(Method(key, True), f"batch-{key}") for key in one_by_one(settings.batched)
        },
    )
