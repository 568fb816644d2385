"""The direct solve on lines and rings against exact rational arithmetic and dense matrices."""

import doctest
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.errors import InputError
from natgrad.metrics.elliptic import divergence, line
from problems_for_tests import with_slow

COMPILED = line_fluxes, line_fluxes_transpose, line_potentials = tuple(
    jax.jit(function, static_argnames="periodic")
    for function in (line.line_fluxes, line.line_fluxes_transpose, line.line_potentials)
)


def dense_laplacian(links):
    """K from outer products of differences; a link of zero, or to itself, adds nothing."""
    n = len(links)
    K = np.zeros((n, n))
    for i, c in enumerate(links):
        difference = np.eye(n)[i] - np.eye(n)[(i + 1) % n]
        K += c * np.outer(difference, difference)
    return K


def exact_fluxes(links, zeta, periodic):
    """The flow in rational arithmetic, for a ζ whose sum is exactly zero."""
    c, flow, total = [Fraction(x) for x in links], [], Fraction(0)
    for z in zeta:
        total += Fraction(z)
        flow.append(total)
    assert total == 0
    if periodic:
        weights = [1 / x for x in c]
        around = sum(f * w for f, w in zip(flow, weights, strict=True)) / sum(weights)
        flow = [f - around for f in flow]
    return flow


def energy_of_error(links, found, exact):
    """√(Σ(f − f*)²/c) over √(Σ f*²/c): the error in the norm of the metric."""
    pairs = [(c, Fraction(x) - y, y) for c, x, y in zip(links, found, exact, strict=True) if c > 0]
    error = sum(e * e / Fraction(c) for c, e, _ in pairs)
    return float(error / sum(y * y / Fraction(c) for c, _, y in pairs)) ** 0.5


def bump(n, width):
    """A density that is symmetric to the last bit, and the tangent of its translation."""
    half = np.exp(-0.5 * ((np.arange(n) + 0.5) / width) ** 2)
    slope = half * (np.arange(n) + 0.5) / width**2
    return np.append(half[::-1], half), np.append(-slope[::-1], slope)


def links_of(density, periodic):
    upper = np.roll(density, -1)
    links = 0.5 * (density + upper)
    links[-1] *= periodic
    return links


@pytest.mark.parametrize(("periodic", "shift"), [(False, 0), (True, 0), (True, 17)])
def test_tails_are_exact_to_rounding(periodic, shift):
    """A contrast of 1e21, where a one-sided cumulative sum is wrong by orders of magnitude."""
    density, zeta = (np.roll(part, shift) for part in bump(60, 6.0))
    links = links_of(density, periodic)
    assert links[links > 0].max() / links[links > 0].min() > 1e20
    exact = exact_fluxes(links, zeta, periodic)
    found = np.asarray(line_fluxes(links, zeta, periodic=periodic))
    assert energy_of_error(links, found, exact) < 1e-14
    assert energy_of_error(links, np.cumsum(zeta), exact) > 1e-8
    if not periodic:
        exact = np.array([float(f) for f in exact])
        np.testing.assert_allclose(found[:-1], exact[:-1], rtol=1e-14)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("second", [(3.5, 1.0), (2.5, 1e-12)])
def test_separated_bumps_lose_no_more_than_the_data(second, periodic):
    """What flows through a valley is the sum of many cancelling entries: the error is to stay
    within that of a ζ with one unit of rounding in each entry."""
    width, height = second
    density, zeta = map(np.append, bump(30, 3.0), [height * part for part in bump(30, width)])
    links, rng = links_of(density, periodic), np.random.default_rng(0)
    exact = exact_fluxes(links, zeta, periodic)
    worst = 0.0
    for _ in range(5):
        noise = np.finfo(float).eps * rng.uniform(-1, 1, zeta.size)
        perturbed = [Fraction(z) * (1 + Fraction(e)) for z, e in zip(zeta, noise, strict=True)]
        perturbed[90] -= sum(perturbed)  # balanced again by the top of the second bump
        flow = exact_fluxes(links, perturbed, periodic)
        worst = max(worst, energy_of_error(links, flow, exact))
    found = np.asarray(line_fluxes(links, zeta, periodic=periodic))
    assert energy_of_error(links, found, exact) < 2 * worst


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("n", with_slow([1, 2, 12], [2]))
def test_matches_the_dense_pseudo_inverse(n, periodic):
    rng = np.random.default_rng(n)
    links = rng.uniform(0.1, 2.0, n)
    links[-1] *= periodic
    zeta = rng.normal(size=(n, n))
    zeta -= zeta.mean(-1, keepdims=True)
    K = dense_laplacian(links)
    expected = zeta @ np.linalg.pinv(K, rcond=1e-12)
    phi = np.asarray(line_potentials(links, zeta, periodic=periodic))
    np.testing.assert_allclose(phi - phi.mean(-1, keepdims=True), expected, atol=1e-13)
    flow = links * (expected - np.roll(expected, -1, axis=-1))
    np.testing.assert_allclose(line_fluxes(links, zeta, periodic=periodic), flow, atol=1e-13)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("islands", [False, True])
def test_linear_symmetric_and_transposed_for_any_mass(islands, periodic):
    """Also where ζ is not balanced: the excess leaves at the ground, which depends on c only."""
    n, rng = 12, np.random.default_rng(0)
    links = 10.0 ** rng.uniform(-6, 0, n)
    if islands:
        links[[2, 3, 8]] = 0.0
    if not periodic:
        links[-1] = 0.0
    S = np.asarray(line_potentials(links, np.eye(n), periodic=periodic))
    F = np.asarray(line_fluxes(links, np.eye(n), periodic=periodic))
    T = np.asarray(line_fluxes_transpose(links, np.eye(n), periodic=periodic))
    assert np.all(np.isfinite(S))
    np.testing.assert_allclose(S, S.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(F, T.T, rtol=1e-12, atol=1e-15)
    zeta, v = rng.normal(size=(2, n, n))
    phi = np.asarray(line_potentials(links, zeta, periodic=periodic))
    np.testing.assert_allclose(phi, zeta @ S, rtol=1e-9)
    forward = np.vdot(line_fluxes(links, zeta, periodic=periodic), v)
    backward = np.vdot(zeta, line_fluxes_transpose(links, v, periodic=periodic))
    assert forward == pytest.approx(backward, rel=1e-13)
    K = dense_laplacian(links)
    grounds = np.isclose(np.abs(S).sum(1), 0.0)
    assert grounds.sum() == (1 if not islands else 4 - periodic)
    residual = zeta - phi @ K
    np.testing.assert_allclose(residual[:, ~grounds], 0.0, atol=1e-8)


def test_islands_do_not_disturb_each_other():
    """Zero links: the flow of a faint island between two bright ones keeps all its digits."""
    density, zeta = bump(20, 5.0)
    faint = 1e-30
    zeta = np.concatenate([zeta, faint * zeta, zeta])
    links = np.tile(links_of(density, periodic=False), 3)
    flow = np.asarray(line_fluxes(links, zeta)).reshape(3, -1)
    np.testing.assert_allclose(flow[1], faint * flow[0], rtol=1e-14)
    assert not np.any(line_fluxes(np.zeros_like(links), zeta))


def test_single_precision_and_vmap_over_links():
    with jax.enable_x64(False):
        density, zeta = (np.asarray(a, np.float32) for a in bump(20, 4.0))
        links = np.stack([links_of(density, True), np.roll(links_of(density, True), 5)])
        zeta = np.stack([[zeta, -zeta], [zeta, zeta]])
        phi = jax.vmap(lambda c, z: line_potentials(c, z, periodic=True))(links, zeta)
        assert phi.dtype == jnp.float32
        for i in range(2):
            padded = divergence.pad_links(divergence.nearest_links((links[i],)), True)
            back = divergence.laplacian(padded, phi[i], True)
            np.testing.assert_allclose(back, zeta[i], atol=1e-6)


def test_input_errors():
    with pytest.raises(InputError, match=r"links\[0\]: has shape \(2, 3\)"):
        line_fluxes(jnp.ones((2, 3)), jnp.ones(3))
    with pytest.raises(InputError, match="trailing axes"):
        line_potentials(jnp.ones(3), jnp.ones((3, 2)))


def test_examples_in_docstrings():
    compiled = {f.__name__: f for f in COMPILED}
    outcome = doctest.testmod(line, extraglobs=compiled)
    assert outcome.attempted > 0
    assert outcome.failed == 0
