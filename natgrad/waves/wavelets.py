"""Source signatures, and what their spectrum asks of the grid."""

import numpy as np

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


def low_pass(signal: np.ndarray, dt: float, corner: float, width: float = 0.25) -> np.ndarray:
    """The signal without its frequencies above `corner`, along the time axis -1 or the only one.

    The spectrum is multiplied by a cosine flank from corner·(1 − width) to corner·(1 + width): a
    linear filter without a phase, the same for the wavelet and the data.
    """
    steps = signal.shape[-1]
    frequency = np.fft.rfftfreq(steps, dt)
    position = np.clip((frequency / corner - (1 - width)) / (2 * width), 0.0, 1.0)
    gain = np.cos(0.5 * np.pi * position) ** 2
    return np.fft.irfft(gain * np.fft.rfft(signal, axis=-1), n=steps, axis=-1)
