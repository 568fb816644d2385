"""Settings in files: round trips for every preset, and what is said of a wrong one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from natgrad import InputError
from natgrad.report import plain
from natgrad_studies.registry import STUDIES, study_of
from natgrad_studies.settings import convert, fill, read_toml, to_toml

PRESETS = [
    pytest.param(study, settings, id=f"{study.name}-{name}")
    for study in STUDIES.values()
    for name, settings in study.presets.items()
]


@dataclass(frozen=True)
class Every:
    """A field of each type."""

    whole: int = 1
    number: float = 2.0
    flag: bool = False
    text: str = "a"
    path: Path = Path("p")
    choice: Literal["one", "two"] = "one"
    perhaps: float | None = None
    file: Path | None = None
    several: tuple[int, ...] = (1,)
    names: tuple[str, ...] = ()


ODD = Every(
    whole=-(10**20),
    number=1e-300,
    flag=True,
    text='quote " back \\ line \n tab \t delete \x7f µ ∞',
    path=Path("a b/ç"),
    choice="two",
    perhaps=float("inf"),
    file=Path("file"),
    several=(),
    names=("x", ""),
)


def _through_toml(settings, base, path):
    path.write_text(to_toml(settings, "natgrad study x --config settings.toml"), encoding="utf-8")
    return fill(base, read_toml(path), str(path))


@pytest.mark.parametrize(("study", "settings"), PRESETS)
def test_every_preset_survives_toml_and_json(study, settings, tmp_path):
    for base in study.presets.values():
        assert _through_toml(settings, base, tmp_path / "settings.toml") == settings
        assert fill(base, plain(settings), "settings.json") == settings
    assert study_of(settings) is study


@pytest.mark.parametrize("settings", [Every(), ODD])
def test_every_type_survives_toml(settings, tmp_path):
    for base in (Every(), ODD):
        assert _through_toml(settings, base, tmp_path / "settings.toml") == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pints = 3", "file: unknown key 'pints'. Try: 'points'"),
        ("zzz = 3", "file: unknown key 'zzz'. Try: one of preset, output"),
        ("points = 'x'", "file: points is 'x'. Try: a whole number"),
        ("points = 30.0", "file: points is 30.0. Try: a whole number"),
        ("points = true", "file: points is True. Try: a whole number"),
        ("gamma = '0.1'", "file: gamma is '0.1'. Try: a number"),
        ("gamma = false", "file: gamma is False. Try: a number"),
        ("output = 3", "file: output is 3. Try: a path"),
        ("methods = 'L2'", "file: methods is 'L2'. Try: a list, each entry a text"),
        ("layers = [3, 'x']", "file: layers is [3, 'x']. Try: a list, each entry a whole number"),
        ("fidelity = 'our'", "file: fidelity is 'our'. Try: 'ours', or another of ours, authors"),
        ("[points]\nx = 3", "file: points is {'x': 3}. Try: a whole number"),
    ],
)
def test_a_wrong_key_or_value_is_named(text, message, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        fill(STUDIES["poisson-pinn"].presets["demo"], read_toml(path), "file")
    assert str(caught.value).startswith(message)


def test_an_optional_value_may_be_absent_and_nothing_else():
    base = STUDIES["gaussian-mixture"].presets["paper"]
    assert fill(base, {"floor": "None"}, "file") == replace(base, floor=None)
    with pytest.raises(InputError, match='Try: a number or "None"'):
        fill(base, {"floor": "x"}, "file")
    assert convert([1, 2.5], tuple[float, ...]) == (1.0, 2.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"points = 3\nthis is no line", "line 2"),
        (b"points = \xff", "not TOML"),
        (b"points = 3\npoints = 4\n", "line 2"),
        (None, "there is no file"),
    ],
)
def test_a_file_that_is_not_toml_is_refused_with_its_line(content, message, tmp_path):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_toml(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path)
