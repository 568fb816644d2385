"""Structural similarity of two images."""

import numpy as np
from scipy.ndimage import gaussian_filter

SIGMA, TRUNCATE = 1.5, 3.5


def structural_similarity(image: np.ndarray, other: np.ndarray, data_range: float = 1.0) -> float:
    """Mean SSIM with a Gaussian window of standard deviation 1.5, borders of a window left out.

    (2μ_xμ_y + C₁)(2σ_xy + C₂) / (μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂), C = (0.01, 0.03)²·range².

    The paper's start (0.31) comes out for velocities in km/s and a range of 1.

    ```python
    structural_similarity(velocity / 1000, true / 1000)
    ```

    Reference: Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Process. 13 (2004).
    """
    mean = lambda x: gaussian_filter(x, SIGMA, truncate=TRUNCATE)
    x, y = np.asarray(image, float), np.asarray(other, float)
    first, second = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    mx, my = mean(x), mean(y)
    vx, vy, vxy = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    top = (2 * mx * my + first) * (2 * vxy + second)
    index = top / ((mx**2 + my**2 + first) * (vx + vy + second))
    border = int(TRUNCATE * SIGMA + 0.5)
    inner = index[(slice(border, -border),) * index.ndim]
    return float(np.mean(inner if inner.size else index))
