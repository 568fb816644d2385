"""Stencils against their dense matrices, and exact transposes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.metrics.elliptic import stencils as S

NEUMANN, PERIODIC = S.staggered_neumann, S.staggered_periodic
CENTRAL, FORWARD, FOURTH = S.collocated_central, S.collocated_forward, S.collocated_fourth_order
CONSTRUCTORS = [NEUMANN, PERIODIC, CENTRAL, FORWARD, FOURTH]


def along(matrix, shape, axis):
    """A one-dimensional matrix acting on one axis of a grid."""
    product = np.ones((1, 1))
    for i, n in enumerate(shape):
        product = np.kron(product, matrix if i == axis else np.eye(n))
    return product


def dense_divergence(stencils, weights, shape):
    """B as a matrix: Kronecker products of the dense one-dimensional differences."""
    columns = [
        -along(S.matrix(stencil, shape[axis]), shape, axis) * np.asarray(weight).ravel()
        for axis, (stencil, weight) in enumerate(zip(stencils, weights, strict=True))
    ]
    return np.concatenate(columns, axis=1)


def flux_shape(stencil, shape, axis):
    return (*shape[:axis], shape[axis] + stencil.extra, *shape[axis + 1 :])


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
        dense = along(S.matrix(stencil, shape[axis]), shape, axis)
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
