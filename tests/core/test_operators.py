"""Arithmetic on pytrees."""

import jax
import jax.numpy as jnp
import numpy as np

from natgrad.core.operators import probe


def test_a_probe_looks_random_whatever_the_seed_and_the_leaf():
    like = {"a": jnp.zeros((40, 50)), "b": jnp.zeros(2000)}
    rows = [x.ravel() for seed in range(4) for x in jax.tree.leaves(probe(like, seed))]
    shifted = [np.roll(rows[0], lag) for lag in (1, 2, 3, 4, 32, 50, 64, 128, 1000)]
    together = np.stack([*rows, *shifted])
    few = 5 / np.sqrt(2000)
    np.testing.assert_allclose(together.mean(axis=1), 0, atol=few)
    np.testing.assert_allclose(np.cov(together), np.eye(len(together)), atol=few)
    assert len(np.unique(together[0])) == 2000


def test_a_probe_has_the_shapes_and_the_precision_asked_for_and_is_always_the_same():
    like = (jnp.zeros((3, 2), jnp.float32), jnp.zeros(()), jnp.zeros(0))
    first, again = probe(like, 1), jax.jit(probe, static_argnums=1)(like, 1)
    for x, y, z in zip(like, first, again, strict=True):
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        np.testing.assert_allclose(y, z, rtol=1e-6)
    np.testing.assert_allclose(probe(jnp.zeros((3, 2)), 1), first[0], rtol=1e-5)
