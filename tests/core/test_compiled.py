"""Programs that are compiled hastily, and those that are not; loops."""

import os
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.core.compiled import (
    LITTLE_WORK,
    MANY_NUMBERS,
    compile_beside,
    jit_by_work,
    keep_code,
    loop,
)


def test_a_program_is_compiled_as_thoroughly_as_its_work_deserves():
    traced = []

    def function(x, weights, length):
        traced.append(length)
        step = lambda x, _: (jnp.sin(weights["a"] * x), None)
        return {"end": jax.lax.scan(step, x, None, length=length)[0]}, length

    choose, x = jit_by_work(function), np.linspace(0.0, 1.0, 8)
    make = lambda length: (jnp.asarray(x), {"a": jnp.asarray(0.7)}, length)
    given = {length: make(length) for length in (3, LITTLE_WORK)}
    little, much = (choose(*arguments) for arguments in given.values())
    assert little is not much
    assert choose(*given[3]) is little
    state, length = little(*given[3])
    expected = np.sin(0.7 * np.sin(0.7 * np.sin(0.7 * x)))
    np.testing.assert_allclose(state["end"], expected, rtol=1e-14)
    assert length == 3
    assert traced == [3, LITTLE_WORK]  # once for both forms


def test_many_numbers_in_a_loop_come_back_as_they_went():
    """With arrays, numbers of other types and what is no array between them."""
    start = {
        **{f"x{i}": jnp.asarray(float(i)) for i in range(MANY_NUMBERS)},
        "count": jnp.zeros((), int),
        "going": jnp.asarray(True),
        "rule": jnp.tanh,
        "vector": jnp.arange(3.0),
    }

    def step(state):
        moved = {k: state["rule"](x) + 1 for k, x in state.items() if k[0] in "xv"}
        count = state["count"] + 1
        return state | moved | {"count": count, "going": count < 4}

    rule = start.pop("rule")
    run = lambda given: loop(lambda state: state["going"], step, given | {"rule": rule})
    traced, plain = jax.jit(lambda given: {**run(given), "rule": None})(start), run(start)
    assert plain.pop("rule") is rule
    for name, value in plain.items():
        np.testing.assert_allclose(traced[name], value, rtol=1e-6, err_msg=name)
        assert traced[name].dtype == value.dtype


def test_a_program_that_was_compiled_beside_is_found_and_what_fails_there_fails_in_the_call():
    traced = []

    @eqx.filter_jit
    def double(x, name):
        traced.append((name, threading.current_thread()))
        if name == "bad":
            raise ValueError("no such name")
        return 2 * x

    before, x = set(threading.enumerate()), jnp.arange(3.0)
    for name in ("good", "bad"):
        compile_beside(double, x, name)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert double(x, "good").tolist() == [0.0, 2.0, 4.0]
    assert threading.current_thread() not in dict(traced).values()
    with pytest.raises(ValueError, match="no such name"):
        double(x, "bad")


def test_machine_code_is_kept_by_what_decides_it_and_made_anew_where_it_is_damaged(
    monkeypatch, tmp_path
):
    folder, made = tmp_path / "programs", []
    monkeypatch.setenv("NATGRAD_CACHE", str(folder))

    def get(told):
        return keep_code(told, lambda: made.append(told) or b"code of %d" % len(made))

    assert get(["a", 1]) == get(["a", 1]) == b"code of 1"
    assert get(["a", 2]) == b"code of 2"
    first, second = sorted(folder.iterdir(), key=lambda path: path.read_bytes()[-1])
    first.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:-1])
    assert (get(["a", 1]), get(["a", 2])) == (b"code of 3", b"code of 4")
    assert get(["a", 1]) == b"code of 3"
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setenv("NATGRAD_CACHE", "")  # nothing is kept
    assert (get(["a", 1]), get(["a", 1])) == (b"code of 5", b"code of 6")
    monkeypatch.setenv("NATGRAD_CACHE", str(first))  # no folder
    assert (get(["a", 1]), get(["a", 1])) == (b"code of 7", b"code of 8")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners of files")
def test_code_that_others_may_have_written_is_made_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("NATGRAD_CACHE", str(tmp_path))
    assert keep_code("told", lambda: b"theirs") == b"theirs"
    file, user = next(tmp_path.iterdir()), os.stat(tmp_path).st_uid
    with monkeypatch.context() as patch:
        if user == 0:
            os.chown(file, 12345, -1)
        else:
            patch.setattr(os, "getuid", lambda: user + 1)
        assert keep_code("told", lambda: b"ours") == b"ours"
    if user == 0:
        assert keep_code("told", lambda: b"again") == b"ours"
    for mode in (0o606, 0o664):  # anyone, a group
        os.chmod(next(tmp_path.iterdir()), mode)
        umask, closed = os.umask(0), b"no longer %o" % mode
        try:
            assert keep_code("told", lambda closed=closed: closed) == closed
        finally:
            os.umask(umask)
        assert keep_code("told", lambda: b"again") == closed


def test_code_is_found_neither_through_a_link_nor_under_another_name(monkeypatch, tmp_path):
    monkeypatch.setenv("NATGRAD_CACHE", str(tmp_path / "programs"))
    assert keep_code("told", lambda: b"code") == b"code"
    file, elsewhere = next((tmp_path / "programs").iterdir()), tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    held = elsewhere.read_bytes()
    assert keep_code("told", lambda: b"another") == b"another"
    assert elsewhere.read_bytes() == held
    assert not file.is_symlink()
    keep_code("more", lambda: b"more")
    other = next(path for path in file.parent.iterdir() if path != file)
    file.replace(other)
    assert keep_code("more", lambda: b"again") == b"again"


def test_of_those_who_want_the_same_code_one_makes_it(monkeypatch, tmp_path):
    monkeypatch.setenv("NATGRAD_CACHE", str(tmp_path))
    going, made, found = threading.Event(), [], []

    def make():
        made.append(None)
        assert going.wait(60)
        return b"code"

    threads = [
        threading.Thread(target=lambda: found.append(keep_code("told", make))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    threading.Timer(0.3, going.set).start()  # when all of them want it
    for thread in threads:
        thread.join()
    assert found == [b"code"] * 4
    assert len(made) == 1
