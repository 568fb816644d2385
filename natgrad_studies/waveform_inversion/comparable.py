"""The inversion of all data by least squares, for `natgrad compare`."""

from natgrad import CG, Budget

from ..comparable import Comparable
from .experiment import Experiment
from .methods import METHODS
from .settings import Settings


def comparable(settings: Settings) -> Comparable:
    """Metrics on the recorded waves, a few conjugate gradients in each iteration."""
    experiment = Experiment.of(settings)
    survey = experiment.shots.survey
    metrics = {
        key: {
            "metric": method.metric(survey),
            "solver": CG(0.0, method.krylov or settings.krylov, preconditioner=method.recycled),
        }
        for key, method in METHODS.items()
        if method.metric is not None
    }
    shared = {"bounds": experiment.bounds, "tolerance": 0.0, "snapshots": 12}
    budget = Budget(propagations=settings.max_propagations)
    return Comparable(experiment.whole, experiment.theta0, metrics, budget, shared)
