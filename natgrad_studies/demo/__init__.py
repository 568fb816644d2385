"""The demo: a network, a velocity model and a density, each beside its usual rivals."""
