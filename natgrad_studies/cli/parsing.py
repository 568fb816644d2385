"""From arguments to a command. Unknown names are rejected before the parser sees them."""

import io
import re
from contextlib import redirect_stderr
from dataclasses import fields, make_dataclass
from functools import reduce
from importlib.metadata import version
from inspect import cleandoc
from operator import or_
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from ..registry import COMPARABLE, STUDIES
from ..settings import unknown
from .commands import COMMANDS, STUDY_EXAMPLES, STUDY_SUMMARY, RunStudy, starting_settings
from .output import UsageError

ABOUT = (
    "Natural gradient descent in the metric of your choice: studies and their reports.\n\n"
    "natgrad --version, or -V, prints the version."
)
EXAMPLES = (
    "natgrad list",
    "natgrad study gaussian-mixture --preset demo --output results/mixture",
    "natgrad resume results/mixture",
    "natgrad report results/mixture --output mixture.html",
    "natgrad --version",
)


WANTED = {  # what Python says of a text that is none
    r"invalid literal for int\(\) with base 10": "a whole number",
    "could not convert string to float": "a number",
}
OPTIONAL = tyro.constructors.ConstructorRegistry()


@OPTIONAL.primitive_rule
def _optional(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """A value that may be absent: INT in the help, not {None}|INT, and `none` for its absence."""
    kinds = get_args(info.type)
    if len(kinds) != 2 or type(None) not in kinds or kinds[0] not in (int, float, str, Path):
        return None
    kind: Any = kinds[0]
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: None if words[0].lower() == "none" else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def parse(arguments: list[str]) -> Any:
    """The command, a dataclass with `run(output)`."""
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"natgrad {version('natgrad')}")
        raise SystemExit(0)
    if arguments and not arguments[0].startswith("-"):
        _check(arguments)
    elif arguments and not {"-h", "--help"} & set(arguments):
        raise UsageError(f"no command; one of {', '.join(('study', *COMMANDS))}, or --help")
    command = read_arguments(arguments or ["--help"])
    return getattr(command, "chosen_study", command)


def read_arguments(arguments: list[str]) -> Any:
    """What tyro makes of the arguments; its complaints in one line."""
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(
                _all_commands(arguments),
                prog="natgrad",
                description=_describe(ABOUT, EXAMPLES),
                args=arguments,
                config=(
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.OmitSubcommandPrefixes,
                    tyro.conf.FlagCreatePairsOff,
                ),
                registry=OPTIONAL,
            )
    except SystemExit as end:
        if not end.code:  # the help has been printed
            raise
        raise UsageError(_in_one_line(complaint.getvalue())) from None


def _all_commands(arguments: list[str]) -> Any:
    """All commands as one type; that which is asked for is described with examples."""
    asked = arguments[0] if arguments else ""
    types = [_study_type(arguments)]
    for name, command in COMMANDS.items():
        first = command.__doc__.partition("\n")[0]
        about = _describe(command.__doc__, command.EXAMPLES) if name == asked else first
        types.append(Annotated[command, tyro.conf.subcommand(name, description=about)])
    return reduce(or_, types)


def _study_type(arguments: list[str]) -> Any:
    """`study` with one command a study; the one that is named starts from preset and file."""
    asked = arguments[1] if arguments[:1] == ["study"] and len(arguments) > 1 else ""
    types = []
    for name, study in STUDIES.items():
        preset, config = _value(arguments, "--preset"), _value(arguments, "--config")
        chosen = starting_settings(study, *((preset, config) if name == asked else (None, None)))
        examples = [example for example in STUDY_EXAMPLES if f" {name} " in example]
        first = next(iter(study.presets))
        examples = examples or [f"natgrad study {name} --preset {first} --output results/{name}"]
        about = _describe(study.about, examples if name == asked else ())
        command: Any = RunStudy[type(chosen)]  # pyright: ignore[reportInvalidTypeArguments]
        described = tyro.conf.subcommand(name, default=RunStudy(chosen), description=about)
        types.append(Annotated[command, described])
    whole: Any = make_dataclass("StudyCommand", [("chosen_study", reduce(or_, types))], frozen=True)
    shown = STUDY_EXAMPLES if arguments[:1] == ["study"] else ()
    about = _describe(STUDY_SUMMARY, shown)
    return Annotated[whole, tyro.conf.subcommand("study", description=about)]


def _check(arguments: list[str]) -> None:
    """Refuse a command, a study or a flag that is not known, with the nearest one."""
    name, *rest = arguments
    if name not in ("study", *COMMANDS):
        raise UsageError(unknown("command", name, ("study", *COMMANDS)))
    known = {"--help", "--json"}
    if name in ("study", "compare") and (not rest or rest[0] == "--json"):
        known_studies = STUDIES if name == "study" else COMPARABLE
        raise UsageError(f"no study; one of {', '.join(known_studies)}")
    if name != "study":
        known |= _flags(COMMANDS[name])
    elif not rest[0].startswith("-"):
        if rest[0] not in STUDIES:
            raise UsageError(unknown("study", rest[0], list(STUDIES)))
        known |= {"--config"} | _flags(STUDIES[rest[0]].first_preset)
    for argument in rest:
        flag = argument.partition("=")[0].replace("_", "-")
        if argument.startswith("--") and flag not in known:
            raise UsageError(unknown("option", flag, sorted(known)))


def _flags(settings: Any) -> set[str]:
    kind = settings if isinstance(settings, type) else type(settings)
    kinds = get_type_hints(kind, include_extras=True)
    positional = lambda name: tyro.conf.Positional in getattr(kinds[name], "__metadata__", ())
    names = (field.name for field in fields(settings) if not positional(field.name))
    return {"--" + name.replace("_", "-") for name in names}


def _value(arguments: list[str], flag: str) -> str | None:
    """The last value of a flag, wanted before parsing because it sets the defaults."""
    found = None
    for position, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            found = argument.partition("=")[2]
        if argument == flag and position + 1 < len(arguments):
            found = arguments[position + 1]
    return found


def _describe(about: str | None, examples: Any) -> str:
    lines = "".join(f"\n  {example}" for example in examples)
    about = cleandoc(about or "")
    return f"{about}\n\nExamples:{lines}" if lines else about


def _in_one_line(box: str) -> str:
    """The first paragraph of a message of tyro's, which has a frame, or rules alone in ASCII."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│ ") for line in plain.splitlines() if not line.startswith(("╭", "╰"))]
    blocks: list[list[str]] = [[]]
    for line in lines:
        if len(line) > 2 and set(line) <= {"─", "-"}:
            blocks.append([])
        else:
            blocks[-1].append(line)
    message = blocks[0] if "╭" in plain else blocks[min(1, len(blocks) - 1)]  # after its title
    told = " ".join(" ".join(message).split()) or "the arguments make no command"
    for words, wanted in WANTED.items():
        told = re.sub(rf"Error parsing (\S+): {words}: (.*)", rf"\1 needs {wanted}, not \2", told)
    return told
