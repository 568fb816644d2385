"""A metric that does not depend on ρ, on a selection of the state: a principal submatrix."""

import jax
import jax.numpy as jnp
import lineax as lx

from ..operators import AdjointOperator
from ..selection import Selection
from .base import POSITIVE, FlatMetric, PyTree


class Embedded(FlatMetric):
    """A_S = (k/k′) S A Sᵀ: the norm of the tangent that is ζ on the selection and zero elsewhere.

    L_S = √(k/k′) L Sᵀ, and a covector c is whitened by whiten(Sᵀc)/√(k/k′), because
    L_Sᵀ b = S Lᵀ whiten(Sᵀc) = S Sᵀc = c. What A annihilates leaves a remainder S r(Sᵀc).

    The factor k/k′ makes the diagonal of A unbiased; an off-diagonal entry is seen only if both
    of its ends are, and enters with (k′ − 1)/(k − 1) of its size in the mean.

    Cost: that of `metric` on the whole state.
    """

    metric: FlatMetric
    selection: Selection

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        L = self.metric.factor(self.selection.spread(rho))
        return AdjointOperator(
            lambda x: self._times(0.5, L.mv(self.selection.spread(x))),
            lambda y: self._times(0.5, self.selection.take(L.T.mv(y))),
            rho,
            L.out_structure(),
        )

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        spread = self.selection.spread
        return self._times(-0.5, self.metric.whiten(spread(rho), spread(c)))

    def gram(self, rho: PyTree) -> lx.AbstractLinearOperator:
        A = self.metric.gram(self.selection.spread(rho))
        product = lambda x: self._times(1.0, self.selection.take(A.mv(self.selection.spread(x))))
        return AdjointOperator(product, product, rho, rho, POSITIVE)

    def _times(self, power: float, tree: PyTree) -> PyTree:
        scale = self.selection.scale**power
        return jax.tree.map(lambda x: jnp.asarray(scale, x.dtype) * x, tree)

    @property
    def whitens_shortest(self) -> bool:
        return False

    @property
    def annihilates(self) -> bool:
        return self.metric.annihilates

    def remainder(self, rho: PyTree, c: PyTree) -> PyTree:
        spread = self.selection.spread
        return self.selection.take(self.metric.remainder(spread(rho), spread(c)))
