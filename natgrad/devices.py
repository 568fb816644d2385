"""A run over many devices, and over the processes that they belong to."""

import functools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import PyTree

from .core.settings import check_instance
from .core.sharding import as_row_mesh, check_divides, divides, everywhere, in_parts, put_on_mesh
from .errors import InputError, PeerError, warn_user
from .identity import digest
from .metrics.base import Metric
from .models.base import check_model
from .parameters import check_parameters, flatten
from .problem import Problem

# What the collectives of CPUs and GPUs, and JAX's own service, say of a peer that is gone.
LOST = re.compile(
    r"gloo|nccl|coordination ?service|heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED|peer", re.IGNORECASE
)
# Seconds until a process that waits for others before a run says so, and until it gives up. The
# others may be reading data or compiling what comes before the run, which is not ours to limit.
LATE, ABSENT = 60.0, 600.0
_meetings: Counter[tuple[int, ...]] = Counter()  # of these processes until now


class Devices(NamedTuple):
    """The devices of a run: θ is whole on each, the state in equal parts along its first axis.

    Model, metric and loss say what follows from that for them (`distributed`); arrays in them of
    the shape of the state are cut like it, all others are whole everywhere. Without a mesh nothing
    is moved, and there is nobody to agree with.
    """

    mesh: Mesh | None = None

    @classmethod
    def over(cls, mesh: Any) -> "Devices":
        """As asked of `minimize`."""
        return cls(None if mesh is None else as_row_mesh(mesh))

    def check(self, problem: Problem, theta: PyTree, **settings: Any) -> None:
        """Raise `InputError`, in every process, if they were given something else each.

        Functions are compared by their code and the data that it refers to.
        """
        if self.mesh is None:
            return
        if not self._alone:
            mesh = [device.id for device in self.mesh.devices.flat]
            given = {"mesh": mesh, "problem": problem, "theta0": theta, **settings}
            mine = {name: digest(value, inside=True) for name, value in given.items()}
            with self.explain():
                others = self._exchange(mine)
            for name in mine:
                if any(other.get(name) != mine[name] for other in others):
                    what, advice = "differs from process to process", "the same data and seeds"
                    raise InputError(name, what, f"{advice} in every process")
        check_instance("problem", problem, Problem)
        check_parameters(theta)

    def _exchange(self, mine: dict[str, str]) -> list[dict[str, str]]:
        """What every process of the mesh has to say, by the service that has brought them together.

        No collective: these are for processes that run the same program.
        """
        from jax._src.distributed import global_state  # JAX has no other way to it

        assert self.mesh is not None
        processes = tuple(sorted({device.process_index for device in self.mesh.devices.flat}))
        number = _meetings[processes] = _meetings[processes] + 1
        key = lambda process: f"natgrad/{processes}/{number}/{process}"
        client: Any = global_state.client
        client.key_value_set(key(jax.process_index()), json.dumps(mine))
        began, said = time.monotonic(), {}
        for limit in (LATE, ABSENT):
            for process in sorted({*processes} - {*said}):
                left = max(began + limit - time.monotonic(), 1e-3)
                try:
                    said[process] = client.blocking_key_value_get(key(process), int(1000 * left))
                except RuntimeError as error:
                    if "DEADLINE_EXCEEDED" not in str(error):
                        raise
            if len(said) == len(processes):
                return [json.loads(said[process]) for process in processes]
            missing = ", ".join(str(process) for process in processes if process not in said)
            what = f"process {missing} did not make this call within {limit:g} s"
            if limit < ABSENT:
                warn_user(f"{what}; waiting until {ABSENT:g} s")
        raise InputError("mesh", what, "the same call, with the same mesh, in every process of it")

    def any(self, value: bool) -> bool:
        """Whether it is so in any process."""
        if self.mesh is None or self._alone:
            return value
        return bool(np.asarray(_reduce(self.mesh, jnp.any)(self._gather(np.asarray(value)))))

    def spread(self, problem: Problem, theta: PyTree) -> tuple[Problem, Callable[[Metric], Metric]]:
        """The problem for a state in parts, and the function that spreads a metric with it."""
        if self.mesh is None:
            return problem, lambda metric: metric
        mesh, (flat, unravel) = self.mesh, flatten(theta)
        model = problem.model.distributed(mesh)
        state = jax.tree.leaves(check_model(lambda v: problem.model(unravel(v)), flat))
        cut = {tuple(leaf.shape) for leaf in state if divides(mesh, leaf.shape)}
        if not cut and not model.any_mesh:
            check_divides(mesh, state[0].shape, "the state")
        place = lambda shape: (in_parts if shape in cut else everywhere)(mesh)
        spread = eqx.tree_at(lambda p: p.model, problem, model)
        return put_on_mesh(spread, place), lambda metric: put_on_mesh(
            metric.distributed(mesh), place
        )

    def replicate(self, tree: PyTree) -> PyTree:
        """The arrays on every device, whole."""
        if self.mesh is None:
            return tree
        whole = everywhere(self.mesh)

        def move(x: Array) -> Array:
            there = put_on_mesh(x, lambda _: whole)
            return there if there.is_fully_replicated else jax.device_put(there, whole)

        return jax.tree.map(lambda x: move(x) if eqx.is_array(x) else x, tree)

    @property
    def leads(self) -> bool:
        """Whether this process is the one that decides and writes files."""
        if self.mesh is None:
            return True
        return self.mesh.devices.flat[0].process_index == jax.process_index()

    @property
    def _alone(self) -> bool:
        return self.mesh is None or everywhere(self.mesh).is_fully_addressable

    def agree(self, value: Any) -> np.ndarray:
        """The leader's value, in every process. Cost: about a millisecond."""
        if self._alone:
            return np.asarray(value)
        return np.asarray(_reduce(self.mesh, _take_first)(self._gather(np.asarray(value))))

    def agree_on_bytes(self, content: bytes | None) -> bytes | None:
        """The leader's bytes, in every process."""
        if self._alone:
            return content
        length = int(self.agree(np.int32(-1 if content is None else len(content))))
        if length < 0:
            return None
        mine = content if self.leads and content is not None else bytes(length)
        return self.agree(np.frombuffer(mine, np.uint8)).tobytes()

    @contextmanager
    def explain(self) -> Iterator[None]:
        """Failures of the communication inside, as `PeerError`."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if self._alone or not LOST.search(str(error)):
                raise
            raise PeerError(
                f"mesh: another process of this run has died or cannot be reached ({error}). Try: "
                "its log; then start all processes again, with any number of them. A run with a "
                "checkpoint resumes from there."
            ) from error

    def _gather(self, value: np.ndarray) -> Array:
        """The values of the processes, a row for each device."""
        assert self.mesh is not None
        shape = (self.mesh.size, *value.shape)
        return jax.make_array_from_callback(shape, in_parts(self.mesh), lambda _: value[None])


@functools.cache
def _reduce(mesh: Mesh, function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return jax.jit(function, out_shardings=everywhere(mesh))


def _take_first(rows: Array) -> Array:
    return rows[0]
