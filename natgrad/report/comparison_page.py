"""The page of a comparison: who wins under which budget, and how."""

from ..comparison import Comparison
from ..result import AXES
from .folder import machine, versions
from .iterates import iterate_plots
from .page import Page, Part, Section
from .result_page import convergence


def comparison_page(comparison: Comparison) -> Page:
    """Tables, curves, and paths where there are two parameters."""
    ahead: list[Part] = [comparison.winners(), comparison.table()]
    ahead += [f"{name} could not run: {why}" for name, why in comparison.failures.items()]
    iterates = iterate_plots(comparison.results, comparison.problem)
    sections = [
        Section("Who wins", ahead),
        Section("Curves of all runs", convergence(comparison.results)),
        *([Section("Iterates", iterates)] if iterates else []),
    ]
    lead = (
        "Ahead in the end: "
        + ", ".join(f"{n} by {axis}" for axis, n in comparison.leaders.items())
        + "."
    )
    limits = {name: value for name in AXES if (value := getattr(comparison.budget, name))}
    return Page("Comparison", lead, sections, {"budget": limits}, versions(), machine())
