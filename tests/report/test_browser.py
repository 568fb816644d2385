"""Report pages in a real browser: Chromium without a window, opened from disk."""

import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from natgrad.report import Page, Section, Table
from pages_for_tests import curves, every_part
from problems_for_tests import with_slow

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PHONE, LAPTOP = (390, 844), (1366, 900)
PATIENCE = 120.0  # seconds until something is wrong


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[Any]:
    """One browser for all tests of this file."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    service = shutil.which("chromedriver")
    if browser is None or service is None:
        pytest.skip("no chromium with its chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        started = webdriver.Chrome(options=options, service=webdriver.ChromeService(service))
    except WebDriverException as error:
        pytest.skip(f"chromium does not start: {error.msg}")
    yield started
    started.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    return every_part(folder).write(folder / "index.html").as_uri()


@pytest.fixture
def page(driver, address) -> Any:
    """The page, loaded afresh."""
    _open(driver, address, LAPTOP)
    return driver


def _open(driver: Any, address: str, size: tuple[int, int], scheme: str = "light") -> None:
    _resize(driver, size)
    _light(driver, scheme)
    driver.get(address)
    _wait(driver, "return document.querySelectorAll('.foot').length === 3")


def _open_alone(driver: Any, address: str, size: tuple[int, int], scheme: str = "light") -> None:
    """A page whose plots are drawn at once."""
    _resize(driver, size)
    _light(driver, scheme)
    driver.get(address)


def _resize(driver: Any, size: tuple[int, int]) -> None:
    shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)


def _light(driver: Any, scheme: str) -> None:
    wanted = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wanted]})


def _wait(driver: Any, condition: str) -> None:
    """Until a script returns something true."""
    WebDriverWait(driver, PATIENCE, 0.02).until(lambda browser: browser.execute_script(condition))


def _find(driver: Any, selector: str) -> list[Any]:
    return driver.find_elements("css selector", selector)


def _button(driver: Any, kind: str, text: str) -> Any:
    """A button of the plot of this kind by the beginning of its text."""
    found = _find(driver, f'[data-kind="{kind}"] button')
    return next(button for button in found if button.text.startswith(text))


def _drawn(driver: Any, kind: str) -> dict[str, str]:
    """What the lines of a plot are, by name; those that are not shown are left out."""
    lines = _find(driver, f'[data-kind="{kind}"] path.curve')
    shown = [line for line in lines if line.value_of_css_property("display") != "none"]
    return {line.get_attribute("data-name"): line.get_attribute("d") for line in shown}


def _numbers(path: str) -> list[float]:
    return [float(number) for number in re.split(r"[MLZ ]+", path) if number]


def _slide(driver: Any, kind: str, value: int) -> None:
    moved = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    driver.execute_script(moved, _find(driver, f'[data-kind="{kind}"] input')[0], value)


def _seen(driver: Any, selector: str) -> tuple[int, int, float]:
    """Of the first image of a plot: how many pixels and colours it has, and how bright it is."""
    script = """
        const image = new Image();
        image.src = document.querySelector(arguments[0]).getAttribute("href");
        return image.decode().then(() => {
          const canvas = document.createElement("canvas");
          [canvas.width, canvas.height] = [image.width, image.height];
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          const { data } = context.getImageData(0, 0, image.width, image.height);
          const colours = new Uint32Array(data.buffer);
          const mean = data.reduce((sum, part, k) => sum + (k % 4 ? 0 : part), 0) / colours.length;
          return [colours.length, new Set(colours).size, mean];
        });"""
    return tuple(driver.execute_script(script, selector))


TABLE = Table(("run", "loss"), [("a", "1,200"), ("b", "3e-5"), ("c", "0.2 / 7"), ("d", "–")], "x")
FIELD = '[data-kind="frames"] .field'


@pytest.mark.parametrize("size", [PHONE, LAPTOP])
@pytest.mark.parametrize("scheme", with_slow(["light", "dark"], ["dark"]))
def test_every_plot_is_drawn_without_a_complaint(driver, address, size, scheme):
    _open(driver, address, size, scheme)
    assert driver.get_log("browser") == []
    paths = [*_drawn(driver, "curves").values(), *_drawn(driver, "paths").values()]
    assert len(paths) == 4
    assert all(len(_numbers(path)) >= 16 for path in paths)
    for line in _find(driver, "path.curve"):
        box = driver.execute_script("const b = arguments[0].getBBox(); return b", line)
        assert box["width"] > 20
        assert box["height"] > 20
    for image in _find(driver, "svg image"):
        assert image.rect["width"] > 100
    assert len(_find(driver, "svg image")) == 5  # landscape, two runs, reference, colour bar
    pixels, colours, _ = _seen(driver, FIELD)
    assert pixels == 20 * 50
    assert colours > 50
    assert (_seen(driver, '[data-kind="paths"] image')[2] < 120) == (scheme == "dark")


def test_a_phone_does_not_scroll_sideways(driver, address):
    _open(driver, address, PHONE)
    size = "return [document.documentElement.scrollWidth, innerWidth]"
    assert driver.execute_script(size) == [PHONE[0]] * 2  # wider if anything were
    for svg in _find(driver, ".holder > svg"):
        assert svg.rect["x"] + svg.rect["width"] <= PHONE[0]
    scroll = _find(driver, ".scroll")[0]
    wide = driver.execute_script("return arguments[0].scrollWidth", scroll)
    assert wide > scroll.rect["width"]
    assert scroll.rect["x"] + scroll.rect["width"] <= PHONE[0]


# What the theme of the documentation makes of a table, and its colours.
WRAPPED = """<!doctype html><link rel="stylesheet" href="{style}">
<body data-md-color-scheme="{scheme}" style="--md-default-bg-color: {paper}; background: {paper}">
<div class="md-typeset__scrollwrap scroll" style="overflow-x: auto">
<div style="width: 2000px; height: 200px"></div></div>"""


@pytest.mark.parametrize("scheme", with_slow(["light", "dark"], ["dark"]))
@pytest.mark.parametrize("kind", ["report", "documentation"])
def test_a_shadow_shows_where_a_table_goes_on(driver, tmp_path, kind, scheme):
    path = tmp_path / "index.html"
    if kind == "report":
        table = Table([f"column {i}" for i in range(20)], [["1.234e-5"] * 20] * 3)
        Page("A table", "It is wide.", [Section("Numbers", [table])]).write(path)
    else:
        style = Path(__file__).parents[2] / "docs" / "formulae.css"
        name, paper = ("slate", "#1e2129") if scheme == "dark" else ("default", "#ffffff")
        path.write_text(WRAPPED.format(style=style.as_uri(), scheme=name, paper=paper))
    _open_alone(driver, path.as_uri(), PHONE, scheme)
    scroll = _find(driver, ".scroll")[0]
    for place, expected in ((0, (False, True)), (300, (True, True)), (10**6, (True, False))):
        driver.execute_script("arguments[0].scrollLeft = arguments[1]", scroll, place)
        scroll.screenshot(str(tmp_path / "seen.png"))
        with Image.open(tmp_path / "seen.png") as seen:
            row = [seen.convert("L").getpixel((x, 2)) for x in range(seen.width)]
        middle, edges = row[seen.width // 2], (row[2], row[-3])
        assert tuple(abs(edge - middle) > 20 for edge in edges) == expected


def test_labels_do_not_overlap_and_stay_inside(driver, address):
    script = """
        return [...document.querySelectorAll(".holder > svg")].map((svg) =>
          [...svg.querySelectorAll("text")].filter((t) => t.textContent).map((t) => {
            const b = t.getBoundingClientRect();
            return [t.textContent, b.left, b.top, b.right, b.bottom];
          }));"""
    for size in (PHONE, LAPTOP):
        _open(driver, address, size)
        for texts in driver.execute_script(script):
            for k, (name, left, top, right, bottom) in enumerate(texts):
                assert left >= -1, name
                assert right <= size[0] + 1, name
                for other, x0, y0, x1, y1 in texts[:k]:
                    apart = left > x1 - 1 or x0 > right - 1 or top > y1 - 3 or y0 > bottom - 3
                    assert apart, (name, other)


def test_the_first_screen_has_the_winner_the_numbers_and_the_plot(driver, tmp_path):
    page = Page("A run", "Two methods.", [Section("In short", ["L² wins.", curves(), TABLE])])
    _open_alone(driver, page.write(tmp_path / "page.html").as_uri(), LAPTOP)
    for selector in ("h1", ".lead", ".first p", "figure.plot", "table"):
        box = _find(driver, selector)[0].rect
        assert box["y"] + box["height"] < LAPTOP[1], selector
    plot, table = (_find(driver, selector)[0].rect for selector in ("figure.plot", "table"))
    assert plot["x"] + plot["width"] <= table["x"]
    _open_alone(driver, driver.current_url, PHONE)
    plot, table = (_find(driver, selector)[0].rect for selector in ("figure.plot", "table"))
    assert table["y"] >= plot["y"] + plot["height"]


def test_contents_stay_at_the_side_and_open_what_is_folded(driver, tmp_path):
    long = Section("Long", ["words " * 4000])
    page = Page("A", "B", [long, Section("Folded", [curves()], folded=True)])
    _open_alone(driver, page.write(tmp_path / "page.html").as_uri(), LAPTOP)
    folded = _find(driver, "figcaption")[0]
    assert not folded.is_displayed()
    link = _find(driver, "nav a")[1]
    link.click()
    WebDriverWait(driver, PATIENCE, 0.02).until(lambda _: folded.is_displayed())
    _wait(driver, "return document.querySelectorAll('nav a')[1].hasAttribute('aria-current')")
    where = driver.execute_script("return arguments[0].getBoundingClientRect().top", link)
    assert 0 <= where < 200  # though the page has scrolled
    assert driver.execute_script("return scrollY") > 500


def test_a_header_sorts_a_table_by_numbers_and_back(driver, tmp_path):
    page = Page("A", "B", [Section("In short", [TABLE])])
    _open_alone(driver, page.write(tmp_path / "page.html").as_uri(), LAPTOP)
    order = lambda: [cell.text for cell in _find(driver, "tbody td:first-child")]
    head = _find(driver, "th button")[1]
    head.click()
    assert order() == ["b", "c", "a", "d"]
    head.click()
    assert order() == ["a", "c", "b", "d"]  # what is missing stays last
    assert _find(driver, "th")[1].get_attribute("aria-sort") == "descending"


def test_a_page_follows_the_colours_of_the_system(driver, address):
    papers = set()
    for scheme in ("light", "dark"):
        _open(driver, address, LAPTOP, scheme)
        body, line = _find(driver, "body")[0], _find(driver, 'path[data-name="GD & co"]')[0]
        papers.add(body.value_of_css_property("background-color"))
        ink = [body.value_of_css_property("color"), line.value_of_css_property("stroke")]
        assert len({tuple(re.findall(r"\d+", colour)[:3]) for colour in ink}) == 1
    assert len(papers) == 2


def test_buttons_choose_the_abscissa_and_the_scale(page):
    before = _drawn(page, "curves")
    _button(page, "curves", "seconds").click()
    seconds = _drawn(page, "curves")
    assert seconds["L²"] != before["L²"]
    assert _button(page, "curves", "seconds").get_attribute("aria-pressed") == "true"
    assert _button(page, "curves", "iterations").get_attribute("aria-pressed") == "false"
    # A straight line on the logarithmic axis of iterations is none on a linear one.
    points = _numbers(before["L²"])
    slopes = {round(b - a, 1) for a, b in zip(points[1::2], points[3::2], strict=False)}
    assert len(slopes) <= 2
    _button(page, "curves", "iterations").click()
    _button(page, "curves", "log y").click()
    linear = _numbers(_drawn(page, "curves")["L²"])
    assert linear[3] - linear[1] > 10 * (linear[-1] - linear[-3])


def test_gaps_stay_gaps_and_zeros_leave_a_logarithmic_axis(page):
    broken = _drawn(page, "curves")["GD & co"]
    assert broken.count("M") == 2
    *_, before, end = _numbers(broken)[1::2]
    _button(page, "curves", "log y").click()
    *_, linear, zero = _numbers(_drawn(page, "curves")["GD & co"])[1::2]
    assert end > zero > linear > before  # below the frame, and on its way there


def test_the_legend_switches_lines_off_and_on(page):
    for kind, name in (("curves", "GD & co"), ("paths", "FR")):
        assert name in _drawn(page, kind)
        _button(page, kind, name).click()
        assert name not in _drawn(page, kind)
        assert _button(page, kind, name).get_attribute("aria-pressed") == "false"
        _button(page, kind, name).click()
        assert name in _drawn(page, kind)


def test_without_any_curve_there_is_a_line_of_text(page):
    for name in ("L²", "GD & co"):
        _button(page, "curves", name).click()
    assert "Nothing to draw" in _find(page, '[data-kind="curves"] svg')[0].text
    assert page.get_log("browser") == []


def _tip(driver: Any, kind: str) -> Any:
    return _find(driver, f'[data-kind="{kind}"] .tip')[0]


def _middle(driver: Any, kind: str, x: float = 0.0, y: float = 0.0) -> webdriver.ActionChains:
    """A pointer on its way to the middle of a plot, or a share of its size away from it."""
    svg = _find(driver, f'[data-kind="{kind}"] .holder > svg')[0]
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    size, move = svg.rect, webdriver.ActionChains(driver, duration=10)
    return move.move_to_element_with_offset(svg, int(x * size["width"]), int(y * size["height"]))


def test_a_tooltip_reads_out_values_at_the_cursor(page):
    _middle(page, "curves").perform()
    tip = _tip(page, "curves")
    assert re.fullmatch(
        r"(L²|GD & co)\nloss \S+\niterations \S+\nseconds \S+\npropagations \S+", tip.text
    )
    svg = _find(page, '[data-kind="curves"] .holder > svg')[0]
    assert abs(tip.rect["x"] - svg.rect["x"] - svg.rect["width"] / 2) < 250
    page.execute_script("arguments[0].focus()", svg)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    first = tip.text
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert tip.text != first
    _middle(page, "paths", -0.3, -0.3).perform()
    assert re.fullmatch(r"μ₁ \S+, μ₂ \S+\nf ≈ \S+", _tip(page, "paths").text)
    _middle(page, "frames", -0.1, -0.2).perform()
    assert re.fullmatch(
        r"distance \S+ km, depth \S+ km\nL²: \S+\nGD: \S+\ntrue: \S+", _tip(page, "frames").text
    )


@pytest.mark.parametrize("kind", with_slow(["curves", "paths", "frames"], ["curves", "frames"]))
def test_a_rectangle_zooms_and_a_button_shows_the_whole_again(page, kind):
    labels = lambda: [text.text for text in _find(page, f'[data-kind="{kind}"] svg text')]
    _slide(page, kind, 3) if kind != "curves" else None
    before = labels()
    start = _middle(page, kind, -0.33, -0.1)
    start.click_and_hold().move_by_offset(90, 50).move_by_offset(10, 10).release().perform()
    assert labels() != before
    assert len(_find(page, f'[data-kind="{kind}"] .band')) == 0
    _button(page, kind, "whole view").click()
    assert labels() == before
    assert page.get_log("browser") == []


def _saved(page: Any, folder: Path, kind: str, ending: str) -> Path:
    page.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
    )
    page.execute_script("arguments[0].click()", _button(page, kind, ending.upper()))
    done = lambda _: [path for path in folder.glob(f"*.{ending}") if path.stat().st_size]
    return WebDriverWait(page, PATIENCE, 0.02).until(done)[0]


@pytest.mark.parametrize("kind", with_slow(["curves", "paths", "frames"], ["paths", "frames"]))
def test_plots_are_saved_as_a_table_and_as_pictures(page, kind, tmp_path):
    with _saved(page, tmp_path, kind, "csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    count, header = {
        "curves": (80, ["series", "iterations", "seconds", "propagations", "loss"]),
        "paths": (29, ["path", "iteration", "μ₁", "μ₂", "loss"]),
        "frames": (3000, ["field", "frame", "distance, km", "depth, km", "velocity, km/s"]),
    }[kind]
    assert rows[0] == header
    assert len(rows) == count + 1
    assert float(rows[1][-1]) >= 0
    text = _saved(page, tmp_path, kind, "svg").read_text()
    assert text.startswith("<svg")
    assert all(name in text for name in {"curves": ("L²", "GD &amp; co")}.get(kind, ()))
    assert "var(" not in text
    with Image.open(_saved(page, tmp_path, kind, "png")) as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 30


def test_a_slider_reveals_the_paths(page):
    whole = _drawn(page, "paths")
    _slide(page, "paths", 3)
    part = _drawn(page, "paths")
    assert len(_numbers(part["W₂"])) == len(_numbers(part["FR"])) == 8
    assert whole["W₂"].startswith(part["W₂"])
    assert "iteration 3 of 20" in _find(page, '[data-kind="paths"] output')[0].text
    loss = _button(page, "paths", "W₂").text
    _find(page, '[data-kind="paths"] input')[0].send_keys(Keys.ARROW_RIGHT)
    assert len(_numbers(_drawn(page, "paths")["W₂"])) == 10
    assert _button(page, "paths", "W₂").text != loss


def test_a_slider_and_a_button_move_through_the_frames(page):
    image = lambda k: _find(page, FIELD)[k].get_attribute("href")
    said = lambda: _find(page, '[data-kind="frames"] output')[0].text
    titles = lambda: [title.text for title in _find(page, '[data-kind="frames"] .title')]
    last = [image(0), image(1)]
    assert said() == "iteration 4"
    assert titles() == ["L², iteration 4", "GD, iteration 8", "true"]
    _slide(page, "frames", 1)
    second = [image(0), image(1)]
    assert said() == "iteration 1"
    _find(page, '[data-kind="frames"] input')[0].send_keys(Keys.ARROW_LEFT)
    assert said() == "iteration 0"
    assert len({last[0], second[0], image(0)}) == len({last[1], second[1], image(1)}) == 3
    # The frames may have passed by before the next question is asked, so the click asks it.
    play = _find(page, '[data-kind="frames"] .slider button')[0]
    click = "arguments[0].click(); return arguments[0].getAttribute('aria-label')"
    assert page.execute_script(click, play) == "pause"
    output = "document.querySelector('[data-kind=frames] output').textContent"
    _wait(page, f"return {output} === 'iteration 4'")
    _wait(page, "return document.querySelector('[data-kind=frames] [aria-label=play]')")
    assert [image(0), image(1)] == last


def test_plots_follow_the_width_of_the_window_and_the_theme(page):
    svg = _find(page, '[data-kind="curves"] svg')[0]
    wide = svg.get_dom_attribute("viewBox")
    line = lambda: _find(page, 'path[data-name="L²"]')[0].get_attribute("stroke")
    ground = lambda: _find(page, '[data-kind="paths"] image')[0].get_attribute("href")
    light = (line(), ground())
    _light(page, "dark")
    stroke = "document.querySelector('path.curve').getAttribute('stroke')[0]"
    _wait(page, f"return {stroke} === 'r'")
    assert ground() != light[1]
    _light(page, "light")
    _wait(page, f"return {stroke} === '#'")
    assert (line(), ground()) == light
    _resize(page, (700, 900))
    box = "document.querySelector('[data-kind=curves] svg').getAttribute('viewBox')"
    _wait(page, f"return {box} !== '{wide}'")
    assert svg.rect["width"] < 700
    assert page.get_log("browser") == []
