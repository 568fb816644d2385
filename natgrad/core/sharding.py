"""Arrays over the devices of a mesh: whole on every one of them, or in parts along the first axis.

Everything else is left to XLA, which follows the placement of its inputs through a program and
puts in the communication.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from ..errors import InputError
from .settings import Module, check_instance, replace_fields

AXIS = "parts"


def row_mesh(devices: Sequence[Any] | np.ndarray) -> Mesh:
    """These devices in a row: the mesh to compute on, whatever the given one looks like."""
    row = np.atleast_1d(np.asarray(devices, object)).ravel()
    for device in row:
        if not isinstance(device, jax.Device):
            raise InputError("devices", f"{device!r} is no device", "jax.devices()")
    if len(set(row)) < len(row):
        raise InputError("devices", "has one of them twice", "jax.devices()")
    return Mesh(row, (AXIS,))


def as_row_mesh(mesh: Any) -> Mesh:
    """The devices of a mesh as given to `minimize`."""
    check_instance("mesh", mesh, Mesh, "jax.make_mesh((jax.device_count(),), ('devices',))")
    return row_mesh(mesh.devices)


def in_parts(mesh: Mesh) -> NamedSharding:
    """The first axis cut into equal parts, one for each device."""
    return NamedSharding(mesh, P(AXIS))


def everywhere(mesh: Mesh) -> NamedSharding:
    """The whole array on each device."""
    return NamedSharding(mesh, P())


def divides(mesh: Mesh, shape: Sequence[int]) -> bool:
    """Whether an array of this shape can be cut into equal parts."""
    return len(shape) > 0 and shape[0] > 0 and shape[0] % mesh.size == 0


def check_divides(mesh: Mesh, shape: Sequence[int], what: str) -> None:
    """Raise `InputError` unless it can."""
    if divides(mesh, shape):
        return
    count = mesh.size
    if not shape or shape[0] < count:
        advice = "a mesh of fewer devices"
    else:
        common = math.gcd(count, shape[0])
        smaller = f"a mesh of {common} devices, or " if common > 1 else ""
        low = shape[0] // count * count
        advice = f"{smaller}{low} or {low + count} entries along that axis"
    first = f"{shape[0]} entries along the first axis of" if shape else "scalar in"
    raise InputError("mesh", f"its {count} devices do not divide the {first} {what}", advice)


def put_on_mesh(tree: PyTree, place: Callable[[tuple[int, ...]], NamedSharding]) -> PyTree:
    """The tree with its arrays where `place(shape)` says; those that are on the mesh already stay.

    Every process gives the same arrays, and keeps the parts of its own devices.
    """
    is_array = lambda x: isinstance(x, (jax.Array, np.ndarray))
    return jax.tree.map(lambda x: _put(x, place(x.shape)) if is_array(x) else x, tree)


def _put(x: jax.Array | np.ndarray, sharding: NamedSharding) -> jax.Array:
    if isinstance(x, jax.Array) and x.sharding.device_set == sharding.device_set:
        return x
    if sharding.is_fully_addressable or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.device_put(x, sharding)
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def take_local(tree: PyTree) -> PyTree:
    """Arrays that are whole on every device, as this process has them on its first one."""

    def here(x: Any) -> Any:
        whole = isinstance(x, jax.Array) and x.is_fully_replicated
        return x.addressable_data(0) if whole and len(x.sharding.device_set) > 1 else x

    return jax.tree.map(here, tree)


def to_host(x: Any) -> Any:
    """An array on the host, or as it is where other processes have parts of it."""
    whole = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
    if whole and jnp.issubdtype(getattr(x, "dtype", float), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x) if whole else x


def on_each_device(function: Callable, mesh: Mesh | None, whole: int = 0, summed: bool = False):
    """`function` of the parts that each device has, its first `whole` arguments whole.

    The results are put together along their first axes, or summed up over the devices. Without a
    mesh it is the function itself.
    """
    if mesh is None:
        return function

    def run(*arguments: PyTree) -> PyTree:
        total = lambda *local: jax.lax.psum(function(*local), AXIS)
        specs = tuple(P() if i < whole else P(AXIS) for i in range(len(arguments)))
        return jax.shard_map(
            total if summed else function,
            mesh=mesh,
            in_specs=specs,
            out_specs=P() if summed else P(AXIS),
            check_vma=False,
        )(*arguments)

    return run


def replace_mesh(module: Module, mesh: Mesh) -> Module:
    """The same module with another `mesh`, a static field that only its constructor sets."""
    return replace_fields(module, mesh=mesh)


class InParts(eqx.Module):
    """A function whose result is cut along the first axis of its arrays, where these can be."""

    function: Callable[..., PyTree]
    mesh: Mesh = eqx.field(static=True)

    def __call__(self, *arguments: PyTree) -> PyTree:
        constrain, parts = jax.lax.with_sharding_constraint, in_parts(self.mesh)
        cut = lambda x: constrain(x, parts) if divides(self.mesh, x.shape) else x
        return jax.tree.map(cut, self.function(*arguments))
