"""Mini-batches: natural gradients of a random selection of the state."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from .core.operators import structure_of
from .core.selection import Functions, Points, Selection, Sublattice
from .core.settings import Public, check_integer
from .errors import InputError, name_kind
from .metrics.base import Metric
from .models.base import Evaluation
from .parameters import flatten
from .problem import Problem, ScaledLoss

Kind = Literal["points", "functions", "sublattice"]


class Mappable(Protocol):
    """A method, as far as a batch looks at it."""

    def map_metric(self, function: Callable[[Metric], Metric]) -> Any: ...


class Batch(Public, eqx.Module):
    """A random part of the problem in every iteration."""

    @abc.abstractmethod
    def sampler(
        self, problem: Problem, method: Mappable, theta: PyTree, known: Evaluation | None
    ) -> Callable[[int, PyTree, PyTree], tuple[Problem, Any, PyTree]]:
        """(iteration, θ, memory) ↦ the problem and the method there, and the next memory.

        Checks the input and a first draw. The memory is a pytree of arrays, None before the first
        draw and of the same shapes after each; it is part of a checkpoint.
        """


class MiniBatch(Batch):
    """f(Sρ) in place of f(ρ), with a random selection S in every iteration.

    With A_S the metric on the selection and k/k′ the share of the state that it stands for,

        η = −G_S⁻¹ ∂_θ f_S,    f_S(θ) = (k/k′) f(Sρ(θ)),    G_S = Zᵀ Sᵀ A_S S Z.

    - `of="points"` draws `size` entries of a state that is one array. A_S is (k/k′) w I for L²,
      (k/k′) diag(w/ρ) for Fisher–Rao, and (k/k′) S A Sᵀ for a metric with a fixed matrix A.
    - `of="functions"` draws `size` entries along the leading axis (shots, sources): (k/k′) A each.
    - `of="sublattice"` takes every `size`-th point along each axis, from a random offset: A_S is
      the metric of the coarser grid, for every metric, W₂ too.

    The selection of iteration i depends on `seed` and i alone. f_S and, for L² and Fisher–Rao or
    for functions, G_S are unbiased; G_S⁻¹ is not, so take a `size` well above p, or damp.

    `Pointwise` and `Sourcewise` evaluate only what is selected; other models are evaluated as a
    whole. `select(rows)`, where it is given, returns the `Problem` on the entries `rows` of the
    leading axis (or of the flattened state) instead, with a loss that is the plain sum over them:
    for a loss of your own, an objective, or a model outside JAX. Keep its data in leaves of a
    module, and its functions the same, so that nothing is compiled again.

    ```python
    ng.minimize(problem, theta, ng.NaturalGradient(ng.L2(grid)), batch=ng.MiniBatch(256))
    ng.MiniBatch(8, of="functions", seed=1)
    ```

    Reference: section 3.5.2 of the paper, whose η lacks the minus sign.

    Args:
        size: Number of entries, or the stride of a sublattice.
        of: What is drawn: "points", "functions" or "sublattice".
        seed: Seed of the selections.
        select: The `Problem` on given rows, in place of the general rule.
    """

    size: int = eqx.field(static=True)
    of: Kind = eqx.field(static=True, default="points")
    seed: int = eqx.field(static=True, default=0)
    select: Callable[[Array], Problem] | None = None

    def __check_init__(self):
        check_integer(self.size, "size", 1)
        check_integer(self.seed, "seed", 0)
        if self.of not in get_args(Kind):
            raise InputError("of", f"{self.of!r} is unknown", "one of " + str(get_args(Kind)))
        if self.select is not None and not callable(self.select):
            raise InputError("select", "is not callable", "a function of rows")

    def sampler(
        self, problem: Problem, method: Mappable, theta: PyTree, known: Evaluation | None
    ) -> "Sampler":
        flat, unravel = flatten(theta)
        if known is None:
            state = jax.eval_shape(lambda v: problem.model(unravel(v)), flat)
        else:
            state = structure_of(known.rho)
        leaves = jax.tree.leaves(state)
        if self.of != "functions" and not hasattr(state, "shape"):
            raise InputError(
                "batch",
                f"a state that is {name_kind(state)} has no points in common",
                "of='functions', for entries along the leading axis of every array; for collocation"
                " points Resampled(draw)",
            )
        lengths = {tuple(leaf.shape[:1]) for leaf in leaves}
        if self.of == "functions" and (len(lengths) != 1 or lengths == {()}):
            raise InputError(
                "batch",
                f"the arrays of the state have leading axes {sorted(lengths)}",
                "a state with one entry for each function along the first axis",
            )
        sampler = Sampler(self, problem, method, tuple(leaves[0].shape))
        sampler.check()
        return sampler


@dataclass(frozen=True)
class Sampler:
    """The problem and the method on the selection of an iteration, whatever θ is.

    `shape` is that of the state.
    """

    batch: MiniBatch
    problem: Problem
    method: Mappable
    shape: tuple[int, ...]

    def __call__(
        self, iteration: int, theta: PyTree = None, memory: PyTree = None
    ) -> tuple[Problem, Any, PyTree]:
        selection = self.selection(iteration)
        if self.batch.select is None:
            problem = _restrict(self.problem, selection)
            method = self.method.map_metric(lambda metric: _restrict(metric, selection))
            return problem, method, None
        method = self.method.map_metric(lambda metric: _restrict(metric, selection))
        problem = self.batch.select(selection.rows)
        if not isinstance(problem, Problem):
            raise InputError("select", f"returns {name_kind(problem)}", "a Problem")
        if problem.objective is not None:
            return problem, method, None
        loss = ScaledLoss(problem.loss, selection.scale)
        return Problem(problem.model, loss, regulariser=problem.regulariser), method, None

    def selection(self, iteration: int) -> Selection:
        """S of this iteration, from (seed, iteration) alone."""
        size, of, shape = self.batch.size, self.batch.of, self.shape
        random = np.random.default_rng([self.batch.seed, iteration])
        if of == "sublattice":
            axes = [np.arange(random.integers(size), n, size) for n in shape]
            rows = np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), shape)
            return Sublattice(jnp.asarray(rows), shape, size)
        count = shape[0] if of == "functions" else int(np.prod(shape))
        rows = jnp.asarray(np.sort(random.choice(count, size, replace=False)))
        return Functions(rows, count) if of == "functions" else Points(rows, shape)

    def check(self) -> None:
        """Raise `InputError` if such a selection cannot be made; the rest shows in a first draw."""
        size, of, shape = self.batch.size, self.batch.of, self.shape
        count = shape[0] if of == "functions" else int(np.prod(shape))
        if of == "sublattice":
            if any(n % size or n < 2 * size for n in shape):
                advice = "a stride that divides every side at least twice"
                raise InputError("size", f"a stride of {size} does not fit {shape}", advice)
        elif size > count:
            raise InputError("size", f"{size} {of} of {count} cannot be drawn", f"at most {count}")
        self(0)


@eqx.filter_jit
def _restrict(whole: Any, selection: Selection) -> Any:
    """A problem or a metric on the selection, in one program for every iteration."""
    return whole.restricted(selection)
