"""Double precision for every test; a fixed Hypothesis profile; the shared reference files."""

import json
import os
from mmap import ACCESS_READ, mmap
from pathlib import Path

import hypothesis
import jax
import jaxlib
import matplotlib
import pytest

# The suite compiles hundreds of small programs and runs each of them a few times, so it asks the
# compiler for little: no optimisation, and code for the CPU by the older emitters, in one piece,
# which takes a fifth of the time. Flags are read when JAX first compiles; they are in the
# environment so that child processes do the same. NATGRAD_TEST_OPTIMISED=1 compiles as for a user.
QUICK = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
OPTIMISED = bool(os.environ.get("NATGRAD_TEST_OPTIMISED"))


def known(flag: str) -> bool:
    """Whether this jaxlib has the flag; one that it does not know would end the process."""
    name = b"\0" + flag.partition("=")[0].removeprefix("--").encode() + b"\0"
    for library in Path(jaxlib.__file__).parent.glob("*.so"):
        with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            if content.find(name) >= 0:
                return True
    return False


if not OPTIMISED:
    flags = [flag for flag in QUICK if known(flag)]
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", not OPTIMISED)
matplotlib.use("Agg")

hypothesis.settings.register_profile("natgrad", deadline=None, max_examples=15, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "natgrad"))

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def mixture_reference() -> dict:
    """Reference values of the Gaussian-mixture problem, where the shared folder is present."""
    path = SHARED / "reference" / "gaussian_mixture.json"
    if not path.exists():
        pytest.skip(f"reference values not found at {path}")
    return json.loads(path.read_text())
