"""Small problems shared by the tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import natgrad as ng


def bump(grid: ng.Grid, centre: Array, width: float | Array = 0.15) -> Array:
    """A Gaussian on the grid's points, normalised in the continuum."""
    distance = ((grid.points - centre) ** 2).sum(-1)
    return jnp.exp(-distance / (2 * width**2)) / (2 * jnp.pi * width**2) ** (grid.dimension / 2)


@lru_cache
def bumps_problem(n: int = 12, boundary: str = "neumann", mass_varies: bool = False):
    """Two bumps: their centres (and, on demand, the background) are free. p = 4 or 5.

    Cached: programs are keyed by the identity of the model.
    """
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (n, n), boundary)  # pyright: ignore

    def model(theta: Array) -> Array:
        total = bump(grid, theta[:2], 0.2) + 0.5 * bump(grid, theta[2:4], 0.25)
        if mass_varies:
            return total + 0.1 * jnp.exp(theta[4]) * (1.0 + grid.points[..., 0])
        return (total + 0.1) / grid.integral(total + 0.1)

    p = 5 if mass_varies else 4
    truth = np.array([0.35, 0.4, 0.7, 0.6, 0.1])[:p]
    start = truth + np.array([0.1, -0.05, 0.05, 0.08, 0.2])[:p]
    problem = ng.Problem(model, ng.LeastSquares(jax.jit(model)(truth), grid))
    return problem, jnp.asarray(start), jnp.asarray(truth), grid


class Linear(eqx.Module):
    """θ ↦ Zθ with Z as a leaf: another Z of the same shape does not compile again."""

    Z: Array

    def __init__(self, Z: Array | np.ndarray):
        self.Z = jnp.asarray(Z)

    def __call__(self, theta: Array) -> Array:
        return self.Z @ theta


def linear_problem(k: int, p: int, rank: int, seed: int = 0, grading: float = 1.0):
    """ρ = Zθ with given rank and singular values 1 … grading, and a least-squares loss."""
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(k, rank)))
    V, _ = np.linalg.qr(rng.normal(size=(p, rank)))
    Z = U * np.geomspace(1.0, grading, rank) @ V.T
    target = rng.normal(size=k)
    problem = ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(target)))
    return problem, jnp.asarray(rng.normal(size=p)), Z, target


def all_metrics(grid: ng.Grid) -> dict[str, ng.metrics.Metric]:
    """Every metric on states that takes a zero-flux or periodic grid."""
    return {
        "L2": ng.L2(grid),
        "H1": ng.Sobolev(grid, 1),
        "H-1": ng.Sobolev(grid, -1),
        "dotH1": ng.HomogeneousSobolev(grid, 1),
        "dotH-1": ng.HomogeneousSobolev(grid, -1),
        "FisherRao": ng.FisherRao(grid),
        "Wasserstein": ng.Wasserstein(grid),
        "Mobility": ng.Mobility(grid, 0.8),
        "Sum": ng.Wasserstein(grid) + 0.1 * ng.L2(grid),
    }


METRIC_NAMES = tuple(all_metrics(ng.Grid(0.0, 1.0, 4)))


@eqx.filter_jit
def state_and_jacobian(model: Callable, theta) -> tuple[Array, Array]:
    """ρ(θ) and Z, in one program."""
    return model(theta), jax.jacobian(model)(theta)


# They add to L², Fisher–Rao, W₂ and a sum, where a law is the same for all metrics.
FURTHER_METRICS = ("H1", "H-1", "dotH1", "dotH-1", "Mobility")


def with_slow(values, slow):
    """The values as parameters of a test, those in `slow` marked: they add to a fast one."""
    return [pytest.param(v, marks=[pytest.mark.slow] * (v in slow)) for v in values]


@contextmanager
def compiled() -> Iterator[list[str]]:
    """The names of the functions that JAX compiles meanwhile."""
    names = []

    def listen(event: str, seconds: float, **about) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def minimize_compiling_once(problem: ng.Problem, theta, method, **options) -> ng.Result:
    """A run that compiles nothing after its first iteration."""
    counts = []
    with compiled() as names:
        count = lambda progress: counts.append(len(names))
        result = ng.minimize(problem, theta, method, callbacks=[count], **options)
    assert len(counts) > 1
    assert counts[-1] == counts[0], names[counts[0] :]
    return result


def close(actual, expected, tolerance: float = 1e-8):
    """Equal, up to an error relative to the length of what is expected."""
    expected = np.asarray(expected)
    error = np.linalg.norm(np.asarray(actual) - expected)
    assert error <= tolerance * np.linalg.norm(expected), error / np.linalg.norm(expected)


def assert_input_error(argument: str, pattern: str, call: Callable[[], object]) -> None:
    """The call raises an error whose message names the argument, the mistake and a remedy."""
    with pytest.raises(ng.InputError, match=pattern) as caught:
        call()
    assert caught.value.argument == argument
    assert ". Try: " in str(caught.value)


def assert_same(one: ng.Result, other: ng.Result) -> None:
    """Two runs that are one, bit for bit, but for their times."""
    for a, b in zip(jax.tree.leaves(one.theta), jax.tree.leaves(other.theta), strict=True):
        assert np.array_equal(a, b)
    assert one.status == other.status
    assert one.iterations == other.iterations
    assert one.loss == other.loss
    assert eqx.tree_equal(one.best, other.best)
    for name, column in one.history.items():
        if name != "seconds":
            assert np.array_equal(column, other.history[name], equal_nan=True), name
