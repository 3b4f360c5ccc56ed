"""Reports in a real browser: an installed Chromium, without a window."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from fedimmune.report import write_report
from tests.report.making import make_run, scenario_of

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if found is None or driver is None:
        pytest.skip("no Chromium here: install the packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which root cannot have
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison: three rules, two seeds, a client with an evil name."""
    place = tmp_path_factory.mktemp("many")
    for rule in ("krum", "mean", "oracle"):
        for seed in (1, 2):
            scenario = scenario_of(rule, seed=seed)
            make_run(place / f"{rule}{seed}", scenario, names={3: EVIL}, reason=EVIL)
    return write_report([place], place / "report.html", title=EVIL)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of many clients and rounds."""
    place = tmp_path_factory.mktemp("one")
    make_run(place / "run", scenario_of(clients=40, attackers=16, rounds=60))
    return write_report([place], place / "report.html")


def show(browser: Any, page: Path, width: int = DESK, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.as_uri())
    drawn = "return document.documentElement.dataset.drawn === 'yes'"
    WebDriverWait(browser, 120).until(lambda opened: opened.execute_script(drawn))


def hover(browser: Any, selector: str, number: int = 0) -> dict[str, str]:
    """Move the pointer to one of the elements, and read the tooltip."""
    place = browser.execute_script(
        "const e = document.querySelectorAll(arguments[0])[arguments[1]];"
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2]",
        selector,
        number,
    )
    for step in (3, 0):  # from beside it: a pointer that stands still tells nothing
        moved = {"type": "mouseMoved", "x": place[0] + step, "y": place[1]}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", moved)
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#vg-tooltip-element.visible tr')]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )
    return {name.rstrip(":"): value for name, value in rows}


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_complaint_or_a_request(
    browser: Any, many: Path, width: int, scheme: str
) -> None:
    browser.get_log("browser")
    browser.get_log("performance")
    show(browser, many, width, scheme)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert set(asked) == {many.as_uri()}
    assert browser.execute_script("return window.hacked") is None
    assert browser.title == EVIL


@pytest.mark.parametrize("page", ["one", "many"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_pictures_are_drawn_and_fit(
    browser: Any, page: str, width: int, request: pytest.FixtureRequest
) -> None:
    show(browser, request.getfixturevalue(page), width)
    figures = browser.execute_script(
        "return [...document.querySelectorAll('figure')].map(f => {"
        " const s = f.querySelector('svg').getBoundingClientRect();"
        " const shapes = f.querySelectorAll('svg path, svg rect').length;"
        " return [f.dataset.name, s.width, s.height, shapes, s.right]})"
    )
    assert len(figures) >= 8
    for name, wide, high, shapes, right in figures:
        assert wide > 200, name
        assert 25 < high < 1100, name
        assert shapes > 5, name
        assert right <= width, name
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    smallest = browser.execute_script(
        "return Math.min(...[...document.querySelectorAll('figure svg text')].map(t => {"
        " const m = t.getScreenCTM();"
        " return parseFloat(getComputedStyle(t).fontSize) * Math.hypot(m.a, m.b)}))"
    )
    assert smallest > 9, "readable on a phone"


def test_pointing_shows_the_client_the_round_and_the_verdict(browser: Any, many: Path) -> None:
    show(browser, many)
    cells = "figure[data-name=trust] .mark-rect path"
    count = browser.execute_script(f"return document.querySelectorAll('{cells}').length")
    assert count == 3 * 60
    told = [hover(browser, cells, number) for number in range(0, 60, 7)]
    assert all({"client", "round", "verdict", "weight", "truth"} <= set(each) for each in told)
    assert {each["verdict"] for each in told} <= {"trusted", "suspected"}
    # The evil name is one of the rows, as text.
    names = {hover(browser, cells, number)["client"] for number in range(10)}
    assert any(EVIL in name for name in names)
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert hover(browser, "h1") == {}, "it goes away"


def test_a_click_in_a_legend_singles_a_rule_out(browser: Any, many: Path) -> None:
    show(browser, many)
    opacities = (
        "return [...document.querySelectorAll('figure[data-name=accuracy] .mark-line path')]"
        ".map(p => p.getAttribute('opacity'))"
    )
    assert set(browser.execute_script(opacities)) == {"1"}
    place = browser.execute_script(
        "const e = document.querySelector('figure[data-name=accuracy] .role-legend-label text');"
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "return [b.left + 5, b.top + b.height / 2]"
    )
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    assert sorted(browser.execute_script(opacities)) == ["0.1", "0.1", "1"]


@pytest.mark.parametrize("figure", ["accuracy", "trust"])
def test_ctrl_and_the_wheel_zoom_and_the_wheel_alone_scrolls(
    browser: Any, many: Path, figure: str
) -> None:
    show(browser, many)
    axis = (
        f"return [...document.querySelector('figure[data-name={figure}]')"
        ".querySelectorAll('.role-axis-label text')].map(t => t.textContent)"
    )
    place = browser.execute_script(
        f"const e = document.querySelector('figure[data-name={figure}] svg');"
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 3]"
    )
    wheel = {"type": "mouseWheel", "x": place[0], "y": place[1], "deltaX": 0, "deltaY": -300}
    before = browser.execute_script(axis)
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    assert browser.execute_script(axis) == before
    browser.execute_script("scrollTo(0, 0)")
    place = browser.execute_script(
        f"const e = document.querySelector('figure[data-name={figure}] svg');"
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 3]"
    )
    wheel |= {"x": place[0], "y": place[1], "modifiers": 2}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    WebDriverWait(browser, 10).until(lambda opened: opened.execute_script(axis) != before)


def test_without_a_script_words_and_tables_remain(browser: Any, many: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(many.as_uri())
        text = browser.find_element("tag name", "body").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "which is switched off here" in text
    assert "ACC in round 6: krum" in text


def test_the_table_sorts_both_ways(browser: Any, many: Path) -> None:
    show(browser, many)
    script = (
        "return [...document.querySelectorAll('table.sortable')[0].tBodies[0].rows]"
        ".map(r => [r.cells[0].textContent, parseFloat(r.cells[1].dataset.value)])"
    )
    click = "document.querySelectorAll('table.sortable thead button')[arguments[0]].click()"
    before = browser.execute_script(script)
    assert len(before) == 3
    browser.execute_script(click, 1)
    figures = [figure for _, figure in browser.execute_script(script)]
    assert figures == sorted(figures, reverse=True)
    browser.execute_script(click, 1)
    figures = [figure for _, figure in browser.execute_script(script)]
    assert figures == sorted(figures)
    sort = "return document.querySelector('th[aria-sort]').getAttribute('aria-sort')"
    assert browser.execute_script(sort) == "ascending"
    browser.execute_script(click, 0)
    assert [name for name, _ in browser.execute_script(script)] == ["krum", "mean", "oracle"]
    assert sorted(browser.execute_script(script)) == sorted(before), "no row is lost"


def colors(browser: Any) -> list[Any]:
    return list(
        browser.execute_script(
            "const s = q => getComputedStyle(document.querySelector(q));"
            "return [s('body').backgroundColor, s('figure').backgroundColor,"
            " s('figure svg text').fill]"
        )
    )


def test_pictures_follow_light_and_dark(browser: Any, many: Path) -> None:
    show(browser, many, scheme="light")
    light = colors(browser)
    show(browser, many, scheme="dark")
    dark = colors(browser)
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_on_paper_it_is_light_and_has_pages(browser: Any, one: Path) -> None:
    show(browser, one, scheme="dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 14
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    assert colors(browser)[0] == "rgb(255, 255, 255)"
    assert colors(browser)[2] == "rgb(27, 31, 35)", "ink on white paper"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
