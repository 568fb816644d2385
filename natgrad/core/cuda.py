"""CUDA source of this package, compiled when it is first used and called from JAX programs.

A `Launch` names source files, what is defined in them, kernels and their grids. `Launch.usage`
shows that it runs on a GPU, or raises; `Launch.call` is the call inside a traced function.

    source.cu ─NVRTC→ cubin, kept in the folder of programs ─driver→ kernel ─jax.ffi→ program

Both libraries are reached by ctypes, and so is XLA (ffi.py). Nothing is compiled when natgrad is
installed, nothing of this runs without a GPU. What else there is: an extension module would have to
be built for every platform, Python and CUDA; Pallas (Mosaic GPU) and Triton have no clusters that
share their memory for the length of a loop; CuPy and cuda-python bring the same two libraries as a
dependency that leaves the call from XLA to be written; Warp has that call, and a language of its
own.
"""

import ctypes
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import Array

from . import ffi
from .compiled import keep_code
from .ffi import Call, register, struct

TARGET = "natgrad_cuda_launch"
# Calls that return at once keep Python's lock. To have it back, while another thread runs Python,
# takes up to `sys.getswitchinterval()`.
QUICK = ("cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")
PACKAGE = Path(__file__).parents[1]


class CudaError(RuntimeError):
    """A library that is missing, or what it has answered."""


@cache
def _library(kind: str) -> ctypes.CDLL:
    """libcuda or libnvrtc: from the loader's path, the packages that JAX installs, or a toolkit.

    "quick" is libcuda, for calls that keep Python's lock.
    """
    names = ["libnvrtc.so.13", "libnvrtc.so.12"] if kind == "nvrtc" else ["libcuda.so.1"]
    load = ctypes.PyDLL if kind == "quick" else ctypes.CDLL
    packages = importlib.util.find_spec("nvidia")  # in parts, each a package of its own
    folders = list(map(Path, (packages and packages.submodule_search_locations) or []))
    folders = [*folders, Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    beside = (path for f in folders for n in names for path in f.glob(f"**/{n}"))
    for path in chain(names, beside):  # a toolkit is large: it is searched where nothing else helps
        try:
            if isinstance(path, Path) and kind == "nvrtc":  # some look in the loader's path alone
                for part in path.parent.glob("libnvrtc-builtins.so.*"):
                    load(str(part))
            return load(str(path))
        except OSError:
            continue
    raise CudaError(f"{names[0]} was not found")


def _ask(kind: str, function: str, *arguments: Any) -> int:
    """Call a library; the code that it answers, 0 where all is well."""
    found = getattr(_library(kind), function, None)
    if found is None:
        name = "nvrtc" if kind == "nvrtc" else "cuda"
        raise CudaError(f"{function} is missing from lib{name}, which is too old")
    return found(*arguments)


def _driver(function: str, *arguments: Any) -> None:
    if code := _ask("quick" if function in QUICK else "cuda", function, *arguments):
        name = ctypes.c_char_p()
        _ask("cuda", "cuGetErrorName", code, ctypes.byref(name))
        raise CudaError(f"{function}: {(name.value or b'unknown').decode()}")


def _nvrtc(function: str, *arguments: Any) -> None:
    if code := _ask("nvrtc", function, *arguments):
        raise CudaError(f"{function}: error {code}")


def compile_source(source: str, options: list[str]) -> bytes:
    """The cubin of a source, kept where it has been compiled before.

    It is machine code: the source, the options (with the architecture) and the compiler decide what
    it is, and the driver, whose version is not asked for, whether it loads.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    told = [source, options, major.value, minor.value]
    return keep_code(told, lambda: _compile(source, options))


def _compile(source: str, options: list[str]) -> bytes:
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
    return cubin.raw


_CLUSTER = 4
_SHARED_LIMIT, _MULTIPROCESSORS = 97, 16
_LOCAL_BYTES, _REGISTERS, _SHARED_BYTES, _ANY_CLUSTER = 3, 4, 8, 14
_Attribute = struct(
    "_Attribute", ("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)
)
_Config = struct(
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


class Kernel(NamedTuple):
    """A kernel by its name, and how many threads it is started with."""

    name: str
    grid: int
    block: int
    cluster: int = 1
    shared: int = 0

    def config(self, stream: int) -> Any:
        attributes = (_Attribute * 1)()
        attributes[0].id, attributes[0].value[:3] = _CLUSTER, [self.cluster, 1, 1]
        size = ctypes.c_uint * 3
        shape = (size(self.grid, 1, 1), size(self.block, 1, 1), self.shared)
        return _Config(*shape, stream, attributes, int(self.cluster > 1))


class Launch(NamedTuple):
    """Kernels of source files of the package, specialised by macros, one after the other in rounds.

    Their parameters are the pointers of the arguments, those of the results, and the number of the
    round, which may be left out; other numbers are macros.
    """

    files: tuple[str, ...]
    macros: tuple[tuple[str, str], ...]
    architecture: str
    kernels: tuple[Kernel, ...]
    rounds: int = 1
    state: tuple[tuple[int, ...], ...] = ()  # shapes of arrays that a round leaves to the next

    @property
    def source(self) -> str:
        lines = [f"#define {name} {value}\n" for name, value in self.macros]
        return "".join(lines) + "".join((PACKAGE / file).read_text() for file in self.files)

    def cubin(self) -> bytes:
        options = [f"--gpu-architecture={self.architecture}", "--std=c++17", "-default-device"]
        return compile_source(self.source, options)

    def functions(self, context: int) -> list[ctypes.c_void_p]:
        """The kernels in a context that is current, loaded once."""
        if (context, self) in _functions:
            return _functions[context, self]
        cubin = self.cubin()  # before the lock, so that threads compile side by side
        with _loading:
            if (context, self) not in _functions:
                module, found = ctypes.c_void_p(), []
                _driver("cuModuleLoadData", ctypes.byref(module), cubin)
                for kernel in self.kernels:
                    function, name = ctypes.c_void_p(), kernel.name.encode()
                    _driver("cuModuleGetFunction", ctypes.byref(function), module, name)
                    _driver("cuFuncSetAttribute", function, _SHARED_BYTES, kernel.shared)
                    if kernel.cluster > 8:
                        _driver("cuFuncSetAttribute", function, _ANY_CLUSTER, 1)
                    found.append(function)
                _functions[context, self] = found
            return _functions[context, self]

    def usage(self, ordinal: int = 0) -> list[Usage]:
        """Of a device, which they must run on: `CudaError` where they cannot."""
        device, context, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        _driver("cuInit", 0)
        _driver("cuDeviceGet", ctypes.byref(device), ordinal)
        _driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        used = []
        with _current(context):
            functions = self.functions(context.value or 0)
            for kernel, function in zip(self.kernels, functions, strict=True):
                found = []
                for which in (_REGISTERS, _LOCAL_BYTES):
                    _driver("cuFuncGetAttribute", ctypes.byref(value), which, function)
                    found.append(value.value)
                if kernel.cluster > 1:
                    config = kernel.config(0)
                    arguments = (ctypes.byref(value), function, ctypes.byref(config))
                    _driver("cuOccupancyMaxActiveClusters", *arguments)
                else:
                    size = ctypes.c_size_t(kernel.shared)
                    arguments = (ctypes.byref(value), function, kernel.block, size)
                    _driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", *arguments)
                used.append(Usage(found[0], found[1], value.value))
        return used

    def start(self, addresses: list[int], stream: int) -> None:
        context, count = ctypes.c_void_p(), ctypes.c_int()
        _driver("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(context))
        values = (ctypes.c_uint64 * len(addresses))(*addresses)
        step = ctypes.sizeof(ctypes.c_uint64)
        places = [ctypes.addressof(values) + step * i for i in range(len(addresses))]
        pointers = (ctypes.c_void_p * (len(places) + 1))(*places, ctypes.addressof(count))
        with _current(context):
            functions = self.functions(context.value or 0)
            configs = [ctypes.byref(kernel.config(stream)) for kernel in self.kernels]
            for number in range(self.rounds):
                count.value = number  # the driver copies what pointers lead to
                for config, function in zip(configs, functions, strict=True):
                    _driver("cuLaunchKernelEx", config, function, pointers, None)

    def call(self, results: list[jax.ShapeDtypeStruct], *arguments: Array) -> list[Array]:
        """The kernels on these arrays, in a function that is traced.

        The first arguments are the state. They are changed in place and become the last results.
        """
        register(TARGET, "CUDA", _execute)
        count = len(self.state)
        state = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments[:count]]
        aliases = {i: len(results) + i for i in range(count)}
        results = [*results, *state]
        return ffi.call(TARGET, results, *arguments, launch=json.dumps(self), aliases=aliases)


@contextmanager
def _current(context: ctypes.c_void_p) -> Iterator[None]:
    _driver("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        _ask("quick", "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


_functions: dict[tuple[int, Launch], list[ctypes.c_void_p]] = {}
_loading = threading.Lock()


@cache
def _decode(text: bytes) -> Launch:
    files, macros, architecture, kernels, rounds, state = json.loads(text)
    kernels = tuple(Kernel(*kernel) for kernel in kernels)
    macros, state = (tuple(map(tuple, rows)) for rows in (macros, state))
    return Launch(tuple(files), macros, architecture, kernels, rounds, state)


def _execute(call: Call) -> None:
    _decode(call.launch).start(call.addresses, call.stream)
