"""Settings that belong together, by name: how to train a network on residuals."""

import difflib
from typing import Any

from ..direction.damping import LevenbergMarquardt, RelativeDamping
from ..errors import InputError
from ..solvers import CG, Nystrom, NystromKernel
from .steps import Backtracking

RECIPES: dict[str, dict[str, Any]] = {
    "levenberg-marquardt": {
        "damping": LevenbergMarquardt(decrease=0.1),
        "step": Backtracking(),
        "order": 3,
    },
    "gauss-newton": {
        "damping": RelativeDamping(1e-9),
        "step": Backtracking(),
    },
    "spring": {
        "damping": LevenbergMarquardt(decrease=0.1),
        "momentum": 0.5,
        "step": Backtracking(),
        "order": 3,
    },
    "nystrom": {
        "solver": NystromKernel(rank=200),
        "damping": LevenbergMarquardt(decrease=0.1),
        "step": Backtracking(),
        "order": 3,
    },
    "matrix-free": {
        "solver": CG(tolerance=1e-3, max_iterations=200, preconditioner=Nystrom(rank=50)),
        "damping": LevenbergMarquardt(),
        "step": Backtracking(),
        "order": 2,
    },
}


def recipe(name: str) -> dict[str, Any]:
    """The solver, damping, step, order and momentum that go by this name, for `minimize`.

    ```python
    ng.minimize(pinn.problem, net, metric=pinn.metric, **ng.recipe("levenberg-marquardt"))
    ```

    | name | when to use it |
    |---|---|
    | "levenberg-marquardt" | the default: fixed points, p or k up to some thousand |
    | "gauss-newton" | to compare with: a fixed damping may wait long on a plateau |
    | "spring" | points drawn anew in every iteration |
    | "nystrom" | p > k, and more than some thousand points |
    | "matrix-free" | neither G nor the kernel matrix fits |

    The dict is yours to change: `ng.recipe("spring") | {"momentum": 0.9}`.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(str(name), RECIPES, n=1)
        raise InputError(
            "name", f"there is no recipe {name!r}", near[0] if near else str([*RECIPES])
        )
    return dict(RECIPES[name])
