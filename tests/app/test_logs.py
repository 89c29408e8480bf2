"""Structured logs: which lines a pass writes, in which form, and that they never stop it or show a secret."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from app import logs
from app.errors import AppError, ErrorCode
from app.passes import Options, WatchdogKind
from cli import watch_cost
from cli.output import Exit
from cli.watch_pass import Show, over_fleets
from gpufleet.domain.activity import CloudError
from gpufleet.domain.decisions import Action, Decision, Plan, Reason
from gpufleet.settings.document import FleetDocument
from tests.fixtures.watchdogs.plain import START, document, instance
from tests.fixtures.watchdogs.worlds import World, idle_world
from watchdogs.execute import Executor
from watchdogs.idle.acting import RULES
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

ONE = instance(1).id
FIELDS = {
    *("at", "level", "event", "pass_id", "environment", "watchdog", "pool", "resource", "action", "reason_code"),
    *("duration_s", "outcome", "detail", "error"),
}
"""Of docs/run-modes.md; the node agent writes the same."""
Line = dict[str, Any]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.VARIABLE, raising=False)


@dataclass
class Lines:
    """A log that remembers its lines."""

    found: list[Line] = field(default_factory=list[Line])

    def info(self, event: str, **fields: Any) -> None:
        self.found.append({"level": "info", "event": event, **fields})

    def error(self, event: str, **fields: Any) -> None:
        self.found.append({"level": "error", "event": event, **fields})


def decided(action: Action = Action.END) -> Decision:
    return Decision(resource=ONE, pool="batch", action=action, reason=Reason.STILL_IDLE, detail="2 h")


def logged(world: World) -> tuple[Executor, list[Line]]:
    lines = Lines()
    return Executor(replace(world.ports(), log=lines), RULES), lines.found


def plan(*decisions: Decision) -> Plan:
    return Plan(watchdog="idle", at=START, decisions=decisions)


def test_a_decision_that_acts_has_a_line_and_one_that_keeps_has_none() -> None:
    executor, lines = logged(idle_world())
    executor.record(plan(decided(), decided(Action.KEEP)))
    assert lines == [
        {
            "level": "info",
            "event": "decision",
            "pool": "batch",
            "resource": ONE,
            "action": "end",
            "reason_code": "still_idle",
            "detail": "2 h",
        }
    ]


def test_an_outcome_says_how_long_it_took() -> None:
    world = idle_world()
    executor, lines = logged(world)
    executor.attempt(decided(), lambda _: world.ports().clock.sleep(90))
    executor.done(decided(), "ended")
    assert len(lines) == 1
    assert (lines[0]["event"], lines[0]["outcome"], lines[0]["duration_s"]) == ("outcome", "done", 90.0)
    assert (lines[0]["detail"], lines[0]["error"]) == ("ended", None)


def test_a_failed_step_is_an_error() -> None:
    executor, lines = logged(idle_world())

    def fail(_: Decision) -> None:
        raise CloudError("throttled")

    executor.attempt(decided(), fail)
    assert [(line["level"], line["outcome"], line["error"]) for line in lines] == [("error", "failed", "throttled")]


def test_a_pass_with_nothing_to_do_has_one_line() -> None:
    world = idle_world()
    executor, lines = logged(world)
    world.now += timedelta(seconds=2)
    executor.finish(None, plan(decided(Action.KEEP)))
    assert lines == [{"level": "info", "event": "pass", "outcome": "nothing_to_do", "duration_s": 2.0}]


def test_a_pass_that_only_settled_has_no_line_of_nothing() -> None:
    executor, lines = logged(idle_world())
    executor.done(decided(), "ended by an earlier run")
    executor.finish(None, plan())
    assert [line["event"] for line in lines] == ["outcome"]


# whole passes


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    return document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}", "notify": None})


def over(world: World) -> WatchdogKind:
    def make(read: FleetDocument, ports: Any) -> IdleWatchdog:
        return IdleWatchdog(read, replace(world.ports(), ledger=ports.ledger, log=ports.log))

    return WatchdogKind(name="idle", make=make)


def a_pass(world: World, fleet: FleetDocument) -> Exit:
    accept = (digests(fleet, "idle")["batch"],)
    code, _ = over_fleets(over(world), [fleet], Options(apply=True, accept=accept), Show.PROBLEMS)
    return code


def written(capsys: pytest.CaptureFixture[str]) -> list[Line]:
    streams = capsys.readouterr()
    assert streams.out == "", "stdout is for the answer alone"
    return [json.loads(line) for line in streams.err.splitlines() if line.startswith("{")]


def test_the_lines_of_a_pass_are_json_with_its_id(fleet: FleetDocument, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(always=True)
    world = idle_world(1)
    before = datetime.now(UTC)
    assert a_pass(world, fleet) is Exit.DONE
    assert a_pass(idle_world(0), fleet) is Exit.DONE
    decision, outcome, nothing = written(capsys)
    assert list(decision)[:3] == ["at", "level", "event"]
    assert before <= datetime.fromisoformat(decision["at"]) <= datetime.now(UTC)
    assert (decision["event"], decision["action"], decision["reason_code"]) == ("decision", "mark", "idle")
    assert (outcome["event"], outcome["outcome"], outcome["resource"]) == ("outcome", "done", ONE)
    assert (nothing["event"], nothing["outcome"]) == ("pass", "nothing_to_do")
    assert decision["pass_id"] == outcome["pass_id"] != nothing["pass_id"]
    for line in (decision, outcome, nothing):
        assert (line["environment"], line["watchdog"]) == (fleet.environment, "idle")
        assert set(line) <= FIELDS


def test_a_pass_that_fails_has_one_line_with_the_error(
    fleet: FleetDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(always=True)
    world = idle_world(1)

    def broken(_: str) -> None:
        raise CloudError("no answer, password=hunter2hunter2")

    world.before = broken
    assert a_pass(world, fleet) is Exit.FAILED
    (line,) = written(capsys)
    assert (line["level"], line["event"], line["outcome"]) == ("error", "pass", "failed")
    assert line["error"] == "no answer, [a password]", "logs hold no secret"


def test_a_cost_pass_that_fails_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(always=True)
    (tmp_path / "ledger.db").write_text("not a ledger")
    broken = document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}"})
    assert watch_cost.over_fleets([broken], show=False)[0] is Exit.FAILED
    (line,) = written(capsys)
    assert (line["watchdog"], line["event"], line["outcome"]) == ("cost", "pass", "failed")


def test_a_command_logs_nothing_unless_it_is_asked_to(
    fleet: FleetDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure()
    a_pass(idle_world(1), fleet)
    assert not written(capsys)


def test_a_command_logs_on_request(
    fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(logs.VARIABLE, "json")
    logs.configure()
    a_pass(idle_world(1), fleet)
    assert [line["event"] for line in written(capsys)] == ["decision", "outcome"]


def test_lines_for_people_name_the_same(
    fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(logs.VARIABLE, "text")
    logs.configure()
    a_pass(idle_world(1), fleet)
    first, second = capsys.readouterr().err.splitlines()
    assert "decision" in first and f"resource={ONE}" in first and "reason_code=idle" in first
    assert "outcome=done" in second


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_lines_are_for_people(fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logs.configure(always=True)
    a_pass(idle_world(1), fleet)
    assert not terminal.getvalue().startswith("{")
    assert "reason_code" in terminal.getvalue()


@pytest.mark.parametrize("value", ["yes", "JSON"])
def test_another_form_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, value)
    with pytest.raises(AppError, match=f"{logs.VARIABLE}={value}: write one of json, text") as refused:
        logs.configure(always=True)
    assert refused.value.code is ErrorCode.WRONG_USE


@pytest.fixture(params=["full", "closed"])
def lost(request: pytest.FixtureRequest) -> Iterator[Any]:
    stream = open("/dev/full", "w", encoding="utf-8")  # noqa: PTH123, SIM115 - closed below
    if request.param == "closed":
        stream.close()
    yield stream
    with suppress(OSError):
        stream.close()


def test_a_log_that_cannot_be_written_stops_no_pass(
    lost: Any, fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure(always=True)
    world = idle_world(1)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", lost)
        code = a_pass(world, fleet)
    assert code is Exit.DONE
    assert world.instances[ONE].idle_since is not None, "the mark was written"


def test_without_configuration_nothing_is_logged() -> None:
    assert not structlog.is_configured()
    log = logs.of_pass("dev", "idle")
    log.error("pass", error="unseen")
