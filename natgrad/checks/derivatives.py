"""Checks of derivatives at one θ: those of a model, and the gradient of a problem."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import PyTree

from ..core.compiled import refuse_traced
from ..core.operators import structure_of
from ..core.settings import check_instance, check_integer
from ..errors import InputError
from ..models.base import Evaluation, Model, Products, check_model, check_state, evaluate
from ..models.explicit import as_model
from ..models.external import ExternalModel
from ..models.implicit import ImplicitModel
from ..parameters import check_parameters, flatten, strengthen
from ..problem import Problem, differentiate_loss, value_and_gradient

AnyModel = Model | Callable[[PyTree], PyTree]
SECOND_ORDER = 1.7  # an observed order from here on is that of a right derivative
FIRST_ORDER = (0.7, 1.3)  # what a wrong derivative leaves
ROUGH = 0.1  # an error above this says nothing of a derivative that is right


@dataclass(frozen=True)
class Taylor:
    """Remainders ‖F(θ + hη) − F(θ) − h·(derivative along η)‖ for falling steps h.

    `errors` are the remainders over h, relative to the derivative: they fall like h for a right
    derivative until rounding makes them rise again, and stay where they are for a wrong one.
    `error` is the smallest, `order` the largest order at which two remainders fell.
    """

    steps: tuple[float, ...]
    remainders: tuple[float, ...]
    errors: tuple[float, ...]
    error: float
    order: float
    passed: bool


@dataclass(frozen=True)
class AdjointReport:
    """What `check_adjoint` found; the worst of its trials. `str` of it is the verdict."""

    passed: bool
    asymmetry: float
    tolerance: float
    jvp: Taylor
    vjp: Taylor
    verdict: str

    def __str__(self) -> str:
        return self.verdict


@dataclass(frozen=True)
class GradientReport:
    """What `check_gradient` found; the worst of its trials. `str` of it is the verdict.

    `parts` are the same test of the functions that the value is made of, each in its own argument.
    """

    passed: bool
    gradient: Taylor
    parts: dict[str, Taylor]
    verdict: str

    def __str__(self) -> str:
        return self.verdict


def check_adjoint(
    model: AnyModel, theta: PyTree, *, trials: int = 3, seed: int = 0, verbose: bool = True
) -> AdjointReport:
    """Whether Zη is the derivative of the model at θ, and Zᵀξ its transpose.

    Two functions may be each other's transpose and both be wrong, so there are two tests, for
    random η and ξ: ⟨Zη, ξ⟩ = ⟨η, Zᵀξ⟩ up to the square root of the machine precision, and

        ‖ρ(θ + hη) − ρ(θ) − hZη‖ = O(h²),

    the same for ⟨η, Zᵀξ⟩, with h falling by decades from a tenth of θ on. The verdict names the
    function at fault; it is printed unless `verbose` is False. `model` is a `Model` of any kind or
    a plain function.

    ```python
    assert ng.checks.check_adjoint(model, theta).passed
    ```

    Cost: one linearisation, and for each trial five evaluations, one product Zη and one Zᵀξ.
    Reference: Claerbout, Earth Soundings Analysis (1992), for the dot-product test.

    Args:
        model: A `Model` of any kind, or a plain function.
        theta: Where it is tested.
        trials: Number of random pairs η, ξ.
        seed: Their seed.
        verbose: Whether the verdict is printed.
    """
    checked, trials = as_model(model), check_integer(trials, "trials", 1)
    at, theta = _Place(checked, theta), strengthen(theta)
    scale, rng = _scale(theta), np.random.default_rng(seed)
    gaps, forward, backward = [], [], []
    for _ in range(trials):
        eta = scale * rng.normal(size=scale.size)
        xi = rng.normal(size=at.rho.size)
        image, slope = at.push(eta), at.pull(xi)
        size = max(norm(image) * norm(xi), norm(eta) * norm(slope))
        gaps.append(ratio(abs(float(image @ xi - eta @ slope)), size))
        changes = [at.move(h * eta) - at.rho for h in steps_for(at.eps)]
        forward.append(taylor_test(changes, image, at.eps))
        seen = [change @ xi for change in changes]
        size = max(norm(image) * norm(xi), abs(float(eta @ slope)))
        backward.append(taylor_test(seen, eta @ slope, at.eps, size))
    asymmetry = float(np.nan_to_num(np.max(gaps), nan=np.inf, posinf=np.inf))
    tolerance = float(np.sqrt(at.eps))
    jvp, vjp = worst(forward), worst(backward)
    passed = asymmetry <= tolerance and jvp.passed and vjp.passed
    names = _name_functions(checked)
    verdict = _describe_adjoint(names, asymmetry, tolerance, jvp, vjp, checked.approximates)
    report = AdjointReport(passed, asymmetry, tolerance, jvp, vjp, verdict)
    if verbose:
        print(report)
    return report


def check_gradient(
    problem: Problem, theta: PyTree, *, trials: int = 3, seed: int = 0, verbose: bool = True
) -> GradientReport:
    """Whether ∂_θ f, as a run uses it, is the gradient of the value at θ: Taylor tests.

        |F(θ + hη) − F(θ) − h⟨∂_θ f, η⟩| = O(h²)

    along random η, with h falling by decades from a tenth of θ on, for F = f(ρ(θ)) + R(θ) or an
    objective of θ. The loss is tested by itself in ρ, and a regulariser in θ, so that the verdict
    can name the part at fault; it is printed unless `verbose` is False.

    ```python
    assert ng.checks.check_gradient(problem, theta).passed
    ```

    Cost: one gradient, and for each trial five evaluations of the model.

    Args:
        problem: The problem.
        theta: Where it is tested.
        trials: Number of random η.
        seed: Their seed.
        verbose: Whether the verdict is printed.
    """
    check_instance("problem", problem, Problem, "ng.Problem(model, loss)")
    trials = check_integer(trials, "trials", 1)
    at, theta = _Place(problem.model, theta), strengthen(theta)
    problem.check(theta, structure_of(at.known.rho))
    flat, unravel = flatten(theta)
    known = at.known if problem.model.solves else None
    found = value_and_gradient(problem, theta, known)
    gradient, loss = np.asarray(found.gradient, float), float(found.value)
    scale, rng = _scale(theta), np.random.default_rng(seed)
    value, objective_only = eqx.filter_jit(problem.value), problem.objective is not None
    eps = max(at.eps, float(jnp.finfo(found.value.dtype).eps))

    def change(step: np.ndarray) -> float:
        moved = unravel(flat + jnp.asarray(step, flat.dtype))
        rho = at.known.rho if objective_only else evaluate(problem.model, moved).rho
        return float(value(moved, rho)) - loss

    directions = [scale * rng.normal(size=scale.size) for _ in range(trials)]
    test = worst([_test_along(change, eta, gradient, eps) for eta in directions])
    parts = {} if objective_only else _test_parts(problem, theta, at, rng, eps)
    passed = test.passed and all(part.passed for part in parts.values())
    verdict = _describe_gradient(problem, test, parts)
    report = GradientReport(passed, test, parts, verdict)
    if verbose:
        print(report)
    return report


class _Place:
    """A model at θ as functions of flat NumPy vectors, compiled where it is written in JAX."""

    def __init__(self, model: Model, theta: PyTree):
        refuse_traced("theta", theta)
        self.model, self.theta = model, strengthen(theta)
        self.flat, self.unravel = flatten(self.theta)
        check_parameters(self.theta)
        if not model.on_host:
            check_model(lambda v: model(self.unravel(v)), self.flat)
        self.known = evaluate(model, self.theta)
        check_state(structure_of(self.known.rho))
        vector, self.shaped = ravel_pytree(self.known.rho)
        self.dtype, self.rho = vector.dtype, np.asarray(vector, float)
        model.check(self.theta, self.known)
        if not np.all(np.isfinite(self.rho)):
            raise InputError("model", "the state at theta is not finite", "another theta")
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(self.known.rho)] + [self.flat.dtype]
        self.eps = max(float(jnp.finfo(dtype).eps) for dtype in dtypes)

    def move(self, step: np.ndarray) -> np.ndarray:
        """ρ(θ + step)."""
        point = self.unravel(self.flat + jnp.asarray(step, self.flat.dtype))
        return np.asarray(ravel_pytree(evaluate(self.model, point).rho)[0], float)

    @cached_property
    def _maps(self) -> tuple[Callable[[Array], PyTree], Callable[[PyTree], Array]]:
        known = self.known if self.model.solves else None
        make = _make_products if self.model.on_host else eqx.filter_jit(_make_products)
        products = make(self.model, self.theta, known)
        compiled = (lambda f: f) if self.model.on_host else eqx.filter_jit
        return compiled(products.push), compiled(products.pull)

    def push(self, eta: np.ndarray) -> np.ndarray:
        """Zη."""
        image = self._maps[0](jnp.asarray(eta, self.flat.dtype))
        return np.asarray(ravel_pytree(image)[0], float)

    def pull(self, xi: np.ndarray) -> np.ndarray:
        """Zᵀξ."""
        return np.asarray(self._maps[1](self.shaped(jnp.asarray(xi, self.dtype))), float)


def _make_products(model: Model, theta: PyTree, known: Evaluation | None) -> Products:
    flat, unravel = flatten(theta)
    return model.products(unravel, flat, known)


def _scale(theta: PyTree) -> np.ndarray:
    """A length for each parameter: the root mean square of its array, 1 where that is zero."""
    leaves = jax.tree.leaves(eqx.filter(theta, eqx.is_inexact_array))
    sizes = [float(np.sqrt(np.mean(np.square(np.asarray(leaf, float))))) for leaf in leaves]
    parts = [np.full(leaf.size, size or 1.0) for leaf, size in zip(leaves, sizes, strict=True)]
    return np.concatenate(parts)


def _test_parts(
    problem: Problem, theta: PyTree, at: _Place, rng: np.random.Generator, eps: float
) -> dict[str, Taylor]:
    """The loss along a random tangent of the state, and the regulariser along one of θ."""
    _, covector, direct = differentiate_loss(problem, theta, at.known.rho)
    size, noise = max(norm(at.rho) / np.sqrt(at.rho.size), 1e-300), rng.normal(size=at.rho.size)
    state = lambda v: at.shaped(jnp.asarray(v, at.dtype))
    loss, slope = _change_of(lambda v: problem.loss(state(v)), at.rho), ravel_pytree(covector)[0]
    parts = {"loss": _test_along(loss, size * noise, slope, eps)}
    if not np.isfinite(parts["loss"].error):  # it may be defined for positive states only
        parts["loss"] = _test_along(loss, np.abs(at.rho) * noise, slope, eps)
    if direct is not None:
        flat = np.asarray(at.flat, float)
        eta = _scale(theta) * rng.normal(size=flat.size)
        theta_of = lambda v: at.unravel(jnp.asarray(v, at.flat.dtype))
        extra = _change_of(lambda v: problem.regulariser(theta_of(v)), flat)
        parts["regulariser"] = _test_along(extra, eta, direct, eps)
    return parts


def _change_of(
    function: Callable[[np.ndarray], Array], x: np.ndarray
) -> Callable[[np.ndarray], float]:
    """v ↦ F(x + v) − F(x)."""
    compiled = eqx.filter_jit(function)
    value = float(compiled(x))
    return lambda v: float(compiled(x + v)) - value


def _test_along(
    change: Callable[[np.ndarray], float], v: np.ndarray, gradient: ArrayLike, eps: float
) -> Taylor:
    """The Taylor test of a function of one flat vector, given by its changes."""
    changes = [change(h * v) for h in steps_for(eps)]
    return taylor_test(changes, np.asarray(gradient, float) @ v, eps)


def _name_functions(model: Model) -> tuple[str, str, str]:
    """How the state, Zη and Zᵀξ are called where the user wrote them."""
    if isinstance(model, ExternalModel):
        return ("linearize" if model.forward is None else "forward"), "jvp", "vjp"
    if isinstance(model, ImplicitModel) and model.factorise is not None:
        return "the state", "Zη (solve of the factorisation)", "Zᵀξ (solve_transposed)"
    if isinstance(model, ImplicitModel):
        return "the state", "Zη (linear_solver)", "Zᵀξ (linear_solver on the transpose)"
    return "the model", "jvp", "vjp"


def _describe_adjoint(
    names: tuple[str, str, str],
    asymmetry: float,
    tolerance: float,
    jvp: Taylor,
    vjp: Taylor,
    known: str,
) -> str:
    """Which function is at fault, the sizes found, and what to try; `known`, if it is known."""
    forward, push, pull = names
    symmetric = asymmetry <= tolerance
    if symmetric and jvp.passed and vjp.passed:
        head = f"passed: {push} is the derivative of {forward}, and {pull} its transpose"
        advice = ""
    elif not (np.isfinite(jvp.error) and np.isfinite(vjp.error)):
        wrong = push if not np.isfinite(jvp.error) else pull
        head = f"FAILED: {wrong} is not finite, or {forward} is not at points near theta"
        advice = "another theta, or smaller arrays to find the first NaN"
    elif symmetric:
        head = f"FAILED: {push} is not the derivative of {forward}"
        advice = known or (
            f"{pull} is its transpose, so both differentiate another function; compare {push} "
            f"with ({forward}(theta + h*eta) - {forward}(theta))/h for one parameter at a time"
        )
    elif jvp.passed:
        head = f"FAILED: {pull} is not the transpose of {push}, which is right"
        advice = f"transpose {push} line by line in reverse order; mind weights and boundaries"
    elif vjp.passed:
        head = f"FAILED: {push} is not the derivative of {forward}, while {pull} is its transpose"
        advice = f"correct {push}: {pull} agrees with finite differences of {forward}"
    else:
        head = (
            f"FAILED: {push} is not the derivative of {forward}, "
            f"and {pull} is not the transpose of {push}"
        )
        advice = f"first correct {push}, then transpose it; or is {forward} noisy?"
    lines = [
        head,
        f"  |⟨Zη, ξ⟩ − ⟨η, Zᵀξ⟩| is {asymmetry:.1e} of their size (up to {tolerance:.1e} passes)",
        f"  {push} against finite differences: {_describe(jvp)}",
        f"  {pull} against finite differences: {_describe(vjp)}",
    ]
    return "\n".join([*lines, f"  Try: {advice}."] if advice else lines)


def _describe_gradient(problem: Problem, test: Taylor, parts: dict[str, Taylor]) -> str:
    """Which part is at fault, the sizes found, and what to try."""
    wrong = [name for name, part in parts.items() if not part.passed]
    if test.passed and not wrong:
        head, advice = "passed: ∂_θ f is the gradient of the value", ""
    elif wrong:
        head = f"FAILED: the derivative of the {' and the '.join(wrong)} is wrong"
        advice = "a smooth function at theta; look at its custom_vjp or custom_jvp rule"
    elif problem.objective is not None:
        head = "FAILED: ∂_θ f is not the gradient of the objective"
        advice = "a smooth function at theta; look at its custom_vjp or custom_jvp rule"
    else:
        head = "FAILED: ∂_θ f = Zᵀ∂_ρ f is wrong, while the derivative of the loss is right"
        advice = "ng.checks.check_adjoint(problem.model, theta), which tells jvp from vjp"
    lines = [head, f"  ∂_θ f against finite differences: {_describe(test)}"]
    lines += [f"  {name} by itself: {_describe(part)}" for name, part in parts.items()]
    return "\n".join([*lines, f"  Try: {advice}."] if advice else lines)


def _describe(test: Taylor) -> str:
    if test.passed and test.error > ROUGH:  # along a direction that changes next to nothing
        return "right, remainders fall faster than the steps"
    said = "right" if test.passed else "WRONG"
    return f"{said}, relative error down to {test.error:.1e}, remainders of order {test.order:.1f}"


def steps_for(eps: float) -> tuple[float, ...]:
    """Decades from a tenth in double precision, half-decades in single."""
    factor = 10.0 if eps < 1e-10 else 10**0.5
    return tuple(0.1 / factor**j for j in range(5))


def taylor_test(
    changes: Sequence[ArrayLike], slope: ArrayLike, eps: float, size: float = 0.0
) -> Taylor:
    """The test for the changes F(θ + hη) − F(θ), h in `steps_for(eps)`, and the derivative along η.

    `size` is the scale of the derivative. It is right if an error falls below 1e-4 (in single
    precision 1e-2), or if the remainders fall at second order somewhere and nowhere at first order
    twice in a row: where the evaluations are noisy, errors rise again before they are small.
    """
    steps, slope = steps_for(eps), np.asarray(slope)
    pairs = list(zip(map(np.asarray, changes), steps, strict=True))
    remainders = [norm(change - h * slope) for change, h in pairs]
    sizes = [max(norm(slope), norm(change) / h, size) for change, h in pairs]
    errors = [ratio(r / h, s) for r, h, s in zip(remainders, steps, sizes, strict=True)]
    finite = np.isfinite(errors)
    if not np.all(np.isfinite(slope)) or np.sum(finite) < 3:
        return Taylor(steps, tuple(remainders), tuple(errors), np.inf, np.nan, False)
    error = float(np.min(np.array(errors)[finite]))
    kept = np.maximum(np.array(remainders)[finite], np.finfo(float).tiny)
    orders = np.diff(np.log(kept)) / np.diff(np.log(np.array(steps)[finite]))
    first = (orders > FIRST_ORDER[0]) & (orders < FIRST_ORDER[1])
    second = bool(np.any(orders >= SECOND_ORDER)) and not np.any(first[1:] & first[:-1])
    passed = error <= (1e-4 if eps < 1e-10 else 1e-2) or second
    return Taylor(steps, tuple(remainders), tuple(errors), error, float(np.max(orders)), passed)


def norm(x: ArrayLike) -> float:
    """‖x‖ as a number."""
    return float(np.linalg.norm(np.asarray(x)))


def ratio(a: float, b: float) -> float:
    """a/b, or a where b is zero."""
    return a / b if b else a


def worst(tests: Sequence[Taylor]) -> Taylor:
    """A test that failed, if there is one; of these that with the largest error."""
    return max(tests, key=lambda test: (not test.passed, test.error))
