"""Block factorisations against dense pseudo-inverses, reference values and hard contrasts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from natgrad.metrics.elliptic.block_qr import BlockQR

from natgrad.metrics.elliptic import stencils as S
from natgrad.metrics.elliptic.elimination import BlockElimination, dominant_factor
from natgrad.metrics.elliptic.equation import factorise

NEUMANN, PERIODIC = S.staggered_neumann, S.staggered_periodic
CENTRAL, FORWARD, FOURTH = S.collocated_central, S.collocated_forward, S.collocated_fourth_order

# The default is elimination, and "qr" for the fourth-order scheme.
further = functools.partial(pytest.param, marks=pytest.mark.slow)
RUNS = [
    ((9,), (NEUMANN,), None),
    further((2,), (PERIODIC,), None),
    ((7,), (PERIODIC,), None),
    further((8,), (PERIODIC,), None),
    ((6, 5), (NEUMANN, NEUMANN), None),
    further((1, 5), (NEUMANN, NEUMANN), None),
    ((6, 7), (PERIODIC, NEUMANN), None),
    further((7, 6), (PERIODIC, PERIODIC), None),
    ((5, 1), (PERIODIC, PERIODIC), None),
    further((6, 8), (CENTRAL, CENTRAL), None),
    ((7, 5), (CENTRAL, CENTRAL), None),
    further((7, 6), (CENTRAL, FORWARD), None),
    ((4, 3, 5), (NEUMANN, PERIODIC, NEUMANN), None),
    further((6, 6, 6), (NEUMANN, NEUMANN, NEUMANN), None),
    ((4, 3, 6), (CENTRAL, CENTRAL, CENTRAL), None),
    further((9, 8), (FOURTH, FOURTH), None),
    ((7,), (PERIODIC,), "qr"),
    further((7, 6), (PERIODIC, PERIODIC), "qr"),
    ((7, 5), (CENTRAL, CENTRAL), "qr"),
    further((4, 3, 5), (NEUMANN, PERIODIC, NEUMANN), "qr"),
    ((6, 7), (PERIODIC, NEUMANN), "truncated"),
    further((7, 5), (CENTRAL, CENTRAL), "truncated"),
    ((5, 7), (FOURTH, FOURTH), "truncated"),
    further((4, 3, 5), (NEUMANN, PERIODIC, NEUMANN), "truncated"),
]
METHODS = [None, "qr", "truncated"]


def case(shape, constructors, dtype=float):
    """Stencils, random weights, right-hand sides and fluxes, these with two batch axes."""
    rng = np.random.default_rng(0)
    stencils = tuple(make(0.3 + 0.1 * axis) for axis, make in enumerate(constructors))
    shapes = [
        (*shape[:axis], shape[axis] + stencil.extra, *shape[axis + 1 :])
        for axis, stencil in enumerate(stencils)
    ]
    weights = tuple(rng.uniform(0.2, 1.5, s).astype(dtype) for s in shapes)
    fluxes = tuple(rng.normal(size=(2, 2, *s)).astype(dtype) for s in shapes)
    return stencils, weights, rng.normal(size=(2, 2, *shape)).astype(dtype), fluxes


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


def assert_close(found, expected, relative=1e-12):
    """Up to `relative` times the largest entry."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=relative * np.abs(expected).max())


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute(stencils, method, weights, zeta):
    """One program: φ, the fluxes, their divergence and, where it is counted, the rank."""
    factor = factorise(stencils, weights, method=method)
    phi, fluxes = factor.solve(zeta), factor.pseudo_inverse(zeta)
    return phi, fluxes, S.divergence(stencils, weights, fluxes), getattr(factor, "rank", None)


@pytest.mark.parametrize(("shape", "constructors", "method"), RUNS)
def test_pseudo_inverse_matches_the_dense_one(shape, constructors, method):
    stencils, weights, zeta, fluxes = case(shape, constructors)
    dense = dense_divergence(stencils, weights, shape)
    inverse = np.linalg.pinv(dense, rcond=1e-12)

    @jax.jit
    def compute_all(weights, zeta, fluxes):
        factor = factorise(stencils, weights, method=method)
        # zeta as it is and without its null component, in one batch
        both = jnp.stack([zeta, S.remove_null_component(stencils, zeta)])
        phi = factor.solve(both)
        return {
            "compatible": both[1],
            "inverse": factor.pseudo_inverse(both),
            "transpose": factor.pseudo_inverse_transpose(fluxes),
            "back": S.divergence(stencils, weights, S.weighted_gradient(stencils, weights, phi[1])),
            "rank": getattr(factor, "rank", None),
        }

    found = compute_all(weights, zeta, fluxes)
    compatible = np.asarray(found["compatible"])
    raw, minimal = flatten(found["inverse"], (2, 2, 2))
    projector = dense @ inverse
    if constructors[0] is not FOURTH:  # which has other null vectors than constants
        assert_close(compatible.reshape(2, 2, -1), zeta.reshape(2, 2, -1) @ projector)
    compatible = compatible.reshape(2, 2, -1)
    assert_close(minimal, compatible @ inverse.T)
    back = np.asarray(found["back"]).reshape(compatible.shape)
    np.testing.assert_allclose(back, compatible @ projector, atol=1e-10)
    transposed = np.vdot(found["transpose"], zeta)
    np.testing.assert_allclose(np.vdot(flatten(fluxes, (2, 2)), raw), transposed, rtol=1e-11)
    if found["rank"] is not None:
        assert found["rank"] == np.linalg.matrix_rank(dense)
    if method == "truncated":
        assert_close(raw, zeta.reshape(2, 2, -1) @ inverse.T)


@pytest.mark.parametrize("method", METHODS)
def test_vmap_over_weights(method):
    stencils, weights, zeta, _ = case((5, 6), (PERIODIC, NEUMANN))
    zeta = zeta[0] - zeta[0].mean((1, 2), keepdims=True)
    stacked = tuple(np.stack([w, np.flip(w)]) for w in weights)

    @jax.jit
    @jax.vmap
    def solve(weights, zeta):
        return factorise(stencils, weights, method=method).pseudo_inverse(zeta)

    batched = flatten(solve(stacked, zeta), (2,))
    for i in range(2):
        dense = dense_divergence(stencils, tuple(w[i] for w in stacked), (5, 6))
        assert_close(batched[i], np.linalg.pinv(dense, rcond=1e-12) @ zeta[i].ravel())


@pytest.mark.parametrize("method", METHODS)
def test_single_precision(method):
    with jax.enable_x64(False):
        stencils, weights, zeta, _ = case((6, 5), (NEUMANN, NEUMANN), np.float32)
        zeta = zeta - zeta.mean((2, 3), keepdims=True)
        phi, _, back, _ = compute(stencils, method, weights, zeta)
        assert phi.dtype == np.float32
        np.testing.assert_allclose(back, zeta, atol=1e-4)


def test_defaults_and_input_errors():
    def kind(shape, constructors, method=None):
        stencils, weights, _, _ = case(shape, constructors)
        return type(jax.eval_shape(lambda w: factorise(stencils, w, method=method), weights))

    assert kind((9, 8), (FOURTH, FOURTH)) is BlockQR
    assert kind((6, 5), (NEUMANN, NEUMANN)) is BlockElimination
    with pytest.raises(ValueError, match="two-point"):
        kind((9, 8), (FOURTH, FOURTH), "elimination")
    with pytest.raises(ValueError, match="unknown method"):
        kind((6, 5), (NEUMANN, NEUMANN), "lu")


def test_dominant_factor_is_accurate_in_every_entry():
    """A chain with links from 1 to 1e-120: the inverse is known in closed form."""
    links = 10.0 ** -np.linspace(0, 120, 69)
    chain = np.diag(links, 1) + np.diag(links, -1)
    resistance = np.append(1.0, 1.0 + np.cumsum(1.0 / links))
    expected = np.minimum.outer(resistance, resistance)
    J, p = map(np.asarray, jax.jit(dominant_factor)(chain, np.eye(70)[0]))
    np.testing.assert_allclose((J * p) @ J.T, expected, rtol=1e-12)
    assert J.min() >= 0.0
    assert J.max() <= 1.0 + 1e-14


def staggered_case(density, n, width):
    dx = width / n
    faces = [(density[1:] + density[:-1]) / 2, (density[:, 1:] + density[:, :-1]) / 2]
    return (NEUMANN(dx),) * 2, tuple(np.sqrt(a) for a in faces), dx


def information(stencils, weights, zeta, cell, method=None):
    fluxes = flatten(compute(stencils, method, weights, zeta)[1], (len(zeta),))
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
    """The paper's scheme; √ρ spans 1e-15..0.5 and is not floored. A longdouble elimination gives
    these values; SuiteSparseQR agrees to 4e-13, 7e-10 and 5e-13."""
    dx = 10 / 71
    density, zeta = mixture(-2.75 + dx * np.arange(1, 71))
    weights = (np.sqrt(density),) * 2
    phi, fluxes, _, _ = compute((CENTRAL(dx),) * 2, None, weights, zeta)
    mixed = dx**2 * np.asarray(phi).reshape(2, -1) @ zeta.reshape(2, -1).T
    fluxes = flatten(fluxes, (2,))
    g = mixed + mixed.T - dx**2 * fluxes @ fluxes.T
    assert g[0, 0] == pytest.approx(76440.940072385067, rel=1e-11)
    assert g[0, 1] == pytest.approx(1.340013177206, rel=1e-8)
    assert g[1, 1] == pytest.approx(0.06036326138292433, rel=1e-11)


def staggered_mixture(n, floor, method=None):
    density, zeta = mixture(-2.75 + (np.arange(n) + 0.5) * 10 / n)
    density = np.maximum(density, floor * density.max())
    zeta = zeta - density * (zeta.sum((1, 2)) / density.sum())[:, None, None]
    stencils, weights, dx = staggered_case(density, n, 10.0)
    return information(stencils, weights, zeta, dx**2, method)


@pytest.mark.parametrize("method", [None, pytest.param("qr", marks=pytest.mark.slow)])
def test_mixture_staggered_reference(method):
    expected = np.diag([0.0738310973710056, 0.0611271573946713])
    expected[0, 1] = expected[1, 0] = -5.81442072e-09
    for floor in (1e-14, 0.0):
        g = staggered_mixture(70, floor, method)
        np.testing.assert_allclose(g, expected, rtol=1e-11, atol=1e-15)


def test_qr_agrees_with_elimination_on_the_mixture():
    g = staggered_mixture(20, 0.0, "qr")
    np.testing.assert_allclose(g, staggered_mixture(20, 0.0), rtol=1e-11, atol=1e-14)


def translated_gaussian(n):
    """The W₂ information of a translation: 1 in the limit."""
    points = -2.75 + (np.arange(n) + 0.5) * 10 / n
    x, y = np.meshgrid(points, points, indexing="ij")
    density = gaussian(x, y, (2.25, 2.25), 0.6)
    zeta = (density * (x - 2.25) / 0.6)[None]
    stencils, weights, dx = staggered_case(density, n, 10.0)
    return information(stencils, weights, zeta, dx**2)[0, 0]


def test_translated_gaussian_converges_to_the_identity():
    coarse, fine = translated_gaussian(20), translated_gaussian(35)
    assert fine == pytest.approx(1.00096538, abs=1e-8)
    order = np.log((coarse - 1) / (fine - 1)) / np.log(35 / 20)
    assert order == pytest.approx(4.0, abs=0.3)


@pytest.mark.slow
def test_translated_gaussian_converges_at_the_full_size():
    coarse, fine = translated_gaussian(70), translated_gaussian(140)
    assert coarse == pytest.approx(1.00006320, abs=1e-8)
    assert fine == pytest.approx(1.00000399, abs=1e-8)
    assert np.log2((coarse - 1) / (fine - 1)) == pytest.approx(4.0, abs=0.05)


def test_disconnected_density_with_exact_zeros():
    """Two islands: each is solved on its own, the rank counts both, as by pivoting."""
    n = 10
    x, y = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    islands = [(x < 4) & (y > 1), (x > 5) & (y < 8)]
    density = np.where(islands[0] | islands[1], 1.0, 0.0)
    weights = (np.minimum(density[1:], density[:-1]), np.minimum(density[:, 1:], density[:, :-1]))
    zeta = np.random.default_rng(0).normal(size=(n, n)) * density
    for island in islands:
        zeta -= np.where(island, zeta[island].mean(), 0.0)
    for method in ("elimination", "truncated"):
        phi, fluxes, back, rank = compute((NEUMANN(1.0),) * 2, method, weights, zeta)
        assert np.all(np.isfinite(phi))
        np.testing.assert_allclose(back, zeta, atol=1e-12)
        assert rank == density.sum() - 2
        inverse = np.linalg.pinv(
            dense_divergence((NEUMANN(1.0),) * 2, weights, (n, n)), rcond=1e-12
        )
        assert_close(flatten(fluxes, ()), inverse @ zeta.ravel())


def test_separated_bumps():
    """Two strips joined by a corridor of conductance 1e-14. Mass moved from one to the other
    meets a series of resistances (normal equations lose this number); mass moved inside a strip
    must not notice the corridor (multiplying by inverses of Schur complements would lose that)."""
    n, corridor = 30, 1e-14
    density = np.ones((n, n))
    density[12:18] = corridor
    faces = [np.minimum(density[1:], density[:-1]), density[:, 1:]]
    weights = tuple(np.sqrt(face) for face in faces)
    between, within = np.zeros((n, n)), np.random.default_rng(0).normal(size=(n, n))
    between[0], between[-1], within[12:18] = 1.0, -1.0, 0.0
    for strip in (slice(0, 12), slice(18, n)):
        within[strip] -= within[strip].mean()
    zeta = np.stack([between, within])
    _, fluxes, back, _ = compute((NEUMANN(1.0),) * 2, None, weights, zeta)
    energy = np.sum(flatten(fluxes, (2,)) ** 2, axis=1)
    assert energy[0] == pytest.approx(n * np.sum(1.0 / faces[0][:, 0]), rel=1e-13)
    assert energy[1] == pytest.approx(666.960553502042, rel=1e-12)
    np.testing.assert_allclose(back[1], within, atol=1e-12)
