"""natgrad: natural gradient descent for PDE-based optimisation, in the metric of your choice."""

import importlib
from typing import TYPE_CHECKING, Any

from . import descent as descent
from . import direction as direction
from . import metrics as metrics
from . import models as models
from . import solvers as solvers
from .batches import MiniBatch
from .comparison import Comparison, compare
from .core.compiled import cache
from .core.outcomes import Status
from .descent.checkpoint import Checkpoint
from .descent.lbfgs import LBFGS
from .descent.methods import GradientDescent, NaturalGradient, Newton
from .descent.minimize import minimize
from .descent.proximal import ProximalStep
from .descent.recipes import gauss_newton, levenberg_marquardt, matrix_free, nystrom, spring
from .descent.steps import Backtracking, FixedStep, ModelStep
from .descent.stop import Stop
from .direction.damping import AbsoluteDamping, LevenbergMarquardt, ParameterDamping
from .direction.natural import information_matrix, natural_gradient
from .direction.spectrum import information_spectrum
from .errors import InputError
from .grids import Grid
from .metrics import (
    L2,
    Blocks,
    FactorMetric,
    FisherRao,
    HomogeneousSobolev,
    MatrixMetric,
    Mobility,
    Sobolev,
    Wasserstein,
)
from .models import ExternalModel, ImplicitModel, Pointwise, Sourcewise
from .problem import KullbackLeibler, LeastSquares, Problem, SquaredDistance
from .result import Result, load_result
from .solvers import (
    CG,
    LSMR,
    QR,
    SVD,
    Auto,
    Cholesky,
    Hutchinson,
    Kernel,
    NystromKernel,
    PivotedQR,
    RandomizedSVD,
)

if TYPE_CHECKING:
    from . import checks as checks
    from . import fem as fem
    from . import interop as interop
    from . import pinn as pinn
    from . import plot as plot
    from . import report as report
    from . import samples as samples
    from . import waves as waves
    from .interop import TorchModel
    from .pinn import Collocation, Resampled, Residual, derivative, laplacian

__version__ = "0.2.0"

# Imported when first used, because many programs need none of them: rooms, and names of rooms.
_ROOMS = ("checks", "fem", "interop", "pinn", "plot", "report", "samples", "waves")
_NAMES = {"TorchModel": "interop"} | dict.fromkeys(
    ("Collocation", "Residual", "Resampled", "derivative", "laplacian"), "pinn"
)

__all__ = [
    "CG",
    "L2",
    "LBFGS",
    "LSMR",
    "QR",
    "SVD",
    "AbsoluteDamping",
    "Auto",
    "Backtracking",
    "Blocks",
    "Checkpoint",
    "Cholesky",
    "Collocation",
    "Comparison",
    "ExternalModel",
    "FactorMetric",
    "FisherRao",
    "FixedStep",
    "GradientDescent",
    "Grid",
    "HomogeneousSobolev",
    "Hutchinson",
    "ImplicitModel",
    "InputError",
    "Kernel",
    "KullbackLeibler",
    "LeastSquares",
    "LevenbergMarquardt",
    "MatrixMetric",
    "MiniBatch",
    "Mobility",
    "ModelStep",
    "NaturalGradient",
    "Newton",
    "NystromKernel",
    "ParameterDamping",
    "PivotedQR",
    "Pointwise",
    "Problem",
    "ProximalStep",
    "RandomizedSVD",
    "Resampled",
    "Residual",
    "Result",
    "Sobolev",
    "Sourcewise",
    "SquaredDistance",
    "Status",
    "Stop",
    "TorchModel",
    "Wasserstein",
    "cache",
    "compare",
    "derivative",
    "gauss_newton",
    "information_matrix",
    "information_spectrum",
    "laplacian",
    "levenberg_marquardt",
    "load_result",
    "matrix_free",
    "minimize",
    "natural_gradient",
    "nystrom",
    "spring",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name in _NAMES:
        room = __getattr__(_NAMES[name])
        globals().update({each: getattr(room, each) for each in _NAMES if hasattr(room, each)})
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
