"""Waves by operators that devito compiles."""

from collections.abc import Callable
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
from ..waves.scheme import SECOND, Medium, Scheme, locate
from ..waves.survey import Survey

# The weights of a stencil times this are whole numbers: devito writes others with nine digits.
COMMON = {4: 12, 8: 5040}
COEFFICIENTS = ("twice", "back", "weight", "matching")  # the arrays of a medium


class Devito(OutsideWaves):
    """`waves.Acoustic` with devito as the propagator: the same scheme, layer and products.

    So the results are those of `Acoustic` to rounding. The response q of the medium (see
    `waves/propagation.py`) is stored for every shot, at every n-th step, n the smallest that fits
    into `memory` bytes; `stored_every` prescribes n.

    ```python
    model = Devito(survey, start)
    ```

    Cost: one propagation for ρ, for Zη and for Zᵀξ each, shot by shot; compiling at first.
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
        scheme = Scheme.of(survey.spacing, survey.dt, survey.steps, order, absorbing, start.storage)
        super().__init__(survey, start, order, _Devito(survey, scheme, dtype))


class _Devito(Propagator):
    name = "devito"

    def __init__(self, survey: Survey, scheme: Scheme, dtype: DTypeLike):
        self.devito = import_optional("devito", "Devito")
        self.devito.configuration["log-level"] = "ERROR"
        self.survey, self.scheme, self.dtype = survey, scheme, dtype
        self.layer = make_layer(survey, scheme.order, scheme.absorbing, dtype)
        self.volume = float(np.prod(survey.spacing))
        place = lambda name, x: locate(name, x, survey.shape, survey.spacing, scheme.absorbing)
        self.source_cells = place("sources", survey.sources)
        place("receivers", survey.receivers)  # inside, or an `InputError`
        self.wavelets = np.broadcast_to(survey.wavelet, (survey.shots, survey.steps))

    def simulate(self, m: np.ndarray, shots: np.ndarray, keep: bool) -> tuple[np.ndarray, Any]:
        medium = self._set(m)
        program, traces, kept = self._programs, [], []
        for shot in shots:
            program.source.coordinates.data[0] = self.survey.sources[shot]
            program.source.data[:, 0] = self.wavelets[shot] / self.volume
            responses = program.responses() if keep else None
            program.forward(responses)
            traces.append(np.array(program.receivers.data.T))
            if responses is not None:
                self._add_source(responses.data, medium, shot)
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
        return _Programs(self.devito, self.survey, self.scheme, self.dtype)

    def _set(self, m: np.ndarray) -> Medium:
        """The medium; its coefficients go where the operators read them."""
        medium = Medium(jnp.asarray(m), self.layer, self.scheme)
        values = {name: getattr(medium, name) for name in COEFFICIENTS}
        values["stiffness"] = medium.weight / COMMON[self.scheme.order]
        for name, array in values.items():
            self._programs.coefficients[name].data[:] = np.asarray(array)
        return medium

    def _add_source(self, responses: np.ndarray, medium: Medium, shot: int) -> None:
        """ws, the part of q that is not in the field yet."""
        cells, weights = (x[shot] for x in self.source_cells)
        signal = self.wavelets[shot, :: self.scheme.every] / self.volume
        for cell, weight in zip(cells, weights, strict=True):
            at = tuple(int(i) for i in cell)
            responses[(slice(None), *at)] += float(weight * medium.weight[at]) * signal


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
        self.coefficients = {name: field(name) for name in (*COEFFICIENTS, "stiffness")}
        self.ratio, self.image = field("ratio"), field("image")
        self.waves = devito.TimeFunction(name="waves", grid=grid, time_order=2, space_order=space)
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
        """u⁺ = 2(a + e)u − a²u⁻ + w(Ku + s), the traces of u, and wKu + eu where there is room."""
        u, c, dv = self.waves, self.coefficients, self.devito

        def equations() -> list[Any]:
            step = [dv.Eq(u.forward, self._free(u, u.backward))]
            step += self.source.inject(field=u.forward, expr=self.source * c["weight"])
            if responses is not None:
                step.append(dv.Eq(responses, self._stiffness(u) + c["matching"] * u))
            return step + self.receivers.interpolate(expr=u)

        self._run("forward" if responses is None else "keeping", equations, responses)

    def born(self, responses: Any) -> None:
        """The same step with the source −n(η/m)q at every n-th."""
        u, dv = self.waves, self.devito

        def equations() -> list[Any]:
            step = [dv.Eq(u.forward, self._free(u, u.backward))]
            step.append(dv.Inc(u.forward, self.ratio * responses))
            return step + self.receivers.interpolate(expr=u)

        self._run("born", equations, responses)

    def adjoint(self, responses: Any) -> None:
        """The same step backwards from the traces, and Σ q y⁺ over the blocks."""
        y, c, dv = self.waves, self.coefficients, self.devito

        def equations() -> list[Any]:
            step = [dv.Inc(self.image, responses * y)]
            step.append(dv.Eq(y.backward, self._free(y, y.forward)))
            return step + self.receivers.inject(field=y.backward, expr=self.receivers * c["weight"])

        self._run("adjoint", equations, responses)

    def _free(self, field: Any, other: Any) -> Any:
        c = self.coefficients
        return c["twice"] * field - c["back"] * other + self._stiffness(field)

    def _stiffness(self, field: Any) -> Any:
        """wK of a field."""
        order, total = self.scheme.order, 0
        for x in self.grid.dimensions:
            for k, weight in enumerate(SECOND[order]):
                pair = [field.subs({x: x + by * x.spacing}) for by in ((k, -k) if k else (0,))]
                total += round(weight * COMMON[order]) * sum(pair) / x.spacing**2
        return self.coefficients["stiffness"] * total

    def _run(self, name: str, equations: Callable[[], list[Any]], responses: Any) -> None:
        """From rest, through all steps."""
        if name not in self.built:
            self.built[name] = self.devito.Operator(equations(), name=name)
        self.waves.data.fill(0.0)
        room = {} if responses is None else {"responses": responses}
        steps = {"time_m": 0, "time_M": self.scheme.steps - 1}
        self.built[name].apply(dt=self.scheme.dt, **steps, **room)
