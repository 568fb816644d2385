"""The methods: each trains a network from θ on the residuals, until its callback says so.

Packages of rivals are imported when they run.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

import natgrad as ng
from natgrad.descent import Progress

from ..methods import minimize
from . import ssbroyden
from .case import Case, Theta
from .settings import Settings
from .soap import Soap

Callback = Callable[[Progress], bool]
UNLIMITED = 10**9
PAIRS = 50  # of L-BFGS
SINES_FIRST = [1, 0, 3, 2]  # of our inputs cos πx₁, sin πx₁, cos πx₂, sin πx₂


@dataclass(frozen=True)
class Task:
    """What a method trains: residuals, a start, and new points if they are redrawn."""

    case: Case
    pinn: ng.Collocation
    theta: Theta
    batch: ng.Resampled | None
    seed: int
    settings: Settings
    callback: Callback
    former: ng.Result | None = None  # of the leg before, where it was a run of `ng.minimize`

    def tell(self, iteration: int, theta: Theta, loss: Array) -> bool:
        """Ask the callback whether to stop."""
        return self.callback(Progress(iteration, theta, float(loss), {"loss": float(loss)}))


class Trained(NamedTuple):
    """θ at the end, why the run ended, and its result if it was one of `ng.minimize`."""

    theta: Theta
    status: str
    result: ng.Result | None = None


Train = Callable[[Task], Trained]


def _minimize(task: Task, method: Any, batch: Any = None) -> Trained:
    stop = ng.Stop(iterations=UNLIMITED, gradient=0.0)
    options = {"stop": stop, "callbacks": [task.callback], "batch": batch, "progress": False}
    method = method if task.former is None else method.after(task.former)
    result = minimize(task.pinn.problem, task.theta, method, **options)
    return Trained(result.theta, str(result.status), result)


def levenberg_marquardt(task: Task) -> Trained:
    """The recipe."""
    settings = task.settings
    damping = ng.LevenbergMarquardt(decrease=settings.decrease)
    method = ng.levenberg_marquardt(task.pinn.metric, damping=damping, order=settings.order)
    return _minimize(task, method, task.batch)


def lbfgs(task: Task) -> Trained:
    """L-BFGS, which needs fixed points."""
    return _minimize(task, ng.LBFGS(PAIRS))


# --- first order, by optax ------------------------------------------------------------------------


def adam(task: Task) -> Trained:
    import optax

    return _optax(task, optax.adam(task.settings.rate))


def muon(task: Task) -> Trained:
    """Muon on matrices, Adam on biases."""
    from optax import contrib

    return _optax(task, contrib.muon(task.settings.rate))


def soap(task: Task) -> Trained:
    return _optax(task, Soap(task.settings.rate))


def _optax(task: Task, method: Any) -> Trained:
    """Steps of an optax method, on new points where there are to be any."""

    @eqx.filter_jit
    def step(pinn: ng.Collocation, theta: Theta, state: Any) -> tuple[Any, Any, Array]:
        loss, gradient = jax.value_and_grad(lambda theta: pinn.loss(pinn(theta)))(theta)
        change, state = method.update(gradient, state, theta)
        return jax.tree.map(jnp.add, theta, change), state, loss

    pinn, theta, state = task.pinn, task.theta, method.init(task.theta)
    batch = task.batch
    draw = None if batch is None or batch.draw is None else jax.jit(batch.draw)
    for iteration in itertools.count():
        if draw is not None and batch is not None and iteration % batch.period == 0:
            pinn = pinn.at(draw(jax.random.fold_in(jax.random.key(task.seed), iteration)))
        theta, state, loss = step(pinn, theta, state)
        if not jnp.isfinite(loss):
            return Trained(theta, "not_finite")
        if task.tell(iteration + 1, theta, loss):
            break
    return Trained(theta, "stopped")


# --- second order, at fixed points ----------------------------------------------------------------


def self_scaled_broyden(task: Task) -> Trained:
    """SSBroyden until its line search finds nothing lower."""
    flat, unravel = ravel_pytree(task.theta)
    objective = lambda flat: task.pinn.loss(task.pinn(unravel(flat)))
    state = ssbroyden.init(objective, flat)
    for iteration in itertools.count(1):
        state = ssbroyden.step(objective, state)
        if task.tell(iteration, unravel(state.theta), state.value):
            return Trained(unravel(state.theta), "stopped")
        if state.stalled:
            break
    return Trained(unravel(state.theta), "no_decrease")


def optimistix(task: Task) -> Trained:
    """`optimistix.LevenbergMarquardt` with its defaults, on the weighted residuals."""
    import optimistix as optx

    weights = {name: block.entries() for name, block in task.pinn.blocks.items()}

    def residuals(theta: Theta, args: Any) -> tuple[dict[str, Array], None]:
        found = task.pinn(theta)
        return {name: jnp.sqrt(2 * weights[name]) * r for name, r in found.items()}, None

    solver, theta = optx.LevenbergMarquardt(rtol=0.0, atol=0.0), task.theta
    shape, _ = jax.eval_shape(residuals, theta, None)
    state = solver.init(residuals, theta, None, {}, shape, None, frozenset())
    step = eqx.filter_jit(lambda y, s: solver.step(residuals, y, None, {}, s, frozenset())[:2])
    for iteration in itertools.count(1):
        theta, state = step(theta, state)
        if task.tell(iteration, theta, state.f_info.as_min()):
            break
    return Trained(theta, "stopped")


# --- by path to a checkout ------------------------------------------------------------------------


def jax_ng(task: Task) -> Trained:
    """JAX-NG's own Helmholtz problem with the settings of its example, from our weights.

    Reference: github.com/HicrestLaboratory/JAX-NG, jax_ng/examples/helmholtz_gn.py.
    """
    assert task.settings.jax_ng is not None
    with import_path(task.settings.jax_ng):
        from jax_ng import linesearch, optimizers, problems, samplers  # pyright: ignore

    number = 1.0 if task.case.key == "helmholtz" else 50.0
    pde = problems.Helmholtz(A1=1.0, A2=4.0, k_val=number, periods=[2.0, 2.0], n_modes=1)
    box = ((-1.0, 1.0), (-1.0, 1.0))
    method = optimizers.GaussNewton(
        interior_res_fn=pde.interior_res,
        boundary_res_fn=pde.boundary_res,
        sampler_fn=lambda key: samplers.uniform_box(key, 2000, 500, box),
        linesearch_fn=linesearch.build("grid_search", n_steps=16),
        solve_config=optimizers.SolveConfig(mode="dual", damping=1e-12),
    )
    params, key = to_jax_ng(task.theta["layers"]), jax.random.key(task.seed)
    state, ours = method.init(params), task.theta
    for iteration in itertools.count(1):
        key, now = jax.random.split(key)
        loss, params, state = method.step(params, state, now)
        ours = task.theta | {"layers": from_jax_ng(params)}
        if not jnp.isfinite(loss):
            return Trained(ours, "not_finite")
        if task.tell(iteration, ours, loss):
            break
    return Trained(ours, "stopped")


def to_jax_ng(layers: Any) -> list[tuple[Array, Array]]:
    """Weights in its layout: transposed, and with the sine of each input before its cosine."""
    turned = [(weights.T, biases) for weights, biases in layers]
    return [(turned[0][0][:, np.array(SINES_FIRST)], turned[0][1]), *turned[1:]]


def from_jax_ng(layers: Any) -> tuple[tuple[Array, Array], ...]:
    """And back."""
    (weights, biases), *rest = layers
    first = (weights[:, np.array(SINES_FIRST)].T, biases)  # the order is its own inverse
    return (first, *((weights.T, biases) for weights, biases in rest))


@contextmanager
def import_path(folder: Path) -> Iterator[None]:
    """Imports look into this folder first."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


TRAIN: dict[str, Train] = {
    "LM": levenberg_marquardt,
    "LBFGS": lbfgs,
    "Adam": adam,
    "Muon": muon,
    "SOAP": soap,
    "SSBroyden": self_scaled_broyden,
    "optimistix": optimistix,
    "JAX-NG": jax_ng,
}
