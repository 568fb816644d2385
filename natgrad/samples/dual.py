"""Metrics on point clouds as dual norms: the largest of what potentials see of a motion."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..core.dense import accurate_product as product
from ..core.operators import AdjointOperator
from ..core.settings import Number, check_integer, check_number
from ..errors import InputError
from ..metrics.base import Metric, PyTree, Report
from .potentials import Potentials, spread

CENTRES = 200


class DualMetric(Metric):
    """‖v‖² = max over φ of 2 (1/N) Σᵢ ∇φ(xᵢ)·vᵢ − Q(φ) − λ|φ|², for motions v of samples x.

    ζ = −∇·(ρv) is seen only through ∫ζφ dx = ∫ρ v·∇φ dx, which is a mean over the samples: no
    density has to be known. A subclass says what Q is. With pairs Rv, Q as a matrix and its
    inverse root M: L = MR, an m × Nd matrix of which O(Nm) numbers are kept.
    """

    centres: eqx.AbstractVar[int | None]
    bandwidth: eqx.AbstractVar[Number | None]
    ridge: eqx.AbstractVar[Number]

    @abc.abstractmethod
    def default_bandwidth(self, x: Array) -> Array:
        """h where none is given."""

    @abc.abstractmethod
    def potentials(self, x: Array) -> Potentials:
        """The φ among which the maximum is sought."""

    @abc.abstractmethod
    def form(self, potentials: Potentials) -> Array:
        """Q on the coefficients."""

    def width(self, x: Array) -> Array:
        """h."""
        if self.bandwidth is None:
            return self.default_bandwidth(x)
        return jnp.asarray(self.bandwidth, x.dtype)

    def count(self, x: Array) -> int:
        """m."""
        return min(len(x), CENTRES) if self.centres is None else self.centres

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        potentials = self.potentials(rho)
        M = self._inverse_root(potentials)
        out = jax.ShapeDtypeStruct((len(M),), M.dtype)
        mv = lambda v: product(M, potentials.paired(v))
        rmv = lambda y: potentials.gradients(product(M.T, y))
        return AdjointOperator(mv, rmv, rho, out)

    def whiten(self, rho: Array, c: Array) -> Array:
        """(LLᵀ)†Lc, with LLᵀ = MSMᵀ/N for the energies S."""
        potentials = self.potentials(rho)
        M = self._inverse_root(potentials)
        energies = product(M, product(potentials.energies(), M.T)) / len(rho)
        values, vectors = jnp.linalg.eigh(energies)
        kept = values > jnp.sqrt(jnp.finfo(rho.dtype).eps) * values[-1]
        inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1.0), 0.0)
        return product(vectors, inverse * product(vectors.T, product(M, potentials.paired(c))))

    def _inverse_root(self, potentials: Potentials) -> Array:
        """M with MᵀM = (Q + λ)⁻¹; λ = ridge/N times the mean of Q for a single Gaussian."""
        Q, extra = self.form(potentials), potentials.extra
        share = jnp.asarray(self.ridge, Q.dtype) / len(potentials.samples)
        ridge = share * potentials.mean_of(Q)
        Q = Q + jnp.diag(jnp.where(jnp.arange(len(Q)) < extra, 0.0, ridge))
        values, vectors = jnp.linalg.eigh(Q)
        smallest = jnp.finfo(Q.dtype).eps * values[-1]
        return (vectors / jnp.sqrt(jnp.maximum(values, smallest))).T

    @property
    def annihilates(self) -> bool:
        return True

    def check_structure(self, state: PyTree) -> None:
        check_cloud(state)
        if self.centres is not None and self.centres > state.shape[0]:
            what = f"{self.centres} of {state.shape[0]} samples cannot be chosen"
            raise InputError("centres", what, f"at most {state.shape[0]}, or None")

    def check_values(self, state: Array) -> None:
        x = jnp.asarray(state)
        rounding = len(x) * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x))
        if not float(spread(x)) > rounding:
            raise InputError("model", "all samples are one point", "a map that spreads them")

    def admissible(self, rho: Array) -> Array:
        return jnp.all(jnp.isfinite(rho)) & (spread(rho) > 0)

    def report(self, rho: Array) -> Report:
        return {"bandwidth": self.width(rho)}


def check_cloud(state: PyTree) -> None:
    """The state must be one array of N points in d dimensions, N > d."""
    shape = tuple(state.shape) if hasattr(state, "shape") else None
    if shape is None or len(shape) != 2:
        what = f"has shape {shape}" if shape is not None else f"is a {type(state).__name__}"
        raise InputError("model", f"the state {what}", "one array (N, d), a row for each sample")
    if shape[0] <= shape[1]:
        what = f"the state has {shape[0]} samples in {shape[1]} dimensions"
        raise InputError("model", what, "an array (N, d) with many more samples than dimensions")


def optional_number(name: str):
    """A field that holds a positive number as a leaf, or None."""
    convert = lambda value: None if value is None else check_number(value, name, positive=True)
    return eqx.field(converter=convert, default=None)


def optional_whole(name: str):
    """A static field that holds a positive integer, or None."""
    convert = lambda value: None if value is None else check_integer(value, name, 1)
    return eqx.field(converter=convert, static=True, default=None)
