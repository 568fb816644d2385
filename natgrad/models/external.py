"""Models outside JAX: any code that gives ρ(θ), Zη and Zᵀξ, NumPy in and NumPy out.

Runs are driven from Python. What the outside code returns is checked, and an exception of it names
the call that raised it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.compiled import is_traced
from ..core.outcomes import Counts
from ..errors import InputError, name_kind
from .base import Evaluation, Model, Products, Unravel, form_columns

# Quoted, because SciPy loads its parts when they are first named.
Matrix: TypeAlias = (
    "np.ndarray | scipy.sparse.sparray | scipy.sparse.spmatrix | scipy.sparse.linalg.LinearOperator"
)


class HostModel(Model):
    """A model outside JAX, driven from Python: `evaluate` and `products` are its own."""

    solves: ClassVar[bool] = True

    on_host: ClassVar[bool] = True

    def __call__(self, theta: PyTree) -> PyTree:
        return self.evaluate(theta).rho

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        products = self.products(unravel, flat, known)
        columns, counts = form_columns(products, flat)
        return products.rho, columns, counts


class HostProducts(Products):
    """Zη and Zᵀξ by functions of Python, for a loop on the host."""

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    _push: Callable[[Array], PyTree] = eqx.field(static=True)
    _pull: Callable[[PyTree], Array] = eqx.field(static=True)

    def push(self, eta: Array) -> PyTree:
        return self._push(eta)

    def pull(self, xi: PyTree) -> Array:
        return self._pull(xi)


class ExternalModel(HostModel):
    """Code outside JAX (PyTorch, a finite element or wave code, NumPy) as a model.

    θ, η and ξ are NumPy arrays, or pytrees of them if θ or the state is one; so are the results,
    which are copied, so that the outside code may use its arrays again. `linearize` is called once
    for each iteration, so that a factorisation or a stored wave field serves all products there.
    Where it finds the state on its way, give its object the attribute `rho` and pass
    `forward=None`: then nothing is computed twice, and it is called for every θ that is tried, so
    it must return a new object each time. In the counts it is a forward propagation.

    An exception of the outside code passes through, with a note that says which function raised
    it; `error.natgrad_result` is the run until then. `ng.checks.check_adjoint` finds a `vjp` that
    is not the transpose of `jvp`.

    ```python
    model = ng.ExternalModel(lambda t: A @ t, lambda t, v: A @ v, lambda t, w: A.T @ w)
    ```

    Cost: that of the calls, which are driven from Python. A dense solver takes min(p, k) products.

    Args:
        forward: `forward(theta)` returns the state ρ(θ).
        jvp: `jvp(theta, eta)` returns Zη, like the state.
        vjp: `vjp(theta, xi)` returns Zᵀξ, like θ.
        linearize: `linearize(theta)` returns any object; the products get it in place of θ.
    """

    starts_from_state: ClassVar[bool] = True

    forward: Callable[[PyTree], PyTree] | None = eqx.field(static=True)
    jvp: Callable[[Any, PyTree], PyTree] = eqx.field(static=True)
    vjp: Callable[[Any, PyTree], PyTree] = eqx.field(static=True)
    linearize: Callable[[PyTree], Any] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.forward is None and self.linearize is None:
            raise InputError("forward", "is None and so is linearize", "one that finds the state")
        for name in ("forward", "jvp", "vjp", "linearize"):
            function = getattr(self, name)
            if function is not None or name in ("jvp", "vjp"):
                check_function(name, function)

    @classmethod
    def from_jacobian(
        cls, forward: Callable[[PyTree], PyTree], jacobian: Callable[[PyTree], Matrix]
    ) -> "ExternalModel":
        """A model whose products are those of a matrix: `jacobian(theta)` returns Z.

        Z is k × p on flattened states and parameters: an array, a sparse matrix, or a
        `scipy.sparse.linalg.LinearOperator` with `rmatvec`. It is asked for where products are
        needed, once for each θ.

        ```python
        ng.ExternalModel.from_jacobian(lambda t: A @ t, lambda t: A)
        ```
        """
        check_function("forward", forward)
        check_function("jacobian", jacobian)
        call = lambda theta: call_named("forward", forward, to_numpy(theta))
        at = lambda theta: _GivenJacobian(call(theta), theta, jacobian)
        return cls(None, _GivenJacobian.push, _GivenJacobian.pull, linearize=at)

    def evaluate(self, theta: PyTree) -> Evaluation:
        if self.forward is not None:
            state = call_named("forward", self.forward, to_numpy(theta))
            return Evaluation(state_from_numpy("forward", state))
        shared = self._linearize(theta)
        if not hasattr(shared, "rho"):
            what = f"returns {name_kind(shared)} without the attribute rho"
            advice = "the state as its attribute rho, or a function forward"
            raise InputError("linearize", what, advice)
        return Evaluation(state_from_numpy("linearize", shared.rho), shared)

    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> HostProducts:
        theta, evaluations = unravel(flat), 0
        if known is None:
            known, evaluations = self.evaluate(theta), 1
        rho, first = known
        if first is None and self.linearize is not None:
            first, evaluations = self._linearize(theta), evaluations + 1
        parameters = eqx.filter(theta, eqx.is_inexact_array)
        # a fresh copy of θ for each call, because the outside code may write into it
        place = lambda: to_numpy(theta) if first is None else first

        def push(eta: Array) -> PyTree:
            image = call_named("jvp", self.jvp, place(), to_numpy(unravel(eta)))
            return from_numpy("jvp", image, rho)

        def pull(xi: PyTree) -> Array:
            image = call_named("vjp", self.vjp, place(), to_numpy(xi))
            return ravel_pytree(from_numpy("vjp", image, parameters))[0].astype(flat.dtype)

        return HostProducts(rho, evaluations, push, pull)

    def _linearize(self, theta: PyTree) -> Any:
        assert self.linearize is not None
        return call_named("linearize", self.linearize, to_numpy(theta))


@dataclass
class _GivenJacobian:
    """ρ at one θ, and a copy of the matrix Z there once a product asks for it."""

    rho: PyTree
    theta: PyTree
    jacobian: Callable[[PyTree], Matrix]

    def push(self, eta: PyTree) -> PyTree:
        """Zη, like the state."""
        return ravel_pytree(self.rho)[1](self._matrix @ np.asarray(ravel_pytree(eta)[0]))

    def pull(self, xi: PyTree) -> PyTree:
        """Zᵀξ, like θ."""
        return ravel_pytree(self.theta)[1](self._matrix.T @ np.asarray(ravel_pytree(xi)[0]))

    @functools.cached_property
    def _matrix(self) -> Any:
        Z = call_named("jacobian", self.jacobian, to_numpy(self.theta))
        wanted = ravel_pytree(self.rho)[0].size, ravel_pytree(self.theta)[0].size
        if getattr(Z, "shape", None) != wanted:
            what = f"returns {getattr(Z, 'shape', type(Z).__name__)} where Z is {wanted}"
            raise InputError("jacobian", what, "a matrix, sparse or not, or a LinearOperator")
        return Z if isinstance(Z, scipy.sparse.linalg.LinearOperator) else Z.copy()


def call_named(name: str, function: Callable, *arguments: Any) -> Any:
    """`function(*arguments)`; an exception passes as it is, with a note that names the call."""
    try:
        return function(*arguments)
    except Exception as error:
        error.add_note(f"raised by {name} of the model")
        raise


def check_function(name: str, function: Any) -> None:
    """Raise `InputError` unless this is a function that a program can be kept for."""
    if not callable(function):
        raise InputError(name, f"{name_kind(function)} is not callable", "a function")
    try:
        hash(function)
    except TypeError as error:
        what = "cannot be hashed, and programs are kept by the identity of the model"
        raise InputError(name, what, "a function or a method in place of this object") from error


def check_concrete(tree: PyTree) -> None:
    """Raise `InputError` where `tree` is being traced: outside code needs values."""
    if is_traced(tree):
        what = "is code outside JAX and cannot be part of a compiled program"
        raise InputError("model", what, "the call outside of jax.jit, grad, vmap and scan")


def to_numpy(tree: PyTree) -> PyTree:
    """Arrays of `tree` as NumPy copies, which the outside code may write into."""
    check_concrete(tree)
    return jax.tree.map(lambda x: np.array(x) if eqx.is_array(x) else x, tree)


def from_numpy(name: str, tree: PyTree, like: PyTree) -> PyTree:
    """What the outside code returned, copied into JAX arrays; it must have the shapes of `like`.

    The copy is needed: `jnp.asarray` shares memory, and outside code may use a buffer again.
    Entries where `like` has None (those of θ that are no parameters) are ignored.
    """
    expected, treedef = jax.tree.flatten(like)
    if len(expected) > 1:
        pick = lambda a, b: a if a is None else b
        try:
            tree = jax.tree.map(pick, like, tree, is_leaf=lambda x: x is None)
        except (ValueError, TypeError) as error:
            shape = lambda found: jax.tree.structure(jax.tree.map(lambda _: 0, found))
            what = f"returns the structure {shape(tree)}"
            raise InputError(name, what, f"that of its argument, {shape(like)}") from error
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    shapes, wanted = [leaf.shape for leaf in leaves], [tuple(leaf.shape) for leaf in expected]
    if shapes != wanted:
        plain = lambda found: found[0] if len(found) == 1 else found
        what = f"returns shape {plain(shapes)}"
        raise InputError(name, what, f"an array of shape {plain(wanted)}")
    if any(np.iscomplexobj(leaf) for leaf in leaves):
        raise InputError(name, "returns complex numbers", "real ones, as the state and theta are")
    arrays = [jnp.array(a, b.dtype) for a, b in zip(leaves, expected, strict=True)]
    return jax.tree.unflatten(treedef, arrays)


def state_from_numpy(name: str, tree: PyTree) -> PyTree:
    """A state that the outside code returned, copied into JAX arrays."""
    try:
        return jax.tree.map(jnp.array, tree)
    except (TypeError, ValueError) as error:
        advice = "a NumPy array, or a tuple or dict of them"
        raise InputError(name, f"returns {name_kind(tree)}", advice) from error
