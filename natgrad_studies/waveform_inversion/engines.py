"""Who propagates the waves: this package, deepwave or devito."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax

from natgrad.errors import import_optional
from natgrad.interop.deepwave import Deepwave
from natgrad.interop.devito import Devito
from natgrad.waves import Acoustic

from .settings import Settings


class Engine(NamedTuple):
    """What makes a model from a survey and a velocity, and where it runs, in words."""

    model: Callable[..., Any]
    place: str

    @classmethod
    def of(cls, settings: Settings) -> "Engine":
        """The one that was asked for, or an `InputError` that says how to install it."""
        if settings.engine == "jax":
            found = _devices(settings)
            place = f"{len(found)} × {jax.devices()[0].device_kind}"
            return cls(partial(Acoustic, devices=found), place)
        import_optional(settings.engine, "engine")
        if settings.engine == "devito":
            return cls(Devito, "devito")
        device = "cuda" if import_optional("torch", "engine").cuda.is_available() else "cpu"
        return cls(partial(Deepwave, device=device), f"deepwave, {device}")


def _devices(settings: Settings) -> list[Any]:
    """All devices, the cores of a CPU split into parts where JAX has not been used yet."""
    count = settings.devices or os.cpu_count() or 1
    with suppress(RuntimeError):  # JAX is in use: its devices stay as they are
        jax.config.update("jax_num_cpu_devices", count)
    most = count if jax.default_backend() == "cpu" else settings.shots
    return jax.devices()[: min(most, settings.shots)]
