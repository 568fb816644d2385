"""One evaluation by PyTorch with its graph, and the products that share it.

Zᵀξ is one pass back through the graph. ξ ↦ Zᵀξ is linear, so its own derivative in ξ, applied to
η, is Zη: a pass back through the graph of that pass, made once. Where an operation has no second
derivative, the function is run again with dual numbers for each Zη.
"""

from typing import Any

import jax
import numpy as np

from ..errors import InputError
from .optional import imported
from .torch_functions import SMOOTH, Function, explained

PyTree = Any
FAILURES = (RuntimeError, NotImplementedError)


class Graph:
    """The state at θ, a pytree of tensors, as a function of those leaves that are parameters."""

    def __init__(self, function: Function, theta: PyTree, parameters: list[bool]):
        self.function, self.free = function, parameters
        self.leaves, self.treedef = jax.tree.flatten(theta)
        pairs = zip(self.leaves, parameters, strict=True)
        self.variables = [x.requires_grad_() for x, free in pairs if free]
        drawn = _random_state()
        self.state, self.state_treedef = self._evaluated()
        if not function.deterministic and _random_state() != drawn:
            self._check_deterministic()
        function.deterministic = True
        self._second: tuple[list[Any], list[Any]] | None = None

    def pull(self, xi: list[Any]) -> list[Any]:
        """Zᵀξ."""
        return _backwards(self.state, self.variables, xi, retain_graph=True)

    def push(self, eta: list[Any]) -> list[Any]:
        """Zη."""
        if self.function.forward_mode:
            return self._by_duals(eta)
        try:
            found = self._by_second_graph(eta)
        except FAILURES:
            found = None
        if found is not None and (self.function.compared or self._is_transpose(found, eta)):
            self.function.compared = True
            return found
        found = self._by_duals(eta)
        self.function.forward_mode = True
        return found

    def _by_second_graph(self, eta: list[Any]) -> list[Any]:
        torch = imported("function", "torch")
        if self._second is None:
            xi = [torch.zeros_like(x, requires_grad=True) for x in self.state]
            self._second = xi, _backwards(self.state, self.variables, xi, create_graph=True)
        xi, grad = self._second
        return _backwards(grad, xi, eta, retain_graph=True)

    def _is_transpose(self, image: list[Any], eta: list[Any]) -> bool:
        """Whether ⟨Zη, ξ⟩ = ⟨η, Zᵀξ⟩: an operation can hide its derivative from a second graph."""
        random = np.random.default_rng(0)
        torch = imported("function", "torch")
        draw = lambda x: torch.as_tensor(random.standard_normal(tuple(x.shape))).to(x)
        xi = [draw(x) for x in self.state]
        back = self.pull(xi)
        size = sum((_dot(x, x) * _dot(y, y)) ** 0.5 for x, y in ((image, xi), (eta, back)))
        rounding = float(torch.finfo(xi[0].dtype).eps) ** 0.5 * size
        return abs(_dot(image, xi) - _dot(eta, back)) <= rounding

    def _by_duals(self, eta: list[Any]) -> list[Any]:
        """Dual numbers through the function once more."""
        torch = imported("function", "torch")
        mode = torch.autograd.forward_ad
        tangents = iter(eta)
        try:
            with mode.dual_level():
                duals = [
                    mode.make_dual(x.detach(), next(tangents)) if free else x
                    for x, free in zip(self.leaves, self.free, strict=True)
                ]
                state = jax.tree.leaves(self.function(jax.tree.unflatten(self.treedef, duals)))
                return _or_zeros([mode.unpack_dual(x).tangent for x in state], self.state)
        except FAILURES as error:
            what = f"has neither a second derivative nor a forward-mode one ({error})"
            advice = "a jvp for its autograd.Function, or ng.ExternalModel(forward, jvp, vjp)"
            raise InputError("function", what.replace("\n", " "), advice) from error

    def _evaluated(self) -> tuple[list[Any], Any]:
        """The tensors of the state, differentiable."""
        torch = imported("function", "torch")
        try:
            with torch.enable_grad():
                found = self.function(jax.tree.unflatten(self.treedef, self.leaves))
        except RuntimeError as error:
            raise explained(error) from error
        state, treedef = jax.tree.flatten(found)
        for x in state:
            if not isinstance(x, torch.Tensor):
                what = f"returns a {type(x).__name__}"
                raise InputError("function", what, "a tensor, or a tuple or dict of them")
            if not x.is_floating_point():
                raise InputError("function", f"returns {x.dtype}", "real floating-point tensors")
        if not any(x.requires_grad for x in state):
            what = "its result has no derivative with respect to theta"
            raise InputError("function", what, SMOOTH)
        return state, treedef

    def _check_deterministic(self) -> None:
        """Raise `InputError` unless a second evaluation gives the same."""
        again, _ = self._evaluated()
        if not all(bool((a == b).all()) for a, b in zip(again, self.state, strict=True)):
            what = "draws random numbers: called again, it gives another state"
            raise InputError("function", what, "module.eval(), or numbers drawn beforehand")


def _backwards(outputs: list[Any], inputs: list[Any], seeds: list[Any], **graph: Any) -> list[Any]:
    """Σᵢ (∂outputᵢ/∂inputs)ᵀ seedᵢ, zero where there is no path."""
    pairs = [(y, v) for y, v in zip(outputs, seeds, strict=True) if y.requires_grad]
    live, weights = zip(*pairs, strict=True)
    grad = imported("function", "torch").autograd.grad
    return _or_zeros(grad(live, inputs, weights, allow_unused=True, **graph), inputs)


def _random_state() -> list[bytes]:
    torch = imported("function", "torch")
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def _dot(x: list[Any], y: list[Any]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(x, y, strict=True))


def _or_zeros(found: Any, like: list[Any]) -> list[Any]:
    return [x.new_zeros(x.shape) if y is None else y for x, y in zip(like, found, strict=True)]
