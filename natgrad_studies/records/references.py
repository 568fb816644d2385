"""Solutions to measure errors against: a formula, and Fourier series in space.

Each function has its resolution as an argument, so that two resolutions can be compared: they agree
to a relative 1e-10. NumPy in double precision, some seconds each.
"""

from collections.abc import Callable

import numpy as np
import scipy.special

VISCOSITY = 0.01 / np.pi  # of Burgers' equation
DISPERSION = 0.022**2  # of the Korteweg–de Vries equation
DIFFUSION = 1e-4  # of the Allen–Cahn equation
KURAMOTO = (5.0, 0.5, 0.005)  # α, β, γ of the Kuramoto–Sivashinsky equation
CONTOUR = 64  # points on the circle around each hL, for its φ-functions
Nonlinear = Callable[[np.ndarray], np.ndarray]


def burgers(times: np.ndarray, x: np.ndarray, nodes: int = 100) -> np.ndarray:
    """u_t + u u_x = ν u_xx on [−1, 1] from −sin πx, by Cole and Hopf's formula.

        u(t, x) = −∫ sin(πy) F(y) dz / ∫ F(y) dz,   y = x − z,
        F(y) = exp(−cos(πy)/(2πν)) exp(−z²/(4νt)),

    with Gauss–Hermite quadrature in z. Times and places are broadcast against each other.
    """
    z, weights = scipy.special.roots_hermite(nodes)
    y = x[..., None] - np.sqrt(4 * VISCOSITY * times[..., None]) * z
    exponent = -np.cos(np.pi * y) / (2 * np.pi * VISCOSITY)
    heat = weights * np.exp(exponent - exponent.max(axis=-1, keepdims=True))
    return -np.sum(heat * np.sin(np.pi * y), axis=-1) / np.sum(heat, axis=-1)


# --- periodic in space: Fourier series, exponential time differencing -----------------------------


def etdrk4(
    linear: np.ndarray, nonlinear: Nonlinear, start: np.ndarray, times: np.ndarray, steps: int
) -> np.ndarray:
    """v' = L v + N(v) with a diagonal L, at equidistant times, `steps` steps from one to the next.

    Runge–Kutta's method of order 4 with exact exponentials of hL; its φ-functions are means over
    a circle around each hL. Reference: Kassam and Trefethen, SIAM J. Sci. Comput. 26 (2005).
    """
    h = (times[1] - times[0]) / steps
    circle = np.exp(2j * np.pi * (np.arange(CONTOUR) + 0.5) / CONTOUR)
    z = h * linear[:, None] + circle
    mean = lambda values: h * values.mean(axis=1)
    whole, half = np.exp(h * linear), np.exp(h * linear / 2)
    inner = mean((np.exp(z / 2) - 1) / z)
    first = mean((-4 - z + np.exp(z) * (4 - 3 * z + z**2)) / z**3)
    middle = mean((2 + z + np.exp(z) * (z - 2)) / z**3)
    last = mean((-4 - 3 * z - z**2 + np.exp(z) * (4 - z)) / z**3)
    v, found = start.astype(complex), [start.astype(complex)]
    for _ in times[1:]:
        for _ in range(steps):
            at_v = nonlinear(v)
            a = half * v + inner * at_v
            at_a = nonlinear(a)
            b = half * v + inner * at_a
            at_b = nonlinear(b)
            c = half * a + inner * (2 * at_b - at_v)
            v = whole * v + first * at_v + 2 * middle * (at_a + at_b) + last * nonlinear(c)
        found.append(v)
    return np.stack(found)


class Series:
    """Fourier series on [−1, 1) with `modes` points; powers without aliasing."""

    def __init__(self, modes: int):
        self.modes = modes
        self.slope = 1j * np.pi * np.arange(modes // 2 + 1)

    def values(self, v: np.ndarray, count: int) -> np.ndarray:
        """At x = −1 + 2j/count; `count` divides the number of modes."""
        shifted = v * np.where(np.arange(v.shape[-1]) % 2, -1.0, 1.0)  # from x = 0 to x = −1
        return np.fft.irfft(shifted, self.modes)[..., :: self.modes // count] * self.modes

    def power(self, v: np.ndarray, exponent: int) -> np.ndarray:
        """The series of uᵖ up to p = 3, from values on a grid twice as fine."""
        fine = np.fft.irfft(v, 2 * self.modes) * 2 * self.modes
        return np.fft.rfft(fine**exponent)[: v.size] / (2 * self.modes)

    def mode(self, amplitude: complex) -> np.ndarray:
        """cos πx for ½, −sin πx for ½i."""
        v = np.zeros(self.slope.size, complex)
        v[1] = amplitude
        return v


def places(count: int) -> np.ndarray:
    """x = −1 + 2j/count: where the periodic solutions below are given."""
    return -1 + 2 * np.arange(count) / count


def allen_cahn(times: np.ndarray, count: int, modes: int = 2048, steps: int = 20) -> np.ndarray:
    """u_t = 10⁻⁴ u_xx + 5(u − u³), periodic on [−1, 1), from x² cos πx, at `count` places.

    The start has a corner at x = ±1: its series is exact, ∫ x² cos(mπx) dx = 4(−1)ᵐ/(mπ)², since
    sampling it would leave an error of the order of the square of the spacing.
    """
    series, x = Series(modes), places(count)
    m = np.arange(series.slope.size + 1)
    moment = np.where(m == 0, 2 / 3, 4 * (-1.0) ** m / (np.pi * np.maximum(m, 1)) ** 2)
    start = (moment[m[:-1] + 1] + moment[np.abs(m[:-1] - 1)]) / 4
    linear = DIFFUSION * (series.slope**2).real + 5
    found = etdrk4(linear, lambda v: -5 * series.power(v, 3), start, times, steps)
    return np.concatenate([(x**2 * np.cos(np.pi * x))[None], series.values(found[1:], count)])


def korteweg_de_vries(
    times: np.ndarray, count: int, modes: int = 512, steps: int = 200
) -> np.ndarray:
    """u_t + u u_x + 0.022² u_xxx = 0, periodic on [−1, 1), from cos πx, at `count` places."""
    series = Series(modes)
    advect = lambda v: -series.slope / 2 * series.power(v, 2)
    found = etdrk4(-DISPERSION * series.slope**3, advect, series.mode(0.5), times, steps)
    return series.values(found, count)


def kuramoto_sivashinsky(
    times: np.ndarray, count: int, modes: int = 128, steps: int = 250
) -> np.ndarray:
    """u_t + 5 u u_x + ½ u_xx + 0.005 u_xxxx = 0, periodic on [−1, 1), from −sin πx."""
    series, (alpha, beta, gamma) = Series(modes), KURAMOTO
    advect = lambda v: -alpha * series.slope / 2 * series.power(v, 2)
    linear = (-beta * series.slope**2 - gamma * series.slope**4).real
    return series.values(etdrk4(linear, advect, series.mode(0.5j), times, steps), count)
