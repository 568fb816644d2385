"""What the data leave open: the Gaussian posterior at the reconstruction, from eigenpairs of G."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import L2, information_spectrum
from .inversion import Inversion

SAMPLES = 400  # the standard deviations of m are those of so many samples
SHOWN = 4


@dataclass(frozen=True)
class Posterior:
    """N(m, Γ) with Γ⁻¹ = G/σ² + D: eigenvalues, leading eigenvectors, and deviations cell by cell.

    An eigenvalue compares what data and prior say along its vector, as in `Spectrum`.
    """

    values: np.ndarray
    beyond: float  # an estimate of the largest eigenvalue that is missing
    vectors: np.ndarray  # the leading ones, as fields m
    prior_deviation: np.ndarray
    deviation: np.ndarray
    error: np.ndarray  # m − m*
    propagations: int

    @property
    def coverage(self) -> float:
        """The share of cells whose error is below two standard deviations."""
        return float(np.mean(np.abs(self.error) <= 2 * self.deviation))

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        return {
            "eigenvalues": self.values,
            "largest_missing": self.beyond,
            "mean_prior_deviation": np.mean(self.prior_deviation),
            "mean_deviation": np.mean(self.deviation),
            "within_two_deviations": self.coverage,
            "propagations": self.propagations,
        }


def posterior(inversion: Inversion, x: Any, rank: int) -> Posterior:
    """The posterior at the prior's coordinates x, linearised there (Laplace's approximation).

    In these coordinates D is the identity. The metric is that of the noise, Σ|ζ|²/σ². Cost: that
    of `information_spectrum`, and transforms for the samples.
    """
    weight = 1 / (inversion.grid.cell_volume * inversion.data.noise**2)
    metric = weight * L2(inversion.grid)
    spectrum = information_spectrum(inversion.white_problem, x, metric=metric, rank=rank)
    field = jax.jit(jax.vmap(inversion.prior.field))
    keys = jax.random.split(jax.random.key(0), SAMPLES)
    white = jax.vmap(lambda key: jax.random.normal(key, x.shape))(keys)
    samples = jnp.stack([spectrum.sample(key) for key in keys])
    return Posterior(
        values=np.asarray(spectrum.values),
        beyond=float(spectrum.error),
        vectors=np.asarray(field(spectrum.vectors[:SHOWN])),
        prior_deviation=np.asarray(jnp.std(field(white), axis=0)),
        deviation=np.asarray(jnp.std(field(samples), axis=0)),
        error=inversion.field(x) - inversion.data.truth,
        propagations=int(sum(spectrum.counts)),
    )
