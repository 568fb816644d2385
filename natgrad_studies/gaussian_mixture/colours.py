"""One colour and dash per method, the same in every figure."""

from natgrad.plot import METRIC_LINES, PALETTE

LINES = {
    **METRIC_LINES,
    "GD": (PALETTE["black"], "-"),
    "L2_LM": (PALETTE["blue"], "--"),
    "W2_staggered": (PALETTE["purple"], "--"),
    "mobility": (PALETTE["purple"], "--"),
}
