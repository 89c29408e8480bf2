"""Structured logs: the lines of a pass and their form. They never stop a pass or show a secret."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from app import logs
from app.errors import AppError, ErrorCode
from app.ledgers import ledger_name
from app.passes import Options, WatchdogKind
from cli import watch_cost
from cli.output import Exit
from cli.watch_pass import Show, over_fleets
from gpufleet.domain.activity import CloudError
from gpufleet.domain.decisions import Action, Decision, Plan, Reason
from gpufleet.log_fields import FIELDS
from gpufleet.logs import FORM_VARIABLE, LEVEL_VARIABLE
from gpufleet.settings.document import FleetDocument
from tests.fixtures.logs import Line, RecordedLog
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet
from tests.fixtures.watchdogs.plain import START, document, instance
from watchdogs.execute import Executor
from watchdogs.idle.acting import RULES
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

ONE = instance(1).id


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FORM_VARIABLE, LEVEL_VARIABLE, "JOURNAL_STREAM"):
        monkeypatch.delenv(name, raising=False)


def decided(action: Action = Action.END) -> Decision:
    return Decision(resource=ONE, pool="batch", action=action, reason=Reason.STILL_IDLE, detail="2 h")


def logged(fake: FakeFleet) -> tuple[Executor, list[Line]]:
    log = RecordedLog()
    return Executor(replace(fake.ports(), log=log), RULES), log.lines


def plan(*decisions: Decision) -> Plan:
    return Plan(watchdog="idle", at=START, decisions=decisions)


def test_acting_decision_has_an_info_line_and_keeping_one_a_debug_line() -> None:
    executor, lines = logged(idle_fleet())
    executor.record(plan(decided(), decided(Action.KEEP)))
    line = {"event": "decision", "pool": "batch", "resource": ONE, "reason_code": "still_idle", "detail": "2 h"}
    assert lines == [line | {"level": "info", "action": "end"}, line | {"level": "debug", "action": "keep"}]


def test_outcome_has_its_duration() -> None:
    fake = idle_fleet()
    executor, lines = logged(fake)
    executor.attempt(decided(), lambda _: fake.ports().clock.sleep(90))
    executor.record_done(decided(), "ended")
    assert len(lines) == 1
    assert (lines[0]["event"], lines[0]["outcome"], lines[0]["duration_s"]) == ("outcome", "done", 90.0)
    assert lines[0]["detail"] == "ended" and "error" not in lines[0]


def test_a_failed_step_is_an_error() -> None:
    executor, lines = logged(idle_fleet())

    def fail(_: Decision) -> None:
        raise CloudError("throttled")

    executor.attempt(decided(), fail)
    assert [(line["level"], line["outcome"], line["error"]) for line in lines] == [("error", "failed", "throttled")]


# complete passes


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    return document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}", "notify": None})


def over(fake: FakeFleet) -> WatchdogKind:
    def make(read: FleetDocument, ports: Any) -> IdleWatchdog:
        return IdleWatchdog(read, replace(fake.ports(), ledger=ports.ledger, log=ports.log))

    return WatchdogKind(name="idle", make=make)


def a_pass(fake: FakeFleet, fleet: FleetDocument, *, apply: bool = True) -> Exit:
    accept = (digests(fleet, "idle")["batch"],)
    code, _ = over_fleets(over(fake), [fleet], Options(apply=apply, accept=accept), Show.PROBLEMS)
    return code


def written(capsys: pytest.CaptureFixture[str]) -> list[Line]:
    streams = capsys.readouterr()
    assert streams.out == "", "stdout is for the answer alone"
    return [json.loads(line) for line in streams.err.splitlines()]


def test_the_lines_of_a_pass_are_json_with_its_id(fleet: FleetDocument, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("daemon", service=True)
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert a_pass(idle_fleet(1), fleet) is Exit.DONE
    assert a_pass(idle_fleet(0), fleet) is Exit.DONE
    decision, outcome, done, nothing = written(capsys)
    assert list(decision)[:4] == ["time", "level", "component", "event"]
    assert before <= datetime.fromisoformat(decision["time"]) <= datetime.now(UTC)
    assert (decision["event"], decision["action"], decision["reason_code"]) == ("decision", "mark", "idle")
    assert (outcome["event"], outcome["outcome"], outcome["resource"]) == ("outcome", "done", ONE)
    assert (done["event"], done["outcome"], done["outcomes"]) == ("pass", "done", {"done": 1})
    assert decision["pass_id"] == outcome["pass_id"] == done["pass_id"] != nothing["pass_id"]
    for line in (decision, outcome, done, nothing):
        assert (line["component"], line["fleet"], line["watchdog"]) == ("daemon", ledger_name(fleet), "idle")
        assert set(line) <= set(FIELDS)


def test_a_pass_that_did_nothing_has_one_line(fleet: FleetDocument, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("daemon", service=True)
    fake = idle_fleet(2)
    fake.evidence.clear()
    assert a_pass(fake, fleet) is Exit.DONE
    (line,) = written(capsys)
    assert (line["event"], line["outcome"], line["decisions"], line["acting"]) == ("pass", "nothing_to_do", 2, 0)
    assert line["duration_s"] >= 0 and line["api_calls"] >= 0


def test_the_decisions_of_a_dry_run_have_lines(fleet: FleetDocument, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("daemon", service=True)
    assert a_pass(idle_fleet(1), fleet, apply=False) is Exit.FOUND
    decision, done = (line for line in written(capsys) if line["event"] != "ledger_elsewhere")
    assert (decision["event"], decision["outcome"], decision["action"]) == ("decision", "dry_run", "mark")
    assert (done["event"], done["acting"]) == ("pass", 1)


def test_pass_without_the_lease_has_one_line(
    fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("daemon", service=True)
    monkeypatch.setattr("app.wiring.FleetLedger.take_lease", lambda *_: "another-host/b/1/2")
    assert a_pass(idle_fleet(1), fleet) is Exit.DONE
    (line,) = written(capsys)
    assert (line["event"], line["outcome"], line["detail"]) == ("pass", "skipped", "another-host/b/1/2")


def test_a_pass_that_fails_has_one_line_with_the_error(
    fleet: FleetDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("daemon", service=True)
    fake = idle_fleet(1)

    def broken(_: str) -> None:
        raise CloudError("no answer, password=hunter2hunter2")

    fake.before = broken
    assert a_pass(fake, fleet) is Exit.FAILED
    (line,) = written(capsys)
    assert (line["level"], line["event"], line["outcome"]) == ("error", "pass", "failed")
    assert line["error"] == "no answer, [a password]", "logs hold no secret"


def test_a_cost_pass_that_fails_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("daemon", service=True)
    (tmp_path / "ledger.db").write_text("not a ledger")
    broken = document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}"})
    assert watch_cost.over_fleets([broken], show=False)[0] is Exit.FAILED
    (line,) = written(capsys)
    assert (line["watchdog"], line["event"], line["outcome"]) == ("cost", "pass", "failed")


def test_command_logs_nothing_by_default(fleet: FleetDocument, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("watch")
    a_pass(idle_fleet(1), fleet)
    assert not written(capsys)


def test_a_command_logs_on_request(
    fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FORM_VARIABLE, "json")
    logs.configure("watch")
    a_pass(idle_fleet(1), fleet)
    assert [line["event"] for line in written(capsys)] == ["decision", "outcome", "pass"]


def test_text_lines_have_the_same_fields(
    fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FORM_VARIABLE, "text")
    logs.configure("watch")
    a_pass(idle_fleet(1), fleet)
    first, second, _ = capsys.readouterr().err.splitlines()
    assert "decision" in first and f"resource={ONE}" in first and "reason_code=idle" in first
    assert "outcome done" in second


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_lines_are_for_people(fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logs.configure("daemon", service=True)
    a_pass(idle_fleet(1), fleet)
    assert not terminal.getvalue().startswith("{")
    assert "reason_code" in terminal.getvalue()


@pytest.mark.parametrize("value", ["yes", "JSON"])
def test_unknown_form_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORM_VARIABLE, value)
    with pytest.raises(AppError, match=f"`{FORM_VARIABLE}`: expected json or text, got '{value}'") as refused:
        logs.configure("daemon", service=True)
    assert refused.value.code is ErrorCode.WRONG_USE


@pytest.fixture(params=["full", "closed"])
def lost(request: pytest.FixtureRequest) -> Iterator[Any]:
    stream = open("/dev/full", "w", encoding="utf-8")  # noqa: PTH123, SIM115 - closed below
    if request.param == "closed":
        stream.close()
    yield stream
    with suppress(OSError):
        stream.close()


def test_unwritable_log_does_not_stop_a_pass(
    lost: Any, fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("daemon", service=True)
    fake = idle_fleet(1)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", lost)
        code = a_pass(fake, fleet)
    assert code is Exit.DONE
    assert fake.instances[ONE].idle_since is not None, "the mark was written"


def test_without_configuration_nothing_is_logged() -> None:
    assert not structlog.is_configured()
    with logs.of_pass("aws/dev/eu-central-1", "idle") as log:
        log.error("pass", error="unobserved")
