"""Docs say what the code does."""

import re
from pathlib import Path

import pytest

from watchdogs.plan import Reason

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_reason_has_an_entry_and_no_entry_is_left_over() -> None:
    entries = re.findall(r"^### (.+)$", (DOCS / "reasons.md").read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(reason.value for reason in Reason)


PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        link
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in link and not link.startswith("mailto:") and not (page.parent / link).exists()
    ]
    assert broken == []
