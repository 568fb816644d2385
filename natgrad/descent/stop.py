"""When a run ends: budgets and goals."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..core.outcomes import Status
from ..core.settings import Public
from ..errors import InputError
from ..parameters import flatten
from .run import Run

DEFAULT_ITERATIONS = 100


@dataclass(frozen=True)
class Stop(Public):
    """When to end a run: what it may spend, and what it is to reach. None for no limit.

    ```python
    ng.Stop(iterations=200)
    ng.Stop(propagations=400, seconds=3600.0, loss=1e-6)
    ```

    Without any budget a run has 100 iterations. No step is tried once the propagations or seconds
    are spent; one that was begun is finished, so that a budget ends a run and does not change its
    path. A run exceeds its budget by the cost of one gradient or step at most; zero means no step.
    An iteration in one compiled program looks at the clock before it begins.

    Args:
        iterations: Iterations that a run may spend.
        propagations: Forward, linearised and adjoint propagations, together.
        seconds: Wall-clock seconds.
        gradient: The run ends when ‖∂_θ f‖ ≤ `gradient` · ‖∂_θ f(θ₀)‖.
        step: The run ends when a step is no longer than `step` · max(1, ‖θ‖).
        loss: The run ends when the loss is no larger.
    """

    iterations: int | None = None
    propagations: int | None = None
    seconds: float | None = None
    gradient: float = 1e-6
    step: float = 0.0
    loss: float | None = None

    def __post_init__(self) -> None:
        if self.iterations is None and self.propagations is None and self.seconds is None:
            object.__setattr__(self, "iterations", DEFAULT_ITERATIONS)
        number = lambda x: isinstance(x, (int, float, np.number)) and not isinstance(x, bool)
        amount = lambda x: number(x) and math.isfinite(x) and x >= 0
        n = self.iterations
        if n is not None and not (amount(n) and isinstance(n, (int, np.integer)) and n >= 1):
            raise InputError("iterations", f"{n!r} is not a positive integer", "100")
        for name in ("propagations", "seconds"):
            value = getattr(self, name)
            if value is not None and not amount(value):
                advice = "a number from zero on, or None for no limit"
                raise InputError(name, f"{value!r} is nothing that can be spent", advice)
        for name in ("gradient", "step"):
            if not amount(getattr(self, name)):
                raise InputError(name, f"{getattr(self, name)!r} is no tolerance", "1e-6")
        if self.loss is not None and not (number(self.loss) and not math.isnan(self.loss)):
            raise InputError("loss", f"{self.loss!r} is no loss to reach", "1e-6, or None")

    def find_spent(self, run: Run) -> Status | None:
        """Which budget is used up, if one is."""
        if self.propagations is not None and sum(run.counts) >= self.propagations:
            return Status.MAX_PROPAGATIONS
        if self.seconds is not None and run.measure_seconds() >= self.seconds:
            return Status.MAX_SECONDS
        if self.iterations is not None and run.completed >= self.iterations:
            return Status.MAX_ITERATIONS
        return None

    def find_goal(self, loss: float, step_norm: float, theta_norm: float) -> Status | None:
        """What an accepted step has reached, if anything."""
        if self.loss is not None and loss <= self.loss:
            return Status.LOSS_REACHED
        if step_norm <= self.step * max(1.0, theta_norm):
            return Status.SMALL_STEP
        return None

    def asks_for_more(self, run: Run, ended: Status) -> bool:
        """Whether the goal that a saved run had reached no longer counts, so that it goes on."""
        row, flat = run.rows[-1], flatten(run.theta)[0]
        if ended is Status.CONVERGED:
            assert run.state is not None
            return not row["gradient_norm"] <= self.gradient * float(run.state.first_norm)
        if ended in (Status.LOSS_REACHED, Status.SMALL_STEP):
            length = float(jnp.linalg.norm(flat))
            return self.find_goal(run.loss, row["step_norm"], length) is None
        return False
