"""The paper's discretisations: stencils, their factorisations, transforms, and bad input."""

import doctest
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from cases import make_grid
from dense_oracle import along, laplacian, sobolev
from natgrad.metrics.elliptic.spectral import sobolev_symbol
from natgrad_studies.appendix_b import CollocatedSobolev, CollocatedTransport, factorisations
from natgrad_studies.appendix_b import stencils as S
from natgrad_studies.appendix_b.block_qr import BlockQR
from natgrad_studies.appendix_b.factorisations import SublatticeElimination, factorise
from natgrad_studies.appendix_b.sobolev import (
    collocated_eigenvalues,
    collocated_inverse_transform,
    collocated_transform,
)
from problems_for_tests import assert_input_error


def NEUMANN(dx):
    """(v_r − v_{r−1})/dx on the n − 1 interior faces; nothing flows through the boundary."""
    return S.Stencil((-1, 0), (-1.0 / dx, 1.0 / dx), extra=-1)


def PERIODIC(dx):
    """(v_r − v_{r−1})/dx on n faces, face r between the cells r and r + 1 modulo n."""
    return S.Stencil((-1, 0), (-1.0 / dx, 1.0 / dx), wrap=True)


CENTRAL, FORWARD, FOURTH = S.central, S.forward, S.fourth_order
CONSTRUCTORS = [NEUMANN, PERIODIC, CENTRAL, FORWARD, FOURTH]

# The default is elimination, and "qr" for the fourth-order scheme. Staggered stencils on one kind
# of boundary are in test_elimination.py.
further = functools.partial(pytest.param, marks=pytest.mark.slow)
RUNS = [
    ((6, 7), (PERIODIC, NEUMANN), None),
    further((6, 8), (CENTRAL, CENTRAL), None),
    further((7, 5), (CENTRAL, CENTRAL), None),
    further((7, 6), (CENTRAL, FORWARD), None),
    ((4, 3, 5), (NEUMANN, PERIODIC, NEUMANN), None),
    further((4, 3, 6), (CENTRAL, CENTRAL, CENTRAL), None),
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


def flux_shape(stencil, shape, axis):
    return (*shape[:axis], shape[axis] + stencil.extra, *shape[axis + 1 :])


def case(shape, constructors, dtype=float):
    """Stencils, random weights, right-hand sides and fluxes, these with two batch axes."""
    rng = np.random.default_rng(0)
    stencils = tuple(make(0.3 + 0.1 * axis) for axis, make in enumerate(constructors))
    shapes = [flux_shape(stencil, shape, axis) for axis, stencil in enumerate(stencils)]
    weights = tuple(rng.uniform(0.2, 1.5, s).astype(dtype) for s in shapes)
    fluxes = tuple(rng.normal(size=(2, 2, *s)).astype(dtype) for s in shapes)
    return stencils, weights, rng.normal(size=(2, 2, *shape)).astype(dtype), fluxes


def dense_divergence(stencils, weights, shape):
    """B as a matrix: Kronecker products of the dense one-dimensional differences."""
    columns = [
        -along(S.matrix(stencil, shape[axis]), axis, shape) * np.asarray(weight).ravel()
        for axis, (stencil, weight) in enumerate(zip(stencils, weights, strict=True))
    ]
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
    assert kind((6, 5), (NEUMANN, NEUMANN)) is SublatticeElimination
    with pytest.raises(ValueError, match="two-point"):
        kind((9, 8), (FOURTH, FOURTH), "elimination")
    with pytest.raises(ValueError, match="unknown method"):
        kind((6, 5), (NEUMANN, NEUMANN), "lu")


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


@pytest.mark.slow
def test_mixture_staggered_reference():
    expected = np.diag([0.0738310973710056, 0.0611271573946713])
    expected[0, 1] = expected[1, 0] = -5.81442072e-09
    for floor in (1e-14, 0.0):
        g = staggered_mixture(70, floor, "qr")
        np.testing.assert_allclose(g, expected, rtol=1e-11, atol=1e-15)


def test_qr_agrees_with_elimination_on_the_mixture():
    g = staggered_mixture(20, 0.0, "qr")
    np.testing.assert_allclose(g, staggered_mixture(20, 0.0), rtol=1e-11, atol=1e-14)


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


# --- stencils ------------------------------------------------------------------------------------


def unit_vectors(shape):
    size = int(np.prod(shape))
    return np.eye(size).reshape(size, *shape)


@pytest.mark.parametrize("constructor", CONSTRUCTORS)
def test_difference_and_transpose_match_the_dense_matrix(constructor):
    """Applied to all unit vectors, so that every entry is compared."""
    stencil = constructor(0.7)
    runs = [((1,), 0), ((2,), 0), ((3,), 0), ((7,), 0), ((4, 3), 0), ((3, 6), 1), ((2, 5, 3), 1)]

    @jax.jit
    def apply(inputs):
        return [
            (S.apply_difference(stencil, v, 1 + axis), S.apply_transpose(stencil, phi, 1 + axis))
            for (v, phi), (_, axis) in zip(inputs, runs, strict=True)
        ]

    inputs = [
        (unit_vectors(flux_shape(stencil, shape, axis)), unit_vectors(shape))
        for shape, axis in runs
    ]
    for (shape, axis), (applied, transposed) in zip(runs, apply(inputs), strict=True):
        dense = along(S.matrix(stencil, shape[axis]), axis, shape)
        np.testing.assert_allclose(np.asarray(applied).reshape(dense.T.shape), dense.T, atol=1e-15)
        np.testing.assert_allclose(np.asarray(transposed).reshape(dense.shape), dense, atol=1e-15)


@pytest.mark.parametrize(
    "chosen",
    [
        [(PERIODIC, 5)],
        [(NEUMANN, 4), (PERIODIC, 3)],
        [(CENTRAL, 5), (FOURTH, 4)],
        [(FORWARD, 2), (NEUMANN, 3), (CENTRAL, 4)],
    ],
)
def test_divergence_and_gradient_are_exact_transposes(chosen):
    shape = tuple(n for _, n in chosen)
    stencils = tuple(constructor(0.3 + 0.1 * i) for i, (constructor, _) in enumerate(chosen))
    rng = np.random.default_rng(1)
    shapes = [flux_shape(stencil, shape, axis) for axis, stencil in enumerate(stencils)]
    weights = tuple(rng.uniform(0.1, 1.0, s) for s in shapes)
    dense = dense_divergence(stencils, weights, shape)
    pieces = np.split(np.eye(dense.shape[1]), np.cumsum([np.prod(s) for s in shapes])[:-1], axis=1)
    fluxes = tuple(piece.reshape(-1, *s) for piece, s in zip(pieces, shapes, strict=True))

    @jax.jit
    def apply(weights, fluxes, phi):
        gradient = S.weighted_gradient(stencils, weights, phi)
        return S.divergence(stencils, weights, fluxes), gradient

    div, gradient = apply(weights, fluxes, unit_vectors(shape))
    div = np.asarray(div).reshape(len(dense.T), -1)
    gradient = np.concatenate([np.asarray(g).reshape(len(dense), -1) for g in gradient], axis=1)
    np.testing.assert_allclose(div.T, dense, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(div.T, gradient)


@pytest.mark.parametrize("constructor", [c for c in CONSTRUCTORS if c(1.0).is_two_point])
def test_links_and_leaks_are_the_entries_of_the_laplacian(constructor):
    stencil, rng, sizes = constructor(0.5), np.random.default_rng(2), (5, 6)
    weights = [rng.uniform(0.1, 1.0, n + stencil.extra) for n in sizes]
    computed = jax.jit(lambda ws: [S.graph_links((stencil,), (w,)) for w in ws])(weights)
    for n, weight, ((link,), leak) in zip(sizes, weights, computed, strict=True):
        dense = dense_divergence((stencil,), (weight,), (n,))
        laplacian = np.diag(np.asarray(leak))
        for lower, conductance in enumerate(np.asarray(link)):
            if conductance != 0:
                edge = np.zeros(n)
                edge[lower], edge[(lower + stencil.gap) % n] = 1.0, -1.0
                laplacian += conductance * np.outer(edge, edge)
        np.testing.assert_allclose(laplacian, dense @ dense.T, atol=1e-12)


def test_conservative_classes():
    central, neumann = CENTRAL(1.0), NEUMANN(1.0)
    assert S.conservative_classes((neumann, neumann), (4, 5)) == ((slice(0, None, 1),) * 2,)
    assert S.conservative_classes((central, central), (5, 7)) == ((slice(0, None, 2),) * 2,)
    assert S.conservative_classes((central, central), (5, 6)) == ()


def test_stencil_is_hashable_and_checked():
    assert hash(NEUMANN(0.1)) == hash(NEUMANN(0.1))
    with pytest.raises(ValueError, match="one coefficient for each offset"):
        S.Stencil((0, 1), (1.0,))
    with pytest.raises(ValueError, match="distinct"):
        S.Stencil((1, 1), (1.0, -1.0))
    with pytest.raises(ValueError, match="as many flux positions"):
        S.Stencil((0,), (1.0,), wrap=True, extra=-1)
    with pytest.raises(ValueError, match="expected"):
        S.cell_shape((NEUMANN(1.0),) * 2, (jnp.ones((2, 3)), jnp.ones((3, 3))))


# --- transforms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (5, 4), (3, 4, 5)], ids=str)
@pytest.mark.parametrize("boundary", ["neumann", "dirichlet"])
def test_transform_is_orthonormal_and_diagonalises_the_laplacian(shape, boundary):
    grid = make_grid(shape, boundary)
    basis = np.eye(grid.size).reshape(-1, *shape)
    transforms = collocated_transform, collocated_inverse_transform
    both = jax.jit(lambda x: [transform(grid, x) for transform in transforms])
    T, back = (np.asarray(image).reshape(grid.size, -1).T for image in both(basis))
    np.testing.assert_allclose(T @ T.T, np.eye(grid.size), atol=1e-12)
    np.testing.assert_allclose(back, T.T, atol=1e-12)
    dense = laplacian(grid, "collocated")
    eigenvalues = collocated_eigenvalues(grid)
    rebuilt = T.T @ (eigenvalues.reshape(-1, 1) * T)
    np.testing.assert_allclose(rebuilt, dense, atol=1e-11 * np.abs(dense).max())
    for s, homogeneous in itertools.product(range(-3, 4), (False, True)):
        dense = sobolev(grid, s, homogeneous, "collocated")
        symbol = grid.cell_volume * sobolev_symbol(eigenvalues, s, homogeneous)
        rebuilt = T.T @ (symbol.reshape(-1, 1) * T)
        np.testing.assert_allclose(rebuilt, dense, rtol=0, atol=1e-11 * np.abs(dense).max())


# --- bad input -----------------------------------------------------------------------------------

RING = ng.Grid(0.0, 1.0, 4, "periodic")
LINE = ng.Grid(0.0, 1.0, 4)
MISTAKES = {
    "unknown scheme": ("scheme", "upwind", lambda: CollocatedTransport(LINE, 0.5, "upwind")),
    "transport on periodic": ("grid", "periodic", lambda: CollocatedTransport(RING)),
    "Sobolev on periodic": ("grid", "periodic", lambda: CollocatedSobolev(RING, 1)),
    "negative mobility": ("exponent", "≥ 0", lambda: CollocatedTransport(LINE, -1.0)),
    "negative floor": ("floor", "not in", lambda: CollocatedTransport(LINE, floor=-1.0)),
    "s not an integer": ("s", "integer", lambda: CollocatedSobolev(LINE, 0.5)),
    "not a grid": ("grid", "str", lambda: CollocatedTransport("grid")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_input_is_named(name):
    assert_input_error(*MISTAKES[name])


def test_a_distance_only_where_the_metric_is_flat():
    grid = make_grid((4, 5), "neumann")
    a = jnp.ones(grid.shape)
    with pytest.raises(ng.InputError, match=r"has no distance of its own.*ProximalStep"):
        CollocatedTransport(grid).distance(a, a)
    flat = CollocatedTransport(grid, 0.0)
    zeta = jnp.asarray(np.random.default_rng(0).normal(size=grid.shape))
    both = jax.jit(lambda a, zeta: (flat.squared_distance(a, a + zeta), flat.at(a).gram.mv(zeta)))
    squared, image = both(a, zeta)
    assert squared == pytest.approx(float(jnp.vdot(zeta, image)), rel=1e-10)


@pytest.mark.parametrize("module", [factorisations, S])
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
