"""What checks of derivatives have found, in words."""

import numpy as np

from .models.base import Model
from .models.external import ExternalModel
from .models.implicit import ImplicitModel
from .problems import Problem
from .taylor import Taylor


def names_of(model: Model) -> tuple[str, str, str]:
    """How the state, Zη and Zᵀξ are called where the user wrote them."""
    if isinstance(model, ExternalModel):
        return ("linearize" if model.forward is None else "forward"), "jvp", "vjp"
    if isinstance(model, ImplicitModel) and model.factorise is not None:
        return "the state", "Zη (solve of the factorisation)", "Zᵀξ (solve_transposed)"
    if isinstance(model, ImplicitModel):
        return "the state", "Zη (linear_solver)", "Zᵀξ (linear_solver on the transpose)"
    return "the model", "jvp", "vjp"


def adjoint_verdict(
    names: tuple[str, str, str], asymmetry: float, tolerance: float, jvp: Taylor, vjp: Taylor
) -> str:
    """Which function is at fault, the sizes found, and what to try."""
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
        advice = (
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
        f"  {push} against finite differences: {_sizes(jvp)}",
        f"  {pull} against finite differences: {_sizes(vjp)}",
    ]
    return "\n".join([*lines, f"  Try: {advice}."] if advice else lines)


def gradient_verdict(problem: Problem, test: Taylor, parts: dict[str, Taylor]) -> str:
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
        advice = "ng.check_adjoint(problem.model, theta), which tells jvp from vjp"
    lines = [head, f"  ∂_θ f against finite differences: {_sizes(test)}"]
    lines += [f"  {name} by itself: {_sizes(part)}" for name, part in parts.items()]
    return "\n".join([*lines, f"  Try: {advice}."] if advice else lines)


def _sizes(test: Taylor) -> str:
    said = "right" if test.passed else "WRONG"
    return f"{said}, relative error down to {test.error:.1e}, remainders of order {test.order:.1f}"
