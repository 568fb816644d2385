"""Why W₂ alone stalls in `examples/point_cloud.py`: its direction taken apart, and what cures it.

Run by `python benchmarks/bench_point_clouds.py --ring 200`.
"""

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from tables import show_table

import natgrad as ng

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import point_cloud

W2 = ng.samples.Wasserstein
FRESH = 3000  # samples that took no part in the direction


def setting(count: int) -> tuple[ng.Problem, eqx.nn.MLP]:
    """The problem and the start of the example."""
    z = jax.random.normal(jax.random.key(1), (count, 2))
    key = jax.random.key(0)
    network = eqx.nn.MLP(2, 2, 16, 2, activation=jnp.tanh, dtype=z.dtype, key=key)
    loss = ng.samples.EnergyDistance(point_cloud.ring(count, 0))
    return ng.Problem(point_cloud.Generator(z), loss), network


def length(v: Array | np.ndarray) -> float:
    """√E|v|²."""
    return float(np.sqrt(np.mean(np.sum(np.asarray(v) ** 2, axis=-1))))


def anatomy(problem: ng.Problem, network: eqx.nn.MLP) -> list[float]:
    """Lengths of the force and of the motions Zη that its seen part and the rest of it ask for.

    The force is F = −N ∂f/∂xᵢ, its seen part PF = N LᵀLF. Then the shares of |F|² that W₂ sees, of
    |Zη|² that it sees, and of |Zη|² that is a gradient on fresh samples at an eighth of h.
    """
    parameters, static = eqx.partition(network, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(parameters)
    model = lambda theta: problem.model(eqx.combine(unravel(theta), static))
    x = model(theta)
    shape, size = x.shape, x.size
    Z = np.asarray(jax.jacfwd(model)(theta)).reshape(size, -1)
    F = -len(x) * np.asarray(jax.grad(problem.loss)(x)).ravel()
    L = np.asarray(jax.vmap(W2().factor(x).mv)(jnp.eye(size).reshape(size, *shape))).T
    G = (L @ Z).T @ (L @ Z)
    G += point_cloud.DAMPING * np.trace(G) / len(G) * np.eye(len(G))
    direction = lambda force: np.linalg.solve(G, Z.T @ force / len(x))
    motion = lambda force: (Z @ direction(force)).reshape(shape)
    seen = len(x) * L.T @ (L @ F)
    share = lambda v: float(np.sum((L @ v.ravel()) ** 2)) / length(v) ** 2
    z = jax.random.normal(jax.random.key(7), (FRESH, 2))
    fresh = lambda theta: jax.vmap(eqx.combine(unravel(theta), static))(z)
    y, v = jax.jvp(fresh, (theta,), (jnp.asarray(direction(F)),))
    fine = W2(bandwidth=float(W2().width(y)) / 8, ridge=0.1, centres=400)
    gradient = float(jnp.sum(fine.factor(y).mv(v) ** 2)) / length(v) ** 2
    force = F.reshape(shape)
    lengths = [length(u) for u in (force, motion(F), motion(seen), motion(F - seen))]
    return [*lengths, share(force), share(motion(F)), gradient]


def run(count: int) -> None:
    """Three tables."""
    problem, network = setting(count)
    points = (1 / count) * ng.L2()
    minimize = lambda metric, damping, iterations: ng.minimize(
        problem,
        network,
        ng.NaturalGradient(metric, damping=damping),
        stop=ng.Stop(iterations=iterations),
    )
    rows = [[0, *anatomy(problem, network)]]
    for iterations in (3, 10, 30):
        found = minimize(W2(), point_cloud.DAMPING, iterations)
        rows.append([iterations, *anatomy(problem, found.theta)])
    columns = ["iteration", "F", "Zη", "Zη due to PF", "Zη due to F − PF"]
    columns += ["F seen", "Zη seen", "Zη a gradient", "Zη over F"]
    rows = [[*row, row[2] / row[1]] for row in rows]
    show_table("anatomy", columns, rows, f"Ring, {count} samples: W₂ in its own run")
    usual = point_cloud.DAMPING
    rivals = {
        "E|v|²": (points, usual),
        **{f"E|v|², λ {damping:g}": (points, damping) for damping in (1e-2, 1e-1)},
        "W₂": (W2(), usual),
        **{f"λ {damping:g}": (W2(), damping) for damping in (1e-2, 1e-1, 1.0, 10.0)},
        "ridge 0.01": (W2(ridge=0.01), usual),
        "50 centres": (W2(centres=50), usual),
        **{f"h {h:g}": (W2(bandwidth=h), usual) for h in (1.2, 0.6, 0.3)},
        **{f"+ {share:g} E|v|²": (W2() + share * points, usual) for share in (0.01, 0.1, 0.5)},
    }
    rows = []
    for name, (metric, damping) in rivals.items():
        history = minimize(metric, damping, 30).history
        rows.append([name, float(np.nanmedian(history["step"])), float(history["loss"][-1])])
    columns = ["metric", "median step", "energy distance"]
    show_table("cures", columns, rows, f"Ring, {count} samples: 30 iterations")
    rows = []
    for scale in (1.0, 0.5, 0.25, 0.125):
        costs = []
        for seed in range(3):
            x = jnp.asarray(np.random.default_rng(seed).normal(size=(count, 2)))
            turn = jnp.stack([-x[:, 1], x[:, 0]], axis=1)
            metric = W2(bandwidth=scale * float(W2().width(x)))
            costs.append(float(jnp.sum(metric.factor(x).mv(turn) ** 2)) / length(turn) ** 2)
        rows.append([scale, float(np.mean(costs))])
    title = f"{count} samples: what W₂ charges for turning a ball, of E|v|²; exact is 0"
    show_table("turn", ["h / default", "share"], rows, title)
