"""The training of a network for `natgrad compare`."""

from natgrad import Backtracking, Budget, LevenbergMarquardt, recipe

from ..comparable import Comparable
from .pinn import Pinn
from .settings import METRICS, Settings


def comparable(settings: Settings) -> Comparable:
    """Metrics on the values of the network, and Gauss–Newton on the residuals (GN, LM3)."""
    pinn = Pinn(settings)
    on_values = {
        key: {"metric": pinn.metrics[key], "problem": pinn.values_problem(key)} for key in METRICS
    }
    residual = {"metric": pinn.residuals.metric, "problem": pinn.residuals.problem}
    on_residuals = {
        "GN": residual | recipe("gauss-newton"),
        "LM3": residual | recipe("levenberg-marquardt"),
    }
    return Comparable(
        pinn.values_problem("L2"),
        pinn.start,
        on_values | on_residuals,
        Budget(seconds=settings.seconds),
        {"damping": LevenbergMarquardt(), "step": Backtracking(), "tolerance": 0.0},
    )
