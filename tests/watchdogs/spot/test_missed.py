"""Since when an instance is missed: the notes of it, and the very moments at which it is late and hangs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpufleet.domain.decisions import Action, PastAction, Reason
from gpufleet.domain.model import CapacityType
from tests.fixtures.watchdogs.plain import START, spot_pool
from watchdogs.spot import lifecycle
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView

SECOND = timedelta(seconds=1)
BOOT = timedelta(minutes=6)
SILENT = PoolMember(id="i", group="a", launched_at=START - BOOT)
"""It should be ready by now, and is not."""
READY = replace(SILENT, ready_since=START - SECOND)


def pool(*members: PoolMember) -> SpotPoolView:
    group = GroupView(name="a", capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=len(members), max=9)
    return spot_pool([group], members, boot_expected=BOOT)


FALLBACK_AFTER = pool().policy.fallback_after


@pytest.mark.parametrize(
    ("member", "known", "noted"),
    [
        pytest.param(SILENT, {}, Reason.NOT_READY, id="its boot should be over"),
        pytest.param(replace(SILENT, launched_at=START - BOOT + SECOND), {}, None, id="it still boots"),
        pytest.param(SILENT, {"i": START - SECOND}, None, id="noted already"),
        pytest.param(SILENT, {"another": START - SECOND}, Reason.NOT_READY, id="another one is noted"),
        pytest.param(replace(SILENT, leaving=True), {}, None, id="it leaves"),
        pytest.param(replace(SILENT, failed=True), {}, None, id="its boot failed"),
        pytest.param(READY, {}, None, id="it is ready, and was"),
        pytest.param(READY, {"i": START - SECOND}, Reason.AS_WANTED, id="it is ready again"),
    ],
)
def test_which_readiness_changes_are_recorded(
    member: PoolMember, known: Mapping[str, datetime], noted: Reason | None
) -> None:
    found = [(d.resource, d.action, d.reason) for d in lifecycle.readiness_changes(pool(member), known, START)]
    assert found == ([] if noted is None else [("i", Action.KEEP, noted)])


def notes(*reasons: Reason) -> list[PastAction]:
    """Of one instance, a minute apart from START on."""
    return [
        PastAction(resource="i", pool="batch", action=Action.KEEP, reason=reason, at=START + n * timedelta(minutes=1))
        for n, reason in enumerate(reasons)
    ]


@pytest.mark.parametrize(
    ("actions", "since"),
    [
        pytest.param((), None, id="nothing is noted"),
        pytest.param((Reason.NOT_READY,), 0, id="missed"),
        pytest.param((Reason.NOT_READY, Reason.NOT_READY), 0, id="missed twice: since the first time"),
        pytest.param((Reason.NOT_READY, Reason.AS_WANTED), None, id="ready again"),
        pytest.param((Reason.NOT_READY, Reason.AS_WANTED, Reason.NOT_READY), 2, id="missed again"),
        pytest.param((Reason.NOT_READY, Reason.KEPT_BY_PEOPLE), 0, id="other records have no effect"),
        pytest.param((Reason.AS_WANTED,), None, id="ready, and never missed"),
    ],
)
def test_start_of_missing_readiness_from_records(actions: Sequence[Reason], since: int | None) -> None:
    expected = {} if since is None else {"i": START + since * timedelta(minutes=1)}
    assert lifecycle.missed(notes(*actions)) == expected


@pytest.mark.parametrize(
    ("launched", "not_ready_since", "due"),
    [
        pytest.param(START - BOOT, None, START, id="since its boot should be over"),
        pytest.param(START - 9 * BOOT, START, START, id="since it was first missed"),
        pytest.param(START - BOOT, START - timedelta(minutes=5), START, id="not before its boot should be over"),
    ],
)
def test_when_an_unready_instance_is_late_and_hangs(
    launched: datetime, not_ready_since: datetime | None, due: datetime
) -> None:
    seen = pool(replace(SILENT, launched_at=launched, not_ready_since=not_ready_since))
    for after, late, hangs in (
        (FALLBACK_AFTER, False, False),
        (FALLBACK_AFTER + SECOND, True, False),
        (timedelta(minutes=15), True, False),
        (timedelta(minutes=15) + SECOND, True, True),
    ):
        (member,) = lifecycle.with_late(seen, due + after).members
        notes = lifecycle.hung(lifecycle.with_late(seen, due + after), due + after)
        assert (member.late, bool(notes)) == (late, hangs), after


def test_which_members_are_late() -> None:
    others = [READY, replace(SILENT, leaving=True), replace(SILENT, failed=True)]
    seen = pool(SILENT, *(replace(other, id=f"o{n}") for n, other in enumerate(others)))
    found = lifecycle.with_late(seen, START + timedelta(hours=1))
    assert [member.late for member in found.members] == [True, False, False, False]
