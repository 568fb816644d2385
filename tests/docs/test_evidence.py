"""Every measured number of the pages is in a file of `make evidence`, or published by others.

A measured number is one with a unit of time, memory, speed or share, or with a negative power of
ten, in plain text. Settings, tolerances and mathematics are written as code or as formulae, which
are not looked at. It is held by a table that its paragraph names, `<!-- from: transport.solves -->`
or `<!-- evidence: ... -->`; a paragraph that names none is held by all tables that its section
names. `from: published` stands for the figures of others in `docs/evidence/published.json`.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import evidence
import evidence_hook
import pytest
import readme_picture
from evidence_hook import DIRECTIVE, FOLDER

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILES = sorted(path for path in FOLDER.glob("*.json") if path.stem != "published")

FENCE = re.compile(r"^(```|~~~).*?^\1.*?$", re.M | re.S)
UNSEEN = re.compile(r"<!--.*?-->|\$\$.*?\$\$|``.*?``|`[^`\n]*`|\$[^$\n]+\$|\]\([^)\n]*\)", re.S)
FROM = re.compile(r"<!-- from: (.+?) -->")
HEADING = re.compile(r"^#+ ", re.M)
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*[-*] )")

POWER = r"10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+"
NUMBER = rf"(?<![\w.,^/])[−+-]?(?:{POWER}|\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+| ?· ?{POWER})?)(?![\w²³])"
SMALL = re.compile(r"e-\d|10⁻")
SCALES = {"ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "%": 1e-2, "min": 60.0, "minutes": 60.0}
UNITS = ("s", "seconds", "GiB", "MiB", "TiB", "GB", "MB", "kB", "GB/s", "Gflop/s", "Tflop/s")
UNIT = "|".join(map(re.escape, (*SCALES, *UNITS, "dB", "times")))
QUOTED = re.compile(rf"({NUMBER})\s?(?:({UNIT})(?![\w/]))?")
JOINED = ("–", ",", "to", "and", "or")


def paragraphs(text: str) -> Iterator[tuple[str, set[str]]]:
    """Each paragraph, list item or table with the tables that hold its numbers."""
    text = FENCE.sub("", text)
    for section in HEADING.split(text):
        shared = names(section)
        for block in BLOCK.split(section):
            yield UNSEEN.sub(" ", block), names(block) or shared


def names(text: str) -> set[str]:
    found = {f"{part}.{name}" for sources, *_ in DIRECTIVE.findall(text)
             for part, name, _ in evidence_hook.named(sources)}  # fmt: skip
    return found | {name.strip() for said in FROM.findall(text) for name in said.split(",")}


def measured(text: str) -> list[tuple[str, str]]:
    """The measured numbers of a text, each with its unit; those of a range share one."""
    found = list(QUOTED.finditer(text))
    units = [match[2] or "" for match in found]
    for i in reversed(range(len(found) - 1)):
        between = text[found[i].end() : found[i + 1].start()]
        if not units[i] and between.strip() in JOINED:
            units[i] = units[i + 1]
    return [
        (match[1], unit) for match, unit in zip(found, units, strict=True)
        if unit or SMALL.search(match[1])
    ]  # fmt: skip


def value(quoted: str) -> tuple[Decimal, Decimal]:
    """A number as it is written, and half a unit of its last digit."""
    plain = quoted.replace(",", "").replace("−", "-").replace(" ", "")
    plain = plain.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    mantissa, _, exponent = re.sub(
        "^([-+]?)10(?=-)", r"\g<1>1e", plain.replace("·10", "e")
    ).partition("e")
    scale = Decimal(10) ** int(exponent or 0)
    places = len(mantissa.partition(".")[2])
    return Decimal(mantissa) * scale, Decimal(10) ** -places / 2 * scale


def holds(number: str, unit: str, values: list[float]) -> bool:
    """Whether one of the values is this number at the digits quoted, in either scale."""
    quoted, half = map(float, value(number))
    scales = {1.0, SCALES.get(unit, 1.0)}
    return any(
        abs(abs(quoted) * scale - abs(x)) <= half * scale * (1 + 1e-9)
        for scale in scales
        for x in values
    )


def values(name: str) -> list[float]:
    """All numbers of a table, those in its texts too."""
    if name == "published":
        figures = json.loads((FOLDER / "published.json").read_text(encoding="utf-8"))
        cells = [figure["said"] for figure in figures]
    elif not (evidence_hook.FOLDER / f"{name.split('.')[0]}.json").exists():
        return []  # not run yet
    else:
        found = evidence_hook.table(*name.split(".", 1))
        cells = [cell for row in found["rows"] for cell in row] + [found["title"]]
    plain = [float(cell) for cell in cells if isinstance(cell, int | float)]
    texts = " ".join(cell for cell in cells if isinstance(cell, str))
    return plain + [float(value(number)[0]) for number in re.findall(NUMBER, texts)]


def unheld(text: str) -> list[str]:
    """The measured numbers of a page that no table holds."""
    wrong = []
    for block, named in paragraphs(text):
        known = [x for name in sorted(named) for x in values(name)]
        for number, unit in measured(block):
            if not holds(number, unit, known):
                where = " ".join(block.split())[:60]
                wrong.append(f"{number} {unit}".strip() + f" ({where} ...: {sorted(named)})")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_measured_numbers_are_held_by_evidence(page: Path):
    assert not unheld(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_directive_resolves(page: Path):
    text = page.read_text(encoding="utf-8")
    assert "<!-- evidence:" not in evidence_hook.on_page_markdown(text)
    known = {part.path.stem for part in evidence.PARTS}
    assert {name.split(".")[0] for name in names(text)} <= known | {"published"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_as_its_part_has_written_it(path: Path):
    found = json.loads(path.read_text(encoding="utf-8"))
    part = next(part for part in evidence.PARTS if part.path == path)
    assert found["digest"] == evidence.digest(found), "was changed by hand"
    assert found["command"] == part.said, "is of another command"
    assert {"commit", "date", "machine", "versions", "seconds", "tables"} <= set(found)


def test_the_picture_of_the_readme_is_that_of_the_evidence():
    """What `python docs/readme_picture.py` would write on its points and bars."""
    picture = readme_picture.PICTURE.read_text(encoding="utf-8")
    errors = [error for pair in readme_picture.networks().values() for error in pair]
    counts = [str(count) for count, _ in readme_picture.inversions().values()]
    assert len(errors) == 14
    assert len(counts) == 5
    for label in (*errors, *counts, *readme_picture.METHODS.values()):
        assert re.search(rf">{re.escape(label)}(, not reached)?</text>", picture), label
    width = re.search(r'viewBox="0 0 ([\d.]+) ', picture)
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", picture)]
    assert len(sizes) > len(errors) + len(counts)
    assert width is not None
    assert min(sizes) * 360 / float(width[1]) > 10  # pixels on a phone


def test_figures_of_others_have_a_source():
    for figure in json.loads((FOLDER / "published.json").read_text(encoding="utf-8")):
        assert {"said", "what", "source"} == set(figure)


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One file with one table."""
    rows = [["ours", 0.01832, 2.46e-14, 1120], ["theirs", 1.0287, "3.1e-13 / .72", None]]
    columns = ["method", "seconds", "error", "n"]
    content = {"tables": [{"name": "solves", "title": "", "columns": columns, "rows": rows}],
               "command": "python x.py", "commit": "0123456789 with changes",
               "date": "2026-01-02 03:04", "machine": {"CPU": "a CPU", "cores": 2}}  # fmt: skip
    (tmp_path / "made.json").write_text(json.dumps(content))
    monkeypatch.setattr(evidence_hook, "FOLDER", tmp_path)
    evidence_hook.evidence.cache_clear()
    yield
    evidence_hook.evidence.cache_clear()


@pytest.mark.parametrize(
    "sentence",
    ["takes 18 ms", "takes 18.3 ms, 0.0183 s", "takes 1.03 s", "takes 0.018 to 1.03 s",
     "has 2.46e-14", "2.5e-14 and 3 · 10⁻¹³", "`1e-9`, 500 cells", "set `dt = 7 ms`",
     "$10^{-5}$, 5 × 5, 10⁶ cells, 98,461 parameters"],
)  # fmt: skip
def test_numbers_that_are_held(made_up: None, sentence: str):
    assert not unheld(f"# A\n\nIt {sentence}. <!-- from: made.solves -->")
    assert not unheld(f"# A\n\nIt {sentence}.\n\n<!-- evidence: made.solves -->\n")


@pytest.mark.parametrize(
    ("sentence", "number"),
    [("takes 19 ms", "19 ms"), ("takes 18.4 ms", "18.4 ms"), ("1.04 s", "1.04 s"),
     ("0.018 to 1.04 s", "1.04 s"), ("0.019 to 1.03 s", "0.019 s"), ("has 2.4e-13", "2.4e-13"),
     ("4 · 10⁻¹³", "4 · 10⁻¹³"), ("is 5 times as fast", "5 times"), ("loses 3%", "3 %"),
     ("−41 dB", "−41 dB"), ("| a | 7.3 GiB |", "7.3 GiB")],
)  # fmt: skip
def test_numbers_that_are_not(made_up: None, sentence: str, number: str):
    (found,) = unheld(f"# A\n\nIt {sentence}. <!-- from: made.solves -->")
    assert found.startswith(number)


def test_a_number_is_held_by_its_own_paragraph_or_section(made_up: None):
    elsewhere = "# A\n\nIt takes 18 ms.\n\n# B\n\n<!-- evidence: made.solves -->\n"
    assert unheld(elsewhere)
    with pytest.raises(KeyError, match="no table growth"):
        unheld("It takes 18 ms. <!-- from: made.growth -->")


def test_a_directive_becomes_a_table(made_up: None):
    directive = "<!-- evidence: made.solves columns=method; seconds; error where=n=1120 -->"
    text = evidence_hook.on_page_markdown(f"Before.\n\n{directive}\n\nAfter.")
    assert (
        "| method | seconds | error |\n| --- | --- | --- |\n| ours | 0.0183 | 2.5 · 10⁻¹⁴ |" in text
    )
    assert "`python x.py`, commit 0123456 with changes, 2026-01-02, 2 cores of a CPU" in text
    missing = evidence_hook.on_page_markdown("<!-- evidence: other_gpu.solves -->")
    assert missing == "*Not run yet: `make evidence MACHINE=gpu PARTS=other`.*"
    joined = "<!-- evidence: made.solves (a) + made.solves (b) columns=method; n -->"
    assert "| a | 1,120 |\n| a | – |\n| b | 1,120 |" in evidence_hook.on_page_markdown(joined)


@pytest.mark.parametrize(
    ("directive", "why"),
    [("made.nothing", "no table nothing"), ("made.solves columns=cost", "no column 'cost'"),
     ("made.solves where=n=3", "no row"), ("solves", "does not name")],
)  # fmt: skip
def test_a_directive_that_names_nothing(made_up: None, directive: str, why: str):
    with pytest.raises(KeyError, match=why):
        evidence_hook.on_page_markdown(f"<!-- evidence: {directive} -->")


def test_columns_of_the_same_name_keep_their_numbers():
    twice = {"name": "twice", "columns": ["method", "s", "s"], "rows": [["ours", 1, 2]]}
    assert evidence_hook.chosen(twice, None, None) == (["method", "s", "s"], [["ours", 1, 2]])
    with pytest.raises(KeyError, match="2 columns 's'"):
        evidence_hook.chosen(twice, "method; s", None)


NAMES = {"good": "", "bad": " now"}
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from tables import show_table
show_table("squares", ["n", "square", "root"], ((n, n**2, n**0.5) for n in (1, 2)), "A title")
sys.exit(len(sys.argv) - 1)
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two parts, the second of which fails; returns the folder of the files."""
    script, folder = tmp_path / "script.py", tmp_path / "evidence"
    script.write_text(SCRIPT.format(folder=str(ROOT / "benchmarks")))
    good, bad = (evidence.Part(name, f"{script}{word}", 1) for name, word in NAMES.items())
    monkeypatch.setattr(evidence, "PARTS", (good, bad))
    monkeypatch.setattr(evidence, "FOLDER", folder)
    return folder


def run_parts(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["evidence.py", *words])
    return evidence.main()


def test_parts_are_run_kept_and_skipped(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    assert run_parts(monkeypatch) == 1
    printed = capfd.readouterr().out
    assert "failed: bad" in printed
    assert "bad ended with status 1" in printed
    assert [path.name for path in parts.iterdir()] == ["good.json"]  # and nothing half written
    found = json.loads((parts / "good.json").read_text())
    assert found["tables"][0]["rows"][1] == [2, 4, 2**0.5]  # all digits
    assert found["machine"]["cores"] == 1
    assert found["versions"]["natgrad"] != "unknown"
    assert evidence.digest(found) == found["digest"]
    (parts / "bad.json").write_text("{}")
    assert run_parts(monkeypatch, "bad") == 1
    assert (parts / "bad.json").read_text() == "{}"
    capfd.readouterr()
    assert run_parts(monkeypatch, "good") == 0
    assert "good: up to date" in capfd.readouterr().out
    monkeypatch.setattr(evidence, "sources_digest", lambda: "others")
    assert run_parts(monkeypatch, "good") == 0
    assert json.loads((parts / "good.json").read_text())["sources"] == "others"


def test_a_part_is_ended_after_its_time(parts: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evidence.Part, "limit", 0.0)
    with pytest.raises(RuntimeError, match="was ended after"):
        evidence.run(evidence.PARTS[0], "sources")
    with pytest.raises(SystemExit):
        run_parts(monkeypatch, "nothing")
