"""What the absorbing layer reflects, in decibels, by angle, velocity and thickness; a scan of it.

    python benchmarks/bench_absorbing.py [--scan]

A source and a receiver lie 10 cells from an edge with a layer behind it. The same is run in a model
that goes on for so long that nothing returns; the difference is the reflection. Its largest value
is compared with that of the wave at the receiver's mirror image behind the edge, which has gone the
same way without a layer: −40 dB is a coefficient of 0.01. Angles are those of the mirrored ray. At
6 Hz and 25 m the three velocities have 10, 20 and 31 cells a wavelength, and the layer is made for
the second. "Damping alone" is without the term that matches the layer to leaving waves.

Then a survey with all four edges near, and how much of its records comes from the edges. `--scan`
prints the mean and the worst over velocities and angles up to 60° for several POWER and STRENGTH.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from tables import show_table

from natgrad import waves
from natgrad.errors import PrecisionWarning
from natgrad.waves import scheme
from natgrad.waves.scheme import Layer

SPACING, DT, FREQUENCY, DEPTH = 25.0, 0.0025, 6.0, 10
SHAPE, SOURCE, BEYOND = (420, 260), 150, 260
ANGLES = (0, 30, 45, 60, 75)
STEPS = {0.5: 700, 1.0: 450, 1.5: 380}  # the waves pass every receiver, and nothing else returns
LAYERS = (10, 20, 40)
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
    theta = jnp.full(model.survey.shape, slowness, jnp.float32)
    return np.asarray(records(model, theta))[0]


def edge(cells: int, relative: float) -> Edge:
    """An edge with a layer of so many cells, and a velocity relative to the layer's."""
    near, far = (survey(extra, STEPS[relative]) for extra in (0, BEYOND))
    velocity = relative * 0.5 * near.fastest_stable(4)
    make = lambda survey, cells: waves.Acoustic(
        survey, np.full(survey.shape, velocity), absorbing=cells, memory=2**50
    )
    seen = run(make(far, 0), velocity)
    return Edge(make(near, cells), velocity, seen[: len(ANGLES)], seen[len(ANGLES) :])


def reflection(edge: Edge, change: Callable[[Layer], Layer]) -> np.ndarray:
    """For every angle, in dB."""
    model = eqx.tree_at(lambda model: model.layer, edge.model, replace_fn=change)
    back = np.abs(run(model, edge.velocity) - edge.free).max(axis=1)
    return 20 * np.log10(back / np.abs(edge.mirrored).max(axis=1))


def alone(layer: Layer) -> Layer:
    return layer._replace(slope=jnp.zeros_like(layer.slope))


def by_angle() -> Iterator[list]:
    """Reflection in dB by cells, velocity over the nominal one and angle, and without the term."""
    for cells in LAYERS:
        for relative in STEPS:
            case = edge(cells, relative)
            found = reflection(case, lambda layer: layer)
            yield [cells, relative, *found, reflection(case, alone)[0]]


def scan() -> Iterator[list]:
    """Mean and worst reflection in dB for angles up to 60°."""
    upto = ANGLES.index(60) + 1
    chosen = scheme.POWER, scheme.STRENGTH
    for cells in LAYERS:
        edges = [edge(cells, relative) for relative in STEPS]
        for power in (2.0, 3.0, 4.0):
            for strength in (4.0, 5.0, 6.0, 8.0, 10.0):
                scheme.POWER, scheme.STRENGTH = power, strength
                found = np.array([reflection(case, lambda _, e=case: of(e)) for case in edges])
                mean, worst = found[:, :upto].mean(), found[:, :upto].max()
                yield [cells, power, strength, mean, worst]
    scheme.POWER, scheme.STRENGTH = chosen


def of(edge: Edge) -> Layer:
    """The layer of the constants as they are now."""
    survey, cells = edge.model.survey, edge.model.scheme.absorbing
    typical = 0.5 * survey.fastest_stable(4)
    return Layer.around(survey.shape, cells, survey.spacing, typical, jnp.float32)


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
        survey, velocity, absorbing=cells, memory=2**50
    )
    truth = np.asarray(records(far := make(beyond, wide, 40), far.start))[0]
    offset = np.abs(receivers - sources)[:, :1]
    later = np.arange(line.steps) * DT > offset / section.min() + 0.55
    parts = (offset <= 20 * SPACING, offset > 40 * SPACING, later)
    for cells in LAYERS:
        for name, change in {"as it is": lambda layer: layer, "damping alone": alone}.items():
            near = make(line, section, cells)
            near = eqx.tree_at(lambda model: model.layer, near, replace_fn=change)
            wrong = np.asarray(records(near, near.start))[0] - truth
            sizes = [[np.linalg.norm(x * part) for part in parts] for x in (wrong, truth)]
            yield [cells, name, *(20 * np.log10(np.divide(*sizes)))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scan", action="store_true", help="several POWER and STRENGTH")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", PrecisionWarning)
    angles = [f"{angle}°" for angle in ANGLES]
    columns = ["cells", "velocity", *angles, "0°, damping alone"]
    show_table("angles", columns, by_angle(), "Reflection in dB")
    columns = ["cells", "layer", "within 20 cells", "beyond 40 cells", "after the direct wave"]
    show_table("survey", columns, surveys(), "What the edges add to a survey's records, in dB")
    if arguments.scan:
        columns = ["cells", "POWER", "STRENGTH", "mean", "worst"]
        show_table("scan", columns, scan(), "Mean and worst reflection in dB up to 60°")


if __name__ == "__main__":
    main()
