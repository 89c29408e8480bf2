"""`gpufleet keep | pause | resume`, including their limits."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from app.brakes import remove_keep
from app.errors import AppError, ErrorCode
from app.fleet_view import Costs, Watched
from app.fleets import load
from app.ledgers import ledger_name
from app.wiring import open_engine
from cli.commands import build
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance, Phase
from gpufleet.ledger import operations
from gpufleet.ledger.decisions import record_decisions
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.small_fleet import document
from tests.fixtures.watchdogs.plain import instance
from watchdogs.spot import lifecycle


@pytest.mark.parametrize("command", ["pause", "keep"])
def test_end_beyond_the_calendar_is_wrong_use(tmp_path: Path, command: str) -> None:
    open_ledger(f"sqlite:///{tmp_path}/ledger.db").dispose()
    arguments = [command, "chat", "--reason", "x", "--for", "999999999d", "--fleet", str(document(tmp_path))]
    done = CliRunner().invoke(build("brakes"), arguments)
    assert isinstance(done.exception, AppError), done.exception
    assert done.exception.code is ErrorCode.WRONG_USE
    assert "--for 999999999d" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["pause", "chat", "--reason", "x", "--for", "0s"], "--for 0s: ends immediately; give", id="pause 0s"
        ),
        pytest.param(
            ["keep", "chat", "--reason", "x", "--for", "0d"], "--for 0d: ends immediately; give", id="keep 0d"
        ),
        pytest.param(["keep", "chat", "--reason", "x", "--for", ""], "--for '' is not a duration", id="keep ''"),
        pytest.param(
            ["pause", "chat", "--reason", "x", "--for", "soon"], "--for 'soon' is not a duration", id="pause soon"
        ),
        pytest.param(["pause", "chat", "--reason", " "], "--reason ' ' is empty: write why", id="pause, no reason"),
        pytest.param(
            ["target", "chat", "1", "--reason", ""], "--reason '' is empty: write why", id="target, no reason"
        ),
        pytest.param(["target", "chat", "1"], "--reason is missing: write why", id="target, none"),
        pytest.param(["target", "chat", "--for", "1h"], "need a pool and a target", id="an end without a target"),
        pytest.param(["target", "chat", "1", "--reason", "x", "--for", "0s"], "ends immediately", id="target 0s"),
        pytest.param(["drain", "i-1", "--reason", ""], "--reason '' is empty: write why", id="drain, no reason"),
        pytest.param(
            ["pause", "chat", "--reason", "x", "--for", "1h", "--until-resumed"], "choose one", id="two ends"
        ),
        pytest.param(["pause", "chat", "--reason", "a\nb"], "write one line of printable", id="two lines"),
        pytest.param(["keep", "chat", "--reason", "\x1b[31m"], "write one line of printable", id="escapes"),
        pytest.param(["drain", "i-1", "--reason", "a\0b"], "write one line of printable", id="a zero byte"),
        pytest.param(
            ["pause", "chat", "--reason", "a" * 501], "has 501 characters: write at most 500", id="too long"
        ),
        pytest.param(
            ["pause", "chat", "--reason", "x", "--owner", "a" * 129], "--owner has 129 characters", id="long owner"
        ),
        pytest.param(["pause", "chat", "--reason", "x", "--owner", " "], "--owner ' ' is empty", id="no owner"),
    ],
)
def test_wrong_arguments_are_named_with_the_remedy(tmp_path: Path, arguments: list[str], message: str) -> None:
    open_ledger(f"sqlite:///{tmp_path}/ledger.db").dispose()
    done = CliRunner().invoke(build("brakes"), [*arguments, "--fleet", str(document(tmp_path))])
    assert isinstance(done.exception, AppError), done.exception
    assert (done.exception.code, message in str(done.exception)) == (ErrorCode.WRONG_USE, True), done.exception


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["pause", "chat"], id="pause"),
        pytest.param(["pause", "all"], id="pause all"),
        pytest.param(["keep", "chat"], id="keep"),
        pytest.param(["target", "chat", "2"], id="target"),
        pytest.param(["target", "chat", "1"], id="target as it is"),
    ],
)
@pytest.mark.parametrize(
    ("end", "hours"),
    [
        pytest.param([], 4, id="default"),
        pytest.param(["--for", "2d"], 48, id="2d"),
        pytest.param(["--until-resumed"], None, id="until resumed"),
    ],
)
def test_a_brake_has_an_owner_a_reason_and_an_end(
    tmp_path: Path, arguments: list[str], end: list[str], hours: int | None
) -> None:
    engine, path = open_ledger(f"sqlite:///{tmp_path}/ledger.db"), document(tmp_path)
    more = ["--reason", " a launch ", "--owner", "ann", *end, "--fleet", str(path)]
    before = datetime.now(UTC)
    done = CliRunner().invoke(build("brakes"), [*arguments, *more])
    assert done.exit_code == 0, done.exception
    (brake,) = operations.brakes(engine, ledger_name(load([str(path)])[0]), before)
    assert (brake.kind, brake.scope, brake.owner, brake.reason) == (arguments[0], arguments[1], "ann", "a launch")
    if hours is None:
        assert brake.until is None and "until `gpufleet resume`" in done.stdout
    else:
        shown = "%Y-%m-%dT%H:%M:%S+00:00" if arguments[0] == "target" else "%Y-%m-%d %H:%M UTC"
        assert brake.until is not None and f"until {brake.until:{shown}}" in done.stdout
        assert timedelta(0) <= brake.until - before - timedelta(hours=hours) < timedelta(minutes=1)
    engine.dispose()


def test_target_that_is_set_again_is_held_only_by_the_last_owner(tmp_path: Path) -> None:
    engine, path = open_ledger(f"sqlite:///{tmp_path}/ledger.db"), document(tmp_path)
    fleet, now = ledger_name(load([str(path)])[0]), datetime.now(UTC)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(build("brakes"), [*arguments, "--fleet", str(path)])

    for value, owner in (("2", "ann"), ("2", "bob"), ("3", "cid")):
        assert call("target", "chat", value, "--reason", "a launch", "--owner", owner).exit_code == 0
    assert [(b.kind, b.owner) for b in operations.brakes(engine, fleet, now)] == [("target", "cid")]
    moves = operations.target_moves(engine, fleet, "chat")
    assert [(m.value, m.changed_by) for m in moves] == [(1, "settings"), (2, "ann"), (2, "bob"), (3, "cid")]
    shown = json.loads(call("target", "chat", "--json").stdout)
    assert (shown[0]["target"], shown[0]["held_by"]) == (3, "cid")
    assert shown[0]["held_until"] > now.isoformat(timespec="seconds")
    assert f"; held by cid until {shown[0]['held_until']})" in call("target", "chat").stdout
    ended = operations.TargetChange(by="idle", reason="ended", at=now, because="idle:i-1")
    assert operations.lower_target(engine, fleet, "chat", 0, ended).value == 3, "held"
    assert call("resume", "chat").exit_code == 0
    assert not operations.brakes(engine, fleet, now)
    assert operations.lower_target(engine, fleet, "chat", 3, ended).value == 3, "at the floor"
    assert operations.lower_target(engine, fleet, "chat", 0, ended).value == 2
    assert operations.lower_target(engine, fleet, "chat", 0, ended).value == 2, "once for each end"
    assert json.loads(call("target", "chat", "--json").stdout)[0]["held_by"] is None
    engine.dispose()


@pytest.mark.parametrize(
    ("scope", "still"),
    [
        pytest.param(
            "chat", ["pause all by ann still holds until `gpufleet resume`"], id="a pool, and all is paused"
        ),
        pytest.param("all", ["pause chat by ann", "keep batch by ann"], id="all, and pools have brakes of their own"),
    ],
)
def test_resume_reports_remaining_brakes(tmp_path: Path, scope: str, still: list[str]) -> None:
    open_ledger(f"sqlite:///{tmp_path}/ledger.db").dispose()
    fleet = ["--fleet", str(document(tmp_path))]
    for arguments in (["pause", "chat"], ["keep", "batch"], ["pause", "all", "--until-resumed"]):
        assert (
            CliRunner().invoke(build("brakes"), [*arguments, "--reason", "x", "--owner", "ann", *fleet]).exit_code
            == 0
        )
    done = CliRunner().invoke(build("brakes"), ["resume", scope, *fleet])
    assert done.stdout == f"1 brake of {scope} released\n"
    assert [line for line in still if line not in done.stderr] == []
    assert len(done.stderr.splitlines()) == len(still)


def test_json_lists_set_released_and_remaining_brakes(tmp_path: Path) -> None:
    open_ledger(f"sqlite:///{tmp_path}/ledger.db").dispose()
    fleet = ["--fleet", str(document(tmp_path))]

    def call(*arguments: str) -> Any:
        done = CliRunner().invoke(build("brakes"), [*arguments, "--json", "--owner", "ann", *fleet])
        assert (done.exit_code, done.stderr) == (0, ""), done.exception
        return json.loads(done.stdout)

    (paused,) = call("pause", "all", "--reason", "a launch", "--until-resumed")
    assert (datetime.now(UTC) - datetime.fromisoformat(paused.pop("since"))).total_seconds() < 60
    assert paused == {
        "environment": "dev", "kind": "pause", "scope": "all", "owner": "ann", "reason": "a launch", "until": None,
    }  # fmt: skip
    (kept,) = call("keep", "chat", "--reason", "a launch", "--for", "1h")
    assert (kept["kind"], kept["scope"]) == ("keep", "chat")
    assert datetime.fromisoformat(kept["until"]) - datetime.fromisoformat(kept["since"]) == timedelta(hours=1)
    (ended,) = call("resume", "chat")
    assert (ended["environment"], ended["scope"], ended["released"]) == ("dev", "chat", [kept])
    assert [(brake["kind"], brake["scope"]) for brake in ended["left"]] == [("pause", "all")]
    assert [(row["released"], len(row["left"])) for row in call("resume", "chat")] == [([], 1)]


def test_expired_brake_is_not_released(tmp_path: Path) -> None:
    engine, path = open_ledger(f"sqlite:///{tmp_path}/ledger.db"), document(tmp_path)
    since = datetime.now(UTC) - timedelta(hours=5)
    brake = Brake(
        kind=BrakeKind.PAUSE, scope="chat", owner="ops", reason="x", since=since, until=since + timedelta(hours=4)
    )
    operations.set_brake(engine, ledger_name(load([str(path)])[0]), brake)
    done = CliRunner().invoke(build("brakes"), ["resume", "chat", "--fleet", str(path)])
    assert done.stdout == "0 brakes of chat released\n"
    engine.dispose()


class OneInstance:
    """A cloud with one instance of the pool, whose agent drains on request."""

    def instance(self, instance_id: str) -> Instance:
        return instance(1, id=instance_id, environment="dev", pool="chat")

    def drain(self, one: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
        assert by is DrainOwner.PERSON
        return AgentStatus(phase=Phase.DRAINING, ready=False, draining=True, drained=False, reason=reason)


def test_drain_prints_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.brakes.inventory_of", lambda _: OneInstance())
    monkeypatch.setattr("app.brakes.agents_of", lambda *_: None)
    monkeypatch.setattr("app.brakes.FleetAgents", lambda _: OneInstance())
    arguments = ["drain", "i-1", "--reason", "odd noises", "--owner", "ann", "--json"]
    done = CliRunner().invoke(build("brakes"), [*arguments, "--fleet", str(document(tmp_path))])
    assert json.loads(done.stdout) == [
        {
            "environment": "dev", "instance": "i-1", "phase": "draining", "reason": "by hand, ann: odd noises",
            "deadline": "90s",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["pause", "chat", "--reason", "x"], id="pause"),
        pytest.param(["resume", "chat"], id="resume"),
        pytest.param(["resume", "all"], id="resume all"),
        pytest.param(["resume", "gone"], id="resume a pool that was removed"),
    ],
)
def test_a_machine_without_the_ledger_brakes_and_releases_nothing(tmp_path: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(build("brakes"), [*arguments, "--fleet", str(document(tmp_path))])
    assert isinstance(done.exception, AppError) and "is not on this machine" in str(done.exception)
    assert not (tmp_path / "ledger.db").exists(), "with a file there, the next brake would not be refused"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["target"], id="target"),
        pytest.param(["status", "--no-costs"], id="status"),
        pytest.param(["status", "--costs"], id="status with costs"),
        pytest.param(["watch", "why", "chat"], id="watch why"),
        pytest.param(["report", "cost"], id="report"),
        pytest.param(["ledger", "verify"], id="ledger verify"),
    ],
)
def test_reading_creates_no_ledger(tmp_path: Path, arguments: list[str]) -> None:
    """A new file would make the next `pause` succeed without an effect on any watchdog."""
    done = CliRunner().invoke(build(), [*arguments, "--fleet", str(document(tmp_path))])
    assert done.exception is None or isinstance(done.exception, (SystemExit, AppError)), done.exception
    assert not (tmp_path / "ledger.db").exists()


def test_targets_without_the_ledger_are_those_of_the_settings(tmp_path: Path) -> None:
    done = CliRunner().invoke(build("brakes"), ["target", "--fleet", str(document(tmp_path))])
    assert done.exit_code == 0, done.exception
    assert "ledger.db is not on this machine: these are the targets of the settings" in " ".join(done.stderr.split())
    assert "\nchat: 1 (version 1, by settings" in done.stdout


@pytest.mark.parametrize("used", [False, True], ids=["no pass has acted", "a pass has acted"])
@pytest.mark.parametrize("arguments", [["pause", "chat"], ["keep", "chat"], ["target", "chat", "2"]], ids=" ".join)
def test_brake_in_an_unused_ledger_prints_a_warning(tmp_path: Path, arguments: list[str], used: bool) -> None:
    engine, path = open_ledger(f"sqlite:///{tmp_path}/ledger.db"), document(tmp_path)
    if used:
        made = Decision(resource="chat", pool="chat", action=Action.KEEP, reason=Reason.AS_WANTED)
        record_decisions(engine, ledger_name(load([str(path)])[0]), "scale", [made], datetime.now(UTC))
    done = CliRunner().invoke(build("brakes"), [*arguments, "--reason", "x", "--fleet", str(path)])
    assert done.exit_code == 0, done.exception
    assert ("no pass with --apply has used the ledger" in done.stderr) is not used
    assert ("run on another machine, this does not affect them" in " ".join(done.stderr.split())) is not used


def test_console_reads_the_ledger_once_it_exists(tmp_path: Path) -> None:
    (fleet,) = load([str(document(tmp_path))])
    watched = Watched(fleet, Costs.NONE)
    assert any("is not on this machine" in problem for problem in watched.look().read.problems)
    engine, now = open_engine(fleet), datetime.now(UTC)
    brake = Brake(kind=BrakeKind.PAUSE, scope="chat", owner="ann", reason="x", since=now, until=None)
    operations.set_brake(engine, ledger_name(fleet), brake)
    engine.dispose()
    seen = watched.look().read
    assert [one.owner for one in seen.brakes] == ["ann"]
    assert not any("is not on this machine" in problem for problem in seen.problems)


def test_resume_of_a_pool_allows_new_boots(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    path = document(tmp_path)
    written = json.loads(path.read_text())
    for pool in written["pools"]:
        pool["watchdogs"] = {"spot": {}}
    path.write_text(json.dumps(written))
    before = datetime.now(UTC) - timedelta(seconds=1)
    done = CliRunner().invoke(build("brakes"), ["resume", "chat", "--owner", "ann", "--fleet", str(path)])
    assert done.exit_code == 0, done.output
    ledger = FleetLedger(engine, ledger_name(load([str(path)])[0]), "spot", "us")
    assert lifecycle.retry_requested_at(ledger.done_since("spot", before)).keys() == {"chat"}
    engine.dispose()


class Knows:
    """An inventory of a cloud that has no such instance, or that does not answer."""

    def __init__(self, error: OSError | None) -> None:
        self._error = error

    def instance(self, instance_id: str) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("scope", "error", "code", "left"),
    [
        pytest.param("i-1", None, None, 0, id="it is terminated"),
        pytest.param("i-2", None, ErrorCode.WRONG_USE, 1, id="it never had a brake"),
        pytest.param("i-1", OSError("no answer"), ErrorCode.FAILED, 1, id="the cloud does not answer"),
    ],
)
def test_pause_of_a_terminated_instance_can_be_released(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scope: str,
    error: OSError | None,
    code: ErrorCode | None,
    left: int,
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    engine, path = open_ledger(url), document(tmp_path)
    fleet = ledger_name(load([str(path)])[0])
    now = datetime.now(UTC)
    brake = Brake(kind=BrakeKind.PAUSE, scope="i-1", owner="ops", reason="x", since=now, until=None)
    operations.set_brake(engine, fleet, brake)
    monkeypatch.setattr("app.brakes.inventory_of", lambda _: Knows(error))
    done = CliRunner().invoke(build("brakes"), ["resume", scope, "--fleet", str(path)])
    assert getattr(done.exception, "code", None) is code, done.exception
    assert len(operations.brakes(engine, fleet, now)) == left
    engine.dispose()


class Refuses:
    """An inventory whose cloud refuses to remove tags."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        if self._whole:
            raise OSError("ec2:DeleteTags: denied")
        return dict.fromkeys(instance_ids, "ec2:DeleteTags: denied")


@pytest.mark.parametrize("whole", [True, False], ids=["the call fails", "one instance fails"])
def test_remaining_keep_tag_is_an_error(whole: bool) -> None:
    with pytest.raises(AppError, match="released in the ledger, but its tag .* could not be removed: ec2:Delete"):
        remove_keep(cast(Any, Refuses(whole=whole)), "i-1")
