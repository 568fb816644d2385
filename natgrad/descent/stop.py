"""What a run may spend."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.outcomes import Status
from ..errors import InputError


@dataclass(frozen=True)
class Budget:
    """Iterations, model propagations and seconds that a run may spend; None for no limit.

    ```python
    ng.Budget(iterations=100)
    ng.Budget(propagations=400, seconds=3600.0)
    ```
    """

    iterations: int | None = None
    propagations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("iterations", "propagations", "seconds"):
            check_amount(name, getattr(self, name))

    def spent(self, propagations: int, seconds: float) -> Status | None:
        """Which budget is used up, other than the iterations, if one is."""
        if self.propagations is not None and propagations >= self.propagations:
            return Status.MAX_PROPAGATIONS
        if self.seconds is not None and seconds >= self.seconds:
            return Status.MAX_SECONDS
        return None


def check_amount(argument: str, value: Any) -> None:
    """Raise `InputError` for a limit that is neither a number from zero on nor None."""
    number = isinstance(value, (int, float, np.number)) and math.isfinite(value) and value >= 0
    if value is not None and not number:
        what = f"{value!r} is nothing that can be spent"
        raise InputError(argument, what, "a number from zero on, or None for no limit")
