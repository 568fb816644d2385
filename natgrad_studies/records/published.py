"""Published errors, with their sources. Relative L² unless the note says otherwise."""

from dataclasses import dataclass

RLA = "rla-pinns, arXiv:2505.12149"
TABLE_3 = "arXiv:2604.05230, table 3"
SECOND_HAND = "cited second-hand"


@dataclass(frozen=True)
class Figure:
    """A published error, the seconds if they are known, and the source."""

    by: str
    error: float
    source: str
    seconds: float | None = None
    note: str = ""

    def __str__(self) -> str:
        seconds = "" if self.seconds is None else f" in {self.seconds:,.0f} s"
        note = f", {self.note}" if self.note else ""
        return f"{self.error:.1e}{seconds} by {self.by}{note} ({self.source})"


PUBLISHED: dict[str, tuple[Figure, ...]] = {
    "helmholtz": (
        Figure("SPRING", 2.0e-9, TABLE_3, 540),
        Figure("SSBroyden", 3.6e-9, TABLE_3, 319),
        Figure("natural gradient", 4.2e-9, TABLE_3, 251),
        Figure("SOAP", 4.2e-4, TABLE_3),
    ),
    "burgers": (
        Figure("SSBroyden with residual-based attention", 8.3e-9, SECOND_HAND),
        Figure("SSBroyden", 1.6e-8, SECOND_HAND),
    ),
    "allen-cahn": (
        Figure("SSBroyden", 9.4e-7, SECOND_HAND),
        Figure("SOAP", 3.5e-6, "arXiv:2502.00604"),
    ),
    "convection": (Figure("L-BFGS", 5.4e-6, SECOND_HAND, note="10⁶ iterations"),),
    "kdv": (Figure("SOAP", 3.4e-4, "arXiv:2502.00604"),),
    "ks": (Figure("causal training", 3.5e-4, "arXiv:2203.07404"),),
    "reaction": (Figure("the best known", 2.9e-5, SECOND_HAND),),
    "cavity-3200": (Figure("PirateNet", 4.2e-2, "arXiv:2402.00326"),),
    "poisson-5d": (
        Figure("SPRING", 2.6e-7, RLA, 7000, "absolute"),
        Figure("ENGD-Woodbury", 6.8e-7, RLA, 7000, "absolute"),
    ),
    "poisson-10d": (Figure("the best of its table", 1.2e-5, RLA, 6252),),
    "heat-4d": (Figure("ENGD-Woodbury", 1.0e-5, RLA, 3009),),
}
