"""Damping: how much of λD is added to G, and how λ changes with the fate of the steps."""

import abc
from typing import ClassVar, Protocol

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array

from ..core.settings import Number, Public, check_instance, setting
from ..parameters import ParameterOperator, as_parameter_operator


class Fate(Protocol):
    """What became of a step, as far as λ follows it."""

    @property
    def accepted(self) -> Array: ...

    @property
    def halvings(self) -> Array: ...

    @property
    def ratio(self) -> Array: ...

    @property
    def expected(self) -> Array: ...


class Damping(Public, eqx.Module):
    """Solves use (G + λD) η = −∂_θ f. A new damping has `strength`, and the constants it changes.

    | constant | what it says |
    |---|---|
    | `damps` | λ > 0, so that G + λD is positive definite whatever G is |
    | `adapts` | a rejected step is worth another solve, with the λ that `update` gives |
    | `trace_samples` | how many products Zη a matrix-free direction spends to estimate trace G |
    | `operator` | D on the flattened parameters; None for the identity |
    | `initial` | what is remembered before the first step; λ itself where it adapts |
    """

    EXAMPLE: ClassVar[str] = "ng.LevenbergMarquardt()"
    damps: ClassVar[bool] = True
    adapts: ClassVar[bool] = False
    trace_samples: ClassVar[int] = 8
    operator: ClassVar[ParameterOperator | None] = None
    initial: ClassVar[Number] = 0.0

    @abc.abstractmethod
    def strength(self, state: Array, trace: Array, p: int) -> Array:
        """λ for this iteration, given the trace of the p × p matrix G."""

    def update(self, strength: Array, outcome: Fate) -> Array:
        """The state after a step with this outcome, taken with λ = `strength`, where it adapts."""
        return strength


class Undamped(Damping):
    """λ = 0: the natural gradient itself, of minimum norm where G is singular."""

    damps: ClassVar[bool] = False
    trace_samples: ClassVar[int] = 0

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.zeros_like(trace)


class RelativeDamping(Damping):
    """λ = r · trace(G)/p, so r is a fraction of G's mean eigenvalue. Written `damping=r`."""

    fraction: Number = setting("damping")

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.asarray(self.fraction, trace.dtype) * trace / p


class AbsoluteDamping(Damping):
    """A fixed λ, in the units of G.

    Args:
        value: λ, not negative.
    """

    value: Number = setting("damping")
    trace_samples: ClassVar[int] = 0

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.asarray(self.value, trace.dtype)


class ParameterDamping(Damping):
    """λ D with a symmetric positive definite D on θ-space: a prior, a smoothness, a scaling.

    `operator` is a matrix, its diagonal as a vector, or a lineax operator on θ (for a field θ the
    Gram operator of a metric: `ng.Sobolev(grid, 1).at(theta).gram`).

    ```python
    ng.ParameterDamping(jnp.array([1.0, 10.0]), strength=1e-3)
    ```

    Cost: with a matrix-free solver one product with D per iteration. With a direct solver a matrix
    is factorised once, O(p³), and an operator made dense and factorised in every direction; then
    one triangular solve with Y, O(kp²).

    Args:
        operator: D: a matrix, its diagonal, or a lineax operator.
        strength: λ.
    """

    operator: ParameterOperator  # pyright: ignore[reportIncompatibleVariableOverride]
    value: Number
    trace_samples: ClassVar[int] = 0

    def __init__(self, operator: lx.AbstractLinearOperator | Array, strength: float = 1.0):
        self.operator = as_parameter_operator(operator)
        self.value = AbsoluteDamping(strength).value

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.asarray(self.value, trace.dtype)


class LevenbergMarquardt(Damping):
    """λ that follows the fate of the steps: down after an easy one, up after a hard one.

    | step | λ |
    |---|---|
    | accepted at its first length, 0.9 of the decrease foreseen or more | × `decrease`² |
    | accepted at its first length | × `decrease` |
    | accepted after one halving | unchanged |
    | accepted after more halvings, or rejected | × `increase` |

    With `Backtracking()` this is Levenberg–Marquardt with a line search, with `FixedStep(1.0)` the
    classical accept-or-reject rule: a rejected step is solved again with the larger λ and the same
    factorised Y. λ is absolute and never falls below `floor` · trace(G), nor below what the solver
    can tell from no damping, nor to where the rounding of the gradient would be a tenth of η.

    ```python
    ng.NaturalGradient(metric, damping=ng.LevenbergMarquardt(), step=ng.Backtracking())
    ```

    Args:
        initial: The first λ.
        decrease: Factor on λ after an easy step, taken twice after one that was foreseen.
        increase: Factor on λ after a hard or rejected step.
        floor: Smallest λ, as a share of trace(G).
    """

    initial: Number = setting("initial", 1e-3, positive=True)
    decrease: Number = setting("decrease", 1.0 / 3.0, positive=True, below=1.0)
    increase: Number = setting("increase", 4.0, above=1.0)
    floor: Number = setting("floor", 0.0)
    adapts: ClassVar[bool] = True
    trace_samples: ClassVar[int] = 1  # enough for a floor

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.maximum(state, jnp.asarray(self.floor) * trace).astype(trace.dtype)

    def update(self, strength: Array, outcome: Fate) -> Array:
        easy = outcome.accepted & (outcome.halvings == 0)
        hard = ~outcome.accepted | (outcome.halvings > 1)
        # the quadratic model of a whole step has half the linear decrease
        foreseen = jnp.where(jnp.isnan(outcome.expected), 2 * outcome.ratio, outcome.ratio)
        down = jnp.asarray(self.decrease) ** jnp.where(foreseen > 0.9, 2, 1)
        return strength * jnp.where(easy, down, jnp.where(hard, self.increase, 1.0))


def as_damping(damping: Damping | Number) -> Damping:
    """A number r is relative damping; a strength of 0 is none, which `Auto` should know."""
    if isinstance(damping, type):
        check_instance("damping", damping, Damping)
    if not isinstance(damping, Damping):
        damping = RelativeDamping(damping)
    value = getattr(damping, "fraction", getattr(damping, "value", None))
    nothing = isinstance(value, np.ndarray) and value == 0
    return Undamped() if nothing else damping
