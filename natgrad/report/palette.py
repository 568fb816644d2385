"""The colours of every figure and plot."""

# Okabe and Ito's palette, told apart by every common form of colour vision.
PALETTE = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#7F7F7F",
}

# The runs of a comparison, one after the other.
RUN_COLOURS = [
    PALETTE[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "black")
]
