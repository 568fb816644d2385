"""Functions and loops that are compiled, or run on the host for a model that cannot be.

A model outside JAX cannot be traced, so its runs are driven from Python: the same algorithms, with
loops of Python in place of `jax.lax`'s.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cache as cache_results
from functools import wraps
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax import Array
from jax.extend.core import jaxprs_in_params
from jaxtyping import PyTree

from ..errors import InputError
from .archive import replace_file

LITTLE_WORK = 2**21  # numbers that a program makes: milliseconds, where compiling takes seconds
GUESSED_LENGTH = 10  # of a loop that ends by a test
MANY_NUMBERS = 8  # of one type in a loop
# Products of slices where they lie may begin at an odd number of a vector, which cuBLAS refuses.
UNTUNED = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_enable_dynamic_slice_fusion": False}
LEAST_COMPILE_SECONDS = 0.05  # quicker programs are compiled again rather than stored
LONGEST_WAIT, BETWEEN_LOOKS = 60.0, 0.02  # seconds: for code that another process makes
MOST_MAPS = 0.4  # of those that a process may have
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def jit_forwarding(function: Callable[..., Result]) -> Callable[..., Result]:
    """`eqx.filter_jit`, but array leaves of the arguments in the result are those very arrays.

    A compiled program copies every input that it returns, and a stored source field of a wave
    equation may be gigabytes. On a GPU matrix products are those of cuBLAS, as in `jit_by_work`.

    ```python
    jit_forwarding(lambda field, x: (field, 2 * x))(field, 1.0)[0] is field        # True
    ```

    Cost: a look at the leaves of arguments and result, microseconds.
    """

    def trace(given: _Given) -> Any:
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
        put = lambda leaf: leaves[leaf] if isinstance(leaf, _Input) else leaf
        outermost = jax.default_backend() == "gpu" and not is_traced(leaves)
        return jax.tree.map(put, (untuned if outermost else compiled)(given))

    trace.__name__ = trace.__qualname__ = function.__name__  # what a profile shows
    compiled = eqx.filter_jit(trace)
    untuned = eqx.filter_jit(trace, compiler_options=UNTUNED)  # pyright: ignore[reportCallIssue]
    return run


def jit_by_work(
    function: Callable[Arguments, Result], little: float = LITTLE_WORK
) -> Callable[..., Callable[..., Result]]:
    """Arguments ↦ `function` compiled for them: hastily where it has `little` to do.

    Most of the seconds that a CPU takes to compile go into faster code, which a small program does
    not need. Without any optimisation loops over grids become several times slower, hence
    the limit. Above it LLVM's first level of optimisation is used. The choice depends on shapes
    alone, so that runs can be repeated to the last bit. On a GPU, XLA would generate and time many
    kernels for each small matrix product; cuBLAS is used instead.

    Cost: the function is traced once for all forms.
    """
    plain = eqx.filter_jit(function)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return plain(*args, **kwargs)

    def compile_with(**options: Any) -> Callable[..., Result]:
        return eqx.filter_jit(call, compiler_options=options)  # pyright: ignore[reportCallIssue]

    @cache_results
    def compile_for_cpu(level: int, double: bool) -> Callable[..., Result]:
        options: dict[str, Any] = {"xla_backend_optimization_level": level}
        if jaxlib.version.__version__.startswith("0.10."):  # later versions refuse the name
            options["xla_cpu_use_fusion_emitters"] = False
            if double:  # trees of loops for short sums are more precise, but long to compile
                options["xla_disable_hlo_passes"] = "tree_reduction_rewriter"
        return compile_with(**options)

    untuned = compile_with(**UNTUNED)

    def count_work(jaxpr: Any) -> float:
        """The numbers that a program makes, in loops as often as they are passed."""
        total = 0.0
        for equation in jaxpr.eqns:
            inner = sum(map(count_work, jaxprs_in_params(equation.params)))
            repeats = {"scan": equation.params.get("length"), "while": GUESSED_LENGTH}
            inner *= repeats.get(equation.primitive.name) or 1
            total += inner or sum(getattr(v.aval, "size", 1) for v in equation.outvars)
        return total

    def choose(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Callable[..., Result]:
        if (backend := jax.default_backend()) != "cpu":
            return untuned if backend == "gpu" else plain
        traced = eqx.filter_make_jaxpr(plain)(*args, **kwargs)[0]
        level = 0 if count_work(traced.jaxpr) <= little else 1
        return compile_for_cpu(level, jnp.result_type(float) == jnp.float64)

    return choose


def compile_beside(function: Any, *args: Any) -> None:
    """Compile a function of `eqx.filter_jit` for these arguments in a thread, beside what follows.

    A call meanwhile waits for the program, a later one finds it. What fails here fails again in the
    call, and settings of JAX for the caller's thread alone make another program: nothing is lost.
    """

    def work() -> None:
        with suppress(Exception):
            function.lower(*args).compile()

    Thread(target=work, name="natgrad compiles").start()


class _Given(NamedTuple):
    args: tuple
    kwargs: dict[str, Any]


class _Input(int):
    """Stands in a result for the argument's leaf of this number."""


def is_traced(*trees: PyTree) -> bool:
    """Whether an array among these is being traced, so that a loop over it must be compiled."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def refuse_traced(name: str, *trees: PyTree) -> None:
    """Raise `InputError` where values are needed and none are there."""
    if is_traced(*trees):
        raise InputError(name, "is being traced, and values are needed", "the call outside of jit")


def loop(going: Callable[[Any], Any], step: Callable[[Any], Any], start: Any) -> Any:
    """`start`, then `step` as long as `going`: `jax.lax.while_loop`, or Python's.

    Leaves that are no arrays, such as the activation of a network, stay what they are. Many numbers
    of one type travel as one array: a GPU would copy each by itself.

    >>> int(loop(lambda i: i < 3, lambda i: i + 1, jnp.zeros((), int)))
    3
    """
    if is_traced(start):
        arrays, rest = eqx.partition(start, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        alike: dict[Any, list[int]] = {}
        for place, leaf in enumerate(leaves):
            alike.setdefault(leaf.dtype if leaf.ndim == 0 else None, []).append(place)
        together = [p for kind, p in alike.items() if kind is not None and len(p) >= MANY_NUMBERS]
        alone = sorted(set(range(len(leaves))).difference(*together))

        def pack(state: Any) -> tuple[list[Array], list[Array]]:
            given = jax.tree.leaves(eqx.filter(state, eqx.is_array))
            stacks = [jnp.stack([given[i] for i in places]) for places in together]
            return stacks, [given[i] for i in alone]

        def unpack(packed: tuple[list[Array], list[Array]]) -> Any:
            stacks, others = packed
            found = dict(zip(alone, others, strict=True))
            for places, stack in zip(together, stacks, strict=True):
                found |= zip(places, stack, strict=True)
            arrays = structure.unflatten([found[i] for i in range(len(leaves))])
            return eqx.combine(arrays, rest)

        ahead = lambda packed: pack(step(unpack(packed)))
        return unpack(jax.lax.while_loop(lambda packed: going(unpack(packed)), ahead, pack(start)))
    state = start
    while bool(going(state)):
        state = step(state)
    return state


def each(function: Callable[[Any], Any], xs: PyTree, batch_size: int | None = None) -> PyTree:
    """`function` of every entry along the leading axis of `xs`, stacked: `jax.lax.map`, or a loop.

    >>> each(lambda x: 2 * x, jnp.arange(3)).tolist()
    [0, 2, 4]
    """
    if is_traced(xs):
        return jax.lax.map(function, xs, batch_size=batch_size)
    length = jax.tree.leaves(xs)[0].shape[0]
    entry = lambda i: jax.tree.map(lambda x: x[i], xs)
    results = [function(entry(i)) for i in range(length)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def fetch_together(tree: PyTree) -> PyTree:
    """`jax.device_get`, with all single numbers in one transfer.

    A GPU copies each number by itself, and an iteration has some thirty of them.

    >>> [x.tolist() for x in fetch_together([jnp.asarray(2), jnp.asarray(0.5), jnp.ones(2)])]
    [2, 0.5, [1.0, 1.0]]
    """
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, x in enumerate(leaves) if isinstance(x, Array) and x.ndim == 0]
    numbers = np.asarray(_stack([leaves[i] for i in places])) if places else []
    for place, number in zip(places, numbers, strict=True):
        leaves[place] = np.asarray(number, leaves[place].dtype)
    return jax.device_get(structure.unflatten(leaves))


_stack = jax.jit(lambda numbers: jnp.stack([jnp.asarray(x, float) for x in numbers]))


def release_programs() -> bool:
    """Let go of all compiled programs where they are so many that the process would soon die.

    JAX keeps the programs of every function that it has seen, with dozens of memory maps for each
    closure that is given as a model. Linux allows a process some 65,000 of them; at `MOST_MAPS` of
    these the caches are cleared, and what is needed again is compiled again.
    """
    try:
        with open("/proc/self/maps", "rb") as maps, open("/proc/sys/vm/max_map_count") as allowed:
            full = sum(1 for _ in maps) > MOST_MAPS * int(allowed.read())
    except OSError:  # not on Linux
        return False
    if full:
        jax.clear_caches()
    return full


def can_call_back() -> bool:
    """Whether compiled code can call the host and hand it arrays.

    JAX copies the arguments of a callback on a thread of the pool that the caller occupies: with a
    single CPU the two would wait for each other for ever.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) > 1
    return (os.cpu_count() or 1) > 1


# --- compiled programs on disk -------------------------------------------------------------------


def cache(folder: str | Path | None = None) -> Path | None:
    """Keep compiled programs on disk, so that the next run of a script starts faster.

    Returns the folder: the one given, or `NATGRAD_CACHE`, or `natgrad` in the user's cache folder.
    Without an argument nothing is changed where JAX has a folder already
    (`JAX_COMPILATION_CACHE_DIR`), where `NATGRAD_CACHE` is empty, or where nothing can be written.

    ```python
    ng.cache()            # at the top of a script; the command `natgrad` does this by itself
    ```

    Processes may share a folder. JAX warns of files in it that are damaged, and compiles anew; it
    does not write them again, so remove them.

    The machine code of wave kernels is kept in any case, in `NATGRAD_CACHE` or the user's folder.

    Cost: a file for each program that takes longer than 0.05 s to compile.

    Args:
        folder: Where to keep the programs.
    """
    if folder is None:
        given: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
        if given:
            return Path(given)
        try:
            chosen = program_folder(os.environ)
        except RuntimeError:  # there is no home folder
            return None
        if chosen is None or not _is_writable(chosen):
            return None
    else:
        try:
            chosen = Path(folder).expanduser().absolute() if folder != "" else None
        except (TypeError, RuntimeError):  # RuntimeError: nobody of that name has a home folder
            chosen = None
        if chosen is None or not _is_writable(chosen):
            advice = "the path of a folder that may be made or written to"
            raise InputError("folder", f"{folder!r} cannot be written", advice)
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_COMPILE_SECONDS)
    return chosen


def program_folder(environment: Mapping[str, str]) -> Path | None:
    """NATGRAD_CACHE, or `natgrad` in the user's cache folder; None where NATGRAD_CACHE is empty.

    >>> program_folder({"XDG_CACHE_HOME": "/var/tmp"}).as_posix()
    '/var/tmp/natgrad'
    """
    named = environment.get("NATGRAD_CACHE")
    if named is not None:
        return Path(named).expanduser() if named else None
    home = environment.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "natgrad"


def keep_code(told: Any, make: Callable[[], bytes]) -> bytes:
    """Machine code from the folder of programs, or made and kept there.

    `told` is all that decides what it is, as JSON has it. Of processes that want it at the same
    time one makes it, and the others wait, but not for ever. Made anew are files that were damaged
    or stand under another name, by their digest, and what is not this user's alone to write. Where
    nothing can be kept it is made every time.
    """
    try:
        folder = program_folder(os.environ)
    except RuntimeError:  # there is no home folder
        folder = None
    if folder is None:
        return make()
    name = hashlib.sha256(json.dumps(told).encode())
    path = folder / f"{name.hexdigest()[:32]}.code"
    digest = lambda code: hashlib.sha256(name.digest() + code).digest()
    with ExitStack() as held:
        with suppress(OSError, ImportError):
            import fcntl  # not on every system

            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, OURS)  # whatever the umask
            held.callback(os.close, file)
            end = monotonic() + LONGEST_WAIT
            while monotonic() < end:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                sleep(BETWEEN_LOOKS)
        found = _read_ours(path)
        if digest(found[32:]) == found[:32]:
            return found[32:]
        code = make()
        with suppress(OSError):
            replace_file(path, digest(code) + code)
    return code


NO_LINK, OURS = getattr(os, "O_NOFOLLOW", 0), 0o644


def _read_ours(path: Path) -> bytes:
    """What a file holds that no other user owns or may write to; else nothing, and a new one."""
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | NO_LINK)) as file:
            found, status = file.read(), os.fstat(file.fileno())
        if os.name != "posix":
            return found
        if status.st_uid in (0, os.getuid()) and not status.st_mode & 0o022:
            return found
    except FileNotFoundError:
        return b""
    except OSError:  # a link, or not to be read
        pass
    with suppress(OSError):
        path.unlink()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OURS))
    return b""


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return False
