"""Sparse direct solves on the host against dense matrices."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.errors import InputError
from natgrad.metrics.elliptic import sparse_direct
from natgrad.metrics.elliptic.divergence import degrees, laplacian, nearest_links, pad_links
from natgrad.metrics.elliptic.line import line_potentials
from natgrad.metrics.elliptic.sparse_direct import available_backend, sparse_solve
from problems_for_tests import with_slow

BACKENDS = sorted({"superlu", available_backend()})
SHAPES = [(7,), (2,), (1, 4), (5, 4), (2, 3), (3, 4, 2)]

solve = jax.jit(sparse_solve, static_argnames=("periodic", "backend"))


def random_links(shape, periodic, contrast=3.0):
    rng = np.random.default_rng(0)
    links = [10.0 ** rng.uniform(-contrast, 0, shape) for _ in shape]
    for axis, link in enumerate(links):
        if not periodic:
            link[(slice(None),) * axis + (-1,)] = 0.0
    return tuple(links)


def dense_laplacian(links):
    """Every link as an outer product of differences, the last one around the grid."""
    shape = links[0].shape
    cells = np.arange(links[0].size).reshape(shape)
    K = np.zeros((cells.size, cells.size))
    for axis, link in enumerate(links):
        neighbours = np.roll(cells, -1, axis)
        for r, s, c in zip(cells.flat, neighbours.flat, link.flat, strict=True):
            difference = np.eye(cells.size)[r] - np.eye(cells.size)[s]
            K += c * np.outer(difference, difference)
    return K


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("shape", with_slow(SHAPES, [(2,), (1, 4), (2, 3)]))
def test_matches_the_dense_pseudo_inverse(shape, periodic):
    links = random_links(shape, periodic)
    K = dense_laplacian(links)
    np.testing.assert_allclose(sparse_direct.assemble(np.stack(links), periodic).toarray(), K)
    eye = np.eye(len(K)).reshape(-1, *shape)
    padded = pad_links(nearest_links(links), periodic)
    np.testing.assert_allclose(np.reshape(laplacian(padded, eye, periodic), K.shape), K, atol=1e-14)
    if min(shape) > 1 or not periodic:
        np.testing.assert_allclose(np.ravel(degrees(padded)), np.diag(K), rtol=1e-14)
    projector = np.eye(len(K)) - 1 / len(K)
    expected = np.linalg.pinv(K, rcond=1e-12)
    for backend in BACKENDS:
        S = np.reshape(solve(links, eye, periodic=periodic, backend=backend), K.shape)
        np.testing.assert_allclose(S, S.T, rtol=1e-10, atol=1e-10)
        ground = np.argmax(np.diag(K))
        assert not np.any(S[ground])
        np.testing.assert_allclose(projector @ S @ projector, expected, rtol=1e-9, atol=1e-9)


def test_one_factorisation_serves_batches_and_repeats(monkeypatch):
    links = random_links((5, 4), False)
    zeta = np.random.default_rng(1).normal(size=(3, 2, 5, 4))
    calls, original = [], sparse_direct._solve_on_host
    counted = lambda *arguments: (calls.append(1), original(*arguments))[1]
    monkeypatch.setattr(sparse_direct, "_solve_on_host", counted)
    sparse_direct._factorise.cache_clear()
    expected = np.asarray(sparse_solve(links, zeta))
    columns = jax.jit(jax.vmap(jax.vmap(lambda z: sparse_solve(links, z))))
    np.testing.assert_array_equal(columns(zeta), expected)
    assert len(calls) == 2
    assert sparse_direct._factorise.cache_info().misses == 1

    stacked = tuple(np.stack([link, 2 * link, 4 * link]) for link in links)
    over_links = jax.jit(jax.vmap(sparse_solve))(stacked, zeta)
    scale = np.reshape([1, 2, 4], (3, 1, 1, 1))
    np.testing.assert_allclose(over_links, expected / scale, rtol=1e-12, atol=1e-12)
    shared = jax.vmap(sparse_solve, in_axes=(0, None))(stacked, zeta[0])
    np.testing.assert_allclose(shared * scale, np.stack([expected[0]] * 3), rtol=1e-12, atol=1e-12)
    assert len(calls) == 4
    assert sparse_direct._factorise.cache_info().misses == 3
    for shift in range(2 * sparse_direct.REMEMBERED_FACTORS):
        sparse_solve((links[0] + shift, links[1]), zeta)
    info = sparse_direct._factorise.cache_info()
    assert info.currsize == sparse_direct.REMEMBERED_FACTORS


@pytest.mark.parametrize("backend", BACKENDS)
def test_islands_and_cells_without_links(backend):
    links = [np.ones((4, 6)), np.ones((4, 6))]
    links[0][-1], links[1][:, -1] = 0.0, 0.0
    links[1][:, 2] = 0.0  # two halves
    for link in links:
        link[0, :2] = 0.0
    links[0][0, 5], links[1][0, 4] = 0.0, 0.0  # the corner (0, 5) on its own
    zeta = np.random.default_rng(0).normal(size=(4, 6))
    phi = np.asarray(solve(links, zeta, backend=backend))
    assert np.all(np.isfinite(phi))
    assert phi[0, 0] == 0.0
    assert phi[0, 5] == 0.0
    K = dense_laplacian(links)
    residual = K @ phi.ravel() - zeta.ravel()
    count = len(K) - np.linalg.matrix_rank(K)  # one ground for each part
    assert np.count_nonzero(np.abs(residual) > 1e-12) == count
    assert not np.any(solve([np.zeros((4, 6))] * 2, zeta, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_failure_is_nan(backend):
    """Bad links, and a corridor at which the pivot of the far side rounds to zero."""
    zeta = np.ones(4)
    for bad in (np.nan, np.inf, -1.0):
        links = np.array([1.0, bad, 1.0, 0.0])
        assert np.all(np.isnan(solve((links,), zeta, backend=backend)))
    links = np.array([1.0, 1e-17, 0.9, 0.0])
    assert np.all(np.isnan(solve((links,), zeta, backend=backend)))


def test_single_precision_and_the_direct_formula():
    """float32 comes back as float32 but is solved in float64; 1D agrees with `line.py`."""
    links = random_links((9,), True, contrast=1.0)
    zeta = np.random.default_rng(0).normal(size=(2, 9))
    expected = jax.jit(lambda a, b: line_potentials(a, b, True))(links[0], zeta)
    np.testing.assert_allclose(solve(links, zeta, periodic=True), expected, atol=1e-12)
    single = solve((np.float32(links[0]),), np.float32(zeta), periodic=True)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-4)


def test_input_errors(monkeypatch):
    links = (jnp.ones((2, 3)), jnp.ones((2, 3)))
    with pytest.raises(InputError, match="'umfpack' is unknown"):
        sparse_solve(links, jnp.ones((2, 3)), backend="umfpack")
    with pytest.raises(InputError, match=r"links\[1\]"):
        sparse_solve((links[0], jnp.ones((3, 2))), jnp.ones((2, 3)))
    monkeypatch.setattr(sparse_direct, "_cholmod", lambda: None)
    assert available_backend() == "superlu"
    with pytest.raises(InputError, match=r"natgrad\[cholmod\]"):
        sparse_solve(links, jnp.ones((2, 3)), backend="cholmod")


def test_examples_in_docstrings():
    outcome = doctest.testmod(sparse_direct)
    assert outcome.attempted > 0
    assert outcome.failed == 0
