"""The loss as a function of μ: level sets, critical points, plateau, and who is trapped where."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import ndimage

from natgrad import L2, NaturalGradient, Problem, Stop

from ..methods import minimize
from ..mixtures import BOWL_START, LOWER, START, UPPER, paper_grid, problem_on

MARGIN = 1.75  # how far beyond Ω the maps go
UNDECIDED, REACHES, ESCAPES = 0, 1, 2
OUTCOMES = {UNDECIDED: "undecided", REACHES: "reaches", ESCAPES: "escapes"}


class Verdict(eqx.Module):
    """Where a decreasing path must end, read off the level sets.

    Below the lowest saddle the sublevel set of f falls into the bowl around the global minimum
    and the rest, which holds no minimum: there f only falls towards the plateau. A continuous path
    along which f decreases cannot pass from one to the other, whatever the metric.
    `pass_level` lies a tenth of the way from the saddle down to the plateau, so that the map's
    resolution cannot blur the ridge. A path "escapes" once it is below that level outside the
    bowl, and "reaches" once it has made nine tenths of the descent from there to the minimum.
    """

    pass_level: Array
    deep_level: Array
    bowl: Array  # on the nodes of the map
    lower: float = eqx.field(static=True)
    spacing: float = eqx.field(static=True)

    def _index(self, mu: Array) -> Array:
        return jnp.round((mu - self.lower) / self.spacing)

    def on_map(self, mu: Array) -> Array:
        """Whether μ lies in Ω widened by its margin."""
        index = self._index(mu)
        return jnp.all((index >= 0) & (index < self.bowl.shape[0]))

    def __call__(self, mu: Array, loss: Array) -> Array:
        """The verdict on a path at μ with loss f(μ)."""
        i, j = jnp.clip(jnp.nan_to_num(self._index(mu)), 0, self.bowl.shape[0] - 1).astype(int)
        in_bowl = self.on_map(mu) & self.bowl[i, j]
        escaped = (loss < self.pass_level) & ~in_bowl
        reached = (loss < self.deep_level) & in_bowl
        return jnp.where(reached, REACHES, jnp.where(escaped, ESCAPES, UNDECIDED))


@dataclass(frozen=True)
class Landscape:
    """Losses are integrals; `weight` is the cell volume that turns them into the paper's sums."""

    axis: np.ndarray
    values: np.ndarray
    weight: float
    minimum: np.ndarray
    minimum_loss: float
    hessian: np.ndarray
    start_loss: float
    plateau_loss: float
    critical: list[dict[str, Any]]
    verdict: Verdict

    def numbers(self) -> dict[str, object]:
        """What the report quotes, in the paper's convention (plain sums) unless named so."""
        return {
            "global_minimum": self.minimum,
            "f_min": self.minimum_loss / self.weight,
            "f_min_integral": self.minimum_loss,
            "hessian_at_minimum_integral": self.hessian,
            "f_start": self.start_loss / self.weight,
            "f_plateau": self.plateau_loss / self.weight,
            "f_plateau_integral": self.plateau_loss,
            "f_lowest_saddle": min(p["f"] for p in self.critical if p["type"] == "saddle"),
            "f_decision_level": float(self.verdict.pass_level) / self.weight,
            "critical_points": self.critical,
            "finite_minima": sum(point["type"] == "minimum" for point in self.critical),
            "cell_volume": self.weight,
        }


def explore(points: int, map_points: int) -> Landscape:
    """The landscape of the paper's problem on its own grid."""
    grid = paper_grid(points)
    problem = problem_on(grid)
    axis = np.linspace(LOWER - MARGIN, UPPER + MARGIN, map_points)
    values = np.asarray(_values(problem, jnp.asarray(axis)))
    stop = Stop(iterations=500, gradient=1e-12)
    result = minimize(problem, jnp.array(BOWL_START), NaturalGradient(L2(grid)), stop=stop)
    critical = _critical_points(problem, axis, values, grid.cell_volume)
    saddles = [point["f"] for point in critical if point["type"] == "saddle"]
    plateau = float(_value(problem, jnp.array([1e3, 1e3])))
    saddle = min(saddles, default=plateau / grid.cell_volume) * grid.cell_volume
    pass_level = 0.9 * saddle + 0.1 * plateau
    verdict = Verdict(
        pass_level=jnp.asarray(pass_level),
        deep_level=jnp.asarray(result.loss + 0.1 * (pass_level - result.loss)),
        bowl=jnp.asarray(_bowl(axis, values < pass_level, np.asarray(result.theta))),
        lower=float(axis[0]),
        spacing=float(axis[1] - axis[0]),
    )
    return Landscape(
        axis=axis,
        values=values,
        weight=grid.cell_volume,
        minimum=np.asarray(result.theta),
        minimum_loss=result.loss,
        hessian=np.asarray(_hessian(problem, result.theta)),
        start_loss=float(_value(problem, jnp.array(START))),
        plateau_loss=plateau,
        critical=critical,
        verdict=verdict,
    )


@eqx.filter_jit
def _value(problem: Problem, mu: Array) -> Array:
    return problem.value(mu, problem.model(mu))


@eqx.filter_jit
def _hessian(problem: Problem, mu: Array) -> Array:
    return jax.hessian(lambda m: problem.value(m, problem.model(m)))(mu)


@eqx.filter_jit
def _values(problem: Problem, axis: Array) -> Array:
    """f on the tensor grid axis × axis, first index along x."""
    row = lambda x: jax.vmap(lambda y: problem.value(None, problem.model(jnp.stack([x, y]))))(axis)
    return jax.lax.map(row, axis)


def _critical_points(
    problem: Problem, axis: np.ndarray, values: np.ndarray, weight: float
) -> list[dict[str, Any]]:
    """Finite critical points: Newton's method from every local minimum of ‖∇f‖ on the map."""
    slope = np.linalg.norm(np.gradient(values), axis=0)
    lowest = slope == ndimage.minimum_filter(slope, size=3)
    i, j = np.nonzero(lowest & _in_domain(axis)[:, None] & _in_domain(axis)[None, :])
    starts = jnp.asarray(np.stack([axis[i], axis[j]], axis=-1))
    ends, gradients, hessians = map(np.asarray, _newton(problem, starts))
    scale = np.abs(hessians).max()
    found: list[dict[str, Any]] = []
    for mu, gradient, hessian in zip(ends, gradients, hessians, strict=True):
        regular = np.linalg.norm(gradient) < 1e-12 * scale and np.all(np.abs(mu) < 2 * UPPER)
        if not regular or any(np.linalg.norm(mu - other["mu"]) < 1e-5 for other in found):
            continue
        eigenvalues = np.linalg.eigvalsh(hessian)
        if np.abs(eigenvalues).min() < 1e-6 * scale:
            continue  # the flat far field, where every point is nearly critical
        kind = ("minimum", "saddle", "maximum")[int(np.sum(eigenvalues < 0))]
        loss = float(_value(problem, jnp.asarray(mu))) / weight
        found.append({"mu": mu, "f": loss, "type": kind})
    return sorted(found, key=lambda point: point["f"])


@eqx.filter_jit
def _newton(problem: Problem, starts: Array) -> tuple[Array, Array, Array]:
    loss = lambda mu: problem.value(mu, problem.model(mu))
    gradient, hessian = jax.grad(loss), jax.hessian(loss)

    def one(start: Array) -> tuple[Array, Array, Array]:
        def step(mu: Array, _: None) -> tuple[Array, None]:
            move = jnp.linalg.solve(hessian(mu), gradient(mu))
            return mu - move * jnp.minimum(1.0, 0.5 / jnp.linalg.norm(move)), None

        end, _ = jax.lax.scan(step, start, None, length=15)
        return end, gradient(end), hessian(end)

    return jax.lax.map(one, starts)


def _in_domain(axis: np.ndarray) -> np.ndarray:
    return (axis >= LOWER) & (axis <= UPPER)


def _bowl(axis: np.ndarray, below: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """The nodes nearer to the part of a sublevel set that holds the minimum than to its rest."""
    labels, _ = ndimage.label(below)  # pyright: ignore[reportGeneralTypeIssues]
    i, j = (int(np.argmin(np.abs(axis - coordinate))) for coordinate in minimum)
    inner = labels == labels[i, j]
    to_inner = ndimage.distance_transform_edt(~inner)
    to_outer = ndimage.distance_transform_edt(~(below & ~inner))
    return np.asarray(to_inner) < np.asarray(to_outer)
