"""What is stored of the source waves for the products, and which way of storing fits into memory.

| way         | kept                                                       | Zη, Zᵀξ      |
|-------------|------------------------------------------------------------|--------------|
| responses   | q = u⁺ − 2u + u⁻ at every n-th step                        | 1 run each   |
| boundary    | a strip of u at every step, q around it at every n-th      | 2 runs each  |
| checkpoints | u⁻, u and its memories at the start of segments            | 2 runs each  |

**The boundary.** Let B be the model without its outermost cells. The layer has no part in the step
there, so that it can be run backwards in time from the last two fields,

    u⁻ = 2u − u⁺ + w(Σ_a K_a u + s),

given u on the order/2 cells before and after B along each axis, as it was. The image needs q in the
layer too; it is kept on the frame of all cells outside of B, at every n-th step. Born waves run
forwards in time, and compute the source waves beside them, as with checkpoints.

**bfloat16.** q may be rounded to the 8 bits of bfloat16, which has the exponents of float32. Waves
that go on from what is stored may not, so this is for the responses alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..errors import InputError, warn_once
from .scheme import Fields, Layer, Medium, Scheme, Storage, print_bytes
from .survey import Survey

# A thinned field must sample the highest frequency f of the wavelet at least this often a period.
# Two would do in the wavelet's band. The images of the samples begin at 4f − f, and a direction
# scatters waves of f into them only by changes shorter than c/(2f), which no data in the band show.
SAMPLES_A_PERIOD = 4.0


@jax.custom_jvp
def to_bfloat16(x: Array) -> Array:
    """The bits of bfloat16.

    Where a part of an array of bfloat16 changes, XLA on a CPU takes all of it to float32 and back.
    """
    return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)


@to_bfloat16.defjvp
def _refuse(primals: tuple, tangents: tuple) -> Any:
    what = "is bfloat16, and JAX cannot differentiate through waves that are stored so"
    raise InputError("stored_as", what, "stored_as=None")


def write(kept: Array, x: Array, index: Array, first: Array | int) -> Array:
    """`kept`, (times, shots, …), with x, (shots, …), at one time, from the shot `first` on."""
    return jax.lax.dynamic_update_slice(kept, x[None], (index, first, *(0,) * (x.ndim - 1)))


def read(kept: Array, first: Array, count: int, index: Array) -> Array:
    """The fields of `count` shots at one time, read where they are."""
    corner = (index, first, *(0,) * (kept.ndim - 2))
    found = jax.lax.dynamic_slice(kept, corner, (1, count, *kept.shape[2:]))[0]
    rounded = kept.dtype == jnp.uint16
    return jax.lax.bitcast_convert_type(found, jnp.bfloat16) if rounded else found


class Boundary(NamedTuple):
    """The strips of every step, the frames of every block and the last fields, (…, shots, …)."""

    strips: tuple[Array, ...]  # for each axis, those before and after B side by side
    frames: tuple[Array, ...]  # likewise; that of an axis is as wide as B along the later ones
    last: Array  # on B and its strips

    @classmethod
    def room(cls, medium: Medium, shots: int) -> "Boundary":
        """Zeros, to be written to."""
        scheme, whole, dtype = medium.scheme, medium.weight.shape, medium.weight.dtype
        rim, halo = scheme.absorbing + 1, scheme.halo
        inner = [n - 2 * rim for n in whole]
        strips, frames = [], []
        for axis in range(len(whole)):
            sides = [*inner[:axis], 2 * halo, *inner[axis + 1 :]]
            strips.append(jnp.zeros((scheme.blocks * scheme.every, shots, *sides), dtype))
            sides = [*whole[:axis], 2 * rim, *inner[axis + 1 :]]
            frames.append(jnp.zeros((scheme.blocks, shots, *sides), dtype))
        last = jnp.zeros((2, shots, *(n + 2 * halo for n in inner)), dtype)
        return cls(tuple(strips), tuple(frames), last)

    def put_strips(self, u: Array, scheme: Scheme, number: Array, first: Array | int) -> "Boundary":
        """With those of u at the step of that number."""
        rim, halo, strips, u = scheme.absorbing + 1, scheme.halo, [], u[scheme.near]
        for axis, strip in enumerate(self.strips):
            at, inner = strip.ndim - len(self.strips) + axis, slice(rim + halo, -rim - halo)
            sides = [
                u[(..., *(inner if i != axis else x for i in range(len(self.strips))))]
                for x in (slice(rim, rim + halo), slice(-rim - halo, -rim))
            ]
            strips.append(write(strip, jnp.concatenate(sides, at - 1), number, first))
        return self._replace(strips=tuple(strips))

    def put_frame(self, q: Array, scheme: Scheme, index: Array, first: Array | int) -> "Boundary":
        """With that of q, (shots, …), at the start of a block."""
        rim, frames = scheme.absorbing + 1, list(self.frames)
        for axis in reversed(range(len(frames))):
            at = q.ndim - len(frames) + axis
            low, q, high = jnp.split(q, (rim, q.shape[at] - rim), at)
            frames[axis] = write(frames[axis], jnp.concatenate([low, high], at), index, first)
        return self._replace(frames=tuple(frames))

    def put_last(self, fields: Fields, scheme: Scheme, first: Array) -> "Boundary":
        """With the last two fields."""
        rim, last = scheme.absorbing + 1, self.last
        for number, wave in enumerate((fields.before, fields.now)):
            u = wave.u[scheme.near][(..., *(slice(rim, -rim),) * len(self.strips))]
            last = write(last, u, jnp.asarray(number), first)
        return self._replace(last=last)

    def begin(self, medium: Medium, first: Array, count: int) -> tuple[Medium, Fields]:
        """B, and the fields there with which to start backwards."""
        inner = (slice(1, -1),) * medium.slowness.ndim
        width = medium.scheme.halo
        rim = (width,) * medium.slowness.ndim
        scheme = medium.scheme._replace(absorbing=0, strip=width, lead=rim, trail=rim)
        medium = Medium(medium.slowness[inner], Layer(()), scheme)
        now, after = (read(self.last, first, count, jnp.asarray(i)) for i in (0, 1))
        rest = medium.rest(count)
        return medium, Fields(rest.before._replace(u=after), rest.now._replace(u=now), rest.spare)

    def surround(self, fields: Fields, number: Array, first: Array) -> Fields:
        """The fields with u of that step on the strips around B."""
        u = fields.now.u
        for axis, kept in enumerate(self.strips):
            at = 1 + axis
            strip = read(kept, first, len(u), number)
            halo = strip.shape[at] // 2
            for side, begin in zip(jnp.split(strip, 2, at), (0, u.shape[at] - halo), strict=True):
                corner = [0, *[halo] * len(self.strips)]
                corner[at] = begin
                u = jax.lax.dynamic_update_slice(u, side, corner)
        return fields._replace(now=fields.now._replace(u=u))

    def join(self, q: Array, index: Array, first: Array) -> Array:
        """q on all cells from that on B, at the start of a block."""
        for axis, kept in enumerate(self.frames):
            low, high = jnp.split(read(kept, first, len(q), index), 2, 1 + axis)
            q = jnp.concatenate([low, q, high], 1 + axis)
        return q


def make_room(medium: Medium, shots: int) -> PyTree:
    """Zeros for what is kept, (times, shots, …), where waves are computed again."""
    scheme, fields = medium.scheme, medium.rest(shots)
    if scheme.boundary:
        return Boundary.room(medium, shots)
    count = scheme.blocks // (scheme.segment or 1)
    each = lambda x: jnp.zeros((count, *x.shape), x.dtype)
    return jax.tree.map(each, (fields.before.u, fields.now))


def count_bytes(
    survey: Survey, order: int, absorbing: int, dtype: DTypeLike, storage: Storage, shots: int
) -> Storage:
    """With the bytes of what is kept, and of the responses between two checkpoints at a time."""
    scheme = Scheme.of(survey, order, absorbing, storage)

    def room(m: Array) -> PyTree:
        medium = Medium(m, Layer.around(survey.shape, scheme, 1.0, dtype), scheme)
        responses = 0 if scheme.boundary else scheme.segment or scheme.blocks
        whole = jnp.zeros((responses, shots, *medium.weight.shape), scheme.stored or dtype)
        return make_room(medium, shots) if scheme.recomputes else (), whole

    made = jax.eval_shape(room, jax.ShapeDtypeStruct(survey.shape, dtype))
    return storage._replace(bytes=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(made)))


def plan_storage(
    survey: Survey,
    order: int,
    absorbing: int,
    dtype: DTypeLike,
    memory: int,
    every: int | None,
    shots: int | None = None,
    boundary: bool = True,
    bfloat16: bool = False,
) -> Storage:
    """The responses, in `bfloat16` or not, if they fit into `memory` bytes.

    Else the way of fewest bytes: with the boundary and with checkpoints a product takes as many
    propagations. How many seconds each takes depends on the machine.
    """
    n, shots = choose_every(survey, every), survey.shots if shots is None else shots
    count = lambda *way: count_bytes(survey, order, absorbing, dtype, Storage(*way), shots)
    responses = count(n, None, 0, False, bfloat16)
    if responses.bytes <= memory:
        return responses
    ways, blocks, whole = [responses], -(-survey.steps // n), count(n, None, 0).bytes
    state = count(n, blocks, 0).bytes - whole
    length = blocks * float(np.sqrt(state / whole))  # of least bytes in all
    ways.append(count(n, int(np.clip(round(length), 1, blocks)), 0))
    if boundary and min(survey.shape) > 2:
        ways.append(count(n, None, 0, True))
    return min(ways, key=lambda way: way.bytes)


def choose_every(survey: Survey, every: int | None) -> int:
    """The largest n at which the waves are sampled often enough.

    `every` prescribes it, and must give two samples a period or more.
    """
    period = 1.0 / (survey.highest_frequency * survey.dt)
    longest = int(period / SAMPLES_A_PERIOD)
    if every is not None and every > max(1, longest):
        advice = f"stored_every={max(1, longest)}, or None"
        if every > survey.steps:
            what = f"{every} is more than the {survey.steps} steps of the survey"
            raise InputError("stored_every", what, advice)
        if 2 * every * survey.dt * survey.middle_frequency > 1:
            what = f"{every} steps are more than half a period of the wavelet"
            raise InputError("stored_every", what, advice)
        what = (
            f"{every} is {period / every:.2g} times in the shortest period, so products are rough"
        )
        warn_once(f"stored_every {every} {period:.3g}", f"stored_every: {what}. Try: {advice}.")
    return every or max(1, longest)


def refuse_storage(storage: Storage, memory: int, shots: int) -> None:
    """Raise `InputError` where the products need more than `memory` bytes."""
    if storage.bytes > memory:
        advice = f"memory={storage.bytes:_}, or fewer cells or steps"
        if shots > 1:
            advice += ", or mini-batches of shots: batch=ng.MiniBatch(size, of='functions')"
        those = "1 shot" if shots == 1 else f"{shots} shots"
        what = f"{print_bytes(memory)} cannot hold what products for {those} need: "
        raise InputError("memory", what + str(storage), advice)
