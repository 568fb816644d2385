"""Finished parts of a study on disk: the same comes back, damage is named, threads are left."""

import threading
import time
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from natgrad import InputError
from natgrad_studies.keeping import Kept
from natgrad_studies.running import threads


@dataclass(frozen=True)
class Inner:
    values: np.ndarray
    number: float


@dataclass(frozen=True)
class Outer:
    method: object
    parts: dict[int, Inner]
    pairs: list[tuple[float, str | None]]
    theta: tuple[object, ...]
    flag: bool


def _outer(method: object) -> Outer:
    parts = {
        8: Inner(np.arange(3), np.float64(0.1)),
        16: Inner(np.eye(2, dtype=np.float32), -1e300),
    }
    return Outer(method, parts, [(float("inf"), None), (0.3, "a")], (jnp.ones(2), ()), True)


def _refuses() -> Outer:
    raise AssertionError("computed again")


def test_a_part_comes_back_with_every_type(tmp_path):
    kept, method = Kept(tmp_path / "runs", Outer, Inner), lambda: None
    made = kept.part("one", lambda: _outer(method), method=method)
    found = kept.part("one", _refuses, method=method)
    assert found.method is method
    assert (found.pairs, found.flag) == (made.pairs, made.flag)
    assert list(found.parts) == [8, 16]
    for n, inner in found.parts.items():
        assert inner.values.dtype == made.parts[n].values.dtype
        assert np.array_equal(inner.values, made.parts[n].values)
        assert (type(inner.number), inner.number) == (float, made.parts[n].number)
    assert isinstance(found.theta, tuple)
    assert np.array_equal(found.theta[0], [1.0, 1.0])


def test_without_a_folder_nothing_is_kept():
    calls: list[int] = []
    for _ in range(2):
        Kept(None).part("one", lambda: calls.append(1))
    assert len(calls) == 2


def test_what_cannot_be_kept_leaves_no_file(tmp_path):
    with pytest.raises(TypeError, match="function cannot be kept"):
        Kept(tmp_path, Outer, Inner).part("one", lambda: _outer(lambda: None))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "other part", "other classes"])
def test_a_file_that_is_not_the_part_is_refused_by_name(tmp_path, damage):
    kept, path = Kept(tmp_path, Inner), tmp_path / "one.npz"
    kept.part("one", lambda: Inner(np.arange(3), 1.0))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "other part":
        path = path.rename(tmp_path / "two.npz")
    else:
        kept = Kept(tmp_path, Outer)
    with pytest.raises(InputError, match=str(path)):
        kept.part(path.stem, _refuses)


def test_an_exception_cancels_what_waits_in_a_pool():
    release, began = threading.Event(), []

    def work(number: int) -> None:
        began.append(number)
        release.wait()

    waiting = []

    def interrupted() -> None:
        with threads(1) as pool:
            waiting.extend(pool.submit(work, number) for number in range(3))
            while not began:
                time.sleep(0.001)
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert all(future.cancelled() for future in waiting[1:])
    finally:
        release.set()
    waiting[0].result()
    assert began == [0]
