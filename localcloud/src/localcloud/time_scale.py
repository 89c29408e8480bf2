"""How fast the waiting times of the embedded clouds pass: one setting, read by both clouds.

A waiting time is what a cloud takes to answer, to try again, or to give up. In the code each is that of the real
cloud. Dates (the term of a Capacity Block, the end of a reservation) are not waiting times, and neither is what a
machine takes to boot and to shut down: its processes are real.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

VARIABLE: Final = "GPUFLEET_LOCAL_TIME_SCALE"
"""The setting, an environment variable of the embedded cloud's process: a number from 1, by which every waiting time
is divided. Without it, they are as long as those of the real clouds."""
FAST: Final[Mapping[str, str]] = {VARIABLE: "4"}
"""What the demo and the tests add to the environment. Not more: an instance drains in real time, within the heartbeat
of its lifecycle hook."""


@dataclass(frozen=True, slots=True)
class TimeScale:
    """By what the waiting times are divided."""

    factor: float = 1.0

    def shorten(self, real: timedelta) -> timedelta:
        """How long a waiting time of the real cloud lasts here."""
        return real / self.factor


def of_environment(environment: Mapping[str, str]) -> TimeScale:
    """The setting. Raises ValueError that says what is wrong with it."""
    written = environment.get(VARIABLE, "1")
    try:
        factor = float(written)
    except ValueError:
        factor = math.nan
    if not (factor >= 1 and math.isfinite(factor)):
        raise ValueError(f"{VARIABLE} is {written!r}; it must be a number from 1, such as 4")
    return TimeScale(factor)


def utc_now() -> datetime:
    """The present time, with UTC as time zone."""
    return datetime.now(UTC)
