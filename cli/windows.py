"""Parses time windows of the command line: `--since 1h`, `--since 2026-11-01 --until 2026-11-08 --tz
Europe/Berlin`.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.errors import AppError, ErrorCode
from app.windows import Window
from gpufleet.domain import durations


def parse_window(since: str, until: str | None, timezone: str, now: datetime) -> Window:
    """Parse the options. Raises AppError that names the option, its value and its forms."""
    begin = parse_moment("--since", since, timezone, now)
    end = now if until is None else parse_moment("--until", until, timezone, now)
    if begin > now:
        raise AppError(
            f"--since {since!r} ({begin:%Y-%m-%dT%H:%M:%SZ}) is in the future, so its cost is unknown, not zero:"
            " give a time up to now",
            ErrorCode.WRONG_USE,
        )
    if begin >= end:
        raise AppError(
            f"--since {since!r} ({begin:%Y-%m-%dT%H:%M:%SZ}) is not before --until ({end:%Y-%m-%dT%H:%M:%SZ})",
            ErrorCode.WRONG_USE,
        )
    return Window(since=begin, until=end, now=now, timezone=timezone)


def parse_moment(option: str, text: str, timezone: str, now: datetime) -> datetime:
    """A duration before now, or a date or time in the zone. For a repeated hour (end of DST) it is the first one.

    Raises AppError that names the option, its value and its forms.
    """
    zone = _zone(timezone)
    try:
        return now - durations.parse(text)
    except OverflowError as error:
        raise AppError(f"{option} {text!r} is too long: it begins before the year 1", ErrorCode.WRONG_USE) from error
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise AppError(
            f"{option} {text!r} is not a time: write 90m, 24h, 7d, a date (2026-11-01) or a time (2026-11-01T08:00)",
            ErrorCode.WRONG_USE,
        ) from error


def _zone(timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise AppError(
            f"--tz {timezone!r} is not a time zone: write UTC or a name such as Europe/Berlin", ErrorCode.WRONG_USE
        ) from error
