"""Double precision for every test; a fixed Hypothesis profile; the shared reference files."""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import jax
import matplotlib
import pytest

from quick_compilation import compile_quickly

# NATGRAD_TEST_OPTIMISED=1 compiles as for a user.
if not os.environ.get("NATGRAD_TEST_OPTIMISED"):
    compile_quickly()

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 4)  # for meshes; everything else runs on the first
matplotlib.use("Agg")

# Thousands of compiled programs stay alive: looking through them for garbage takes a while.
gc.set_threshold(200_000, 20, 20)

hypothesis.settings.register_profile("natgrad", deadline=None, max_examples=15, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "natgrad"))

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"


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
