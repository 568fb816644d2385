"""The propagator against what is known of waves: Green's functions, orders, the layer's echo."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad import waves
from problems_for_tests import with_slow

VELOCITY, FREQUENCY, DELAY = 2000.0, 5.0, 0.32
DURATION, DT = 0.8, 0.003

pytestmark = pytest.mark.filterwarnings("ignore:the shortest wave")


@eqx.filter_jit
def run(model, theta):
    return model(theta)


def records(survey, velocity, **settings):
    """The traces (receivers, steps) of the only shot."""
    model = waves.Acoustic(survey, velocity, stored_every=1, **settings)
    return np.asarray(run(model, model.start), float)[0]


def pulse(times):
    a = (np.pi * FREQUENCY * (times - DELAY)) ** 2
    return (1 - 2 * a) * np.exp(-a)


def green_2d(distance, times):
    """∫ s(t − τ)/(2π √(τ² − r²/c²)) dτ from τ = r/c on: the solution of m u_tt − Δu = s(t)δ(x).

    With τ = (r/c) cosh y the integrand is smooth: s(t − (r/c) cosh y)/2π.
    """
    arrival = distance / VELOCITY
    y = np.linspace(0.0, np.arccosh((times[-1] + 1) / arrival), 2001)
    values = pulse(times[:, None] - arrival * np.cosh(y))
    return np.trapezoid(values, y, axis=1) / (2 * np.pi)


def square(spacing, dt, order, shift=0.0):
    """Distances and traces in a square without a layer, before its edges are heard.

    `shift` moves source and receivers off the grid, as a share of a cell.
    """
    side, steps = round(2000 / spacing) + 1, round(DURATION / dt)
    place = lambda *points: np.array(points) + shift * spacing
    sources, receivers = place((1000.0, 1000.0)), place((1400.0, 1000.0), (1200.0, 1200.0))
    wavelet = waves.ricker(FREQUENCY, dt, steps, DELAY)
    survey = waves.Survey((side, side), spacing, dt, sources, receivers, wavelet)
    velocity = np.full(survey.shape, VELOCITY)
    found = records(survey, velocity, order=order, absorbing=0, dtype=jnp.float64)
    return np.linalg.norm(receivers - sources, axis=1), found


def error(distances, found, dt):
    """Relative, against Green's function."""
    times = np.arange(found.shape[1]) * dt
    exact = np.array([green_2d(r, times) for r in distances])
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


def error_in_space(spacing, order, shift=0.0):
    """With the error in time removed: (4u(dt/2) − u(dt))/3 has it in the fourth power of dt."""
    distances, coarse = square(spacing, DT, order, shift)
    _, fine = square(spacing, DT / 2, order, shift)
    return error(distances, (4 * fine[:, ::2] - coarse) / 3, DT)


def test_amplitudes_are_those_of_a_point_source():
    """Whatever the grid: a source that was not divided by the cell would be off by factors."""
    assert error(*square(20.0, 0.002, 4), 0.002) < 5e-3


@pytest.mark.parametrize(
    ("order", "spacings", "least"), [(4, (25.0, 12.5), 3.7), (8, (40.0, 25.0), 7.0)]
)
def test_order_in_space(order, spacings, least):
    """3.95 and 7.3 are seen."""
    first, second = (error_in_space(h, order) for h in spacings)
    seen = np.log(first / second) / np.log(spacings[0] / spacings[1])
    assert seen > least, (first, second)


def test_order_in_time():
    """Two, with the error in space two orders of magnitude smaller."""
    first, second = (error(*square(25.0, dt, 8), dt) for dt in (DT, DT / 2))
    assert np.log2(first / second) == pytest.approx(2.0, abs=0.1)


def test_points_between_cells_are_of_second_order():
    """By the multilinear weights of sources and receivers, whatever the order of the stencil."""
    first, second = (error_in_space(h, 8, shift=0.5) for h in (25.0, 12.5))
    assert np.log2(first / second) == pytest.approx(2.0, abs=0.2)
    assert first < 0.1


def test_echo_of_the_layer():
    """Against a model whose edges are too far away; benchmarks/bench_absorbing.py has the table."""
    spacing, dt, steps, far = 25.0, 0.0025, 300, 150
    wavelet = waves.ricker(6.0, dt, steps)

    def survey(around):
        at = lambda *points: (np.array(points, float) + around) * spacing
        side = 41 + 2 * around
        return waves.Survey((side, side), spacing, dt, at((20, 20)), at((20, 8), (32, 32)), wavelet)

    velocity = 0.5 * survey(0).fastest_stable(4)
    traces = lambda around, cells, order=4: records(
        survey(around),
        np.full(survey(around).shape, velocity),
        absorbing=cells,
        order=order,
        dtype=jnp.float64,
    )
    free = traces(far, 0)
    echo = lambda cells: 20 * np.log10(np.abs(traces(0, cells) - free).max() / np.abs(free).max())
    assert echo(10) < -50
    assert echo(20) < -60


def test_a_wave_along_the_layer_keeps_its_amplitude():
    """Two cells below it, at an offset of 60, in a box whose other edges are far away."""
    spacing, dt, steps, side, far = 25.0, 0.0025, 330, 120, 75

    def traces(above, cells):
        at = lambda x: np.array([[x * spacing, (2 + above) * spacing]])
        wavelet = waves.ricker(6.0, dt, steps)
        survey = waves.Survey((side, 75 + above), spacing, dt, at(30), at(90), wavelet)
        velocity = np.full(survey.shape, 0.5 * survey.fastest_stable(4))
        return records(survey, velocity, absorbing=cells)

    free = traces(far, 40)
    wrong = np.linalg.norm(traces(0, 20) - free) / np.linalg.norm(free)
    assert 20 * np.log10(wrong) < -40


LONG_RUNS = {
    f"{cells} cells, order {order}": (cells, order) for order in (4, 8) for cells in (1, 3, 10)
}


@pytest.mark.parametrize("name", with_slow(LONG_RUNS, [*LONG_RUNS][1:]))
def test_waves_never_grow_in_the_layer(name):
    """Nor where it is thin and steep, close to the limit of dt, in rough models, from a corner."""
    (cells, order), steps, shape = LONG_RUNS[name], 20_000, (24, 20)
    survey = waves.Survey(
        shape, 25.0, 0.0025, [[0, 0]], [[0, 0], [575, 475]], waves.ricker(6.0, 0.0025, steps)
    )
    limit = 0.999 * survey.fastest_stable(order)
    rough = 1500 + (limit - 1500) * np.random.default_rng(0).random(shape)
    for velocity in (rough, np.full(shape, 3000.0), np.full(shape, limit)):
        settings = {"absorbing": cells, "order": order, "dtype": jnp.float64}
        seen = np.abs(records(survey, velocity, **settings)).max(axis=0)
        assert seen[-1000:].max() < 1e-3 * seen.max()  # 10⁻⁴ with one cell, less than 10⁻⁷ with 10


def test_cells_at_the_edge_reach_into_the_layer():
    """Their derivative, with the damping and its matching term, against differences of the data."""
    shape, steps = (16, 14), 160
    survey = waves.Survey.line(shape, 25.0, dt=0.002, steps=steps, shots=2, frequency=8.0)
    velocity = 2000 + 1000 * np.random.default_rng(1).random(shape)
    model = waves.Acoustic(survey, velocity, absorbing=6, stored_every=1, dtype=jnp.float64)
    edge = np.ones(shape)
    edge[1:-1, 1:-1] = 0.0
    xi = np.random.default_rng(2).normal(size=survey.data_shape)

    @eqx.filter_jit
    def applied(model, eta, xi):
        products = model.products(lambda flat: flat.reshape(shape), model.start.ravel())
        return products.push(eta), products.pull(xi)

    born, back = map(np.asarray, applied(model, edge.ravel(), xi))
    small = 1e-5
    ahead, behind = (np.asarray(run(model, model.start + s * small * edge)) for s in (1, -1))
    difference = (ahead - behind) / (2 * small)
    assert np.linalg.norm(born - difference) < 1e-6 * np.linalg.norm(difference)
    assert np.vdot(born, xi) == pytest.approx(np.vdot(edge, back), 1e-11)


def test_three_dimensions():
    """A layer on all sides, and s(t − r/c)/(4πr) at two receivers."""
    spacing, dt, steps = 40.0, 0.006, 110
    sources, receivers = np.full((1, 3), 400.0), np.array([[640.0, 400, 400], [520, 520, 520]])
    wavelet = waves.ricker(FREQUENCY, dt, steps, DELAY)
    survey = waves.Survey((21, 21, 21), spacing, dt, sources, receivers, wavelet)
    found = records(survey, np.full(survey.shape, VELOCITY), order=8, absorbing=8)
    times = np.arange(steps) * dt
    distances = np.linalg.norm(receivers - sources, axis=1)
    exact = np.array([pulse(times - r / VELOCITY) / (4 * np.pi * r) for r in distances])
    assert np.linalg.norm(found - exact) < 0.06 * np.linalg.norm(exact)
