"""Damping: how much of λ D is added to G, and how λ changes with the fate of the steps."""

import abc

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array

from .parameter_operators import ParameterOperator, parameter_operator
from .settings import Number, setting
from .steps import Outcome


class Damping(eqx.Module):
    """Solves use (G + λD) η = −∂_θ f, with D = I unless `parameter_operator` says otherwise."""

    @abc.abstractmethod
    def strength(self, state: Array, trace: Array, p: int) -> Array:
        """λ for this iteration, given the trace of the p × p matrix G."""

    def initial_state(self) -> Number:
        """What the damping remembers from one step to the next; λ itself where it adapts."""
        return 0.0

    def update(self, strength: Array, outcome: Outcome) -> Array:
        """The state after a step with this outcome, taken with the damping λ = `strength`."""
        return strength

    @property
    def damps(self) -> bool:
        """Whether λ > 0, so that G + λD is positive definite whatever G is."""
        return True

    @property
    def adapts(self) -> bool:
        """Whether a rejected step is worth another solve, with the λ that `update` gives."""
        return False

    def parameter_operator(self) -> ParameterOperator | None:
        """D on the flattened parameters; None for the identity."""
        return None

    @property
    def trace_samples(self) -> int:
        """How many products Zη a matrix-free direction spends on its estimate of trace G."""
        return 8


class Undamped(Damping):
    """λ = 0: the natural gradient itself, of minimum norm where G is singular."""

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.zeros_like(trace)

    @property
    def damps(self) -> bool:
        return False

    @property
    def trace_samples(self) -> int:
        return 0


class RelativeDamping(Damping):
    """λ = r · trace(G)/p, so r is a fraction of G's mean eigenvalue. Written `damping=r`."""

    fraction: Number = setting("damping")

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.asarray(self.fraction, trace.dtype) * trace / p


class AbsoluteDamping(Damping):
    """A fixed λ, in the units of G."""

    value: Number = setting("damping")

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.asarray(self.value, trace.dtype)

    @property
    def trace_samples(self) -> int:
        return 0


class ParameterDamping(Damping):
    """λ D with a symmetric positive definite D on θ-space: a prior, a smoothness, a scaling.

    `operator` is a matrix, its diagonal as a vector, or a lineax operator on θ (for a field θ the
    Gram operator of a metric: `ng.Sobolev(grid, 1).gram(theta)`).

    ```python
    ng.ParameterDamping(jnp.array([1.0, 10.0]), strength=1e-3)
    ```

    Cost: with a matrix-free solver one product with D per iteration. With a direct solver a matrix
    is factorised once, O(p³), and an operator made dense and factorised in every direction; then
    one triangular solve with Y, O(kp²).
    """

    operator: ParameterOperator
    value: Number

    def __init__(self, operator: lx.AbstractLinearOperator | Array, strength: float = 1.0):
        self.operator = parameter_operator(operator)
        self.value = AbsoluteDamping(strength).value

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.asarray(self.value, trace.dtype)

    def parameter_operator(self) -> ParameterOperator:
        return self.operator

    @property
    def trace_samples(self) -> int:
        return 0


class LevenbergMarquardt(Damping):
    """λ that follows the fate of the steps: down after an easy one, up after a hard one.

    | step | λ |
    |---|---|
    | accepted at its first length | × `decrease` |
    | accepted after one halving | unchanged |
    | accepted after more halvings, or rejected | × `increase` |

    With `Backtracking()` this is Levenberg–Marquardt with a line search, with `FixedStep(1.0)` the
    classical accept-or-reject rule: a rejected step is solved again with the larger λ and the same
    factorised Y. λ is absolute and never falls below `floor` · trace(G).

    ```python
    ng.minimize(problem, theta, metric=m, damping=ng.LevenbergMarquardt(), step=ng.Backtracking())
    ```
    """

    initial: Number = setting("initial", 1e-3, positive=True)
    decrease: Number = setting("decrease", 1.0 / 3.0, positive=True, below=1.0)
    increase: Number = setting("increase", 4.0, above=1.0)
    floor: Number = setting("floor", 1e-15)

    def initial_state(self) -> Number:
        return self.initial

    def strength(self, state: Array, trace: Array, p: int) -> Array:
        return jnp.maximum(state, jnp.asarray(self.floor) * trace).astype(trace.dtype)

    def update(self, strength: Array, outcome: Outcome) -> Array:
        easy = outcome.accepted & (outcome.halvings == 0)
        hard = ~outcome.accepted | (outcome.halvings > 1)
        factor = jnp.where(easy, self.decrease, jnp.where(hard, self.increase, 1.0))
        return strength * factor

    @property
    def trace_samples(self) -> int:
        return 1  # enough for a floor

    @property
    def adapts(self) -> bool:
        return True


def as_damping(damping: Damping | Number) -> Damping:
    """A number r is relative damping; a strength of 0 is none, which `Auto` should know."""
    if not isinstance(damping, Damping):
        damping = RelativeDamping(damping)
    value = getattr(damping, "fraction", getattr(damping, "value", None))
    nothing = isinstance(value, np.ndarray) and value == 0
    return Undamped() if nothing else damping
