"""Stencils against their dense matrices, and exact transposes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natgrad.elliptic import stencils as S

CONSTRUCTORS = [
    S.staggered_neumann,
    S.staggered_periodic,
    S.collocated_central,
    S.collocated_forward,
    S.collocated_fourth_order,
]


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def dense_divergence(stencils, weights, shape):
    """B as a matrix: Kronecker products of the dense one-dimensional differences."""
    columns = []
    for axis, (stencil, weight) in enumerate(zip(stencils, weights, strict=True)):
        factors = [S.matrix(stencil, n) if i == axis else np.eye(n) for i, n in enumerate(shape)]
        product = np.ones((1, 1))
        for factor in factors:
            product = np.kron(product, factor)
        columns.append(-product * np.asarray(weight).ravel())
    return np.concatenate(columns, axis=1)


def flux_shape(stencil, shape, axis):
    return (*shape[:axis], shape[axis] + stencil.extra, *shape[axis + 1 :])


@settings(max_examples=25, deadline=None)
@given(
    constructor=st.sampled_from(CONSTRUCTORS),
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    data=st.data(),
)
def test_difference_and_transpose_match_the_dense_matrix(constructor, shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    stencil, rng = constructor(0.7), np.random.default_rng(0)
    dense = S.matrix(stencil, shape[axis])
    v = rng.normal(size=flux_shape(stencil, shape, axis))
    phi = rng.normal(size=shape)
    expected = np.moveaxis(np.tensordot(dense, v, axes=(1, axis)), 0, axis)
    expected_t = np.moveaxis(np.tensordot(dense.T, phi, axes=(1, axis)), 0, axis)
    applied = S.apply_difference(stencil, jnp.asarray(v), axis)
    applied_t = S.apply_transpose(stencil, jnp.asarray(phi), axis)
    np.testing.assert_allclose(applied, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(applied_t, expected_t, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(jnp.vdot(applied, phi), jnp.vdot(v, applied_t), atol=1e-11)


@settings(max_examples=15, deadline=None)
@given(
    chosen=st.lists(
        st.tuples(st.sampled_from(CONSTRUCTORS), st.integers(2, 5)), min_size=1, max_size=3
    )
)
def test_divergence_and_gradient_are_exact_transposes(chosen):
    shape = tuple(n for _, n in chosen)
    stencils = tuple(constructor(0.3 + 0.1 * i) for i, (constructor, _) in enumerate(chosen))
    rng = np.random.default_rng(1)
    shapes = [flux_shape(stencil, shape, axis) for axis, stencil in enumerate(stencils)]
    weights = tuple(jnp.asarray(rng.uniform(0.1, 1.0, s)) for s in shapes)
    fluxes = tuple(jnp.asarray(rng.normal(size=(2, *s))) for s in shapes)
    phi = jnp.asarray(rng.normal(size=(2, *shape)))
    dense = dense_divergence(stencils, weights, shape)
    flat = np.concatenate([np.asarray(f).reshape(2, -1) for f in fluxes], axis=1)
    div = S.divergence(stencils, weights, fluxes)
    np.testing.assert_allclose(div.reshape(2, -1), flat @ dense.T, atol=1e-11)
    gradient = S.weighted_gradient(stencils, weights, phi)
    paired = sum(jnp.vdot(g, f) for g, f in zip(gradient, fluxes, strict=True))
    np.testing.assert_allclose(jnp.vdot(div, phi), paired, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("constructor", [c for c in CONSTRUCTORS if c(1.0).is_two_point])
@pytest.mark.parametrize("n", [5, 6])
def test_links_and_leaks_are_the_entries_of_the_laplacian(constructor, n):
    stencil, rng = constructor(0.5), np.random.default_rng(2)
    weight = jnp.asarray(rng.uniform(0.1, 1.0, n + stencil.extra))
    dense = dense_divergence((stencil,), (weight,), (n,))
    (link,), leak = S.graph_links((stencil,), (weight,))
    laplacian = np.diag(np.asarray(leak))
    for lower in range(n):
        upper = (lower + stencil.gap) % n
        if link[lower] != 0:
            edge = np.zeros(n)
            edge[lower], edge[upper] = 1.0, -1.0
            laplacian += float(link[lower]) * np.outer(edge, edge)
    np.testing.assert_allclose(laplacian, dense @ dense.T, atol=1e-12)


def test_conservative_classes():
    central, neumann = S.collocated_central(1.0), S.staggered_neumann(1.0)
    assert S.conservative_classes((neumann, neumann), (4, 5)) == ((slice(0, None, 1),) * 2,)
    assert S.conservative_classes((central, central), (5, 7)) == ((slice(0, None, 2),) * 2,)
    assert S.conservative_classes((central, central), (5, 6)) == ()


def test_stencil_is_hashable_and_checked():
    assert hash(S.staggered_neumann(0.1)) == hash(S.staggered_neumann(0.1))
    with pytest.raises(ValueError, match="one coefficient for each offset"):
        S.Stencil((0, 1), (1.0,))
    with pytest.raises(ValueError, match="distinct"):
        S.Stencil((1, 1), (1.0, -1.0))
    with pytest.raises(ValueError, match="as many flux positions"):
        S.Stencil((0,), (1.0,), wrap=True, extra=-1)
    with pytest.raises(ValueError, match="expected"):
        S.cell_shape((S.staggered_neumann(1.0),) * 2, (jnp.ones((2, 3)), jnp.ones((3, 3))))
