"""Checks of what a user wrote: adjoints, gradients, Taylor remainders."""

from .derivatives import AdjointReport, GradientReport, Taylor, check_adjoint, check_gradient

__all__ = ["AdjointReport", "GradientReport", "Taylor", "check_adjoint", "check_gradient"]
