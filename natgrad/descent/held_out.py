"""A held-out problem: what θ does where the run does not look."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
from jax import Array
from jaxtyping import PyTree

from ..core.settings import Public, check_instance, check_integer
from ..core.sharding import take_local
from ..problem import Problem


@dataclass(frozen=True)
class HeldOut(Public):
    """Another problem for the same θ, evaluated `every` so many iterations and at the end.

    Its loss is `history["held_out"]`, judges what `result.best` is, and is compared with the loss
    in `result.warning`. Nothing else of a run looks at it, and its evaluations are not counted.

    ```python
    others = pinn.at({"interior": box.uniform(key, 1000)}).problem
    ng.minimize(pinn.problem, net, method, held_out=others)
    ng.minimize(pinn.problem, net, method, held_out=ng.descent.HeldOut(others, every=50))
    ```
    """

    problem: Problem
    every: int = 10

    def __post_init__(self) -> None:
        check_instance("held_out", self.problem, Problem, "pinn.at(points).problem")
        check_integer(self.every, "every", 1, 10)

    def measure(self, theta: PyTree) -> float:
        """Its loss at θ."""
        measure = _measure if self.problem.model.on_host else _measure_compiled
        return float(measure(self.problem, take_local(theta)))


def as_held_out(given: Any) -> HeldOut:
    """As asked of `minimize`."""
    return given if isinstance(given, HeldOut) else HeldOut(given)


def _measure(problem: Problem, theta: PyTree) -> Array:
    return problem.value(theta, problem.model(theta))


_measure_compiled = eqx.filter_jit(_measure)
