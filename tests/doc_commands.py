"""The pages and the commands on them, and whether such a command could run.

A command is a line of a ```bash block, or a code span that starts like one. A span that starts with
`--` holds options of the last command before it. Nothing is executed.
"""

import ast
import dataclasses
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from natgrad.errors import InputError
from natgrad_studies.cli.commands import Compare, RunStudy
from natgrad_studies.cli.output import UsageError
from natgrad_studies.cli.parsing import parse
from natgrad_studies.comparing import CompareSettings
from natgrad_studies.registry import STUDIES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"--[a-z][\w-]*")
PREFIX = re.compile(r"^(?:taskset -c \d+ |[A-Z_]+=\S* )+")
STARTS = ("natgrad ", "make ", "python ", "--")


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
        return None if words[0] == "apt" else f"nobody knows {words[0]}"
    return check(words[1:], whole)


def _natgrad(words: list[str], whole: bool) -> str | None:
    if not whole and words[0] == "study":
        settings = STUDIES[words[1]].presets["demo"]
        fields = {f.name for f in (*dataclasses.fields(settings), *dataclasses.fields(RunStudy))}
        return _unknown(words, fields)
    try:
        command = parse(words)
        if isinstance(command, RunStudy):
            command.settings.check()
        elif isinstance(command, Compare):
            _comparison(command).check()
    except (UsageError, InputError) as error:
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
