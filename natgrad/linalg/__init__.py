"""Dense kernels under the direct solvers: symmetric products, pivoted QR, minimum-norm factors.

Everything works inside `jit` and `vmap`, in float32 and float64. Where the best algorithm differs
between the CPU and accelerators, `jax.lax.platform_dependent` chooses when the program is compiled.
"""

from .minimum_norm import MinimumNormFactor, minimum_norm_factor
from .pivoting import PivotedQR, pivoted_qr
from .products import gram, gram_outer
from .triangles import condition_estimate, safe_cholesky

__all__ = [
    "MinimumNormFactor",
    "PivotedQR",
    "condition_estimate",
    "gram",
    "gram_outer",
    "minimum_norm_factor",
    "pivoted_qr",
    "safe_cholesky",
]
