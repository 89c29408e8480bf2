"""Durations in the format of the settings (`90s`, `30m`, `4h`, `7d`), and for people (`12 min`)."""

import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PATTERN: Final = re.compile(r"(\d{1,9})([smhd])")
_TOO_LONG: Final = re.compile(r"\d{10,}[smhd]")


def parse(text: str) -> timedelta:
    """Parse a duration: `30m` -> 30 minutes. Raises ValueError with the value and the format."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        if _TOO_LONG.fullmatch(text):
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            raise ValueError(f"{shown!r} is too long: write at most 9 digits and s, m, h or d")
        raise ValueError(f"{text!r} is not a duration: write a whole number and s, m, h or d, such as 90s or 30m")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def render(duration: timedelta) -> str:
    """Return the shortest exact form: 90 s -> `90s`, 1800 s -> `30m`. Raises ValueError for fractions of a second."""
    seconds = duration.total_seconds()
    if seconds != int(seconds) or seconds < 0:
        raise ValueError(f"a duration must be a whole number of seconds, 0 or more, got {duration}")
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{int(seconds) // _UNITS[unit]}{unit}"
    return f"{int(seconds)}s"


def approximate(duration: timedelta) -> str:
    """Return a duration for people, in one unit and rounded down: `45 s`, `12 min`, `3 h`, `2 d`."""
    seconds = max(int(duration.total_seconds()), 0)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
