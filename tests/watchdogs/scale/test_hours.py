"""Hours of a schedule on nights when clocks go back: one interval per day, whatever part of it is repeated."""

from datetime import UTC, datetime, time, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

import pytest

from gpufleet.domain.policies import ScheduleRule
from watchdogs.scale.hours import DAYS, floor, holds

MINUTE = timedelta(minutes=1)


def intervals(rule: ScheduleRule, around: datetime) -> list[tuple[datetime, datetime]]:
    """From when to when a rule holds within two days."""
    moments = [around + n * MINUTE for n in range(-24 * 60, 24 * 60)]
    return [
        ((found := list(group))[0], found[-1] + MINUTE)
        for held, group in groupby(moments, lambda moment: holds(rule, moment))
        if held
    ]


@pytest.mark.parametrize(
    ("timezone", "day", "start", "end", "interval"),
    [
        # New York shows 01:00 to 02:00 at 05:00Z and again at 06:00Z
        pytest.param("America/New_York", "sat", "22:00", "01:30", ("01T02:00", "01T06:30"), id="ends in it"),
        pytest.param("America/New_York", "sun", "01:30", "05:00", ("01T05:30", "01T10:00"), id="begins in it"),
        pytest.param("America/New_York", "sun", "01:15", "01:45", ("01T05:15", "01T06:45"), id="within it"),
        pytest.param("America/New_York", "sun", "01:00", "02:00", ("01T05:00", "01T07:00"), id="all of it"),
        pytest.param("America/New_York", "sat", "22:00", "01:00", ("01T02:00", "01T05:00"), id="up to it"),
        pytest.param("America/New_York", "sun", "02:00", "05:00", ("01T07:00", "01T10:00"), id="after it"),
        pytest.param(
            "America/New_York", "sat", "01:30", "01:30", ("10-31T05:30", "01T06:30"), id="a day and an hour"
        ),
    ],
)
def test_an_interval_that_begins_or_ends_in_the_repeated_hour(
    timezone: str, day: str, start: str, end: str, interval: tuple[str, str]
) -> None:
    rule = ScheduleRule(days=(day,), start=start, end=end, target=1, timezone=timezone)
    begins, ends = (
        datetime.fromisoformat(f"2026-{part if part.startswith('10-') else '11-' + part}Z") for part in interval
    )
    assert intervals(rule, datetime(2026, 11, 1, 5, tzinfo=UTC)) == [(begins, ends)]


BACK = {
    "America/New_York": datetime(2026, 11, 1, 6, tzinfo=UTC),
    "Australia/Lord_Howe": datetime(2026, 4, 4, 15, tzinfo=UTC),
    # the day before comes once more: by an hour of it, and by all but a minute of one
    "America/Sao_Paulo": datetime(2018, 2, 18, 2, tzinfo=UTC),
    "America/St_Johns": datetime(2010, 11, 7, 2, 31, tzinfo=UTC),
}
HOURS = ("00:00", "00:15", "01:15", "01:45", "02:00", "12:00", "23:00", "23:15", "23:45")


@pytest.mark.parametrize("timezone", BACK)
@pytest.mark.parametrize("start", HOURS)
def test_each_listed_day_is_one_interval_by_wall_clock(timezone: str, start: str) -> None:
    """From the first minute at which clocks showed the start, to the last one at which they had come to the end."""
    back, zone = BACK[timezone], ZoneInfo(timezone)
    day = (back - MINUTE).astimezone(zone).date()
    begins = datetime.combine(day, time.fromisoformat(start))
    step = 5 if back.minute % 5 == 0 else 1
    moments = [back + n * MINUTE for n in range(-30 * 60, 50 * 60, step)]
    shown = [moment.astimezone(zone).replace(tzinfo=None) for moment in moments]
    first = shown.index(begins)
    for end in HOURS:
        ends = datetime.combine(day + timedelta(days=int(end <= start)), time.fromisoformat(end))
        # where clocks came to it once, and only then showed it again, it was over the first time
        last = 1 + max(number for number, wall in enumerate(shown) if wall == ends - step * MINUTE)
        rule = ScheduleRule(days=(DAYS[day.weekday()],), start=start, end=end, target=1, timezone=timezone)
        assert [holds(rule, moment) for moment in moments] == [first <= n < last for n in range(len(moments))], end


def test_the_floor_of_a_schedule_is_the_highest_target_that_holds() -> None:
    rules = tuple(
        ScheduleRule(days=DAYS, start=start, end="20:00", target=target)
        for start, target in (("08:00", 2), ("10:00", 5))
    )
    day = datetime(2026, 11, 20, tzinfo=UTC)
    assert [floor(rules, day + timedelta(hours=hour)) for hour in (7, 8, 12, 20)] == [0, 2, 5, 0]
