"""`gpufleet watch why`: the last lines show the cause of an alert."""

import json
from datetime import timedelta
from pathlib import Path

from typer.testing import CliRunner

from cli.commands import build
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.ledger import decisions, operations
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import render
from tests.fixtures.console import fleet as fleets

QUOTA = "You have requested more vCPU capacity than your current limit"


def explained(*arguments: str) -> str:
    done = CliRunner().invoke(build("watch"), ["watch", "why", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_pools_history_ends_with_the_last_reason_of_each_of_its_groups(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    written = fleets.document("chat", "batch").model_copy(update={"ledger_url": url})
    groups = [group.name for group in written.pools[0].groups]
    path = tmp_path / "fleet.json"
    path.write_text(render(written))
    engine = open_ledger(url)
    for minute, reason in enumerate([Reason.AS_WANTED, Reason.NO_SPOT]):
        rows = [
            Decision(resource=name, pool="chat", action=Action.KEEP, reason=reason, usd_per_hour=None)
            for name in (*groups, f"i-{minute}")
        ]
        decisions.record_decisions(engine, "aws/prod/us-east-1", "spot", rows, fleets.NOW + timedelta(minutes=minute))
    engine.dispose()
    lines = explained("chat", "--fleet", str(path)).splitlines()
    at = (fleets.NOW + timedelta(minutes=1)).isoformat(timespec="seconds")
    assert groups and lines[-len(groups) :] == [
        f"last decision about {name}, {at}: keep, no spot capacity available" for name in groups
    ]
    assert not any(line.startswith("last of") for line in lines[: -len(groups)])
    assert "last of" not in explained(groups[0], "--fleet", str(path))


def test_pool_shows_why_it_does_not_grow(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    made = fleets.document("chat", "batch")
    (group,), batch = made.pools[0].groups, made.pools[1]
    chat = made.pools[0].model_copy(update={"groups": (group, group.model_copy(update={"name": "chat-other"}))})
    written = made.model_copy(update={"ledger_url": url, "pools": (chat, batch)})
    path, name = tmp_path / "fleet.json", "aws/prod/us-east-1"
    path.write_text(render(written))
    first, second = group.name, "chat-other"
    engine = open_ledger(url)

    def decided(minute: int, watchdog: str, resource: str, reason: Reason, detail: str) -> None:
        row = Decision(resource=resource, pool="chat", action=Action.KEEP, reason=reason, detail=detail)
        decisions.record_decisions(engine, name, watchdog, [row], fleets.NOW + timedelta(minutes=minute))

    target = operations.seed_target(engine, name, "chat", 2, fleets.NOW)
    brake = Brake(kind=BrakeKind.TARGET, scope="chat", owner="ann", reason="launch day", since=fleets.NOW, until=None)
    operations.hold_target(engine, name, target, 5, brake)
    decided(0, "spot", first, Reason.NO_SPOT, "no g6 in us-east-1a")
    decided(1, "spot", second, Reason.QUOTA, QUOTA)
    decided(2, "spot", first, Reason.ZONE_BACKING_OFF, "refused 3 times recently; asked again in 240 s")
    decided(2, "scale", "chat", Reason.KEPT_BY_PEOPLE, "target held by ann")
    decided(3, "spot", "i-1", Reason.PREEMPTED, "of no interest here")
    engine.dispose()

    lines = explained("chat", "--fleet", str(path)).splitlines()
    at = [(fleets.NOW + timedelta(minutes=minute)).isoformat(timespec="seconds") for minute in range(3)]
    pool = written.pools[0]
    begin = next(n for n, line in enumerate(lines) if line.startswith("chat: target 5"))
    assert lines[begin].startswith(f"chat: target 5, min {pool.min}, max {pool.max}")
    assert lines[begin + 1] == f"target set by ann, {at[0]}: launch day"
    assert "target held by ann until `gpufleet resume`: launch day" in lines
    assert f"newest refusal, {at[1]}, {second}: {QUOTA}" in lines
    assert lines[-2:] == [
        f"last decision about {first}, {at[2]}: keep, zone backing off (refused 3 times recently; "
        "asked again in 240 s)",
        f"last decision about {second}, {at[1]}: keep, quota reached ({QUOTA})",
    ]

    (growth,) = json.loads(explained("chat", "--fleet", str(path), "--json"))["growth"]
    assert (growth["target"], growth["max"], growth["target_set_by"], growth["paused_by"]) == (
        5,
        pool.max,
        "ann",
        None,
    )
    assert [(one["group"], one["reason_code"], one["obstacle"]) for one in growth["groups"]] == [
        (first, "zone_backing_off", True), (second, "quota", True),
    ]  # fmt: skip
    assert growth["newest_refusal"]["group"] == second
    assert isinstance(json.loads(explained(first, "--fleet", str(path), "--json")), list), "of a group: its decisions"


def test_a_resize_that_the_cloud_refused_is_the_newest_refusal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    written = fleets.document("chat").model_copy(update={"ledger_url": url})
    path, name, group = tmp_path / "fleet.json", "aws/prod/us-east-1", written.pools[0].groups[0].name
    path.write_text(render(written))
    engine = open_ledger(url)
    row = Decision(
        resource=group, pool="chat", action=Action.RESIZE, reason=Reason.SPOT_WANTED, from_size=1, to_size=2
    )
    decisions.record_decisions(engine, name, "spot", [row], fleets.NOW)
    failed = Outcome(decision=row, kind=OutcomeKind.FAILED, error="UnauthorizedOperation: not you")
    decisions.record_outcome(engine, name, "spot", failed, fleets.NOW)
    engine.dispose()
    at = fleets.NOW.isoformat(timespec="seconds")
    assert f"newest refusal, {at}, {group}: UnauthorizedOperation: not you" in explained("chat", "--fleet", str(path))
    (growth,) = json.loads(explained("chat", "--fleet", str(path), "--json"))["growth"]
    assert [one["obstacle"] for one in growth["groups"]] == [False]
