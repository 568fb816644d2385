"""How kernels are started: which calls of the driver keep Python's lock."""

import ctypes

from natgrad.core import cuda


def test_a_launch_lets_go_of_the_lock_only_when_it_starts(monkeypatch):
    launch = cuda.Launch((), (), "sm_90", (cuda.Kernel("step", 1, 32),), rounds=2)
    asked = []
    monkeypatch.setattr(cuda, "_ask", lambda kind, function, *_: asked.append((function, kind)))
    monkeypatch.setattr(cuda, "_functions", {(0, launch): [ctypes.c_void_p(1)]})
    launch.start([2**40], 0)
    started = ("cuLaunchKernelEx", "cuda")
    before, after = ["cuStreamGetCtx", "cuCtxPushCurrent_v2"], "cuCtxPopCurrent_v2"
    assert asked == [*((name, "quick") for name in before), started, started, (after, "quick")]


def test_a_library_is_loaded_with_the_lock_kept_where_that_is_asked_for(monkeypatch):
    for load in ("CDLL", "PyDLL"):
        monkeypatch.setattr(ctypes, load, lambda path, load=load: (load, path))
    find = cuda._library.__wrapped__
    assert find("cuda") == ("CDLL", "libcuda.so.1")
    assert find("quick") == ("PyDLL", "libcuda.so.1")
    assert find("nvrtc") == ("CDLL", "libnvrtc.so.13")


def test_nvrtc_is_loaded_after_the_part_that_it_may_not_find_itself(monkeypatch, tmp_path):
    parts = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]
    for name in [*parts, "libnvrtc-builtins.alt.so.13.0"]:
        (tmp_path / "lib" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "lib" / name).touch()
    loaded = []

    def load(path):
        if "/" not in path:
            raise OSError("not in the loader's path")
        loaded.append(path)

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    cuda._library.__wrapped__("nvrtc")
    assert loaded == [str(tmp_path / "lib" / name) for name in parts]
