"""Quick compilation and double precision for every test; the Hypothesis profile; references."""

import atexit
import gc
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import matplotlib
import pytest

# Hundreds of programs are compiled and each runs a few times, so the compiler is asked for little:
# no optimisation, and code by the older emitters in one piece, which takes half the time. Set
# before JAX is imported, and in the environment, so that child processes do the same. XLA aborts
# on a flag that it does not know, and later versions have dropped these.
# NATGRAD_TEST_OPTIMISED=1 compiles as for a user.
if not os.environ.get("NATGRAD_TEST_OPTIMISED"):
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"

# Nothing is written into the user's cache. Processes share what the first of them has made.
if "NATGRAD_CACHE" not in os.environ:
    os.environ["NATGRAD_CACHE"] = tempfile.mkdtemp(prefix="natgrad-tests-")
    atexit.register(shutil.rmtree, os.environ["NATGRAD_CACHE"], ignore_errors=True)

import jax

import natgrad.core.compiled
import natgrad.errors

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 4)  # for meshes; everything else runs on the first
matplotlib.use("Agg")

# Thousands of compiled programs stay alive: looking through them for garbage takes a while.
gc.set_threshold(200_000, 20, 20)

# The same draws every time; HYPOTHESIS_PROFILE=random looks for others that break a law.
for name, fixed in (("natgrad", True), ("random", False)):
    hypothesis.settings.register_profile(
        name, deadline=None, max_examples=15, derandomize=fixed, database=None
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "natgrad"))

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"


# A program takes a dozen memory maps, and beyond Linux's 65,530 the process crashes. Caches are
# cleared between files, and within one at the last moment only: what a test compiles should not
# hang on the tests before it.
natgrad.core.compiled.MOST_MAPS = 0.8


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Clear the caches where they are too full for another file."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > 40_000:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def _no_warning_given_yet():
    """What is said once in a process is said in each test that gives cause for it."""
    natgrad.errors._warned.clear()


@pytest.fixture(scope="session")
def read_reference() -> Callable[[str], dict]:
    """Reads a file of reference values, where the shared folder is present."""

    def read(name: str) -> dict:
        path = REFERENCE / name
        if not path.exists():
            pytest.skip(f"reference values not found at {path}")
        return json.loads(path.read_text())

    return read


@pytest.fixture(scope="session")
def mixture_reference(read_reference) -> dict:
    """Reference values of the Gaussian-mixture problem."""
    return read_reference("gaussian_mixture.json")
