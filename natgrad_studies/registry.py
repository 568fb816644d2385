"""The studies that the command line knows; each is imported only when it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .darcy import settings as darcy
from .gaussian_mixture import settings as gaussian_mixture
from .metric_cost import settings as metric_cost
from .poisson_pinn import settings as poisson_pinn
from .waveform_inversion import settings as waveform_inversion


@dataclass(frozen=True)
class Study:
    """A name, a line about it, its presets, its package, and the metrics it offers to compare.

    The package has `study.run(settings, say) -> (report path, result)`,
    `tables.summary(result) -> tables` and, where there are metrics to compare,
    `comparable.comparable(settings) -> Comparable`. The settings classes are light: they import
    nothing that computes.
    """

    name: str
    about: str
    presets: dict[Any, Any]
    package: str
    metrics: tuple[str, ...] = ()

    def part(self, module: str, function: str) -> Callable[..., Any]:
        """A function of the study, imported now."""
        return getattr(import_module(f".{self.package}.{module}", __package__), function)


STUDIES = {
    study.name: study
    for study in (
        Study(
            "gaussian-mixture",
            "one mean of a Gaussian mixture in eight metrics (section 4.1), and a full fit",
            dict(gaussian_mixture.PRESETS),
            "gaussian_mixture",
            ("GD", *gaussian_mixture.METRICS, "W2"),
        ),
        Study(
            "metric-cost",
            "what L, its pseudo-inverse and a direction cost in each metric (section 3.4)",
            dict(metric_cost.PRESETS),
            "metric_cost",
        ),
        Study(
            "darcy",
            "a permeability field from pressures: natural gradients beside L-BFGS",
            dict(darcy.PRESETS),
            "darcy",
            tuple(key for key in darcy.ENTRANTS if not key.startswith("LBFGS")),
        ),
        Study(
            "poisson-pinn",
            "Poisson's equation by a network in eight metrics (section 4.2), and by rivals",
            dict(poisson_pinn.PRESETS),
            "poisson_pinn",
            (*poisson_pinn.METRICS, "GN", "LM3"),
        ),
        Study(
            "waveform-inversion",
            "a velocity model from recorded waves, in several metrics (section 4.3), and L-BFGS",
            dict(waveform_inversion.PRESETS),
            "waveform_inversion",
            tuple(k for k in waveform_inversion.METHODS if k not in waveform_inversion.RIVALS),
        ),
    )
}


def study_of(settings: Any) -> Study:
    """The study that these settings belong to."""
    known = (s for s in STUDIES.values() if type(settings) is type(next(iter(s.presets.values()))))
    return next(known)
