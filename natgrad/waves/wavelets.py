"""Source signatures, and what their spectrum asks of the grid."""

import numpy as np
from scipy.signal import butter, sosfilt

from ..errors import InputError


def ricker(frequency: float, dt: float, steps: int, delay: float | None = None) -> np.ndarray:
    """(1 − 2a)e^{−a} with a = (πf(t − delay))²: a pulse with its peak at `delay`, 1.2/f if None.

    ```python
    ng.waves.ricker(6.0, dt=0.0025, steps=1600)
    ```
    """
    if not (np.isfinite(frequency) and frequency > 0):
        raise InputError("frequency", f"{frequency!r} is not positive", "frequency=6.0, in Hz")
    time = np.arange(steps) * dt - (1.2 / frequency if delay is None else delay)
    a = (np.pi * frequency * time) ** 2
    return (1 - 2 * a) * np.exp(-a)


def highest_frequency(wavelet: np.ndarray, dt: float, share: float = 1e-4) -> float:
    """Above it there is only this share of the energy, in Hz."""
    spectrum = np.abs(np.fft.rfft(np.atleast_2d(wavelet), axis=-1)) ** 2
    energy = np.cumsum(spectrum.sum(axis=0)[::-1])[::-1]
    above = energy > share * energy[0]
    return float(np.fft.rfftfreq(np.shape(wavelet)[-1], dt)[np.flatnonzero(above)[-1]])


def low_pass(signal: np.ndarray, dt: float, corner: float) -> np.ndarray:
    """The signal along its last axis without its frequencies above `corner`, in Hz.

    A causal Butterworth filter of order 6. It commutes with the steps in time, so that filtered
    data are, to rounding, the data of the filtered wavelet; a filter without phase would reach
    beyond both ends of the record.
    """
    if not 0 < corner < 0.5 / dt:
        what = f"{corner!r} Hz is not between 0 and half the sampling rate, {0.5 / dt:g} Hz"
        raise InputError("corner", what, "a frequency of the wavelet's band")
    return np.asarray(sosfilt(butter(6, corner, fs=1.0 / dt, output="sos"), signal, axis=-1))
