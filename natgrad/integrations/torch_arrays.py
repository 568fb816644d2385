"""Arrays between JAX and PyTorch: one memory for both where they are on the same device."""

from typing import Any

import jax
import numpy as np
from jax import Array

from ..errors import InputError
from .optional import imported


def to_torch(array: Array, device: Any = None) -> Any:
    """The tensor with the values of `array`, on the same device unless one is named."""
    torch = imported("function", "torch")
    array = jax.block_until_ready(array)
    reachable = torch.cuda.is_available() or _platform(array) == "cpu"
    tensor = torch.from_dlpack(array) if reachable else torch.as_tensor(np.array(array))
    return tensor if device is None else tensor.to(device)


def to_jax(tensor: Any, device: Any) -> Array:
    """The array with the values of `tensor`, on this device of JAX."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype.itemsize == 8 and not jax.config.read("jax_enable_x64"):
        what = f"has {tensor.dtype}, and JAX is set to 32 bits"
        raise InputError("function", what, 'jax.config.update("jax_enable_x64", True), or .float()')
    if tensor.is_cuda and device.platform != "gpu":
        tensor = tensor.cpu()
    array = jax.dlpack.from_dlpack(tensor)
    return array if array.devices() == {device} else jax.device_put(array, device)


def _platform(array: Array) -> str:
    return next(iter(array.devices())).platform
