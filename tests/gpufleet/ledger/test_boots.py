"""Which boot records the ledger deletes: old ones, except the newest that show how long a boot takes."""

from dataclasses import replace
from datetime import timedelta

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.ledger.boots import KEPT_FOR, NEWEST_KEPT, note_boots, read_boots
from gpufleet.ledger.database import writing
from gpufleet.ledger.invariants import verify
from tests.fixtures.ledgers import Ledgers
from tests.fixtures.small_fleet import FLEET, T0

MINUTE = timedelta(minutes=1)


def boot(number: int, **changes: object) -> Boot:
    """A boot that is ready five minutes after its launch and ends an hour later."""
    at = T0 + number * MINUTE
    plain = Boot(
        instance_id=f"i-{number}", pool="chat", group="chat-spot-a", machine_type="g6.xlarge", launched_at=at,
        first_seen_at=at, last_seen_at=at, ready_at=at + 5 * MINUTE, left_at=at + 65 * MINUTE,
        ended_why=ActivityKind.PREEMPTED,
    )  # fmt: skip
    return replace(plain, **changes)  # pyright: ignore[reportArgumentType]


def test_old_boots_are_deleted_except_the_newest_ready_ones(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    ready = [boot(number) for number in range(NEWEST_KEPT + 5)]
    failed = [boot(100 + number, ready_at=None) for number in range(3)]
    there = boot(200, left_at=None, ended_why=None)
    other_type = boot(0, instance_id="i-large", machine_type="g6.12xlarge")
    elsewhere = boot(0)
    note_boots(engine, "aws/other/us-east-1", [elsewhere], T0)
    note_boots(engine, FLEET, [*ready, *failed, there, other_type], T0)
    kept = [*ready, *failed, there, other_type]
    assert set(read_boots(engine, FLEET)) == set(kept), "nothing is old yet"
    late = boot(5_000)
    note_boots(engine, FLEET, [late], late.launched_at + KEPT_FOR)
    newest = [*ready, there, late][-NEWEST_KEPT:]
    assert set(read_boots(engine, FLEET)) == {*newest, there, other_type}
    assert read_boots(engine, "aws/other/us-east-1") == (elsewhere,)
    with engine.connect() as connection:
        assert list(verify(connection)) == []


def test_pass_without_changes_writes_nothing(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    with writing(engine):  # holds the write lock, so any other write would fail
        note_boots(engine, FLEET, [], T0)
