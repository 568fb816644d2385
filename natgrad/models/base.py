"""What a model is: θ ↦ ρ(θ), its Jacobian Z as two products, and the checks of a state."""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.compiled import LITTLE_WORK, each, is_traced, jit_by_work
from ..core.operators import structure_of
from ..core.outcomes import Counts
from ..core.selection import Selection
from ..core.settings import Public
from ..errors import InputError, name_kind

Unravel = Callable[[Array], PyTree]  # from a flat vector to θ
Loss = Callable[[PyTree], Array]


class Evaluation(NamedTuple):
    """ρ at one θ, and what the model keeps of the way there for the products at the same θ.

    A solved field or a factorisation is worth keeping; None where nothing is.
    """

    rho: PyTree
    kept: Any = None


class Model(Public, eqx.Module):
    """θ ↦ ρ(θ). θ is handed over as one flat vector and the function that gives it back its shape.

    `known` is an `Evaluation` at the same θ, where the line search has made one.

    | constant | what it says |
    |---|---|
    | `on_host` | the model is Python code outside JAX: its runs are driven from Python |
    | `any_mesh` | the state may be in unequal parts over the devices of a mesh |
    | `solves` | every product is a solve with a PDE of the model |
    | `rechecks` | `check` is asked at every accepted θ, not at the first alone |
    | `starts_from_state` | of an evaluation ρ alone is enough to have the products |
    | `overhead` | the cost of an iteration besides its products, relative to a pair Zη, Zᵀξ |

    A model that solves is differentiated by its products alone, a known evaluation saves it the
    forward solve, and `Auto` forms no large Z of it.
    """

    on_host: ClassVar[bool] = False
    any_mesh: ClassVar[bool] = False
    solves: ClassVar[bool] = False
    rechecks: ClassVar[bool] = False
    starts_from_state: ClassVar[bool] = False
    overhead: ClassVar[float] = 1.0  # the trial and the gradient

    @property
    def approximates(self) -> str:
        """What to check instead, and why, where Zη is only near the derivative; else nothing."""
        return ""

    @abc.abstractmethod
    def __call__(self, theta: PyTree) -> PyTree:
        """ρ(θ)."""

    @abc.abstractmethod
    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        """ρ, the columns ζᵢ of Z stacked along a new leading axis, and the products spent."""

    @abc.abstractmethod
    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> "Products":
        """ρ, Zη and Zᵀξ, without Z."""

    def second_order(
        self, unravel: Unravel, flat: Array, known: Evaluation | None, loss: Loss
    ) -> "SecondOrder":
        """f(ρ(θ)), its gradient, and products with its Hessian."""
        if self.on_host or self.solves:
            raise InputError(
                "method",
                f"Newton needs second derivatives, which {name_kind(self)} does not have",
                "NaturalGradient(L2(grid)), which on a least-squares loss is Gauss–Newton",
            )
        return differentiate_twice(self, unravel, flat, loss)

    def restricted(self, selection: Selection) -> "Model":
        """θ ↦ Sρ(θ), for a mini-batch."""
        raise InputError(
            "batch",
            f"{name_kind(self)} cannot be evaluated on a selection",
            "MiniBatch(..., select=function), where function(rows) returns the Problem there",
        )

    def distributed(self, mesh: Mesh) -> "Model":
        """This model with its state in parts over the devices of a mesh."""
        if self.on_host:
            raise InputError(
                "mesh",
                f"{name_kind(self)} is code outside JAX, which has no devices to spread over",
                "a model written in JAX, or no mesh",
            )
        return self

    def evaluate(self, theta: PyTree) -> Evaluation:
        """ρ(θ) with what is worth keeping."""
        return Evaluation(self(theta))

    def check(self, theta: PyTree, known: Evaluation) -> None:
        """Raise `InputError` if the model contradicts itself at θ."""


def evaluate(model: Model, theta: PyTree) -> Evaluation:
    """The evaluation of the model at θ; compiled, unless it is outside JAX."""
    if model.on_host or is_traced(theta):
        return model.evaluate(theta)
    if model.solves:
        return eqx.filter_jit(model.evaluate)(theta)
    return _choose_program(model, theta)(model, theta)


_choose_program = jit_by_work(evaluate, 32 * LITTLE_WORK)  # it is for checks, and hardly repeated


class Products(eqx.Module):
    """ρ(θ), η ↦ Zη and ξ ↦ Zᵀξ at one θ; η and Zᵀξ are flat vectors."""

    rho: eqx.AbstractVar[PyTree]
    evaluations: eqx.AbstractVar[int]  # forward solves that it took to make these

    @abc.abstractmethod
    def push(self, eta: Array) -> PyTree:
        """Zη, with the structure of the state."""

    @abc.abstractmethod
    def pull(self, xi: PyTree) -> Array:
        """Zᵀξ for a covector ξ with the structure of the state."""


class SecondOrder(eqx.Module):
    """f, ∂_θ f and η ↦ ∇²_θ f η at one θ.

    A product costs one linearised and one adjoint propagation; `evaluations` are the forward ones
    that it took to get here, besides the adjoint one of the gradient.
    """

    rho: PyTree
    value: Array
    gradient: Array
    evaluations: int = eqx.field(static=True)
    _product: Callable[[Array], Array]

    def product(self, eta: Array) -> Array:
        """∇²_θ f η."""
        return self._product(eta.astype(self.gradient.dtype))


def form_columns(
    products: Products, flat: Array, map_over: Callable[[Callable, Array], PyTree] = each
) -> tuple[PyTree, Counts]:
    """The columns of Z by p products Zη or k products Zᵀξ, whichever is less, and their number.

    `map_over(function, vectors)` takes the products: by default one after the other.
    """
    p, k = flat.size, sum(leaf.size for leaf in jax.tree.leaves(products.rho))
    if p <= k:
        columns = map_over(products.push, jnp.eye(p, dtype=flat.dtype))
        return columns, Counts(products.evaluations, p, 0)
    return form_by_rows(products.pull, products.rho, map_over), Counts(products.evaluations, 0, k)


def form_by_rows(
    pull: Callable[[PyTree], Array], rho: PyTree, map_over: Callable[[Callable, Array], PyTree]
) -> PyTree:
    """The columns of Z from its k rows Zᵀeᵢ."""
    vector, unravel_state = ravel_pytree(rho)
    row = lambda e: pull(unravel_state(e))
    rows = map_over(row, jnp.eye(vector.size, dtype=vector.dtype))
    return jax.vmap(unravel_state)(rows.T.astype(vector.dtype))


class LinearisedProducts(Products):
    """One of the two maps is stored, with what it needs of the forward evaluation as leaves.

    So the products cross the boundary of a compiled program, and the stored arrays exist once. The
    other map is its transpose, taken while a program is traced.
    """

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    _stored: Callable[[Any], Any]
    _flat: jax.ShapeDtypeStruct = eqx.field(static=True)
    _reverse: bool = eqx.field(static=True)

    def push(self, eta: Array) -> PyTree:
        eta = eta.astype(self._flat.dtype)
        if not self._reverse:
            return self._stored(eta)
        return jax.linear_transpose(self._stored, structure_of(self.rho))(eta)[0]

    def pull(self, xi: PyTree) -> Array:
        xi = jax.tree.map(lambda x, like: x.astype(like.dtype), xi, self.rho)
        if self._reverse:
            return self._stored(xi)
        return jax.linear_transpose(self._stored, self._flat)(xi)[0]


def differentiate(
    state: Callable[[Array], PyTree], flat: Array, reverse: bool = False
) -> LinearisedProducts:
    """The products of a function in JAX, from one evaluation in forward or in reverse mode.

    `reverse` is for functions that have a rule for the transpose only (`jax.custom_vjp`). Both
    cost one evaluation now, then about two for each product.

    ```python
    products = differentiate(lambda v: jnp.tanh(W @ v), jnp.ones(3))
    products.push(jnp.ones(3)), products.pull(jnp.ones(5))
    ```
    """
    structure = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    if reverse:
        rho, pull = jax.vjp(state, flat)
        stored = eqx.filter_closure_convert(lambda xi: pull(xi)[0], structure_of(rho))
    else:
        rho, push = jax.linearize(state, flat)
        stored = eqx.filter_closure_convert(push, structure)
    return LinearisedProducts(rho, 1, stored, structure, reverse)


def differentiate_twice(
    model: Callable[[PyTree], PyTree], unravel: Unravel, flat: Array, loss: Loss
) -> SecondOrder:
    """For models written in JAX: the linearised gradient, in forward over reverse mode."""

    def value_and_state(v: Array) -> tuple[Array, PyTree]:
        rho = model(unravel(v))
        return loss(rho), rho

    gradient = lambda v: jax.value_and_grad(value_and_state, has_aux=True)(v)
    ((value, rho), slope), tangent = jax.linearize(gradient, flat)
    product = eqx.filter_closure_convert(
        lambda eta: tangent(eta)[1], jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    )
    return SecondOrder(rho, value, slope, 1, product)


def check_model(model: Callable[[PyTree], PyTree], theta: PyTree) -> PyTree:
    """The shapes of the state at θ; `InputError` unless they are real, floating and not empty."""
    try:
        structure = jax.eval_shape(model, theta)
    except jax.errors.ConcretizationTypeError as error:
        raise InputError(
            "model",
            "its shape or control flow depends on the values of theta, so it cannot be traced",
            "a state of one fixed shape, with jnp.where or lax.cond in place of Python's if",
        ) from error
    except jax.errors.TracerArrayConversionError as error:
        raise InputError(
            "model",
            "calls NumPy, or other code outside JAX, so it cannot be traced",
            "jax.numpy in its place, or ng.ExternalModel(forward, jvp, vjp)",
        ) from error
    return check_state(structure)


def check_state(structure: PyTree) -> PyTree:
    """The shapes of a state; `InputError` unless they are real, floating and not empty."""
    leaves = jax.tree.leaves(structure)
    if not leaves or any(math.prod(leaf.shape) == 0 for leaf in leaves):
        raise InputError("model", "the state has no entries", "a state with at least one value")
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise InputError(
                "model",
                f"the state is complex ({leaf.dtype}), and metrics here are real",
                "a state of real and imaginary parts, jnp.stack([z.real, z.imag])",
            )
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(
                "model",
                f"the state has dtype {leaf.dtype}, which has no derivative",
                "a floating-point state",
            )
        if jnp.finfo(leaf.dtype).bits < 32:
            raise InputError(
                "model",
                f"the state is in half precision ({leaf.dtype}), too little for a solve",
                "state.astype(jnp.float32), or better float64",
            )
    return structure
