"""The studies that the command line knows; each is imported only when it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .darcy import settings as darcy
from .gaussian_mixture import settings as gaussian_mixture
from .metric_cost import settings as metric_cost
from .poisson_pinn import settings as poisson_pinn
from .waveform_inversion import settings as waveform_inversion


@dataclass(frozen=True)
class Study:
    """A name, a line about it, its presets, and where its `run` and `summary` live.

    `load` returns `run(settings, say) -> (report path, result)` and `summary(result) -> tables`.
    The settings classes are light: they import nothing that computes.
    """

    name: str
    about: str
    presets: dict[Any, Any]
    load: Callable[[], tuple[Callable[..., Any], Callable[..., Any]]]


def _gaussian_mixture() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from .gaussian_mixture import study, tables

    return study.run, tables.summary


def _metric_cost() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from .metric_cost import study, tables

    return study.run, tables.summary


def _darcy() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from .darcy import study, tables

    return study.run, tables.summary


def _poisson_pinn() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from .poisson_pinn import study, tables

    return study.run, tables.summary


def _waveform_inversion() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from .waveform_inversion import study, tables

    return study.run, tables.summary


STUDIES = {
    study.name: study
    for study in (
        Study(
            "gaussian-mixture",
            "one mean of a Gaussian mixture in eight metrics (section 4.1), and a full fit",
            dict(gaussian_mixture.PRESETS),
            _gaussian_mixture,
        ),
        Study(
            "metric-cost",
            "what L, its pseudo-inverse and a direction cost in each metric (section 3.4)",
            dict(metric_cost.PRESETS),
            _metric_cost,
        ),
        Study(
            "darcy",
            "a permeability field from pressures: natural gradients beside L-BFGS",
            dict(darcy.PRESETS),
            _darcy,
        ),
        Study(
            "poisson-pinn",
            "Poisson's equation by a network in eight metrics (section 4.2), and by rivals",
            dict(poisson_pinn.PRESETS),
            _poisson_pinn,
        ),
        Study(
            "waveform-inversion",
            "a velocity model from recorded waves, in several metrics (section 4.3), and L-BFGS",
            dict(waveform_inversion.PRESETS),
            _waveform_inversion,
        ),
    )
}


def study_of(settings: Any) -> Study:
    """The study that these settings belong to."""
    known = (s for s in STUDIES.values() if type(settings) is type(next(iter(s.presets.values()))))
    return next(known)
