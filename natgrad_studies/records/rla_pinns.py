"""rla-pinns from a checkout, in a process of its own: what it prints of its own problems.

Its settings are those of the best run of ENGD-Woodbury in its tables, its error is absolute.
Reference: github.com/andresguzco/rla-pinns, arXiv:2505.12149.
"""

import re
import subprocess
import sys
from pathlib import Path

from natgrad import InputError

SETTINGS = {
    "poisson-5d": {
        "equation": "poisson",
        "boundary_condition": "cos_sum",
        "dim_Omega": 5,
        "model": "mlp-tanh-64-64-48-48",
        "RNGD_damping": 3.173212e-12,
    },
    "poisson-10d": {
        "equation": "poisson",
        "boundary_condition": "u_weinan",
        "dim_Omega": 10,
        "model": "mlp-tanh-256-256-128-128",
        "RNGD_damping": 3.900645e-07,
    },
    "heat-4d": {
        "equation": "heat",
        "boundary_condition": "sin_sum",
        "dim_Omega": 4,
        "model": "mlp-tanh-256-256-128-128",
        "RNGD_damping": 1.933629e-07,
    },
}
COMMON = {"optimizer": "RNGD", "N_Omega": 3000, "N_dOmega": 500, "batch_frequency": 1}
LINE = re.compile(r"Step: (\S+), Loss: (\S+), L2 Error: (\S+), .*Time: (\S+)s")
Row = tuple[int, float, float, float]  # step, loss, error, seconds


def run_rla_pinns(checkout: Path, problem: str, seed: int, seconds: float) -> list[Row]:
    """What its training script prints in so many seconds."""
    given = COMMON | SETTINGS[problem] | {"num_seconds": seconds, "num_steps": 0}
    given |= {"model_seed": seed, "data_seed": seed, "RNGD_equation": given["equation"]}
    script = checkout / "rla_pinns" / "train.py"
    command = [sys.executable, str(script), *(f"--{name}={value}" for name, value in given.items())]
    found = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    rows = read_rows(found.stdout)
    if not rows:
        last = (found.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        what = f"{script} has no result: {last}"
        raise InputError("rla_pinns", what, "its requirements, installed for this Python")
    return rows


def read_rows(text: str) -> list[Row]:
    """Every line of its log.

    >>> read_rows("Step: 0000012, Loss: 0.5, L2 Error: 0.25, Interior: 0.1, Time: 3.5s")
    [(12, 0.5, 0.25, 3.5)]
    """
    found = [match.groups() for match in LINE.finditer(text)]
    return [(int(float(n)), float(loss), float(error), float(t)) for n, loss, error, t in found]
