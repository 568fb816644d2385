"""The permeability from pressures, in the first variant of the settings, for `natgrad compare`."""

from natgrad import CG, Budget, Recycled

from ..comparable import Comparable
from .inversion import Inversion
from .methods import METRICS
from .settings import Settings


def comparable(settings: Settings) -> Comparable:
    """The parameters are the logarithms of the permeability; runs end at the noise."""
    inversion = Inversion.of(settings.variants[0], settings)
    return Comparable(
        inversion.problem,
        inversion.start,
        {key: metric(inversion.grid) for key, metric in METRICS.items()},
        Budget(propagations=settings.max_propagations),
        {
            "solver": CG(0.0, settings.krylov, preconditioner=Recycled(settings.pairs)),
            "loss_target": settings.discrepancy**2 * inversion.noise_loss,
            "snapshots": 12,
        },
    )
