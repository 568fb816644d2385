"""The operations of one metric on one grid, timed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.compilation_cache import compilation_cache

from natgrad import Cholesky, Grid, NaturalGradient, Problem
from natgrad.metrics import Metric

from ..mixtures import START, problem_on
from .methods import Method
from .settings import Settings
from .sparse_qr import TransportQR

LEAST_SECONDS = 0.02  # calls shorter than this are repeated more often: their times scatter
MOST_REPEATS = 50


# --- the clock ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """CPU seconds of this process, all its threads together.

    `seconds` is the fastest of the calls after the first; `compilation` is what the first took on
    top of it, that is tracing and compiling.
    """

    seconds: float
    compilation: float


def cpu_time(
    call: Callable[[Any], Any],
    argument: Callable[[int], Any],
    repeats: int,
    enough: float,
) -> tuple[Timing, Any]:
    """Time `call(argument(i))` for i = 0, 1, …; making the argument is not counted.

    What the first call returned comes back too. There are `repeats` calls after it, more if they
    are short, and fewer once they have taken `enough` seconds together.
    """
    first, value = _seconds(call, argument(0))
    taken: list[float] = []
    while len(taken) < MOST_REPEATS:
        taken.append(_seconds(call, argument(len(taken) + 1))[0])
        if sum(taken) >= enough or (len(taken) >= repeats and sum(taken) >= LEAST_SECONDS):
            break
    return Timing(min(taken), max(first - min(taken), 0.0)), value


def _seconds(call: Callable[[Any], Any], argument: Any) -> tuple[float, Any]:
    jax.block_until_ready(argument)
    start = process_time()
    value = jax.block_until_ready(call(argument))
    return process_time() - start, value


@contextmanager
def compile_afresh() -> Iterator[None]:
    """Inside the block JAX's persistent cache is off: its hits would pass for compilations."""
    before = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX decides once whether the cache is on
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


# --- the operations -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """CPU times of one method at one size, the direction found, and the iterations it took.

    `set_up` is None where L does not depend on ρ, `product` where Lv, solved to its tolerance, does
    not converge. `iterations` is that of the elliptic solve in a direction.
    """

    set_up: Timing | None
    product: Timing | None
    whiten: Timing
    direction: Timing
    eta: np.ndarray
    iterations: int | None


class Operations(NamedTuple):
    """What is timed: ρ ↦ L, (L, v) ↦ Lv, (L, ρ, c) ↦ (Lᵀ)†c and θ ↦ (η, iterations)."""

    set_up: Callable[[Array], Any]
    product: Callable[[Any, Array], Any]
    whiten: Callable[[Any, Array, Array], Any]
    direction: Callable[[Array], tuple[Any, Any]]


def measure(method: Method, points: int, settings: Settings) -> Measurement:
    """All operations of `method` with k = points², for v = ∂ρ/∂μ₁ and c = ∂f/∂ρ at (5, 3).

    A set-up and a direction are asked for at a new point each time, (5, 3) but for multiples of
    1e-9, so that no factorisation is remembered.
    """
    grid = method.grid(points)
    problem = problem_on(grid)
    start = jnp.array(START)
    if method.metric is None:
        operations = _with_suitesparse(grid, problem, method.scheme)
    else:
        operations = _with_natgrad(method.metric(grid), problem)
    state = eqx.filter_jit(problem.model)
    densities = lambda i: state(start + 1e-9 * i)
    rho, columns, c = _linearise(problem, start)
    v = columns[0]
    clock = lambda call, argument: cpu_time(
        call, argument, settings.repeats, enough=settings.max_seconds
    )
    set_up, L = clock(operations.set_up, densities)
    product, image = clock(lambda v: operations.product(L, v), lambda i: v)
    whiten, _ = clock(lambda c: operations.whiten(L, rho, c), lambda i: c)
    if method.remembers:  # the factorisation is done at the first product
        first_product = lambda rho: operations.product(operations.set_up(rho), v)
        both, _ = clock(first_product, lambda i: densities(i + 1))
        set_up = Timing(max(both.seconds - product.seconds, 0.0), set_up.compilation)
    direction, (eta, iterations) = clock(operations.direction, lambda i: start - 1e-9 * i)
    return Measurement(
        set_up=set_up if method.changes else None,
        product=product if _finite(image) else None,
        whiten=whiten,
        direction=direction,
        eta=np.asarray(eta),
        iterations=None if iterations is None else int(iterations),
    )


def _finite(tree: Any) -> bool:
    return all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


def _with_natgrad(metric: Metric, problem: Problem) -> Operations:
    """Compiled programs, split where the loop of `minimize` splits them."""
    method = NaturalGradient(metric, solver=Cholesky())
    state = method.init(problem, jnp.array(START))

    def direction(theta: Array) -> tuple[Array, Any]:
        local = method.linearise(problem, theta, state)
        return local.solve(jnp.zeros(())).eta, local.report.get("elliptic_iterations")

    return Operations(
        set_up=lambda rho: _factorise(metric, rho),
        product=_product,
        whiten=lambda L, rho, c: _whiten(metric, rho, c),
        direction=direction,
    )


@eqx.filter_jit
def _factorise(metric: Metric, rho: Array) -> Callable[[Array], Any]:
    return eqx.filter_closure_convert(metric.factor(rho).mv, rho)


@eqx.filter_jit
def _product(L: Callable[[Array], Any], v: Array) -> Any:
    return L(v)


@eqx.filter_jit
def _whiten(metric: Metric, rho: Array, c: Array) -> Any:
    return metric.whiten(rho, c)


@eqx.filter_jit
def _linearise(problem: Problem, theta: Array) -> tuple[Array, Array, Array]:
    """ρ, the columns of Z, and ∂f/∂ρ."""
    rho, columns, _ = problem.model.jacobian(lambda v: v, theta)
    return rho, columns, jax.grad(problem.loss)(rho)


def _with_suitesparse(grid: Grid, problem: Problem, scheme: str) -> Operations:
    """The same operations by sparse QR on the host; ρ and Z still come from the compiled model."""

    def direction(theta: Array) -> tuple[np.ndarray, None]:
        rho, columns, c = map(np.asarray, _linearise(problem, theta))
        slope = columns.reshape(len(columns), -1) @ c.ravel()
        G = TransportQR.of(grid, rho, scheme).information(columns)
        return -np.linalg.solve(G, slope), None

    return Operations(
        set_up=lambda rho: TransportQR.of(grid, rho, scheme),
        product=lambda L, v: L.product(v),
        whiten=lambda L, rho, c: L.whiten(c),
        direction=direction,
    )
