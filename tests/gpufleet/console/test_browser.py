"""The page in a real browser: no errors, no external request, readable on a phone, usable by keyboard."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.console.browser import PROGRAM, Browser, browser
from tests.fixtures.console.fleet import instance
from tests.fixtures.console.pages import FakeConsoleData, serving, sign_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed (make setup installs it)"),
]

HISTORIES = ("/history?span=24h", "/history?span=7d&by=model", "/history?span=30d&by=team")
CONTRAST = """
(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const f = v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 };
  const light = ([r, g, b]) => { return .2126 * f(r) + .7152 * f(g) + .0722 * f(b) };
  let worst = 99;
  for (const node of document.querySelectorAll('main *, nav *')) {
    if (![...node.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    let back = node, colour;
    do { colour = parse(getComputedStyle(back).backgroundColor); back = back.parentElement }
    while (back && colour[3] === 0);
    const a = light(parse(getComputedStyle(node).color)), b = light(colour);
    worst = Math.min(worst, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
  }
  return worst;
})()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_pages_fit_are_readable_and_make_no_external_request(
    tab: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    with serving(FakeConsoleData()) as url:
        tab.look(width, scheme)
        sign_in(tab, url)
        tab.problems.clear()
        tab.asked.clear()
        for path in ("/", "/instances", f"/instance/{instance(1).id}", *HISTORIES):
            tab.open(url + path)
            assert tab.ask("document.documentElement.scrollWidth") <= width, path
            assert tab.ask(CONTRAST) >= 4.5, "WCAG AA"
            assert tab.ask("getComputedStyle(document.body).colorScheme || 'x'")
            name = re.sub(r"[^a-z0-9]+", "-", path.strip("/")) or "status"
            tab.picture(tmp_path / f"{name}-{width}-{scheme}.png")
        assert tab.problems == []
        assert all(asked.startswith((url, "data:")) for asked in tab.asked), tab.asked
        dark = tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(17, 18, 20)"
        assert dark is (scheme == "dark")


def test_an_instance_is_kept_by_keyboard(tab: Browser) -> None:
    data = FakeConsoleData()
    with serving(data) as url:
        tab.look(1440, "light")
        sign_in(tab, url)
        for _ in range(80):
            tab.type_key("Tab")
            if tab.ask("document.activeElement.innerText") == "Keep 4 h":
                break
        style = tab.ask("getComputedStyle(document.activeElement).outlineStyle")
        assert style == "solid", "where the focus is can be seen"
        with tab.loads():
            tab.type_key("Enter")
        assert tab.ask("document.querySelector('h1').innerText") == "Kept"
    assert data.kept == [("aws/prod/us-east-1", instance(0).id, "token")]


VISIBLE = """
[...document.querySelectorAll('.values')].filter(one => getComputedStyle(one).visibility === 'visible')
  .map(one => one.querySelector('p').innerText).join()
"""


def test_values_are_shown_on_focus_and_on_hover(tab: Browser) -> None:
    with serving(FakeConsoleData()) as url:
        tab.look(1440, "light")
        sign_in(tab, url)
        tab.open(f"{url}/history")
        assert tab.ask(VISIBLE) == "Sat 21 Nov 08:00–09:00 UTC: 191.00", "the last interval is chosen first"
        for _ in range(20):
            tab.type_key("Tab")
            if tab.ask("document.activeElement.type") == "radio":
                break
        tab.type_key("ArrowLeft")
        assert tab.ask(VISIBLE) == "Sat 21 Nov 07:00–08:00 UTC: 210.25"
        assert tab.ask("getComputedStyle(document.querySelector('input:focus ~ .bars')).outlineWidth") == "3px"
        bar = tab.ask("JSON.stringify(document.querySelectorAll('.bars')[4].getBoundingClientRect())")
        place = json.loads(bar)
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=place["x"] + 5, y=place["y"] + 50)
        shown = tab.ask(VISIBLE)
        assert shown.startswith("Fri 20 Nov 13:00–14:00 UTC: not known the cost watchdog did not run"), shown


def test_the_grouping_is_switched_with_the_keyboard(tab: Browser) -> None:
    with serving(FakeConsoleData()) as url:
        tab.look(375, "dark")
        sign_in(tab, url)
        tab.open(f"{url}/history")
        for _ in range(20):
            tab.type_key("Tab")
            if tab.ask("document.activeElement.innerText") == "Team":
                break
        with tab.loads():
            tab.type_key("Enter")
        assert tab.ask("document.querySelector('h2').innerText") == "Cost over time, by team"
        assert tab.ask("document.querySelector('[aria-label=\"Group by\"] [aria-current]').innerText") == "Team"
