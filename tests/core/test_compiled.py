"""Programs that are compiled hastily, and those that are not."""

import jax
import jax.numpy as jnp
import numpy as np

from natgrad.core.compiled import LITTLE_WORK, jit_by_work


def test_a_program_is_compiled_as_thoroughly_as_its_work_deserves():
    traced = []

    def function(x, weights, length):
        traced.append(length)
        step = lambda x, _: (jnp.sin(weights["a"] * x), None)
        return {"end": jax.lax.scan(step, x, None, length=length)[0]}, length

    choose, x = jit_by_work(function), np.linspace(0.0, 1.0, 8)
    make = lambda length: (jnp.asarray(x), {"a": jnp.asarray(0.7)}, length)
    given = {length: make(length) for length in (3, LITTLE_WORK)}
    little, much = (choose(*arguments) for arguments in given.values())
    assert little is not much
    assert choose(*given[3]) is little
    state, length = little(*given[3])
    expected = np.sin(0.7 * np.sin(0.7 * np.sin(0.7 * x)))
    np.testing.assert_allclose(state["end"], expected, rtol=1e-14)
    assert length == 3
    assert traced == [3, LITTLE_WORK]  # once for both forms
