"""The case of bench_waves.py, and its tasks by natgrad, deepwave and devito.

A task is a function of nothing that does the whole work for all shots. Each library has its own
absorbing layer of 20 cells, 4th order in space, second in time, float32, and the same grid, steps,
sources and receivers. The Gauss–Newton product of the peers is the cheapest that their operators
allow: background, Born and adjoint waves once each.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from natgrad import waves
from natgrad.core.settings import replace_fields
from natgrad.waves.scheme import Scheme, Storage
from natgrad.waves.storage import count_bytes

SHAPE, SPACING, DT, FREQUENCY, LAYER = (306, 120), 25.0, 0.002, 6.0, 20
TASKS = ("forward", "Born", "gradient", "Gauss-Newton")

Tasks = dict[str, Callable[[], Any]]


class Case(NamedTuple):
    """A line survey, a section to linearise at, a perturbation of it (in s²/km²) and data."""

    survey: waves.Survey
    velocity: np.ndarray
    change: np.ndarray
    data: np.ndarray

    @property
    def cells(self) -> int:
        """Of the padded grid."""
        return int(np.prod([n + 2 * LAYER for n in self.survey.shape]))

    @property
    def cell_steps(self) -> float:
        """Updates of a cell in one propagation of all shots."""
        return float(self.cells) * self.survey.shots * self.survey.steps


def paper(shots: int, steps: int, shape: tuple[int, int] = SHAPE) -> Case:
    survey = waves.Survey.line(shape, SPACING, dt=DT, steps=steps, shots=shots, frequency=FREQUENCY)
    on_grid = SPACING * np.round(survey.sources / SPACING)  # where all three agree what a source is
    survey = waves.Survey(shape, SPACING, DT, on_grid, survey.receivers, survey.wavelet)
    section = waves.folded_layers(shape, SPACING)
    velocity = waves.smoothed(section, 4.0)
    change = waves.squared_slowness(section) - waves.squared_slowness(velocity)
    data = np.random.default_rng(0).normal(size=survey.data_shape).astype(np.float32)
    data = waves.low_pass(data, DT, FREQUENCY).astype(np.float32)
    return Case(survey, velocity, change, data)


def natgrad_tasks(case: Case, **storage: Any) -> Tasks:
    """The products take the waves that the evaluation has kept, as in an inversion.

    `storage` is that of `Acoustic`, or boundary=True.
    """
    import jax

    model, compiled, (theta, eta, xi) = _prepare(case, storage)
    run = {name: compiled(function) for name, function in _FUNCTIONS.items()}
    held: list[Any] = []

    def known() -> Any:
        if not held:
            held.append(jax.block_until_ready(run["keeping"](theta)))
        return held[0]

    def gradient() -> Any:
        held.clear()  # before the next, as an inversion that needs the memory would
        return run["adjoint"](xi, theta, known())

    return {
        "model": lambda: model,
        "forward": lambda: jax.block_until_ready(run["forward"](theta)),
        "keeping": lambda: jax.block_until_ready((held.clear(), known())[1].rho),
        "Born": lambda: jax.block_until_ready(run["Born"](eta, theta, known())),
        "adjoint": lambda: jax.block_until_ready(run["adjoint"](xi, theta, known())),
        "gradient": lambda: jax.block_until_ready(gradient()),
        "Gauss-Newton": lambda: jax.block_until_ready(run["Gauss-Newton"](eta, theta, known())),
    }


def natgrad_in_a_row(case: Case, times: int, **storage: Any) -> Tasks:
    """Programs that do their work so many times, each on what the last has changed, by nothing."""
    import jax

    _, compiled, (theta, eta, xi) = _prepare(case, storage)
    known = compiled(_FUNCTIONS["keeping"])(theta)

    def repeated(name: str, x: Any, *given: Any) -> Callable[[], Any]:
        def many(model: Any, x: Any, *given: Any) -> Any:
            first = lambda found: jax.tree.leaves(found)[0].ravel()[0]
            call = lambda x: first(_FUNCTIONS[name](model, x, *given))
            again = lambda _, x: x + (1e-30 * call(x)).astype(x.dtype)
            return jax.lax.fori_loop(0, times, again, x)

        run = compiled(many)
        return lambda: jax.block_until_ready(run(x, *given))

    return {
        "forward": repeated("forward", theta),
        "keeping": repeated("keeping", theta),
        "Born": repeated("Born", eta, theta, known),
        "adjoint": repeated("adjoint", xi, theta, known),
        "Gauss-Newton": repeated("Gauss-Newton", eta, theta, known),
    }


def _prepare(case: Case, storage: dict[str, Any]) -> tuple[Any, Callable, tuple[Any, Any, Any]]:
    """The model, what makes a program of a function of it, and θ, η and ξ."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    boundary = storage.pop("boundary", False)
    model = waves.Acoustic(case.survey, case.velocity, absorbing=LAYER, **storage)
    model = _by_boundary(model) if boundary else model
    # On the device from the start: neither transfers nor a walk through the model at every call.
    arrays, rest = eqx.partition(jax.tree.map(jnp.asarray, model), eqx.is_array)

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        whole = lambda arrays, *given: function(eqx.combine(arrays, rest), *given)
        return partial(jax.jit(whole), arrays)

    inputs = model.start, jnp.asarray(case.change, jnp.float32), jnp.asarray(case.data)
    return model, compiled, inputs


def _by_boundary(model: waves.Acoustic) -> waves.Acoustic:
    """With waves that run again from the boundary, whether or not checkpoints take fewer bytes."""
    survey, order, cells = model.survey, model.order, model.scheme.absorbing
    way = Storage(model.storage.every, None, 0, boundary=True)
    way = count_bytes(survey, order, cells, model.start.dtype, way, survey.shots)
    scheme = Scheme.of(survey, order, cells, way)._replace(engine=model.scheme.engine)
    return replace_fields(model, storage=way, scheme=scheme)


def _products(model: Any, theta: Any, known: Any) -> Any:
    return model.products(lambda flat: flat.reshape(model.survey.shape), theta.ravel(), known)


def _product(model: Any, eta: Any, theta: Any, known: Any) -> Any:
    products = _products(model, theta, known)
    return products.pull(products.push(eta))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "forward": lambda model, theta: model(theta),
    "keeping": lambda model, theta: model.evaluate(theta),
    "Born": lambda model, eta, theta, known: _products(model, theta, known).push(eta),
    "adjoint": lambda model, xi, theta, known: _products(model, theta, known).pull(xi),
    "Gauss-Newton": _product,
}


def deepwave_tasks(case: Case, every: int = 1, device: str = "cpu", order: int = 4) -> Tasks:
    """Fields for the gradient at every n-th step, its `model_gradient_sampling_interval`."""
    import deepwave
    import torch

    torch.set_num_threads(1)
    survey, spacing, dt = case.survey, case.survey.spacing[0], case.survey.dt
    tensor = lambda x: torch.as_tensor(np.asarray(x, np.float32), device=device)
    places = lambda x: torch.as_tensor(np.round(x / spacing).astype(int), device=device)
    velocity = tensor(case.velocity)
    # the derivative in c of 1/c², in s²/km²: δc = −c³ δm/2
    scatter = tensor(-0.5 * case.velocity**3 * case.change * 1e-6)
    xi = tensor(case.data)
    arguments = {
        "source_amplitudes": tensor(
            np.broadcast_to(survey.wavelet, (survey.shots, 1, survey.steps))
        ),
        "source_locations": places(survey.sources)[:, None],
        "receiver_locations": places(survey.receivers)[None].repeat(survey.shots, 1, 1),
        "accuracy": order,
        "pml_width": LAYER,
        "pml_freq": FREQUENCY,
        "max_vel": 1.001 * float(case.velocity.max()),
        "model_gradient_sampling_interval": every,
    }
    synchronise = torch.cuda.synchronize if device != "cpu" else lambda: None

    def forward() -> None:
        with torch.no_grad():
            deepwave.scalar(velocity, spacing, dt, **arguments)
        synchronise()

    def born() -> None:
        with torch.no_grad():
            deepwave.scalar_born(velocity, spacing, dt, scatter=scatter, **arguments)
        synchronise()

    def gradient() -> None:
        v = velocity.clone().requires_grad_()
        out = deepwave.scalar(v, spacing, dt, **arguments)[-1]
        torch.autograd.grad(out, v, xi)
        synchronise()

    def product() -> None:
        s = scatter.clone().requires_grad_()
        out = deepwave.scalar_born(velocity, spacing, dt, scatter=s, **arguments)[-1]
        torch.autograd.grad(out, s, out.detach())
        synchronise()

    return dict(zip(TASKS, (forward, born, gradient, product), strict=True))


def devito_tasks(case: Case, every: int = 1) -> Tasks:
    """Operators of its symbolic equations; the waves of a shot are saved at every n-th step."""
    import devito as dv

    dv.configuration["log-level"] = "ERROR"
    survey, padded = case.survey, tuple(n + 2 * LAYER for n in SHAPE)
    extent = tuple((n - 1) * SPACING for n in padded)
    grid = dv.Grid(padded, extent=extent, origin=(-LAYER * SPACING,) * 2, dtype=np.float32)
    m, damp = (dv.Function(name=name, grid=grid, space_order=4) for name in ("m", "damp"))
    image, dm = (dv.Function(name=name, grid=grid, space_order=0) for name in ("image", "dm"))
    m.data[:] = np.pad(1.0 / case.velocity**2, LAYER, mode="edge")
    dm.data[:] = np.pad(1e-6 * case.change, LAYER, mode="edge")
    damp.data[:] = _sponge(padded) * m.data
    points = {"grid": grid, "npoint": len(survey.receivers), "nt": survey.steps}
    source = dv.SparseTimeFunction(name="source", grid=grid, npoint=1, nt=survey.steps)
    receivers = dv.SparseTimeFunction(
        name="receivers", coordinates=survey.receivers.astype(np.float32), **points
    )
    source.data[:, 0] = survey.wavelet
    time, dt = grid.time_dim, grid.stepping_dim.spacing
    thin = dv.ConditionalDimension("thin", parent=time, factor=every)
    saved = lambda: dv.TimeFunction(
        name="saved", grid=grid, save=-(-survey.steps // every), time_dim=thin, space_order=0
    )
    field = lambda name: dv.TimeFunction(name=name, grid=grid, time_order=2, space_order=4)
    u, du, v = field("u"), field("du"), field("v")
    kept = saved()

    balance = m * u.dt2 - u.laplace + damp * u.dt
    step = [dv.Eq(u.forward, dv.solve(balance, u.forward))]
    step += source.inject(field=u.forward, expr=source * dt**2 / m)
    keep = [dv.Eq(kept, u)]
    scattered = m * du.dt2 - du.laplace + damp * du.dt + dm * u.dt2
    second = [dv.Eq(du.forward, dv.solve(scattered, du.forward))]
    back = m * v.dt2 - v.laplace + damp * v.dt.T
    adjoint = [dv.Eq(v.backward, dv.solve(back, v.backward))]
    adjoint += receivers.inject(field=v.backward, expr=receivers * dt**2 / m)
    adjoint += [dv.Inc(image, -every * kept * v.dt2)]

    make = lambda equations, name: dv.Operator(equations, name=name, opt="advanced")
    operators = {
        "forward": lambda: make(step + receivers.interpolate(expr=u), "forward"),
        "Born": lambda: make(step + second + receivers.interpolate(expr=du), "born"),
        "keeping": lambda: make(step + keep + receivers.interpolate(expr=u), "keeping"),
        "both": lambda: make(step + keep + second + receivers.interpolate(expr=du), "both"),
        "adjoint": lambda: make(adjoint, "adjoint"),
    }
    built: dict[str, Any] = {}

    def apply(name: str, *fields: Any) -> None:
        if name not in built:
            built[name] = operators[name]()
        for x in fields:
            x.data.fill(0.0)
        built[name].apply(dt=DT, time_m=1, time_M=survey.steps - 2)

    def shots(*names: str) -> Callable[[], None]:
        fields = {"adjoint": (v,), "Born": (u, du), "both": (u, du)}

        def task() -> None:
            image.data[:] = 0.0
            for at in survey.sources:
                source.coordinates.data[0] = at
                for name in names:
                    apply(name, *fields.get(name, (u,)))

        return task

    names = (("forward",), ("Born",), ("keeping", "adjoint"), ("both", "adjoint"))
    return {task: shots(*which) for task, which in zip(TASKS, names, strict=True)}


def _sponge(padded: tuple[int, ...]) -> np.ndarray:
    """Damping by distance into the layer, in 1/s: any would cost the same."""
    total = np.zeros(padded)
    for axis, n in enumerate(padded):
        index = np.arange(n)
        depth = np.maximum(LAYER - index, index - (n - 1 - LAYER)).clip(0) / LAYER
        total = total + 60.0 * (depth**2).reshape([-1 if i == axis else 1 for i in range(2)])
    return total
