"""Settings that belong together: methods to train a network on residuals, by name.

| recipe | when to use it |
|---|---|
| `levenberg_marquardt` | the default: fixed points, p or k up to some thousand |
| `gauss_newton` | to compare with: a fixed damping may wait long on a plateau |
| `spring` | points redrawn in every iteration |
| `nystrom` | p > k, and more than some thousand points |
| `matrix_free` | neither G nor the kernel matrix fits |

Each returns a `NaturalGradient`, whose settings may be changed: `ng.spring(metric, momentum=0.9)`.
"""

from typing import Any

from ..direction.damping import LevenbergMarquardt, RelativeDamping
from ..metrics.base import Metric
from ..solvers import CG, Nystrom, NystromKernel
from .methods import NaturalGradient
from .steps import Backtracking


def levenberg_marquardt(metric: Metric, **settings: Any) -> NaturalGradient:
    """Levenberg–Marquardt with a line search along a curve of order 3.

    ```python
    ng.minimize(pinn.problem, net, ng.levenberg_marquardt(pinn.metric))
    ```

    Args:
        metric: The metric on states; `pinn.metric` for a `Collocation`.
        **settings: Arguments of `NaturalGradient`, in place of the recipe's own.
    """
    own = {"damping": LevenbergMarquardt(), "step": Backtracking(), "order": 3}
    return NaturalGradient(metric, **(own | settings))


def gauss_newton(metric: Metric, **settings: Any) -> NaturalGradient:
    """Gauss–Newton with a small fixed damping and a line search.

    Args:
        metric: The metric on states.
        **settings: Arguments of `NaturalGradient`, in place of the recipe's own.
    """
    own = {"damping": RelativeDamping(1e-9), "step": Backtracking()}
    return NaturalGradient(metric, **(own | settings))


def spring(metric: Metric, **settings: Any) -> NaturalGradient:
    """`levenberg_marquardt` with momentum, which averages over redrawn points.

    Reference: Goldshlager, Abrahamsen and Lin, J. Comput. Phys. 516 (2024).

    Args:
        metric: The metric on states.
        **settings: Arguments of `NaturalGradient`, in place of the recipe's own.
    """
    return levenberg_marquardt(metric, **({"momentum": 0.5} | settings))


def nystrom(metric: Metric, **settings: Any) -> NaturalGradient:
    """`levenberg_marquardt` with a randomised approximation of the kernel matrix.

    Args:
        metric: The metric on states.
        **settings: Arguments of `NaturalGradient`, in place of the recipe's own.
    """
    return levenberg_marquardt(metric, **({"solver": NystromKernel(rank=200)} | settings))


def matrix_free(metric: Metric, **settings: Any) -> NaturalGradient:
    """Levenberg–Marquardt by preconditioned conjugate gradients along a curve of order 2.

    Args:
        metric: The metric on states.
        **settings: Arguments of `NaturalGradient`, in place of the recipe's own.
    """
    solver = CG(tolerance=1e-3, max_iterations=200, preconditioner=Nystrom(rank=50))
    own = {"solver": solver, "damping": LevenbergMarquardt(), "step": Backtracking(), "order": 2}
    return NaturalGradient(metric, **(own | settings))
