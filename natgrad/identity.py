"""What a run is known by: digests of its settings, and what its problem and its operators do."""

import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jaxtyping import PyTree

from .core.compiled import compile_beside
from .core.operators import Structure, dot, norm, probe
from .core.sharding import to_host
from .metrics.base import Metric
from .parameters import Bounds, flatten
from .problem import Problem, differentiate_loss

SAME = {64: 1e-5, 32: 1e-3}  # by the bits of θ: the same, compiled by another version of JAX
CANCELLED = 1e-6  # a number that much smaller than at the other point may be all rounding
AWAY = 0.1  # how far from θ₀ the second point lies, in root mean squares of each array of θ₀
Actions = list[list[float]]  # numbers, each with the difference that is rounding


class Identity(NamedTuple):
    """Digests that must be the same, and numbers that must be so up to rounding, by names."""

    parts: dict[str, str]
    actions: dict[str, Actions]

    def find_difference(self, parts: dict[str, str], actions: dict[str, Actions]) -> str | None:
        """The name of the first thing that another run has otherwise, if any."""
        for name, given in self.parts.items():
            if parts.get(name) != given:
                return name
        for name, given in self.actions.items():
            found = actions.get(name, [])
            if len(found) != len(given) or not all(map(_is_same, found, given)):
                return name
        return None


def prepare(
    problem: Problem, theta: PyTree, bounds: Bounds | None, metric: Metric | None, rho: PyTree
) -> None:
    """Compile beside what follows the programs by which `identify` will know a problem."""
    compile_beside(_act_compiled, problem, theta, bounds, np.float64(0.0))
    if metric is not None and rho is not None:
        compile_beside(_measure, metric, rho)


def identify(
    problems: Mapping[str, tuple[Problem, Metric | None]],
    theta: PyTree,
    bounds: Bounds | None,
    **settings: Any,
) -> Identity:
    """What a run from θ is known by, with these problems, their metrics, and these settings.

    Of a problem these are f, ∂_ρ f, ρ, Zη, Zᵀξ and Aζ for random η, ξ and ζ at θ and at a point
    away from it; of an operator among the settings, a product. Cost: two evaluations and two
    products with each of Z, Zᵀ and A.
    """
    tolerance = SAME.get(jnp.finfo(flatten(theta)[0].dtype).bits, SAME[32])
    about = lambda size, largest: tolerance * max(float(size), CANCELLED * float(largest))
    vector = lambda pair, most=0.0: [[float(x), about(pair[0], most)] for x in np.asarray(pair)]
    actions: dict[str, Actions] = {name: [] for name in (*problems, "metric")}
    for name, (problem, metric) in problems.items():
        act = _act if problem.model.on_host else _act_compiled
        seen = [_try(act, problem, theta, bounds, np.float64(length)) for length in (0.0, AWAY)]
        seen = [point and point._replace(vectors=jax.device_get(point.vectors)) for point in seen]
        values = [np.nan if point is None else float(point.value) for point in seen]
        largest = np.nanmax([*np.abs(values), 0.0])
        actions[name] += [[f, about(abs(f), largest)] for f in values]
        for point in filter(None, seen):
            for i, pair in enumerate(point.vectors):
                lengths = [other.vectors[i][0] for other in filter(None, seen)]
                actions[name] += vector(pair, np.nanmax([*lengths, 0.0]))
            pair = None if metric is None else _try(_measure, metric, point.rho)
            actions["metric"] += [] if pair is None else vector(pair)
    for name, setting in settings.items():
        inner = filter(_is_operator, jax.tree.leaves(setting, is_leaf=_is_operator))
        pairs = [_try(_apply, operator) for operator in inner]
        products = [x for pair in pairs if pair is not None for x in vector(pair)]
        actions[name] = actions.get(name, []) + products
    settings = {"theta0": theta, "bounds": bounds, **settings}
    return Identity({name: digest(part) for name, part in settings.items()}, actions)


class _Point(NamedTuple):
    """f and ρ at one θ, and of ρ, Zη, Zᵀξ and ∂_ρ f the length and a random component."""

    value: Array
    rho: PyTree
    vectors: list[Array]


def _act(problem: Problem, theta: PyTree, bounds: Bounds | None, length: Array) -> _Point:
    rest = eqx.filter(theta, eqx.is_inexact_array, inverse=True)
    parameters = eqx.filter(theta, eqx.is_inexact_array)
    size = lambda x: jnp.sqrt(jnp.mean(jnp.where(jnp.any(x != 0), x, 1.0) ** 2))
    draw = probe(parameters, seed=0)
    # one-sided, so that slownesses only grow
    move = lambda x, u: x + jnp.asarray(length, x.dtype) * size(x) * jnp.abs(u)
    flat, unravel = flatten(eqx.combine(jax.tree.map(move, parameters, draw), rest))
    if bounds is not None:
        flat = jnp.clip(flat, bounds.lower, bounds.upper)
    try:
        products = problem.model.products(unravel, flat)
        rho = products.rho
    except Exception:  # a function without a rule for Zη is known by its values
        products, rho = None, problem.model(unravel(flat))
    vectors = [_describe(rho)]
    if products is not None:
        with suppress(Exception):
            vectors.append(_describe(products.push(probe(flat, seed=1))))
        with suppress(Exception):
            vectors.append(_describe(products.pull(probe(rho, seed=2))))
    with suppress(Exception):
        _, *slopes = differentiate_loss(problem, unravel(flat), rho)
        vectors += [_describe(slope) for slope in slopes if slope is not None]
    return _Point(problem.value(unravel(flat), rho), rho, vectors)


_act_compiled = eqx.filter_jit(_act)


@eqx.filter_jit
def _measure(metric: Metric, rho: PyTree) -> Array:
    """Of Aζ at ρ."""
    return _describe(metric.at(rho).gram.mv(probe(rho, seed=3)))


def _apply(operator: lx.AbstractLinearOperator) -> Array:
    structure = Structure(operator.in_structure()).zeros()
    return _describe(operator.mv(probe(structure, seed=4)))


def _describe(x: PyTree) -> Array:
    """The length and a random component, which sees any change, of about the same size."""
    return jnp.stack([norm(x), dot(x, probe(x, seed=5))])


def _try(function: Any, *arguments: Any) -> Any:
    """What it returns; None where it cannot, as a model may away from θ₀."""
    try:
        return jax.block_until_ready(function(*arguments))
    except Exception:
        return None


def _is_same(one: list[float], other: list[float]) -> bool:
    (a, about), (b, _) = one, other
    return a == b or (np.isnan(a) and np.isnan(b)) or bool(abs(a - b) <= about)


def _is_operator(x: Any) -> bool:
    return isinstance(x, lx.AbstractLinearOperator)


def digest(value: PyTree, *, inside: bool = False) -> str:
    """A number for its structure, types and arrays, the same in another process.

    Of an array whose parts other processes hold, only the shape and the type count; of an operator
    its type and shapes, and of a function its name. With `inside` everything is what it is made of:
    a function its code and the data that it refers to, which another version of Python changes, an
    object its attributes, unless its class is of Python's library, of JAX or of NumPy.
    """
    if inside:
        return _look_into(value, {}).hex()
    found = hashlib.sha256()
    leaves, structure = jax.tree_util.tree_flatten(
        value, is_leaf=lambda x: _is_operator(x) or isinstance(x, (set, frozenset))
    )
    found.update(_without_addresses(structure))
    for leaf in leaves:
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            for piece in _read_array(leaf):
                found.update(piece)
        elif _is_operator(leaf):
            shapes = leaf.in_structure(), leaf.out_structure()
            found.update(_without_addresses((type(leaf).__name__, shapes)))
        elif isinstance(leaf, (set, frozenset)):
            found.update(_without_addresses(sorted(map(repr, leaf))))
        else:
            found.update(_without_addresses(leaf))
    return found.hexdigest()


def _read_array(array: Any) -> Iterator[bytes]:
    yield f"{array.dtype}{array.shape}".encode()
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    plain: Any = jax.random.key_data(jnp.asarray(array)) if is_key else array
    if isinstance(values := to_host(plain), np.ndarray):
        yield np.ascontiguousarray(values).tobytes()


def _look_into(value: Any, seen: dict[int, tuple[Any, bytes]]) -> bytes:
    """The digest of an object from those of its parts; `seen` has each object with its own."""
    if id(value) in seen:
        return seen[id(value)][1]
    seen[id(value)] = value, b"inside itself"
    name, parts = _take_apart(value)
    found = [part if isinstance(part, bytes) else _look_into(part, seen) for part in parts]
    found = sorted(found) if isinstance(value, (set, frozenset)) else found
    joined = hashlib.sha256(name)
    for part in found:
        joined.update(hashlib.sha256(part).digest())
    seen[id(value)] = value, joined.digest()
    return joined.digest()


def _take_apart(value: Any) -> tuple[bytes, Iterable[Any]]:
    """What kind of thing it is, and what it is made of."""
    kind = type(value)
    name, room = kind.__qualname__.encode(), kind.__module__.partition(".")[0]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return name, _read_array(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return name, value
    if isinstance(value, Mapping):
        return name, sorted(value.items(), key=lambda item: _without_addresses(item[0]))
    if isinstance(value, (type, types.ModuleType)):
        return name, [value.__name__.encode()]
    if isinstance(value, functools.partial):
        return name, (value.func, value.args, value.keywords)
    if isinstance(value, types.MethodType):
        return name, (value.__func__, value.__self__)
    if isinstance(value, types.CodeType):
        return name, (value.co_code, value.co_names, value.co_consts)
    if isinstance(value, types.FunctionType):
        return name, _take_function_apart(value)
    if callable(value) and (function := inspect.unwrap(value)) is not value:
        rules = (getattr(value, rule, None) for rule in ("jvp", "fwd", "bwd"))
        return name, (function, *rules)
    foreign = room in sys.stdlib_module_names or room in ("jax", "jaxlib", "numpy")
    if foreign and kind is not types.SimpleNamespace:
        return name, [_without_addresses(value)]
    slots = [slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())]
    parts = {slot: getattr(value, slot, None) for slot in slots} | getattr(value, "__dict__", {})
    return name, [parts] if parts else [_without_addresses(value)]


def _take_function_apart(function: types.FunctionType) -> Iterator[Any]:
    """Its code and the data that it refers to, in the cells of its closure too."""
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it may be empty still
            yield cell.cell_contents
    known, own = function.__globals__, function.__module__
    of_others = lambda x: callable(x) and getattr(x, "__module__", own) != own
    for name in _find_names(function.__code__):
        if name in known:
            found = known[name]
            yield repr(name) if of_others(found) and not isinstance(found, eqx.Module) else found


def _find_names(code: types.CodeType) -> Iterator[str]:
    """The names in a piece of code and in the functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _find_names(constant)


def _without_addresses(value: Any) -> bytes:
    return re.sub(r"0x[0-9a-f]+", "", repr(value)).encode()
