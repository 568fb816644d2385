"""One colour and dash per method, the same in every figure."""

from ...report.style import PALETTE

LINES = {
    "GD": (PALETTE["black"], "-"),
    "L2": (PALETTE["blue"], "-"),
    "L2_LM": (PALETTE["blue"], "--"),
    "FR": (PALETTE["green"], "-"),
    "H1": (PALETTE["orange"], "-"),
    "dotH1": (PALETTE["orange"], "--"),
    "Hm1": (PALETTE["sky"], "-"),
    "dotHm1": (PALETTE["sky"], "--"),
    "W2": (PALETTE["vermilion"], "-"),
    "W2_staggered": (PALETTE["purple"], "--"),
    "mobility": (PALETTE["purple"], "--"),
}
