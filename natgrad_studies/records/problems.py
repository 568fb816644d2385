"""The problems by their keys."""

from collections.abc import Callable
from functools import partial

from . import evolution, steady
from .case import Case

CASES: dict[str, Callable[[], Case]] = {
    "helmholtz": partial(steady.helmholtz, 1.0),
    "helmholtz-50": partial(steady.helmholtz, 50.0),
    "burgers": evolution.burgers,
    "allen-cahn": evolution.allen_cahn,
    "convection": evolution.convection,
    "kdv": evolution.korteweg_de_vries,
    "reaction": evolution.reaction,
    "ks": evolution.kuramoto_sivashinsky,
}
