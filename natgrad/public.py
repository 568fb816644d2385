"""The public names: what `natgrad` hands on when the first of them is used."""

from .baselines import lbfgs
from .budget import Budget
from .checkpoint import Checkpoint
from .collocation import Collocation, Residual
from .compare import compare
from .comparison import Comparison
from .counts import Counts
from .damping import (
    AbsoluteDamping,
    Damping,
    LevenbergMarquardt,
    ParameterDamping,
    RelativeDamping,
    Undamped,
)
from .differential import derivative, laplacian
from .direction import information_matrix, natural_gradient
from .elliptic.methods import Elliptic
from .errors import InputError, PeerError, PrecisionWarning
from .grids import Grid
from .information import information_factor, information_operator
from .integrations.lineax import as_lineax_solver
from .integrations.optax import scale_by_natural_gradient
from .integrations.scipy import as_linear_operator, as_lineax_operator
from .integrations.torch import TorchModel
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
from .minibatch import MiniBatch
from .minimize import minimize
from .models import Explicit, ExternalModel, ImplicitModel, Model, Pointwise, Sourcewise, SparseLU
from .operators import AdjointOperator
from .problems import KullbackLeibler, LeastSquares, Problem, SquaredDistance
from .proximal import ProximalStep
from .recipes import recipe
from .resampling import Resampled
from .result import Direction, Info, Progress, Result, Status
from .saved_results import load_result
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
from .spectrum import Spectrum, information_spectrum
from .steps import Backtracking, FixedStep, ModelStep, Outcome, Step
from .verification import AdjointReport, GradientReport, check_adjoint, check_gradient

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
    "compare",
    "derivative",
    "information_factor",
    "information_matrix",
    "information_operator",
    "information_spectrum",
    "laplacian",
    "lbfgs",
    "load_result",
    "minimize",
    "natural_gradient",
    "recipe",
    "scale_by_natural_gradient",
]
