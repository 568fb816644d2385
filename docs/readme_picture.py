"""The picture of the README: `python docs/readme_picture.py` writes docs/gains.svg.

It draws tables of docs/evidence, the files of `make evidence`. The background is transparent and
the text grey, so that it can be read on a light and on a dark page. The panels are one above the
other and the text is large, so that it can still be read where a phone shows it 360 pixels wide.
"""

from pathlib import Path
from typing import Any

import matplotlib
from evidence_hook import table

from natgrad.plot import PALETTE

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PICTURE = Path(__file__).with_name("gains.svg")
TEXT, OURS, RIVAL = "#7d8590", PALETTE["vermilion"], PALETTE["sky"]  # text at 4.0 : 1 or more
STYLE = {
    "font.size": 14.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "natgrad",
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}
METHODS = {  # rows of the study of permeability, in the coordinates of the prior
    "L², prior": "natgrad, L²",
    "Newton, prior": "Newton–CG",
    "L-BFGS, long, prior": "L-BFGS, 60 pairs",
    "L-BFGS, 10 pairs, prior": "L-BFGS, 10 pairs",
    "gradient descent, prior": "gradient descent",
}


def networks() -> dict[str, tuple[str, str]]:
    """For each equation the error of Levenberg–Marquardt and of L-BFGS, the widest gap first."""
    errors: dict[str, dict[str, str]] = {}
    for problem, method, error, *_ in table("records_one_core", "in_short")["rows"]:
        errors.setdefault(problem, {})[method] = error
    pairs = {problem: (found["LM"], found["LBFGS"]) for problem, found in errors.items()}
    return dict(sorted(pairs.items(), key=lambda item: float(item[1][0]) / float(item[1][1])))


def inversions() -> dict[str, tuple[int, bool]]:
    """For each method its factorisations, and whether it has reached the noise with them."""
    found = table("darcy", "pressure_known_in_all_128²_cells")
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    by_name = {row["method"]: row for row in rows}
    return {
        name: (int(by_name[key]["fact."]), by_name[key]["end"] == "noise")
        for key, name in METHODS.items()
    }


def draw_networks(ax: Any) -> None:
    pairs = networks()
    for y, (ours, rival) in enumerate(pairs.values()):
        ax.plot([float(ours), float(rival)], [y, y], color=TEXT, linewidth=1, alpha=0.6)
        for value, colour, other in ((ours, OURS, rival), (rival, RIVAL, ours)):
            ax.plot(float(value), y, "o", color=colour, markersize=10)
            side, shift = ("right", -9) if float(value) < float(other) else ("left", 9)
            _annotate(ax, value, (float(value), y), shift, side)
    short = [problem.partition(",")[0] for problem in pairs]
    labels = [
        cut if short.count(cut) == 1 else whole for cut, whole in zip(short, pairs, strict=True)
    ]
    ax.set_yticks(range(len(pairs)), labels)
    ax.invert_yaxis()
    ax.set(xscale="log", xlim=(3e-12, 1e4))
    ax.set_xticks([1e-8, 1e-6, 1e-4, 1e-2, 1], ["1e-8", "1e-6", "1e-4", "1e-2", "1"])
    _name(ax, "Networks: relative error after 60 s")
    ax.plot([], [], "o", color=OURS, label="natgrad")
    ax.plot([], [], "o", color=RIVAL, label="L-BFGS")
    place = {"loc": "lower left", "bbox_to_anchor": (-0.03, -0.03), "handletextpad": 0.1}
    ax.legend(frameon=False, labelcolor=TEXT, labelspacing=0.3, **place)


def draw_inversions(ax: Any) -> None:
    found = inversions()
    for y, (count, reached) in enumerate(found.values()):
        colour = RIVAL if y else OURS
        ax.barh(y, count, color=colour, height=0.55, alpha=1.0 if reached else 0.35)
        _annotate(ax, str(count) if reached else f"{count}, not reached", (count, y), 6, "left")
    ax.set_yticks(range(len(METHODS)), list(METHODS.values()))
    ax.invert_yaxis()
    most = max(count for count, _ in found.values())
    ax.set(xlim=(0, 1.67 * most), xticks=range(0, most + 1, 50))
    _name(ax, "Inversion: factorisations of the PDE for the fit")


def _annotate(ax: Any, text: str, at: tuple[float, float], shift: float, side: str) -> None:
    """Write a value beside its point."""
    place = {"xytext": (shift, 0), "textcoords": "offset points", "va": "center_baseline"}
    ax.annotate(text, at, ha=side, fontsize=13.5, **place)


def _name(ax: Any, title: str) -> None:
    """A title that begins where the names of the rows do."""
    ax.annotate(
        title,
        (0, 1),
        xytext=(6, 12),
        xycoords=("figure fraction", "axes fraction"),
        textcoords="offset points",
        fontsize=15.5,
    )


def draw(path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(
            2, 1, figsize=(6.4, 6.2), layout="constrained", height_ratios=(7, 5)
        )
        figure.get_layout_engine().set(hspace=0.06)
        draw_networks(axes[0])
        draw_inversions(axes[1])
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(PICTURE)
