"""Recorded data with the survey that they belong to."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import equinox as eqx
import numpy as np

from ..errors import InputError
from .survey import Survey
from .wavelets import low_pass

FIELDS = ("shape", "spacing", "dt", "sources", "receivers", "wavelet", "data")


class Shots(eqx.Module):
    """Traces (shots, receivers, steps) recorded in a survey.

    ```python
    shots = ng.waves.Shots(survey, traces).scaled()
    problem = ng.Problem(model, ng.LeastSquares(shots.data, survey.gather_grid))
    ```
    """

    survey: Survey
    data: np.ndarray

    def __init__(self, survey: Survey, data: Any):
        data = np.asarray(data)
        if data.shape != survey.data_shape:
            what = f"has shape {data.shape}, the survey (shots, receivers, steps) "
            raise InputError("data", what + f"{survey.data_shape}", _other_order(data, survey))
        if not np.all(np.isfinite(data)):
            what = f"{int(np.sum(~np.isfinite(data)))} of its {data.size} values are not finite"
            raise InputError("data", what, "traces with the dead ones set to zero")
        self.survey, self.data = survey, data

    def scaled(self) -> "Shots":
        """Data of unit root mean square, the wavelet divided by the same number."""
        size = float(np.sqrt(np.mean(self.data.astype(float) ** 2)))
        if size == 0:
            raise InputError("data", "are zero", "recorded waves")
        survey = eqx.tree_at(lambda s: s.wavelet, self.survey, self.survey.wavelet / size)
        return Shots(survey, (self.data / size).astype(self.data.dtype))

    def band(self, highest: float) -> "Shots":
        """Data and wavelet without their frequencies above `highest` Hz.

        Inverting low bands before higher ones keeps the predicted waves within half a period of
        the recorded ones: frequency continuation (Bunks et al., Geophysics 60, 1995).
        """
        dt = self.survey.dt
        wavelet = low_pass(self.survey.wavelet, dt, highest)
        survey = eqx.tree_at(lambda s: s.wavelet, self.survey, wavelet)
        return Shots(survey, low_pass(self.data, dt, highest).astype(self.data.dtype))

    def save(self, path: str | Path) -> None:
        """As a NumPy archive (.npz)."""
        survey = self.survey
        arrays = {name: getattr(survey, name) for name in FIELDS[:-1]}
        np.savez_compressed(path, **arrays, data=self.data)

    @classmethod
    def load(cls, path: str | Path) -> "Shots":
        """From an archive that `save` has made; nothing in it is executed."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                values = {name: archive[name] for name in FIELDS}
        except (OSError, KeyError, ValueError, BadZipFile) as error:
            raise InputError("path", f"{path} holds no shots ({error})", "Shots.save") from error
        survey = Survey(
            tuple(values["shape"]),
            tuple(values["spacing"]),
            float(values["dt"]),
            values["sources"],
            values["receivers"],
            values["wavelet"],
        )
        return cls(survey, values["data"])


def _other_order(data: np.ndarray, survey: Survey) -> str:
    shots, receivers, steps = survey.data_shape
    if data.shape == (shots, steps, receivers):
        return "data.swapaxes(1, 2): time is the last axis"
    return "one trace for each shot and receiver, of as many samples as the wavelet"
