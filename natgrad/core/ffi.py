"""Functions of Python that XLA calls in the middle of a program: its call frame, by ctypes.

XLA's handler is a C function of one struct (xla/ffi/api/c_api.h, which jaxlib carries), and a
Python function can be one. Python is entered for each call, so that what it starts should last.

    register("natgrad_twice", "cpu", lambda call: np.multiply(2, call.arrays[0], call.arrays[1]))
    call("natgrad_twice", [jax.ShapeDtypeStruct((5,), float)], x, launch="a string")
"""

import ctypes
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from ..errors import InputError


def struct(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


_HEAD = (("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p))
_VERSION = (("major", ctypes.c_int), ("minor", ctypes.c_int))
_LIST = (*_HEAD, ("size", ctypes.c_int64), ("types", ctypes.c_void_p))
_POINTERS = ctypes.POINTER(ctypes.c_void_p)

Buffer = struct(
    "Buffer",
    *_HEAD,
    ("dtype", ctypes.c_int),
    ("data", ctypes.c_void_p),
    ("rank", ctypes.c_int64),
    ("dims", ctypes.POINTER(ctypes.c_int64)),
)
Span = struct("Span", ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))
Buffers = struct("Buffers", *_LIST, ("items", _POINTERS))
Attributes = struct("Attributes", *_LIST, ("names", _POINTERS), ("items", _POINTERS))
CallFrame = struct(
    "CallFrame",
    *_HEAD,
    ("api", ctypes.c_void_p),
    ("context", ctypes.c_void_p),
    ("stage", ctypes.c_int),
    ("arguments", Buffers),
    ("results", Buffers),
    ("attributes", Attributes),
)
Version = struct("Version", *_HEAD, *_VERSION)
Metadata = struct(
    "Metadata", ("struct_size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)
)
Extension = struct(
    "Extension",
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.c_void_p),
    ("metadata", ctypes.POINTER(Metadata)),
)
Api = struct(
    "Api",
    *_HEAD,
    ("version", Version),
    ("internal", ctypes.c_void_p),
    ("create_error", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)),
    ("error_message", ctypes.c_void_p),
    ("destroy_error", ctypes.c_void_p),
    ("register_handler", ctypes.c_void_p),
    ("get_stream", ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)),  # it keeps Python's lock
)
NewError = struct("NewError", *_HEAD, ("message", ctypes.c_char_p), ("code", ctypes.c_int))
GetStream = struct("GetStream", *_HEAD, ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))
HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CallFrame))
METADATA, INTERNAL, STRING = 1, 13, 4
DTYPES = {4: np.int32, 5: np.int64, 7: np.uint16, 11: np.float32, 12: np.float64}


class Call:
    """One execution: the attribute that names the launch, and where its arrays are."""

    def __init__(self, frame: Any):
        self._frame, self._api = frame, Api.from_address(frame.api)

    @property
    def launch(self) -> bytes:
        given = self._frame.attributes
        if given.size != 1 or ctypes.cast(given.types, ctypes.POINTER(ctypes.c_int))[0] != STRING:
            raise TypeError("a call of a kernel has other attributes than one string")
        span = Span.from_address(given.items[0])
        return ctypes.string_at(span.data, span.size)

    @property
    def addresses(self) -> list[int]:
        """Those of the arguments, then those of the results."""
        lists = (self._frame.arguments, self._frame.results)
        return [
            Buffer.from_address(buffers.items[i]).data or 0
            for buffers in lists
            for i in range(buffers.size)
        ]

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arguments, then the results, where they lie: for calls on a CPU."""
        found = []
        for buffers in (self._frame.arguments, self._frame.results):
            for i in range(buffers.size):
                buffer = Buffer.from_address(buffers.items[i])
                shape, dtype = tuple(buffer.dims[: buffer.rank]), np.dtype(DTYPES[buffer.dtype])
                count = math.prod(shape) * dtype.itemsize
                there = (ctypes.c_char * count).from_address(buffer.data) if count else b""
                found.append(np.frombuffer(memoryview(there), dtype).reshape(shape))
        return found

    @property
    def stream(self) -> int:
        asked = GetStream(ctypes.sizeof(GetStream), None, self._frame.context, None)
        if self._api.get_stream(ctypes.addressof(asked)):
            raise RuntimeError("XLA gives no stream")
        return asked.stream or 0

    def error(self, message: str) -> int:
        told = NewError(ctypes.sizeof(NewError), None, message.encode(), INTERNAL)
        return self._api.create_error(ctypes.addressof(told))


@cache
def ffi_version() -> tuple[int, int]:
    """XLA's, from the header that jaxlib carries; 0.1 where there is none."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        found = re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", header.read_text())
        major, minor = (int(x) for x in found)
    except (OSError, ValueError):
        return 0, 1
    return major, minor


_handlers: dict[tuple[str, str], Any] = {}  # what XLA calls must not be collected


def register(name: str, platform: str, execute: Callable[[Call], None]) -> None:
    """Let XLA call a Python function; an exception of it becomes one of the program."""
    if (name, platform) in _handlers:
        return

    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        at = frame.extension
        while at:
            extension = Extension.from_address(at)
            at = extension.next
            if extension.type == METADATA:  # XLA asks, once, which version this was written for
                told = extension.metadata.contents
                told.version.major, told.version.minor = ffi_version()
                told.traits = 0
                return None
        call = Call(frame)
        try:
            execute(call)
        except BaseException as error:  # an interrupt too: XLA would take the results for good
            return call.error(f"{type(error).__name__}: {error}")
        return None

    handler = _handlers[name, platform] = HANDLER(handle)
    capsule = jax.ffi.pycapsule(ctypes.cast(handler, ctypes.c_void_p).value)
    jax.ffi.register_ffi_target(name, capsule, platform=platform)


def call(
    name: str,
    results: list[jax.ShapeDtypeStruct],
    *given: Array,
    launch: str,
    aliases: dict[int, int] | None = None,
) -> list[Array]:
    """Such a call in a function that is traced. `aliases` are arguments that become results.

    JAX cannot differentiate it, and says so.
    """
    made = {"vmap_method": "sequential", "input_output_aliases": aliases}
    run = jax.custom_jvp(lambda *x: jax.ffi.ffi_call(name, results, **made)(*x, launch=launch))
    run.defjvp(_refuse)
    return list(run(*given))


def _refuse(primals: Any, tangents: Any) -> Any:
    what = "kernels are no functions that JAX can differentiate"
    raise InputError("engine", what, "model.products, or engine='xla'")
