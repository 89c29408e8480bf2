"""Windows of time as people give them: `--since 1h`, `--since 2026-11-01 --until 2026-11-08 --tz Europe/Berlin`."""

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cli.output import Exit, UserError
from fleet import durations


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of time, end exclusive, in UTC, and the zone in which people read it."""

    since: datetime
    until: datetime
    now: datetime
    timezone: str


def parse_window(since: str, until: str | None, timezone: str, now: datetime) -> Window:
    """Read the options. Raises UserError that names the option, its value and its forms."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UserError(
            f"--tz {timezone!r} is no time zone: write UTC or one like Europe/Berlin", Exit.WRONG_USE
        ) from error
    begin = _moment("--since", since, zone, now)
    end = now if until is None else _moment("--until", until, zone, now)
    if begin >= end:
        raise UserError(
            f"--since {since!r} ({begin:%Y-%m-%dT%H:%M:%SZ}) is not before --until ({end:%Y-%m-%dT%H:%M:%SZ})",
            Exit.WRONG_USE,
        )
    return Window(since=begin, until=end, now=now, timezone=timezone)


def _moment(option: str, text: str, zone: tzinfo, now: datetime) -> datetime:
    """A duration before now, or a date or time in the zone (a DST night's repeated hour: the first one)."""
    try:
        return now - durations.parse(text)
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(
            f"{option} {text!r} is no time: write 90m, 24h, 7d, a date (2026-11-01) or a time (2026-11-01T08:00)",
            Exit.WRONG_USE,
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
