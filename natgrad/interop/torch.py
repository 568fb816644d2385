"""Functions and modules of PyTorch as models, differentiated by its autograd.

Arrays are copied on their way to PyTorch and back, because its code may write into tensors.
"""

import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.operators import structure_of
from ..errors import InputError, import_optional, name_kind
from ..models.base import Evaluation, Unravel
from ..models.external import HostModel, HostProducts, call_named, check_concrete, check_function

FAILURES = (RuntimeError, NotImplementedError)
SMOOTH = "operations of PyTorch throughout: no .detach(), .numpy(), .item() or torch.no_grad()"


class TorchModel(HostModel):
    """A function of PyTorch tensors, or a `torch.nn.Module` at its inputs, as a model.

    | given | θ | ρ(θ) |
    |---|---|---|
    | `TorchModel(module, *inputs)` | a dict of the parameters by name, `model.parameters` | `module(*inputs)` |
    | `TorchModel(function, *inputs)` | an array, or a dict or tuple of them | `function(θ, *inputs)` |

    θ, the inputs and what comes back are copied, so that the function may write into its tensors; a
    function that works on another device than θ needs that device, `device="cuda"`. Parameters of a module
    that require no gradient stay as they are. The function must give the same state whenever it is
    called: dropout and batch normalisation in training mode are refused.

    ```python
    model = ng.TorchModel(net, points)
    result = ng.minimize(
        ng.Problem(model, loss), model.parameters, ng.NaturalGradient(ng.L2(grid))
    )
    model.assign(result.theta)                       # into the module
    ```

    Cost: one evaluation for each θ that is tried, whose graph serves all products there; a product
    is one or two passes back through it. A run holds two graphs, of θ and of a trial step.

    Args:
        function: A function of tensors, or a module.
        *inputs: What it is called with after θ.
        device: The device of PyTorch it works on, where that is not θ's.
    """  # noqa: E501

    function: "Function" = eqx.field(static=True)

    def __init__(self, function: Any, *inputs: Any, device: Any = None):
        torch = _torch()
        check_function("function", function)
        if isinstance(function, type) and issubclass(function, torch.nn.Module):
            what = f"is the class {function.__name__}"
            raise InputError("function", what, f"a module, {function.__name__}(...)")
        if isinstance(function, torch.nn.Module):
            if device is not None:
                raise InputError("device", "a module has its own", "module.to(device)")
            self.function = Network(function, inputs)
        else:
            self.function = Function(function, inputs, device)

    @property
    def parameters(self) -> dict[str, Array]:
        """θ of the module as it is now, to start from."""
        device = next(iter(jnp.zeros(()).devices()))
        found = self._network.parameters.items()
        return {name: to_jax(tensor, device) for name, tensor in found}

    def assign(self, theta: dict[str, Array]) -> None:
        """Write θ into the module."""
        network, torch = self._network, _torch()
        network.check(theta)
        with torch.no_grad():
            for name, parameter in network.parameters.items():
                parameter.copy_(to_torch(theta[name], network.device))

    def evaluate(self, theta: PyTree) -> Evaluation:
        check_concrete(theta)
        self.function.check(theta)
        leaves, treedef = jax.tree.flatten(theta)
        leaves = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in leaves]
        free = [eqx.is_inexact_array(leaf) for leaf in leaves]
        if not any(free):
            raise InputError("theta", "holds no floating-point array", "jnp.asarray(theta, float)")
        tensors = [self._tensor(x) if eqx.is_array(x) else x for x in leaves]
        graph = Graph(self.function, jax.tree.unflatten(treedef, tensors), free)
        device = next(iter(leaves[free.index(True)].devices()))
        state = [to_jax(x, device) for x in graph.state]
        return Evaluation(jax.tree.unflatten(graph.state_treedef, state), graph)

    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> HostProducts:
        found = self.evaluate(unravel(flat)) if known is None else known
        graph, structure = found.kept, structure_of(found.rho)
        device = next(iter(flat.devices()))

        def push(eta: Array) -> PyTree:
            parts = jax.tree.leaves(eqx.filter(unravel(eta), eqx.is_inexact_array))
            image = graph.push([self._tensor(part) for part in parts])
            return jax.tree.unflatten(graph.state_treedef, [to_jax(x, device) for x in image])

        def pull(xi: PyTree) -> Array:
            like = lambda x, leaf: self._tensor(jnp.asarray(x, leaf.dtype))
            image = graph.pull(jax.tree.leaves(jax.tree.map(like, xi, structure)))
            return ravel_pytree([to_jax(x, device) for x in image])[0].astype(flat.dtype)

        return HostProducts(found.rho, int(known is None), push, pull)

    @property
    def _network(self) -> "Network":
        if isinstance(self.function, Network):
            return self.function
        raise InputError(
            "function", "is not a module, so it has no parameters", "a theta of your own"
        )

    def _tensor(self, array: Array) -> Any:
        return to_torch(array, self.function.device)


class Function:
    """θ ↦ function(θ, *inputs), on a device or on that of θ."""

    def __init__(self, function: Any, inputs: tuple, device: Any):
        self.function, self.inputs = function, inputs
        self.device = None if device is None else _find_device(device)
        self.deterministic = False  # known after the first evaluation
        self.compared = self.forward_mode = False  # known after the first Zη

    def __call__(self, theta: Any) -> Any:
        return call_named("function", self.call, theta)

    def call(self, theta: Any) -> Any:
        """The state, tensors in a pytree."""
        return self.function(theta, *self.copies)

    @property
    def copies(self) -> tuple:
        """The inputs, in tensors that a call may write into."""
        copy = lambda x: x.clone() if isinstance(x, _torch().Tensor) else x
        return jax.tree.map(copy, self.inputs)

    def check(self, theta: Any) -> None:
        """Raise `InputError` if θ, as JAX arrays, does not fit."""


class Network(Function):
    """θ ↦ module(*inputs) with the entries of θ in the place of its parameters.

    Buffers are copied for every call, so that one which writes into them leaves the module as it
    was, and does the same again.
    """

    def __init__(self, module: Any, inputs: tuple):
        torch = _torch()
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not self.parameters:
            what = "has no parameters that require a gradient"
            raise InputError("function", what, "module.requires_grad_(True)")
        try:
            inspect.signature(module.forward).bind(*inputs)
        except TypeError as error:  # a compiled module has no signature, a ValueError
            what = f"the module cannot be called with {len(inputs)} of them ({error})"
            raise InputError("inputs", what, "TorchModel(module, points)") from None
        except ValueError:
            pass
        for i, x in enumerate(inputs):
            if isinstance(x, (np.ndarray, jax.Array)):
                what = f"input {i} of the module is a {type(x).__module__.split('.')[0]} array"
                raise InputError("inputs", what, "a tensor, torch.tensor(np.asarray(x))")
        tensors = {
            **dict(module.named_parameters()),
            **dict(module.named_buffers()),
            **{f"input {i}": x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)},
        }
        places = {x.device: name for name, x in tensors.items()}
        device = next(iter(places))
        if len(places) > 1:
            found = ", ".join(f"{name} on {device}" for device, name in places.items())
            raise InputError("function", f"has {found}", f"all on one: .to('{device}')")
        super().__init__(module, inputs, device)

    def call(self, theta: Any) -> Any:
        torch, module = _torch(), self.function
        layers = torch.nn.modules
        for name, layer in module.named_modules():  # in training mode these draw or count
            drops = isinstance(layer, layers.dropout._DropoutNd) and layer.p > 0
            averages = isinstance(layer, layers.batchnorm._NormBase) and layer.track_running_stats
            if layer.training and (drops or averages):
                what = f"its {type(layer).__name__} '{name}' is in training mode"
                raise InputError("function", what, "module.eval() before this")
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        return torch.func.functional_call(module, {**theta, **buffers}, self.copies)

    def check(self, theta: Any) -> None:
        if not isinstance(theta, dict) or set(theta) != set(self.parameters):
            found = f"has the names {sorted(theta)}" if isinstance(theta, dict) else "is not a dict"
            raise InputError("theta", found, f"model.parameters, {sorted(self.parameters)}")
        for name, parameter in self.parameters.items():
            kind = str(parameter.dtype).removeprefix("torch.")
            wanted, found = (tuple(parameter.shape), kind), (theta[name].shape, theta[name].dtype)
            if wanted != (found[0], str(found[1])):
                what = f"'{name}' is {found[1]} {found[0]}, that of the module {kind} {wanted[0]}"
                raise InputError("theta", what, "model.parameters; module.double() for float64")


class Graph:
    """The state at θ, a pytree of tensors, as a function of those leaves that are parameters."""

    def __init__(self, function: Function, theta: PyTree, parameters: list[bool]):
        self.function, self.free = function, parameters
        self.leaves, self.treedef = jax.tree.flatten(theta)
        pairs = zip(self.leaves, parameters, strict=True)
        self.variables = [x.requires_grad_() for x, free in pairs if free]
        drawn = _random_state()
        self.state, self.state_treedef = self._evaluate()
        if not function.deterministic and _random_state() != drawn:
            again, _ = self._evaluate()
            if not all(bool((a == b).all()) for a, b in zip(again, self.state, strict=True)):
                what = "draws random numbers: called again, it gives another state"
                raise InputError("function", what, "module.eval(), or numbers drawn beforehand")
        function.deterministic = True
        self._second: tuple[list[Any], list[Any]] | None = None

    def pull(self, xi: list[Any]) -> list[Any]:
        """Zᵀξ."""
        return _pull_back(self.state, self.variables, xi, retain_graph=True)

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
        torch = _torch()
        if self._second is None:
            xi = [torch.zeros_like(x, requires_grad=True) for x in self.state]
            self._second = xi, _pull_back(self.state, self.variables, xi, create_graph=True)
        xi, grad = self._second
        return _pull_back(grad, xi, eta, retain_graph=True)

    def _is_transpose(self, image: list[Any], eta: list[Any]) -> bool:
        """Whether ⟨Zη, ξ⟩ = ⟨η, Zᵀξ⟩: an operation can hide its derivative from a second graph."""
        random, torch = np.random.default_rng(0), _torch()
        draw = lambda x: torch.as_tensor(random.standard_normal(tuple(x.shape))).to(x)
        xi = [draw(x) for x in self.state]
        back = self.pull(xi)
        size = sum((_dot(x, x) * _dot(y, y)) ** 0.5 for x, y in ((image, xi), (eta, back)))
        rounding = float(torch.finfo(xi[0].dtype).eps) ** 0.5 * size
        return abs(_dot(image, xi) - _dot(eta, back)) <= rounding

    def _by_duals(self, eta: list[Any]) -> list[Any]:
        """Dual numbers through the function once more."""
        mode, tangents = _torch().autograd.forward_ad, iter(eta)
        try:
            with mode.dual_level():
                duals = [
                    mode.make_dual(x.detach(), next(tangents)) if free else x
                    for x, free in zip(self.leaves, self.free, strict=True)
                ]
                state = jax.tree.leaves(self.function(jax.tree.unflatten(self.treedef, duals)))
                found = [mode.unpack_dual(x).tangent for x in state]
                pairs = zip(found, self.state, strict=True)
                return [x.new_zeros(x.shape) if y is None else y for y, x in pairs]
        except FAILURES as error:
            what = f"has neither a second derivative nor a forward-mode one ({error})"
            advice = "a jvp for its autograd.Function, or ng.ExternalModel(forward, jvp, vjp)"
            raise InputError("function", what.replace("\n", " "), advice) from error

    def _evaluate(self) -> tuple[list[Any], Any]:
        """The tensors of the state, differentiable."""
        torch = _torch()
        try:
            with torch.enable_grad():
                found = self.function(jax.tree.unflatten(self.treedef, self.leaves))
        except RuntimeError as error:
            raise _explain(error) from error
        state, treedef = jax.tree.flatten(found)
        for x in state:
            if not isinstance(x, torch.Tensor):
                what = f"returns {name_kind(x)}"
                raise InputError("function", what, "a tensor, or a tuple or dict of them")
            if not x.is_floating_point():
                raise InputError("function", f"returns {x.dtype}", "real floating-point tensors")
        if not any(x.requires_grad for x in state):
            raise InputError("function", "its result has no derivative in theta", SMOOTH)
        return state, treedef


def _pull_back(outputs: list[Any], inputs: list[Any], seeds: list[Any], **graph: Any) -> list[Any]:
    """Σᵢ (∂outputᵢ/∂inputs)ᵀ seedᵢ, zero where there is no path."""
    pairs = [(y, v) for y, v in zip(outputs, seeds, strict=True) if y.requires_grad]
    live, weights = zip(*pairs, strict=True)
    return list(_torch().autograd.grad(live, inputs, weights, materialize_grads=True, **graph))


def _random_state() -> list[bytes]:
    torch = _torch()
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def _dot(x: list[Any], y: list[Any]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(x, y, strict=True))


def _explain(error: RuntimeError) -> Exception:
    """What PyTorch complains about most often, as an `InputError`; other errors as they are."""
    text = str(error).splitlines()[0]
    if "numpy()" in text or "leaf Variable" in text:
        return InputError("function", f"breaks the chain of derivatives ({text})", SMOOTH)
    if "same device" in text or "on different devices" in text:
        return InputError("function", text.rstrip("."), "TorchModel(function, device='cuda')")
    if "dtype" in text or "scalar type" in text:
        advice = "θ and the tensors of the function in one precision, e.g. tensor.double()"
        return InputError("theta", text.rstrip("."), advice)
    return error


def _find_device(device: Any) -> Any:
    """The device of PyTorch with this name, if tensors can be put there."""
    torch = _torch()
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        text = str(error).splitlines()[0].rstrip(".!")
        what = f"{device!r} cannot be used ({text})"
        advice = "'cpu', or 'cuda' with a GPU and a PyTorch for it"
        raise InputError("device", what, advice) from error
    if found.type == "meta":
        raise InputError("device", "'meta' has shapes and no values", "'cpu' or 'cuda'")
    return found


def to_torch(array: Array, device: Any = None) -> Any:
    """A copy of `array` as a tensor, on the same device unless one is named."""
    torch = _torch()
    array = jax.block_until_ready(array)
    reachable = torch.cuda.is_available() or next(iter(array.devices())).platform == "cpu"
    tensor = torch.from_dlpack(array) if reachable else torch.as_tensor(np.array(array))
    return tensor.to(tensor.device if device is None else device, copy=True)


def to_jax(tensor: Any, device: Any) -> Array:
    """A copy of `tensor` as an array on this device of JAX."""
    tensor = tensor.detach().clone(memory_format=_torch().contiguous_format)
    if tensor.dtype.itemsize == 8 and not jax.config.read("jax_enable_x64"):
        what = f"has {tensor.dtype}, and JAX is set to 32 bits"
        raise InputError("function", what, 'jax.config.update("jax_enable_x64", True), or .float()')
    if tensor.is_cuda and device.platform != "gpu":
        tensor = tensor.cpu()
    array = jax.dlpack.from_dlpack(tensor)
    return array if array.devices() == {device} else jax.device_put(array, device)


def _torch() -> Any:
    return import_optional("torch", "function")
