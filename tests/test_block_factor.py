"""Block factorisations against dense pseudo-inverses, reference values and hard contrasts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.elliptic import stencils as S
from natgrad.elliptic.block_factor import (
    BlockElimination,
    BlockQR,
    dominant_factor,
    factorise,
    remove_null_component,
)

NEUMANN, PERIODIC = S.staggered_neumann, S.staggered_periodic
CENTRAL, FORWARD, FOURTH = S.collocated_central, S.collocated_forward, S.collocated_fourth_order

CASES = [
    ((9,), (NEUMANN,)),
    ((2,), (PERIODIC,)),
    ((7,), (PERIODIC,)),
    ((8,), (PERIODIC,)),
    ((6, 5), (NEUMANN, NEUMANN)),
    ((1, 5), (NEUMANN, NEUMANN)),
    ((6, 7), (PERIODIC, NEUMANN)),
    ((7, 6), (PERIODIC, PERIODIC)),
    ((5, 1), (PERIODIC, PERIODIC)),
    ((6, 8), (CENTRAL, CENTRAL)),
    ((7, 9), (CENTRAL, CENTRAL)),
    ((7, 6), (CENTRAL, FORWARD)),
    ((4, 3, 5), (NEUMANN, PERIODIC, NEUMANN)),
    ((4, 3, 6), (CENTRAL, CENTRAL, CENTRAL)),
    ((9, 8), (FOURTH, FOURTH)),
    ((6, 6, 6), (NEUMANN, NEUMANN, NEUMANN)),
]
METHODS = [None, "qr", "truncated"]
RUNS = [(*problem, None) for problem in CASES] + [
    (*CASES[i], method) for i in (2, 6, 7, 10, 12, 14) for method in METHODS[1:]
]


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def case(shape, constructors, seed=0):
    rng = np.random.default_rng(seed)
    stencils = tuple(make(0.3 + 0.1 * axis) for axis, make in enumerate(constructors))
    shapes = [
        (*shape[:axis], shape[axis] + stencil.extra, *shape[axis + 1 :])
        for axis, stencil in enumerate(stencils)
    ]
    weights = tuple(jnp.asarray(rng.uniform(0.2, 1.5, s)) for s in shapes)
    return stencils, weights, jnp.asarray(rng.normal(size=(2, 2, *shape))), shapes


def dense_divergence(stencils, weights, shape):
    columns = []
    for axis, (stencil, weight) in enumerate(zip(stencils, weights, strict=True)):
        product = np.ones((1, 1))
        for i, n in enumerate(shape):
            product = np.kron(product, S.matrix(stencil, n) if i == axis else np.eye(n))
        columns.append(-product * np.asarray(weight).ravel())
    return np.concatenate(columns, axis=1)


def flatten(fluxes, batch):
    return np.concatenate([np.asarray(f).reshape(*batch, -1) for f in fluxes], axis=-1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute(stencils, method, weights, zeta):
    factor = factorise(stencils, weights, method=method)
    return factor, factor.solve(zeta), factor.pseudo_inverse(zeta)


@pytest.mark.parametrize(("shape", "constructors", "method"), RUNS)
def test_pseudo_inverse_matches_the_dense_one(shape, constructors, method):
    stencils, weights, zeta, _ = case(shape, constructors)
    dense = dense_divergence(stencils, weights, shape)
    inverse = np.linalg.pinv(dense, rcond=1e-12)
    compatible = remove_null_component(stencils, zeta)
    factor, phi, fluxes = compute(stencils, method, weights, compatible)
    fluxes = flatten(fluxes, (2, 2))
    expected = np.asarray(compatible).reshape(2, 2, -1) @ inverse.T
    np.testing.assert_allclose(fluxes, expected, atol=1e-12 * np.abs(expected).max())
    back = S.divergence(stencils, weights, S.weighted_gradient(stencils, weights, phi))
    np.testing.assert_allclose(back, compatible, atol=1e-10)
    if method == "truncated" or (method is None and constructors[0] is not FOURTH):
        assert factor.rank == np.linalg.matrix_rank(dense)
    if method == "truncated":
        strict = flatten(compute(stencils, method, weights, zeta)[2], (2, 2))
        expected = np.asarray(zeta).reshape(2, 2, -1) @ inverse.T
        np.testing.assert_allclose(strict, expected, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("shape", "constructors", "method"), RUNS[6:8] + RUNS[10:11] + RUNS[12:13] + RUNS[-4:]
)
def test_transposes_are_exact(shape, constructors, method):
    stencils, weights, zeta, shapes = case(shape, constructors)
    factor, _, inverse = compute(stencils, method, weights, zeta)
    rng = np.random.default_rng(3)
    fluxes = tuple(jnp.asarray(rng.normal(size=(2, 2, *s))) for s in shapes)
    forward = sum(jnp.vdot(f, g) for f, g in zip(fluxes, inverse, strict=True))
    backward = jnp.vdot(jax.jit(type(factor).pseudo_inverse_transpose)(factor, fluxes), zeta)
    np.testing.assert_allclose(forward, backward, rtol=1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_vmap_over_weights_and_jit(method):
    stencils, weights, zeta, _ = case((5, 6), (PERIODIC, NEUMANN))
    zeta = remove_null_component(stencils, zeta)
    stacked = tuple(jnp.stack([w, 2.0 * w]) for w in weights)

    @jax.jit
    def solve(weights, zeta):
        return factorise(stencils, weights, method=method).pseudo_inverse(zeta)

    batched = jax.vmap(solve)(stacked, zeta)
    for i in range(2):
        single = solve(tuple(w[i] for w in stacked), zeta[i])
        for one, many in zip(single, batched, strict=True):
            np.testing.assert_allclose(many[i], one, atol=1e-12)


def test_defaults_and_input_errors():
    stencils, weights, _, _ = case((9, 8), (FOURTH, FOURTH))
    assert isinstance(factorise(stencils, weights), BlockQR)
    with pytest.raises(ValueError, match="two-point"):
        factorise(stencils, weights, method="elimination")
    with pytest.raises(ValueError, match="unknown method"):
        factorise(stencils, weights, method="lu")
    stencils, weights, _, _ = case((6, 5), (NEUMANN, NEUMANN))
    assert isinstance(factorise(stencils, weights), BlockElimination)


def test_dominant_factor_is_accurate_in_every_entry():
    """A chain with links from 1 to 1e-120: the inverse is known in closed form."""
    links = 10.0 ** -np.linspace(0, 120, 69)
    chain = jnp.asarray(np.diag(links, 1) + np.diag(links, -1))
    ground = jnp.zeros(70).at[0].set(1.0)
    resistance = np.append(1.0, 1.0 + np.cumsum(1.0 / links))
    expected = np.minimum.outer(resistance, resistance)
    j, p = jax.jit(dominant_factor)(chain, ground)
    np.testing.assert_allclose((j * p) @ j.T, expected, rtol=1e-12)
    assert j.min() >= 0.0
    assert j.max() <= 1.0 + 1e-14


def staggered_case(density, n, width):
    dx = width / n
    faces = [(density[1:] + density[:-1]) / 2, (density[:, 1:] + density[:, :-1]) / 2]
    return (NEUMANN(dx),) * 2, tuple(jnp.sqrt(jnp.asarray(a)) for a in faces), dx


def information(stencils, weights, zeta, cell, method=None):
    fluxes = flatten(compute(stencils, method, weights, jnp.asarray(zeta))[2], (len(zeta),))
    return cell * fluxes @ fluxes.T


def gaussian(x, y, centre, variance):
    square = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
    return np.exp(-square / (2 * variance)) / (2 * np.pi * variance)


def mixture(points):
    x, y = np.meshgrid(points, points, indexing="ij")
    moving = 0.2 * gaussian(x, y, (5, 3), 0.6)
    zeta = np.stack([moving * (x - 5) / 0.6, moving * (y - 3) / 0.6])
    return moving + 0.8 * gaussian(x, y, (4, 3), 0.6), zeta


def test_mixture_collocated_reference():
    """The paper's scheme; sqrt(density) spans 1e-15..0.5 and is not floored. A longdouble
    elimination gives these values; SuiteSparseQR agrees to 4e-13, 7e-10 and 5e-13."""
    dx = 10 / 71
    density, zeta = mixture(-2.75 + dx * np.arange(1, 71))
    weights = (jnp.sqrt(jnp.asarray(density)),) * 2
    _, phi, fluxes = compute((CENTRAL(dx),) * 2, None, weights, jnp.asarray(zeta))
    mixed = dx**2 * np.asarray(phi).reshape(2, -1) @ zeta.reshape(2, -1).T
    fluxes = flatten(fluxes, (2,))
    g = mixed + mixed.T - dx**2 * fluxes @ fluxes.T
    assert g[0, 0] == pytest.approx(76440.940072385067, rel=1e-11)
    assert g[0, 1] == pytest.approx(1.340013177206, rel=1e-8)
    assert g[1, 1] == pytest.approx(0.06036326138292433, rel=1e-11)


@pytest.mark.parametrize(("floor", "method"), [(1e-14, None), (0.0, None), (0.0, "qr")])
def test_mixture_staggered_reference(floor, method):
    density, zeta = mixture(-2.75 + (np.arange(70) + 0.5) / 7)
    density = np.maximum(density, floor * density.max())
    zeta = zeta - density * (zeta.sum((1, 2)) / density.sum())[:, None, None]
    stencils, weights, dx = staggered_case(density, 70, 10.0)
    g = information(stencils, weights, zeta, dx**2, method)
    expected = np.diag([0.0738310973710056, 0.0611271573946713])
    expected[0, 1] = expected[1, 0] = -5.81442072e-09
    np.testing.assert_allclose(g, expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize(("n", "expected"), [(35, 1.00096538), (70, 1.00006320), (140, 1.00000399)])
def test_translated_gaussian_converges_to_the_identity(n, expected):
    points = -2.75 + (np.arange(n) + 0.5) * 10 / n
    x, y = np.meshgrid(points, points, indexing="ij")
    density = gaussian(x, y, (2.25, 2.25), 0.6)
    zeta = (density * (x - 2.25) / 0.6)[None]
    stencils, weights, dx = staggered_case(density, n, 10.0)
    g = information(stencils, weights, zeta, dx**2)
    assert g[0, 0] == pytest.approx(expected, abs=1e-8)


def test_disconnected_density_with_exact_zeros():
    """Two islands: each is solved on its own, and the rank counts both."""
    n = 24
    x, y = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    islands = [(x < 8) & (y > 3), (x > 14) & (y < 20)]
    density = np.where(islands[0] | islands[1], 1.0, 0.0)
    faces = [np.minimum(density[1:], density[:-1]), np.minimum(density[:, 1:], density[:, :-1])]
    zeta = np.random.default_rng(0).normal(size=(n, n)) * density
    for island in islands:
        zeta -= np.where(island, zeta[island].mean(), 0.0)
    stencils, weights = (NEUMANN(1.0),) * 2, tuple(map(jnp.asarray, faces))
    factor, phi, fluxes = compute(stencils, None, weights, jnp.asarray(zeta))
    back = S.divergence(stencils, weights, fluxes)
    assert bool(jnp.all(jnp.isfinite(phi)))
    np.testing.assert_allclose(back, zeta, atol=1e-12)
    assert factor.rank == density.sum() - 2


def test_separated_bumps():
    """Two strips joined by a corridor of conductance 1e-14. Mass moved from one to the other
    meets a series of resistances (normal equations lose this number); mass moved inside a strip
    must not notice the corridor (multiplying by inverses of Schur complements would lose that)."""
    n, corridor = 30, 1e-14
    density = np.ones((n, n))
    density[12:18] = corridor
    faces = [np.minimum(density[1:], density[:-1]), density[:, 1:]]
    weights = tuple(jnp.sqrt(jnp.asarray(face)) for face in faces)
    between, within = np.zeros((n, n)), np.random.default_rng(0).normal(size=(n, n))
    between[0], between[-1], within[12:18] = 1.0, -1.0, 0.0
    for strip in (slice(0, 12), slice(18, n)):
        within[strip] -= within[strip].mean()
    zeta = jnp.asarray(np.stack([between, within]))
    stencils = (NEUMANN(1.0),) * 2
    _, _, fluxes = compute(stencils, None, weights, zeta)
    energy = np.sum(flatten(fluxes, (2,)) ** 2, axis=1)
    assert energy[0] == pytest.approx(n * np.sum(1.0 / faces[0][:, 0]), rel=1e-13)
    assert energy[1] == pytest.approx(666.960553502042, rel=1e-12)
    residual = S.divergence(stencils, weights, fluxes)[1] - within
    np.testing.assert_allclose(residual, 0.0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_single_precision(method):
    with jax.enable_x64(False):
        stencils, weights, zeta, _ = case((6, 5), (NEUMANN, NEUMANN))
        weights = tuple(w.astype(jnp.float32) for w in weights)
        zeta = remove_null_component(stencils, zeta.astype(jnp.float32))
        _, phi, fluxes = compute(stencils, method, weights, zeta)
        assert phi.dtype == jnp.float32
        back = S.divergence(stencils, weights, fluxes)
        np.testing.assert_allclose(back, zeta, atol=1e-4)
