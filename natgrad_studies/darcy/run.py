"""The study: every method to the noise, and what the data leave open there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import L2, Result, Stop, information_spectrum
from natgrad.descent import Progress

from ..keeping import Kept
from ..methods import one_by_one
from ..running import Say, Spending, pick
from .methods import Method
from .problem import START, Inversion
from .settings import Settings

NEVER_SMALL = 1e-14  # the gradient's tolerance: runs end at the noise, or with their budget
RIVALS = ("LBFGS", "LBFGS_long")
SHOWN = (0, 1, 9)  # eigenvectors that are drawn


# --- one run of a method -------------------------------------------------------------------------


@dataclass(frozen=True)
class Run(Spending):
    """The end of a run and its history, one entry per iterate; propagations accumulate."""

    method: Method
    status: str
    iterations: int
    gradients: int  # one more if the budget left none for a step
    misfit: np.ndarray  # relative to the noise
    error: np.ndarray  # of m, relative to the start's
    propagations: np.ndarray
    krylov: int  # steps of conjugate gradients in all
    factorisations: int
    seconds: float  # of the CPU, without compiling
    field: np.ndarray

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
        spent = pick(self, "forward", "linearised", "adjoint", "factorisations", "seconds")
        return {
            "name": self.method.full_name,
            **pick(self, "status", "iterations"),
            "krylov_steps": self.krylov,
            **spent,
            "misfit_over_noise": self.misfit,
            **pick(self, "error", "propagations"),
        }


def run_method(method: Method, inversion: Inversion) -> Run:
    """From the constant start to the noise. An iteration before that compiles, uncounted."""
    settings = inversion.settings
    stop = Stop(
        iterations=settings.max_propagations,
        propagations=settings.max_propagations,
        gradient=NEVER_SMALL,
        loss=settings.discrepancy**2 * inversion.noise_loss,
    )
    method.run(inversion, name=method.full_name, stop=replace(stop, iterations=1))
    errors = [inversion.error(method.field(inversion, inversion.start))]

    def record(progress: Progress) -> None:
        errors.append(inversion.error(method.field(inversion, progress.theta)))

    inversion.factorisations = 0
    clock = process_time()
    found = method.run(inversion, name=method.full_name, stop=stop, callbacks=[record])
    return _describe(method, inversion, found, np.array(errors), process_time() - clock)


def _describe(
    method: Method, inversion: Inversion, found: Result, errors: np.ndarray, seconds: float
) -> Run:
    history = found.history
    spent = {name: history[name] for name in ("forward", "linearised", "adjoint")}
    return Run(
        method=method,
        status=str(found.status),
        iterations=found.iterations,
        gradients=int(np.isfinite(history["gradient_norm"]).sum()),
        misfit=inversion.misfit(history["loss"]),
        error=errors,
        propagations=np.sum(list(spent.values()), axis=0),
        **{name: int(counts[-1]) for name, counts in spent.items()},
        krylov=int(np.nansum(history["solver_iterations"])),
        factorisations=inversion.factorisations,
        seconds=seconds,
        field=method.field(inversion, found.theta),
    )


# --- what the data leave open --------------------------------------------------------------------


@dataclass(frozen=True)
class Posterior:
    """N(m, Γ) with Γ⁻¹ = G/(wσ²) + D: eigenvalues, eigenvectors, and deviations cell by cell.

    An eigenvalue compares what data and prior say along its vector, as in `Spectrum`.
    """

    values: np.ndarray
    beyond: float  # an estimate of the largest eigenvalue that is missing
    vectors: dict[int, np.ndarray]  # some of them, as fields
    prior_deviation: np.ndarray
    deviation: np.ndarray
    sample: np.ndarray  # of m
    error: np.ndarray  # m − m*
    propagations: int

    @property
    def coverage(self) -> float:
        """The share of cells whose error is below two standard deviations."""
        return float(np.mean(np.abs(self.error) <= 2 * self.deviation))

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        return {
            "eigenvalues": self.values,
            "largest_missing": self.beyond,
            "mean_prior_deviation": np.mean(self.prior_deviation),
            "mean_deviation": np.mean(self.deviation),
            "within_two_deviations": self.coverage,
            "propagations": self.propagations,
        }


def posterior(inversion: Inversion, x: Array, rank: int) -> Posterior:
    """The posterior at the prior's coordinates x, linearised there (Laplace's approximation).

    In these coordinates D is the identity, and the metric of the noise is Σ|ζ|²/σ². With fields
    vᵢ of the eigenvectors, diag Γ = diag D⁻¹ − Σ vᵢ² μᵢ/(1 + μᵢ).

    Cost: about 4 · rank propagations, and as many transforms.
    """
    weight = 1 / (inversion.grid.cell_volume * inversion.data.noise**2)
    metric = weight * L2(inversion.grid)
    spectrum = information_spectrum(
        inversion.white_problem, x, metric=metric, rank=rank, power_iterations=1
    )
    values, m = np.asarray(spectrum.values), inversion.field(x)
    fields = np.asarray(jax.jit(jax.vmap(inversion.prior.field))(spectrum.vectors))
    before = inversion.prior.variance()
    known = np.einsum("i,ijk->jk", values / (1 + values), fields**2)
    return Posterior(
        values=values,
        beyond=float(spectrum.error),
        vectors={i: fields[i] for i in SHOWN if i < rank},
        prior_deviation=np.sqrt(before),
        deviation=np.sqrt(np.maximum(before - known, 0.0)),
        sample=inversion.field(x + spectrum.sample(jax.random.key(0))),
        error=m - inversion.data.truth,
        propagations=int(sum(spectrum.counts)),
    )


# --- the whole study -----------------------------------------------------------------------------


@dataclass(frozen=True)
class VariantResult:
    """All runs on the data of one variant."""

    inversion: Inversion
    runs: list[Run]
    posterior: Posterior | None

    def __getitem__(self, key: str) -> Run:
        return next(run for run in self.runs if run.method.key == key)

    def get(self, key: str) -> Run | None:
        """The run of a method, if it is among them."""
        return next((run for run in self.runs if run.method.key == key), None)

    def with_prior(self, white: bool) -> list[Run]:
        """The runs that know of the prior, or those that do not."""
        return [run for run in self.runs if run.method.knows_prior == white]

    @property
    def ordered(self) -> list[Run]:
        """Those without the prior first."""
        return self.with_prior(False) + self.with_prior(True)

    def rival(self, white: bool) -> Run | None:
        """The L-BFGS that reached the noise with the fewest propagations."""
        return self._quickest(white, lambda entrant: entrant in RIVALS)

    def best(self, white: bool) -> Run | None:
        """The natural gradient that reached the noise with the fewest propagations."""
        return self._quickest(white, lambda entrant: entrant not in (*RIVALS, "GD", "Newton"))

    def ratio(self, run: Run) -> str | None:
        """Its propagations to the noise over those of the rival, to two digits."""
        rival = self.rival(run.method.knows_prior)
        return f"{run.total / rival.total:.2f}" if rival is not None and run.reached else None

    def _quickest(self, white: bool, counts: Callable[[str], bool]) -> Run | None:
        found = [r for r in self.with_prior(white) if counts(r.method.entrant) and r.reached]
        return min(found, key=lambda run: run.total, default=None)

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        data = self.inversion.data
        return {
            "observations": data.observed.size,
            "noise": data.noise,
            "model_error_over_noise": data.model_error,
            "runs": {run.method.key: run.numbers() for run in self.runs},
            "posterior": None if self.posterior is None else self.posterior.numbers(),
        }


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    variants: dict[str, VariantResult]

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {"variants": {name: variant.numbers() for name, variant in self.variants.items()}}


KEPT = (Run, Posterior)


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of finished runs."""
    variants = {}
    for name in settings.variants:
        rank = 0 if variants else settings.posterior_rank
        variants[name] = _compute_variant(name, settings, rank, say, kept)
    return StudyResult(settings, variants)


def _compute_variant(
    name: str, settings: Settings, rank: int, say: Say, kept: Kept
) -> VariantResult:
    inversion = Inversion.of(name, settings)
    runs = []
    for method in one_by_one([Method(key) for key in settings.methods]):
        make = partial(run_method, method, inversion)
        found = kept.part(f"{name}-{method.key}", make, method=method)
        runs.append(found)
        say(
            f"{name}, {found.method.full_name}: {found.status}, {found.total} propagations, "
            f"misfit {found.misfit[-1]:.3g} σ, error {found.error[-1]:.3f}, {found.seconds:.1f} s"
        )
    make = partial(_posterior_of_runs, inversion, runs, rank)
    return VariantResult(inversion, runs, kept.part(f"{name}-posterior", make))


def _posterior_of_runs(inversion: Inversion, runs: list[Run], rank: int) -> Posterior | None:
    """At the end of the L² run in the prior's coordinates, where there is one."""
    found = next((run for run in runs if run.method.key == "L2_prior"), None)
    if found is None or rank == 0:
        return None
    rank = min(rank, inversion.data.observed.size, inversion.data.truth.size)
    x = inversion.prior.coordinates(jnp.asarray(found.field - START))
    return posterior(inversion, x, rank)
