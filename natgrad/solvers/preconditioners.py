"""Preconditioners for the matrix-free solvers: approximations of (G + λD)⁻¹ as products."""

import abc
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.flatten_util import ravel_pytree

from ..control import each
from ..counts import Counts
from ..errors import InputError
from ..integrations.scipy import as_lineax_operator, is_scipy
from ..linalg.products import accurate_product
from ..linalg.randomised import nystrom
from .system import LinearSystem, System

Product = Callable[[Array], Array]


class Preconditioner(eqx.Module):
    """M ≈ (G + λD)⁻¹, symmetric and positive definite; set up at θ, then applied for any λ."""

    @abc.abstractmethod
    def prepare(self, system: LinearSystem) -> Any:
        """Everything that does not depend on λ; None where there is nothing to go by yet."""

    @abc.abstractmethod
    def product(self, prepared: Any, system: LinearSystem, damping: Array) -> Product:
        """r ↦ M r for this λ."""

    @property
    def uses(self) -> tuple[Literal["gram", "factor"], ...]:
        """What the set-up needs of the metric besides what the solver uses."""
        return ()

    def spent(self, system: LinearSystem) -> Counts:
        """The products with Z that the set-up takes."""
        return Counts()


class Diagonal(Preconditioner):
    """M = 1/(diag G + λ), with the diagonal estimated from m adjoint products.

    diag(YᵀY) is the mean of (Yᵀξ)² over random signs ξ. Each entry is a mean of squares, hence
    positive, with a relative standard deviation of at most √(2/m). It helps where parameters have
    different scales; a smoothing G (an inverse problem) has little in its diagonal.

    ```python
    ng.CG(preconditioner=ng.Diagonal(samples=16))
    ```

    Cost: m adjoint products a direction. Reference: Bekas, Kokiopoulou and Saad, Appl. Numer.
    Math. 57 (2007), for estimates of a diagonal.
    """

    samples: int = eqx.field(static=True, default=8)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_positive("samples", self.samples)

    @property
    def uses(self) -> tuple[Literal["gram", "factor"], ...]:
        return ("factor",)

    def spent(self, system: LinearSystem) -> Counts:
        return Counts(adjoint=self.samples)

    def prepare(self, system: LinearSystem) -> Array:
        if not isinstance(system, System) or system.factor is None:
            raise InputError("preconditioner", "Diagonal needs a factor Y", "Recycled or Nystrom")
        factor = system.factor

        def sample(key: Array) -> Array:
            leaves, treedef = jax.tree.flatten(factor.zero())
            keys = jax.random.split(key, len(leaves))
            signs = [
                jax.random.rademacher(key, leaf.shape, leaf.dtype)
                for key, leaf in zip(keys, leaves, strict=True)
            ]
            return system.pull(factor.rmv(jax.tree.unflatten(treedef, signs))) ** 2

        keys = jax.random.split(jax.random.key(self.seed), self.samples)
        return jnp.mean(each(sample, keys), axis=0)

    def product(self, prepared: Array, system: LinearSystem, damping: Array) -> Product:
        diagonal = prepared + damping
        floor = jnp.finfo(diagonal.dtype).eps * jnp.max(diagonal)
        scale = 1.0 / jnp.where(floor > 0, jnp.maximum(diagonal, floor), 1.0)
        return lambda r: scale * r


class Nystrom(Preconditioner):
    """M from the leading eigenpairs G ≈ UΛUᵀ of a randomised Nyström approximation.

    M = (λ_r + λ) U (Λ + λ)⁻¹ Uᵀ + I − UUᵀ, with λ_r the smallest eigenvalue kept: what is left to
    iterate on has about the condition number (λ_r + λ)/λ. It needs damping, and a rank near the
    number of eigenvalues above λ.

    ```python
    ng.CG(preconditioner=ng.Nystrom(rank=20))
    ```

    Cost: `rank` linearised and as many adjoint products a direction, and rank · p numbers.
    Reference: Frangella, Tropp and Udell, SIAM J. Matrix Anal. Appl. 44 (2023).
    """

    rank: int = eqx.field(static=True, default=20)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_positive("rank", self.rank)

    def spent(self, system: LinearSystem) -> Counts:
        rank = min(self.rank, system.gradient.size)
        return Counts(linearised=rank, adjoint=rank)

    def prepare(self, system: LinearSystem) -> tuple[Array, Array]:
        g = system.gradient
        product = lambda eta: system.information(eta)[1]
        return nystrom(product, g.size, min(self.rank, g.size), jax.random.key(self.seed), g.dtype)

    def product(
        self, prepared: tuple[Array, Array], system: LinearSystem, damping: Array
    ) -> Product:
        U, values = prepared
        # M stays positive definite where G is singular and there is no damping
        shifted = jnp.maximum(values + damping, jnp.finfo(values.dtype).eps * values[0])
        weights = shifted[-1] / jnp.where(shifted > 0, shifted, 1.0) - 1.0
        weights = jnp.where(shifted > 0, weights, 0.0)
        return lambda r: r + accurate_product(U, weights * accurate_product(U.T, r))


class Given(Preconditioner):
    """M as a lineax operator on θ, an array: `preconditioner=operator` makes this of it."""

    operator: lx.AbstractLinearOperator

    def prepare(self, system: LinearSystem) -> None:
        return None

    def product(self, prepared: None, system: LinearSystem, damping: Array) -> Product:
        theta = self.operator.in_structure()
        return lambda r: ravel_pytree(self.operator.mv(r.reshape(theta.shape).astype(theta.dtype)))[
            0
        ].astype(r.dtype)


def as_preconditioner(value: Any) -> Preconditioner | None:
    """A preconditioner as it is; an operator M on θ, of lineax or of SciPy, wrapped."""
    value = as_lineax_operator(value) if is_scipy(value) else value
    if isinstance(value, lx.AbstractLinearOperator):
        return Given(value)
    if value is not None and not isinstance(value, Preconditioner):
        raise InputError(
            "preconditioner",
            f"is a {type(value).__name__}",
            "None, Recycled(), Diagonal(), Nystrom(), or a lineax operator near (G + λD)⁻¹",
        )
    return value


def check_positive(name: str, value: int) -> None:
    """Raise `InputError` unless the value is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(name, f"{value!r} is no positive integer", f"{name}=8")
