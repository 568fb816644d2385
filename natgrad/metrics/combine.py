"""Metrics made of metrics: scaled and summed."""

import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..errors import InputError
from ..operators import AdjointOperator
from ..selection import Selection
from ..settings import Number, setting
from .base import POSITIVE, Metric, PyTree, Report


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
