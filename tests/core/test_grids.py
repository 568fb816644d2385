"""Grids: points, spacings, quadrature; the transforms that diagonalise their Laplacians."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import fft

import natgrad as ng
from cases import BOUNDARIES, make_grid
from dense_oracle import laplacian, sobolev
from natgrad.metrics.elliptic.spectral import (
    inverse_transform,
    laplacian_eigenvalues,
    sine_transform,
    sobolev_symbol,
    transform,
)

SHAPES = ((6,), (5, 4), (3, 4, 5))


def test_points_of_each_boundary():
    cells = ng.Grid(0.0, 1.0, 4)
    np.testing.assert_allclose(cells.points[:, 0], [0.125, 0.375, 0.625, 0.875])
    np.testing.assert_allclose(ng.Grid(0.0, 1.0, 4, "periodic").points, cells.points)
    nodes = ng.Grid(0.0, 1.0, 4, "dirichlet")
    np.testing.assert_allclose(nodes.points[:, 0], [0.2, 0.4, 0.6, 0.8])
    assert nodes.spacing == (0.2,)
    box = ng.Grid((0.0, -1.0), (2.0, 1.0), (4, 8))
    assert box.points.shape == (4, 8, 2)
    assert box.cell_volume == pytest.approx(0.125)
    np.testing.assert_allclose(box.points[1, 0], [0.75, -0.875])
    np.testing.assert_allclose(box.points[1, 0, 0], box.axes[0][1])


def test_grid_is_hashable_and_equal_by_value():
    a, b = ng.Grid((0, 0), (1, 1), (3, 4)), ng.Grid((0.0, 0.0), (1.0, 1.0), [3, 4])
    assert a == b
    assert hash(a) == hash(b)
    assert a != ng.Grid((0, 0), (1, 1), (3, 4), "periodic")


def test_integral_acts_on_trailing_axes():
    grid = ng.Grid((0.0, 0.0), (1.0, 2.0), (16, 16))
    values = jnp.asarray(np.stack([np.ones(grid.shape), np.asarray(grid.points)[..., 0] ** 2]))
    np.testing.assert_allclose(grid.integral(values), [2.0, 2.0 / 3.0], rtol=2e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_transform_is_orthonormal_and_diagonalises_the_laplacian(shape, boundary):
    grid = make_grid(shape, boundary)
    basis = np.eye(grid.size).reshape(-1, *shape)
    both = jax.jit(lambda x: (transform(grid, x), inverse_transform(grid, x)))
    T, back = (np.asarray(image).reshape(grid.size, -1).T for image in both(basis))
    np.testing.assert_allclose(T @ T.T, np.eye(grid.size), atol=1e-12)
    np.testing.assert_allclose(back, T.T, atol=1e-12)
    dense = laplacian(grid)
    eigenvalues = laplacian_eigenvalues(grid).ravel()
    rebuilt = T.T @ (eigenvalues[:, None] * T)
    np.testing.assert_allclose(rebuilt, dense, atol=1e-11 * np.abs(dense).max())
    for s, homogeneous in product(range(-3, 4), (False, True)):
        dense = sobolev(grid, s, homogeneous)
        symbol = grid.cell_volume * sobolev_symbol(eigenvalues, s, homogeneous)
        rebuilt = T.T @ (symbol[:, None] * T)
        np.testing.assert_allclose(rebuilt, dense, rtol=0, atol=1e-11 * np.abs(dense).max())


def test_sine_transform_agrees_with_scipy():
    values = np.random.default_rng(0).normal(size=(3, 7, 2))
    found = jax.jit(lambda x: [sine_transform(x, axis) for axis in range(3)])(values)
    for axis in range(3):
        expected = fft.dst(values, type=1, axis=axis, norm="ortho")
        np.testing.assert_allclose(found[axis], expected, atol=1e-13)
