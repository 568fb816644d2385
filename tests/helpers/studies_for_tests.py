"""Settings of studies that several tests run."""

from natgrad_studies.waveform_inversion.settings import Settings

TINY_INVERSION = Settings(
    coarsen=6,
    dt=0.012,
    steps=120,
    shots=2,
    frequency=2.0,
    smoothing=2.0,
    known_rows=2,
    methods=("L2", "LBFGS"),
    max_propagations=24,
    devices=1,
)
