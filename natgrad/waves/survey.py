"""A seismic experiment: grid, time steps, sources, receivers and wavelet, and what was recorded."""

import io
import operator
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..core.archive import read_arrays, replace_file
from ..core.settings import Public, check_instance, check_integer, check_number, check_reals
from ..errors import InputError, count_some, warn_once
from ..grids import Grid
from .scheme import SECOND

# Cells for each of the shortest wavelengths below which the difference stencil disperses waves
# visibly: a phase error over ten wavelengths of an eighth of a period (order 4), a fifth (order 8).
CELLS_PER_WAVELENGTH = {4: 5.0, 8: 3.0}
LEAST_CELLS = 0.2  # for the middle frequency; with fewer the velocity has other units, surely
FAR_TOO_LONG = 0.02  # the limit over a dt; below this some unit may be wrong

FIELDS = ("shape", "spacing", "dt", "sources", "receivers", "wavelet")


class Survey(Public, eqx.Module):
    """Shots over a model of `shape` cells, `spacing` metres apart, for `steps` of `dt` seconds.

    `sources` is (shots, d) and `receivers` (n, d), in metres from the first cell; `wavelet` is
    (steps,) for all shots or (shots, steps). Every shot is recorded by all receivers, as traces
    (shots, receivers, steps).

    ```python
    survey = ng.waves.Survey.line((306, 120), 25.0, dt=0.0025, steps=1600, shots=21, frequency=6.0)
    ```

    Args:
        shape: Cells of the model along each axis, depth last.
        spacing: Size of a cell in metres.
        dt: Time step in seconds.
        sources: Positions of the sources in metres, one shot each.
        receivers: Positions of the receivers in metres.
        wavelet: The source in time, for all shots or for each.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    spacing: tuple[float, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    sources: np.ndarray
    receivers: np.ndarray
    wavelet: np.ndarray

    def __init__(
        self,
        shape: tuple[int, ...],
        spacing: float | tuple[float, ...],
        dt: float,
        sources: ArrayLike,
        receivers: ArrayLike,
        wavelet: ArrayLike,
    ):
        self.shape = check_shape(shape, 2)
        sides = check_reals(spacing, "spacing", "one positive number, in metres").reshape(-1)
        self.spacing = tuple(sides.tolist()) * (len(self.shape) if sides.size == 1 else 1)
        self.dt = float(check_number(dt, "dt", positive=True, example=0.001))
        places = f"(n, {len(self.shape)}), in metres"
        self.sources = np.atleast_2d(check_reals(sources, "sources", places))
        self.receivers = np.atleast_2d(check_reals(receivers, "receivers", places))
        self.wavelet = check_reals(wavelet, "wavelet", "ng.waves.ricker(frequency, dt, steps)")
        self._check()

    def _check(self) -> None:
        fits = len(self.spacing) == len(self.shape) and min(self.spacing) > 0
        if not (fits and np.all(np.isfinite(self.spacing))):
            raise InputError("spacing", f"{self.spacing} does not fit", "one positive number")
        for name, points in (("sources", self.sources), ("receivers", self.receivers)):
            if points.size == 0:
                raise InputError(
                    name, f"have shape {points.shape}", f"(n, {len(self.shape)}), in metres"
                )
        if self.wavelet.ndim not in (1, 2) or self.wavelet.size == 0:
            raise InputError("wavelet", f"has shape {self.wavelet.shape}", "(steps,)")
        if self.wavelet.ndim == 2 and len(self.wavelet) != self.shots:
            what = f"has {len(self.wavelet)} rows for {self.shots} shots"
            raise InputError("wavelet", what, "(steps,), or one row for each shot")
        if not np.all(np.isfinite(self.wavelet)) or not np.any(self.wavelet):
            raise InputError("wavelet", "is zero or not finite", "ng.waves.ricker(...)")
        if self.highest_frequency == 0:
            what = f"does not oscillate in its {self.steps} samples"
            raise InputError("wavelet", what, "ng.waves.ricker(frequency, dt, steps)")

    @classmethod
    def line(
        cls,
        shape: tuple[int, ...],
        spacing: float,
        *,
        dt: float,
        steps: int,
        shots: int,
        frequency: float,
        depth: float | None = None,
    ) -> "Survey":
        """Sources spread evenly over a line, a receiver in every cell of it, a Ricker wavelet.

        The line runs along the first axis, in the middle of a second horizontal one, at `depth`
        metres, two cells if None.
        """
        check_integer(shots, "shots", 1, example=21)
        shape = check_shape(shape, 2)
        spacing = float(check_number(spacing, "spacing", positive=True, example=25.0))
        check_number(depth, "depth", optional=True)
        length, below = (shape[0] - 1) * spacing, 2 * spacing if depth is None else depth
        across = [spacing * (n // 2) for n in shape[1:-1]]
        place = lambda xs: np.array([[x, *across, below] for x in xs])
        sources = np.linspace(0.0, length, shots) if shots > 1 else [length / 2]
        receivers = spacing * np.arange(shape[0])
        wavelet = ricker(frequency, dt, steps)
        return cls(shape, spacing, dt, place(sources), place(receivers), wavelet)

    @cached_property
    def shots(self) -> int:
        return len(self.sources)

    @cached_property
    def steps(self) -> int:
        return self.wavelet.shape[-1]

    @cached_property
    def data_shape(self) -> tuple[int, int, int]:
        """(shots, receivers, steps)."""
        return self.shots, len(self.receivers), self.steps

    @cached_property
    def gather_grid(self) -> Grid:
        """Receivers and time of one shot as the unit square, for losses and metrics on the data."""
        return Grid((0.0, 0.0), (1.0, 1.0), self.data_shape[1:])

    @cached_property
    def trace_grid(self) -> Grid:
        """The time of one trace as the unit interval: metrics on it compare trace by trace."""
        return Grid((0.0,), (1.0,), self.data_shape[2:])

    @cached_property
    def highest_frequency(self) -> float:
        """Above it there is only 10⁻⁴ of the wavelets' energy, in Hz."""
        return self._frequency_below(1e-4)

    @cached_property
    def middle_frequency(self) -> float:
        """Half of the wavelets' energy is above it, in Hz."""
        return self._frequency_below(0.5)

    def _frequency_below(self, share: float) -> float:
        """Above it there is only this share of the wavelets' energy, in Hz."""
        spectrum = np.abs(np.fft.rfft(np.atleast_2d(self.wavelet), axis=-1)) ** 2
        energy = np.cumsum(spectrum.sum(axis=0)[::-1])[::-1]
        last = np.flatnonzero(energy > share * energy[0])[-1]
        return float(np.fft.rfftfreq(self.steps, self.dt)[last])

    def fastest_stable(self, order: int) -> float:
        """The velocity that dt is short enough for.

        It is 2/(dt √μ), μ the largest eigenvalue of −Δ as differenced: the stencil on the
        oscillation from cell to cell.
        """
        centre, *others = SECOND[order]
        alternating = sum(2 * w * (-1) ** k for k, w in enumerate(others, start=1))
        largest = sum(-(centre + alternating) / h**2 for h in self.spacing)
        return 2.0 / (self.dt * float(np.sqrt(largest)))

    def check_stable(self, velocity: float, order: int) -> None:
        """Raise `InputError` where dt is too long for waves as fast as this."""
        limit = self.dt * self.fastest_stable(order) / velocity
        if self.dt > limit:
            what = f"{self.dt:g} s is unstable at {velocity:g} m/s: the limit is {limit:.3g} s"
            advice = f"dt={0.9 * limit:.2g}"
            if limit < FAR_TOO_LONG * self.dt:
                advice += ", if units are right: spacing in m, velocity in m/s, theta in s²/km²"
            raise InputError("dt", what, advice)

    def check_velocity(self, velocity: np.ndarray, order: int) -> None:
        """Raise `InputError` if the scheme would be unstable; warn if waves would disperse."""
        if velocity.shape != self.shape:
            what = f"has shape {velocity.shape}, the survey {self.shape}"
            raise InputError("velocity", what, "a model on the survey's grid")
        wrong = int(np.sum(~(np.isfinite(velocity) & (velocity > 0))))
        if wrong:
            what = f"{count_some(wrong, velocity.size, 'cells')} not finite and positive"
            raise InputError("velocity", what, "velocities in m/s, or bounds that keep them there")
        self.check_stable(float(velocity.max()), order)
        frequency = self.highest_frequency
        cells = float(velocity.min()) / (frequency * max(self.spacing))
        middle = cells * frequency / max(self.middle_frequency, 0.1 * frequency)
        if middle < LEAST_CELLS:
            what = (
                f"{velocity.min():g} m/s make waves of {middle:.2g} cells, which no grid can carry"
            )
            advice = (
                "1000 * velocity if it is in km/s; theta is squared slowness in s²/km², "
                "ng.waves.squared_slowness(velocity)"
            )
            raise InputError("velocity", what, advice)
        if cells < CELLS_PER_WAVELENGTH[order]:
            finest = float(velocity.min()) / (frequency * CELLS_PER_WAVELENGTH[order])
            warn_once(
                f"dispersion {self.spacing} {frequency:.3g} {cells:.1g}",
                f"the shortest wave, {frequency:.3g} Hz at {velocity.min():g} m/s, spans "
                f"only {cells:.2g} cells, and order {order} needs {CELLS_PER_WAVELENGTH[order]:g}: "
                f"waves will be dispersed. Try: a spacing of {finest:.3g} m, a lower frequency"
                + (", or order=8." if order < max(SECOND) else "."),
            )


class Shots(Public, eqx.Module):
    """Traces (shots, receivers, steps) recorded in a survey.

    ```python
    shots = ng.waves.Shots(survey, traces).scaled()
    problem = ng.Problem(model, ng.LeastSquares(shots.data, survey.gather_grid))
    ```

    Args:
        survey: The survey.
        data: Its traces; integers and bfloat16 become float32.
    """

    survey: Survey
    data: np.ndarray

    def __init__(self, survey: Survey, data: ArrayLike):
        check_instance("survey", survey, Survey, "ng.waves.Survey.line(...)")
        try:
            data = np.asarray(data)
        except ValueError as error:  # rows of several lengths
            raise InputError("data", f"is no array ({error})", str(survey.data_shape)) from error
        if data.shape != survey.data_shape:
            shots, receivers, steps = survey.data_shape
            what = f"has shape {data.shape}, the survey (shots, receivers, steps) "
            advice = "one trace for each shot and receiver, of as many samples as the wavelet"
            if data.shape == (shots, steps, receivers):
                advice = "data.swapaxes(1, 2): time is the last axis"
            raise InputError("data", what + f"{survey.data_shape}", advice)
        if data.dtype.kind not in "fiu" and data.dtype != jnp.bfloat16:
            raise InputError("data", f"has values of {data.dtype}", "real numbers, such as float32")
        data = data if data.dtype.kind == "f" else data.astype(np.float32)
        if not np.all(np.isfinite(data)):
            wrong = int(np.sum(~np.isfinite(data)))
            what = f"{count_some(wrong, data.size, 'values')} not finite"
            raise InputError("data", what, "zeros there and a mask in the loss: see docs/waves.md")
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
        """As a NumPy archive (.npz), all of it or nothing."""
        settings = {name: getattr(self.survey, name) for name in FIELDS}
        content = io.BytesIO()
        np.savez(content, **settings, data=self.data)
        name = str(path) if str(path).endswith(".npz") else f"{path}.npz"
        replace_file(Path(name), content.getbuffer())

    @classmethod
    def load(cls, path: str | Path) -> "Shots":
        """From an archive that `save` has made; nothing in it is executed."""
        path = path if Path(path).is_file() else f"{path}.npz"  # as `save` has called it
        try:
            arrays: dict[str, Any] = read_arrays(path)
            data, settings = arrays["data"], {name: arrays[name] for name in FIELDS}
            return cls(Survey(**settings), data)
        except InputError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy each have their own
            raise InputError("path", f"{path} holds no shots ({error})", "Shots.save") from error


def check_shape(shape: Any, least: int) -> tuple[int, ...]:
    """The sides of a model, two or three integers ≥ `least`, or `InputError`."""
    try:
        sides = tuple(map(operator.index, shape))
    except TypeError:  # no sequence, or of something else
        sides = ()
    if len(sides) not in (2, 3) or min(sides) < least:
        raise InputError("shape", f"{shape} is no grid", "(306, 120), or three whole numbers")
    return sides


def ricker(frequency: float, dt: float, steps: int, delay: float | None = None) -> np.ndarray:
    """(1 − 2a)e^{−a} with a = (πf(t − delay))²: a pulse with its peak at `delay`, 1.2/f if None.

    ```python
    ng.waves.ricker(6.0, dt=0.0025, steps=1600)
    ```

    Args:
        frequency: Peak frequency f in Hz.
        dt: Time step in seconds.
        steps: Number of samples.
        delay: Time of the peak in seconds.
    """
    frequency = float(check_number(frequency, "frequency", positive=True, example=6.0))
    dt = float(check_number(dt, "dt", positive=True, example=0.001))
    check_integer(steps, "steps", 1, example=1600)
    if delay is not None:
        check_reals(delay, "delay", "delay=0.2, in seconds")
    time = np.arange(steps) * dt - (1.2 / frequency if delay is None else delay)
    a = (np.pi * frequency * time) ** 2
    return (1 - 2 * a) * np.exp(-a)


def low_pass(signal: np.ndarray, dt: float, corner: float) -> np.ndarray:
    """The signal along its last axis without its frequencies above `corner`, in Hz.

    A causal Butterworth filter of order 6. It commutes with time stepping, so filtered
    data are, up to rounding, the data of the filtered wavelet. A zero-phase filter would reach
    beyond both ends of the record.

    Args:
        signal: Samples along the last axis.
        dt: Time step in seconds.
        corner: Corner frequency in Hz.
    """
    check_number(corner, "corner", positive=True, example=4.0)
    if not corner < 0.5 / dt:
        what = f"{corner!r} Hz is not between 0 and half the sampling rate, {0.5 / dt:g} Hz"
        raise InputError("corner", what, "a frequency of the wavelet's band")
    sections = scipy.signal.butter(6, corner, fs=1.0 / dt, output="sos")
    return np.asarray(scipy.signal.sosfilt(sections, signal, axis=-1))
