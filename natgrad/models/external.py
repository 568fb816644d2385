"""Models outside JAX: three functions of NumPy arrays."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jax import Array
from jax.flatten_util import ravel_pytree

from ..errors import InputError
from .base import Evaluation
from .given_jacobian import GivenJacobian
from .host import (
    HostModel,
    HostProducts,
    check_function,
    from_numpy,
    named,
    state_from_numpy,
    to_numpy,
)

PyTree = Any


class ExternalModel(HostModel):
    """Code outside JAX (PyTorch, a finite element or wave code, NumPy) as a model.

    | argument | called as | returns |
    |---|---|---|
    | `forward` | `forward(theta)` | the state ρ(θ) |
    | `jvp` | `jvp(theta, eta)` | Zη, like the state |
    | `vjp` | `vjp(theta, xi)` | Zᵀξ, like θ |
    | `linearize` | `linearize(theta)` | any object; the products get it in place of θ |

    θ, η and ξ are NumPy arrays, or pytrees of them if θ or the state is one; so are the results.
    `linearize` is called once for each iteration, so that a factorisation or a stored wave field
    serves all products there. Where it finds the state on its way, give its object the attribute
    `rho` and pass `forward=None`: then nothing is computed twice, and it is called for every θ
    that is tried. In the counts a call of `linearize` is a forward propagation.

    An exception of the outside code passes through, with a note that says which function raised
    it; `error.natgrad_result` is the run until then. `ng.check_adjoint` finds a `vjp` that is not
    the transpose of `jvp`.

    ```python
    model = ng.ExternalModel(lambda t: A @ t, lambda t, v: A @ v, lambda t, w: A.T @ w)
    ```

    Cost: that of the calls, which are driven from Python. A dense solver takes min(p, k) products.
    """

    forward: Callable[[Any], Any] | None = eqx.field(static=True)
    jvp: Callable[[Any, Any], Any] = eqx.field(static=True)
    vjp: Callable[[Any, Any], Any] = eqx.field(static=True)
    linearize: Callable[[Any], Any] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.forward is None and self.linearize is None:
            raise InputError("forward", "is None and so is linearize", "one that finds the state")
        for name in ("forward", "jvp", "vjp", "linearize"):
            function = getattr(self, name)
            if function is not None or name in ("jvp", "vjp"):
                check_function(name, function)

    @classmethod
    def from_jacobian(
        cls, forward: Callable[[Any], Any], jacobian: Callable[[Any], Any]
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
        at = lambda theta: GivenJacobian(forward, jacobian, theta)
        return cls(None, GivenJacobian.push, GivenJacobian.pull, linearize=at)

    def evaluate(self, theta: PyTree) -> Evaluation:
        if self.forward is not None:
            state = named("forward", self.forward, to_numpy(theta))
            return Evaluation(state_from_numpy("forward", state))
        shared = self._shared(theta)
        if not hasattr(shared, "rho"):
            raise InputError(
                "linearize",
                f"returns a {type(shared).__name__} without the attribute rho",
                "the state as its attribute rho, or a function forward",
            )
        return Evaluation(state_from_numpy("linearize", shared.rho), shared)

    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> HostProducts:
        theta, evaluations = unravel(flat), 0
        if known is None:
            known, evaluations = self.evaluate(theta), 1
        rho, first = known
        if first is None and self.linearize is not None:
            first, evaluations = self._shared(theta), evaluations + 1
        parameters = eqx.filter(theta, eqx.is_inexact_array)
        # a fresh copy of θ for each call, because the outside code may write into it
        place = lambda: to_numpy(theta) if first is None else first

        def push(eta: Array) -> PyTree:
            image = named("jvp", self.jvp, place(), to_numpy(unravel(eta)))
            return from_numpy("jvp", image, rho)

        def pull(xi: PyTree) -> Array:
            image = named("vjp", self.vjp, place(), to_numpy(xi))
            return ravel_pytree(from_numpy("vjp", image, parameters))[0].astype(flat.dtype)

        return HostProducts(rho, evaluations, push, pull)

    def _shared(self, theta: PyTree) -> Any:
        assert self.linearize is not None
        return named("linearize", self.linearize, to_numpy(theta))
