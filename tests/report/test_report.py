"""Report pages: what is in the HTML, pages as data, and reports put together from runs."""

import base64
import functools
import hashlib
import json
import re
import shutil
import tempfile
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natgrad as ng
from natgrad.report import (
    Curves,
    FolderError,
    Frames,
    Landscape,
    Page,
    Paths,
    Report,
    Section,
    Series,
    Table,
    Track,
    load_page,
    machine,
    result_page,
    save_page,
    write_report,
)
from natgrad.report.plots import MOST_POINTS, SHADES, pack, thin
from natgrad.report.runs import MOST_FRAMES
from pages_for_tests import NASTY, curves, every_part, frames, paths


class Parsed(HTMLParser):
    """The elements of a document, the ids in it, and the data of its plots."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.plots: list[dict] = []
        self._reading = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        self._reading = found.get("type") == "application/json"

    def handle_data(self, data):
        if self._reading:
            self.plots.append(json.loads(data))

    def handle_endtag(self, tag):
        self._reading = False


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, Page]:
    folder = tmp_path_factory.mktemp("pages") / "every"
    page = every_part(folder)
    assert save_page(page, folder) == folder / "index.html"
    return folder, page


@pytest.fixture(scope="module")
def parsed(saved) -> Parsed:
    return Parsed((saved[0] / "index.html").read_text())


# --- the document --------------------------------------------------------------------------------


def test_a_page_needs_nothing_but_itself(saved, parsed):
    text = (saved[0] / "index.html").read_text()
    assert not re.search(r"https?:|//[\w-]+\.\w", text)
    assert not {"link", "iframe", "object"} & set(parsed.tags)
    assert not re.search(r"\bsrc=\"(?!data:)|@import|url\(", text)
    assert parsed.tags.count("style") == 1
    assert '<meta name="generator" content="natgrad ' in text


def test_a_browser_may_run_the_script_of_the_page_alone_and_load_nothing(saved):
    text = (saved[0] / "index.html").read_text()
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].split("; ") == [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]


def test_text_from_outside_stays_text(saved, parsed):
    text = (saved[0] / "index.html").read_text()
    assert NASTY not in text
    assert "<script>alert" not in text
    named = Curves([Series(NASTY, [1.0], {NASTY: [1.0]}, "#000000")], NASTY, NASTY)
    inside = Parsed(Page(NASTY, "", [Section("", [named])]).html())
    assert inside.plots[0]["series"][0]["name"] == NASTY
    assert inside.tags.count("script") == 2  # the data, and the page's own


def test_every_anchor_leads_somewhere_and_ids_are_unique(parsed):
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert {link.removeprefix("#") for link in parsed.links} <= set(parsed.ids)
    assert len(parsed.links) == 4


def test_settings_versions_and_machine_are_on_the_page(saved):
    text = (saved[0] / "index.html").read_text()
    for cell in ("L2, W2", "seconds 3", "none"):
        assert f"<td>{cell}</td>" in text
    assert "jaxlib" in text
    found = machine()
    assert set(found) == {"processor", "cores", "memory", "JAX devices"}
    assert found["JAX devices"] in text


# --- plots ---------------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_become_gaps(parsed):
    broken = parsed.plots[0]["series"][1]["y"]
    assert broken[10:13] == [None] * 3
    assert broken[-1] == 0.0
    data = Series("a", [np.inf, None, 1 / 3], {"x": [0, 1, 2]}, "#000000").data()
    assert data["y"] == [None, None, 0.3333333]


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    kept = thin(100_000)
    assert len(kept) <= MOST_POINTS
    assert (kept[0], kept[-1]) == (0, 99_999)
    assert np.all(np.diff(kept) > 0)
    assert kept[10] == 10  # all of the beginning


def unpack(pixels: str, shape: tuple[int, int]) -> np.ndarray:
    steps = np.frombuffer(zlib.decompress(base64.b64decode(pixels)), np.uint8)
    return np.cumsum(steps.reshape(-1, *shape), axis=-1, dtype=np.uint8)


def test_a_field_becomes_one_shade_a_value_with_the_first_row_on_top():
    values = np.array([[0.0, 1.0, np.nan], [0.5, 2.0, -3.0]])
    found = unpack(pack([values, 1 - values], 0.0, 1.0), (2, 3))
    assert found[0].tolist() == [[0, SHADES, SHADES + 1], [SHADES // 2, SHADES, 0]]
    assert found[1].tolist() == [[SHADES, 0, SHADES + 1], [SHADES // 2, 0, SHADES]]


def test_twenty_frames_stay_well_below_a_megabyte():
    assert len(frames(10, (120, 300)).html("name")) < 300_000


def test_diverging_colours_have_zero_in_the_middle():
    shown = Frames.of({"a": [("", np.array([[-1.0, 3.0]]))]}, "", colours="diverging")
    assert shown.limits == [-3.0, 3.0]


def test_the_landscape_covers_its_rectangle_upright():
    x, y = np.linspace(0.0, 4.0, 9), np.linspace(1.0, 2.0, 5)
    land = Landscape.of(x, y, 10 * y[None, :] + 0 * x[:, None], levels=[12.0, 18.0, 99.0])
    assert land.extent == [0.0, 4.0, 1.0, 2.0]
    assert land.levels == [10.0, 12.0, 18.0, 20.0]
    whole, rest = unpack(land.pixels, (5, 9)).astype(float)
    bands = (whole + rest / SHADES) / SHADES * 3
    at = np.interp(10 * y[::-1], land.levels, range(4))
    assert np.allclose(bands, at[:, None], atol=1e-4)
    flat = Landscape.of(x, y, np.full((9, 5), np.nan))
    assert np.all(unpack(flat.pixels, (5, 9))[0] == SHADES + 1)


X = {"iterations": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Series("a", [1.0], X, "#000000"), "a has 1 values and 2 iterations"),
        (lambda: Series("a", [1.0, 2.0], X, "red"), "colour 'red'"),
        (lambda: Series("a", [1.0, 2.0], X, "#000000", "~"), "dash '~'"),
        (lambda: Curves([], "loss", ""), "nothing to draw"),
        (lambda: Curves([Series("a", [], {}, "#000000")] * 2, "loss", ""), "names repeat"),
        (lambda: Track("a", [[1.0, 2.0, 3.0]], "#000000"), "no list of pairs"),
        (lambda: Track("a", [[1.0, 2.0]], "#000000", losses=[1.0, 2.0]), "1 points and 2 values"),
        (lambda: Paths([], ""), "nothing to draw"),
        (lambda: Landscape.of(np.arange(3), np.arange(4), np.ones((4, 3))), r"shape \(4, 3\)"),
        (lambda: Frames.of({"a": [("0", np.ones(3))]}, ""), "not all images of one shape"),
        (lambda: Frames.of({"a": []}, ""), "not all images of one shape"),
        (lambda: Frames.of({"a": [("", np.eye(2))]}, "", colours="jet"), "no 'jet'"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_refused(make, message):
    with pytest.raises(ng.InputError, match=message):
        make()


# --- pages as data -------------------------------------------------------------------------------


def test_a_page_read_back_is_the_same_document(saved, tmp_path):
    folder, page = saved
    assert load_page(folder).html() == page.html()
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert load_page(moved).html() == page.html()


def _changed(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / "page.json").write_text(content)
    return folder


def _with(saved: tuple[Path, Page], **changes) -> str:
    content = json.loads((saved[0] / "page.json").read_text())
    return json.dumps(content | changes)


def test_a_page_that_cannot_be_read_is_an_input_error(saved, tmp_path):
    with pytest.raises(ng.InputError, match="there is no"):
        load_page(tmp_path / "nowhere")
    outside = [{"title": "", "parts": [{"kind": "figure", "path": "../x.png"}]}]
    (tmp_path / "x.png").write_bytes(b"secret")
    broken = curves().data() | {"kind": "curves", "levels": {"a": "b"}}
    cases = {
        "cut": ((saved[0] / "page.json").read_text()[:200], "is damaged"),
        "newer": (_with(saved, version=3), "version 3, not a page of version 2"),
        "older": (_with(saved, version=1), "natgrad resume"),
        "other": (_with(saved, natgrad="result"), "is a result"),
        "kind": (_with(saved, sections=[{"title": "", "parts": [{"kind": "?"}]}]), "is damaged"),
        "list": ("[]", "is damaged"),
        "outside": (_with(saved, sections=outside), "no figure ../x.png"),
        "number": (_with(saved, sections=[{"title": "", "parts": [broken]}]), "is damaged"),
    }
    for name, (content, message) in cases.items():
        with pytest.raises(ng.InputError, match=re.escape(message)):
            load_page(_changed(tmp_path / name, content))


def _places(node, at=()):
    """Where something stands in the data of a page."""
    inner = node.items() if isinstance(node, dict) else enumerate(node[:3])
    for key, entry in inner:
        yield (*at, key)
        if isinstance(entry, (dict, list)):
            yield from _places(entry, (*at, key))


HOSTILE = [
    *(None, True, 0, -1, 1e308, 10**400, float("nan"), float("inf"), "", "\ud800", "\x00"),
    "x" * 5000,
    *("</script><script>", "../page.json", [], {}, [[]], [None], [1e9, 1e9], {"__proto__": [1]}),
]


@pytest.mark.slow
@settings(max_examples=250)
@given(data=st.data(), entry=st.sampled_from(HOSTILE), more=st.booleans())
def test_any_entry_of_a_page_may_be_something_else(saved, data, entry, more):
    """The page is refused in a line, or shown, saved and read again, with no script more."""
    content = json.loads((saved[0] / "page.json").read_text())
    *way, last = data.draw(st.sampled_from([*_places(content)]))
    node = functools.reduce(lambda inner, key: inner[key], way, content)
    node[last] = entry
    if more and isinstance(node, dict):
        node["x"] = node.pop(last)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(saved[0], Path(name) / "page"))
        (folder / "page.json").write_text(json.dumps(content))
        try:
            found = load_page(folder)
        except ng.InputError as error:
            assert str(error).startswith("folder: ")  # noqa: PT017
            assert len(str(error)) < 1000  # noqa: PT017
            return
        save_page(found, folder)
        written = (folder / "index.html").read_text()
        assert load_page(folder).html() == written
        assert written.count("<script") <= saved[1].html().count("<script")


def test_pages_are_chapters_of_one_document(saved):
    page = saved[1]
    other = replace(page, title="Another", sections=[Section("Only", [paths()])])
    found = Parsed(Report("All", [page, other, page]).html())
    assert len(set(found.ids)) == len(found.ids)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert found.tags.count("article") == 3
    assert found.tags.count("h1") == found.tags.count("style") == 1
    assert found.tags.count("script") == len(found.plots) + 1
    assert len(found.plots) == 3 + 1 + 3
    with pytest.raises(ng.InputError, match="pages"):
        Report("None", [])


# --- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> ng.Result:
    problem = ng.Problem(lambda t: t**3, ng.LeastSquares(jnp.array([1.0, 8.0])))
    return ng.minimize(
        problem, jnp.array([1.5, 1.0]), ng.GradientDescent(), stop=ng.Stop(iterations=4)
    )


def test_the_page_of_a_result_has_its_curves_and_its_path(result):
    found = Parsed(result_page(result, "run").html()).plots
    loss, path, norm, step = found
    assert [plot["y_label"] for plot in (loss, norm, step)] == [
        "loss",
        "gradient norm",
        "step length",
    ]
    series = loss["series"][0]
    assert np.allclose(series["y"], result.history["loss"], rtol=1e-6)
    spent = sum(result.history[name] for name in ("forward", "linearised", "adjoint"))
    assert series["x"]["propagations"] == spent.tolist()
    assert len(series["x"]["seconds"]) == len(series["y"])
    assert np.allclose(path["tracks"][0]["points"][-1], result.theta, rtol=1e-6)
    assert path["tracks"][0]["iterations"] == sorted(result.iterates)


def test_iterates_that_are_fields_become_frames(result):
    steps = range(100)
    many = replace(result, iterates={k: k + np.arange(12.0).reshape(3, 4) for k in steps})
    plots = Parsed(result_page(many, "run").html()).plots
    shown = next(plot["runs"]["run"] for plot in plots if "runs" in plot)
    assert len(shown) <= MOST_FRAMES + 1
    assert (shown[0], shown[-1]) == ("iteration 0", "iteration 99")
    last = replace(result, iterates={}, theta=np.eye(3))
    assert any("runs" in plot for plot in Parsed(result_page(last, "run").html()).plots)
    for theta in ({"a": np.ones(2)}, np.ones(3), np.ones((1, 4))):
        bare = replace(result, iterates={0: theta}, info=None)
        assert len(Parsed(result_page(bare, "run").html()).plots) == 3


def test_a_report_of_folders_and_results(saved, result, tmp_path):
    result.save(tmp_path / "short.npz")
    result.save(tmp_path / "long.npz")
    save_page(every_part(tmp_path / "all" / "b"), tmp_path / "all" / "b")
    save_page(every_part(tmp_path / "all" / "a"), tmp_path / "all" / "a")
    (tmp_path / "all" / "neither").mkdir()
    result.save(tmp_path / "all" / "c.npz")
    np.savez(tmp_path / "all" / "d.npz", a=np.ones(3))  # nothing of ours
    output = tmp_path / "deep" / "report.html"
    runs = [tmp_path / "short.npz", tmp_path / "all", tmp_path / "long.npz"]
    assert write_report(runs, output) == output
    text = output.read_text()
    titles = re.findall(r'<li><a href="#run-\d">([^<]*)</a>', text)
    assert titles == ["Comparison", "short", "Every part: a", "Every part: b", "c", "long"]
    found = Parsed(text)
    assert len(set(found.ids)) == len(found.ids)
    both = found.plots[0]["series"]
    assert [series["name"] for series in both] == ["short", "c", "long"]
    assert both[0]["colour"] != both[1]["colour"]
    assert text.count("<summary>Machine</summary>") == 5  # of every run, not of the comparison
    assert "are level by iterations" in text
    shifted = replace(result, history=result.history | {"loss": 2 * result.history["loss"]})
    shifted.save(tmp_path / "shifted.npz")
    write_report([tmp_path / "short.npz", tmp_path / "shifted.npz"], output)
    assert "began at different losses" in output.read_text()
    assert "ahead" not in output.read_text()
    write_report([saved[0]], output)  # over a page of ours
    assert output.read_text() == saved[1].html()


def test_a_report_is_refused_with_a_reason_and_nothing_is_overwritten(saved, result, tmp_path):
    own = tmp_path / "mine.html"
    own.write_text("<html>years of work</html>")
    with pytest.raises(FolderError, match="not a page of natgrad"):
        write_report([saved[0]], own)
    assert own.read_text() == "<html>years of work</html>"
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(FolderError, match="is a folder"):
        write_report([saved[0]], tmp_path / "folder.html")
    with pytest.raises(FolderError, match="cannot write to"):
        write_report([saved[0]], own / "below.html")
    output = tmp_path / "new.html"
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("not an archive")
    result.save(tmp_path / "run.npz")
    for runs, message in (
        ([], "there are none"),
        ([tmp_path / "nowhere"], "there is no"),
        ([tmp_path / "empty"], "holds no page.json, nor folders"),
        ([tmp_path / "text.npz"], "cannot be read as a result"),
        ([tmp_path / "run.npz"] * 2, "is there twice"),
    ):
        with pytest.raises(ng.InputError, match=message):
            write_report(runs, output)
    with pytest.raises(ng.InputError, match=r"ends in \.html"):
        write_report([saved[0]], tmp_path / "report.pdf")
    assert not output.exists()


def test_details_fold_and_the_first_section_has_the_winner(result, saved):
    page = result_page(result, "run")
    assert page.sections[0].parts[0].startswith(f"Loss {result.loss:.6g} after")
    text = page.html()
    assert text.count('<section id="part-1" class="first">') == 1
    assert '<details class="section" id="part-3"><summary><h2>The last direction' in text
    folded = replace(saved[1], sections=[Section("Only", ["x"], folded=True)])
    save_page(folded, saved[0].parent / "folded")
    assert load_page(saved[0].parent / "folded").sections[0].folded


def test_a_table_keeps_its_rows():
    table = Table(("a",), [("1",), ("2",)], "Cap & tion.")
    text = Section("", [table]).html("part-1")
    assert text.count("<tr>") == 3
    assert "Cap &amp; tion." in text
