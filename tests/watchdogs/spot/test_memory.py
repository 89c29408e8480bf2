"""What is remembered of a zone, against an oracle that weighs each hour and each loss on its own."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.domain.activity import Activity, ActivityKind
from tests.fixtures.watchdogs.plain import START
from watchdogs.spot.risk import ZoneHistory, recall

K = ActivityKind
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
MORE = {K.LAUNCHED}
FEWER = {K.PREEMPTED, K.ENDED, K.UNHEALTHY}


def event(minutes: float, kind: ActivityKind) -> Activity:
    return Activity(id=f"{kind}-{minutes}", group="g", kind=kind, at=START + minutes * MINUTE)


def weight(at: datetime, now: datetime) -> float:
    """An hour or a loss of yesterday counts half."""
    return 0.5 ** ((now - at) / DAY)


def remembered(events: Sequence[Activity], since: Sequence[datetime], now: datetime) -> tuple[float, float]:
    """Losses and hours, with decay. Each interval between two changes has the weight of its end."""
    launches = [e.at for e in events if e.kind in MORE]
    unknown = [at for at in since if not any(abs(at - launch) <= MINUTE for launch in launches)]
    changes = [(e.at, 1 if e.kind in MORE else -1 if e.kind in FEWER else 0) for e in events if e.kind is not K.QUOTA]
    changes = sorted([*changes, *((at, 1) for at in unknown)], key=lambda change: change[0])
    there, hours = 0, 0.0
    ends = [*(at for at, _ in changes), now][1:]
    for (at, change), end in zip(changes, ends, strict=True):
        there = max(0, there + change)
        if there or (end is now and since):
            hours += (end - at) / HOUR * weight(end, now)
    losses: list[datetime] = []
    for e in events:
        if e.kind is K.PREEMPTED and (not losses or e.at - losses[-1] > MINUTE):
            losses.append(e.at)
    return sum(weight(at, now) for at in losses), hours


HISTORIES = st.lists(
    st.tuples(
        st.integers(0, 3000).map(lambda n: n / 2),
        st.sampled_from([K.LAUNCHED, K.LAUNCHED, K.PREEMPTED, K.ENDED, K.UNHEALTHY, K.NO_CAPACITY, K.QUOTA]),
    ),
    max_size=12,
).map(lambda rows: [event(*row) for row in sorted(rows, key=lambda row: row[0])])
MOMENTS = st.lists(st.integers(-600, 3000).map(lambda n: START + n * MINUTE / 2), max_size=3)


@given(HISTORIES, MOMENTS)
@example([event(0, K.LAUNCHED), event(60, K.PREEMPTED), event(90, K.LAUNCHED)], [START + 90 * MINUTE])
@example([event(60, K.PREEMPTED)], [START])  # its launch, and that of the one that was taken, are not known
@example([event(60, K.LAUNCHED)], [START + 61 * MINUTE])  # the cloud's two times of one launch
@example([event(60, K.LAUNCHED)], [START + 61.5 * MINUTE])  # two launches
@example([event(60, K.LAUNCHED), event(60, K.LAUNCHED), event(70, K.ENDED)], [])  # one of two is left
@example([event(60, K.PREEMPTED), event(61, K.PREEMPTED), event(62, K.PREEMPTED)], [])  # the third is another loss
@example([event(60, K.ENDED), event(70, K.LAUNCHED)], [])  # an end that nobody saw begin
def test_recall_matches_the_oracle(events: list[Activity], since: list[datetime]) -> None:
    now = START + 1600 * MINUTE
    found = recall(events, since, now)
    losses, hours = remembered(events, since, now)
    assert (found.losses, found.hours) == (pytest.approx(losses), pytest.approx(hours))
    failed = [e.at for e in events if e.kind in (K.PREEMPTED, K.NO_CAPACITY)]
    if not failed:
        assert found.failed_at is None
    # of losses that are one the first counts
    assert found.losses_per_hour == pytest.approx(rate(losses, hours, found.failed_at, now))


def rate(losses: float, hours: float, failed_at: datetime | None, now: datetime) -> float:
    """One loss in ten hours where nothing is known; six times what is usual right after trouble, which fades."""
    usual = (losses + 1) / (hours + 10)
    return usual if failed_at is None else usual * (1 + 5 * 0.5 ** ((now - failed_at) / (2 * HOUR)))


@pytest.mark.parametrize(
    ("events", "failed"),
    [
        pytest.param([event(60, K.PREEMPTED)], 60, id="a loss"),
        pytest.param([event(60, K.NO_CAPACITY)], 60, id="a refusal"),
        pytest.param([event(60, K.PREEMPTED), event(90, K.NO_CAPACITY)], 90, id="the later of both"),
        pytest.param([event(60, K.PREEMPTED), event(60.5, K.PREEMPTED)], 60, id="what one outage takes"),
        pytest.param([event(60, K.ENDED), event(90, K.UNHEALTHY), event(95, K.QUOTA)], None, id="not the zone's"),
    ],
)
def test_time_of_the_last_failure_of_a_zone(events: list[Activity], failed: int | None) -> None:
    found = recall(events, [], START + 300 * MINUTE).failed_at
    assert found == (None if failed is None else START + failed * MINUTE)


def test_zone_history_ignores_repeated_or_earlier_times() -> None:
    """A pass may look at one moment again, or at one before: a clock was set back."""
    memory = ZoneHistory(at=START, losses=1.0, hours=8.0)
    assert memory.passed(START, present=True) == memory
    assert memory.passed(START - HOUR, present=True) == memory
    assert memory.passed(START + DAY, present=True) == ZoneHistory(at=START + DAY, losses=0.5, hours=4.0 + 24.0)
    assert memory.passed(START + DAY, present=False) == ZoneHistory(at=START + DAY, losses=0.5, hours=4.0)
