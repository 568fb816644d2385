"""Every Python block of the README, CONTRIBUTING and the documentation runs as written, every
command there could be run, and every file that a page names is there."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import natgrad as ng
from doc_commands import FENCE, PAGES, ROOT, commands, fault

# packages that a block may import without natgrad depending on them
OPTIONAL = ("torch", "deepwave", "optax", "optimistix", "skfem")
FILE = re.compile(r"`(?:\w+ )?((?:natgrad|tests|docs|examples|benchmarks)/[\w/]+\.\w+)")


def blocks(page: Path, package: str | None = None) -> str:
    """The blocks that import the optional package; by default those that import none."""
    python = [code for language, code in FENCE.findall(page.read_text()) if language == "python"]
    imports = lambda p, code: f"import {p}" in code or f"integrations.{p} import" in code
    needed = lambda code: next((p for p in OPTIONAL if imports(p, code)), None)
    return "\n".join(code for code in python if needed(code) == package)


def run(page: Path, package: str | None = None) -> None:
    exec(compile(blocks(page, package), str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of a page run one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)  # where a page saves a result
    run(page)


@pytest.mark.parametrize(
    ("page", "package"),
    [pytest.param(p, o, id=f"{p.name}-{o}") for p in PAGES for o in OPTIONAL if blocks(p, o)],
)
def test_page_with_an_optional_package(page: Path, package: str):
    """Blocks that need one stand by themselves."""
    pytest.importorskip(package, reason=f"{package} is not installed: its blocks were not run")
    run(page, package)


@pytest.mark.parametrize("page", [p for p in PAGES if any(commands(p))], ids=lambda p: p.name)
def test_commands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Subcommands, studies, options, targets and scripts exist, and settings pass their checks."""
    monkeypatch.chdir(tmp_path)
    for said, command in commands(page):
        for word in command.split():
            if word.endswith((".npy", ".toml")):
                Path(word).touch()  # the reader's own file
        assert fault(command, whole=not said.startswith("--")) is None, said


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("natgrad study gausian-mixture", "unknown study"),
        ("natgrad study darcy --cels 3", "unknown option"),
        ("natgrad study darcy --cells no", "cells"),
        ("natgrad study darcy --cells -3", "cells"),
        ("natgrad steady darcy", "unknown command"),
        ("natgrad compare darci", "unknown study"),
        ("natgrad compare darcy --metrics L3", "L3"),
        ("make coffee", "no target coffee"),
        ("python benchmarks/bench_nothing.py", "no file benchmarks/bench_nothing.py"),
        ("python benchmarks/bench_transport.py --sises 3", "no option --sises"),
        ("python examples/burgers.py --widht 3", "no option --widht"),
        ("pip install natgrad[coffee]", "no extra coffee"),
        ("brew coffee", "nobody knows brew"),
    ],
)
def test_a_wrong_command_is_noticed(command: str, why: str):
    assert why in str(fault(command, whole=True))


def test_a_wrong_option_by_itself_is_noticed():
    assert fault("natgrad study darcy --cels", whole=False) == "no option --cels"
    assert fault("natgrad study darcy --cells", whole=False) is None


def test_files_exist():
    """Apart from the one that a contributor is asked to write."""
    named = {(page.name, name) for page in PAGES for name in FILE.findall(page.read_text())}
    missing = {(page, name) for page, name in named if not (ROOT / name).is_file()}
    assert missing == {("add_a_metric.md", "natgrad/metrics/weighted_l2.py")}


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
