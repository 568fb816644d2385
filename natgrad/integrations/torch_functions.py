"""Functions and modules of PyTorch as functions of θ, checked when they are called."""

from typing import Any

import jax
import numpy as np

from ..errors import InputError
from ..models.host import named
from .optional import imported

SMOOTH = "operations of PyTorch throughout: no .detach(), .numpy(), .item() or torch.no_grad()"


class Function:
    """θ ↦ function(θ, *inputs), on a device or on that of θ."""

    def __init__(self, function: Any, inputs: tuple, device: Any):
        self.function, self.inputs = function, inputs
        self.device = None if device is None else usable_device(device)
        self.deterministic = False  # known after the first evaluation
        self.compared = self.forward_mode = False  # known after the first Zη

    def __call__(self, theta: Any) -> Any:
        return named("function", self.call, theta)

    def call(self, theta: Any) -> Any:
        """The state, tensors in a pytree."""
        return self.function(theta, *self.inputs)

    def check(self, theta: Any) -> None:
        """Raise `InputError` if θ, as JAX arrays, does not fit."""


class Network(Function):
    """θ ↦ module(*inputs) with the entries of θ in the place of its parameters.

    Buffers are copied for every call, so that one which writes into them leaves the module as it
    was, and does the same again.
    """

    def __init__(self, module: Any, inputs: tuple):
        torch = imported("function", "torch")
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not self.parameters:
            what = "has no parameters that require a gradient"
            raise InputError("function", what, "module.requires_grad_(True)")
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
        torch, module = imported("function", "torch"), self.function
        self._check_mode(torch)
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        return torch.func.functional_call(module, {**theta, **buffers}, self.inputs)

    def check(self, theta: Any) -> None:
        if not isinstance(theta, dict) or set(theta) != set(self.parameters):
            found = f"has the names {sorted(theta)}" if isinstance(theta, dict) else "is no dict"
            raise InputError("theta", found, f"model.parameters, {sorted(self.parameters)}")
        for name, parameter in self.parameters.items():
            kind = str(parameter.dtype).removeprefix("torch.")
            wanted, found = (tuple(parameter.shape), kind), (theta[name].shape, theta[name].dtype)
            if wanted != (found[0], str(found[1])):
                what = f"'{name}' is {found[1]} {found[0]}, that of the module {kind} {wanted[0]}"
                raise InputError("theta", what, "model.parameters; module.double() for float64")

    def _check_mode(self, torch: Any) -> None:
        """In training mode some layers draw random numbers or count their calls."""
        layers = torch.nn.modules
        for name, layer in self.function.named_modules():
            drops = isinstance(layer, layers.dropout._DropoutNd) and layer.p > 0
            averages = isinstance(layer, layers.batchnorm._NormBase) and layer.track_running_stats
            if layer.training and (drops or averages):
                what = f"its {type(layer).__name__} '{name}' is in training mode"
                raise InputError("function", what, "module.eval() before this")


def usable_device(device: Any) -> Any:
    """The device of PyTorch with this name, if tensors can be put there."""
    torch = imported("function", "torch")
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        text = str(error).splitlines()[0].rstrip(".!")
        what = f"{device!r} cannot be used ({text})"
        raise InputError(
            "device", what, "'cpu', or 'cuda' with a GPU and a PyTorch for it"
        ) from error
    if found.type == "meta":
        raise InputError("device", "'meta' has shapes and no values", "'cpu' or 'cuda'")
    return found


def explained(error: RuntimeError) -> Exception:
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
