"""Waveform inversion over processes: strong scaling, and what the processes tell each other.

    python benchmarks/bench_processes.py [--processes 2] [--shots 20] [--steps 1000]

306 × 120 cells of 25 m and 20 around them, 306 receivers, float32, order 4; natural gradients in L²
with two steps of CG. One process on one core against several on a core each, joined by
jax.distributed on loopback. The seconds of an iteration are the shortest of four. The collectives
are read from the compiled programs, and their time is measured by itself at these sizes; so
the time of n processes is predicted from that of one. The last table applies the same model to a
cluster, from what one GPU has been measured to take.
"""

import argparse
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tables import show_table

CELLS = (306, 120)
ONE_GPU = Path(__file__).resolve().parents[1] / "docs/evidence/kernels_gpu.json"
BYTES = {"f32": 4, "f64": 8, "s32": 4, "pred": 1}
SIZES = [1, 2**10, 2**14, 2**16, 2**18, 2**20]  # numbers in an all-reduce


def problem(shots: int, steps: int):
    """The inversion from a blurred model, and its method."""
    import jax.numpy as jnp
    import numpy as np

    import natgrad as ng
    from natgrad import waves

    velocity = waves.faulted_layers(CELLS, 25.0)
    line = {"dt": 0.002, "steps": steps, "shots": shots, "frequency": 6.0}
    survey = waves.Survey.line(velocity.shape, 25.0, **line)
    start = np.maximum(waves.smoothed(velocity, 10.0), 1500.0)
    data = np.asarray(waves.Acoustic(survey, velocity)(waves.squared_slowness(velocity)))
    model = waves.Acoustic(survey, start)
    loss = ng.LeastSquares(data, survey.gather_grid)
    method = ng.NaturalGradient(ng.L2(survey.gather_grid), solver=ng.CG(0.0, max_iterations=2))
    theta = jnp.asarray(waves.squared_slowness(start), jnp.float32)
    return ng.Problem(model, loss), theta, method


def collectives(spread, theta) -> dict[str, list[int]]:
    """Bytes of every all-reduce in the programs of ρ, Zη and Zᵀξ."""
    import equinox as eqx

    model = spread.model
    unravel = lambda flat: flat.reshape(theta.shape)
    products = eqx.filter_jit(lambda model, flat: model.products(unravel, flat))
    kept = products(model, theta.ravel())
    tasks = {
        "forward": (eqx.filter_jit(lambda model, theta: model(theta)), model, theta),
        "Born": (eqx.filter_jit(lambda kept, eta: kept.push(eta)), kept, theta.ravel()),
        "adjoint": (eqx.filter_jit(lambda kept, xi: kept.pull(xi)), kept, kept.rho),
    }
    found = {}
    for name, (program, *arguments) in tasks.items():
        text = program.lower(*arguments).compile().compiled.as_text()
        shapes = re.findall(r"= (\w+)\[([\d,]*)\]\S* all-reduce", text)
        found[name] = [
            BYTES[kind] * math.prod(map(int, filter(None, sides.split(","))))
            for kind, sides in shapes
        ]
    return found


def all_reduce_seconds(mesh) -> dict[int, float]:
    """The shortest of many all-reduces, by their bytes."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    spread = NamedSharding(mesh, P("devices"))
    total = jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, P()))
    found = {}
    for size in SIZES:
        rows = jax.make_array_from_callback(
            (mesh.size, size), spread, lambda _, size=size: np.ones((1, size), np.float32)
        )
        spans = []
        for _ in range(30):
            begin = time.perf_counter()
            jax.block_until_ready(total(rows))
            spans.append(time.perf_counter() - begin)
        found[4 * size] = min(spans)
    return found


def child(args) -> None:
    """One process of several; the first prints what it measured."""
    number, count = args.number, args.count
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    import jax

    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{args.port}", count, number)
    import numpy as np

    import natgrad as ng
    from natgrad.devices import Devices

    mesh = jax.make_mesh((count,), ("devices",)) if count > 1 else None
    inversion, theta, method = problem(args.shots, args.steps)
    stop = ng.Stop(iterations=6, gradient=0.0)
    run = ng.minimize(inversion, theta, method, stop=stop, mesh=mesh)
    seconds = np.diff(run.history["seconds"])[1:-1]  # the last row is of a point not linearised
    counts = {n: int(np.diff(run.history[n])[-2]) for n in ("forward", "linearised", "adjoint")}
    found = {"seconds": float(seconds.min()), "loss": run.loss, "counts": counts}
    if mesh is not None:
        devices = Devices.over(mesh)
        spread, _ = devices.spread(inversion, theta)
        found["collectives"] = collectives(spread, devices.replicate(theta))
        found["all-reduce"] = all_reduce_seconds(mesh)
    if number == 0:
        print(json.dumps(found))


def measured(count: int, args) -> dict:
    """What `count` processes measure."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--shots", str(args.shots), "--steps", str(args.steps)]
    command += ["--count", str(count), "--port", str(port), "--number"]
    started = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(count)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("a process failed")
    return json.loads(outputs[0].splitlines()[-1])


def interpolated(table: dict[str, float], size: int) -> float:
    """The seconds of an all-reduce of this size."""
    import numpy as np

    sizes = sorted(map(int, table))
    return float(np.interp(size, sizes, [table[str(n)] for n in sizes]))


def cluster() -> Iterator[list]:
    """1,000 shots of the same survey on 64 GPUs, on paper, from the times of one.

    Those are of `bench_kernels.py time`; without its file there is nothing to go by.
    """
    if not ONE_GPU.exists():
        return
    kept = json.loads(ONE_GPU.read_text(encoding="utf-8"))["tables"]
    rows = next(table["rows"] for table in kept if table["name"] == "times")
    times = {row[2]: 1e-3 * row[4] for row in rows if row[:2] == ["2D", "kernels"]}
    forward, pair, measured_shots = times["forward"], times["Gauss-Newton"], 21
    shots, gpus, image = 1000, 64, 4 * CELLS[0] * CELLS[1]
    latency, bandwidth = 20e-6, 40e9  # of a hop and of a link: assumed, InfiniBand NDR
    steps = 10  # of CG in an iteration
    each = -(-shots // gpus)
    propagations = (steps + 2) * forward + steps * pair / 2 + (steps + 1) * pair / 2
    one = propagations * shots / measured_shots
    busiest = propagations * each / measured_shots
    hops = 2 * (gpus - 1).bit_length()
    reduce = hops * latency + 2 * (gpus - 1) / gpus * image / bandwidth
    talk = (steps + 1) * reduce + 2 * steps * hops * latency
    yield ["one GPU, s", one]
    yield [f"{gpus} GPUs, waves, ms", 1e3 * busiest]
    yield [f"{gpus} GPUs, talk, ms", 1e3 * talk]
    yield ["sent in an iteration, MB", (steps + 1) * image / 1e6]
    yield ["efficiency", one / gpus / (busiest + talk)]
    yield ["of which uneven shots", shots / gpus / each]
    yield ["of which talk", busiest / (busiest + talk)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shots", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--number", type=int)
    parser.add_argument("--count", type=int)
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    if args.number is not None:
        child(args)
        return
    one, many = measured(1, args), measured(args.processes, args)
    n = args.processes
    uses = {"forward": "forward", "Born": "linearised", "adjoint": "adjoint"}
    talk = sum(
        many["counts"][count] * interpolated(many["all-reduce"], size)
        for program, count in uses.items()
        for size in many["collectives"][program]
    )
    model = one["seconds"] * -(-args.shots // n) / args.shots + talk
    ratio = one["seconds"] / many["seconds"]
    rows = [
        ["one process on one core", one["seconds"], 1.0, one["loss"]],
        [f"{n} processes, a core each", many["seconds"], ratio, many["loss"]],
        ["predicted", model, one["seconds"] / model, None],
    ]
    title = f"An iteration: {args.shots} shots, {args.steps} steps, {many['counts']}"
    show_table("iteration", ["who", "seconds", "times as fast", "loss"], rows, title)
    columns = ["talk, ms", "measured over predicted"]
    show_table("model", columns, [[1e3 * talk, many["seconds"] / model]])
    rows = [[name, len(sizes), sum(sizes) / 1e3] for name, sizes in many["collectives"].items()]
    show_table("collectives", ["program", "all-reduces", "kB"], rows)
    rows = [[int(size), 1e6 * seconds] for size, seconds in many["all-reduce"].items()]
    show_table("all_reduce", ["bytes", "µs"], rows)
    title = "1,000 shots on 64 GPUs, on paper: 20 µs a hop and 40 GB/s are assumed"
    show_table("cluster", ["on paper", "value"], cluster(), title)


if __name__ == "__main__":
    main()
