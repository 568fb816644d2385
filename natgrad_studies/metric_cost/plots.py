"""The interactive plots of the report: CPU seconds against the number of cells."""

from natgrad.report import Curves, Series

from .figures import LINES
from .results import StudyResult

TITLES = {
    "direction": "One direction with p = 2.",
    "set_up": "The set-up of L at a new ρ, where L depends on ρ.",
    "product": "v ↦ Lv.",
    "whiten": "v ↦ (Lᵀ)†v.",
}


def times(result: StudyResult) -> list[Curves]:
    """What each operation takes, in every metric."""
    found = []
    for operation, caption in TITLES.items():
        series = []
        for entry in result.methods:
            seconds = entry.seconds(operation)
            colour, _, dash = LINES[entry.method.key]
            x = {"cells": [n**2 for n in seconds], "cells a side": list(seconds)}
            if seconds:
                y = list(seconds.values())
                series.append(Series(entry.method.name, y, x, colour, dash))
        if series:
            found.append(Curves(series, "CPU seconds", caption, log_x=True))
    return found
