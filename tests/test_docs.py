"""Every Python block of the README, CONTRIBUTING and the documentation runs as written."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import natgrad as ng

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> str:
    return "\n".join(BLOCK.findall(page.read_text()))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_page(page: Path):
    """The blocks of a page run one after the other, as a reader would type them."""
    exec(compile(blocks(page), str(page), "exec"), {"__name__": page.stem})


def test_the_contract_of_the_public_api():
    """The example that the design promises, with its results."""
    grid = ng.Grid(lower=(-2.75, -2.75), upper=(7.25, 7.25), shape=(70, 70))

    def gaussian(mean):
        return jnp.exp(-((grid.points - jnp.asarray(mean)) ** 2).sum(-1) / 1.2) / (1.2 * jnp.pi)

    def mixture(mu):
        return 0.2 * gaussian(mu) + 0.8 * gaussian([4.0, 3.0])

    target = 0.3 * gaussian([1.0, 3.0]) + 0.7 * gaussian([3.0, 2.0])
    problem = ng.Problem(mixture, ng.LeastSquares(target, grid))
    theta = jnp.array([4.5, 2.0])
    result = ng.minimize(
        problem,
        theta,
        metric=ng.Wasserstein(grid),
        step=ng.FixedStep(3.0),
        max_iterations=200,
    )
    assert result.converged
    assert jnp.allclose(result.theta, jnp.array([2.399571, 1.841651]), atol=1e-5)
    assert result.history["loss"][-1] == pytest.approx(0.0403465, abs=1e-7)
    d = ng.natural_gradient(
        problem,
        theta,
        metric=ng.Sobolev(grid, -1),
        solver=ng.PivotedQR(rtol=1e-10),
        damping=0.0,
    )
    gradient = jax.grad(lambda t: problem.value(t, problem.model(t)))(theta)
    assert float(d.eta @ gradient) < 0
    assert d.info.rank == 2
    assert 1.0 <= d.info.condition < 10.0
