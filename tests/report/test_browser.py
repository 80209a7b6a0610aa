"""The page in a real browser: it draws, it reacts, and it asks nobody."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from chromium import PROGRAM, Browser
from run_folders import make_run, make_scaling, write_budget, write_curve

from lockstep.cli.main import main
from lockstep.report.folder import RunFolder
from lockstep.report.serve import LiveServer

REQUIRED = os.environ.get("LOCKSTEP_REQUIRE_BROWSER") == "1"
pytestmark = pytest.mark.skipif(
    PROGRAM is None and not REQUIRED, reason="there is no Chromium on this machine (Debian: apt-get install chromium)"
)

# How many canvases have next to nothing drawn on them.
EMPTY = """
[...document.querySelectorAll('canvas')].filter((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let at = 3; at < pixels.length; at += 4) drawn += pixels[at] > 0;
  return drawn < 500;
}).length
"""


def view(chart: str) -> str:
    """The ends of both axes of a plot."""
    axis = "[u.scales.{0}.min, u.scales.{0}.max]"
    return (
        f"(() => {{ const u = lockstepCharts.get('{chart}').plot; return [{axis.format('x')}, {axis.format('y')}] }})()"
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    assert main(["report", str(make_run(folder / "run")), "-o", str(folder / "report.html")]) == 0
    return (folder / "report.html").as_uri()


def test_a_run_is_drawn_without_complaints_and_without_a_network(browser: Browser, page: str) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('canvas').length") == 9
    assert browser.run(EMPTY) == 0
    sections = browser.run("[...document.querySelectorAll('h2')].map((title) => title.textContent)")
    assert sections == [
        "Learning curves",
        "Where the time goes",
        "Communication",
        "Predictions against labels",
        "Data",
        "Details",
    ]
    assert browser.complaints() == []
    assert {url for url in browser.requests() if not url.startswith("data:")} == {page}
    assert (
        browser.run("performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:')).length") == 0
    )


@pytest.mark.parametrize("chart", ["curve-Energy", "budget", "speed", "parity-0"])
def test_a_drag_zooms_and_a_double_click_shows_all(browser: Browser, page: str, chart: str) -> None:
    browser.open(page)
    place = f"lockstepCharts.get('{chart}').plot.over"
    browser.run(f"{place}.scrollIntoView({{block: 'center'}})")
    before = browser.run(view(chart))
    left, top, width, height = browser.run(
        f"(() => {{ const r = {place}.getBoundingClientRect(); return [r.left, r.top, r.width, r.height] }})()"
    )
    browser.mouse("mousePressed", left + 0.3 * width, top + 0.3 * height, 1)
    browser.mouse("mouseMoved", left + 0.5 * width, top + 0.5 * height)
    browser.mouse("mouseMoved", left + 0.7 * width, top + 0.7 * height)
    browser.mouse("mouseReleased", left + 0.7 * width, top + 0.7 * height, 1)
    browser.wait(f"JSON.stringify({view(chart)}) !== JSON.stringify({before})")
    zoomed = browser.run(view(chart))
    for (low, high), (all_low, all_high) in zip(zoomed, before, strict=True):
        assert all_low < low < high < all_high
    for clicks in (1, 2):
        browser.mouse("mousePressed", left + 0.5 * width, top + 0.5 * height, clicks)
        browser.mouse("mouseReleased", left + 0.5 * width, top + 0.5 * height, clicks)
    browser.wait(f"JSON.stringify({view(chart)}) === JSON.stringify({before})")


def test_pointing_at_a_plot_shows_its_numbers(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.run("lockstepCharts.get('curve-Energy').plot.setCursor({left: 1, top: 50})")
    values = "[...document.querySelectorAll('#curve-Energy .u-value')].map((value) => value.textContent)"
    browser.wait(f'JSON.stringify({values}) === \'["1","1","1"]\'')


def test_the_axis_of_steps_can_be_linear(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'linear steps').click()")
    assert browser.run("lockstepCharts.get('curve-Energy').plot.scales.x.distr") == 1
    assert browser.run("lockstepCharts.get('curve-Energy').plot.scales.y.distr") == 3
    assert browser.run("document.querySelectorAll('#learning canvas').length") == 4


def test_dark_readers_get_a_dark_page(browser: Browser, page: str) -> None:
    browser.open(page)
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(background)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[dark])
    browser.wait(f"{background} !== '{light}'")
    assert browser.run(EMPTY) == 0
    browser.call("Emulation.setEmulatedMedia", features=[])


def test_a_scaling_test_is_drawn(browser: Browser, tmp_path: Path) -> None:
    make_scaling(tmp_path / "s")
    main(["report", str(tmp_path / "s"), "-o", str(tmp_path / "a.html")])
    browser.open((tmp_path / "a.html").as_uri())
    assert browser.run("document.querySelectorAll('canvas').length") == 2
    assert browser.run(EMPTY) == 0
    assert browser.run("document.querySelectorAll('tr.predicted').length") == 3
    assert "not measured" in browser.run("document.body.textContent")
    assert browser.complaints() == []


def test_names_are_text_and_never_run(browser: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>"
    run = make_run(tmp_path / "<b onmouseover=alert(1)>", system=name)
    main(["report", str(run), "-o", str(tmp_path / "a.html")])
    browser.open((tmp_path / "a.html").as_uri())
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.querySelector('h1').textContent") == "<b onmouseover=alert(1)>"
    assert name in browser.run("document.querySelector('#systems').textContent")


def test_a_running_training_is_shown_without_loading_again(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "train.log").unlink()
    write_curve(run, [1, 10])
    write_budget(run, [1, 10])
    with LiveServer(RunFolder(run), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            browser.open(server.url)
            browser.run("window.mark = 'still the same page'")
            steps = "document.querySelector('.card .value').textContent"
            assert browser.run(steps) == "10"
            write_curve(run, [1, 10, 20, 30])
            write_budget(run, [1, 10, 20, 30])
            browser.wait(f"{steps} === '30'")
            assert browser.run(view("curve-Energy"))[0] == [1, 30]
            assert browser.run("window.mark") == "still the same page"
            assert all(url.startswith((server.url, "data:")) for url in browser.requests())
            assert browser.complaints() == []
        finally:
            server.shutdown()
            thread.join()
    browser.wait("document.getElementById('state').className === 'lost'")
