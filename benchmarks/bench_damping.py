"""How λ should follow the steps of a dense direction: today's rule beside those of the literature.

    python benchmarks/bench_damping.py                     # three problems, two seeds
    python benchmarks/bench_damping.py --problems reaction --iterations 200

Small networks of the record book, errors after so many iterations, which no clock changes. All
rules share the recipe `ng.levenberg_marquardt`, its line search along a curve included.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tables import show_table

import natgrad as ng
from natgrad_studies.records.case import Case, Field, relative_error
from natgrad_studies.records.problems import CASES

POINTS, WIDTH = 0.1, 0.35  # times those of full size


class GainRatio(ng.LevenbergMarquardt):
    """λ × max(`decrease`, 1 − (2ϱ − 1)³) after an accepted step (Nielsen 1999).

    ϱ is the decrease over that of the quadratic model, for a small λ half the linear one.
    """

    def update(self, strength: Array, outcome: Any) -> Array:
        gain = jnp.clip(2.0 * outcome.ratio, 0.0, 1.0)
        smooth = jnp.maximum(jnp.asarray(self.decrease), 1.0 - (2.0 * gain - 1.0) ** 3)
        return strength * jnp.where(outcome.accepted, smooth, jnp.asarray(self.increase))


RULES = {
    "× 1/3 or 1/9, × 4 (the recipe)": ng.LevenbergMarquardt,
    "× 1/10 or 1/100, × 4": lambda: ng.LevenbergMarquardt(decrease=0.1),
    "delayed gratification, × 1/5 or 1/25, × 1.5": lambda: ng.LevenbergMarquardt(
        decrease=0.2, increase=1.5
    ),
    "gain ratio, × 1/3 at best": GainRatio,
    "gain ratio, × 1/10 at best": lambda: GainRatio(decrease=0.1),
}


def measure(case: Case, rule: Any, seed: int, marks: list[int]) -> tuple[list[float], int]:
    """The error of the network at each mark, and the halvings in all."""
    reference = case.reference()
    points = jnp.asarray(reference.points.reshape(-1, reference.points.shape[-1]))
    evaluate = jax.jit(lambda theta: jax.vmap(Field(case, theta))(points))
    pinn, errors = case.collocation(seed), dict.fromkeys(marks, float("nan"))

    def look(seen: Any) -> None:
        if seen.iteration in errors:
            found = np.asarray(evaluate(seen.theta)).reshape(reference.values.shape)
            errors[seen.iteration] = relative_error(found, reference.values)

    result = ng.minimize(
        *(pinn.problem, case.start(seed), ng.levenberg_marquardt(pinn.metric, damping=rule)),
        stop=ng.Stop(iterations=max(marks), gradient=0.0),
        callbacks=[look],
        progress=False,
    )
    return list(errors.values()), int(np.nansum(result.history["halvings"]))


def compare(given: argparse.Namespace, marks: list[int]) -> Iterator[list[Any]]:
    for problem in given.problems:
        case = CASES[problem]().scaled(POINTS, WIDTH)
        for name, rule in RULES.items():
            for seed in given.seeds:
                errors, halvings = measure(case, rule(), seed, marks)
                yield [problem, name, seed, *errors, halvings]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", nargs="+", default=["helmholtz", "reaction", "burgers"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--iterations", type=int, default=120)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    marks = [given.iterations // 4, given.iterations // 2, given.iterations]
    columns = ["problem", "λ", "seed", *(f"error after {mark}" for mark in marks), "halvings"]
    show_table("rules", columns, compare(given, marks), "Relative error of the network")


if __name__ == "__main__":
    main()
