"""Every Python block of the README, CONTRIBUTING and the documentation runs as written, every
command there could be run, and every file that a page names is there."""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import make_notebooks
import pytest

import natgrad as ng
from natgrad_studies.cli.commands import Compare, RunStudy
from natgrad_studies.cli.output import UsageError
from natgrad_studies.cli.parsing import parse
from natgrad_studies.comparing import CompareSettings
from natgrad_studies.registry import STUDIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"--[a-z][\w-]*")
PREFIX = re.compile(r"^(?:taskset -c \d+ |[A-Z_]+=\S* )+")
STARTS = ("natgrad ", "make ", "python ", "--")

# packages that a block may import without natgrad depending on them
OPTIONAL = ("torch", "deepwave", "optax", "optimistix", "skfem")
FOLDERS = "natgrad|natgrad_studies|tests|docs|examples|benchmarks"
FILE = re.compile(rf"`(?:\w+ )?((?:{FOLDERS})/[\w/]+\.\w+)")


def blocks(page: Path, *packages: str | None) -> str:
    """The blocks that import one of the optional packages; None stands for those without any."""
    python = [code for language, code in FENCE.findall(page.read_text()) if language == "python"]
    imports = lambda p, code: f"import {p}" in code or f".{p} import" in code
    needed = lambda code: next((p for p in OPTIONAL if imports(p, code)), None)
    if page.parent.name == "tutorials":  # one program, from its first block to its last
        whole = "\n".join(python)
        return whole if needed(whole) in packages else ""
    return "\n".join(code for code in python if needed(code) in packages)


def run(page: Path, *packages: str | None) -> None:
    exec(compile(blocks(page, *packages), str(page), "exec"), {"__name__": page.stem})


# What these show has fast tests of its own; the others are the first that a user reads.
SLOW_PAGES = (
    *("add_a_method.md", "add_a_metric.md", "add_a_model.md", "add_a_solver.md"),
    *("records.md", "transport.md"),
    *("ecosystem.md", "many_devices.md", "own_solver.md", "pinns.md", "point_clouds.md"),
    *("low_rank.md", "mini_batches.md", "unstructured.md", "waves.md", "which_metric.md"),
)
mark_page = lambda page: (
    [pytest.mark.slow] * (page.name in SLOW_PAGES or page.parent.name == "tutorials")
)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=mark_page(p), id=p.name) for p in PAGES if blocks(p, None)]
)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of a page run one after the other, as a reader would copy them.

    Those that need a package which is not installed are left out.
    """
    monkeypatch.chdir(tmp_path)  # where a page saves a result
    run(page, None, *(package for package in OPTIONAL if find_spec(package)))


@pytest.mark.parametrize(
    ("page", "package"),
    [
        pytest.param(p, o, marks=mark_page(p), id=f"{p.name}-{o}")
        for p in PAGES
        for o in OPTIONAL
        if blocks(p, o)
    ],
)
def test_page_with_an_optional_package(page: Path, package: str):
    """Blocks that need one stand by themselves."""
    pytest.importorskip(package, reason=f"{package} is not installed: its blocks were not run")
    run(page, package)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs/tutorials").glob("*.md")), ids=lambda p: p.stem
)
def test_a_notebook_is_that_of_its_page(page: Path):
    """Its cells are the blocks of the page, which run above."""
    path, text = make_notebooks.written(page)
    assert path.read_text(encoding="utf-8") == text, "python docs/make_notebooks.py"
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    cells = "\n".join("".join(cell["source"]) for cell in code[1:])
    python = "\n".join(b for language, b in FENCE.findall(page.read_text()) if language == "python")
    assert ast.dump(ast.parse(cells)) == ast.dump(ast.parse(python))
    assert "".join(code[0]["source"]).startswith("%pip install")


def test_files_exist():
    """Apart from those that a contributor is asked to write."""
    named = {(page.name, name) for page in PAGES for name in FILE.findall(page.read_text())}
    missing = {(page, name) for page, name in named if not (ROOT / name).is_file()}
    assert missing == {
        ("add_a_metric.md", "natgrad/metrics/weighted_l2.py"),
        ("add_a_model.md", "natgrad/models/squashed.py"),
        ("add_a_solver.md", "natgrad/solvers/eigenvalues.py"),
        ("add_a_method.md", "natgrad/descent/scaled.py"),
    }


def test_public_names_stay_what_they_are_when_their_modules_are_imported():
    importlib.import_module("natgrad.descent.minimize")
    assert ng.minimize.__name__ == "minimize"
    modules = {name for name in ng.__all__ if isinstance(getattr(ng, name), ModuleType)}
    assert all(importlib.import_module(f"natgrad.{name}") is getattr(ng, name) for name in modules)
    assert all(callable(getattr(ng, name)) for name in {*ng.__all__} - modules)
    assert {*ng.__all__} <= {*dir(ng)}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ng.nonsense  # noqa: B018


def reference() -> dict[str, Any]:
    """The objects of the API pages, by their dotted names."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    names = [name for page in pages for name in re.findall(r"^::: (.+)$", page.read_text(), re.M)]
    assert len(names) == len(set(names)), "a name is on two pages"
    found: dict[str, Any] = {}
    for name in names:
        module, _, own = name.rpartition(".")
        if own not in ("Deepwave", "Devito", "NaturalGradientDescent", "NaturalDescent"):
            found[name] = getattr(importlib.import_module(module), own)
    return found


def test_the_api_pages_have_every_public_name_with_all_its_arguments():
    found = reference()
    named = {id(value) for value in found.values()}
    for module in (ng, ng.pinn, ng.waves, ng.fem, ng.samples):
        # base classes and what only natgrad makes
        unlisted = {"March", "Stages", "Staged", "Weighting"}
        names = set(module.__all__) - unlisted
        assert all(id(getattr(module, name)) in named for name in names), module
    made_by_natgrad = (ng.Result, ng.Comparison, ng.Status, ng.models.Counts)
    for name, value in found.items():
        is_report = name.startswith("natgrad.report.") or name.endswith(("Report", "Taylor"))
        if is_report or value in made_by_natgrad or not callable(value):
            continue
        _, _, listed = (inspect.getdoc(value) or "").partition("\nArgs:\n")
        documented = re.findall(r"^    \*{0,2}(\w+): \S", listed, re.M)
        parameters = inspect.signature(value).parameters.values()
        # `_` and `**given` are those of classes without settings, which refuse all
        expected = [p.name for p in parameters if p.name not in ("unknown", "_", "given")]
        assert documented == expected, name


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
        ng.NaturalGradient(ng.Wasserstein(grid), step=ng.FixedStep(3.0)),
        stop=ng.Stop(iterations=200),
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


# --- commands
#
# A command is a line of a ```bash block, or a code span that starts like one. A span that starts
# with `--` holds options of the last command before it. Nothing is executed.


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Pairs (what the page says, the command with its options)."""
    last = ""
    for said in _said(page.read_text()):
        command = PREFIX.sub("", said.removesuffix("…").strip())
        if command.startswith("--"):
            yield said, f"{last} {command}"
        else:
            last = " ".join(word for word in command.split()[:3] if not word.startswith("-"))
            yield said, command


def _said(text: str) -> Iterator[str]:
    position = 0
    for fence in FENCE.finditer(text):
        yield from _spans(text[position : fence.start()])
        if fence[1] == "bash":
            for line in fence[2].replace("\\\n", " ").splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    yield line.strip()
        position = fence.end()
    yield from _spans(text[position:])


def _spans(text: str) -> Iterator[str]:
    for span in SPAN.findall(text):
        if PREFIX.sub("", span).startswith(STARTS):
            yield span


def fault(command: str, whole: bool) -> str | None:
    """Why the command could not run, or None. Of options alone (not `whole`) only the names count,
    as they may stand there without a value."""
    words = shlex.split(command, comments=True)
    known = {"natgrad": _natgrad, "make": _make, "python": _python, "pip": _pip}
    check = known.get(words[0])
    if check is None:
        return None if words[0] in ("apt", "conda") else f"nobody knows {words[0]}"
    return check(words[1:], whole)


def _natgrad(words: list[str], whole: bool) -> str | None:
    if not whole and words[0] == "study":
        settings = STUDIES[words[1]].first_preset
        fields = {f.name for f in (*dataclasses.fields(settings), *dataclasses.fields(RunStudy))}
        return _unknown(words, fields)
    try:
        command = parse(words)
        if isinstance(command, RunStudy):
            command.settings.check()
        elif isinstance(command, Compare):
            _comparison(command).check()
    except (UsageError, ng.InputError) as error:
        return str(error)
    except SystemExit as end:  # help, when it is asked for
        return str(end.code) if end.code else None
    return None


def _comparison(command: Compare) -> CompareSettings:
    if command.study not in STUDIES:
        raise UsageError(f"unknown study {command.study}")
    of = next(iter(STUDIES[command.study].presets.values()))
    budget = command.iterations, command.propagations, command.seconds
    named = command.study, of, command.metrics, command.solvers
    return CompareSettings(*named, *budget, command.output)


def _make(words: list[str], whole: bool) -> str | None:
    targets = re.findall(r"^([a-z][\w -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = {target for line in targets for target in line.split()}
    wrong = [word for word in words if "=" not in word and word not in known]
    return f"no target {wrong[0]}" if wrong else None


def _python(words: list[str], whole: bool) -> str | None:
    if words[:2] == ["-m", "natgrad_studies.records"]:
        return _natgrad(["study", "records", *words[2:]], whole)
    script = ROOT / words[0]
    if not script.is_file():
        return f"no file {words[0]}"
    return _unknown(words, _options(script))


def _pip(words: list[str], whole: bool) -> str | None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        for extra in re.findall(r"natgrad\[(\w+)\]", word):
            if extra not in project["optional-dependencies"]:
                return f"no extra {extra}"
    return None


def _unknown(words: list[str], known: set[str]) -> str | None:
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name not in known:
            return f"no option {word}"
    return None


@cache
def _options(script: Path) -> set[str]:
    """The options that the script names, and the arguments of its `main`, which tyro makes some."""
    names = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            names |= {argument.arg for argument in node.args.args + node.args.kwonlyargs}
        elif isinstance(node, ast.Constant) and OPTION.fullmatch(str(node.value)):
            names.add(str(node.value))
    return {name.removeprefix("--").replace("-", "_") for name in names}


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


def test_the_first_screen_of_the_readme_has_the_commands_to_begin_with():
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("![")[0]
    for command in ("pip install", "make demo", "make test"):
        assert re.search(rf"^{command}\b", first, re.MULTILINE), command


def test_all_files_of_the_release_agree():
    """The version and the dependencies are written in four places."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "conda/meta.yaml").read_text()
    assert f'version = "{ng.__version__}"' in recipe
    assert project["version"] == ng.__version__
    assert f"\nversion: {ng.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"[{ng.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    for needed in project["dependencies"]:
        assert f"- {needed.replace('>=', ' >=')}\n" in recipe
