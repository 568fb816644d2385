"""natgrad: natural gradient descent for PDE-based optimisation, in the metric of your choice."""

from .counts import Counts
from .damping import (
    AbsoluteDamping,
    Damping,
    LevenbergMarquardt,
    ParameterDamping,
    RelativeDamping,
    Undamped,
)
from .direction import information_matrix, natural_gradient
from .elliptic.methods import Elliptic
from .errors import InputError, PrecisionWarning
from .grids import Grid
from .metrics import (
    L2,
    Blocks,
    Euclidean,
    FactorMetric,
    FisherRao,
    HomogeneousSobolev,
    MatrixMetric,
    Metric,
    Mobility,
    Sobolev,
    Wasserstein,
)
from .minimize import minimize
from .models import Explicit, Pointwise
from .operators import AdjointOperator
from .problems import KullbackLeibler, LeastSquares, Problem, SquaredDistance
from .result import Direction, Info, Progress, Result, Status
from .solvers import (
    CG,
    LSMR,
    QR,
    SVD,
    Auto,
    Cholesky,
    DenseSolver,
    Hutchinson,
    InformationSolver,
    Kernel,
    MatrixFreeSolver,
    PivotedQR,
    RandomizedSVD,
    SolveInfo,
    Solver,
)
from .spectrum import Spectrum, information_spectrum
from .steps import Backtracking, FixedStep, ModelStep, Outcome, Step

__version__ = "0.1.0"

__all__ = [
    "CG",
    "L2",
    "LSMR",
    "QR",
    "SVD",
    "AbsoluteDamping",
    "AdjointOperator",
    "Auto",
    "Backtracking",
    "Blocks",
    "Cholesky",
    "Counts",
    "Damping",
    "DenseSolver",
    "Direction",
    "Elliptic",
    "Euclidean",
    "Explicit",
    "FactorMetric",
    "FisherRao",
    "FixedStep",
    "Grid",
    "HomogeneousSobolev",
    "Hutchinson",
    "Info",
    "InformationSolver",
    "InputError",
    "Kernel",
    "KullbackLeibler",
    "LeastSquares",
    "LevenbergMarquardt",
    "MatrixFreeSolver",
    "MatrixMetric",
    "Metric",
    "Mobility",
    "ModelStep",
    "Outcome",
    "ParameterDamping",
    "PivotedQR",
    "Pointwise",
    "PrecisionWarning",
    "Problem",
    "Progress",
    "RandomizedSVD",
    "RelativeDamping",
    "Result",
    "Sobolev",
    "SolveInfo",
    "Solver",
    "Spectrum",
    "SquaredDistance",
    "Status",
    "Step",
    "Undamped",
    "Wasserstein",
    "information_matrix",
    "information_spectrum",
    "minimize",
    "natural_gradient",
]
