"""Elimination against dense pseudo-inverses, reference values and hard contrasts."""

import doctest
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dense_oracle import along, difference_matrix
from natgrad.metrics import Elliptic
from natgrad.metrics.elliptic import divergence, elimination
from natgrad.metrics.elliptic.divergence import Divergence
from natgrad.metrics.elliptic.elimination import dominant_factor
from problems_for_tests import with_slow

further = functools.partial(pytest.param, marks=pytest.mark.slow)
RUNS = [
    ((9,), False),
    further((2,), True),
    ((7,), True),
    further((8,), True),
    ((6, 5), False),
    further((1, 5), False),
    further((7, 6), True),
    ((5, 1), True),
    further((6, 6, 6), False),
]


def face_shapes(shape, periodic):
    return [
        tuple(n - (i == axis and not periodic) for i, n in enumerate(shape))
        for axis in range(len(shape))
    ]


def case(shape, periodic, dtype=float):
    """B with random weights, right-hand sides and fluxes, these with two batch axes."""
    rng = np.random.default_rng(0)
    shapes = face_shapes(shape, periodic)
    spacing = tuple(0.3 + 0.1 * axis for axis in range(len(shape)))
    weights = tuple(rng.uniform(0.2, 1.5, s).astype(dtype) for s in shapes)
    fluxes = tuple(rng.normal(size=(2, 2, *s)).astype(dtype) for s in shapes)
    zeta = rng.normal(size=(2, 2, *shape)).astype(dtype)
    return Divergence(weights, spacing, periodic), zeta, fluxes


def dense_divergence(B, shape):
    """B as a matrix: Kronecker products of the dense one-dimensional differences."""
    boundary = "periodic" if B.periodic else "neumann"
    columns = [
        along(difference_matrix(n, h, boundary), axis, shape).T * np.asarray(weight).ravel()
        for axis, (n, h, weight) in enumerate(zip(shape, B.spacing, B.weights, strict=True))
    ]
    return np.concatenate(columns, axis=1)


def flatten(fluxes, batch):
    return np.concatenate([np.asarray(f).reshape(*batch, -1) for f in fluxes], axis=-1)


def assert_close(found, expected, relative=1e-12):
    """Up to `relative` times the largest entry."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=relative * np.abs(expected).max())


@jax.jit
def compute(B, zeta):
    """One program: φ, the fluxes, their divergence and the rank."""
    factor = Elliptic("elimination").factorise("elimination", B)
    phi, fluxes = factor.solve(zeta), factor.pseudo_inverse(zeta)
    return phi, fluxes, B.apply(fluxes), factor.inverse.rank


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize(
    "shape",
    with_slow([(1,), (2,), (3,), (7,), (4, 3), (3, 6), (2, 5, 3)], [(2,), (3,), (4, 3)]),
    ids=str,
)
def test_divergence_and_its_transpose_match_the_dense_matrix(shape, periodic):
    """Applied to all unit vectors, so that every entry is compared."""
    B, _, _ = case(shape, periodic)
    dense, shapes = dense_divergence(B, shape), face_shapes(shape, periodic)
    ends = np.cumsum([np.prod(s) for s in shapes])[:-1]
    pieces = np.split(np.eye(dense.shape[1]), ends, axis=1)
    fluxes = tuple(piece.reshape(len(piece), *s) for piece, s in zip(pieces, shapes, strict=True))
    units = np.eye(len(dense)).reshape(-1, *shape)
    div, gradient = jax.jit(lambda B: (B.apply(fluxes), B.apply_transpose(units)))(B)
    div = np.asarray(div).reshape(dense.T.shape)
    np.testing.assert_allclose(div.T, dense, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(div.T, flatten(gradient, (len(dense),)))


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("n", [5, 6])
def test_conductances_are_the_entries_of_the_laplacian(n, periodic):
    B, _, _ = case((n,), periodic)
    dense, laplacian = dense_divergence(B, (n,)), np.zeros((n, n))
    for lower, conductance in enumerate(np.asarray(jax.jit(lambda B: B.conductances)(B)[0])):
        if conductance != 0:
            edge = np.zeros(n)
            edge[lower], edge[(lower + 1) % n] = 1.0, -1.0
            laplacian += conductance * np.outer(edge, edge)
    np.testing.assert_allclose(laplacian, dense @ dense.T, atol=1e-12)


@pytest.mark.parametrize(("shape", "periodic"), RUNS)
def test_pseudo_inverse_matches_the_dense_one(shape, periodic):
    B, zeta, fluxes = case(shape, periodic)
    dense = dense_divergence(B, shape)
    inverse = np.linalg.pinv(dense, rcond=1e-12)
    axes = tuple(range(2, zeta.ndim))
    compatible = zeta - zeta.mean(axes, keepdims=True)

    @jax.jit
    def compute_all(B, zeta, compatible, fluxes):
        factor = Elliptic("elimination").factorise("elimination", B)
        # zeta as it is and without its mass, in one batch
        both = jnp.stack([zeta, compatible])
        phi = factor.solve(both)
        transpose, rank = factor.pseudo_inverse_transpose(fluxes), factor.inverse.rank
        return factor.pseudo_inverse(both), transpose, B.apply(B.apply_transpose(phi[1])), rank

    found, transpose, back, rank = compute_all(B, zeta, compatible, fluxes)
    raw, minimal = flatten(found, (2, 2, 2))
    projector, compatible = dense @ inverse, compatible.reshape(2, 2, -1)
    assert_close(compatible, zeta.reshape(2, 2, -1) @ projector)
    assert_close(minimal, compatible @ inverse.T)
    back = np.asarray(back).reshape(compatible.shape)
    np.testing.assert_allclose(back, compatible @ projector, atol=1e-10)
    transposed = np.vdot(transpose, zeta)
    np.testing.assert_allclose(np.vdot(flatten(fluxes, (2, 2)), raw), transposed, rtol=1e-11)
    assert rank == np.linalg.matrix_rank(dense)


def test_single_precision():
    with jax.enable_x64(False):
        B, zeta, _ = case((6, 5), False, np.float32)
        zeta = zeta - zeta.mean((2, 3), keepdims=True)
        phi, _, back, _ = compute(B, zeta)
        assert phi.dtype == np.float32
        np.testing.assert_allclose(back, zeta, atol=1e-4)


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


def staggered(density, n, width):
    """B with the mean of the density on faces, and the spacing."""
    dx = width / n
    faces = [(density[1:] + density[:-1]) / 2, (density[:, 1:] + density[:, :-1]) / 2]
    return Divergence(tuple(np.sqrt(a) for a in faces), (dx, dx), False), dx


def information(B, zeta, cell):
    fluxes = flatten(compute(B, zeta)[1], (len(zeta),))
    return cell * fluxes @ fluxes.T


def gaussian(x, y, centre, variance):
    square = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
    return np.exp(-square / (2 * variance)) / (2 * np.pi * variance)


def mixture(points):
    x, y = np.meshgrid(points, points, indexing="ij")
    moving = 0.2 * gaussian(x, y, (5, 3), 0.6)
    zeta = np.stack([moving * (x - 5) / 0.6, moving * (y - 3) / 0.6])
    return moving + 0.8 * gaussian(x, y, (4, 3), 0.6), zeta


def test_mixture_reference():
    expected = np.diag([0.0738310973710056, 0.0611271573946713])
    expected[0, 1] = expected[1, 0] = -5.81442072e-09
    density, zeta = mixture(-2.75 + (np.arange(70) + 0.5) * 10 / 70)
    for floor in (1e-14, 0.0):
        raised = np.maximum(density, floor * density.max())
        compatible = zeta - raised * (zeta.sum((1, 2)) / raised.sum())[:, None, None]
        B, dx = staggered(raised, 70, 10.0)
        g = information(B, compatible, dx**2)
        np.testing.assert_allclose(g, expected, rtol=1e-11, atol=1e-15)


def translated_gaussian(n):
    """The W₂ information of a translation: 1 in the limit."""
    points = -2.75 + (np.arange(n) + 0.5) * 10 / n
    x, y = np.meshgrid(points, points, indexing="ij")
    density = gaussian(x, y, (2.25, 2.25), 0.6)
    zeta = (density * (x - 2.25) / 0.6)[None]
    B, dx = staggered(density, n, 10.0)
    return information(B, zeta, dx**2)[0, 0]


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
    B = Divergence(weights, (1.0, 1.0), False)
    phi, fluxes, back, rank = compute(B, zeta)
    assert np.all(np.isfinite(phi))
    np.testing.assert_allclose(back, zeta, atol=1e-12)
    assert rank == density.sum() - 2
    inverse = np.linalg.pinv(dense_divergence(B, (n, n)), rcond=1e-12)
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
    _, fluxes, back, _ = compute(Divergence(weights, (1.0, 1.0), False), zeta)
    energy = np.sum(flatten(fluxes, (2,)) ** 2, axis=1)
    assert energy[0] == pytest.approx(n * np.sum(1.0 / faces[0][:, 0]), rel=1e-13)
    assert energy[1] == pytest.approx(666.960553502042, rel=1e-12)
    np.testing.assert_allclose(back[1], within, atol=1e-12)


@pytest.mark.parametrize("module", [divergence, elimination])
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
