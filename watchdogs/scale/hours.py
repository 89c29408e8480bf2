"""Targets by the hour: which rule of a schedule applies now.

A rule is evaluated by the wall clock of its own time zone and by the current time only, so the run after a missed run
is correct. Each of its days has one interval without a gap. When clocks are set back, the interval begins when they
show its start for the first time and ends when they show its end for the last time. When clocks are set forward, the
skipped hour does not count.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from gpufleet.domain.policies import ScheduleRule

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = timedelta(days=1)
_TINY: Final = timedelta(microseconds=1)
# clocks that are set back at midnight show the previous day again
_NEAR: Final = (-2, -1, 0, 1)


def active(rules: Sequence[ScheduleRule], now: datetime) -> ScheduleRule | None:
    """The rule that applies now; of several, the one with the highest target."""
    holding = [rule for rule in rules if holds(rule, now)]
    return max(holding, key=lambda rule: rule.target, default=None)


def floor(rules: Sequence[ScheduleRule], now: datetime) -> int:
    """The current target of the schedule; 0 without a rule that applies."""
    rule = active(rules, now)
    return 0 if rule is None else rule.target


def holds(rule: ScheduleRule, now: datetime) -> bool:
    """Whether a rule applies. `start` is inclusive, `end` exclusive; an end before the start is on the next day.

    A day of `except_on` does not count, including its part on the next day.
    """
    local = now.astimezone(ZoneInfo(rule.timezone))
    if local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset():
        days = (local.date() + number * _DAY for number in _NEAR)
        return any(_counts(rule, day) and _within(rule, day, local) for day in days)
    start, end = time.fromisoformat(rule.start), time.fromisoformat(rule.end)
    today, moment = local.date(), local.time()
    if start < end:
        return _counts(rule, today) and start <= moment < end
    return (_counts(rule, today) and moment >= start) or (_counts(rule, today - _DAY) and moment < end)


def _within(rule: ScheduleRule, day: date, local: datetime) -> bool:
    """Whether, in a repeated hour, the interval of the rule that begins on `day` has begun and not ended."""
    start, end = time.fromisoformat(rule.start), time.fromisoformat(rule.end)
    begins, ends = datetime.combine(day, start), datetime.combine(day if start < end else day + _DAY, end)
    zone = ZoneInfo(rule.timezone)
    # an interval that ends when the hour starts to repeat has ended
    last = int(_moment(ends - _TINY, zone, fold=0) != _moment(ends - _TINY, zone, fold=1))
    return _moment(begins, zone, fold=0) <= local.astimezone(UTC) < _moment(ends, zone, fold=last)


def _moment(shown: datetime, zone: ZoneInfo, *, fold: int) -> datetime:
    """When clocks of the zone show a time: first (fold 0) or last (fold 1)."""
    # in UTC, since two times of one zone are compared by wall clock
    return shown.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _counts(rule: ScheduleRule, day: date) -> bool:
    return DAYS[day.weekday()] in rule.days and day not in rule.except_on
