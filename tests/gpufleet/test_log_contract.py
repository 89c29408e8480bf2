"""Contract test of the port `Log`: JSON lines, `SILENT`, and `RecordedLog`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from gpufleet.logs import SILENT, Level, LineLog, Log, LogFormat
from tests.fixtures.logs import RecordedLog


@dataclass
class Written:
    log: Log
    lines: Callable[[], Sequence[dict[str, Any]]]


@pytest.fixture(params=["fake", "real"])
def written(request: pytest.FixtureRequest) -> Written:
    if request.param == "fake":
        fake = RecordedLog()
        return Written(fake, lambda: fake.lines)
    raw: list[str] = []
    now = datetime(2026, 11, 21, tzinfo=UTC)
    log = LineLog(component="test", now=lambda: now, write=raw.append, form=LogFormat.JSON, least=Level.DEBUG)
    return Written(log, lambda: [json.loads(line) for line in raw])


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_each_level_writes_its_event_and_fields(written: Written) -> None:
    for level in Level:
        getattr(written.log, level)("pass", pool="chat", count=2)
    assert [line["level"] for line in written.lines()] == list(Level)
    for line in written.lines():
        assert (line["event"], line["pool"], line["count"]) == ("pass", "chat", 2)


def test_a_field_without_a_value_is_left_out(written: Written) -> None:
    written.log.info("pass", error=None, outcome="done", count=0, text="")
    (line,) = written.lines()
    assert "error" not in line
    assert (line["outcome"], line["count"]) == ("done", 0)


@pytest.mark.parametrize("value", [Unprintable(), b"\xff", float("nan"), ValueError("x"), {"a": [object()]}, 2**70])
def test_no_value_raises(written: Written, value: Any) -> None:
    for log in (written.log, SILENT):
        log.error("pass", value=value)
    assert [line["event"] for line in written.lines()] == ["pass"]
