"""Time windows: a long time by one small network after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.settings import check_instance, check_integer, check_number
from ..descent.methods import Method
from ..descent.minimize import minimize
from ..descent.recipes import levenberg_marquardt
from ..errors import InputError
from ..metrics.base import Metric
from ..result import Result
from .collocation import Collocation, Residual

START = "start"  # the block of the initial condition
OUTSIDE = 1e-9  # of a window, and no more, by rounding


@dataclass(frozen=True)
class March:
    """A solution in windows: called at points x = (t, …), and the result of every window."""

    u: Callable[[PyTree, Array], Array]
    length: float
    results: tuple[Result, ...]

    def __call__(self, points: Array) -> Array:
        """u at points of shape (n, d), with times from 0 to the end of the last window.

        Cost: one evaluation at all points for each window.
        """
        points = jnp.asarray(points)
        if points.ndim != 2 or not len(points):
            raise InputError("points", f"have shape {points.shape}", "(n, d)")
        places = np.asarray(points[:, 0]) / self.length
        last = len(self.results) - 1
        if np.min(places) < -OUTSIDE or np.max(places) > last + 1 + OUTSIDE:
            end = self.length * (last + 1)
            raise InputError("points", "some times are outside", f"times from 0 to {end:g}")
        which = jnp.asarray(np.clip(np.floor(places), 0, last))
        values = None
        for number, result in enumerate(self.results):
            local = points.at[:, 0].add(-number * self.length)
            found = _evaluate(self.u, result.theta, local)
            mask = (which == number).reshape(-1, *[1] * (found.ndim - 1))
            values = found if values is None else jnp.where(mask, found, values)
        assert values is not None
        return values


def march(
    u: Callable[[PyTree, Array], Array],
    start: Callable[[Array], Array],
    points: Array,
    pinn: Collocation,
    theta0: PyTree,
    *,
    windows: int,
    length: float,
    method: Callable[[Metric], Method] = levenberg_marquardt,
    weight: float | Array = 1.0,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> March:
    """Solve an equation window by window, each from where the one before has ended.

    `pinn` has the equation and the boundary conditions on one window, at x = (t, …) with times from
    0 to `length`. `u(theta, x)` is what is handed on: the solution, and with it u_t where the
    equation is of second order in time. At the `points`, of time 0, it is to be `start(x)` in the
    first window and u at the end of the former one later: a block "start" of this `weight`.

    ```python
    box = ng.pinn.Box((0.0, -1.0), (0.1, 1.0))
    pinn = ng.Collocation(interior=ng.Residual(equation, box.sobol(1024)))
    solution = ng.pinn.march(
        u, start, box.face(0, 0).sobol(128), pinn, net, windows=10, length=0.1, weight=100.0
    )
    solution(grid), [result.loss for result in solution.results]
    ```

    Every window begins with the θ of the one before and, where its damping adapts, with the λ of
    the last accepted step; all run the same compiled program. Times are those of the window, so the
    equation must not depend on time by itself. `checkpoint` is a folder with a file for each
    window; `options` are further ones of `minimize`, for each window.

    Args:
        u: u(θ, x), what is handed on.
        start: Its value at time 0.
        points: Where windows meet, at time 0.
        pinn: The equation and boundary conditions on one window.
        theta0: Where the first window starts.
        windows: Number of windows.
        length: Length of a window in time.
        method: Metric ↦ method, such as a recipe.
        weight: Weight of the block "start".
        checkpoint: A folder for the checkpoints.
        **options: Further arguments of `minimize`.
    """
    check_instance("pinn", pinn, Collocation)
    check_integer(windows, "windows", 1)
    check_number(length, "length", positive=True)
    if START in pinn.blocks:
        raise InputError("pinn", f"has a block {START!r} of its own", "start=, points= and weight=")
    points = jnp.asarray(points)
    if points.ndim != 2 or not len(points) or jnp.any(points[:, 0] != 0):
        what = f"of shape {points.shape} are not (n, d) with time 0 in front"
        raise InputError("points", what, "box.face(0, 0).sobol(128)")
    folder = None if checkpoint is None else Path(checkpoint)
    as_rows = lambda values: values.reshape(len(points), -1)
    value = as_rows(jax.vmap(start)(points))
    handed_on = as_rows(_evaluate(u, theta0, points)).shape
    if value.shape != handed_on:
        what = f"returns {value.shape[1]} numbers where u returns {handed_on[1]}"
        raise InputError("start", what, "the initial values of all that u hands on")
    end, theta, results = points.at[:, 0].set(length), theta0, []
    for number in range(windows):
        data = jnp.concatenate([points, value], axis=1)
        condition = Residual(_Start(u, points.shape[1]), data, weight)
        whole = Collocation(memory=pinn.memory, **pinn.blocks, **{START: condition})
        if folder is not None:
            options["checkpoint"] = folder / f"window-{number}.npz"
        own = method(whole.metric)
        own = own.after(results[-1]) if results else own
        results.append(minimize(whole.problem, theta, own, **options))
        theta = results[-1].theta
        value = as_rows(_evaluate(u, theta, end))
    return March(u, float(length), tuple(results))


class _Start(eqx.Module):
    """u − v at one row (x, v): values are data, so that another window compiles nothing."""

    u: Callable[[PyTree, Array], Array]
    dimension: int = eqx.field(static=True)

    def __call__(self, theta: PyTree, row: Array) -> Array:
        return jnp.ravel(self.u(theta, row[: self.dimension])) - row[self.dimension :]


@eqx.filter_jit
def _evaluate(u: Callable[[PyTree, Array], Array], theta: PyTree, points: Array) -> Array:
    return jax.vmap(lambda x: u(theta, x))(points)
