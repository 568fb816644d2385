"""How much of the source field to keep: every step, every n-th, or checkpoints."""

from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .survey import Survey
from .wavelets import highest_frequency

# A thinned field must sample the highest frequency of the wavelet at least this often a period:
# at 4 the products differ from those of the whole field by the share stated in docs/waves.md.
SAMPLES_A_PERIOD = 4.0


class Storage(NamedTuple):
    """Every n-th q, or the fields at the start of every segment of `segment` such blocks."""

    every: int
    segment: int | None
    bytes: int


def plan_storage(
    survey: Survey, absorbing: int, halo: int, itemsize: int, memory: int, every: int | None
) -> Storage:
    """The densest storage that fits into `memory` bytes, else checkpoints, else `InputError`.

    n is 1, 2 or a multiple of 3, for which the loop over time is shortest; `every` prescribes it.
    """
    cells = int(np.prod([n + 2 * absorbing for n in survey.shape]))
    field = survey.shots * itemsize * cells
    wanted = _spacings(survey) if every is None else [every]
    for n in wanted:
        if (needed := -(-survey.steps // n) * field) <= memory:
            return Storage(n, None, needed)
    n = wanted[0]
    blocks = -(-survey.steps // n)
    padded = int(np.prod([side + 2 * (absorbing + halo) for side in survey.shape]))
    two_fields = 2 * survey.shots * itemsize * padded
    segments = max(1, round(float(np.sqrt(blocks * field / two_fields))))
    length = -(-blocks // segments)
    needed = -(-blocks // length) * two_fields + length * field
    if needed > memory:
        stored = -(-survey.steps // wanted[-1]) * field
        raise InputError(
            "memory",
            f"{_size(memory)} hold neither the source field of {survey.shots} shots "
            f"({_size(stored)} at every {wanted[-1]}. step) nor its checkpoints ({_size(needed)})",
            "more memory, or mini-batches of shots: batch=ng.MiniBatch(size, of='functions')",
        )
    return Storage(n, length, needed)


def _spacings(survey: Survey) -> list[int]:
    """Steps between stored fields that still sample the waves, from dense to thin."""
    period = 1.0 / (highest_frequency(survey.wavelet, survey.dt) * survey.dt)
    longest = int(period / SAMPLES_A_PERIOD)
    return [n for n in range(1, max(2, longest + 1)) if n <= 2 or n % 3 == 0]


def _size(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**28 else f"{count / 2**20:.3g} MiB"
