"""The documentation matches the code."""

import html
import re
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from gpufleet.domain.decisions import Reason
from gpufleet.toolchain.folders import ROOT
from scripts import import_graph, reference

DOCS = ROOT / "docs"
_FENCE_AS_TEXT = re.compile(r"<code>(?:console|json|promql|python|sh|text|yaml)?\n")


def test_every_reason_has_exactly_one_entry() -> None:
    entries = re.findall(r"^### (.+)$", (DOCS / "reasons.md").read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(reason.sentence for reason in Reason)


def test_runbook_uses_the_sentences_of_reasons() -> None:
    section = (DOCS / "runbook.md").read_text().partition("## FallbackExpensive")[2].partition("\n## ")[0]
    named = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")][2:]
    assert len(named) > 4
    assert set(named) <= {reason.sentence for reason in Reason}


PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "contributing").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_link_targets_exist(page: Path) -> None:
    broken = [
        link
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in link and not link.startswith("mailto:") and not (page.parent / link).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_python_files_named_on_a_page_exist(page: Path) -> None:
    named = re.findall(r"`([\w.]+/[\w./]+\.py)(?:::\w+)?`", page.read_text())
    assert [name for name in dict.fromkeys(named) if not (ROOT / name).exists()] == []


BLOCKS = [
    (page, number, block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{p.stem}-{n}" for p, n, _ in BLOCKS])
def test_python_code_of_a_page_runs(page: Path, number: int, block: str) -> None:
    names: dict[str, Any] = {"__name__": f"{page.stem}_{number}"}
    exec(compile(block, f"{page.name}, block {number}", "exec"), names)  # noqa: S102 - our own pages


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_generated_page_is_current(name: str) -> None:
    written = (reference.FOLDER / name).read_text() if (reference.FOLDER / name).exists() else ""
    assert written == reference.pages()[name], "run `python -m scripts.reference`"


def test_the_picture_of_imports_is_current() -> None:
    assert import_graph.PICTURE.read_text() == import_graph.svg(), "run `python -m scripts.import_graph`"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert (tmp_path / "first-week.html").exists()
    shown = html.unescape((tmp_path / "reference" / "alerts.html").read_text())
    assert '{job=~"engine|accelerator"}' in shown, "what is copied from a table is what Prometheus reads"
    # the site's Markdown has no fenced blocks within lists: it shows them as one line of text with the language
    assert [page.name for page in tmp_path.rglob("*.html") if _FENCE_AS_TEXT.search(page.read_text())] == []


def test_every_number_in_the_limits_is_a_benchmark_result() -> None:
    """Each bold number in the table of measurements is in a cell of the benchmarks page."""
    measured = (DOCS / "limits.md").read_text().partition("## Measured")[2].partition("\n## ")[0]
    numbers = re.findall(r"\*\*(.+?)\*\*", measured)
    cells = {cell.strip() for line in (DOCS / "benchmarks.md").read_text().splitlines() for cell in line.split("|")}
    assert len(numbers) > 10
    left = [number for number in numbers if number not in cells]
    assert left == [], "measured again: write docs/benchmarks.md's numbers into docs/limits.md"


TESTS_OF_DEATHS = sorted(set(re.findall(r"`(tests/\S+\.py::\w+)`", (DOCS / "run-modes.md").read_text())))


def test_each_failure_in_the_table_names_its_test() -> None:
    table = (DOCS / "run-modes.md").read_text().partition("## What happens when something dies")[2]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row] == []


@pytest.mark.parametrize("name", TESTS_OF_DEATHS)
def test_test_named_in_the_docs_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE), name
