"""What a study offers for comparison: one problem, its metrics by key, and how each is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from natgrad import Budget, Metric, Problem


@dataclass(frozen=True)
class Comparable:
    """The arguments of `ng.compare`; `settings` are those of `minimize`, for all metrics.

    `budget` is what the study has the runs spend where nothing else is asked for.
    """

    problem: Problem
    theta0: Any
    metrics: Mapping[str, Metric | Mapping[str, Any]]
    budget: Budget
    settings: Mapping[str, Any] = field(default_factory=dict)
