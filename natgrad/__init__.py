"""natgrad: natural gradient descent for PDE-based optimisation, in the metric of your choice."""

from . import checks, fem, interop, metrics, models, plot, samples, solvers, waves
from .batches import MiniBatch
from .checks.derivatives import AdjointReport, GradientReport, check_adjoint, check_gradient
from .comparison import Comparison, compare
from .core.operators import AdjointOperator
from .core.outcomes import Counts
from .core.sparse import as_linear_operator, as_lineax_operator
from .descent.checkpoint import Checkpoint
from .descent.lbfgs import lbfgs
from .descent.minimize import minimize
from .descent.proximal import ProximalStep
from .descent.recipes import recipe
from .descent.steps import Backtracking, FixedStep, ModelStep, Outcome, Step
from .descent.stop import Budget
from .direction.damping import (
    AbsoluteDamping,
    Damping,
    LevenbergMarquardt,
    ParameterDamping,
    RelativeDamping,
    Undamped,
)
from .direction.information import information_factor, information_operator
from .direction.natural import information_matrix, natural_gradient
from .direction.spectrum import Spectrum, information_spectrum
from .errors import InputError, PeerError, PrecisionWarning
from .grids import Grid
from .interop.lineax import as_lineax_solver
from .interop.optax import scale_by_natural_gradient
from .interop.torch import TorchModel
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
    Newton,
    Sobolev,
    Wasserstein,
)
from .metrics.elliptic.equation import Elliptic
from .models import Explicit, ExternalModel, ImplicitModel, Model, Pointwise, Sourcewise, SparseLU
from .pinn.collocation import Collocation, Residual, derivative, laplacian
from .pinn.resampling import Resampled
from .problem import KullbackLeibler, LeastSquares, Problem, SquaredDistance
from .result import Direction, Info, Progress, Result, Status, load_result
from .solvers import (
    CG,
    LSMR,
    QR,
    SVD,
    Auto,
    Cholesky,
    DenseSolver,
    Diagonal,
    Hutchinson,
    InformationSolver,
    Kernel,
    MatrixFreeSolver,
    Nystrom,
    NystromKernel,
    PivotedQR,
    RandomizedSVD,
    Recycled,
    SolveInfo,
    Solver,
)

__version__ = "0.1.0"

__all__ = [
    "CG",
    "L2",
    "LSMR",
    "QR",
    "SVD",
    "AbsoluteDamping",
    "AdjointOperator",
    "AdjointReport",
    "Auto",
    "Backtracking",
    "Blocks",
    "Budget",
    "Checkpoint",
    "Cholesky",
    "Collocation",
    "Comparison",
    "Counts",
    "Damping",
    "DenseSolver",
    "Diagonal",
    "Direction",
    "Elliptic",
    "Euclidean",
    "Explicit",
    "ExternalModel",
    "FactorMetric",
    "FisherRao",
    "FixedStep",
    "GradientReport",
    "Grid",
    "HomogeneousSobolev",
    "Hutchinson",
    "ImplicitModel",
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
    "MiniBatch",
    "Mobility",
    "Model",
    "ModelStep",
    "Newton",
    "Nystrom",
    "NystromKernel",
    "Outcome",
    "ParameterDamping",
    "PeerError",
    "PivotedQR",
    "Pointwise",
    "PrecisionWarning",
    "Problem",
    "Progress",
    "ProximalStep",
    "RandomizedSVD",
    "Recycled",
    "RelativeDamping",
    "Resampled",
    "Residual",
    "Result",
    "Sobolev",
    "SolveInfo",
    "Solver",
    "Sourcewise",
    "SparseLU",
    "Spectrum",
    "SquaredDistance",
    "Status",
    "Step",
    "TorchModel",
    "Undamped",
    "Wasserstein",
    "as_linear_operator",
    "as_lineax_operator",
    "as_lineax_solver",
    "check_adjoint",
    "check_gradient",
    "checks",
    "compare",
    "derivative",
    "fem",
    "information_factor",
    "information_matrix",
    "information_operator",
    "information_spectrum",
    "interop",
    "laplacian",
    "lbfgs",
    "load_result",
    "metrics",
    "minimize",
    "models",
    "natural_gradient",
    "plot",
    "recipe",
    "samples",
    "scale_by_natural_gradient",
    "solvers",
    "waves",
]
