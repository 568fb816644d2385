"""The studies that the command line knows; each is imported only when it runs."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import forkserver, get_context, set_forkserver_preload
from typing import Any

from .darcy import settings as darcy
from .demo import settings as demo
from .gaussian_mixture import settings as gaussian_mixture
from .metric_cost import settings as metric_cost
from .poisson_pinn import settings as poisson_pinn
from .records import settings as records
from .stopping import without_ctrl_c
from .waveform_inversion import settings as waveform_inversion


@dataclass(frozen=True)
class Study:
    """A name, a line about it, its presets, and the metrics it offers to compare.

    Its package, of the same name, has

    | module | what is asked of it |
    |---|---|
    | `settings` | the settings and their presets; imports nothing that computes |
    | `run` | `compute(settings, say, kept)`, the result, with `numbers()` for the results file; `KEPT`, the classes of the parts that are kept |
    | `page` | `page(result, folder)`, the report, its figures drawn into the folder; `summary(result)`, tables for the terminal |
    | `methods` | `comparable(settings)`, where there are metrics to compare |
    """  # noqa: E501

    name: str
    about: str
    presets: dict[Any, Any]
    metrics: tuple[str, ...] = ()

    @property
    def first_preset(self) -> Any:
        """The settings where nothing is asked for."""
        return next(iter(self.presets.values()))

    def load(self, module: str) -> Any:
        """A module of its package, imported now."""
        return import_module(self._path(module))

    def import_beside(self, settings: Any) -> None:
        """Begin to import what runs it for the processes that will share it, if there are some."""
        if settings.processes() > 1:
            import_beside(self._path("run"))

    def _path(self, module: str) -> str:
        return f"{__package__}.{self.name.replace('-', '_')}.{module}"


def import_beside(module: str) -> Any:
    """The context for processes that need a module.

    They are forked from a server that imports it beside this process, once for all of them. Where
    there can be no server, each begins anew.
    """
    if sys.platform == "linux":  # elsewhere libraries may have threads by then, which a fork loses
        set_forkserver_preload([module])
        with suppress(OSError), without_ctrl_c():  # TMPDIR may be too long for a socket
            forkserver.ensure_running()
            return get_context("forkserver")
    return get_context("spawn")


KEYS = {  # what a metric or a method to compare is
    "GD": "gradient descent, without a metric",
    "Newton": "Newton's method",
    "L2": "natural gradient in L²",
    "L2_five": "L², five conjugate gradient steps a direction",
    "L2_H1": "L² and a little Ḣ¹",
    "FR": "Fisher–Rao",
    "H1": "Sobolev, H¹",
    "Hm1": "Sobolev, H⁻¹",
    "dotH1": "homogeneous Sobolev, Ḣ¹",
    "dotHm1": "homogeneous Sobolev, Ḣ⁻¹",
    "W2": "Wasserstein",
    "W2_L2": "Wasserstein and L²",
    "GN": "Gauss–Newton on the residuals",
    "LM3": "Levenberg–Marquardt on the residuals, along paths of third order",
    "LBFGS": "L-BFGS, without a metric",
}
STUDIES = {
    study.name: study
    for study in (
        Study(
            "gaussian-mixture",
            "one mean of a Gaussian mixture in eight metrics (section 4.1 of the paper), "
            "and a full fit",
            dict(gaussian_mixture.PRESETS),
            ("GD", *gaussian_mixture.METRICS, "W2"),
        ),
        Study(
            "metric-cost",
            "what L, its pseudo-inverse and a direction cost in each metric "
            "(section 3.4 of the paper)",
            dict(metric_cost.PRESETS),
        ),
        Study(
            "darcy",
            "a permeability field from pressures: natural gradients beside L-BFGS",
            dict(darcy.PRESETS),
            tuple(key for key in darcy.ENTRANTS if not key.startswith("LBFGS")),
        ),
        Study(
            "poisson-pinn",
            "Poisson's equation by a network in eight metrics (section 4.2 of the paper), "
            "and by rivals",
            dict(poisson_pinn.PRESETS),
            (*poisson_pinn.METRICS, "GN", "LM3"),
        ),
        Study(
            "waveform-inversion",
            "a velocity model from recorded waves, in several metrics (section 4.3 of the paper), "
            "and L-BFGS",
            dict(waveform_inversion.PRESETS),
            tuple(k for k in waveform_inversion.METHODS if k not in waveform_inversion.RIVALS),
        ),
        Study(
            "records",
            "standard problems for physics-informed networks, beside published errors",
            dict(records.PRESETS),
        ),
        Study(
            "demo",
            "a network, waves and a density in three minutes, natgrad beside its rivals",
            dict(demo.PRESETS),
        ),
    )
}
COMPARABLE = [study.name for study in STUDIES.values() if study.metrics]


def study_of(settings: Any) -> Study:
    """The study that these settings belong to."""
    return next(s for s in STUDIES.values() if type(settings) is type(s.first_preset))
