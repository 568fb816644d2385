"""The CUDA kernels against XLA: their source runs on the CPU here, a coroutine for each thread."""

import ctypes
import json
import threading
from functools import partial
from itertools import product, starmap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import host_kernels
import natgrad as ng
from kernel_cases import CASES, check, check_a_source, make
from natgrad.core import cuda
from natgrad.waves import kernel_plans, kernels, propagation, scheme
from natgrad.waves.scheme import Medium


def has_nvrtc():
    try:
        return cuda._library("nvrtc") is not None
    except cuda.CudaError:
        return False


needs_compiler = pytest.mark.skipif(host_kernels.COMPILER is None, reason="needs g++")


@pytest.fixture
def on_cpu(monkeypatch):
    """Kernels take the place of XLA, planned for a Hopper GPU."""
    device = kernels.Device()

    def prepare(task):
        plan = kernels.plan_kernel(task, device)
        return plan if isinstance(plan, str) else kernels.launch(task, plan, device)

    def over_groups(function, carry, rows, kernel=None):
        if kernel is None:
            return original(function, carry, rows)
        used.append(kernel)
        return kernel(carry, rows)

    used, original = [], propagation.over_groups
    host_kernels.install()
    monkeypatch.setattr(kernels, "prepare", prepare)
    monkeypatch.setitem(propagation.ENGINES, "cpu", kernels)
    monkeypatch.setattr(propagation, "over_groups", over_groups)
    return used


FAST = ("between cells", "bfloat16")
slow = partial(pytest.param, marks=pytest.mark.slow)
SLOW = [slow(case) for case in CASES if case not in FAST]


@needs_compiler
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize("case", [*FAST, *SLOW])
def test_kernels_compute_what_xla_does(case, on_cpu):
    check(CASES[case], "kernels")
    assert len(on_cpu) == 4  # forward, keeping, Born, adjoint


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(24, 26), (26, 28)])
def test_what_a_source_makes_of_its_cell_is_rounded_once(shape, on_cpu, monkeypatch):
    if shape == (26, 28):  # step by step
        monkeypatch.setattr(kernel_plans, "lay_out", lambda *_, **__: "too large")
    check_a_source("kernels", shape)
    assert len(on_cpu) == 4


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize(
    ("shape", "cells", "shots"), [((306, 120), 10, 21), ((306, 120), 20, 21), ((213, 104), 3, 64)]
)
def test_layouts_for_many_shots_compute_what_xla_does(shape, cells, shots, on_cpu, monkeypatch):
    """Those of the paper's size and one with lanes to spare in a strip, for two of the shots.

    There are more steps than numbers that double at each of them survive.
    """

    def prepare(task):
        plan = kernels.plan_kernel(task._replace(shots=shots))
        assert isinstance(plan, kernels.Plan)
        return kernels.launch(task, plan, kernels.Device())

    monkeypatch.setattr(kernels, "prepare", prepare)
    monkeypatch.setattr(scheme, "LARGE", 10**9)  # no cells more in a row than a GPU has
    check({"shape": shape, "absorbing": cells, "steps": 170, "dtype": jnp.float32}, "kernels")
    assert len(on_cpu) == 4


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize("order", [4, 8])
def test_3d_tiles_between_the_layers_compute_what_xla_does(order, on_cpu, monkeypatch):
    monkeypatch.setattr(kernel_plans, "TILE", (4, 4))
    size = {"shape": (15, 21, 40), "absorbing": 4}
    check(size | {"order": order, "dtype": jnp.float32, "on_grid": False}, "kernels")
    assert len(on_cpu) == 4


@needs_compiler
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize(
    "settings",
    [
        {"shape": (100, 84), "steps": 40},  # four tiles, two of them between the layers
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in (
                {"shape": (31, 43), "absorbing": 5, "on_grid": False, "every": 1},
                {"shape": (46, 40), "dtype": jnp.float32, "order": 8, "steps": 190},
                {"shape": (60, 44), "dtype": jnp.float32, "spacing": (11.0, 11.0)},
                {"shape": (50, 39), "absorbing": 0, "on_grid": False},
                {"shape": (34, 28), "dtype": jnp.float32, "stored_as": jnp.bfloat16},
                {"shape": (33, 27), "stored_as": jnp.bfloat16, "on_grid": False},
            )
        ),
    ],
    ids=str,
)
def test_2d_grids_too_large_for_a_cluster_are_stepped_as_3d_ones(settings, on_cpu, monkeypatch):
    monkeypatch.setattr(kernel_plans, "lay_out", lambda *_, **__: "too large")
    check(settings, "kernels")
    assert len(on_cpu) == 4


@needs_compiler
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize(
    ("tiles", "burst", "settings"),
    [
        ((2, 1), 4, {"shape": (90, 40)}),
        *starmap(
            slow,
            (
                ((1, 2), 4, {"shape": (78, 78), "on_grid": False}),
                ((3, 2), 4, {"shape": (112, 78), "on_grid": False}),
                ((2, 2), 4, {"shape": (91, 77), "on_grid": False}),
                ((2, 2), 4, {"shape": (91, 79), "absorbing": 0}),
                ((2, 2), 4, {"shape": (90, 78), "stored_as": jnp.bfloat16, "on_grid": False}),
                ((2, 1), 8, {"shape": (150, 40), "dtype": jnp.float32, "steps": 61}),
                ((2, 1), 4, {"shape": (150, 40), "order": 8}),
            ),
        ),
    ],
    ids=str,
)
def test_clusters_take_tiles_of_a_grid_in_turn(tiles, burst, settings, on_cpu, monkeypatch):
    """Waves run through all of the tiles, so that cells that a tile may not use would show."""

    def prepare(task):
        rim = task.order // 2 * burst
        ways = [kernel_plans.cut(n, rim, task.layer + task.order) for n in task.shape]
        part = task._replace(shape=[dict(way)[n] for way, n in zip(ways, tiles, strict=True)])
        for patch, outer in product(range(2, 6), range(1, 5)):
            plan = kernel_plans.lay_out(part, kernels.Device(), 2, patch, outer)
            if isinstance(plan, kernels.Plan):
                return kernels.launch(
                    task, plan._replace(tiles=tiles, burst=burst), kernels.Device()
                )

    monkeypatch.setattr(kernels, "prepare", prepare)
    settings = {"absorbing": 5, "steps": 62, "spacing": (6.0, 7.0)} | settings
    check(settings, "kernels")
    assert len(on_cpu) == 4


@given(st.integers(30, 5000), st.sampled_from([16, 24, 32, 96]), st.integers(4, 30))
def test_tiles_cover_an_axis_and_middle_ones_stay_off_the_layer(n, rim, strip):
    for tiles, cells in kernel_plans.cut(n, rim, strip)[1:]:
        assert cells % 4 == 0
        apart = cells - 2 * rim
        origins = [*(i * apart for i in range(tiles - 1)), n - cells]
        ends = [*(origin + cells - rim for origin in origins[:-1]), n]
        starts = [0, *ends[:-1]]
        assert all(begin < end for begin, end in zip(starts, ends, strict=True))
        assert all(a + rim <= begin for a, begin in zip(origins[1:], starts[1:], strict=True))
        assert min(origins[1:]) >= strip
        assert max(a + cells for a in origins[:-1]) <= n - strip


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
def test_kernels_share_shots_out_to_devices(on_cpu):
    check(CASES["no layer"], "kernels", jax.devices()[:2])
    assert len(on_cpu) == 4


@pytest.mark.skipif(isinstance(kernels.find_device(), str), reason="needs a Hopper GPU")
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_computes_what_xla_does(case):
    check(CASES[case], "auto")


def task(mode="forward", shape=(346, 160), order=4, layer=20, itemsize=4, shots=21, **changes):
    points = {"born": (0, 1, 306, 1), "adjoint": (306, 1, 0, 1)}.get(mode, (1, 1, 306, 1))
    numbers = (order, layer, 2000, 6, shots)
    given = kernels.Task(mode, shape, (25.0, 20.0), *numbers, *points, itemsize, False)
    return given._replace(**changes)


@given(
    st.sampled_from(kernels.MODES),
    st.tuples(st.integers(20, 500), st.integers(20, 300)),
    st.sampled_from([4, 8]),
    st.integers(0, 24),
    st.sampled_from([4, 8]),
    st.integers(1, 60),
)
def test_a_plan_fits_the_gpu_or_says_why_not(mode, shape, order, layer, itemsize, shots):
    device = kernels.Device()
    plan = kernels.plan_kernel(task(mode, shape, order, layer, itemsize, shots), device)
    if isinstance(plan, str):
        assert f"{shape[0]} × {shape[1]} cells" in plan
        return
    assert plan.shared <= device.shared
    assert plan.threads <= 1024
    if isinstance(plan, kernels.Stream):
        assert plan.resident * plan.shared <= device.shared
        assert plan.resident * plan.threads <= 2048
        assert plan.lanes % 32 == shape[1] % plan.vector == 0
        return
    assert plan.blocks <= 16
    shape = plan.tile
    last = shape[0] - plan.first - (plan.blocks - 2) * plan.columns
    assert order // 2 <= plan.first <= plan.columns
    assert plan.blocks == 1 or order // 2 <= last <= plan.columns
    assert plan.blocks * plan.columns >= shape[0]
    assert plan.columns % plan.patch == plan.columns % plan.outer == 0
    assert plan.first % plan.patch == plan.first % plan.outer == 0
    assert plan.threads % 32 == 0
    cells = 4 * (plan.patch + (plan.outer if layer else 0)) * plan.threads
    assert cells >= shape[1] * plan.columns


def test_plans_of_the_papers_size_and_of_grids_that_do_not_fit():
    for mode in kernels.MODES:
        plan = kernels.plan_kernel(task(mode))
        assert isinstance(plan, kernels.Plan)
        assert plan.blocks == 5
        large = kernels.plan_kernel(task(mode, shape=(1240, 540)))
        assert isinstance(large, kernels.Plan)
        assert min(large.tiles) > 1
    large = kernels.plan_kernel(task("adjoint", (1240, 540), order=8))
    assert isinstance(large, kernels.Stream)
    assert large.chunks > 100  # of few rows, and most blocks without a cell of the layer
    assert "fit into no cluster" in (told := kernels.plan_kernel(task(shape=(43, 1000), layer=20)))
    assert "beside the layer" in told
    assert "2D" in kernels.plan_kernel(task(shape=(60, 60, 60, 60)))
    assert "order 6" in kernels.plan_kernel(task(order=6))
    double = kernels.plan_kernel(task("adjoint", (446, 260), itemsize=8))
    assert isinstance(double, kernels.Stream)
    assert double.vector == 1
    assert isinstance(kernels.plan_kernel(task(shape=(512, 512, 512), shots=1)), kernels.Stream)
    assert "beside the layer" in kernels.plan_kernel(task(shape=(43, 512, 512)))
    assert "grid of blocks" in kernels.plan_kernel(task(shape=(512, 512, 512), shots=99_999))


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("kind", ["2D", *map(slow, ("2D large", "3D", "double", "bfloat16"))])
def test_the_source_compiles_for_a_gpu(kind, monkeypatch):
    """By the compiler and the options that a GPU's user has, which need no GPU."""
    monkeypatch.setenv("NATGRAD_CACHE", "")
    cases = {
        "2D": [((120, 80), {})],
        "2D large": [
            ((2000, 1000), {}),
            ((2000, 1000), {"bfloat16": True}),
            ((2000, 1000), {"itemsize": 8}),  # a launch for each step
        ],
        "3D": [((64, 64, 64), {"order": 8}), ((64, 61, 63), {"layer": 0})],
        "double": [((120, 81), {"itemsize": 8}), ((64, 64, 64), {"itemsize": 8})],
        "bfloat16": [((120, 80), {"bfloat16": True}), ((64, 64, 64), {"bfloat16": True})],
    }
    for mode in kernels.MODES[1:]:
        for shape, changes in cases[kind]:
            spacing = (25.0, 20.0, 20.0)[: len(shape)]
            given = task(mode, shape, spacing=spacing, shots=2, **({"layer": 10} | changes))
            plan = kernels.plan_kernel(given)
            assert not isinstance(plan, str)
            launch = kernels.launch(given, plan, kernels.Device())
            assert all(kernel.name.encode() in launch.cubin() for kernel in launch.kernels)


def test_xla_calls_a_python_function():
    def twice(call):
        if call.launch == b"interrupt":
            raise KeyboardInterrupt
        given, result = call.addresses
        if call.launch != b"twice":
            raise ValueError(f"what is {call.launch.decode()}?")
        array = lambda at: np.ctypeslib.as_array((ctypes.c_float * 5).from_address(at))
        array(result)[:] = 2 * array(given)

    cuda.register("natgrad_test_twice", "cpu", twice)
    out = jax.ShapeDtypeStruct((5,), jnp.float32)

    @partial(jax.jit, static_argnums=1)
    def run(x, name):
        return jax.ffi.ffi_call("natgrad_test_twice", out)(x, launch=name) + 1

    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(run(x, "twice"), 2 * x + 1)
    for name, told in {"half": "what is half", "interrupt": "KeyboardInterrupt"}.items():
        with pytest.raises(Exception, match=told):
            run(x, name).block_until_ready()


def some_launch(shape=(346, 160), **changes):
    given = task(shape=shape, spacing=(25.0,) * len(shape), **changes)
    plan = kernels.plan_kernel(given)
    assert not isinstance(plan, str)
    return kernels.launch(given, plan, kernels.Device())


def test_launches_survive_their_way_through_a_program():
    for launch in (some_launch(), some_launch((64, 64, 64), steps=3)):
        assert cuda._decode(json.dumps(launch).encode()) == launch


def test_kernels_are_started_round_by_round(monkeypatch):
    """With a driver that writes down what it is asked for."""
    launch, asked = some_launch((64, 64, 64), steps=3), []

    def answer(kind, function, *arguments):
        asked.append(function)
        if function == "cuModuleGetFunction":
            arguments[0]._obj.value = len(asked)
        if function == "cuLaunchKernelEx":
            config, pointers = arguments[0]._obj, arguments[2]
            values = [ctypes.c_uint64.from_address(pointers[i]).value for i in range(2)]
            number = ctypes.c_int.from_address(pointers[2]).value
            started.append((config.grid[0], config.block[0], values, number))
            return 1 if failing else 0
        return 0

    started, failing, compiled = [], [], []
    cubin = lambda self: compiled.append(self) or b"code"
    monkeypatch.setattr(cuda, "_ask", answer)
    monkeypatch.setattr(cuda.Launch, "cubin", cubin)
    monkeypatch.setattr(cuda, "_functions", {})
    launch.start([2**40, 2**41], 0)
    sizes = [(kernel.grid, kernel.block) for kernel in launch.kernels]
    expected = [(*size, [2**40, 2**41], i) for i in range(3) for size in sizes]
    assert started == expected
    assert compiled == [launch]
    failing.append(True)
    with pytest.raises(cuda.CudaError, match="cuLaunchKernelEx"):
        launch.start([2**40, 2**41], 0)
    assert asked.count("cuCtxPushCurrent_v2") == asked.count("cuCtxPopCurrent_v2") == 2


def test_compiled_kernels_are_kept_by_source_architecture_and_compiler(monkeypatch, tmp_path):
    compiled, version = [], [13]

    def nvrtc(function, *arguments):
        if function == "nvrtcVersion":
            arguments[0]._obj.value = version[0]
        if function == "nvrtcCompileProgram":
            compiled.append(arguments)
        if function == "nvrtcGetCUBINSize":
            arguments[1]._obj.value = 4
        if function == "nvrtcGetCUBIN":
            arguments[1].value = b"%d" % len(compiled)

    monkeypatch.setattr(cuda, "_nvrtc", nvrtc)
    monkeypatch.setenv("NATGRAD_CACHE", str(tmp_path / "programs"))
    first = cuda.compile_source("source", ["sm_90"])
    assert cuda.compile_source("source", ["sm_90"]) == first
    assert len(compiled) == 1
    others = [cuda.compile_source("other", ["sm_90"]), cuda.compile_source("source", ["sm_100"])]
    version[0] = 12
    assert len({first, *others, cuda.compile_source("source", ["sm_90"])}) == 4


def test_kernels_refuse_to_be_differentiated():
    call = lambda x: some_launch().call([jax.ShapeDtypeStruct((3,), float)], x)[0]
    with pytest.raises(ng.InputError, match=r"model\.products, or engine='xla'"):
        jax.eval_shape(jax.grad(lambda x: call(x).sum()), jnp.ones(3))


class FakeGpu:
    device_kind = "a GPU"

    def __init__(self, capability):
        self.compute_capability = capability


def test_without_what_kernels_need_there_is_a_reason(monkeypatch):
    assert kernels.find_device.__wrapped__() == "there is no GPU"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [FakeGpu("8.0")])
    assert "clusters of thread blocks need 9.0" in kernels.find_device.__wrapped__()
    monkeypatch.setattr(jax, "local_devices", lambda: [FakeGpu("9.0"), FakeGpu("8.0")])
    assert "the GPUs differ" in kernels.find_device.__wrapped__()
    monkeypatch.setattr(jax, "local_devices", lambda: [FakeGpu("9.0")])
    missing = lambda kind: (_ for _ in ()).throw(cuda.CudaError(f"lib{kind} was not found"))
    monkeypatch.setattr(cuda, "_library", missing)
    assert kernels.find_device.__wrapped__() == "libnvrtc was not found"
    monkeypatch.setattr(cuda, "_library", lambda kind: ctypes.CDLL(None))  # has none of its names
    assert "cuInit is missing from libcuda" in kernels.find_device.__wrapped__()
    monkeypatch.setattr(kernels, "find_device", kernels.Device)
    monkeypatch.setattr(cuda, "_ask", lambda kind, function, *_: int(function == "nvrtcVersion"))
    assert kernels.prepare(task()) == "nvrtcVersion: error 1"
    room = lambda self, ordinal: [cuda.Usage(64, 0, int(self.kernels[0].cluster <= 8))]
    monkeypatch.setattr(cuda.Launch, "usage", room)
    large = task(itemsize=8)
    assert kernels.plan_kernel(large).blocks > 8
    tiled = kernels.prepare(large)
    assert tiled.kernels[0].cluster <= 8
    assert tiled.rounds > 1
    few = kernels.prepare(task(shots=1))
    assert few.kernels[0].cluster <= 8 < kernels.plan_kernel(task(shots=1)).blocks
    alone = lambda self, ordinal: [cuda.Usage(64, 0, int(self.kernels[0].cluster == 1))]
    monkeypatch.setattr(cuda.Launch, "usage", alone)
    assert kernels.prepare(task()).kernels[0].name == "step"
    monkeypatch.setattr(cuda.Launch, "usage", lambda self, ordinal: [cuda.Usage(64, 0, 0)])
    assert "no room" in kernels.prepare(task())


@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
def test_all_kernels_are_compiled_once_when_the_first_is_asked_for(monkeypatch):
    made, going = [], threading.Event()

    def prepare(task):
        made.append(task.mode)
        assert task.mode == "forward" or going.wait(60)  # which is not waited for
        return task.mode

    monkeypatch.setattr(kernels, "prepare", prepare)
    model = make("kernels", absorbing=0)
    medium = Medium(model.slowness(model.start), model.layer, model.scheme)
    find = lambda mode: kernels.find(mode, medium, *model.gathers[1:])
    assert find("forward") == "forward"
    going.set()
    assert [find(mode) for mode in kernels.MODES[1:]] == ["keep"] * 3  # a line, and so none
    assert sorted(made) == sorted(kernels.MODES)


@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
def test_a_model_that_asks_for_kernels_says_why_xla_runs(monkeypatch):
    monkeypatch.setattr(kernels, "prepare", lambda task: "of this test")
    monkeypatch.setitem(propagation.ENGINES, "cpu", kernels)
    model = make("kernels", absorbing=0)
    medium = Medium(model.slowness(model.start), model.layer, model.scheme)
    with pytest.warns(ng.errors.PrecisionWarning, match="XLA computes .* because of this test"):
        assert propagation.choose(lambda: None, "born", medium, model.gathers) is None
    quiet = Medium(model.slowness(model.start), model.layer, model.scheme._replace(engine="auto"))
    assert propagation.choose(lambda: None, "born", quiet, model.gathers) is None
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        with pytest.warns(ng.errors.PrecisionWarning, match="of this test.*'xla', which says"):
            assert propagation.choose(lambda: None, "born", quiet, model.gathers) is None
    for change, told in (({"segment": 4}, "computed again"), ({"slab_axis": 0}, "share a shot")):
        scheme_of_it = quiet.scheme._replace(**change)
        other = Medium(model.slowness(model.start), model.layer, scheme_of_it)
        assert told in kernels.find("born", other, *model.gathers[1:])
    with pytest.raises(ng.InputError, match="engine"):
        make("cuda")
