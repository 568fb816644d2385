"""Waves by operators that devito compiles."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import ArrayLike

from ..errors import InputError, import_optional
from ..waves.acoustic import DEFAULT_MEMORY, check_start, make_layer
from ..waves.outside import OutsideWaves, Propagator
from ..waves.scheme import GAMMA, SECOND, Medium, Scheme, locate
from ..waves.storage import refuse_storage
from ..waves.survey import Survey

# The weights of a stencil times this are whole numbers: devito writes others with nine digits.
COMMON = {4: 12, 8: 5040}
MEMORIES = ("psi", "zeta")  # of the layer, for each axis


class Devito(OutsideWaves):
    """`waves.Acoustic` with devito as the propagator: the same scheme, layer and products.

    So the results are those of `Acoustic` to rounding. The response q of the medium (see
    `waves/propagation.py`) is stored for every shot, at every n-th step, as `waves.Acoustic`
    does it; `stored_every` prescribes n.

    ```python
    model = Devito(survey, start)
    ```

    Cost: one propagation for ρ, for Zη and for Zᵀξ each, shot by shot; compiling at first.

    Args:
        survey: As for `waves.Acoustic`, like the other arguments.
        velocity: The starting model, in m/s.
        update: Weight of every cell, 0 where the velocity is known.
        order: Order in space, 4 or 8.
        absorbing: Cells of the absorbing layer.
        memory: Bytes for stored fields.
        stored_every: Steps between two stored fields.
        dtype: Precision of the waves.
    """

    def __init__(
        self,
        survey: Survey,
        velocity: ArrayLike,
        *,
        update: ArrayLike | None = None,
        order: int = 4,
        absorbing: int = 10,
        memory: int = DEFAULT_MEMORY,
        stored_every: int | None = None,
        dtype: DTypeLike = np.float32,
    ):
        arguments = (survey, velocity, update, order, absorbing, memory, stored_every, dtype)
        start = check_start(*arguments)
        if start.storage.segment is not None:
            what = "does not hold the waves of the sources, and devito has no checkpoints here"
            raise InputError("memory", what, "more memory, or fewer shots")
        refuse_storage(start.storage, start.memory, survey.shots)
        scheme = Scheme.of(survey, start.order, start.absorbing, start.storage)
        super().__init__(survey, start, _Devito(survey, scheme, dtype))


class _Devito(Propagator):
    name = "devito"

    def __init__(self, survey: Survey, scheme: Scheme, dtype: DTypeLike):
        self.devito = import_optional("devito", "Devito")
        self.devito.configuration["log-level"] = "ERROR"
        self.survey, self.dtype = survey, dtype
        # the axes in the order of the survey, which devito's operators keep, and no other cells
        axes = tuple(range(len(survey.shape)))
        self.scheme = scheme = scheme._replace(axes=axes, spacing=survey.spacing, fill=0)
        self.layer = make_layer(survey, scheme, dtype)
        self.volume = float(np.prod(survey.spacing))
        place = lambda name, x: locate(name, x, survey.shape, survey.spacing, scheme.absorbing)
        self.source_cells = place("sources", survey.sources)
        place("receivers", survey.receivers)  # inside, or an `InputError`
        self.wavelets = np.broadcast_to(survey.wavelet, (survey.shots, survey.steps))

    def simulate(self, m: np.ndarray, shots: np.ndarray, keep: bool) -> tuple[np.ndarray, Any]:
        self._set(m)
        program, traces, kept = self._programs, [], []
        for shot in shots:
            program.source.coordinates.data[0] = self.survey.sources[shot]
            program.source.data[:, 0] = self.wavelets[shot] / self.volume
            responses = program.responses() if keep else None
            program.forward(responses)
            traces.append(np.array(program.receivers.data.T))
            kept.append(responses)
        return np.stack(traces), kept if keep else None

    def push(self, m: np.ndarray, change: np.ndarray, kept: Any) -> np.ndarray:
        medium = self._set(m)
        program, traces = self._programs, []
        ratio = np.asarray(medium.extend(jnp.asarray(change)))
        program.ratio.data[:] = -self.scheme.every * ratio
        for responses in kept:
            program.born(responses)
            traces.append(np.array(program.receivers.data.T))
        return np.stack(traces)

    def pull(self, m: np.ndarray, xi: np.ndarray, kept: Any) -> np.ndarray:
        medium = self._set(m)
        program = self._programs
        program.image.data[:] = 0.0
        for responses, traces in zip(kept, xi, strict=True):
            program.receivers.data[:] = traces.T
            program.adjoint(responses)
        total = -self.scheme.every * jnp.asarray(np.array(program.image.data)) / medium.weight
        return np.asarray(jax.linear_transpose(medium.extend, medium.slowness)(total)[0])

    @cached_property
    def _programs(self) -> "_Programs":
        programs = _Programs(self.devito, self.survey, self.scheme, self.dtype)
        for (name, axis), pair in programs.filters.items():
            line = [-1 if i == axis else 1 for i in range(len(self.survey.shape))]
            values = np.asarray(self.layer.lines[axis][MEMORIES.index(name)])
            for field, value in zip(pair, values, strict=True):  # a and b
                field.data[:] = value.reshape(line)
        return programs

    def _set(self, m: np.ndarray) -> Medium:
        """The medium; its coefficients go where the operators read them."""
        medium = Medium(jnp.asarray(m), self.layer, self.scheme)
        self._programs.weight.data[:] = np.asarray(medium.weight)
        return medium


class _Programs:
    """The symbols of one survey, and the three operators on them, compiled when first used."""

    def __init__(self, devito: Any, survey: Survey, scheme: Scheme, dtype: DTypeLike):
        self.devito, self.scheme = devito, scheme
        rim, space = scheme.absorbing, scheme.order
        padded = tuple(n + 2 * rim for n in survey.shape)
        sides = list(zip(padded, survey.spacing, strict=True))
        grid = devito.Grid(
            padded,
            extent=tuple((n - 1) * h for n, h in sides),
            origin=tuple(-rim * h for _, h in sides),
            dtype=dtype,
        )
        self.grid = grid
        # of order 2 because of their halo, where points at the edge look for neighbours
        field = lambda name: devito.Function(name=name, grid=grid, space_order=2)
        self.weight, self.ratio, self.image = field("weight"), field("ratio"), field("image")
        axes = range(len(survey.shape)) if rim else ()
        each = [(name, axis) for axis in axes for name in MEMORIES]
        self.filters = {(x, i): (field(f"a_{x}{i}"), field(f"b_{x}{i}")) for x, i in each}
        wave = lambda name, order: devito.TimeFunction(
            name=name, grid=grid, time_order=order, space_order=space
        )
        self.waves = wave("waves", 2)
        self.memories = {(x, i): wave(f"{x}{i}", 1) for x, i in each}
        points = lambda name, n: devito.SparseTimeFunction(
            name=name, grid=grid, npoint=n, nt=survey.steps
        )
        self.source = points("source", 1)
        self.receivers = points("receivers", len(survey.receivers))
        self.receivers.coordinates.data[:] = survey.receivers
        self.thinned = devito.ConditionalDimension(
            "thinned", parent=grid.time_dim, factor=scheme.every
        )
        self.built: dict[str, Any] = {}
        self.numbers: list[Any] = []

    def responses(self) -> Any:
        """Room for q of one shot."""
        return self.devito.TimeFunction(
            name="responses",
            grid=self.grid,
            save=self.scheme.blocks,
            time_dim=self.thinned,
            space_order=0,
        )

    def forward(self, responses: Any) -> None:
        """The step of `waves/scheme.py`, the traces of u, and q where there is room."""
        u, dv = self.waves, self.devito

        def equations() -> list[Any]:
            step = [*self._step(u, u.forward, u.backward)]
            step += self.source.inject(field=u.forward, expr=self.source * self.weight)
            if responses is not None:
                step.append(dv.Eq(responses, u.forward - 2 * u + u.backward))
            return step + self.receivers.interpolate(expr=u)

        self._run("forward" if responses is None else "keeping", equations, responses)

    def born(self, responses: Any) -> None:
        """The same step with the source −n(η/m)q at every n-th."""
        u, dv = self.waves, self.devito

        def equations() -> list[Any]:
            step = [*self._step(u, u.forward, u.backward)]
            step.append(dv.Inc(u.forward, self.ratio * responses))
            return step + self.receivers.interpolate(expr=u)

        self._run("born", equations, responses)

    def adjoint(self, responses: Any) -> None:
        """The transposed step backwards from the traces, and Σ q y⁺ over the blocks."""
        y, dv = self.waves, self.devito

        def equations() -> list[Any]:
            step = [dv.Inc(self.image, responses * y)]
            step += self._step(y, y.backward, y.forward)
            data = self.receivers * self.weight
            return step + self.receivers.inject(field=y.backward, expr=data)

        self._run("adjoint", equations, responses)

    def _step(self, u: Any, new: Any, old: Any) -> Iterator[Any]:
        """The equations of a step, backwards in time where the transposed one is meant."""
        dv, back, total = self.devito, new == u.backward, 0
        for axis, x in enumerate(self.grid.dimensions):
            total += self._second(u, x)
            if not self.filters:
                continue
            names = MEMORIES[::-1] if back else MEMORIES
            after: dict[str, Any] = {}
            for name in names:
                memory, (a, b) = self.memories[name, axis], self.filters[name, axis]
                after[name] = memory.backward if back else memory.forward
                if name == "psi":
                    drive = self._first(u, x, 0)
                    drive += self._first(after["zeta"], x, 0) if back else 0
                else:
                    drive = u if back else self._second(u, x) + self._first(after["psi"], x, -1)
                yield dv.Eq(after[name], b * memory + a * drive)
            total += self._first(after["psi"], x, -1)
            total += self._second(after["zeta"], x) if back else after["zeta"]
        yield dv.Eq(new, 2 * u - old + self.weight * total)

    def _second(self, field: Any, x: Any) -> Any:
        """K of a field along one axis."""
        order, total = self.scheme.order, 0
        for k, weight in enumerate(SECOND[order]):
            pair = [field.subs({x: x + by * x.spacing}) for by in ((k, -k) if k else (0,))]
            total += round(weight * COMMON[order]) * sum(pair) / x.spacing**2
        return total / COMMON[order]

    def _first(self, field: Any, x: Any, by: int) -> Any:
        """The first difference from a point to half a cell further, or less where `by` is −1."""
        gamma = GAMMA[self.scheme.order]
        at = lambda k: field.subs({x: x + (k + by) * x.spacing})
        near, far = (self._exact(v) for v in (1 + 3 * gamma, gamma))
        return (near * (at(1) - at(0)) - far * (at(2) - at(-1))) / x.spacing

    def _exact(self, value: float) -> Any:
        """A number as a symbol of devito's, which is handed over with all its digits."""
        name = f"number_{len(self.numbers)}"
        known = [n for n in self.numbers if n.data == value]
        if not known:
            known = [self.devito.Constant(name=name, value=value, dtype=self.grid.dtype)]
            self.numbers += known
        return known[0]

    def _run(self, name: str, equations: Callable[[], list[Any]], responses: Any) -> None:
        """From rest, through all steps."""
        if name not in self.built:
            self.built[name] = self.devito.Operator(equations(), name=name)
        for field in (self.waves, *self.memories.values()):
            field.data.fill(0.0)
        room = {} if responses is None else {"responses": responses}
        steps = {"time_m": 0, "time_M": self.scheme.steps - 1}
        self.built[name].apply(dt=self.scheme.dt, **steps, **room)
