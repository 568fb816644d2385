"""An equation h(u, θ) = 0 on a line, its dense derivatives, and outside code that solves it."""

from functools import lru_cache
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from scipy import sparse

import dense_oracle as oracle
import natgrad as ng
from problems_for_tests import close

N, P = 12, 4
GRID = ng.Grid(0.0, 1.0, N)
THETA = np.array([0.3, -0.4, 0.2, 0.5])
_x = np.asarray(GRID.points)[:, 0]
B = np.stack([np.cos(np.pi * j * _x) for j in range(P)], axis=1)
D = oracle.difference_matrix(N, GRID.spacing[0], "neumann")
SYMMETRIC = 0.02 * D.T @ D
UPWIND = SYMMETRIC + 0.1 * (np.eye(N) - np.eye(N, k=-1)) / GRID.spacing[0]
SOURCE = 1.0 + _x**2


class Equation(eqx.Module):
    """h(u, θ) = Ku + e^{Bθ} u + c u³ − s. Linear for c = 0; u > 0 for the matrices here."""

    K: Array
    c: Array

    def __init__(self, K: np.ndarray, c: float = 0.0):
        self.K, self.c = jnp.asarray(K), jnp.asarray(c)

    def __call__(self, u: Array, theta: Array) -> Array:
        return self.K @ u + jnp.exp(jnp.asarray(B) @ theta) * u + self.c * u**3 - SOURCE


def tangent_matrix(K: np.ndarray, c: float, u: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """∂h/∂u."""
    return K + np.diag(np.exp(B @ theta) + 3 * c * u**2)


def state(K: np.ndarray, c: float, theta: np.ndarray) -> np.ndarray:
    """u(θ), by Newton's method in NumPy."""
    u = np.zeros(N)
    for _ in range(30 if c else 1):
        h = K @ u + np.exp(B @ theta) * u + c * u**3 - SOURCE
        u = u - np.linalg.solve(tangent_matrix(K, c, u, theta), h)
    return u


def jacobian(K: np.ndarray, c: float, theta: np.ndarray) -> np.ndarray:
    """Z = −(∂h/∂u)⁻¹ ∂h/∂θ."""
    u = state(K, c, theta)
    return -np.linalg.solve(tangent_matrix(K, c, u, theta), (np.exp(B @ theta) * u)[:, None] * B)


class Outside:
    """A code outside JAX for the linear equation, which keeps a record of its calls."""

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        self.calls: dict[str, list] = {}
        self.fail: dict[str, int] = {}  # raise at this call
        self.spoil: dict[str, int] = {}  # return NaN from this call on

    def record(self, name: str, argument=None) -> float:
        calls = self.calls.setdefault(name, [])
        calls.append(np.array(argument) if argument is not None else None)
        if self.fail.get(name) == len(calls):
            raise ArithmeticError(f"{name} failed")
        return np.nan if self.spoil.get(name, 10**9) <= len(calls) else 1.0

    def count(self, name: str) -> int:
        return len(self.calls.get(name, []))

    def forward(self, theta):
        factor = self.record("forward", theta)
        u = factor * state(UPWIND, 0.0, theta)
        theta[:] = np.nan  # what it is given is its own
        return u

    def linearize(self, theta):
        factor = self.record("linearize", theta)
        u = state(UPWIND, 0.0, theta)
        return SimpleNamespace(rho=factor * u, Z=jacobian(UPWIND, 0.0, theta))

    def jvp(self, theta, eta):
        return self.record("jvp") * (self.columns(theta) @ eta)

    def vjp(self, theta, xi):
        return self.record("vjp") * (self.columns(theta).T @ xi)

    def columns(self, place):
        if isinstance(place, np.ndarray):
            Z = jacobian(UPWIND, 0.0, place)
            place[:] = np.nan
            return Z
        return place.Z

    def factorise(self, u, theta):
        self.record("factorise", theta)
        matrix = tangent_matrix(UPWIND, 0.0, u, theta)
        return ng.models.SparseLU(sparse.csc_matrix(matrix))


CODE = Outside()  # one for all tests: programs are kept by the identity of these functions


class Plain:
    """A dense factorisation that takes one right-hand side at a time."""

    def __init__(self, matrix):
        self.matrix = matrix

    def solve(self, b):
        assert b.shape == (N,)
        return np.linalg.solve(self.matrix, b)

    def solve_transposed(self, b):
        return np.linalg.solve(self.matrix.T, b)


def factorise_nonlinear(u, theta):
    return Plain(tangent_matrix(UPWIND, 0.5, u, theta))


def jax_solve(theta):
    """The nonlinear state by a fixed number of Newton steps."""
    u, q = jnp.zeros(N), jnp.exp(jnp.asarray(B) @ theta)
    for _ in range(8):
        matrix = jnp.asarray(UPWIND) + jnp.diag(q + 1.5 * u**2)
        u = u - jnp.linalg.solve(matrix, UPWIND @ u + q * u + 0.5 * u**3 - SOURCE)
    return u


def explicit_state(theta):
    return jnp.linalg.solve(UPWIND + jnp.diag(jnp.exp(B @ theta)), jnp.asarray(SOURCE))


def diagonal_preconditioner(u, theta):
    return lx.DiagonalLinearOperator(1.0 / (np.diag(UPWIND) + jnp.exp(B @ theta)))


def two_fields(fields, theta):
    """u as above with θ in two pieces, and v driven by u."""
    u, v = fields["u"], fields["v"]
    first = LINEAR(u, jnp.concatenate([theta["a"], theta["b"]]))
    return {"u": first, "v": v + 0.3 * v**3 - theta["b"][0] * u}


def split(theta):
    return {
        "a": theta[:3],
        "b": theta[3:],
        "name": "split",
        "number": np.arange(2, dtype=np.uint32),
    }


def outside_split_forward(theta):
    u = state(UPWIND, 0.0, np.concatenate([theta["a"], theta["b"]]))
    return {"u": u[:5], "v": u[5:].reshape(1, 7)}


def outside_split_jvp(theta, eta):
    Z = jacobian(UPWIND, 0.0, np.concatenate([theta["a"], theta["b"]]))
    du = Z @ np.concatenate([eta["a"], eta["b"]])
    return {"u": du[:5], "v": du[5:].reshape(1, 7)}


def outside_split_vjp(theta, xi):
    Z = jacobian(UPWIND, 0.0, np.concatenate([theta["a"], theta["b"]]))
    g = Z.T @ np.concatenate([xi["u"], xi["v"].ravel()])
    return {"a": g[:3], "b": g[3:], "name": None, "number": np.zeros(2)}


LINEAR, NONLINEAR, SELF_ADJOINT = Equation(UPWIND), Equation(UPWIND, 0.5), Equation(SYMMETRIC)
TIGHT = lx.GMRES(rtol=1e-13, atol=1e-13, restart=N, stagnation_iters=2)
ZEROS = jnp.zeros(N)


@lru_cache
def model(kind: str) -> ng.models.Model:
    """One model of each kind."""
    of = ng.ImplicitModel
    outside = (CODE.jvp, CODE.vjp)
    make = {
        "explicit forward": lambda: ng.models.Explicit(explicit_state, mode="forward"),
        "explicit reverse": lambda: ng.models.Explicit(explicit_state, mode="reverse"),
        "pointwise": lambda: ng.Pointwise(
            lambda t, x: jnp.sin(t[:3] @ t[1:] * x[0] + t[0]), GRID.points
        ),
        "gmres": lambda: of(LINEAR, initial=ZEROS, linear=True, linear_solver=TIGHT),
        "preconditioned": lambda: of(
            LINEAR,
            initial=ZEROS,
            linear=True,
            linear_solver=TIGHT,
            preconditioner=diagonal_preconditioner,
        ),
        "lu": lambda: of(LINEAR, initial=ZEROS, linear=True, linear_solver=lx.LU()),
        "cg": lambda: of(
            SELF_ADJOINT,
            initial=ZEROS,
            linear=True,
            linear_solver=lx.CG(1e-14, 1e-14),
            tags=lx.positive_semidefinite_tag,
        ),
        "newton": lambda: of(NONLINEAR, initial=lambda t: jnp.exp(-t[0]) * jnp.ones(N)),
        "host": lambda: of(LINEAR, initial=ZEROS, linear=True, factorise=CODE.factorise),
        "host newton": lambda: of(NONLINEAR, initial=ZEROS, factorise=factorise_nonlinear),
        "solve": lambda: of(NONLINEAR, jax_solve, linear_solver=lx.LU()),
        "observed": lambda: of(NONLINEAR, jax_solve, factorise=factorise_nonlinear, observe=seen),
        "observed nonlinear": lambda: of(
            LINEAR, initial=ZEROS, linear=True, linear_solver=lx.LU(), observe=seen_squares
        ),
        "pytree": lambda: of(two_fields, initial={"u": np.zeros(N, int), "v": np.zeros(N)}),
        "external": lambda: ng.ExternalModel(CODE.forward, *outside),
        "external linearize": lambda: ng.ExternalModel(CODE.forward, *outside, CODE.linearize),
        "external only linearize": lambda: ng.ExternalModel(None, *outside, CODE.linearize),
        "external pytree": lambda: ng.ExternalModel(
            outside_split_forward, outside_split_jvp, outside_split_vjp
        ),
    }
    return make[kind]()


KINDS = (
    *("explicit forward", "explicit reverse", "pointwise"),
    *("gmres", "preconditioned", "lu", "cg", "newton", "host", "host newton", "solve"),
    *("observed", "observed nonlinear", "pytree"),
    *("external", "external linearize", "external only linearize", "external pytree"),
)


def seen(u):
    return u[::5]


def seen_squares(u):
    return {"squares": u[:7] ** 2, "mean": jnp.mean(u)[None]}


def parameters(kind: str):
    theta = jnp.asarray(THETA)
    return split(theta) if "pytree" in kind else theta


# --- a problem with it, and its direction by dense matrices

Z, RHO = jacobian(UPWIND, 0.0, THETA), state(UPWIND, 0.0, THETA)
TARGET = state(UPWIND, 0.0, THETA + np.array([0.2, 0.1, -0.3, 0.2]))
LOSS = ng.LeastSquares(jnp.asarray(TARGET), GRID)
START = jnp.asarray(THETA)
w = GRID.cell_volume
METRICS = {
    "L2": (ng.L2(GRID), w * np.eye(N)),
    "H-1": (ng.Sobolev(GRID, -1), oracle.sobolev(GRID, -1, False)),
    "W2": (ng.Wasserstein(GRID), oracle.transport(GRID, RHO, 0.5, "staggered")),
}
NEAR = lx.MatrixLinearOperator(
    jnp.asarray(np.linalg.inv(1.1 * (Z.T @ Z * w) + 1e-4 * np.eye(4))),
    lx.positive_semidefinite_tag,
)
SOLVERS = {
    "CG": (ng.CG(1e-13), 0.0),
    "LSMR": (ng.LSMR(1e-13), 0.0),
    "CG diagonal": (ng.CG(1e-13, preconditioner=ng.solvers.Diagonal(4)), 0.0),
    "CG Nystrom": (ng.CG(1e-13, preconditioner=ng.solvers.Nystrom(2)), 1e-3),
    "CG Nystrom of full rank": (ng.CG(1e-13, preconditioner=ng.solvers.Nystrom(20)), 0.0),
    "CG given": (ng.CG(1e-13, preconditioner=NEAR), 0.0),
    "CG none": (ng.CG(1e-13, preconditioner=None), 1e-3),
    "LSMR given": (ng.LSMR(1e-13, preconditioner=NEAR), 1e-3),
    "LSMR diagonal": (ng.LSMR(1e-13, preconditioner=ng.solvers.Diagonal(4)), 0.0),
    "RandomizedSVD": (ng.RandomizedSVD(4), 1e-3),
    "Cholesky": (ng.Cholesky(), 0.0),
    "Kernel": (ng.Kernel(), 1e-3),
}


def matches_the_oracle(kind: str, metric: ng.metrics.Metric, A: np.ndarray, solver: str):
    solve, damping = SOLVERS[solver]
    problem = ng.Problem(model(kind), LOSS)
    d = ng.natural_gradient(problem, START, metric=metric, solver=solve, damping=damping)
    gradient = Z.T @ (w * (RHO - TARGET))
    G = Z.T @ A @ Z + d.info.damping * np.eye(4)
    close(d.gradient, gradient)
    close(d.eta, -np.linalg.solve(G, gradient))
    return d
