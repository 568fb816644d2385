"""Checks of what a user wrote: adjoints, gradients, Taylor remainders."""
