"""Metrics on unstructured meshes: dense oracles, convergence to the regular grid, closed forms."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import Delaunay

import dense_oracle
import natgrad as ng
from natgrad.core.operators import as_dense
from problems_for_tests import with_slow

skfem = pytest.importorskip("skfem", reason="scikit-fem is not installed")
pytest.importorskip("pyamg", reason="pyamg is not installed")

SPARSE, MULTIGRID = ng.metrics.Elliptic("sparse"), ng.metrics.Elliptic("multigrid")
NAMES = ("L2", "H1", "H-1", "dotH1", "dotH-1", "W2")


def metric_on(
    name: str, space: ng.fem.Space, elliptic: ng.metrics.Elliptic = SPARSE
) -> ng.metrics.Metric:
    if name == "L2":
        return ng.fem.L2(space)
    if name == "W2":
        return ng.fem.Wasserstein(space, elliptic=elliptic)
    kind = ng.fem.HomogeneousSobolev if name.startswith("dot") else ng.fem.Sobolev
    return kind(space, -1 if "-" in name else 1, elliptic)


def jittered(n: int, dim: int = 2, seed: int = 0):
    """Simplices between the points of a lattice in the unit cube, moved at random inside."""
    axis = np.linspace(0, 1, n + 1)
    kind = {2: skfem.MeshTri, 3: skfem.MeshTet}[dim]
    mesh = kind.init_tensor(*[axis] * dim)
    inside = np.all((mesh.p > 0) & (mesh.p < 1), axis=0)
    moved = np.random.default_rng(seed).uniform(-0.2 / n, 0.2 / n, mesh.p.shape)
    points = mesh.p + np.where(inside, moved, 0)
    return kind(points, Delaunay(points.T).simplices.T if dim == 2 else mesh.t)


BASES = {
    "triangles": lambda: skfem.MeshTri.init_circle(1),
    "tetrahedra": lambda: skfem.MeshTet().refined(1),
    "quadratic triangles": lambda: skfem.Basis(skfem.MeshTri().refined(), skfem.ElementTriP2()),
    "quadratic tetrahedra": lambda: skfem.Basis(skfem.MeshTet(), skfem.ElementTetP2()),
    "quadrilaterals": lambda: skfem.MeshQuad().refined(1),
    "intervals": lambda: skfem.MeshLine().refined(2),
}


def dense(name: str, mesh, rho: np.ndarray, held: bool) -> np.ndarray:
    """A from scikit-fem's own assembly, with pseudo-inverses written out."""
    basis = mesh if isinstance(mesh, skfem.CellBasis) else skfem.Basis(mesh, mesh.elem())
    basis = skfem.Basis(basis.mesh, basis.elem, intorder=8)
    kept = np.setdiff1d(np.arange(basis.N), basis.get_dofs().all() if held else [])
    dot = lambda u, v: sum(u.grad[i] * v.grad[i] for i in range(len(u.grad)))
    assembled = lambda form, **data: (
        skfem.BilinearForm(form).assemble(basis, **data).toarray()[np.ix_(kept, kept)]
    )
    M, K = assembled(lambda u, v, _: u * v), assembled(lambda u, v, _: dot(u, v))
    if name == "W2":
        K = assembled(lambda u, v, w: w.rho * dot(u, v), rho=rho)
    if name in ("L2", "H1", "dotH1"):
        return {"L2": M, "H1": M + K, "dotH1": K}[name]
    if name == "H-1":
        return M @ np.linalg.inv(M + K) @ M
    if held:
        return M @ np.linalg.inv(K) @ M
    carrier, masses = rho if name == "W2" else np.ones(len(M)), M.sum(axis=0)
    P = np.eye(len(M)) - np.outer(carrier, masses) / (masses @ carrier)
    return P.T @ M @ dense_oracle.pseudo_inverse(K) @ M @ P


@eqx.filter_jit
def everything(metric: ng.metrics.Metric, rho: jax.Array, c: jax.Array):
    geometry = metric.at(rho)
    L = geometry.factor
    remainder = geometry.remainder(c) if geometry.annihilates else jnp.zeros_like(c)
    information = geometry.information(jnp.eye(len(rho)))[0]
    return as_dense(L), as_dense(L.T), as_dense(geometry.gram), information, remainder, (
        geometry.whiten(c)
    )  # fmt: skip


def check_against_dense(name: str, mesh, boundary: str, elliptic: ng.metrics.Elliptic) -> None:
    space = ng.fem.Space(mesh, boundary)  # pyright: ignore
    generator = np.random.default_rng(0)
    rho = np.exp(0.3 * generator.normal(size=space.size))
    c = generator.normal(size=space.size)
    expected = dense(name, mesh, rho, boundary == "dirichlet")
    metric = metric_on(name, space, elliptic)
    found = everything(metric, jnp.asarray(rho), jnp.asarray(c))
    L, transposed, gram, information, remainder = map(np.asarray, found[:-1])
    b = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found[-1])])
    close = lambda a, b, size: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * size)
    scale = np.abs(expected).max()
    for matrix in (L.T @ L, gram, information):
        close(matrix, expected, scale)
    close(transposed, L.T, np.abs(L).max())
    close(c - L.T @ b, remainder, np.abs(c).max())
    shortest = np.linalg.pinv(L.T, rcond=1e-10) @ (c - remainder)
    close(b, shortest, np.abs(shortest).max())
    assert metric.at(rho).annihilates == (
        np.linalg.matrix_rank(expected, tol=1e-10 * scale) < len(c)
    )


FAST = [*(("triangles", name) for name in ("L2", "dotH1", "H-1", "W2")), ("tetrahedra", "W2")]


@pytest.mark.parametrize(
    ("basis", "name"),
    [
        pytest.param(basis, name, marks=[pytest.mark.slow] * ((basis, name) not in FAST))
        for basis in BASES
        for name in NAMES
    ],
)
def test_metric_against_its_dense_oracle(basis: str, name: str):
    """A, its factor and transpose, G, and (Lᵀ)† with what it does not see."""
    check_against_dense(name, BASES[basis](), "neumann", SPARSE)


@pytest.mark.parametrize("name", with_slow(["H-1", "W2"], ["H-1"]))
def test_multigrid_against_the_dense_oracle(name: str):
    check_against_dense(name, BASES["triangles"](), "neumann", MULTIGRID)


@pytest.mark.parametrize("name", with_slow(["dotH1", "dotH-1", "L2"], ["dotH1", "L2"]))
def test_functions_that_vanish_on_the_boundary(name: str):
    check_against_dense(name, skfem.MeshTri.init_circle(2), "dirichlet", SPARSE)


# --- convergence ---------------------------------------------------------------------------------


def cosines(x: jax.Array) -> list[jax.Array]:
    """Tangents without a normal derivative on the boundary, as the grid's metrics expect."""
    waves = [jnp.cos(np.pi * x[..., i]) for i in range(x.shape[-1])]
    return [waves[0], waves[0] * waves[1], 0.5 + waves[-1] ** 2]


def bump(x: jax.Array) -> jax.Array:
    return jnp.exp(0.8 * jnp.cos(np.pi * x[..., 0]) * jnp.cos(np.pi * x[..., 1]))


def information(metric: ng.metrics.Metric, points: jax.Array) -> np.ndarray:
    columns = jnp.stack(cosines(points))
    return np.asarray(eqx.filter_jit(lambda m, r, c: m.at(r).information(c)[0])(
        metric, bump(points), columns
    ))  # fmt: skip


def grid_information(name: str, dim: int, sizes: tuple[int, int]) -> np.ndarray:
    """G on a regular grid, its second-order error extrapolated away."""
    kinds = {"L2": ng.L2, "W2": ng.Wasserstein}
    sobolev = ng.HomogeneousSobolev if name.startswith("dot") else ng.Sobolev
    kind = kinds.get(name, lambda grid: sobolev(grid, -1 if "-" in name else 1))
    grids = [ng.Grid((0.0,) * dim, (1.0,) * dim, (n,) * dim) for n in sizes]
    coarse, fine = (information(kind(grid), grid.points) for grid in grids)
    ratio = (sizes[1] / sizes[0]) ** 2
    return (ratio * fine - coarse) / (ratio - 1)


def rates(errors: list[float] | np.ndarray) -> np.ndarray:
    """Observed orders, where each mesh has half the spacing of the one before."""
    return np.log2(np.array(errors[:-1]) / np.array(errors[1:]))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


MESHES = {
    "square": lambda level: jittered(10).refined(level),
    "cube": lambda level: jittered(5 * 2**level, 3),  # scikit-fem's refinement flattens some cells
}


@pytest.mark.parametrize(
    ("domain", "grids"),
    [("square", (20, 40)), pytest.param("cube", (12, 24), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", with_slow(NAMES, {*NAMES} - {"W2"}))
def test_convergence_to_the_metric_of_the_regular_grid(name: str, domain: str, grids):
    """G on irregular meshes tends to that on regular grids, at second order."""
    spaces = [ng.fem.Space(MESHES[domain](level)) for level in range(2)]
    expected = grid_information(name, spaces[0].dimension, grids)
    found = [information(metric_on(name, space), space.points) for space in spaces]
    errors = [relative_error(G, expected) for G in found]
    assert errors[-1] < 0.04
    assert rates(errors)[-1] == pytest.approx(2.0, abs=0.2), errors


@eqx.filter_jit
def squares_on_a_disc(space: ng.fem.Space) -> tuple[jax.Array, jax.Array]:
    """⟨ζ, Aζ⟩ of two motions with a known potential."""
    x, y = space.points.T
    rest = 1 - x**2 - y**2
    dual = metric_on("dotH-1", space).at(x).gram.mv(x) @ x
    zeta = 4 * x * rest
    return dual, metric_on("W2", space).at(rest**2).gram.mv(zeta) @ zeta


def test_closed_forms_on_a_disc():
    """−Δφ = x has φ = (3 − r²)x/8; a density that vanishes at the edge is moved along by φ = x."""
    spaces = [ng.fem.Space(skfem.MeshTri.init_circle(level)) for level in (3, 4)]
    found = np.array([squares_on_a_disc(space) for space in spaces])
    errors = np.abs(found / [7 * np.pi / 96, np.pi / 3] - 1)
    assert np.all(errors[-1] < 0.025)
    np.testing.assert_allclose(rates(errors), 2.0, atol=0.15)


def test_quadratic_elements_are_of_higher_order():
    """Nodal values of the interpolant and not the moments: between third and fourth order."""
    errors = []
    for level in (1, 2):
        mesh = jittered(2).refined(level)
        space = ng.fem.Space(skfem.Basis(mesh, skfem.ElementTriP2()))
        zeta = jnp.cos(np.pi * space.points[:, 0])
        product = eqx.filter_jit(lambda metric, zeta: metric.at(zeta).gram.mv(zeta))
        found = zeta @ product(ng.fem.HomogeneousSobolev(space, -1), zeta)
        errors.append(abs(float(found) * 2 * np.pi**2 - 1))
    assert rates(errors)[-1] > 3.4, errors


# --- directions and runs -------------------------------------------------------------------------


class Bumps(eqx.Module):
    """θ ↦ a density with two bumps at the nodes of a mesh."""

    points: jax.Array

    def __call__(self, theta: jax.Array) -> jax.Array:
        at = lambda mean: jnp.exp(-((self.points - mean) ** 2).sum(-1) / 0.3)
        return 0.3 + theta[4] * at(theta[:2]) + at(theta[2:4])


THETA = jnp.array([0.3, 0.1, -0.4, -0.2, 0.8])


@pytest.fixture(scope="module")
def disc() -> ng.fem.Space:
    return ng.fem.Space(skfem.MeshTri.init_circle(2))


@pytest.fixture(scope="module")
def problem(disc) -> ng.Problem:
    model = Bumps(disc.points)
    return ng.Problem(model, ng.LeastSquares(model(THETA + 0.2), disc))


SOLVERS = {"Cholesky": ng.Cholesky(), "QR": ng.QR(), "CG": ng.CG(tolerance=1e-12)}


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("H-1", "QR"),
        *(
            pytest.param(name, solver, marks=pytest.mark.slow)
            for name in NAMES
            for solver in SOLVERS
            if (name, solver) != ("H-1", "QR")
        ),
    ],
)
def test_direction_against_the_dense_one(name: str, solver: str, disc, problem):
    """G η = −∂_θ f with every matrix written out, though the tangents change the mass."""
    metric = metric_on(name, disc)
    found = ng.natural_gradient(problem, THETA, metric=metric, solver=SOLVERS[solver], damping=0.0)
    mesh, model = skfem.MeshTri.init_circle(2), problem.model
    rho, Z = np.asarray(model(THETA)), np.asarray(jax.jacobian(Bumps(disc.points))(THETA))
    gradient = Z.T @ dense("L2", mesh, rho, False) @ (rho - np.asarray(problem.loss.target))
    expected = -np.linalg.solve(Z.T @ dense(name, mesh, rho, False) @ Z, gradient)
    np.testing.assert_allclose(found.eta, expected, rtol=1e-6)


@pytest.mark.slow
def test_a_run_by_multigrid_follows_the_one_by_factorisation(disc, problem):
    runs = [
        ng.minimize(problem, THETA, ng.NaturalGradient(metric_on("W2", disc, elliptic), solver=ng.Cholesky()), stop=ng.Stop(iterations=3))
        for elliptic in (SPARSE, MULTIGRID)
    ]  # fmt: skip
    losses = [np.asarray(run.history["loss"]) for run in runs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-8)
    assert np.all(np.diff(losses[0]) < 0)
    # one factorisation for each accepted density, not one for each product
    assert disc.matrices.invert.cache_info().misses < 20


def test_what_info_says():
    """A solve that was given up, on a mesh that is not small enough for a single level."""
    space = ng.fem.Space(skfem.MeshTri.init_circle(4))
    model, multigrid = Bumps(space.points), ng.metrics.Elliptic("multigrid", max_iterations=1)
    given_up = ng.natural_gradient(
        ng.Problem(model, ng.LeastSquares(model(THETA + 0.2), space)),
        THETA,
        metric=metric_on("W2", space, multigrid),
        solver=ng.Cholesky(),
    )
    assert given_up.info.status == "metric_not_converged"
    assert given_up.info.metric["elliptic"] == "multigrid"
    assert float(given_up.info.metric["floored"]) == 0.0


@eqx.filter_jit
def products(metric: ng.metrics.Metric, rho: jax.Array, zeta: jax.Array):
    geometry = metric.at(rho)
    rows = geometry.image(zeta[None])[0]
    return geometry.gram.mv(zeta), geometry.whiten(zeta), geometry.remainder(zeta), rows


@pytest.mark.parametrize("name", ["W2", pytest.param("dotH-1", marks=pytest.mark.slow)])
def test_a_batch_is_independent_functions(name: str):
    space = ng.fem.Space(BASES["triangles"]())
    generator = np.random.default_rng(4)
    rhos = jnp.asarray(np.exp(generator.normal(size=(2, 1, space.size))))
    zetas = jnp.asarray(generator.normal(size=(2, 1, space.size)))
    metric = metric_on(name, space)
    together = products(metric, rhos, zetas)
    for i in range(2):
        alone = products(metric, rhos[i, 0], zetas[i, 0])
        for batched, one in zip(
            jax.tree.leaves(together[:3]), jax.tree.leaves(alone[:3]), strict=True
        ):
            np.testing.assert_allclose(batched[i, 0], one, rtol=1e-9, atol=1e-12)
    squares = [np.sum(np.square(products(metric, rhos[i, 0], zetas[i, 0])[3])) for i in range(2)]
    assert float(jnp.sum(together[3] ** 2)) == pytest.approx(sum(squares), rel=1e-12)


def test_derivatives(disc):
    """Of ⟨ζ, A(ρ)ζ⟩ with respect to both, against differences; a solve is not looked into."""
    generator = np.random.default_rng(5)
    rho, direction = (jnp.asarray(generator.uniform(1, 2, disc.size)) for _ in range(2))
    metric = metric_on("W2", disc)

    @jax.jit
    def square(t: jax.Array) -> jax.Array:
        zeta = jnp.sin(disc.points[:, 0] + t)
        return zeta @ metric.at(rho + t * direction).gram.mv(zeta)

    slope, base = jax.grad(square)(0.0), square(0.0)
    gaps = [abs(float(square(t) - base - t * slope)) for t in (1e-2, 5e-3)]
    assert rates(gaps)[0] == pytest.approx(2.0, abs=0.05)


def test_losses(disc):
    """The integrals of the interpolants, and the same as the distance in L²."""
    model, generator = Bumps(disc.points), np.random.default_rng(6)
    rho, target = map(eqx.filter_jit(model), (THETA, THETA + 0.1))
    least = ng.LeastSquares(target, disc)(rho)
    M = dense("L2", skfem.MeshTri.init_circle(2), np.asarray(rho), False)
    assert float(least) == pytest.approx(
        float(0.5 * (rho - target) @ M @ (rho - target)), rel=1e-12
    )
    distance = ng.SquaredDistance(target, ng.fem.L2(disc))(rho)
    assert float(distance) == pytest.approx(float(least), rel=1e-12)
    assert float(ng.fem.L2(disc).squared_distance(rho, target)) == pytest.approx(2 * float(least))
    divergence = ng.KullbackLeibler(target, disc)
    assert float(divergence(target)) == pytest.approx(0.0, abs=1e-15)
    # its Hessian at the target is ∫ ζ²/ρ* dx
    zeta = jnp.asarray(generator.normal(size=disc.size))
    second = jax.jit(lambda rho, zeta: jax.jvp(jax.grad(divergence), (rho,), (zeta,))[1])
    hessian = second(target, zeta) @ zeta
    expected = disc.integrate(lambda z, r: z**2 / r, zeta, target)
    assert float(hessian) == pytest.approx(float(expected), rel=1e-12)
    assert ng.checks.check_gradient(ng.Problem(model, divergence), THETA).passed
    assert float(disc.integral(jnp.ones(disc.size))) == pytest.approx(np.pi, rel=0.03)


def test_densities_with_a_vacuum_between():
    """Two bumps with 10⁻¹⁰ between them: both methods carry mass across."""
    space = ng.fem.Space(skfem.MeshTri.init_circle(4))
    x = space.points[:, 0]
    rho = 1e-10 + jnp.exp(-(((jnp.abs(x) - 0.6) / 0.1) ** 2))
    zeta = jnp.where(x > 0, rho, -rho)
    product = eqx.filter_jit(lambda metric: metric.at(rho).gram.mv(zeta))
    direct, iterated = (product(metric_on("W2", space, e)) for e in (SPARSE, MULTIGRID))
    np.testing.assert_allclose(iterated, direct, rtol=0, atol=1e-6 * np.abs(direct).max())


@pytest.mark.parametrize("solver", ["sparse", "multigrid"])
def test_what_cannot_be_solved_is_nan(solver: str, disc):
    """A source that is not a number, a density that is not positive, and a lost pivot."""
    a, source = np.ones((64, 1)), np.zeros(disc.size)
    source[:2] = 1.0, -1.0
    lost = np.where(np.arange(64) == 0, 1e300, 1e-300)[:, None]
    cases = [(a, source * np.nan), (a * np.nan, source), (-a, source), (a, source)]
    if solver == "sparse":
        cases.insert(0, (lost, source))
    for weights, b in cases:
        inverse = disc.matrices.invert("stiffness", solver, weights.tobytes())
        phi, _, _, converged = inverse(b[None], 1e-12, 100)
        assert bool(converged[0]) == bool(np.isfinite(phi).all())
        assert bool(converged[0]) == (weights is a and b is source)


# --- bad input -----------------------------------------------------------------------------------


def two_discs():
    first = skfem.MeshTri.init_circle(1)
    return first + first.translated((3.0, 0.0))


def flat_cell():
    points = np.array([[0.0, 1, 0, 2], [0.0, 0, 1, 0]])
    return skfem.MeshTri(points, np.array([[0, 0], [1, 1], [2, 3]]))


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("mesh: is a list", lambda s: ng.fem.Space([1.0])),
        ("mesh: has no cells", lambda s: ng.fem.Space(skfem.MeshTri(np.zeros((2, 3)), np.zeros((3, 0), int)))),
        ("mesh: 1 cells have no volume", lambda s: ng.fem.Space(flat_cell())),
        ("mesh: ElementTriP0 is not a Lagrange", lambda s: ng.fem.Space(skfem.Basis(skfem.MeshTri(), skfem.ElementTriP0()))),
        ("mesh: ElementTriCR is not a Lagrange", lambda s: ng.fem.Space(skfem.Basis(skfem.MeshTri(), skfem.ElementTriCR()))),
        ("mesh: ElementTriRT1 is not a Lagrange", lambda s: ng.fem.Space(skfem.Basis(skfem.MeshTri(), skfem.ElementTriRT1()))),
        ("mesh: ElementVector is not a Lagrange", lambda s: ng.fem.Space(skfem.Basis(skfem.MeshTri(), skfem.ElementVector(skfem.ElementTriP1())))),
        ("mesh: the basis is on some cells", lambda s: ng.fem.Space(skfem.Basis(skfem.MeshTri(), skfem.ElementTriP1(), elements=np.array([0])))),
        ("mesh: all its nodes", lambda s: ng.fem.Space(skfem.MeshTri(), "dirichlet")),
        ("boundary: 'periodic'", lambda s: ng.fem.Space(skfem.MeshTri(), "periodic")),
        ("space: the mesh falls into 2 parts", lambda s: ng.fem.Wasserstein(ng.fem.Space(two_discs()))),
        ("space: the mesh falls into 2 parts", lambda s: ng.fem.HomogeneousSobolev(ng.fem.Space(two_discs()), -1)),
        ("space: transport conserves mass", lambda s: ng.fem.Wasserstein(ng.fem.Space(skfem.MeshTri().refined(), "dirichlet"))),
        ("space: is a Grid", lambda s: ng.fem.L2(ng.Grid(0.0, 1.0, 4))),
        ("s: 2 is not", lambda s: ng.fem.Sobolev(s, 2)),
        ("s: True is not", lambda s: ng.fem.HomogeneousSobolev(s, True)),
        ("floor: 0", lambda s: ng.fem.Wasserstein(s, floor=0)),
        ("elliptic: 'line' is for grids", lambda s: ng.fem.Wasserstein(s, elliptic=ng.metrics.Elliptic("line"))),
        ("elliptic: is a str", lambda s: ng.fem.Wasserstein(s, elliptic="sparse")),
        ("elliptic: meshes are solved in double", lambda s: ng.fem.Wasserstein(s, elliptic=ng.metrics.Elliptic(precision="single"))),
        ("state: has shape", lambda s: s.integral(jnp.ones(3))),
        ("model: the state has shape", lambda s: ng.natural_gradient(ng.Problem(lambda t: t, jnp.sum), jnp.ones(3), metric=ng.fem.L2(s))),
        ("model: the density has 1 negative", lambda s: direction(s, jnp.ones(s.size).at[3].set(-1.0))),
        ("model: a density has zero mass", lambda s: direction(s, jnp.zeros(s.size))),
        ("target: a density has zero mass", lambda s: ng.KullbackLeibler(jnp.zeros(s.size), s)),
        ("space: was made in single", lambda s: single().check(jnp.ones(13))),
    ],
)  # fmt: skip
def test_bad_input(message: str, make, disc):
    with pytest.raises(ng.InputError) as error:
        make(disc)
    assert str(error.value).startswith(message)


def direction(space: ng.fem.Space, rho: jax.Array):
    problem = ng.Problem(lambda t: t[0] * rho, ng.LeastSquares(rho, space))
    return ng.natural_gradient(problem, jnp.ones(1), metric=ng.fem.Wasserstein(space))


def single() -> ng.fem.Space:
    with jax.enable_x64(False):
        return ng.fem.Space(skfem.MeshTri.init_circle(1))


@pytest.mark.parametrize(("package", "name"), [("skfem", "scikit-fem"), ("pyamg", "pyamg")])
def test_a_missing_package_is_named_with_the_extra(package: str, name: str, disc, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ng.InputError, match=rf"{name} is not installed.*natgrad\[fem\]"):
        ng.fem.Wasserstein(ng.fem.Space(None) if package == "skfem" else disc, elliptic=MULTIGRID)


def test_parts_that_only_a_homogeneous_metric_minds():
    space = ng.fem.Space(two_discs())
    assert space.size == 26
    u = jnp.ones(26)
    square = u @ eqx.filter_jit(lambda m, u: m.at(u).gram.mv(u))(ng.fem.Sobolev(space, -1), u)
    assert float(square) == pytest.approx(float(space.integral(u)), rel=1e-12)


@pytest.mark.slow
def test_single_precision():
    space = single()
    rho = jnp.ones(13, jnp.float32)
    zeta = space.points[:, 0]
    product = metric_on("W2", space).at(rho).gram.mv(zeta)
    assert product.dtype == jnp.float32
    twin = ng.fem.Space(skfem.MeshTri.init_circle(1))
    expected = dense("W2", skfem.MeshTri.init_circle(1), np.ones(13), False) @ twin.points[:, 0]
    np.testing.assert_allclose(product, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
