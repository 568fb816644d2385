"""What the data leave open: the Gaussian posterior at the reconstruction, from eigenpairs of G."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from natgrad import L2, information_spectrum

from .inversion import Inversion

SHOWN = (0, 1, 9)  # eigenvectors that are drawn


@dataclass(frozen=True)
class Posterior:
    """N(m, Γ) with Γ⁻¹ = G/(wσ²) + D: eigenvalues, eigenvectors, and deviations cell by cell.

    An eigenvalue compares what data and prior say along its vector, as in `Spectrum`.
    """

    values: np.ndarray
    beyond: float  # an estimate of the largest eigenvalue that is missing
    vectors: dict[int, np.ndarray]  # some of them, as fields
    prior_deviation: np.ndarray
    deviation: np.ndarray
    sample: np.ndarray  # of m
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


def posterior(inversion: Inversion, x: Array, rank: int) -> Posterior:
    """The posterior at the prior's coordinates x, linearised there (Laplace's approximation).

    In these coordinates D is the identity, and the metric of the noise is Σ|ζ|²/σ². With fields
    vᵢ of the eigenvectors, diag Γ = diag D⁻¹ − Σ vᵢ² μᵢ/(1 + μᵢ).

    Cost: about 4 · rank propagations, and as many transforms.
    """
    weight = 1 / (inversion.grid.cell_volume * inversion.data.noise**2)
    spectrum = information_spectrum(
        inversion.white_problem,
        x,
        metric=weight * L2(inversion.grid),
        rank=rank,
        power_iterations=1,
    )
    values, m = np.asarray(spectrum.values), inversion.field(x)
    fields = np.asarray(jax.jit(jax.vmap(inversion.prior.field))(spectrum.vectors))
    before = inversion.prior.variance()
    known = np.einsum("i,ijk->jk", values / (1 + values), fields**2)
    return Posterior(
        values=values,
        beyond=float(spectrum.error),
        vectors={i: fields[i] for i in SHOWN if i < rank},
        prior_deviation=np.sqrt(before),
        deviation=np.sqrt(np.maximum(before - known, 0.0)),
        sample=inversion.field(x + spectrum.sample(jax.random.key(0))),
        error=m - inversion.data.truth,
        propagations=int(sum(spectrum.counts)),
    )
