"""The CUDA kernels on a CPU: the same source, a coroutine for each thread (host_threads.h)."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path

from natgrad.core import cuda

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
seed = [0]  # of the order in which threads run
compiling = threading.Lock()


@cache
def library(launch: cuda.Launch) -> ctypes.CDLL:
    source = launch.source + "".join(f"HOST_LAUNCH({kernel.name})\n" for kernel in launch.kernels)
    name = hashlib.sha256(source.encode() + (HERE / "host_threads.h").read_bytes()).hexdigest()[:24]
    path = Path(tempfile.gettempdir()) / f"natgrad-host-{name}.so"
    if not path.exists():
        command = [COMPILER, "-O1", "-w", "-std=c++20", "-shared", "-fPIC", f"-I{HERE}"]
        own = path.with_suffix(f".{os.getpid()}")  # another process may compile the same
        given = [*command, "-x", "c++", "-", "-o", str(own)]
        subprocess.run(given, input=source.encode(), check=True)
        own.replace(path)
    return ctypes.PyDLL(str(path))  # keeps Python's lock: it runs one launch at a time


def execute(call: cuda.Call) -> None:
    launch = cuda._decode(call.launch)
    addresses = call.addresses
    with compiling:  # devices of a mesh call at once
        found = library(launch)
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    for number in range(launch.rounds):
        for kernel in launch.kernels:
            start = getattr(found, f"launch_{kernel.name}")
            start(pointers, kernel.grid, seed[0] + number, number)


def install() -> None:
    """Let a CPU run the launches of `natgrad.core.cuda`."""
    cuda.register(cuda.TARGET, "cpu", execute)
