"""The code of a shot on a CPU: the loop over the steps of step_code.py, sources and receivers.

All of a shot is one call, so that its fields stay in the caches of one core from step to step.
"""

from typing import NamedTuple

from ..core.llvm import BFLOAT, Code
from .step_code import ARRAYS, Grid, Step

# What the code is given: arrays, and numbers.
PLACES = ("%inject_at", "%inject_by", "%samples", "%record_at", "%record_by", "%data")
NUMBERS = ("steps", "stride", "injected", "recorded")
TABLE = (*ARRAYS[:-1], *PLACES, *NUMBERS)


class Task(NamedTuple):
    """What is done with a shot: a mode of kernels.py, and every how many steps there is a q."""

    mode: str
    every: int
    injected_corners: int  # cells that a point is spread over
    recorded_corners: int
    grid: Grid
    bfloat16: bool  # that is the type of q

    @property
    def kept(self) -> str:
        """The kind of the numbers of q."""
        return BFLOAT if self.bfloat16 else self.grid.real

    def write(self, past_caches: bool) -> str:
        """The text of all functions; "run" is the one to call."""
        back, fetched = self.mode == "adjoint", self.every * (self.mode in ("born", "adjoint"))
        text = Step(self.grid, back, "", fetched, self.kept).write("plain") + write_run(self)
        if self.mode == "forward":
            return text
        extra = "image" if back else self.mode
        special = Step(self.grid, back, extra, fetched, self.kept, past_caches)
        return text + special.write("special")


def write_run(task: Task) -> str:
    """The text of the loop over the steps of a shot: "run", a function of what `TABLE` names.

    In a step the fields are recorded, stepped, and samples are injected into what comes of it. The
    adjoint goes backwards, and every n-th step does more. Where it keeps q, which is rounded once,
    the step adds the samples itself.
    """
    mode, grid, every = task.mode, task.grid, task.every
    code, real = Code(grid.real, 1), grid.real
    at: dict[str, str] = {}
    for i, name in enumerate(TABLE):
        kind = "ptr" if name.startswith("%") else "i64"
        at[name] = code.new(f"load {kind}, ptr {code.place('%table', i, kind='i64')}")
    number = lambda array, i: code.new(f"load {real}, ptr {code.place(array, i)}")
    index = lambda array, i: code.new(f"load i64, ptr {code.place(array, i, kind='i64')}")
    moved = lambda array, i, by, kind=real: code.place(array, code.whole("mul", i, by), kind=kind)

    def inject(field: str, t: str, clear: bool = False) -> None:
        """Add the samples of a step to a field, or set it to zero there."""
        with code.loop(at["injected"]) as p:
            sample = number(moved(at["%samples"], p, at["steps"]), t)
            for corner in range(task.injected_corners):
                k = code.whole("add", code.whole("mul", p, task.injected_corners), corner)
                place, total = code.place(field, index(at["%inject_at"], k)), "0.0"
                if not clear:
                    force = code.new(f"fmul {real} {sample}, {number(at['%inject_by'], k)}")
                    total = code.new(f"fadd {real} {number(place, 0)}, {force}")
                code.put(f"store {real} {total}, ptr {place}")

    with code.loop(at["steps"]) as s:
        t, odd = s, code.new(f"trunc i64 {s} to i1")
        if mode == "adjoint":
            t = code.whole("sub", code.whole("sub", at["steps"], 1), s)
        u, v = (
            code.new(f"select i1 {odd}, ptr {at[x]}, ptr {at[y]}")
            for x, y in (("%v", "%u"), ("%u", "%v"))
        )
        block, part = code.whole("sdiv", t, every), code.whole("srem", t, every)
        first = code.new(f"icmp eq i64 {part}, 0")
        kept, coming = moved(at["%kept"], block, at["stride"], task.kept), u
        if mode in ("born", "adjoint"):  # where no q comes after this one, u, which is at hand
            by, end = 1, code.whole("sdiv", code.whole("sub", at["steps"], 1), every)
            if mode == "adjoint":
                by, end, part = -1, "0", code.whole("sub", every - 1, part)
            q = moved(at["%kept"], code.whole("add", block, by), at["stride"], task.kept)
            q = moved(q, part, grid.shape[0] * grid.parts[1] * grid.width // every, task.kept)
            none = code.new(f"icmp eq i64 {block}, {end}")
            coming = code.new(f"select i1 {none}, ptr {u}, ptr {q}")
        with code.loop(at["recorded"]) as p:
            total = "0.0"
            for corner in range(task.recorded_corners):
                k = code.whole("add", code.whole("mul", p, task.recorded_corners), corner)
                value = number(u, index(at["%record_at"], k))
                value = code.new(f"fmul {real} {value}, {number(at['%record_by'], k)}")
                total = code.new(f"fadd {real} {total}, {value}")
            place = code.place(moved(at["%data"], p, at["steps"]), t)
            code.put(f"store {real} {total}, ptr {place}")
        given = ", ".join(f"ptr {x}" for x in (u, v, *map(at.get, ARRAYS[2:-2]), kept, coming))
        if mode == "forward":
            code.put(f"call void @plain({given})")
            inject(v, t)
        else:
            with code.where(first):
                if mode == "keep":
                    inject(at["%other"], t)
                code.put(f"call void @special({given})")
                inject(at["%other"], t, clear=True) if mode == "keep" else inject(v, t)
            with code.where(code.new(f"xor i1 {first}, true")):
                code.put(f"call void @plain({given})")
                inject(v, t)
    return code.function("run", ["%table"], flush=True)
