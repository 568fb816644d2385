"""What comes back: a direction with its diagnosis, and a run with its history."""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import PyTree

from .core.archive import named_leaves, read_archive, reading, replace_leaves, write_archive
from .core.outcomes import BUDGETS, Counts, Status
from .errors import InputError

KIND = "result"  # of an archive
AXES = ("iterations", "propagations", "seconds")  # what a run can spend
ASTRAY = 4  # the ratio of actual to predicted decrease, or its inverse, beyond which a step is
ROUNDING = 1e-8  # of the loss: a smaller decrease predicted says nothing about the model
TOO_FEW = 100  # times the loss that a held-out one may be


@dataclass(frozen=True)
class Info:
    """How a direction was found.

    `condition` is that of Y with its damping (an estimate, except from `SVD`; from `PivotedQR` that
    of the retained part of Y before damping, from `CG` not known and NaN); `status` is "ok",
    "rank_deficient" (the direction is the one of minimum norm), "not_finite" or
    "metric_not_converged" (an iteration inside the metric gave up; the direction is NaN); `metric`
    holds what the metric reports, such as the share of cells under its floor.

    For `CG` and `LSMR` `status` is why they stopped ("converged", "max_iterations", "breakdown" or
    "not_finite"), `residual` is that of (G + λD) η = −∂_θ f relative to ‖∂_θ f‖, and the rank is
    not known. `counts` has every product spent on the direction. Low-rank solvers tell the residual
    too, and `truncation`, their estimate of the largest singular value of Y that they cut, relative
    to the largest of all.

    `reachable` is −⟨∂_θ f, η⟩/‖b‖² for the shortest whitened gradient b (the residual, for a
    least-squares loss in L²): the share of ‖b‖² that the tangent space of the model reaches at this
    damping, and without damping ‖P b‖²/‖b‖² for the projection P onto the range of Y. Near 1, the
    model can do all that is asked of it and the step or the damping limits progress; near 0 the run
    has stalled: what is left of the residual is out of reach of every direction of θ. NaN where b
    is not all of the gradient, or not known without a further solve: for objectives, regularisers,
    tangents that a metric gives length zero, and sums of metrics unless all are diagonal.
    """

    solver: str
    rank: int | None
    condition: float
    damping: float
    status: Status
    iterations: int
    counts: Counts
    metric: Mapping[str, float | str] = field(default_factory=dict)
    residual: float = float("nan")
    truncation: float = float("nan")
    reachable: float = float("nan")

    @classmethod
    def restore(cls, values: Mapping[str, Any] | None) -> "Info | None":
        """From what `dataclasses.asdict` made of one; None from None."""
        if values is None:
            return None
        status, counts = Status(values["status"]), Counts(*values["counts"])
        return cls(**{**values, "status": status, "counts": counts})


@dataclass(frozen=True)
class Direction:
    """The natural gradient direction η at θ, with G η = −∂_θ f.

    `eta` and `gradient` have the structure of θ, with None for leaves that are not parameters, as
    `equinox.apply_updates` wants them.
    """

    eta: PyTree
    info: Info
    loss: float
    gradient: PyTree


class Best(NamedTuple):
    """The best iterate of a run: θ, its loss (the held-out one, if any), its place in the history.

    The places go by iterates, so that `history["loss"][iterate]` belongs to it.
    """

    theta: PyTree
    loss: float
    iterate: int

    def __repr__(self) -> str:
        return f"Best(loss={self.loss:.6g}, iterate={self.iterate}, theta=...)"


@dataclass(frozen=True)
class Result:
    """The end of a run.

    `history` has one entry per iterate, the starting point first: at iterate i its loss and
    gradient norm, and the damping, length and so on of the step taken from it (NaN where there is
    none). Times and counts accumulate. `iterates` has the θ that were kept (`snapshots=` of the
    run), by their place in the history, and `best` the iterate of the smallest loss, or of the
    smallest held-out loss, where there is one: the last, unless it was worse.
    """

    theta: PyTree
    loss: float
    status: Status
    iterations: int
    history: Mapping[str, np.ndarray]
    info: Info | None
    iterates: Mapping[int, PyTree] = field(default_factory=dict)
    best: Best | None = None

    @property
    def warning(self) -> str | None:
        """That the held-out loss is not as small as the loss, or that the steps went astray.

        They did where a quarter of them, and three at least, changed the loss by less than a
        quarter of what the quadratic model predicted, or by more than four times that.
        """
        return self._warn_of_points() or self._warn_of_steps()

    def _warn_of_steps(self) -> str | None:
        loss, predicted, step = (self.history.get(name) for name in ("loss", "predicted", "step"))
        if loss is None or predicted is None or step is None or len(loss) < 2:
            return None
        taken = (step > 0) & (predicted > ROUNDING * np.abs(loss))
        ratio = self.history["ratio"][taken]
        astray = int(np.sum((ratio < 1 / ASTRAY) | (ratio > ASTRAY)))
        if astray < max(3, len(ratio) / 4):
            return None
        return (
            f"{astray} of {len(ratio)} steps changed the loss by less than a quarter of what was "
            "predicted, or more than four times that: the linear model does not hold; damp, or "
            "use a smoother start"
        )

    def _warn_of_points(self) -> str | None:
        held_out = self.history.get("held_out", np.array([]))
        seen = held_out[~np.isnan(held_out)]
        if not seen.size or not seen[-1] > TOO_FEW * abs(self.loss):
            return None
        return (
            f"loss {self.loss:.1e}, held-out {seen[-1]:.1e}: the network fits its training points "
            "but not the points between them; take more points, or redraw them"
        )

    @property
    def converged(self) -> bool:
        """Whether the run ended by reaching what was asked of it."""
        return self.status in (Status.CONVERGED, Status.LOSS_REACHED, Status.PRECISION)

    def spent(self, what: str) -> np.ndarray:
        """Iterations, propagations or seconds until each iterate of the history.

        Propagations are forward, linearised and adjoint ones together.
        """
        columns = self.history
        if what == "iterations":
            return np.arange(len(columns["loss"]))
        if what == "propagations":
            return columns["forward"] + columns["linearised"] + columns["adjoint"]
        if what == "seconds":
            return columns["seconds"]
        raise InputError("what", f"{what!r} cannot be spent", "one of " + ", ".join(AXES))

    def save(self, path: str | Path) -> None:
        """Write the result to a file, all of it or nothing; `ng.load_result` reads it.

        The file also has the versions of the packages and the machine of this process.
        """
        values = {
            "loss": self.loss,
            "status": str(self.status),
            "iterations": self.iterations,
            "info": None if self.info is None else asdict(self.info),
            "best": None if self.best is None else [self.best.loss, self.best.iterate],
            "versions": versions(),
            "machine": machine(),
        }
        iterates = {str(number): theta for number, theta in self.iterates.items()}
        tree = {"theta": self.theta, "history": dict(self.history), "iterates": iterates}
        if self.best is not None:
            tree["best"] = self.best.theta
        write_archive(Path(path), KIND, values, named_leaves(tree))

    def report(self, path: str | Path, problem: Any = None) -> Path:
        """Write a self-contained HTML page with interactive plots of the run.

        With the problem, if it has two parameters, the path is drawn over the loss.
        """
        from .report import result_page

        return result_page(self, Path(path).stem, problem).write(Path(path))

    def __str__(self) -> str:
        how = self.status if self.status in (Status.CONVERGED, Status.FAILED) else "stopped"
        why = "" if self.status in (*BUDGETS, how) else f" ({self.status})"
        spent = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'}"
        told = f"{how} after {spent}{why}, loss {self.loss:.6g}"
        warning = "" if self.warning is None else f"\nWarning: {self.warning}."
        return f"{told}: {self.status.message}{warning}"


@dataclass(frozen=True)
class Progress:
    """What a callback sees after each iteration; it returns True to stop the run."""

    iteration: int
    theta: PyTree
    loss: float
    row: Mapping[str, float | Array]


def load_result(path: str | Path, like: PyTree = None) -> Result:
    """Read the result in a file that `result.save` wrote; nothing in it is executed.

    θ comes back as an array if it was one. Else `like` gives the structure, for instance θ₀;
    without it θ is a dict from the path of each leaf to its array.

    ```python
    ng.load_result("run.npz", like=theta0).history["loss"]
    ```

    Args:
        path: The file.
        like: A θ of the same structure.
    """
    place = Path(path)
    values, arrays = read_archive(place, KIND)
    with reading(place, KIND):
        iterates: dict[int, dict[str, Any]] = {}
        for name, leaf in _part(arrays, "iterates").items():
            number, _, inner = name[2:].partition("']")
            iterates.setdefault(int(number), {})[inner] = leaf
        history = {name[2:-2]: column for name, column in _part(arrays, "history").items()}
        length = (len(history["loss"]),)
        if any(x.shape != length or x.dtype.kind not in "fiu" for x in history.values()):
            raise ValueError("the history is no table of numbers")
        best = values.get("best")
        if best is not None:
            best = Best(_theta(_part(arrays, "best"), like), float(best[0]), int(best[1]))
        return Result(
            _theta(_part(arrays, "theta"), like),
            float(values["loss"]),
            Status(values["status"]),
            int(values["iterations"]),
            history,
            Info.restore(values["info"]),
            {number: _theta(iterates[number], like) for number in sorted(iterates)},
            best,
        )


def load_origin(path: str | Path) -> dict[str, dict[str, str]]:
    """Read the versions and the machine in the file of a result; empty in files before 0.2."""
    values, _ = read_archive(Path(path), KIND)
    with reading(Path(path), KIND):
        return {name: dict(values.get(name, {})) for name in ("versions", "machine")}


def _theta(leaves: dict[str, Any], like: PyTree) -> PyTree:
    if like is not None:
        return replace_leaves(like, leaves, KIND)
    return leaves[""] if set(leaves) == {""} else leaves


def _part(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    prefix = f"['{name}']"
    return {key[len(prefix) :]: x for key, x in arrays.items() if key.startswith(prefix)}


def versions() -> dict[str, str]:
    """Versions of natgrad, of what it computes with, and of Python and the platform."""
    packages = ("natgrad", "jax", "jaxlib", "equinox", "lineax", "numpy", "scipy", "matplotlib")
    found = {name: _version(name) for name in packages}
    return found | {"python": platform.python_version(), "platform": platform.platform()}


def machine() -> dict[str, str]:
    """The processor, its cores, the memory, and the devices that JAX computes on."""
    kinds = [f"{device.device_kind} ({device.platform})" for device in jax.devices()]
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "JAX devices": ", ".join(f"{kinds.count(kind)} × {kind}" for kind in sorted(set(kinds))),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        return "unknown"
    return f"{size / 2**30:.1f} GiB"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # natgrad too, when run from its source tree
        return "source tree" if package == "natgrad" else "not installed"
