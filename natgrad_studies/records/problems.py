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
    "cavity-100": partial(steady.cavity, 100.0),
    "cavity-3200": partial(steady.cavity, 3200.0),
    "poisson-5d": partial(steady.poisson, 5),
    "poisson-10d": partial(steady.poisson, 10),
    "heat-4d": steady.heat,
    "burgers-inverse": evolution.inverse_burgers,
}
