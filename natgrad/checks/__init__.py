"""Checks of what a user wrote: adjoints, gradients, Taylor remainders."""

from .derivatives import AdjointReport, GradientReport, check_adjoint, check_gradient
from .taylor import Taylor

__all__ = ["AdjointReport", "GradientReport", "Taylor", "check_adjoint", "check_gradient"]
