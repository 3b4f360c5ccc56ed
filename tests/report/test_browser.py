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


def hover(browser: Any, selector: str, x: float = 0.5, y: float = 0.5) -> str:
    """Move the pointer to a share of an element's width and height, and read what is shown."""
    place = browser.execute_script(
        "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]",
        selector,
    )
    moved = {"x": place[0] + x * place[2], "y": place[1] + y * place[3]}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **moved})
    script = "const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent"
    return str(browser.execute_script(script))


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
        " const shapes = f.querySelectorAll('svg path, svg rect, svg circle').length;"
        " return [f.dataset.name, s.width, s.height, shapes, s.right]})"
    )
    assert len(figures) >= 8
    for name, wide, high, shapes, right in figures:
        assert wide > 200, name
        assert 25 < high < 900, name
        assert shapes > 0, name
        assert right <= width, name
    lengths = browser.execute_script(
        "return [...document.querySelectorAll('svg.lines .line > path:first-child')]"
        ".map(p => p.getTotalLength())"
    )
    assert sum(length > 100 for length in lengths) >= 6
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    smallest = browser.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg.lines text')].map(t =>"
        " parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a))"
    )
    assert smallest > 9, "readable on a phone"


def test_hovering_shows_the_client_the_round_and_the_verdict(browser: Any, many: Path) -> None:
    show(browser, many)
    trust = "figure[data-name=trust] svg"
    first = hover(browser, trust, 0.01, 0.01)
    assert first.startswith("client 0 (attacks), round 1")
    assert "trusted" in first or "suspected" in first
    last = hover(browser, trust, 0.99, 0.99)
    assert last.startswith(f"client {EVIL} (attacks), round 6")
    assert browser.execute_script("return window.hacked") is None
    lines = hover(browser, "figure[data-name=acc] svg", 0.97).splitlines()
    assert lines[0] == "round 6"
    assert [line.partition(":")[0] for line in lines[1:]] == ["krum", "mean", "oracle"]
    assert "client" in hover(browser, "figure[data-name=partition] .disc")
    assert "training" in hover(browser, "figure[data-name=time] rect")
    assert hover(browser, "h1") == "", "it goes away"


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


def colours(browser: Any) -> list[Any]:
    return list(
        browser.execute_script(
            "const s = q => getComputedStyle(document.querySelector(q));"
            "return [s('body').backgroundColor, s('.line > path').stroke, s('.shade').fill,"
            " s('svg text').fill]"
        )
    )


def test_pictures_follow_light_and_dark(browser: Any, many: Path) -> None:
    show(browser, many, scheme="light")
    light = colours(browser)
    show(browser, many, scheme="dark")
    dark = colours(browser)
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_on_paper_it_is_light_and_has_pages(browser: Any, one: Path) -> None:
    show(browser, one, scheme="dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 12
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    assert colours(browser)[0] == "rgb(255, 255, 255)"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
