"""Ask the compiler for little, where hundreds of programs are compiled and each runs a few times.

No optimisation, and code for the CPU by the older emitters, in one piece, which takes a fifth of
the time. Flags are read when JAX first compiles; they are in the environment so that child
processes do the same.
"""

import os
from mmap import ACCESS_READ, mmap
from pathlib import Path

import jax
import jaxlib

FLAGS = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")


def compile_quickly() -> None:
    flags = [flag for flag in FLAGS if _known(flag)]
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    jax.config.update("jax_disable_most_optimizations", True)


def _known(flag: str) -> bool:
    """Whether this jaxlib has the flag; one that it does not know would end the process."""
    name = b"\0" + flag.partition("=")[0].removeprefix("--").encode() + b"\0"
    for library in Path(jaxlib.__file__).parent.glob("*.so"):
        with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            if content.find(name) >= 0:
                return True
    return False
