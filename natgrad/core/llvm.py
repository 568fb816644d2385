"""Machine code for this CPU: LLVM instructions written out by Python, compiled when first used.

`Code` collects the instructions of a function on vectors as wide as the registers of the CPU, so
that what is fused, what stays in registers and what is shifted is decided where it is written, not
guessed by a compiler. `Value` has the operators, so a formula reads as one:

    code = Code("float", 16)
    with code.loop(1024, step=16) as i:
        code.store(code.constant(2) * code.load("%x", i), "%y", i)
    text = code.function("twice", ["%x", "%y"])
    address = compile_code(text, "twice")     # of a C function of two pointers

Products and sums may be contracted to one rounding; nothing else is reordered. It needs llvmlite,
the part of numba that is LLVM. What else there is: numba itself compiles plain loops, and leaves
vectors, shifts and registers to what the compiler finds in them; an extension module would have to
be built for every platform and Python.
"""

import importlib
import importlib.util
import platform
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from .compiled import keep_code

# The bits of the control register that flush results and arguments.
FLUSH = """%old = alloca i32
%new = alloca i32
call void @llvm.x86.sse.stmxcsr(ptr %old)
%bits = load i32, ptr %old
%more = or i32 %bits, 32832
store i32 %more, ptr %new
call void @llvm.x86.sse.ldmxcsr(ptr %new)""".splitlines()
FOOT = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
!0 = !{i32 1}
"""

BFLOAT = "i16"  # bfloat16, by its bits

# Loops and vectors are as they are written.
OPTIONS = {
    "speed_level": 2,
    "loop_vectorization": False,
    "slp_vectorization": False,
    "loop_unrolling": False,
}
LEVEL = 3  # of the choice of instructions


class Value:
    """A vector: the result of an instruction, or a constant."""

    def __init__(self, code: "Code", name: str):
        self.code, self.name = code, name

    def __add__(self, other: "Value") -> "Value":
        return self.code.combine("fadd", self, other)

    def __sub__(self, other: "Value") -> "Value":
        return self.code.combine("fsub", self, other)

    def __mul__(self, other: "Value") -> "Value":
        return self.code.combine("fmul", self, other)


class Code:
    """The instructions of a function, on vectors of `width` numbers, "float" or "double".

    Arrays are pointers, and places in them integers, both by their names in LLVM.
    """

    def __init__(self, real: str, width: int):
        self.real, self.width = real, width
        self.size = 4 if real == "float" else 8
        self.vector = f"<{width} x {real}>"
        self._lines: list[str] = []
        self._count = 0

    def put(self, text: str) -> None:
        """An instruction without a result, or a label."""
        self._lines.append(text)

    def new(self, text: str) -> str:
        """An instruction, and the name of its result."""
        self._count += 1
        self.put(f"%x{self._count} = {text}")
        return f"%x{self._count}"

    def whole(self, operation: str, a: Any, b: Any) -> str:
        """That of two integers, such as "add"."""
        return self.new(f"{operation} i64 {a}, {b}")

    def clip(self, x: str, low: int, high: int) -> str:
        """The integer from `low` to `high` that is nearest."""
        for bound, relation in ((low, "slt"), (high, "sgt")):
            beyond = self.new(f"icmp {relation} i64 {x}, {bound}")
            x = self.new(f"select i1 {beyond}, i64 {bound}, i64 {x}")
        return x

    def combine(self, operation: str, a: Value, b: Value) -> Value:
        return Value(self, self.new(f"{operation} contract {self.vector} {a.name}, {b.name}"))

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """ab + c as one operation, so that LLVM does not compute ab once for several sums."""
        given = ", ".join(f"{self.vector} {x.name}" for x in (a, b, c))
        kind = f"v{self.width}f{8 * self.size}"
        return Value(self, self.new(f"call {self.vector} @llvm.fmuladd.{kind}({given})"))

    def constant(self, x: float) -> Value:
        rounded = float(np.float32(x)) if self.real == "float" else float(x)
        number = f"{self.real} 0x{struct.pack('>d', rounded).hex().upper()}"
        return Value(self, f"<{', '.join([number] * self.width)}>")

    def place(self, array: str, at: Any, more: int = 0, kind: str | None = None) -> str:
        """The address of an element; `more` is known now, and costs nothing later."""
        kind = kind or self.real
        base = self.new(f"getelementptr {kind}, ptr {array}, i64 {at}")
        return self.new(f"getelementptr {kind}, ptr {base}, i64 {more}") if more else base

    def load(
        self,
        array: str,
        at: Any,
        more: int = 0,
        count: int | None = None,
        aligned: bool = True,
        kind: str | None = None,
    ) -> Value:
        """A vector; zeros after the first `count` elements. Those of kind `BFLOAT` are bfloat16."""
        count, part = count or self.width, f"<{count or self.width} x {kind or self.real}>"
        size = 2 if kind == BFLOAT else self.size
        align = size * self.width if aligned and count == self.width else size
        place = self.place(array, at, more, kind)
        found = self.new(f"load {part}, ptr {place}, align {align}")
        if kind == BFLOAT:
            found = self._widen(found, count)
        if count == self.width:
            return Value(self, found)
        lanes = [min(i, count) for i in range(self.width)]
        return self._shuffle(f"<{count} x {self.real}>", found, "zeroinitializer", lanes)

    def store(
        self,
        x: Value,
        array: str,
        at: Any,
        more: int = 0,
        count: int | None = None,
        aligned: bool = True,
        past_caches: bool = False,
        kind: str | None = None,
    ) -> None:
        """A vector, or its first `count` elements; those of kind `BFLOAT` rounded to bfloat16."""
        count, part = count or self.width, f"<{count or self.width} x {kind or self.real}>"
        size = 2 if kind == BFLOAT else self.size
        hint = ", !nontemporal !0" if past_caches else ""
        align = size * self.width if aligned else size
        if count < self.width:
            align, hint = size, ""
            x = self._shuffle(self.vector, x.name, "poison", range(count))
        name = self._narrow(x.name, count) if kind == BFLOAT else x.name
        place = self.place(array, at, more, kind)
        self.put(f"store {part} {name}, ptr {place}, align {align}{hint}")

    def fetch(self, array: str, at: Any, more: int = 0, kind: str | None = None) -> None:
        """Have a line come from memory into the caches; an address outside of it does no harm."""
        place = self.place(array, at, more, kind)
        self.put(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")

    def forget(self, array: str) -> None:
        """Load from an array anew what comes next. LLVM keeps all that has been loaded once: what
        there are no registers for, it writes elsewhere and loads from there."""
        self.put(f'call void asm sideeffect "", "r,~{{memory}}"(ptr {array})')

    def spread(self, array: str, at: Any, more: int = 0) -> Value:
        """One element in all places of a vector."""
        place = self.place(array, at, more)
        number = self.new(f"load {self.real}, ptr {place}, align {self.size}")
        first = self.new(f"insertelement {self.vector} poison, {self.real} {number}, i64 0")
        return self._shuffle(self.vector, first, "poison", [0] * self.width)

    def pick(self, vectors: dict[int, Value], places: Sequence[int | None]) -> Value:
        """The elements at these places of vectors that lie one after the other; zeros for None."""
        total = self.constant(0)
        for k in sorted({place // self.width for place in places if place is not None}):
            lanes = list(range(self.width))
            for i, place in enumerate(places):
                if place is not None and place // self.width == k:
                    lanes[i] = self.width + place % self.width
            total = self._shuffle(self.vector, total.name, vectors[k].name, lanes)
        return total

    def _widen(self, upper: str, count: int) -> str:
        """Numbers from bfloat16, which is a float without its last 16 bits."""
        single, bits = f"<{count} x float>", f"<{count} x i32>"
        low = self.new(f"zext <{count} x {BFLOAT}> {upper} to {bits}")
        high = self.new(f"shl {bits} {low}, {_splat(16, count)}")
        x = self.new(f"bitcast {bits} {high} to {single}")
        return x if self.size == 4 else self.new(f"fpext {single} {x} to <{count} x double>")

    def _narrow(self, name: str, count: int) -> str:
        """Numbers rounded to bfloat16: to the nearest, to an even one between two."""
        single, bits = f"<{count} x float>", f"<{count} x i32>"
        if self.size == 8:
            name = self.new(f"fptrunc <{count} x double> {name} to {single}")
        whole = self.new(f"bitcast {single} {name} to {bits}")
        odd = self.new(f"lshr {bits} {whole}, {_splat(16, count)}")
        odd = self.new(f"and {bits} {odd}, {_splat(1, count)}")
        whole = self.new(f"add {bits} {whole}, {_splat(0x7FFF, count)}")
        whole = self.new(f"add {bits} {whole}, {odd}")
        high = self.new(f"lshr {bits} {whole}, {_splat(16, count)}")
        return self.new(f"trunc {bits} {high} to <{count} x {BFLOAT}>")

    def _shuffle(self, kind: str, a: str, b: str, lanes: Any) -> Value:
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        given = f"{kind} {a}, {kind} {b}, <{len(lanes)} x i32> <{mask}>"
        return Value(self, self.new(f"shufflevector {given}"))

    @contextmanager
    def loop(
        self, stop: Any, step: int = 1, start: Any = 0, carried: list[Value] | None = None
    ) -> Iterator[str]:
        """What is written inside, for an integer from `start` to `stop`.

        `carried` are vectors that stay in registers from one pass to the next: the list has those
        of the pass inside, and what it has at the end is for the next.
        """
        self._count += 1
        n, i = self._count, f"%i{self._count}"
        for line in (f"br label %before{n}", f"before{n}:", f"br label %head{n}", f"head{n}:"):
            self.put(line)
        self.put(f"{i} = phi i64 [{start}, %before{n}], [{i}n, %next{n}]")
        given, before = carried or [], len(self._lines)
        names = [x.name for x in given]
        for j in range(len(names)):
            self.put("")  # what comes from the pass before is known at the end
            given[j] = Value(self, f"{i}c{j}")
        self.put(f"%more{n} = icmp slt i64 {i}, {stop}")
        self.put(f"br i1 %more{n}, label %body{n}, label %after{n}")
        self.put(f"body{n}:")
        yield i
        for j, (name, x) in enumerate(zip(names, given, strict=True)):
            pair = f"[{name}, %before{n}], [{x.name}, %next{n}]"
            self._lines[before + j] = f"{i}c{j} = phi {self.vector} {pair}"
        for line in (f"br label %next{n}", f"next{n}:", f"{i}n = add i64 {i}, {step}"):
            self.put(line)
        self.put(f"br label %head{n}")
        self.put(f"after{n}:")

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """What is written inside, if the condition holds."""
        self._count += 1
        n = self._count
        self.put(f"br i1 {condition}, label %then{n}, label %after{n}")
        self.put(f"then{n}:")
        yield
        self.put(f"br label %after{n}")
        self.put(f"after{n}:")

    def function(self, name: str, pointers: list[str], flush: bool = False) -> str:
        """The text of the function. No two of its pointers lead to the same memory.

        `flush` takes numbers too small for full precision as zeros, as XLA does. They appear ahead
        of every wave front, and take some CPUs a hundred times as long.
        """
        given, body = ", ".join(f"ptr noalias {pointer}" for pointer in pointers), self._lines
        if flush and platform.machine().lower() in ("x86_64", "amd64"):
            body = [*FLUSH, *body, "call void @llvm.x86.sse.ldmxcsr(ptr %old)"]
        # else vectors for which there is no register lie across two lines of the cache
        head = f"define void @{name}({given}) alignstack(64) {{"
        return "\n".join([head, *body, "ret void", "}", ""])


def _splat(number: int, count: int) -> str:
    return f"<{', '.join([f'i32 {number}'] * count)}>"


def missing() -> str | None:
    """Why there is no compiler, or None."""
    if importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed (pip install 'natgrad[cpu]')"
    return None


@cache
def _library() -> Any:
    llvm = importlib.import_module("llvmlite.binding")
    with suppress(RuntimeError):  # newer versions do it by themselves, and say so
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def vector_bytes() -> int:
    """The size of a vector register of this CPU."""
    features = _library().get_host_cpu_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx") else 16


def _declare_fused(text: str) -> str:
    """The declarations of ab + c for the vectors of a text."""
    lines = []
    for count, bits in sorted(set(re.findall(r"@llvm\.fmuladd\.v(\d+)f(\d+)", text))):
        kind = f"<{count} x {'float' if bits == '32' else 'double'}>"
        lines.append(f"declare {kind} @llvm.fmuladd.v{count}f{bits}({kind}, {kind}, {kind})")
    return "\n".join(lines)


_engines: list[Any] = []  # code that is called must not be collected


def compile_code(text: str, name: str) -> int:
    """The address of one of the functions of a text, whose code is kept for other processes."""
    llvm = _library()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=cpu, features=features, opt=LEVEL, jit=True)
    whole = text + FOOT + _declare_fused(text)

    def compile_text() -> bytes:
        module = llvm.parse_assembly(whole)
        options = llvm.create_pipeline_tuning_options()
        for option, value in OPTIONS.items():
            setattr(options, option, value)
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return machine.emit_object(module)

    compiler = [list(llvm.llvm_version_info), LEVEL, OPTIONS]
    told = [whole, str(target.triple), cpu, features, compiler]
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(keep_code(told, compile_text)))
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address(name)
