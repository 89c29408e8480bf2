"""docs/logs.md, the tables in `gpufleet.log_fields` and the calls in the code name the same fields and events."""

import ast
import re
from collections.abc import Iterator, Mapping

import pytest

from gpufleet.log_fields import EVENTS, FIELDS
from gpufleet.toolchain.folders import ROOT

PACKAGES = ("app", "cli", "gpufleet", "hosts", "serving", "watchdogs")
WRITES = ("debug", "info", "warning", "error", "write")
PAGE = ROOT / "docs" / "logs.md"


def calls() -> Iterator[tuple[str, ast.expr, set[str]]]:
    """Return place, event and fields of each logging call."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                arguments = node.args[1:] if name == "timed" else node.args if name in WRITES else []
                if len(arguments) == 1 and (node.keywords or name == "timed"):
                    fields = {word.arg for word in node.keywords if word.arg is not None}
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", arguments[0], fields


def literals(event: ast.expr) -> list[str]:
    branches = [event.body, event.orelse] if isinstance(event, ast.IfExp) else [event]
    return [one.value for one in branches if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def table(heading: str) -> Mapping[str, str]:
    """Return the rows of the table below a heading: first cell -> second cell."""
    text = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name.strip(" `"): meaning.strip() for name, meaning in rows}


@pytest.mark.parametrize(("heading", "known"), [("Fields", FIELDS), ("Events", EVENTS)])
def test_the_page_contains_every_row(heading: str, known: Mapping[str, str]) -> None:
    assert list(table(heading).items()) == list(known.items())


def test_every_call_uses_documented_events_and_fields() -> None:
    found = list(calls())
    assert len(found) > 60, "the search finds the calls"
    unknown = [
        f"{place}: {sorted(wrong)}"
        for place, event, fields in found
        if (wrong := {*literals(event)} - {*EVENTS} | fields - {*FIELDS})
    ]
    assert not unknown


def test_every_documented_event_is_written_somewhere() -> None:
    written = {name for _, event, _ in calls() for name in literals(event)}
    assert {*EVENTS} - written == {"setting"}, "it is written without a call"


def test_names_are_codes() -> None:
    assert all(re.fullmatch(r"[a-z][a-z_]*", name) for name in (*FIELDS, *EVENTS))
