"""The HTML report in a real browser: it loads nothing, has no errors, fits a phone, and has dark and light
colours."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.commands import build
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.small_fleet import WINDOW, document, fill

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

MEASURE = """
<script>
addEventListener('load', () => {
  const root = document.documentElement;
  const loaded = performance.getEntriesByType('resource').map(one => one.name);
  document.title = JSON.stringify({
    width: root.scrollWidth, available: root.clientWidth, inner: innerWidth, loaded, errors: window.failed || [],
    page: getComputedStyle(document.body).backgroundColor, text: getComputedStyle(document.body).color,
    pictures: [...document.querySelectorAll('svg')].filter(one => one.getBoundingClientRect().width > 0).length,
  });
});
addEventListener('error', event => (window.failed = window.failed || []).push(String(event.message)), true);
</script>
"""


def in_browser(page: Path, width: int, scheme: str) -> dict[str, object]:
    """Measurements of the page in a frame of this width. A frame is used because windows have a minimum width."""
    assert BROWSER is not None
    frame = page.with_name("frame.html")
    measured = page.with_name("measured.html")
    measured.write_text(page.read_text().replace("<head>", f"<head>{MEASURE}"))
    frame.write_text(
        f"<!doctype html><iframe src='{measured.name}' width={width} height=800 style='border:0'></iframe>"
        "<script>addEventListener('load', () => setTimeout(() => {"
        "document.body.innerText = document.querySelector('iframe').contentDocument.title}, 100))</script>"
    )
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", "--virtual-time-budget=5000",
            f"--user-data-dir={page.parent}/profile", "--dump-dom", frame.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    body = done.stdout[done.stdout.index("<body>") + 6 : done.stdout.index("</body>")]
    return json.loads(body)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="Chromium is missing: apt-get install chromium")
def test_report_page_fits_a_phone_loads_nothing_and_has_dark_and_light_colours(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    engine.dispose()
    page = tmp_path / "cost.html"
    arguments = [
        "report",
        "cost",
        "--fleet",
        str(document(tmp_path)),
        *WINDOW,
        "--format",
        "html",
        "--out",
        str(page),
    ]
    assert CliRunner().invoke(build("report"), arguments).exit_code == 0
    for scheme, colours in (
        ("light", ("rgb(255, 255, 255)", "rgb(28, 32, 36)")),
        ("dark", ("rgb(17, 18, 20)", "rgb(237, 238, 240)")),
    ):
        for width in (375, 1100):
            found = in_browser(page, width, scheme)
            assert found["inner"] == width
            assert found["width"] == found["available"], "something is wider than the page"
            assert (found["loaded"], found["errors"]) == ([], [])
            assert (found["page"], found["text"]) == colours
            assert found["pictures"] == 4
