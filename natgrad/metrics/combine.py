"""Metrics made of metrics: scaled, summed, restricted to a selection, one for each block.

Each is a pair: the metric, which passes on settings, checks and distances, and its geometry, which
combines those of the parts at one ρ.
"""

from collections.abc import Iterable
from functools import cached_property, reduce
from operator import add
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..core.operators import AdjointOperator, Structure
from ..core.selection import Selection
from ..core.settings import Number, check_instance, setting
from ..errors import InputError, name_kind
from .base import POSITIVE, FlatMetric, Geometry, Metric, PyTree, Report, positive_operator


class WrappedGeometry(Geometry):
    """The geometry `inner` of another metric, of which a subclass changes what is different.

    One thing is not passed on: whether `whiten` gives the shortest b. Unless a subclass says so, it
    is not known.
    """

    def __init__(self, metric: Metric, rho: PyTree, inner: Geometry):
        super().__init__(metric, rho)
        self.inner, self.annihilates = inner, inner.annihilates

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        return self.inner.factor

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        return self.inner.gram

    def whiten(self, c: PyTree) -> PyTree:
        return self.inner.whiten(c)

    def remainder(self, c: PyTree) -> PyTree:
        return self.inner.remainder(c)

    def image(self, columns: PyTree) -> tuple[Array, Report]:
        return self.inner.image(columns)

    def information(self, columns: PyTree) -> tuple[Array, Report]:
        return self.inner.information(columns)

    @cached_property
    def diagonal(self) -> PyTree | None:
        return self.inner.diagonal

    def report(self) -> Report:
        return self.inner.report()


class Scaled(Metric):
    """c · g for c > 0: L becomes √c L. Written `0.1 * metric`."""

    metric: Metric
    weight: Number = setting("weight", positive=True)

    def at(self, rho: PyTree) -> Geometry:
        return _ScaledGeometry(self, rho)

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


class _ScaledGeometry(WrappedGeometry):
    """√c L, c A, c G."""

    def __init__(self, metric: Scaled, rho: PyTree):
        super().__init__(metric, rho, metric.metric.at(rho))
        self.weight = jnp.asarray(metric.weight)
        self.whitens_shortest = self.inner.whitens_shortest

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        return _scale(self.inner.factor, jnp.sqrt(self.weight))

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        return _scale(self.inner.gram, self.weight)

    def whiten(self, c: PyTree) -> PyTree:
        return _times(1.0 / jnp.sqrt(self.weight), self.inner.whiten(c))

    def image(self, columns: PyTree) -> tuple[Array, Report]:
        rows, report = self.inner.image(columns)
        return jnp.sqrt(self.weight.astype(rows.dtype)) * rows, report

    def information(self, columns: PyTree) -> tuple[Array, Report]:
        G, report = self.inner.information(columns)
        return self.weight.astype(G.dtype) * G, report

    @cached_property
    def diagonal(self) -> PyTree | None:
        entries = self.inner.diagonal
        return None if entries is None else _times(self.weight, entries)


class Sum(Metric):
    """g₁ + g₂ + …: the factors stacked, so A = A₁ + A₂ + …. Written `a + 0.1 * b`.

    A covector is whitened by the first part that annihilates nothing, with zeros for the others:
    then Lᵀb = L₁ᵀb₁ = c. (Stacking the parts' whitened covectors would give a multiple of c.)

    Squared distances are added, which is what the paper's damped proximal step takes (section
    3.5.1, second form); the geodesics of the parts differ, so the geodesic distance of the
    summed metric is at least the root of that sum.
    """

    parts: tuple[Metric, ...]

    def __check_init__(self):
        for part in self.parts:
            check_instance("metric", part, Metric, "a Metric on both sides: metrics add to metrics")

    def __add__(self, other: Metric) -> Metric:
        return Sum((*self.parts, other))

    def at(self, rho: PyTree) -> Geometry:
        return _SumGeometry(self, rho)

    def squared_distance(self, a: PyTree, b: PyTree) -> Array:
        squares = jnp.stack([part.squared_distance(a, b) for part in self.parts])
        return jnp.sum(squares)

    def restricted(self, selection: Selection) -> Metric:
        return Sum(tuple(part.restricted(selection) for part in self.parts))

    def check_structure(self, state: PyTree) -> None:
        for part in self.parts:
            part.check_structure(state)

    def check_values(self, state: PyTree) -> None:
        for part in self.parts:
            part.check_values(state)

    def admissible(self, rho: PyTree) -> Array:
        return jnp.all(jnp.stack([part.admissible(rho) for part in self.parts]))


class _SumGeometry(Geometry):
    """The factors stacked, the matrices added."""

    def __init__(self, metric: Sum, rho: PyTree):
        super().__init__(metric, rho)
        self.parts = [part.at(rho) for part in metric.parts]
        self.annihilates = all(part.annihilates for part in self.parts)
        self.whitens_shortest = len(self.parts) == 1 and self.parts[0].whitens_shortest

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        factors = [part.factor for part in self.parts]
        return AdjointOperator(
            lambda x: tuple(L.mv(x) for L in factors),
            lambda ys: _add_up(L.T.mv(y) for L, y in zip(factors, ys, strict=True)),
            factors[0].in_structure(),
            tuple(L.out_structure() for L in factors),
        )

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        grams = [part.gram for part in self.parts]
        return positive_operator(lambda x: _add_up(A.mv(x) for A in grams), grams[0].in_structure())

    @property
    def _whitening(self) -> int:
        return next((i for i, part in enumerate(self.parts) if not part.annihilates), 0)

    def whiten(self, c: PyTree) -> PyTree:
        chosen = self._whitening
        # by metrics, not geometries: what is made under eval_shape must not be kept
        shape = lambda part: jax.eval_shape(part.metric.whiten, part.rho, c)
        return tuple(
            part.whiten(c) if i == chosen else Structure(shape(part)).zeros()
            for i, part in enumerate(self.parts)
        )

    def remainder(self, c: PyTree) -> PyTree:
        return self.parts[self._whitening].remainder(c)

    def image(self, columns: PyTree) -> tuple[Array, Report]:
        images = [part.image(columns) for part in self.parts]
        report = _by_part({str(i): report for i, (_, report) in enumerate(images)})
        return jnp.concatenate([rows for rows, _ in images], axis=1), report

    def information(self, columns: PyTree) -> tuple[Array, Report]:
        found = [part.information(columns) for part in self.parts]
        report = _by_part({str(i): report for i, (_, report) in enumerate(found)})
        return _add_up(G for G, _ in found), report

    @cached_property
    def diagonal(self) -> PyTree | None:
        entries = [part.diagonal for part in self.parts]
        return None if any(entry is None for entry in entries) else _add_up(entries)

    def report(self) -> Report:
        return _by_part({str(i): part.report() for i, part in enumerate(self.parts)})


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

    def at(self, rho: PyTree) -> Geometry:
        return _EmbeddedGeometry(self, rho)


class _EmbeddedGeometry(Geometry):
    """√(k/k′) L Sᵀ and (k/k′) S A Sᵀ."""

    def __init__(self, metric: Embedded, rho: PyTree):
        super().__init__(metric, rho)
        selection = metric.selection
        self._spread, self._take, self._scale = selection.spread, selection.take, selection.scale
        self._whole = metric.metric.at(self._spread(rho))
        self.annihilates = self._whole.annihilates

    def _times(self, power: float, tree: PyTree) -> PyTree:
        return _times(jnp.asarray(self._scale**power), tree)

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        L = self._whole.factor
        return AdjointOperator(
            lambda x: self._times(0.5, L.mv(self._spread(x))),
            lambda y: self._times(0.5, self._take(L.T.mv(y))),
            self.rho,
            L.out_structure(),
        )

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        A = self._whole.gram
        product = lambda x: self._times(1.0, self._take(A.mv(self._spread(x))))
        return positive_operator(product, self.rho)

    def whiten(self, c: PyTree) -> PyTree:
        return self._times(-0.5, self._whole.whiten(self._spread(c)))

    def remainder(self, c: PyTree) -> PyTree:
        return self._take(self._whole.remainder(self._spread(c)))


class Blocks(Metric):
    """One metric for each entry of a state that is a tuple (or list) or a dict.

    ```python
    ng.Blocks(ng.L2(grid), 0.1 * ng.Sobolev(grid, 1))      # state (u, v)
    ng.Blocks(interior=ng.L2(grid), trace=ng.L2(edge))     # state {"interior": …, "trace": …}
    ```

    Cost: the sum of the parts.

    Args:
        *metrics: Metrics in the order of a tuple or list.
        **named: Metrics by the keys of a dict.
    """

    metrics: dict[Any, Metric]

    def __init__(self, *metrics: Metric, **named: Metric):
        if bool(metrics) == bool(named):
            raise InputError(
                "metrics", "give positional or named metrics, not both or none", "Blocks(a, b)"
            )
        self.metrics = dict(named) if named else dict(enumerate(metrics))
        for key, metric in self.metrics.items():
            if not isinstance(metric, Metric):
                what = f"entry {key!r} is {name_kind(metric)}"
                raise InputError("metrics", what, "Blocks(a, b), or Blocks(**a_dict_of_metrics)")

    def at(self, rho: PyTree) -> Geometry:
        return _BlocksGeometry(self, rho)

    def squared_distance(self, a: PyTree, b: PyTree) -> Array:
        self.check_structure(a)
        self.check_structure(b)
        squares = [m.squared_distance(a[key], b[key]) for key, m in self.metrics.items()]
        return jnp.sum(jnp.stack(squares))

    def restricted(self, selection: Selection) -> Metric:
        parts = {key: metric.restricted(selection) for key, metric in self.metrics.items()}
        return eqx.tree_at(lambda blocks: blocks.metrics, self, parts)

    def check_structure(self, state: PyTree) -> None:
        keys = tuple(state) if isinstance(state, dict) else None
        if isinstance(state, (tuple, list)):
            keys = tuple(range(len(state)))
        if type(state) not in (tuple, list, dict):
            raise InputError(
                "metric",
                f"Blocks got a state that is {name_kind(state)}",
                "a plain tuple, list or dict",
            )
        if keys is None or set(keys) != set(self.metrics):
            found = f"{name_kind(state)}" + ("" if keys is None else f" with entries {keys}")
            raise InputError(
                "metric",
                f"Blocks has entries {tuple(self.metrics)} but the state is {found}",
                "one metric for every entry of the state",
            )
        entries: Any = state
        for key, metric in self.metrics.items():
            metric.check_structure(entries[key])

    def check_values(self, state: PyTree) -> None:
        for key, metric in self.metrics.items():
            metric.check_values(state[key])

    def admissible(self, rho: PyTree) -> Array:
        found = [metric.admissible(rho[key]) for key, metric in self.metrics.items()]
        return jnp.all(jnp.stack(found))


class _BlocksGeometry(Geometry):
    """Block by block, in the structure of the state."""

    def __init__(self, metric: Blocks, rho: PyTree):
        super().__init__(metric, rho)
        self.parts = {key: part.at(rho[key]) for key, part in metric.metrics.items()}
        self.annihilates = any(part.annihilates for part in self.parts.values())
        self.whitens_shortest = all(part.whitens_shortest for part in self.parts.values())

    def _collect(self, values: Iterable) -> PyTree:
        if isinstance(self.rho, dict):
            return dict(zip(self.parts, values, strict=True))
        return type(self.rho)(values)

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        factors = {key: part.factor for key, part in self.parts.items()}
        return AdjointOperator(
            lambda x: self._collect(L.mv(x[key]) for key, L in factors.items()),
            lambda y: self._collect(L.T.mv(y[key]) for key, L in factors.items()),
            self._collect(L.in_structure() for L in factors.values()),
            self._collect(L.out_structure() for L in factors.values()),
        )

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        grams = {key: part.gram for key, part in self.parts.items()}
        product = lambda x: self._collect(A.mv(x[key]) for key, A in grams.items())
        return positive_operator(product, self._collect(A.in_structure() for A in grams.values()))

    def whiten(self, c: PyTree) -> PyTree:
        return self._collect(part.whiten(c[key]) for key, part in self.parts.items())

    def remainder(self, c: PyTree) -> PyTree:
        return self._collect(
            part.remainder(c[key]) if part.annihilates else jax.tree.map(jnp.zeros_like, c[key])
            for key, part in self.parts.items()
        )

    def image(self, columns: PyTree) -> tuple[Array, Report]:
        images = {key: part.image(columns[key]) for key, part in self.parts.items()}
        order = sorted(images) if isinstance(self.rho, dict) else images  # as pytrees are flattened
        rows = jnp.concatenate([images[key][0] for key in order], axis=1)
        return rows, _by_part({str(key): report for key, (_, report) in images.items()})

    def information(self, columns: PyTree) -> tuple[Array, Report]:
        found = {key: part.information(columns[key]) for key, part in self.parts.items()}
        report = _by_part({str(key): report for key, (_, report) in found.items()})
        return _add_up(G for G, _ in found.values()), report

    @cached_property
    def diagonal(self) -> PyTree | None:
        entries = [part.diagonal for part in self.parts.values()]
        return None if any(entry is None for entry in entries) else self._collect(entries)

    def report(self) -> Report:
        return _by_part({str(key): part.report() for key, part in self.parts.items()})


def _by_part(reports: dict[str, Report]) -> Report:
    """The reports of several metrics as one, under the names of their parts."""
    return {f"{key}.{name}": v for key, report in reports.items() for name, v in report.items()}


def _add_up(trees: Iterable[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: reduce(add, leaves), *trees)


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
