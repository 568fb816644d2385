"""What a run may spend."""

import math
from dataclasses import dataclass

from .errors import InputError
from .result import Status


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
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(
                    name, f"{value!r} is nothing that can be spent", "a positive number, or None"
                )

    def spent(self, propagations: int, seconds: float) -> Status | None:
        """Which budget is used up, other than the iterations, if one is."""
        if self.propagations is not None and propagations >= self.propagations:
            return Status.MAX_PROPAGATIONS
        if self.seconds is not None and seconds >= self.seconds:
            return Status.MAX_SECONDS
        return None
