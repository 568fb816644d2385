"""What the data say about θ: leading eigenpairs of G, and the Gaussian posterior they give."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.compiled import each, refuse_traced
from ..core.dense import accurate_product
from ..core.operators import Structure
from ..core.outcomes import Counts
from ..core.randomised import basis_sizes, decompose, range_basis
from ..core.settings import Number, check_instance, check_integer, check_number
from ..errors import InputError, name_kind
from ..metrics.base import Metric
from ..parameters import flatten
from ..problem import Problem
from ..solvers.cg import CG
from ..solvers.low_rank import flat, size_of, too_many, unraveller
from .linearise import set_up
from .local import Setup
from .matrix_free import factor_at

BATCH = 64


class Prior(eqx.Module):
    """D = s LᵀL on θ-space as a Gaussian prior: its precision, with C = √s L and C⁻ᵀ from `whiten`.

    Without a metric L is the identity. `like` has the structure of θ.
    """

    metric: Metric | None
    strength: Array
    like: PyTree

    @property
    def size(self) -> int:
        """The number of white variables: p, since C is square."""
        return size_of(self.like)

    def whiten(self, v: Array) -> Array:
        """C⁻ᵀv, for flat vectors."""
        z = v if self.metric is None else self._whiten(v)
        return z / jnp.sqrt(self.strength).astype(v.dtype)

    def colour(self, z: Array) -> Array:
        """C⁻¹z: a sample of the prior for a white z."""
        if self.metric is not None:
            z = jax.linear_transpose(self._whiten, jax.ShapeDtypeStruct(z.shape, z.dtype))(z)[0]
        return z / jnp.sqrt(self.strength).astype(z.dtype)

    def defect(self) -> Array:
        """How far C⁻ᵀCᵀ is from the identity, on a random vector."""
        if self.metric is None:
            return jnp.zeros(())
        L, z = self.metric.factor(self.like), jax.random.normal(jax.random.key(0), (self.size,))
        covector = L.T.mv(unraveller(Structure(L.out_structure()).zeros())(z))
        back = ravel_pytree(self.metric.whiten(self.like, covector))[0]
        return jnp.linalg.norm(back - z) / jnp.linalg.norm(z)

    def _whiten(self, v: Array) -> Array:
        assert self.metric is not None
        return flat(self.metric.whiten(self.like, unraveller(self.like)(v)), v.dtype)


class Spectrum(eqx.Module):
    """Leading eigenpairs G vᵢ = μᵢ D vᵢ with ⟨vᵢ, D vⱼ⟩ = δᵢⱼ, and the posterior they give.

    `values` are the μᵢ in falling order; `vectors` has the structure of θ with the index i in front
    of every leaf. An eigenvalue μ compares data and prior: the data decide along vectors with
    μ ≫ 1, the prior along those with μ ≪ 1. `error` estimates the largest eigenvalue that is
    missing; the posterior is good where it is ≪ 1. `counts` has the evaluations and products spent.

    The posterior is the Gaussian with precision G + D, so of covariance
    Γ = (G + D)⁻¹ ≈ D⁻¹ − V diag(μ/(1 + μ)) Vᵀ: `apply`, `variance` and `sample`. What is missing in
    V leaves the prior's variance in its place, so Γ errs on the side of caution.
    """

    values: Array
    vectors: PyTree
    error: Array
    counts: Counts
    prior: Prior
    _white: Array  # Cvᵢ as rows, orthonormal

    @eqx.filter_jit
    def apply(self, v: PyTree) -> PyTree:
        """Γv. Cost: one C⁻ᵀ and one C⁻¹, and 4pr for r pairs."""
        z = self.prior.whiten(self._vector(v))
        shrunk = (self.values / (1 + self.values)) * accurate_product(self._white, z)
        return self._field(self.prior.colour(z - accurate_product(self._white.T, shrunk)))

    @eqx.filter_jit
    def sample(self, key: Array) -> PyTree:
        """One sample of N(0, Γ), to be added to θ. Cost: one C⁻¹, and 4pr for r pairs.

        C⁻¹(I − U diag(1 − 1/√(1 + μ)) Uᵀ)z with U = CV and a white z.
        """
        z = jax.random.normal(key, (self.prior.size,), self.values.dtype)
        return self._field(self._colour(z))

    @eqx.filter_jit
    def variance(self, samples: int | None = None, seed: int = 0) -> PyTree:
        """diag Γ = diag D⁻¹ − Σ vᵢ² μᵢ/(1 + μᵢ), with the structure of θ.

        The prior's own variance diag D⁻¹ is 1/s for D = s I. For a metric it is found entry by
        entry, from p products with C⁻ᵀ. With `samples` diag Γ is estimated instead, as the mean
        square of as many samples with random signs for z, to a relative error of √(2/samples) at
        most. Neither needs a product of the model. Cost: those products, and 4pr for r pairs.
        """
        p, dtype = self.prior.size, self.values.dtype
        if samples is not None:
            count = check_integer(samples, "samples", 1)
            signs = jax.random.rademacher(jax.random.key(seed), (count, p), dtype)
            squares = each(lambda z: self._colour(z) ** 2, signs, min(BATCH, count))
            return self._field(jnp.mean(squares, axis=0))
        if self.prior.metric is None:
            before = jnp.full(p, 1 / self.prior.strength, dtype)
        else:
            unit = lambda i: jnp.zeros(p, dtype).at[i].set(1.0)
            square = lambda i: jnp.sum(self.prior.whiten(unit(i)) ** 2)
            before = each(square, jnp.arange(p), min(BATCH, p))
        rows = jax.vmap(lambda v: ravel_pytree(v)[0])(self.vectors)
        known = jnp.sum((self.values / (1 + self.values))[:, None] * rows**2, axis=0)
        return self._field(before - known)

    def _colour(self, z: Array) -> Array:
        shrunk = (1 - 1 / jnp.sqrt(1 + self.values)) * accurate_product(self._white, z)
        return self.prior.colour(z - accurate_product(self._white.T, shrunk))

    def _vector(self, v: PyTree) -> Array:
        return ravel_pytree(eqx.filter(v, eqx.is_inexact_array))[0]

    def _field(self, v: Array) -> PyTree:
        return unraveller(self.prior.like)(v)


def information_spectrum(
    problem: Problem,
    theta: PyTree,
    *,
    metric: Metric,
    rank: int,
    prior: Metric | None = None,
    strength: Number = 1.0,
    power_iterations: int = 2,
    oversampling: int = 8,
    seed: int = 0,
    batch_size: int | None = None,
) -> Spectrum:
    """The leading `rank` eigenpairs of G v = μ D v at θ, matrix-free, and a Gaussian posterior.

    D = s I without a `prior`, where s is `strength`; with one, D = s LᵀL for the prior's factor L
    at θ, and θ is a single array, a field on the prior's grid. C⁻ᵀGC⁻¹ with D = CᵀC is decompose
    by the method of `RandomizedSVD`, C⁻ᵀ being the prior's `whiten` and C⁻¹ its transpose, so that
    nothing p × p is formed. The prior's whitening must be the inverse of its factor, as for
    `Sobolev`, `L2` and `MatrixMetric`; for a homogeneous metric or a sum it is not.

    G is the Hessian of the data misfit (the Gauss–Newton part of it, if the model is nonlinear)
    where the metric matches the noise: f = ½‖(ρ − d)/σ‖² goes with `MatrixMetric(np.eye(k) / σ²)`,
    or on a grid with `(1/σ**2) * L2(grid)` for noise that is white in function space. Then the
    posterior is that of the Bayesian problem with the prior N(θ₀, D⁻¹), linearised at θ (Laplace).

    ```python
    noise = ng.MatrixMetric(jnp.eye(10) / 0.1**2)
    problem = ng.Problem(forward, ng.LeastSquares(data))
    prior = ng.Sobolev(grid, 2)
    spectrum = ng.information_spectrum(
        problem, theta, metric=noise, rank=20, prior=prior, strength=10.0
    )
    spectrum.values, jnp.sqrt(spectrum.variance()), theta + spectrum.sample(jax.random.key(0))
    ```

    Cost: n = (`rank` + `oversampling`)(1 + `power_iterations`) + 4 products Zη, as many Zᵀξ, and as
    many each with L, Lᵀ, C⁻¹ and C⁻ᵀ; memory for n vectors like θ and like Lρ.

    Reference: Bui-Thanh, Ghattas, Martin and Stadler, SIAM J. Sci. Comput. 35 (2013); Spantini et
    al., SIAM J. Sci. Comput. 37 (2015); Halko, Martinsson and Tropp, SIAM Review 53 (2011).

    Args:
        problem: What is minimised; its model alone counts.
        theta: Where G is taken.
        metric: The metric on states.
        rank: Number of eigenpairs.
        prior: A metric on θ for D; the identity without one.
        strength: s.
        power_iterations: Products with G that refine the basis.
        oversampling: Random combinations beyond `rank`.
        seed: Seed of the random numbers.
        batch_size: Products that run as one; None for as many as fit.
    """
    rank = check_integer(rank, "rank", 1)
    oversampling = check_integer(oversampling, "oversampling", 0)
    power_iterations = check_integer(power_iterations, "power_iterations", 0)
    strength = check_number(strength, "strength", positive=True)
    refuse_traced("theta", theta)
    setup = set_up(problem, theta, metric, CG())
    if prior is not None:
        _check_prior(prior, theta)
    like = eqx.filter(theta, eqx.is_inexact_array)
    D = Prior(prior, jnp.asarray(strength, flatten(theta)[0].dtype), like)
    batch_size = None if batch_size is None else check_integer(batch_size, "batch_size", 1)
    seed = check_integer(seed, "seed", 0)
    sketch = Sketch(rank, power_iterations, oversampling, seed, batch_size)
    run = find_leading_pairs if problem.model.on_host else _find_leading_pairs_compiled
    spectrum, defect = run(setup, D, sketch)
    if not float(defect) < 1e-2:  # an inverse has rounding errors only, others are far off
        raise _not_invertible(f"its `whiten` does not invert its factor, by {float(defect):.1g}")
    return spectrum


def _check_prior(prior: Metric, theta: PyTree) -> None:
    check_instance("prior", prior, Metric, "a Metric on θ, such as Sobolev(grid, 1)")
    if not isinstance(theta, (jax.Array, np.ndarray)):
        raise InputError("prior", f"theta is {name_kind(theta)}", "a single array, or prior=None")
    structure = jax.eval_shape(lambda: jnp.asarray(theta))
    prior.check_structure(structure)
    prior.check_values(theta)
    if prior.at(theta).annihilates:
        raise _not_invertible("some directions have length zero, so that D is singular")
    if size_of(jax.eval_shape(prior.whiten, structure, structure)) != structure.size:
        raise _not_invertible("its factor is not square")


def _not_invertible(problem: str) -> InputError:
    return InputError("prior", problem, "Sobolev, L2 or a MatrixMetric of full rank")


class Sketch(NamedTuple):
    """How many random combinations of the columns of Y are taken, and how they are refined."""

    rank: int
    power_iterations: int
    oversampling: int
    seed: int
    batch_size: int | None


def find_leading_pairs(setup: Setup, prior: Prior, sketch: Sketch) -> tuple[Spectrum, Array]:
    """The spectrum, and how far the prior is from being inverted by its `whiten`.

    Runs compiled, or as it is for a model whose products cannot be traced.
    """
    vector, unravel = flatten(setup.theta)
    products = setup.problem.model.products(unravel, vector, setup.known)
    assert setup.metric is not None
    L, dtype = factor_at(setup.metric, products.rho), vector.dtype
    rank, power_iterations, oversampling, seed, batch_size = sketch
    tangent = unraveller(L.zero())
    shape = (size_of(L.zero()), vector.size)
    limit, width = min(*shape, size_of(products.rho)), rank + oversampling
    if rank > limit:
        raise too_many("rank", rank, limit)
    basis = range_basis(
        forward=lambda u: flat(L.mv(products.push(prior.colour(u))), dtype),
        backward=lambda y: prior.whiten(products.pull(L.rmv(tangent(y)))),
        shape=shape,
        width=width,
        key=jax.random.key(seed),
        dtype=dtype,
        power_iterations=power_iterations,
        batch_size=batch_size,
    )
    found = decompose(basis)
    values, rows = found.values[:rank], found.vectors[:rank]
    beyond = found.values[rank] if len(found.values) > rank else jnp.zeros((), dtype)
    vectors = jax.vmap(unraveller(prior.like))(each(prior.colour, rows, batch_size))
    spent = sum(basis_sizes(width, power_iterations, min(shape)))
    spectrum = Spectrum(
        values=values**2,
        vectors=vectors,
        error=jnp.hypot(beyond, found.missed) ** 2,
        counts=Counts(forward=1, linearised=spent, adjoint=spent),
        prior=prior,
        _white=rows,
    )
    return spectrum, prior.defect()


_find_leading_pairs_compiled = eqx.filter_jit(find_leading_pairs)
