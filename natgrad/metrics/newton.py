"""Not a metric but the curvature of the loss itself: Newton's method, to compare with."""

import lineax as lx

from ..core.selection import Selection
from ..errors import InputError
from .base import Metric, PyTree


class Newton(Metric):
    """G = ∇²_θ f, the Hessian of the loss by second-order adjoints: the Newton–CG baseline.

    Not a metric: it may be indefinite. `CG` then stops at the first direction of negative curvature
    and returns what it has (at the first step the preconditioned gradient), so that η still
    descends. A step of length 1 is tried first.

    ```python
    ng.minimize(problem, theta, metric=ng.Newton(), solver=ng.CG(1e-3, forcing=True))
    ```

    Cost: one linearised and one adjoint propagation a product, as for a natural gradient, and the
    second derivatives of the model, which an `ExternalModel` does not have.
    Reference: Nocedal and Wright, Numerical Optimization, section 7.1.
    """

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        raise InputError(
            "metric",
            "Newton is the curvature of the loss on parameters, so it has no factor on ρ",
            "L2(grid), which on a least-squares loss is Gauss–Newton",
        )

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        return self.factor(rho)

    def restricted(self, selection: Selection) -> Metric:
        return self
