"""Whom a hand brake holds: each kind by its scope, and of several the one that lasts longest is said."""

from datetime import timedelta

import pytest

from gpufleet.domain.brakes import Brake, BrakeKind
from tests.fixtures.watchdogs.plain import START, instance
from watchdogs.brakes import kept_by, paused_by, target_held_by

ONE, ELSEWHERE = instance(1), instance(2, pool="chat")
HOUR = timedelta(hours=1)


def brake(kind: BrakeKind, scope: str, owner: str = "ana", hours: int | None = None) -> Brake:
    until = None if hours is None else START + hours * HOUR
    return Brake(since=START, kind=kind, scope=scope, owner=owner, reason="demo", until=until)


@pytest.mark.parametrize(
    ("one", "kept", "paused", "held"),
    [
        pytest.param(brake(BrakeKind.KEEP, ONE.id), {ONE.id}, False, False, id="keep an instance"),
        pytest.param(brake(BrakeKind.KEEP, "batch"), {ONE.id}, False, False, id="keep a pool"),
        pytest.param(brake(BrakeKind.KEEP, "all"), {ONE.id, ELSEWHERE.id}, False, False, id="keep all"),
        pytest.param(brake(BrakeKind.PAUSE, ONE.id), {ONE.id}, False, False, id="pause an instance"),
        pytest.param(brake(BrakeKind.PAUSE, "batch"), set[str](), True, False, id="pause a pool"),
        pytest.param(brake(BrakeKind.PAUSE, "chat"), set[str](), False, False, id="pause another pool"),
        pytest.param(brake(BrakeKind.PAUSE, "all"), set[str](), True, False, id="pause all"),
        pytest.param(brake(BrakeKind.TARGET, "batch"), set[str](), False, True, id="hold a target"),
        pytest.param(brake(BrakeKind.TARGET, "chat"), set[str](), False, False, id="hold another target"),
    ],
)
def test_which_instances_a_brake_protects(one: Brake, kept: set[str], paused: bool, held: bool) -> None:
    assert kept_by([ONE, ELSEWHERE], [one]).keys() == kept
    assert (paused_by("batch", [one]) is not None) is paused
    assert (target_held_by("batch", [one]) is not None) is held


@pytest.mark.parametrize(("hours", "longest"), [((1, 3, 2), "b"), ((1, 2, None), "c"), ((None, 9, 8), "a")])
def test_longest_pause_is_reported(hours: tuple[int | None, ...], longest: str) -> None:
    pauses = [brake(BrakeKind.PAUSE, "batch", owner, end) for owner, end in zip("abc", hours, strict=True)]
    assert (paused_by("batch", pauses) or "").startswith(f"by {longest} ")


@pytest.mark.parametrize(
    ("own", "pools", "alls", "longest"),
    [(1, 48, 2, "b"), (3, 2, 1, "a"), (1, 2, None, "c")],
    ids=["the pool's", "its own", "everybody's"],
)
def test_longest_keep_of_all_scopes_is_reported(own: int, pools: int, alls: int | None, longest: str) -> None:
    hours = {"a": (ONE.id, own), "b": ("batch", pools), "c": ("all", alls)}
    keeps = [brake(BrakeKind.KEEP, scope, owner, end) for owner, (scope, end) in hours.items()]
    assert kept_by([ONE], keeps)[ONE.id].startswith(f"by {longest} ")
