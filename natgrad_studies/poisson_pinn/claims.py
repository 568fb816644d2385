"""What the paper says of its figure 4, held against the runs, by iterations and by seconds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .runs import Run
from .settings import METRICS

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
    iterations, seconds = common_iterations(found), common_seconds(found)
    views: tuple[Loss, Loss] = (
        lambda run: run.after(iterations),
        lambda run: run.within(seconds),
    )
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


def common_iterations(runs: dict[str, Run]) -> int:
    """The iterations that all of the metrics' runs have made, unless they ended by themselves."""
    made = [run.iterations for run in runs.values() if not run.ended_by_itself]
    return min(made or [run.iterations for run in runs.values()], default=0)


def common_seconds(runs: dict[str, Run]) -> float:
    """The CPU seconds that all of the metrics' runs have spent, unless they ended by themselves."""
    spent = [run.seconds[-1] for run in runs.values() if not run.ended_by_itself]
    return float(min(spent or [run.seconds[-1] for run in runs.values()], default=0.0))


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
