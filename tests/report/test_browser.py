"""Report pages in a real browser: Chromium without a window, opened from disk."""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from pages_for_tests import every_part

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PHONE, LAPTOP = 390, 1280


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


def _open(driver: Any, address: str, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wanted]})
    driver.get(address)


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


@pytest.mark.parametrize("width", [PHONE, LAPTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_is_drawn_without_a_complaint(driver, address, width, scheme):
    _open(driver, address, width, scheme)
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
        decoded = "return fetch(arguments[0]).then(r => r.blob()).then(createImageBitmap)"
        size = f"{decoded}.then(b => b.width * b.height)"
        assert driver.execute_script(size, image.get_attribute("href")) >= 255
    assert len(_find(driver, "svg image")) == 4  # landscape, field, reference, colour bar


def test_a_phone_does_not_scroll_sideways(driver, address):
    _open(driver, address, PHONE)
    size = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    scrolled, seen = driver.execute_script(size)
    assert seen == PHONE
    assert scrolled <= seen
    for svg in _find(driver, "figure.plot > div > svg, .panels svg"):
        assert svg.rect["x"] + svg.rect["width"] <= PHONE


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
    _button(page, "curves", "linear").click()
    linear = _numbers(_drawn(page, "curves")["L²"])
    assert linear[3] - linear[1] > 10 * (linear[-1] - linear[-3])


def test_gaps_stay_gaps_and_zeros_leave_a_logarithmic_axis(page):
    broken = _drawn(page, "curves")["GD & co"]
    assert broken.count("M") == 2
    assert len(_numbers(broken)) == 2 * (40 - 3 - 1)
    _button(page, "curves", "linear").click()
    assert len(_numbers(_drawn(page, "curves")["GD & co"])) == 2 * (40 - 3)


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


def test_pointing_at_a_curve_reads_out_its_values(page):
    svg = _find(page, '[data-kind="curves"] svg')[0]
    readout = _find(page, ".readout")[0]
    assert readout.text.startswith("Point at a curve")
    webdriver.ActionChains(page).move_to_element(svg).perform()
    assert re.fullmatch(
        r"(L²|GD & co): loss \S+ at iterations \S+, seconds \S+, propagations \S+", readout.text
    )
    page.execute_script("arguments[0].focus()", svg)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    first = readout.text
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert readout.text != first


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


def test_a_slider_moves_through_the_frames_of_the_chosen_run(page):
    image = lambda: _find(page, '[data-kind="frames"] image')[0].get_attribute("href")
    said = lambda: _find(page, '[data-kind="frames"] output')[0].text
    last = image()
    assert said() == "iteration 4"
    _slide(page, "frames", 1)
    second = image()
    assert said() == "iteration 1"
    _find(page, '[data-kind="frames"] input')[0].send_keys(Keys.ARROW_LEFT)
    assert said() == "iteration 0"
    assert len({last, second, image()}) == 3
    _button(page, "frames", "GD").click()
    _slide(page, "frames", 4)
    assert said() == "iteration 8"
    assert image() != last


def test_plots_follow_the_width_of_the_window(page):
    svg = _find(page, '[data-kind="curves"] svg')[0]
    wide = svg.get_dom_attribute("viewBox")
    size = {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_async_script("setTimeout(arguments[0], 200)")
    assert svg.get_dom_attribute("viewBox") != wide
    assert svg.rect["width"] < 700
    assert page.get_log("browser") == []
