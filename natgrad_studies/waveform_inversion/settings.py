"""Settings of the waveform inversion study; light to import, so that help is quick."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..settings import Among, Between, StudySettings

Preset = Literal["demo", "reduced", "paper"]
METHODS = (
    *("GD", "Hm1", "W2", "H1", "L2"),
    *("L2_five", "LBFGS", "LBFGS_long"),
)
RIVALS = ("LBFGS", "LBFGS_long")
SECTIONS = ("folded", "faulted", "salt")
MISFITS = ("least_squares", "transport")
ENGINES = ("jax", "deepwave", "devito")
SIDE_BY_SIDE = 6  # methods on a GPU, each in a process: threads would wait for Python's lock


@dataclass(frozen=True)
class Settings(StudySettings):
    """Full waveform inversion: a velocity model from recorded waves, in several metrics."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, the reduced size, or the paper's size."""
    output: Path = Path("results/waveform-inversion")
    """Folder for results.json, index.html and the checkpoints. An interrupted study that is run
    again with the same folder resumes."""
    velocity: Path | None = None
    """File of the true model in m/s with axes (x, z): .npy, .npz or SEG-Y. Without one, a
    synthetic section."""
    section: Annotated[str, Among(SECTIONS)] = "faulted"
    """The synthetic section, of 306 × 120 cells: folded, faulted or salt."""
    spacing: Annotated[float, Between(1e-6, 1e6)] = 25.0
    """Metres between the cells of the true model."""
    coarsen: Annotated[int, Between(1, 100)] = 3
    """How many of its cells, per side, make one cell of the inversion."""
    dt: Annotated[float, Between(1e-9, 1e3)] = 0.0075
    """Seconds between time steps."""
    steps: Annotated[int, Between(2, 10**6)] = 400
    """Time steps."""
    shots: Annotated[int, Between(1, 10**5)] = 5
    """Sources, spread evenly along the line of receivers."""
    frequency: Annotated[float, Between(1e-6, 1e9)] = 2.5
    """Peak frequency of the Ricker wavelet, Hz."""
    smoothing: Annotated[float, Between(0.0, 1e4)] = 6.0
    """Standard deviation, in cells of the inversion, of the Gaussian that smooths the start."""
    known_rows: Annotated[int, Between(0, 10**4)] = 5
    """Rows at the top whose velocity is known; the next one is updated by half."""
    noise: Annotated[float, Between(0.0, 100.0)] = 0.0
    """Standard deviation of the white noise, relative to the rms of the data."""
    methods: Annotated[tuple[str, ...], Among(METHODS)] = ("GD", "L2", "LBFGS")
    """Among GD, Hm1, W2, H1, L2 (the paper's), L2_five, LBFGS, LBFGS_long."""
    misfit: Annotated[str, Among(MISFITS)] = "least_squares"
    """least_squares, or transport: a Wasserstein distance of every trace with an equal share of
    the propagations, then least squares."""
    max_propagations: Annotated[int, Between(3, 10**7)] = 100
    """Propagations that a run may spend: wave solutions for all shots."""
    bands: tuple[float, ...] = ()
    """Frequency continuation: the data are first inverted below each of these frequencies, Hz, in
    turn, with an equal share of the propagations."""
    batch: Annotated[int, Between(0, 10**5)] = 0
    """Shots in a random mini-batch for each iteration; 0 for all. Not for L-BFGS."""
    slowest: Annotated[float, Between(1e-3, 1e6)] = 1400.0
    """Lower bound on the velocity, m/s."""
    fastest: float = 6000.0
    """Upper bound on the velocity, m/s."""
    engine: Annotated[str, Among(ENGINES)] = "jax"
    """The propagator: jax, or deepwave or devito if they are installed."""
    memory: Annotated[float, Between(1e-3, 1e4)] = 2.0
    """GiB for the stored source fields."""
    devices: Annotated[int, Between(0, 1024)] = 0
    """Devices that the cores of a CPU are split into, each with its share of the shots; 0 for one
    device per core. All GPUs are used. Only for the engine jax."""
    workers: Annotated[int, Between(0, 256)] = 0
    """Methods that run at the same time, each in a process; the seconds of each then include
    waiting for the others. 0 for six on a GPU with room for them, so that some compute while
    others compile, and for one on a CPU."""

    def conflicts(self) -> Iterator[tuple[str, str, str]]:
        if self.velocity is not None and not Path(self.velocity).exists():
            yield "velocity", f"there is no file {self.velocity}", "a path, or none"
        if any(not 0 < band < 1e6 for band in self.bands):
            yield "bands", f"are {self.bands}", "frequencies in Hz, low to high"
        if self.batch > self.shots:
            yield "batch", f"is {self.batch} of {self.shots} shots", "fewer, or 0"
        if self.batch and set(RIVALS) & set(self.methods):
            yield "batch", "L-BFGS cannot work with batches", "methods without LBFGS"
        if self.devices and self.engine != "jax":
            what = f"{self.devices} parts of the CPU are for the engine jax"
            yield "devices", what, "0: PyTorch and devito have threads of their own"
        if not self.slowest < self.fastest:
            yield "slowest", f"{self.slowest} is not below {self.fastest}", "1400"

    def processes(self) -> int:
        sees_gpu = os.environ.get("JAX_PLATFORMS") != "cpu" and Path("/dev/nvidiactl").exists()
        likely = SIDE_BY_SIDE if sees_gpu and self.engine == "jax" else 1
        return min(self.workers or likely, len(self.methods))

    def packages(self) -> dict[str, str]:
        return {} if self.engine == "jax" else {"engine": self.engine}


PRESETS: dict[Preset, Settings] = {
    "demo": Settings(),
    "reduced": Settings(
        preset="reduced",
        steps=536,
        shots=7,
        frequency=2.0,
        smoothing=3.0,
        methods=METHODS,
        max_propagations=400,
    ),
    "paper": Settings(
        preset="paper",
        coarsen=1,
        dt=0.0025,
        steps=1600,
        shots=21,
        frequency=6.0,
        smoothing=4.0,
        methods=METHODS,
        max_propagations=400,
    ),
}
