"""One run of a method: what it found, and what it spent."""

from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np

from natgrad import Progress, Result
from natgrad.descent.progress import label_runs

from .inversion import Inversion
from .methods import Method

NEVER_SMALL = 1e-14  # the gradient's tolerance: runs end at the noise, or with their budget


@dataclass(frozen=True)
class Run:
    """The end of a run and its history, one entry per iterate; propagations accumulate."""

    method: Method
    status: str
    iterations: int
    misfit: np.ndarray  # relative to the noise
    error: np.ndarray  # of m, relative to the start's
    propagations: np.ndarray
    forward: int
    linearised: int
    adjoint: int
    krylov: int  # steps of conjugate gradients in all
    factorisations: int
    seconds: float  # of the CPU, without compiling
    field: np.ndarray

    @property
    def total(self) -> int:
        """All propagations."""
        return self.forward + self.linearised + self.adjoint

    def until(self, misfit: float) -> int | None:
        """The propagations until the misfit was so small; None if it never was."""
        below = np.flatnonzero(self.misfit <= misfit)
        return int(self.propagations[below[0]]) if below.size else None

    @property
    def reached(self) -> bool:
        """Whether it ended at the noise."""
        return self.status == "loss_reached"

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        return {
            "name": self.method.full_name,
            "status": self.status,
            "iterations": self.iterations,
            "krylov_steps": self.krylov,
            "forward": self.forward,
            "linearised": self.linearised,
            "adjoint": self.adjoint,
            "factorisations": self.factorisations,
            "seconds": self.seconds,
            "misfit_over_noise": self.misfit,
            "error": self.error,
            "propagations": self.propagations,
        }


def run(method: Method, inversion: Inversion) -> Run:
    """From the constant start to the noise. An iteration before that compiles, uncounted."""
    settings = inversion.settings
    budget = {
        "max_propagations": settings.max_propagations,
        "max_iterations": settings.max_propagations,
        "loss_target": settings.discrepancy**2 * inversion.noise_loss,
        "tolerance": NEVER_SMALL,
    }
    method.run(inversion, [], budget | {"max_iterations": 1})
    errors = [inversion.error(method.field(inversion, inversion.start))]

    def record(progress: Progress) -> None:
        errors.append(inversion.error(method.field(inversion, progress.theta)))

    inversion.factorisations = 0
    clock = process_time()
    with label_runs(method.full_name):
        found = method.run(inversion, [record], budget)
    return _told(method, inversion, found, np.array(errors), process_time() - clock)


def _told(
    method: Method, inversion: Inversion, found: Result, errors: np.ndarray, seconds: float
) -> Run:
    history = found.history
    spent = {name: history[name] for name in ("forward", "linearised", "adjoint")}
    return Run(
        method=method,
        status=str(found.status),
        iterations=found.iterations,
        misfit=inversion.misfit(history["loss"]),
        error=errors,
        propagations=np.sum(list(spent.values()), axis=0),
        **{name: int(counts[-1]) for name, counts in spent.items()},
        krylov=int(np.nansum(history["solver_iterations"])),
        factorisations=inversion.factorisations,
        seconds=seconds,
        field=method.field(inversion, found.theta),
    )
