"""Metrics and misfits on recorded waves: dense oracles, transposes, W₂ of traces."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dense_oracle as oracle
import natgrad as ng
from natgrad import waves
from natgrad.core import selection
from natgrad.core.operators import as_dense
from natgrad.metrics.distances import squared_wasserstein
from natgrad.waves.data_metrics import average_blocks, spread_blocks
from problems_for_tests import with_slow

SHAPE, EVERY = (3, 4, 11), 3  # shots, receivers, steps; the last block has two samples
GATHER = ng.Grid((0.0, 0.0), (1.0, 1.0), SHAPE[1:])
TRACE = ng.Grid(0.0, 1.0, SHAPE[2])
SIGMA = waves.Softplus(0.7, 0.2)
STEPS = np.array([1e-2, 1e-3, 0.0])


def data(seed: int, dtype=np.float64) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=SHAPE), dtype)


def block_means() -> np.ndarray:
    """S as a matrix."""
    S = np.zeros((4, 11))
    for i in range(4):
        block = slice(3 * i, min(3 * i + 3, 11))
        S[i, block] = 1 / len(range(*block.indices(11)))
    return S


def test_decimation_is_the_matrix_of_block_means_with_its_transpose():
    S, u = block_means(), data(0)
    np.testing.assert_allclose(average_blocks(u, EVERY), u @ S.T, atol=1e-14)
    y = data(1)[..., :4]
    np.testing.assert_allclose(spread_blocks(y, EVERY, 11), y @ S, atol=1e-14)


def normalised(u: np.ndarray, sigma, reference: np.ndarray, axes: tuple[int, ...]):
    """ρ̃ and D from the formulas."""
    if isinstance(sigma, waves.Shifted):
        value, slope = u - 1.2 * reference.min(axes, keepdims=True), np.ones_like(u)
    else:
        rate = 0.7 / np.sqrt((reference**2).mean(axes, keepdims=True))
        value, slope = np.log1p(np.exp(rate * u)) + 0.2, rate / (1 + np.exp(-rate * u))
    mean = value.mean(axes, keepdims=True)
    return value / mean, slope / mean


def dense_metric(u: np.ndarray, grid: ng.Grid, sigma, reference: np.ndarray) -> np.ndarray:
    """A of all shots as one matrix, block by block."""
    S, axes = block_means(), tuple(range(-grid.dimension, 0))
    rho, D = normalised(u @ S.T, sigma, reference @ S.T, axes)
    coarse = ng.Grid(grid.lower, grid.upper, (*grid.shape[:-1], 4))
    fine = np.kron(np.eye(grid.size // 11), S)
    functions = zip(rho.reshape(-1, *coarse.shape), D.reshape(-1, coarse.size), strict=True)
    blocks = [
        fine.T * d @ oracle.transport(coarse, r, 0.5, "staggered") @ (d[:, None] * fine)
        for r, d in functions
    ]
    size = grid.size
    A = np.zeros((u.size, u.size))
    for i, block in enumerate(blocks):
        A[i * size : (i + 1) * size, i * size : (i + 1) * size] = block
    return A


@eqx.filter_jit
def everything(metric: ng.metrics.Metric, u: jax.Array, c: jax.Array, columns: jax.Array):
    """All that is tested of a metric, compiled once."""
    here = metric.at(u)
    L = here.factor
    b = here.whiten(c)
    rows = here.image(columns)[0]
    return (
        as_dense(L),
        as_dense(L.T),
        as_dense(here.gram),
        L.T.mv(b),
        here.remainder(c),
        rows,
        here.information(columns)[0],
    )


CASES = {
    "gather": (GATHER, waves.Shifted(), None),
    "trace": (TRACE, SIGMA, data(7)),
}


@pytest.mark.parametrize("case", CASES)
def test_metric_against_the_dense_oracle(case: str):
    grid, sigma, reference = CASES[case]
    metric = waves.DataWasserstein(grid, every=EVERY, normalisation=sigma, reference=reference)
    u, c = data(1), data(2)
    columns = jnp.asarray(np.random.default_rng(3).normal(size=(2, *SHAPE)))
    known = np.asarray(u if reference is None else reference)
    A = dense_metric(np.asarray(u), grid, sigma, known)
    L, transpose, gram, image, remainder, rows, G = map(
        np.asarray, everything(metric, u, c, columns)
    )
    scale = np.abs(A).max()
    np.testing.assert_allclose(L.T @ L, A, atol=1e-9 * scale)
    np.testing.assert_allclose(gram, A, atol=1e-9 * scale)
    np.testing.assert_allclose(transpose, L.T, atol=1e-9 * np.abs(L).max())
    np.testing.assert_allclose(image + remainder, c, atol=1e-10)
    # what is left vanishes on tangents that are constant in each block and conserve the mass of ρ̃
    axes, S = tuple(range(-grid.dimension, 0)), block_means()
    _, D = normalised(u @ S.T, sigma, known @ S.T, axes)
    y = np.asarray(data(4))[..., :4] / (S @ S.T).diagonal()
    y -= np.sum(D * (y @ (S @ S.T)), axes, keepdims=True) / np.sum(
        D @ (S @ S.T), axes, keepdims=True
    )
    np.testing.assert_allclose(np.sum(remainder * (y @ S), axes), 0, atol=1e-10)
    flat = np.asarray(columns).reshape(2, -1)
    np.testing.assert_allclose(G, flat @ A @ flat.T, rtol=1e-8)
    np.testing.assert_allclose(rows @ rows.T, G, rtol=1e-8)


def test_metric_in_single_precision_on_some_of_the_shots():
    reference, rows = data(7), jnp.array([0, 2])
    metric = waves.DataWasserstein(GATHER, every=EVERY, reference=reference)
    u, x = data(1, np.float32), data(2, np.float32)
    A = dense_metric(np.asarray(u, float), GATHER, waves.Shifted(), np.asarray(reference))
    expected = (A @ np.asarray(x, float).ravel()).reshape(SHAPE)
    some = metric.restricted(selection.Functions(rows, 3))
    found = eqx.filter_jit(lambda u, x: some.at(u).gram.mv(x))(u[rows], x[rows])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 1.5 * expected[rows], atol=1e-4 * np.abs(expected).max())


@eqx.filter_jit
def simulated(model: waves.Acoustic, theta: jax.Array) -> jax.Array:
    return model(theta)


@pytest.fixture(scope="module")
def inversion():
    """A tiny survey: the model, its data, a start, and Z there as a matrix."""
    survey = waves.Survey.line((7, 6), 50.0, dt=0.008, steps=32, shots=2, frequency=8.0)
    velocity = np.full(survey.shape, 2200.0)
    velocity[:, 3:] = 2600.0
    make = lambda v: waves.Acoustic(survey, v, absorbing=3)
    recorded = simulated(make(velocity), jnp.asarray(waves.squared_slowness(velocity)))
    shots = waves.Shots(survey, np.asarray(recorded)).scaled()
    start = np.full(survey.shape, 2300.0)
    model = waves.Acoustic(shots.survey, start, absorbing=3)
    theta = jnp.asarray(waves.squared_slowness(start), np.float32)
    problem = ng.Problem(model, ng.LeastSquares(jnp.asarray(shots.data), survey.gather_grid))
    jacobian = jax.jit(lambda theta: model.jacobian(lambda v: v.reshape(7, 6), theta.ravel())[:2])
    rho, columns = jacobian(theta)
    return problem, theta, rho, np.asarray(columns, float).reshape(theta.size, -1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize("name", ["homogeneous", "trace", "transport"])
def test_metrics_on_waves_in_compiled_cg(inversion, name: str):
    """η of four steps of CG on float32 waves is that of four steps with the dense matrices."""
    problem, theta, rho, Z = inversion
    gather, trace = ng.Grid((0.0, 0.0), (1.0, 1.0), (7, 32)), ng.Grid(0.0, 1.0, 32)
    metric = {
        "homogeneous": ng.HomogeneousSobolev(gather, -1),
        "trace": ng.Sobolev(trace, 1),
        "transport": waves.DataWasserstein(gather, every=4),
    }[name]
    if name == "homogeneous":
        A = np.kron(np.eye(2), oracle.sobolev(gather, -1, True))
    elif name == "trace":
        A = np.kron(np.eye(14), oracle.sobolev(trace, 1, False))
    else:
        A = np.asarray(transport_matrix(metric, rho.astype(float)))
    g = Z @ np.asarray(jax.grad(problem.loss)(rho), float).ravel()
    solver = ng.CG(0.0, max_iterations=4)
    d = ng.natural_gradient(problem, theta, metric=metric, solver=solver, damping=0.0)
    expected = conjugate_gradients(Z @ A @ Z.T, -g, 4)
    assert d.eta.dtype == np.float32
    assert np.linalg.norm(np.ravel(d.eta) - expected) < 2e-3 * np.linalg.norm(expected)


@eqx.filter_jit
def transport_matrix(metric: ng.metrics.Metric, rho: jax.Array) -> jax.Array:
    return as_dense(metric.at(rho).gram)


def conjugate_gradients(G: np.ndarray, b: np.ndarray, iterations: int) -> np.ndarray:
    x, r = np.zeros_like(b), b
    p = r
    for _ in range(iterations):
        alpha = (r @ r) / (p @ G @ p)
        x, new = x + alpha * p, r - alpha * (G @ p)
        p, r = new + (new @ new) / (r @ r) * p, new
    return x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
def test_inversion_by_transport(inversion):
    """A misfit in its own metric, on one of two shots at a time."""
    problem, theta, rho, _ = inversion
    recorded = problem.loss.target
    misfit = waves.TraceWasserstein(recorded, every=2)
    result = ng.minimize(
        ng.Problem(problem.model, misfit),
        theta,
        ng.NaturalGradient(
            misfit.metric(), solver=ng.CG(0.0, max_iterations=3), damping=0.0, step=ng.ModelStep()
        ),
        stop=ng.Stop(iterations=3),
        batch=ng.MiniBatch(1, of="functions"),
    )
    moved = simulated(problem.model, result.theta)
    assert misfit(moved) < 0.7 * misfit(rho)


# Traces ---------------------------------------------------------------------------------------


def ricker_at(shifts: np.ndarray, steps: int = 400) -> jax.Array:
    """Pulses of 5 Hz in 4 s, later by these times."""
    return jnp.asarray([waves.ricker(5.0, 4.0 / steps, steps, delay=2.0 + s) for s in shifts])


@pytest.mark.parametrize("dtype", with_slow([np.float32, np.float64], [np.float64]))
def test_misfit_grows_with_a_time_shift_over_six_periods(dtype):
    shifts = np.linspace(0.0, 1.2, 61)
    exact = np.asarray(ricker_at(shifts))
    traces = exact.astype(dtype)
    misfit = waves.TraceWasserstein(jnp.asarray(traces[:1]), every=2)
    values = jax.jit(jax.vmap(lambda u: misfit(u[None])))(traces)
    assert values.dtype == dtype
    values = np.asarray(values)
    assert values[0] < 1e-12
    assert np.all(np.diff(values) > 0)
    squares = np.sum((exact - exact[0]) ** 2, axis=-1)
    assert np.sum(np.diff(squares) < 0) > 10


def test_misfit_is_the_wasserstein_distance_of_the_densities():
    traces = np.asarray(ricker_at(np.array([0.0, 0.07, 0.4])))
    misfit, grid = waves.TraceWasserstein(jnp.asarray(traces[1:])), ng.Grid(0.0, 1.0, 400)

    @jax.jit
    def both(rolled, recorded):
        positive = misfit.positive(rolled), misfit.positive(recorded)
        pairs = zip(*(x / x.mean(-1, keepdims=True) for x in positive), strict=True)
        return misfit(rolled), sum(squared_wasserstein(grid, *pair) for pair in pairs)

    found, exact = both(traces[:2], traces[1:])
    assert float(found) == pytest.approx(0.5 * float(exact), rel=2e-3)


@eqx.filter_jit
def derivatives(misfit: waves.TraceWasserstein, u: jax.Array, zeta: jax.Array):
    """What a Taylor polynomial leaves at two lengths, ⟨ζ, ∇²f ζ⟩, and the squared length of ζ."""
    slope, product = jax.jvp(jax.grad(misfit), (u,), (zeta,))
    near = jax.lax.map(lambda h: misfit(u + h * zeta) - h * jnp.vdot(slope, zeta), STEPS)
    length = jnp.sum(misfit.metric().factor(u).mv(zeta)[0] ** 2)
    return near[:2] - near[2], jnp.vdot(zeta, product), length


def test_derivatives_of_the_misfit():
    """The gradient by a Taylor test; the second derivative is the metric, in the limit h → 0."""
    errors = []
    for steps in (400, 800):
        recorded, u = (ricker_at(np.array([s]), steps) for s in (0.0, 0.1))
        time = np.linspace(0.0, 4.0, steps)
        zeta = jnp.asarray(np.cos(9 * time) * np.exp(-((time - 2) ** 2)))[None]
        misfit = waves.TraceWasserstein(recorded)
        remainders, curvature, length = derivatives(misfit, u, zeta)
        errors.append(abs(float(curvature / length) - 1))
    assert 30 < remainders[0] / remainders[1] < 300
    assert errors[0] < 0.05
    assert errors[1] < 0.01


def test_dead_traces_are_uniform_densities():
    recorded = ricker_at(np.array([0.0, 0.1])).at[1].set(0.0)
    misfit = waves.TraceWasserstein(recorded, every=4)
    value, slope = jax.jit(jax.value_and_grad(misfit))(recorded)
    assert np.all(np.isfinite(slope))
    assert value < 1e-30  # a squared distance, of rounding


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("recorded", lambda: waves.TraceWasserstein(jnp.zeros(()))),
        ("recorded", lambda: waves.TraceWasserstein(data(0).at[0, 0, 0].set(np.nan))),
        ("recorded", lambda: waves.TraceWasserstein(np.ones((2, 9), int))),
        ("recorded", lambda: waves.TraceWasserstein(data(0)).check_structure(data(0)[:2])),
        ("every", lambda: waves.TraceWasserstein(data(0), every=0)),
        ("normalisation", lambda: waves.TraceWasserstein(data(0), normalisation=waves.Shifted())),
        (
            "batch",
            lambda: waves.TraceWasserstein(data(0)).restricted(
                selection.Points(jnp.arange(3), SHAPE)
            ),
        ),
        (
            "batch",
            lambda: waves.DataWasserstein(GATHER).restricted(
                selection.Points(jnp.arange(3), SHAPE)
            ),
        ),
        ("every", lambda: waves.DataWasserstein(GATHER, every=11)),
        ("shift", lambda: waves.Shifted(0.9)),
        ("sharpness", lambda: waves.Softplus(0.0)),
        ("normalisation", lambda: waves.DataWasserstein(GATHER, normalisation=1.2)),
        ("reference", lambda: waves.DataWasserstein(GATHER, reference=data(0) * np.nan)),
        (
            "reference",
            lambda: waves.DataWasserstein(GATHER, reference=data(0)).check_structure(data(0)[:2]),
        ),
        ("model", lambda: waves.DataWasserstein(GATHER).check_structure(data(0)[..., :5])),
    ],
)
def test_bad_input(argument: str, make):
    with pytest.raises(ng.InputError) as raised:
        make()
    assert raised.value.argument == argument
