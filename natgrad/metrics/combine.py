"""Metrics made of metrics: scaled, summed, restricted to a selection, one for each block."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..core.operators import AdjointOperator
from ..core.selection import Selection
from ..core.settings import Number, setting
from ..errors import InputError
from .base import POSITIVE, FlatMetric, Metric, PyTree, Report


class Scaled(Metric):
    """c · g for c > 0: L becomes √c L. Written `0.1 * metric`."""

    metric: Metric
    weight: Number = setting("weight", positive=True)

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        return _scale(self.metric.factor(rho), jnp.sqrt(jnp.asarray(self.weight)))

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        return _times(1.0 / jnp.sqrt(jnp.asarray(self.weight)), self.metric.whiten(rho, c))

    def gram(self, rho: PyTree) -> lx.AbstractLinearOperator:
        return _scale(self.metric.gram(rho), jnp.asarray(self.weight))

    def image(self, rho: PyTree, columns: PyTree) -> tuple[Array, Report]:
        rows, report = self.metric.image(rho, columns)
        return jnp.sqrt(jnp.asarray(self.weight, rows.dtype)) * rows, report

    def information(self, rho: PyTree, columns: PyTree) -> tuple[Array, Report]:
        G, report = self.metric.information(rho, columns)
        return jnp.asarray(self.weight, G.dtype) * G, report

    def diagonal(self, rho: PyTree) -> PyTree | None:
        entries = self.metric.diagonal(rho)
        return None if entries is None else _times(jnp.asarray(self.weight), entries)

    @property
    def whitens_shortest(self) -> bool:
        return self.metric.whitens_shortest

    @property
    def annihilates(self) -> bool:
        return self.metric.annihilates

    def remainder(self, rho: PyTree, c: PyTree) -> PyTree:
        return self.metric.remainder(rho, c)

    def squared_distance(self, a: PyTree, b: PyTree) -> Array:
        square = self.metric.squared_distance(a, b)
        return jnp.asarray(self.weight, square.dtype) * square

    def restricted(self, selection: Selection) -> Metric:
        return Scaled(self.metric.restricted(selection), self.weight)

    def check_structure(self, state: PyTree) -> None:
        self.metric.check_structure(state)

    def check_values(self, state: PyTree) -> None:
        self.metric.check_values(state)

    def admissible(self, rho: PyTree) -> Array:
        return self.metric.admissible(rho)

    def report(self, rho: PyTree) -> Report:
        return self.metric.report(rho)


class Sum(Metric):
    """g₁ + g₂ + …: the factors stacked, so A = A₁ + A₂ + …. Written `a + 0.1 * b`.

    A covector is whitened by the first part that annihilates nothing, with zeros for the others:
    then Lᵀb = L₁ᵀb₁ = c. (Stacking the parts' whitened covectors would give a multiple of c.)

    Squared distances are added, which is what the paper's damped proximal step takes (section
    3.5.1, second form); the geodesics of the parts differ, so the geodesic distance of the
    summed metric is at least the root of that sum.
    """

    parts: tuple[Metric, ...]

    @classmethod
    def of(cls, *metrics: Metric) -> "Sum":
        """The sum of `metrics`, with sums among them flattened."""
        parts: list[Metric] = []
        for metric in metrics:
            if not isinstance(metric, Metric):
                raise InputError("metric", f"cannot add a {type(metric).__name__}", "a Metric")
            parts.extend(metric.parts if isinstance(metric, Sum) else [metric])
        return cls(tuple(parts))

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        factors = [part.factor(rho) for part in self.parts]

        def transposed(ys: tuple[PyTree, ...]) -> PyTree:
            terms = [L.T.mv(y) for L, y in zip(factors, ys, strict=True)]
            return jax.tree.map(lambda *xs: sum(xs[1:], xs[0]), *terms)

        out = tuple(L.out_structure() for L in factors)
        return AdjointOperator(
            lambda x: tuple(L.mv(x) for L in factors), transposed, factors[0].in_structure(), out
        )

    def _whitening(self) -> int:
        return next((i for i, part in enumerate(self.parts) if not part.annihilates), 0)

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        chosen = self._whitening()
        whitened = [jax.eval_shape(part.whiten, rho, c) for part in self.parts]
        zeros = [jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), tree) for tree in whitened]
        zeros[chosen] = self.parts[chosen].whiten(rho, c)
        return tuple(zeros)

    def gram(self, rho: PyTree) -> lx.AbstractLinearOperator:
        grams = [part.gram(rho) for part in self.parts]

        def product(x: PyTree) -> PyTree:
            terms = [A.mv(x) for A in grams]
            return jax.tree.map(lambda *xs: sum(xs[1:], xs[0]), *terms)

        structure = grams[0].in_structure()
        return AdjointOperator(product, product, structure, structure, POSITIVE)

    def image(self, rho: PyTree, columns: PyTree) -> tuple[Array, Report]:
        images = [part.image(rho, columns) for part in self.parts]
        reports = {str(i): report for i, (_, report) in enumerate(images)}
        return jnp.concatenate([rows for rows, _ in images], axis=1), numbered(reports)

    def information(self, rho: PyTree, columns: PyTree) -> tuple[Array, Report]:
        matrices = [part.information(rho, columns) for part in self.parts]
        return sum_of(matrices), numbered({str(i): r for i, (_, r) in enumerate(matrices)})

    def diagonal(self, rho: PyTree) -> PyTree | None:
        entries = [part.diagonal(rho) for part in self.parts]
        if any(entry is None for entry in entries):
            return None
        return jax.tree.map(lambda *xs: sum(xs[1:], xs[0]), *entries)

    @property
    def whitens_shortest(self) -> bool:
        return len(self.parts) == 1 and self.parts[0].whitens_shortest

    @property
    def annihilates(self) -> bool:
        return all(part.annihilates for part in self.parts)

    def remainder(self, rho: PyTree, c: PyTree) -> PyTree:
        return self.parts[self._whitening()].remainder(rho, c)

    def squared_distance(self, a: PyTree, b: PyTree) -> Array:
        squares = jnp.stack([part.squared_distance(a, b) for part in self.parts])
        return jnp.sum(squares)

    def restricted(self, selection: Selection) -> Metric:
        return Sum.of(*(part.restricted(selection) for part in self.parts))

    def check_structure(self, state: PyTree) -> None:
        for part in self.parts:
            part.check_structure(state)

    def check_values(self, state: PyTree) -> None:
        for part in self.parts:
            part.check_values(state)

    def admissible(self, rho: PyTree) -> Array:
        return jnp.all(jnp.stack([part.admissible(rho) for part in self.parts]))

    def report(self, rho: PyTree) -> Report:
        return numbered({str(i): part.report(rho) for i, part in enumerate(self.parts)})


def sum_of(matrices: list[tuple[Array, Report]]) -> Array:
    """The sum of the matrices among these pairs."""
    return sum((G for G, _ in matrices[1:]), matrices[0][0])


def numbered(reports: dict[str, Report]) -> Report:
    """The reports of several metrics as one, under the names of their parts."""
    return {f"{key}.{name}": v for key, report in reports.items() for name, v in report.items()}


def _times(scalar: Array, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: scalar.astype(x.dtype) * x, tree)


def _scale(operator: lx.AbstractLinearOperator, root: Array) -> AdjointOperator:
    return AdjointOperator(
        lambda x: _times(root, operator.mv(x)),
        lambda y: _times(root, operator.T.mv(y)),
        operator.in_structure(),
        operator.out_structure(),
        POSITIVE if lx.is_positive_semidefinite(operator) else frozenset(),
    )


class Embedded(FlatMetric):
    """A_S = (k/k′) S A Sᵀ: the norm of the tangent that is ζ on the selection and zero elsewhere.

    L_S = √(k/k′) L Sᵀ, and a covector c is whitened by whiten(Sᵀc)/√(k/k′), because
    L_Sᵀ b = S Lᵀ whiten(Sᵀc) = S Sᵀc = c. What A annihilates leaves a remainder S r(Sᵀc).

    The factor k/k′ makes the diagonal of A unbiased; an off-diagonal entry is seen only if both
    of its ends are, and enters with (k′ − 1)/(k − 1) of its size in the mean.

    Cost: that of `metric` on the whole state.
    """

    metric: FlatMetric
    selection: Selection

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        L = self.metric.factor(self.selection.spread(rho))
        return AdjointOperator(
            lambda x: self._times(0.5, L.mv(self.selection.spread(x))),
            lambda y: self._times(0.5, self.selection.take(L.T.mv(y))),
            rho,
            L.out_structure(),
        )

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        spread = self.selection.spread
        return self._times(-0.5, self.metric.whiten(spread(rho), spread(c)))

    def gram(self, rho: PyTree) -> lx.AbstractLinearOperator:
        A = self.metric.gram(self.selection.spread(rho))
        product = lambda x: self._times(1.0, self.selection.take(A.mv(self.selection.spread(x))))
        return AdjointOperator(product, product, rho, rho, POSITIVE)

    def _times(self, power: float, tree: PyTree) -> PyTree:
        scale = self.selection.scale**power
        return jax.tree.map(lambda x: jnp.asarray(scale, x.dtype) * x, tree)

    @property
    def whitens_shortest(self) -> bool:
        return False

    @property
    def annihilates(self) -> bool:
        return self.metric.annihilates

    def remainder(self, rho: PyTree, c: PyTree) -> PyTree:
        spread = self.selection.spread
        return self.selection.take(self.metric.remainder(spread(rho), spread(c)))


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
