"""Targets by the hour: which rule of a schedule holds now.

A rule is judged by the wall clock of its own time zone and from the present moment alone, so a missed run is caught
up by the next one. On the night when clocks go back, the repeated hour counts twice; when they go forward, the
skipped hour not at all.
"""

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from fleet.policies import ScheduleRule

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = timedelta(days=1)


def active(rules: Sequence[ScheduleRule], now: datetime) -> ScheduleRule | None:
    """The rule that holds now; of several, the one with the highest target."""
    holding = [rule for rule in rules if holds(rule, now)]
    return max(holding, key=lambda rule: rule.target, default=None)


def holds(rule: ScheduleRule, now: datetime) -> bool:
    """Whether a rule holds: `start` belongs to it, `end` does not; an end before the start is on the next day.

    A day among `except_on` does not count, and with it what would have lasted into the next one.
    """
    local = now.astimezone(ZoneInfo(rule.timezone))
    start, end = time.fromisoformat(rule.start), time.fromisoformat(rule.end)
    today, moment = local.date(), local.time()
    if start < end:
        return _counts(rule, today) and start <= moment < end
    return (_counts(rule, today) and moment >= start) or (_counts(rule, today - _DAY) and moment < end)


def _counts(rule: ScheduleRule, day: date) -> bool:
    return DAYS[day.weekday()] in rule.days and day not in rule.except_on
