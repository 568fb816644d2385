"""Errors of the metrics on point clouds against exact information matrices, and what they cost.

    python benchmarks/bench_point_clouds.py [--draws 3] [--largest 4800]
    python benchmarks/bench_point_clouds.py --ring 200

Relative errors of G in the Frobenius norm, the mean over independent draws of the samples.
"affine" is N(m, AAᵀ) in the parameters m and A, whose W₂ matrix is that of Bures; "wave" a bent
ridge in the plane with six parameters, whose matrices are those of the grid's metrics on 256² (W₂:
384²) cells; "line" a monotone map on a line with three parameters and two humps, whose W₂ matrix is
E[∂T∂Tᵀ], as on a grid; "isotropic" N(m, σ²I) in m and σ, whose Hˢ matrices are integrals.
"Euclidean" is E|v|². A graph Laplacian with Gaussian weights takes part as the other way to
discretise −∇·(ρ∇φ). `--ring` is a study of its own, of the example with that many samples.
"""

import argparse
from collections.abc import Callable

import cloud_cases as cases
import cloud_ring
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from tables import best, show_table

import natgrad as ng

W2 = ng.samples.Wasserstein
HS = ng.samples.Sobolev


def mean_error(
    map: Callable, theta, dimension: int, count: int, metric, exact, draws: int
) -> float:
    """Of the metric, or of the function (x, V) ↦ G that stands for one."""
    errors = []
    for seed in range(draws):
        z = cases.normal(count, dimension, seed)
        if isinstance(metric, ng.metrics.Metric):
            G = cases.information(map, theta, z, metric)
        else:
            G = metric(*samples_and_motions(map, theta, z))
        errors.append(cases.error(G, exact))
    return float(np.mean(errors))


def samples_and_motions(map: Callable, theta, z) -> tuple[np.ndarray, np.ndarray]:
    flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, theta))
    columns = jax.jacfwd(lambda v: map(unravel(v), z))(flat)
    return np.asarray(map(theta, z)), np.moveaxis(np.asarray(columns), -1, 0)


def graph_laplacian(width: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """G = bᵀK†b on the graph of all pairs with weights exp(−|x − y|²/2ε²)/√(qq′).

    ε is `width` times the mean distance to the tenth neighbour; q the kernel density. An edge
    carries the flux of the mean velocity along it, and the energy of φ is Σ w (φᵢ − φⱼ)².
    """

    def information(x: np.ndarray, V: np.ndarray) -> np.ndarray:
        dimension = x.shape[1]
        squares = ((x[:, None] - x) ** 2).sum(-1)
        epsilon = width * np.sort(np.sqrt(squares), axis=1)[:, 10].mean()
        weights = np.exp(-squares / (2 * epsilon**2))
        density = weights.sum(1)
        weights /= np.sqrt(density[:, None] * density)
        weights /= (weights * squares).sum() / dimension  # then the energy of a·x is |a|²
        K = 2 * (np.diag(weights.sum(1)) - weights)
        along = lambda v: ((v @ x.T + (v * x).sum(1)) - (x @ v.T + (v * x).sum(1)[:, None])) / 2
        flux = [weights * along(v) for v in V]
        b = np.array([F.sum(0) - F.sum(1) for F in flux])
        return b @ np.linalg.pinv(K, rcond=1e-10, hermitian=True) @ b.T

    return information


def by_samples(counts: list[int], draws: int) -> None:
    plane = cases.affine_parameters(2)
    problems = {
        "affine": (cases.affine, plane, 2, cases.affine_information(plane)),
        "wave": (cases.wave, cases.WAVE, 2, cases.wave_information(ng.Wasserstein, 384)),
        "line": (cases.line, cases.LINE, 1, cases.line_information()),
    }
    for name, (map, theta, d, exact) in problems.items():
        rivals = {"Wasserstein": lambda n: W2(), "Euclidean": lambda n: (1 / n) * ng.L2()}
        rivals |= {f"graph {w}": lambda n, w=w: graph_laplacian(w) for w in (0.7, 1.0)}
        rows = []
        for n in counts:
            slow = n > 1200  # the graph is dense, its pseudo-inverse O(N³)
            chosen = {k: m for k, m in rivals.items() if not (slow and k.startswith("graph"))}
            found = [
                mean_error(map, theta, d, n, metric(n), exact, draws) for metric in chosen.values()
            ]
            rows.append([n, *found, *[None] * (len(rivals) - len(found))])
        show_table(f"W2_{name}", ["N", *rivals], rows, f"W₂, {name}: samples")


def on_a_line(counts: list[int], draws: int) -> None:
    exact = cases.line_information()
    found = [(n, cases.line_information_on_grid(ng.Wasserstein, n)) for n in (100, 400, 1600)]
    rows = [[n, cases.error(G, exact)] for n, G in found]
    title = "W₂, line: ng.Wasserstein on a grid against E[∂T∂Tᵀ]"
    show_table("line_on_grid", ["cells", "error"], rows, title)
    rows = []
    for n in counts:
        of = lambda z, metric: cases.information(cases.line, cases.LINE, z, metric)
        clouds = [cases.normal(n, 1, seed) for seed in range(draws)]
        apart = [cases.error(of(z, W2()), of(z, (1 / n) * ng.L2())) for z in clouds]
        rows.append([n, float(np.mean(apart))])
    title = "W₂, line: against the mean of ∂T∂Tᵀ over the same samples"
    show_table("line_same_samples", ["N", "error"], rows, title)


def along_the_flow(counts: list[int]) -> None:
    covariance, steps = cases.flow(cases.TIME)[1], (10, 20, 40)
    rows = []
    for n in counts:
        for name, metric in (("W₂", W2()), ("Euclidean", (1 / n) * ng.L2())):
            z = cases.standardised(n, 2, 0)
            found = [cases.descent(z, metric, k)[1] for k in steps]
            limit = 2 * found[2] - found[1]
            rows.append([n, name, *(cases.error(S, covariance) for S in (*found, limit))])
    title = "Descent of a divergence over Gaussians: Σ at the end, by steps"
    columns = ["N", "metric", *(f"{k} steps" for k in steps), "limit"]
    show_table("descent", columns, rows, title)


def by_dimension(count: int, draws: int) -> None:
    rows = []
    for d in range(1, 7):
        theta = cases.affine_parameters(d)
        exact = cases.affine_information(theta)
        rivals = (W2(), (1 / count) * ng.L2(), graph_laplacian(1.0))
        errors = [mean_error(cases.affine, theta, d, count, m, exact, draws) for m in rivals]
        rows.append([d, *errors])
    title = f"W₂, affine, N = {count}: dimension"
    show_table("dimension", ["d", "Wasserstein", "Euclidean", "graph 1.0"], rows, title)


def by_setting(count: int, draws: int) -> None:
    exact = cases.wave_information(ng.Wasserstein, 384)
    run = lambda metric: mean_error(cases.wave, cases.WAVE, 2, count, metric, exact, draws)
    usual = float(W2().width(cases.wave(cases.WAVE, cases.normal(count, 2, 0))))
    factors = (0.25, 0.5, 1.0, 2.0)
    rows = [
        [r, *(run(W2(bandwidth=f * usual, ridge=r)) for f in factors)] for r in (0.1, 1.0, 10.0)
    ]
    title = f"W₂, wave, N = {count}: ridge, and bandwidth over the default"
    show_table("ridge", ["ridge", *map(str, factors)], rows, title)
    rows = [[m, run(W2(centres=m))] for m in (12, 25, 50, 100, 200, 400) if m <= count]
    show_table("centres", ["m", "error"], rows, f"W₂, wave, N = {count}: centres")


def sobolev(counts: list[int], draws: int) -> None:
    for s in (-1, 0, 1):
        exact = cases.wave_information(lambda grid, s=s: ng.Sobolev(grid, s), 256)
        rows = []
        for n in counts:
            found = [mean_error(cases.wave, cases.WAVE, 2, n, HS(s), exact, draws)]
            for d in (1, 2, 3, 4):
                known, theta = cases.isotropic_information(s, d), jnp.array([0.0, 1.0])
                found.append(mean_error(cases.isotropic, theta, d, n, HS(s), known, draws))
            rows.append([n, *found])
        columns = ["N", "wave", *(f"isotropic, d = {d}" for d in (1, 2, 3, 4))]
        show_table(f"H{s}", columns, rows, f"H^{s}: samples")
        n, bandwidths = counts[-1], (0.15, 0.3, 0.45, 0.6, 0.9, 1.2)
        errors = [
            mean_error(cases.wave, cases.WAVE, 2, n, HS(s, bandwidth=h), exact, draws)
            for h in bandwidths
        ]
        usual = float(HS(s).width(cases.wave(cases.WAVE, cases.normal(n, 2, 0))))
        title = f"H^{s}, wave, N = {n}: bandwidth"
        columns = ["default", *map(str, bandwidths)]
        show_table(f"H{s}_bandwidth", columns, [[usual, *errors]], title)


def cost() -> None:
    rows = []
    for d, n, m in (
        (2, 1000, 200),
        (2, 10_000, 200),
        (2, 100_000, 200),
        (2, 10_000, 800),
        (20, 10_000, 200),
    ):
        x, metric = cases.normal(n, d, 0), W2(centres=m)
        factor = jax.jit(lambda x, metric=metric: metric.factor(x).mv(x))
        seconds = best(lambda factor=factor, x=x: factor(x), least=3)
        rows.append([d, n, m, seconds, n * m * 8 / 2**20])
    title = "Cost of the set-up and one product"
    show_table("cost", ["d", "N", "m", "seconds", "kernel MiB"], rows, title)


def main(draws: int = 3, largest: int = 4800, ring: int | None = None) -> None:
    jax.config.update("jax_enable_x64", True)
    if ring is not None:
        cloud_ring.run(ring)
        return
    counts = [n for n in (75, 300, 1200, 4800, 19200) if n <= largest]
    middle = min(1200, largest)
    by_samples(counts, draws)
    on_a_line(counts, draws)
    along_the_flow(counts)
    by_dimension(middle, draws)
    by_setting(middle, draws)
    sobolev([n for n in counts if n >= 300] or counts, draws)
    cost()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=3, help="draws of the samples for each number")
    parser.add_argument("--largest", type=int, default=4800, help="the largest number of samples")
    parser.add_argument("--ring", type=int, help="samples of the ring: only why W₂ stalls there")
    main(**vars(parser.parse_args()))
