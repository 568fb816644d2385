"""Compiled functions that hand on what they do not change."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.core

Result = TypeVar("Result")


class _Input:
    """Stands in a result for the argument's leaf of this number."""

    def __init__(self, number: int):
        self.number = number


class _Given(NamedTuple):
    args: tuple
    kwargs: dict[str, Any]


def jit_forwarding(function: Callable[..., Result]) -> Callable[..., Result]:
    """`eqx.filter_jit`, but array leaves of the arguments in the result are those very arrays.

    A compiled program copies every input that it returns, and a stored source field of a wave
    equation may be gigabytes.

    ```python
    jit_forwarding(lambda field, x: (field, 2 * x))(field, 1.0)[0] is field        # True
    ```

    Cost: a look at the leaves of arguments and result, microseconds.
    """

    @eqx.filter_jit
    def traced(given: _Given) -> Any:
        numbers = {
            id(leaf): number
            for number, leaf in enumerate(jax.tree.leaves(given))
            if isinstance(leaf, jax.core.Tracer)
        }
        result = function(*given.args, **given.kwargs)
        return jax.tree.map(
            lambda leaf: _Input(numbers[id(leaf)]) if id(leaf) in numbers else leaf, result
        )

    def run(*args: Any, **kwargs: Any) -> Result:
        given = _Given(args, kwargs)
        leaves = jax.tree.leaves(given)
        put = lambda leaf: leaves[leaf.number] if isinstance(leaf, _Input) else leaf
        return jax.tree.map(put, traced(given))

    run.traced = traced  # pyright: ignore[reportFunctionMemberAccess]
    return run
