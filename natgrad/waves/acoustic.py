"""Recorded waves as a model: squared slowness ↦ traces, with Born and adjoint products.

`WaveModel` is what all wave models share, whatever propagator they use: θ, its bounds, its checks.
`Acoustic` propagates in JAX; `OutsideWaves` is the same model by a propagator outside JAX.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from ..core import llvm
from ..core.outcomes import Counts
from ..core.selection import Selection
from ..core.settings import (
    as_dtype,
    check_instance,
    check_integer,
    check_number,
    check_reals,
    replace_fields,
)
from ..core.sharding import row_mesh
from ..errors import InputError
from ..models.base import Evaluation, Model, Products, Unravel
from .propagation import Gathers, pull, push, simulate
from .scheme import LARGE, Layer, Medium, Scheme, Storage, halo
from .slabs import count_slabs
from .storage import plan_storage, refuse_storage
from .survey import Survey

M_PER_KM = 1000.0
DEFAULT_MEMORY = 2 * 2**30


def squared_slowness(velocity: ArrayLike) -> Any:
    """m = 1/c² in s²/km², numbers near one: 0.44 for water.

    ```python
    theta0 = ng.waves.squared_slowness(velocity)
    ```

    Args:
        velocity: c in m/s.
    """
    velocity = velocity if isinstance(velocity, jax.Array) else np.asarray(velocity)
    return (M_PER_KM / velocity) ** 2


def velocity_of(theta: ArrayLike) -> Any:
    """c = m^(−1/2) in m/s.

    Args:
        theta: m in s²/km².
    """
    theta = theta if isinstance(theta, jax.Array) else np.asarray(theta)
    return M_PER_KM / theta**0.5


class WaveModel(Model):
    """θ ↦ traces (shots, receivers, steps), θ = 1/c² in s²/km² on the survey's grid."""

    solves: ClassVar[bool] = True

    survey: eqx.AbstractVar[Survey]
    start: eqx.AbstractVar[Array]  # the squared slowness of the starting model
    update: eqx.AbstractVar[Array]  # how far each cell follows θ, from 0 to 1
    storage: eqx.AbstractVar[Storage]  # what is kept for the products
    order: eqx.AbstractVar[int]  # that of the differences in space

    @property
    def approximates(self) -> str:
        asked, kept = [], []
        if self.storage.every > 1:
            asked.append("stored_every=1")
            kept.append(f"at every {self.storage.every} steps")
        if self.storage.bfloat16:
            asked.append("stored_as=None")
            kept.append("in bfloat16")
        if not asked:
            return ""
        waves = f"here waves are stored {' '.join(kept)}"
        return (
            f"a model with {', '.join(asked)}: {waves}, and products are only near the derivative"
        )

    def slowness(self, theta: Array) -> Array:
        """The squared slowness that θ stands for, in s²/m²."""
        if np.shape(theta) != self.survey.shape:
            what = f"has shape {np.shape(theta)}, the survey's grid {self.survey.shape}"
            raise InputError("theta", what, "ng.waves.squared_slowness(velocity)")
        theta = jnp.asarray(theta).astype(self.start.dtype)
        return (self.start + self.update * (theta - self.start)) / M_PER_KM**2

    def bounds(self, lowest: float, highest: float) -> tuple[Array, Array]:
        """Bounds on θ for velocities between these, in m/s; stable ones, or `InputError`."""
        lowest = float(check_number(lowest, "lowest", positive=True, example=1400.0))
        highest = float(check_number(highest, "highest", positive=True, example=5000.0))
        if not lowest < highest:
            advice = "two velocities" if lowest == highest else f"bounds({highest!r}, {lowest!r})"
            raise InputError("lowest", f"{lowest!r} m/s is not below {highest!r} m/s", advice)
        self.survey.check_stable(highest, self.order)
        flat = lambda velocity: np.full(self.survey.shape, squared_slowness(velocity))
        return jnp.asarray(flat(highest)), jnp.asarray(flat(lowest))

    def check(self, theta: PyTree, known: Evaluation) -> None:
        slowness = eqx.filter_jit(self.slowness)(theta)  # else each operation is a program
        self.survey.check_velocity(np.asarray(slowness, float) ** -0.5, self.order)


def take_shots(selection: Selection) -> Array:
    """The shots of a mini-batch; `InputError` if it selects anything else."""
    if selection.of != "functions":
        what = "waves cannot be computed at a sample of times and receivers"
        raise InputError("batch", what, "MiniBatch(size, of='functions'): whole shots")
    return selection.rows


class Start(NamedTuple):
    """The squared slowness to start from, the weights of its cells, what will be stored, and the
    numbers among the arguments, as Python's own.
    """

    slowness: Array
    update: Array
    storage: Storage
    order: int
    absorbing: int
    memory: int
    stored_every: int | None


def check_start(
    survey: Survey,
    velocity: ArrayLike,
    update: ArrayLike | None,
    order: int,
    absorbing: int,
    memory: int,
    stored_every: int | None,
    dtype: DTypeLike,
    boundary: bool = False,
    bfloat16: bool = False,
) -> Start:
    """What a model of waves starts from, given its arguments, or `InputError`."""
    check_instance("survey", survey, Survey, "ng.waves.Survey.line(...)")
    order = 2 * halo(order)  # known, or an `InputError`
    absorbing = check_integer(absorbing, "absorbing", 0, example=10)
    if stored_every is not None:
        stored_every = check_integer(stored_every, "stored_every", 1)
    memory = int(check_number(memory, "memory", positive=True, example=2**31))
    precision = as_dtype(dtype)
    if precision not in (np.float32, np.float64):
        what = f"{dtype!r} is not a precision of waves"
        raise InputError("dtype", what, "jnp.float32 or jnp.float64")
    if precision == np.float64 and not jax.config.read("jax_enable_x64"):
        what = "is float64, and JAX is set to 32 bits"
        raise InputError("dtype", what, 'jax.config.update("jax_enable_x64", True), or jnp.float32')
    velocity = check_reals(velocity, "velocity", "a velocity in m/s for every cell")
    survey.check_velocity(velocity, order)
    limits = (memory, stored_every, survey.shots, boundary, bfloat16)
    storage = plan_storage(survey, order, absorbing, dtype, *limits)
    weights = update
    if weights is None:
        weights = np.ones(survey.shape)
    weights = check_reals(weights, "update", "a weight for every cell")
    if weights.shape != survey.shape:
        what = f"has shape {weights.shape}, the survey's grid {survey.shape}"
        raise InputError("update", what, "a weight for every cell")
    if not np.all((weights >= 0) & (weights <= 1)):
        raise InputError("update", "is not between 0 and 1", "0 in known cells, else 1")
    if not np.any(weights):
        raise InputError("update", "is zero in all cells", "1 where the velocity is not known")
    # converted by NumPy, here and where a model is made: on a device each is a program
    slowness = jnp.asarray(np.asarray(squared_slowness(velocity), dtype), dtype)
    weights = jnp.asarray(np.asarray(weights, dtype), dtype)
    return Start(slowness, weights, storage, order, absorbing, memory, stored_every)


def make_layer(survey: Survey, scheme: Scheme, dtype: DTypeLike) -> Layer:
    """The absorbing layer: one of the survey, so that models can differ."""
    typical = 0.5 * survey.fastest_stable(scheme.order)
    return Layer.around(survey.shape, scheme, typical, dtype)


class Acoustic(WaveModel):
    """θ ↦ u at the receivers, for every shot of a survey: m u_tt − Δu = s, m = θ = 1/c² in s²/km².

    Second order in time, `order` 4 or 8 in space, with a perfectly matched layer of `absorbing`
    cells around the model. `velocity`, in m/s, is the starting model, checked against dt and the
    wavelet.
    `update` is a weight between 0 and 1 for every cell, 0 where the velocity is known:
    m = m₀ + update · (θ − m₀).

    The products need the source field of every shot. It is kept at every n-th step, as rarely as
    the wavelet's band allows; where that exceeds `memory` bytes, products compute it again, from
    the boundary of the model or from checkpoints. `storage` says what was chosen; `stored_every`
    prescribes n. 1 gives the derivative of the discrete data to rounding. `stored_as=jnp.bfloat16`
    halves these bytes, and rounds what is kept by up to 0.4%. A run holds two of these fields, that
    of θ and that of a trial step. Data alone need none of it, and mini-batches of shots that of
    their own. The shots are dealt out to the `devices`, and slabs of a shot where there are several
    for each: `jax.devices()` for all GPUs, or for all cores of a CPU that was split into devices
    before its first use, `jax.config.update("jax_num_cpu_devices", 2)`.

    On a Hopper GPU or later, waves are computed by kernels of our own where there are some for the
    grid: in 2D they keep a shot in the shared memory of a few multiprocessors. On a CPU with
    llvmlite (the extra `cpu`), large grids in 2D have vector code of our own, which uses all cores
    of the process. `engine="kernels"` says why where there are none, and "xla" does without them.
    JAX differentiates through the model where XLA runs; the products do not need it.

    ```python
    model = ng.waves.Acoustic(survey, start)
    result = ng.minimize(
        ng.Problem(model, ng.LeastSquares(shots.data, survey.gather_grid)),
        ng.waves.squared_slowness(start),
        ng.NaturalGradient(ng.L2(survey.gather_grid)),
        bounds=model.bounds(1400.0, 6000.0),
    )
    ```

    Cost: one propagation for ρ, for Zη and for Zᵀξ each; two for a product where waves run again.

    Args:
        survey: Sources, receivers, wavelet and grid.
        velocity: The starting model, in m/s, of the survey's shape.
        update: Weight of every cell, 0 where the velocity is known; 1 by default.
        order: Order of the stencil in space, 4 or 8.
        absorbing: Cells of the absorbing layer; 0 for none.
        memory: Bytes for stored wave fields.
        stored_every: Steps between two stored fields; as the wavelet allows by default.
        stored_as: Precision of the stored fields, jnp.bfloat16; that of the waves by default.
        devices: Devices that share the shots.
        engine: "auto", "kernels" or "xla"; "auto" takes kernels where there are some.
        dtype: Precision of the waves.
    """

    any_mesh: ClassVar[bool] = True

    survey: Survey
    layer: Layer
    start: Array
    update: Array
    gathers: Gathers
    order: int = eqx.field(static=True)
    scheme: Scheme = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    storage: Storage = eqx.field(static=True)
    memory: int = eqx.field(static=True)
    stored_every: int | None = eqx.field(static=True)
    stored_as: str | None = eqx.field(static=True)

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
        stored_as: DTypeLike | None = None,
        devices: Sequence[Any] | None = None,
        engine: str = "auto",
        dtype: DTypeLike = jnp.float32,
    ):
        arguments = (survey, velocity, update, order, absorbing, memory, stored_every, dtype)
        if stored_as is not None and as_dtype(stored_as) != jnp.bfloat16:
            what = f"{stored_as!r} is not implemented"
            raise InputError("stored_as", what, "jnp.bfloat16, or None for that of the waves")
        self.stored_as = None if stored_as is None else "bfloat16"
        found = check_start(*arguments, boundary=True, bfloat16=self.stored_as is not None)
        self.survey, self.order = survey, found.order
        self.start, self.update, self.storage = found.slowness, found.update, found.storage
        self.memory, self.stored_every = found.memory, found.stored_every
        if engine not in ("xla", "kernels", "auto"):
            raise InputError("engine", f"{engine!r} is unknown", "'xla', 'kernels' or 'auto'")
        small = len(survey.shape) != 2 or np.prod(survey.shape) <= LARGE
        if engine == "auto" and jax.default_backend() != "gpu" and (small or llvm.missing()):
            engine = "xla"
        scheme = Scheme.of(survey, found.order, found.absorbing, found.storage)
        self.scheme, self.mesh = scheme._replace(engine=engine), None
        self.layer = make_layer(survey, self.scheme, dtype)
        self.gathers = Gathers.of(survey, self.scheme, dtype)
        mesh = None if devices is None else row_mesh(devices)
        if mesh is not None and mesh.size > 1:
            planned = self.distributed(mesh)
            self.mesh, self.storage, self.scheme = planned.mesh, planned.storage, planned.scheme

    def __call__(self, theta: Array) -> Array:
        medium = Medium(self.slowness(theta), self.layer, self.scheme)
        return simulate(medium, self.gathers, False, self.mesh)[0]

    def evaluate(self, theta: Array) -> Evaluation:
        keep = self.storage.bytes <= self.memory
        medium = Medium(self.slowness(theta), self.layer, self.scheme)
        return Evaluation(*simulate(medium, self.gathers, keep, self.mesh))

    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> "WaveProducts":
        theta = unravel(flat)
        rho, kept = self.evaluate(theta) if known is None else known
        if kept is None:
            refuse_storage(self.storage, self.memory, len(self.gathers.wavelet))
        return WaveProducts(rho, int(known is None), self.slowness(theta), kept, self, flat.dtype)

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        products = self.products(unravel, flat, known)
        columns = jax.lax.map(products.push, jnp.eye(flat.size, dtype=flat.dtype))
        return products.rho, columns, Counts(products.evaluations, flat.size, 0)

    def restricted(self, selection: Selection) -> "Acoustic":
        """Some of the shots."""
        rows = take_shots(selection)
        return self._plan(gathers=jax.tree.map(lambda x: x[rows], self.gathers))

    def distributed(self, mesh: Mesh) -> "Acoustic":
        """Each device has some of the shots, or a slab of one."""
        return self._plan(mesh=mesh)

    def _plan(self, **changes: Any) -> "Acoustic":
        """With other shots or devices, and what is kept planned anew where it has to be."""
        chosen, old = replace_fields(self, **changes), self.scheme
        (shots, whole), (before, _) = chosen._deal(), self._deal()
        good = whole or not old.boundary  # which slabs do not have
        fewer = old.recomputes and shots < before
        storage = self.storage._replace(bytes=self.storage.bytes * shots // before)
        if storage.bytes <= self.memory and good and not fewer:
            return replace_fields(chosen, storage=storage)
        limits = (self.memory, self.stored_every, shots, whole, self.stored_as is not None)
        storage = plan_storage(self.survey, old.order, old.absorbing, self.start.dtype, *limits)
        scheme = Scheme.of(self.survey, old.order, old.absorbing, storage)
        return replace_fields(chosen, storage=storage, scheme=scheme._replace(engine=old.engine))

    def _deal(self) -> tuple[int, bool]:
        """The shots, with those that fill up the groups of devices, and whether each is whole."""
        shots, mesh = len(self.gathers.wavelet), self.mesh
        slabs = count_slabs(mesh, shots, self.survey.shape, self.scheme)
        groups = 1 if mesh is None else mesh.size // slabs
        return -(-shots // groups) * groups, slabs == 1


class WaveProducts(Products):
    """Born and adjoint propagations at one m, with what was kept of its source fields."""

    rho: Array
    evaluations: int = eqx.field(static=True)
    slowness: Array
    kept: PyTree
    model: Acoustic
    dtype: Any = eqx.field(static=True)  # of θ

    def push(self, eta: Array) -> Array:
        model, m = self.model, self.slowness
        medium = Medium(m, model.layer, model.scheme)
        change = model.update * eta.reshape(m.shape).astype(m.dtype) / M_PER_KM**2
        return push(medium, model.gathers, change, self.kept, model.mesh)

    def pull(self, xi: Array) -> Array:
        model, m = self.model, self.slowness
        medium = Medium(m, model.layer, model.scheme)
        image = pull(medium, model.gathers, xi.astype(m.dtype), self.kept, model.mesh)
        return (model.update * image / M_PER_KM**2).ravel().astype(self.dtype)
