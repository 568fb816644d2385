"""What a study offers for comparison: one problem, its metrics by key, and how each is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import Metric, Problem


@dataclass(frozen=True)
class Comparable:
    """The arguments of `ng.compare`; `settings` are those of `minimize`, for all metrics."""

    problem: Problem
    theta0: Any
    metrics: Mapping[str, Metric | Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
