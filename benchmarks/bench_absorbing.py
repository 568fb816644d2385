"""What the absorbing layer reflects, in decibels, by angle, velocity and thickness; a scan of it.

    python benchmarks/bench_absorbing.py [--scan]

A source and a receiver lie 10 cells from an edge with a layer behind it. The same is run in a model
that goes on for so long that nothing returns; the difference is the reflection. Its largest value
is compared with that of the wave at the receiver's mirror image behind the edge, which has gone the
same way without a layer: −40 dB is a coefficient of 0.01. Angles are those of the mirrored ray. At
6 Hz and 25 m the three velocities have 10, 20 and 31 cells a wavelength, and the layer is made for
the second.

Then a survey with all four edges near, and how much of its records comes from the edges; whether
anything grows in 20,000 steps; and what the layer costs. `--scan` prints the mean and the worst
over velocities and angles for several POWER and STRENGTH.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from tables import show_table

from natgrad import waves
from natgrad.errors import PrecisionWarning
from natgrad.waves import scheme
from natgrad.waves.acoustic import make_layer

SPACING, DT, FREQUENCY, DEPTH = 25.0, 0.0025, 6.0, 10
SHAPE, SOURCE, BEYOND = (420, 260), 150, 260
ANGLES = (0, 30, 45, 60, 75)
STEPS = {0.5: 700, 1.0: 450, 1.5: 380}  # the waves pass every receiver, and nothing else returns
LAYERS = (10, 20)
AROUND = 330  # cells that no wave crosses and comes back from within the records


class Edge(NamedTuple):
    """A model with one edge near, its velocity, and the waves without and behind the edge."""

    model: waves.Acoustic
    velocity: float
    free: np.ndarray
    mirrored: np.ndarray


def survey(extra: int, steps: int) -> waves.Survey:
    """With so many more cells above the edge, and then receivers at the mirror images too."""
    across = [SOURCE + round(2 * DEPTH * np.tan(np.radians(angle))) for angle in ANGLES]
    depths = (extra + DEPTH, extra - DEPTH) if extra else (DEPTH,)
    receivers = SPACING * np.array([[x, z] for z in depths for x in across])
    source = [[SOURCE * SPACING, (extra + DEPTH) * SPACING]]
    wavelet = waves.ricker(FREQUENCY, DT, steps)
    return waves.Survey((SHAPE[0], SHAPE[1] + extra), SPACING, DT, source, receivers, wavelet)


@eqx.filter_jit
def records(model: waves.Acoustic, theta: jnp.ndarray) -> jnp.ndarray:
    return model(theta)


def run(model: waves.Acoustic, velocity: float) -> np.ndarray:
    slowness = waves.squared_slowness(velocity)
    theta = jnp.full(model.survey.shape, slowness)
    return np.asarray(records(model, theta))[0]


def edge(cells: int, relative: float, order: int = 4) -> Edge:
    """An edge with a layer of so many cells, and a velocity relative to the layer's."""
    near, far = (survey(extra, STEPS[relative]) for extra in (0, BEYOND))
    velocity = relative * 0.5 * near.fastest_stable(order)
    make = lambda survey, cells: waves.Acoustic(
        survey,
        np.full(survey.shape, velocity),
        order=order,
        absorbing=cells,
        stored_every=1,
        dtype=jnp.float64,
    )
    seen = run(make(far, 0), velocity)
    return Edge(make(near, cells), velocity, seen[: len(ANGLES)], seen[len(ANGLES) :])


def reflection(edge: Edge) -> np.ndarray:
    """For every angle, in dB, with the layer of the constants as they are now."""
    survey, grid = edge.model.survey, edge.model.scheme
    layer = make_layer(survey, grid, jnp.float64)
    model = eqx.tree_at(lambda model: model.layer, edge.model, layer)
    back = np.abs(run(model, edge.velocity) - edge.free).max(axis=1)
    return 20 * np.log10(back / np.abs(edge.mirrored).max(axis=1))


def by_angle() -> Iterator[list]:
    """Reflection in dB by order, cells, velocity over the nominal one and angle."""
    for order, velocities in {4: STEPS, 8: (1.0,)}.items():
        for cells in LAYERS:
            for relative in velocities:
                yield [order, cells, relative, *reflection(edge(cells, relative, order))]


def scan() -> Iterator[list]:
    """Mean and worst reflection in dB."""
    chosen = scheme.POWER, scheme.STRENGTH
    for cells in LAYERS:
        edges = [edge(cells, relative) for relative in STEPS]
        for power in (2.0, 3.0, 4.0):
            for strength in (14.0, 17.0, 20.0, 24.0):
                scheme.POWER, scheme.STRENGTH = power, strength
                found = np.array([reflection(case) for case in edges])
                yield [cells, power, strength, found.mean(), found.max()]
    scheme.POWER, scheme.STRENGTH = chosen


def surveys() -> Iterator[list]:
    """A line of receivers at the usual two cells from the edge, over a section: what the edges add
    to the records, in dB, of receivers within 20 cells of the source, of those beyond 40, whose
    direct wave runs along the layer, and of all after the direct wave has passed."""
    section = waves.folded_layers((120, 60), SPACING)
    wide = np.pad(section, AROUND, mode="edge")
    line = waves.Survey.line(
        section.shape, SPACING, dt=DT, steps=1600, shots=1, frequency=FREQUENCY
    )
    sources, receivers = (x + AROUND * SPACING for x in (line.sources, line.receivers))
    beyond = waves.Survey(wide.shape, SPACING, DT, sources, receivers, line.wavelet)
    make = lambda survey, velocity, cells: waves.Acoustic(
        survey, velocity, absorbing=cells, stored_every=1, dtype=jnp.float64
    )
    truth = np.asarray(records(far := make(beyond, wide, 40), far.start))[0]
    offset = np.abs(receivers - sources)[:, :1]
    later = np.arange(line.steps) * DT > offset / section.min() + 0.55
    parts = (offset <= 20 * SPACING, offset > 40 * SPACING, later)
    for cells in LAYERS:
        near = make(line, section, cells)
        wrong = np.asarray(records(near, near.start))[0] - truth
        sizes = [[np.linalg.norm(x * part) for part in parts] for x in (wrong, truth)]
        yield [cells, *(20 * np.log10(np.divide(*sizes)))]


def growth() -> Iterator[list]:
    """The largest amplitude of the last 1000 of 20,000 steps over that of all, with the source in
    the corner of a small model, uniform close to the limit of dt or rough."""
    shape, steps = (24, 20), 20_000
    for order in (4, 8):
        for cells in LAYERS:
            corner = waves.Survey(
                shape, SPACING, DT, [[0, 0]], [[0, 0], [575, 75]], waves.ricker(6.0, DT, steps)
            )
            fastest = 0.999 * corner.fastest_stable(order)
            rough = 1500 + (fastest - 1500) * np.random.default_rng(0).random(shape)
            for name, velocity in {"uniform": np.full(shape, fastest), "rough": rough}.items():
                model = waves.Acoustic(
                    corner, velocity, order=order, absorbing=cells, stored_every=1
                )
                seen = np.abs(np.asarray(records(model, model.start)))[0].max(axis=0)
                yield [order, cells, name, float(seen[-1000:].max() / seen.max())]


def cost() -> Iterator[list]:
    """Microseconds of the CPU for a step of one shot at the size of bench_waves.py, with the layer
    and without one on a grid of as many cells; the shortest of five runs."""
    engines = {"natgrad": "auto", "natgrad, XLA": "xla"}
    for (name, engine), cells in product(engines.items(), LAYERS):
        times = []
        for inner, rim in (((306, 120), cells), ((306 + 2 * cells, 120 + 2 * cells), 0)):
            line = waves.Survey.line(inner, SPACING, dt=0.002, steps=600, shots=1, frequency=6.0)
            settings = {"absorbing": rim, "stored_every": 6, "engine": engine}
            model = waves.Acoustic(line, np.full(inner, 2500.0), **settings)
            seconds = []
            for _ in range(6):
                start = time.process_time()
                records(model, model.start).block_until_ready()
                seconds.append(time.process_time() - start)
            times.append(1e6 * min(seconds[1:]) / line.steps)
        yield [name, cells, *times, times[0] / times[1]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scan", action="store_true", help="several POWER and STRENGTH")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", PrecisionWarning)
    angles = [f"{angle}°" for angle in ANGLES]
    columns = ["order", "cells", "velocity", *angles]
    show_table("angles", columns, by_angle(), "Reflection in dB")
    columns = ["cells", "within 20 cells", "beyond 40 cells", "after the direct wave"]
    show_table("survey", columns, surveys(), "What the edges add to a survey's records, in dB")
    columns = ["order", "cells", "model", "last over largest"]
    show_table("growth", columns, growth(), "Amplitude after 20,000 steps")
    columns = ["engine", "cells", "with the layer µs", "without µs", "ratio"]
    show_table("cost", columns, cost(), "A step of one shot, CPU microseconds")
    if arguments.scan:
        columns = ["cells", "POWER", "STRENGTH", "mean", "worst"]
        show_table("scan", columns, scan(), "Mean and worst reflection in dB")


if __name__ == "__main__":
    main()
