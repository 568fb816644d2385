"""The Wasserstein metric W₂."""

from ..elliptic.methods import Elliptic
from ..grids import Grid
from .transport import Mobility
from .transport_equation import TransportScheme


class Wasserstein(Mobility):
    """The W₂ metric: `Mobility(grid, 0.5)`, a = ρ.

    ⟨ζ, ζ⟩ is the kinetic energy ∫ ρ|∇φ|² dx of the cheapest flow −∇·(ρ∇φ) = ζ. The density is
    used as given, not divided by its mass.

    `squared_distance(a, b)` is W₂² itself, times the mass: exact on lines and rings for densities
    that are constant on cells, a Sinkhorn divergence with ε = 2h² in 2D and 3D. Both agree with
    the metric to second order in h for smooth densities; masses that differ are scaled to one.

    ```python
    metric = ng.Wasserstein(grid)
    metric.squared_distance(a, b)
    ```

    Cost and schemes: those of `Mobility`. Reference: section 2.5 and appendix B.1 of the paper.
    """

    def __init__(
        self,
        grid: Grid,
        scheme: TransportScheme = "staggered",
        floor: float | None = None,
        elliptic: Elliptic = Elliptic(),
    ):
        super().__init__(grid, 0.5, scheme, floor, elliptic)
