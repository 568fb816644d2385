"""G and its factor Y as operators on θ, never formed: for lineax, SciPy and whoever asks."""

from typing import Any

import equinox as eqx
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.operators import AdjointOperator
from ..metrics.base import POSITIVE, Metric
from ..models.base import Products
from ..parameters import flatten
from ..problem import Problem
from ..solvers.cg import CG
from .linearise import set_up
from .local import Setup
from .matrix_free import factor_at, gram_at


def information_operator(problem: Problem, theta: PyTree, *, metric: Metric) -> AdjointOperator:
    """G = ZᵀAZ at θ as a lineax operator on the parameters, without forming it.

    ```python
    G = ng.interop.information_operator(problem, theta, metric=ng.L2(grid))
    lx.linear_solve(G, v, lx.CG(rtol=1e-8, atol=1e-8))
    scipy.sparse.linalg.eigsh(ng.interop.as_linear_operator(G), k=5)
    ```

    Vectors have the structure of θ, with None for what is no parameter. With a model outside JAX
    the products are called from Python, by SciPy say; lineax would compile them.

    Cost: one evaluation of the model now; a linearised and an adjoint product and one with A each.

    Args:
        problem: What is minimised; its model alone counts.
        theta: Where G is taken.
        metric: The metric on states.
    """
    found = _put_together(problem, theta, metric, gram_at)
    structure, on_host = found.like, problem.model.on_host
    product = found.information
    return AdjointOperator(product, product, structure, structure, POSITIVE, on_host)


def information_factor(problem: Problem, theta: PyTree, *, metric: Metric) -> AdjointOperator:
    """Y = LZ at θ as a lineax operator from parameters to whitened tangents; G = YᵀY.

    ```python
    Y = ng.interop.information_factor(problem, theta, metric=ng.Sobolev(grid, -1))
    scipy.sparse.linalg.lsmr(ng.interop.as_linear_operator(Y), b)
    ```

    Cost: one evaluation of the model now; one product of it and one with L, or Lᵀ, each.

    Args:
        problem: What is minimised; its model alone counts.
        theta: Where Y is taken.
        metric: The metric on states.
    """
    found = _put_together(problem, theta, metric, factor_at)
    return AdjointOperator(
        found.push_factor,
        found.pull_factor,
        found.like,
        found.metric.zero(),
        on_host=problem.model.on_host,
    )


class _Operators(eqx.Module):
    """The products of the model and the metric's A, or its L; `like` has the structure of θ."""

    products: Products
    metric: Any
    like: PyTree

    def information(self, eta: PyTree) -> PyTree:
        """Gη."""
        return self._shape(self.products.pull(self.metric.mv(self._push(eta))))

    def push_factor(self, eta: PyTree) -> PyTree:
        """LZη."""
        return self.metric.mv(self._push(eta))

    def pull_factor(self, y: PyTree) -> PyTree:
        """ZᵀLᵀy."""
        return self._shape(self.products.pull(self.metric.rmv(y)))

    def _push(self, eta: PyTree) -> PyTree:
        return self.products.push(ravel_pytree(eta)[0])

    def _shape(self, vector: Array) -> PyTree:
        flat, unravel = ravel_pytree(self.like)
        return unravel(vector.astype(flat.dtype))


def _put_together(problem: Problem, theta: PyTree, metric: Metric, at: Any) -> _Operators:
    setup = set_up(problem, theta, metric, CG())
    return (_make if problem.model.on_host else _make_compiled)(setup, at)


def _make(setup: Setup, at: Any) -> _Operators:
    flat, unravel = flatten(setup.theta)
    products = setup.problem.model.products(unravel, flat, setup.known)
    like = eqx.filter(setup.theta, eqx.is_inexact_array)
    return _Operators(products, at(setup.metric, products.rho), like)


_make_compiled = eqx.filter_jit(_make)
