"""A metric for each entry of a composite state."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..errors import InputError
from ..operators import AdjointOperator
from ..selection import Selection
from .base import POSITIVE, Metric, PyTree, Report
from .combine import numbered, sum_of


class Blocks(Metric):
    """One metric for each entry of a state that is a tuple (or list) or a dict.

    ```python
    ng.Blocks(ng.L2(grid), 0.1 * ng.Sobolev(grid, 1))      # state (u, v)
    ng.Blocks(interior=ng.L2(grid), trace=ng.L2(edge))     # state {"interior": …, "trace": …}
    ```

    Cost: the sum of the parts.
    """

    metrics: Any
    _keys: tuple = eqx.field(static=True)

    def __init__(self, *metrics: Metric, **named: Metric):
        if bool(metrics) == bool(named):
            raise InputError(
                "metrics", "give positional or named metrics, not both or none", "Blocks(a, b)"
            )
        self._keys = tuple(named) if named else tuple(range(len(metrics)))
        self.metrics = dict(named) if named else metrics
        for key, metric in self._items():
            if not isinstance(metric, Metric):
                what = f"entry {key!r} is a {type(metric).__name__}"
                raise InputError("metrics", what, "Blocks(a, b), or Blocks(**a_dict_of_metrics)")

    def _items(self) -> list[tuple[int | str, Metric]]:
        return [(key, self.metrics[key]) for key in self._keys]

    def _collect(self, values: list, like: PyTree) -> PyTree:
        if isinstance(like, dict):
            return dict(zip(self._keys, values, strict=True))
        return type(like)(values)

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        factors = [metric.factor(rho[key]) for key, metric in self._items()]
        pairs = list(zip(self._keys, factors, strict=True))
        collect = lambda values: self._collect(values, rho)
        return AdjointOperator(
            lambda x: collect([L.mv(x[key]) for key, L in pairs]),
            lambda y: collect([L.T.mv(y[key]) for key, L in pairs]),
            collect([L.in_structure() for L in factors]),
            collect([L.out_structure() for L in factors]),
        )

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        return self._collect([m.whiten(rho[k], c[k]) for k, m in self._items()], rho)

    def gram(self, rho: PyTree) -> lx.AbstractLinearOperator:
        grams = [(key, metric.gram(rho[key])) for key, metric in self._items()]
        product = lambda x: self._collect([A.mv(x[key]) for key, A in grams], rho)
        structure = self._collect([A.in_structure() for _, A in grams], rho)
        return AdjointOperator(product, product, structure, structure, POSITIVE)

    def image(self, rho: PyTree, columns: PyTree) -> tuple[Array, Report]:
        images = {key: m.image(rho[key], columns[key]) for key, m in self._items()}
        order = sorted(images) if isinstance(rho, dict) else self._keys  # as pytrees are flattened
        rows = jnp.concatenate([images[key][0] for key in order], axis=1)
        return rows, numbered({str(key): report for key, (_, report) in images.items()})

    def information(self, rho: PyTree, columns: PyTree) -> tuple[Array, Report]:
        matrices = {key: m.information(rho[key], columns[key]) for key, m in self._items()}
        reports = {str(key): report for key, (_, report) in matrices.items()}
        return sum_of(list(matrices.values())), numbered(reports)

    def diagonal(self, rho: PyTree) -> PyTree | None:
        entries = [metric.diagonal(rho[key]) for key, metric in self._items()]
        return None if any(entry is None for entry in entries) else self._collect(entries, rho)

    @property
    def whitens_shortest(self) -> bool:
        return all(metric.whitens_shortest for _, metric in self._items())

    @property
    def annihilates(self) -> bool:
        return any(metric.annihilates for _, metric in self._items())

    def remainder(self, rho: PyTree, c: PyTree) -> PyTree:
        part = lambda key, metric: (
            metric.remainder(rho[key], c[key])
            if metric.annihilates
            else jax.tree.map(jnp.zeros_like, c[key])
        )
        return self._collect([part(key, metric) for key, metric in self._items()], rho)

    def squared_distance(self, a: PyTree, b: PyTree) -> Array:
        self.check_structure(a)
        self.check_structure(b)
        return jnp.sum(jnp.stack([m.squared_distance(a[k], b[k]) for k, m in self._items()]))

    def restricted(self, selection: Selection) -> Metric:
        parts = [metric.restricted(selection) for _, metric in self._items()]
        return eqx.tree_at(lambda blocks: [m for _, m in blocks._items()], self, parts)

    def check_structure(self, state: PyTree) -> None:
        keys = tuple(state) if isinstance(state, dict) else None
        if isinstance(state, (tuple, list)):
            keys = tuple(range(len(state)))
        if type(state) not in (tuple, list, dict):
            raise InputError(
                "metric",
                f"Blocks got a state that is a {type(state).__name__}",
                "a plain tuple, list or dict",
            )
        if keys is None or set(keys) != set(self._keys):
            raise InputError(
                "metric",
                f"Blocks has entries {self._keys} but the state is a {type(state).__name__}"
                + (f" with entries {keys}" if keys is not None else ""),
                "one metric for every entry of the state",
            )
        entries: Any = state
        for key, metric in self._items():
            metric.check_structure(entries[key])

    def check_values(self, state: PyTree) -> None:
        for key, metric in self._items():
            metric.check_values(state[key])

    def admissible(self, rho: PyTree) -> Array:
        return jnp.all(jnp.stack([m.admissible(rho[k]) for k, m in self._items()]))

    def report(self, rho: PyTree) -> Report:
        return numbered({str(key): m.report(rho[key]) for key, m in self._items()})
