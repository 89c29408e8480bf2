"""Text from a compromised machine or a foreign tag cannot control a terminal or a chat."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from app import logs
from app.errors import AppError
from cli import output
from cli.files import write_json, write_text
from gpufleet.domain.printable import in_json, printable
from gpufleet.ledger.database import writing
from gpufleet.ledger.outbox import Message, enqueue, messages
from gpufleet.ledger.schema import open_ledger
from gpufleet.logs import FORM_VARIABLE

CLIPBOARD = "\x1b]52;c;Y3VybA==\x1b\\"
EVIL = f"{CLIPBOARD}\x1b[2Jall is well\x9b31m \u202egnp.exe\u2066"
SHOWN = printable(EVIL)
STEERS = ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x07", "\x08")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """New output of both streams of the command since the last call, as on a terminal with colours."""
    for console in (output.STDOUT, output.STDERR):
        monkeypatch.setattr(console, "_force_terminal", True)
        monkeypatch.setattr(console, "_environ", {"TERM": "xterm-256color"})
        monkeypatch.setattr(console, "is_interactive", True)
        monkeypatch.setattr(console, "_width", 200)
        monkeypatch.setattr(console, "_height", 20)
    return lambda: "".join(capsys.readouterr())


def steering(text: str) -> list[str]:
    return [found for found in STEERS if found in text]


def table() -> Table:
    found = Table("name")
    found.add_row(EVIL)
    return found


def test_control_sequences_are_removed() -> None:
    assert not steering(SHOWN)
    assert "all is well" in SHOWN
    assert printable("a\tb\r\nc\u00e9\u4e2d\U0001f600\n") == "a\tb\r\nc\u00e9\u4e2d\U0001f600\n"
    assert printable("a\rb") == "a\ufffdb"


@pytest.mark.parametrize("how", ["line", "styled", "table", "panel", "error", "text"])
def test_a_terminal_shows_it_as_text(terminal: Callable[[], str], how: str) -> None:
    match how:
        case "line":
            output.STDOUT.print(EVIL, highlight=False, soft_wrap=True)
        case "styled":
            output.STDERR.print(f"gpufleet: {EVIL}", style="red", soft_wrap=True)
        case "table":
            output.STDOUT.print(table())
        case "panel":
            output.STDOUT.print(Panel(table()))
        case "error":
            output.note(str(AppError(EVIL)))
        case _:
            write_text(EVIL, None)
            output.write(EVIL)
    shown = terminal()
    assert not steering(shown)
    assert "all is well" in shown


def test_a_live_screen_still_moves_the_cursor(terminal: Callable[[], str]) -> None:
    with Live(console=output.STDOUT, auto_refresh=False, screen=True) as live:
        live.update(table(), refresh=True)
    shown = terminal()
    assert "\x1b[?1049h" in shown
    assert not steering(shown.replace("\x1b[2J", ""))
    assert "all is well" in shown


def test_a_program_reads_the_same_values_from_json(terminal: Callable[[], str]) -> None:
    output.print_json({"phase": EVIL})
    write_json({"phase": EVIL}, None)
    shown = terminal()
    assert not steering(shown)
    first, second = shown.split("\n}\n", 1)
    assert json.loads(first + "}") == json.loads(second) == {"phase": EVIL}
    assert json.loads(in_json(json.dumps(EVIL, ensure_ascii=False))) == EVIL


def test_a_log_line_shows_it_as_text(terminal: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORM_VARIABLE, "text")
    logs.configure("daemon")
    with logs.of_pass("aws/prod/eu-central-1", "orphans") as log:
        log.error("pass", error=EVIL)
    shown = terminal()
    assert not steering(shown)
    assert "all is well" in shown


def test_slack_shows_it_as_text(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": EVIL}},
        {"type": "section", "text": {"type": "mrkdwn", "text": EVIL}},
    ]
    with writing(engine) as connection:
        enqueue(connection, Message(key="k", channel="c", text=EVIL, detail={"blocks": blocks}), datetime.now(UTC))
    (one,) = messages(engine)
    assert not steering(json.dumps(dict(one.message.detail), ensure_ascii=False) + one.message.text)
    assert "all is well" in one.message.text
