"""A model outside JAX whose Jacobian is a matrix."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.flatten_util import ravel_pytree

from ..errors import InputError
from .host import named, to_numpy

PyTree = Any


class GivenJacobian:
    """ρ at one θ, and the matrix Z there once a product asks for it."""

    def __init__(self, forward: Callable[[Any], Any], jacobian: Callable[[Any], Any], theta: Any):
        self.rho = named("forward", forward, to_numpy(theta))
        self._jacobian, self._theta = jacobian, theta

    def push(self, eta: PyTree) -> PyTree:
        """Zη, like the state."""
        return ravel_pytree(self.rho)[1](self._matrix @ np.asarray(ravel_pytree(eta)[0]))

    def pull(self, xi: PyTree) -> PyTree:
        """Zᵀξ, like θ."""
        return ravel_pytree(self._theta)[1](self._matrix.T @ np.asarray(ravel_pytree(xi)[0]))

    @functools.cached_property
    def _matrix(self) -> Any:
        Z = named("jacobian", self._jacobian, to_numpy(self._theta))
        wanted = ravel_pytree(self.rho)[0].size, ravel_pytree(self._theta)[0].size
        if getattr(Z, "shape", None) != wanted:
            what = f"returns {getattr(Z, 'shape', type(Z).__name__)} where Z is {wanted}"
            raise InputError("jacobian", what, "a matrix, sparse or not, or a LinearOperator")
        return Z
