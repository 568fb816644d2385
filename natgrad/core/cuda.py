"""CUDA source of this package, compiled when it is first used and called from JAX programs.

A `Launch` names a source file, what is defined in it, a kernel and its grid. `Launch.usage` shows
that it runs on a GPU, or raises; `Launch.call` is the call inside a traced function.

    source.cu ─NVRTC→ cubin, kept in a folder of the user's cache ─driver→ kernel ─jax.ffi→ program

Both libraries are reached by ctypes, and so is XLA: its handler is a C function of one struct
(xla/ffi/api/c_api.h, which jaxlib carries), and a Python function can be one. Python is entered
once a launch, so kernels should last. Nothing is compiled when natgrad is installed and nothing of
this runs without a GPU. What else there is: an extension module would have to be built for every
platform, Python and CUDA; Pallas (Mosaic GPU) and Triton have no clusters that share their memory
for the length of a loop; CuPy and cuda-python bring the same two libraries as a dependency that
leaves the call from XLA to be written; Warp has that call, and a language of its own.
"""

import ctypes
import hashlib
import json
import os
import re
import sysconfig
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import Array

from .archive import replace_file

TARGET = "natgrad_cuda_launch"
PACKAGE = Path(__file__).parents[1]


class CudaError(RuntimeError):
    """A library that is missing, or what it has answered."""


# --- XLA's side: the call frame that a handler is given -------------------------------------------


def _struct(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


_HEAD = (("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p))
_VERSION = (("major", ctypes.c_int), ("minor", ctypes.c_int))
_LIST = (*_HEAD, ("size", ctypes.c_int64), ("types", ctypes.c_void_p))
_POINTERS = ctypes.POINTER(ctypes.c_void_p)

Buffer = _struct(
    "Buffer",
    *_HEAD,
    ("dtype", ctypes.c_int),
    ("data", ctypes.c_void_p),
    ("rank", ctypes.c_int64),
    ("dims", ctypes.POINTER(ctypes.c_int64)),
)
Span = _struct("Span", ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))
Buffers = _struct("Buffers", *_LIST, ("items", _POINTERS))
Attributes = _struct("Attributes", *_LIST, ("names", _POINTERS), ("items", _POINTERS))
CallFrame = _struct(
    "CallFrame",
    *_HEAD,
    ("api", ctypes.c_void_p),
    ("context", ctypes.c_void_p),
    ("stage", ctypes.c_int),
    ("arguments", Buffers),
    ("results", Buffers),
    ("attributes", Attributes),
)
Version = _struct("Version", *_HEAD, *_VERSION)
Metadata = _struct(
    "Metadata", ("struct_size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)
)
Extension = _struct(
    "Extension",
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.c_void_p),
    ("metadata", ctypes.POINTER(Metadata)),
)
Api = _struct(
    "Api",
    *_HEAD,
    ("version", Version),
    ("internal", ctypes.c_void_p),
    ("create_error", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)),
    ("error_message", ctypes.c_void_p),
    ("destroy_error", ctypes.c_void_p),
    ("register_handler", ctypes.c_void_p),
    ("get_stream", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)),
)
NewError = _struct("NewError", *_HEAD, ("message", ctypes.c_char_p), ("code", ctypes.c_int))
GetStream = _struct("GetStream", *_HEAD, ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))
HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CallFrame))
METADATA, INTERNAL, STRING = 1, 13, 4


class Call:
    """One execution: the attribute that names the launch, and where its arrays are."""

    def __init__(self, frame: Any):
        self._frame, self._api = frame, Api.from_address(frame.api)

    @property
    def launch(self) -> bytes:
        given = self._frame.attributes
        if given.size != 1 or ctypes.cast(given.types, ctypes.POINTER(ctypes.c_int))[0] != STRING:
            raise CudaError("a call of a kernel has other attributes than one string")
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
    def stream(self) -> int:
        asked = GetStream(ctypes.sizeof(GetStream), None, self._frame.context, None)
        if self._api.get_stream(ctypes.addressof(asked)):
            raise CudaError("XLA gives no stream")
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
        if frame.extension:
            extension = Extension.from_address(frame.extension)
            if extension.type == METADATA:  # XLA asks, once, which version this was written for
                told = extension.metadata.contents
                told.version.major, told.version.minor = ffi_version()
                told.traits = 0
                return None
        call = Call(frame)
        try:
            execute(call)
        except Exception as error:
            return call.error(f"{type(error).__name__}: {error}")
        return None

    handler = _handlers[name, platform] = HANDLER(handle)
    capsule = jax.ffi.pycapsule(ctypes.cast(handler, ctypes.c_void_p).value)
    jax.ffi.register_ffi_target(name, capsule, platform=platform)


# --- CUDA's side: NVRTC, the driver ---------------------------------------------------------------


@cache
def _library(kind: str) -> ctypes.CDLL:
    """libcuda or libnvrtc: from the loader's path, the packages that JAX installs, or a toolkit."""
    names = {"cuda": ["libcuda.so.1"], "nvrtc": ["libnvrtc.so.13", "libnvrtc.so.12"]}[kind]
    folders = [Path(sysconfig.get_paths()[key]) / "nvidia" for key in ("purelib", "platlib")]
    folders = [*folders, Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    beside = [path for f in folders for n in names for path in f.glob(f"**/{n}")]
    for path in [*names, *map(str, beside)]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CudaError(f"{names[0]} was not found")


def _driver(function: str, *arguments: Any) -> None:
    library = _library("cuda")
    if code := getattr(library, function)(*arguments):
        name = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(name))
        raise CudaError(f"{function}: {(name.value or b'unknown').decode()}")


def _nvrtc(function: str, *arguments: Any) -> None:
    if code := getattr(_library("nvrtc"), function)(*arguments):
        raise CudaError(f"{function}: error {code}")


def compile_source(source: str, options: list[str]) -> bytes:
    """The cubin of a source, from the cache of this user where it has been compiled before."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    told = json.dumps([source, options, major.value, minor.value])
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(root) / "natgrad" / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        pass
    program = ctypes.c_void_p()
    text = ctypes.c_char_p(source.encode())
    _nvrtc("nvrtcCreateProgram", ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    try:
        given = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        size = ctypes.c_size_t()
        try:
            _nvrtc("nvrtcCompileProgram", program, len(options), given)
        except CudaError as error:
            _nvrtc("nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            _nvrtc("nvrtcGetProgramLog", program, log)
            raise CudaError(f"{error}: {log.value.decode(errors='replace')}") from None
        _nvrtc("nvrtcGetCUBINSize", program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        _nvrtc("nvrtcGetCUBIN", program, cubin)
    finally:
        _nvrtc("nvrtcDestroyProgram", ctypes.byref(program))
    with suppress(OSError):  # where the home cannot be written to, compile again next time
        replace_file(path, cubin.raw)
    return cubin.raw


_CLUSTER = 4
_SHARED_LIMIT, _MULTIPROCESSORS = 97, 16
_LOCAL_BYTES, _REGISTERS, _SHARED_BYTES, _ANY_CLUSTER = 3, 4, 8, 14
_Attribute = _struct(
    "_Attribute", ("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)
)
_Config = _struct(
    "_Config",
    ("grid", ctypes.c_uint * 3),
    ("block", ctypes.c_uint * 3),
    ("shared", ctypes.c_uint),
    ("stream", ctypes.c_void_p),
    ("attributes", ctypes.POINTER(_Attribute)),
    ("count", ctypes.c_uint),
)


def limits(ordinal: int) -> tuple[int, int]:
    """Of a GPU: bytes of shared memory that a block can have, and multiprocessors."""
    device, value, found = ctypes.c_int(), ctypes.c_int(), []
    _library("nvrtc")  # or it is not worth asking
    _driver("cuInit", 0)
    _driver("cuDeviceGet", ctypes.byref(device), ordinal)
    for which in (_SHARED_LIMIT, _MULTIPROCESSORS):
        _driver("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        found.append(value.value)
    return found[0], found[1]


class Usage(NamedTuple):
    """What a kernel takes of a multiprocessor, and how many of its clusters run at once."""

    registers: int
    spilled: int
    clusters: int


class Launch(NamedTuple):
    """A kernel of a source file of the package, specialised by macros, and how it is started.

    Its parameters are the pointers of the arguments, then those of the results; numbers are macros.
    """

    file: str
    kernel: str
    macros: tuple[tuple[str, str], ...]
    architecture: str
    grid: int
    block: int
    cluster: int = 1
    shared: int = 0

    @property
    def source(self) -> str:
        lines = [f"#define {name} {value}\n" for name, value in self.macros]
        return "".join(lines) + (PACKAGE / self.file).read_text()

    def cubin(self) -> bytes:
        options = [f"--gpu-architecture={self.architecture}", "--std=c++17", "-default-device"]
        return compile_source(self.source, options)

    def config(self, stream: int) -> Any:
        attributes = (_Attribute * 1)()
        attributes[0].id, attributes[0].value[:3] = _CLUSTER, [self.cluster, 1, 1]
        size = ctypes.c_uint * 3
        shape = (size(self.grid, 1, 1), size(self.block, 1, 1), self.shared)
        return _Config(*shape, stream, attributes, int(self.cluster > 1))

    def function(self, context: int) -> ctypes.c_void_p:
        """The kernel in a context that is current, loaded once."""
        with _loading:
            if (context, self) not in _functions:
                module, function = ctypes.c_void_p(), ctypes.c_void_p()
                _driver("cuModuleLoadData", ctypes.byref(module), self.cubin())
                name = self.kernel.encode()
                _driver("cuModuleGetFunction", ctypes.byref(function), module, name)
                _driver("cuFuncSetAttribute", function, _SHARED_BYTES, self.shared)
                if self.cluster > 8:
                    _driver("cuFuncSetAttribute", function, _ANY_CLUSTER, 1)
                _functions[context, self] = function
            return _functions[context, self]

    def usage(self, ordinal: int = 0) -> Usage:
        """Of a device, which it must run on: `CudaError` where it cannot."""
        device, context, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        _driver("cuInit", 0)
        _driver("cuDeviceGet", ctypes.byref(device), ordinal)
        _driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _driver("cuCtxPushCurrent_v2", context)
        try:
            function = self.function(context.value or 0)
            found = []
            for which in (_REGISTERS, _LOCAL_BYTES):
                _driver("cuFuncGetAttribute", ctypes.byref(value), which, function)
                found.append(value.value)
            config, value.value = self.config(0), 1
            if self.cluster > 1:
                arguments = (ctypes.byref(value), function, ctypes.byref(config))
                _driver("cuOccupancyMaxActiveClusters", *arguments)
            else:
                size = ctypes.c_size_t(self.shared)
                arguments = (ctypes.byref(value), function, self.block, size)
                _driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", *arguments)
            return Usage(found[0], found[1], value.value)
        finally:
            _driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def start(self, addresses: list[int], stream: int) -> None:
        context = ctypes.c_void_p()
        _driver("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(context))
        _driver("cuCtxPushCurrent_v2", context)
        try:
            values = (ctypes.c_uint64 * len(addresses))(*addresses)
            first, step = ctypes.addressof(values), ctypes.sizeof(ctypes.c_uint64)
            pointers = (ctypes.c_void_p * len(addresses))(
                *[first + step * i for i in range(len(addresses))]
            )
            config, function = self.config(stream), self.function(context.value or 0)
            _driver("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        finally:
            _driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def call(self, results: list[jax.ShapeDtypeStruct], *arguments: Array) -> Any:
        """The kernel on these arrays, in a function that is traced."""
        register(TARGET, "CUDA", _execute)
        call = jax.ffi.ffi_call(TARGET, results, vmap_method="sequential")
        return call(*arguments, launch=json.dumps(self))


_functions: dict[tuple[int, Launch], ctypes.c_void_p] = {}
_loading = threading.Lock()


@cache
def _decode(text: bytes) -> Launch:
    given = Launch(*json.loads(text))
    return given._replace(macros=tuple((name, value) for name, value in given.macros))


def _execute(call: Call) -> None:
    _decode(call.launch).start(call.addresses, call.stream)
