"""The time without work after which an instance is ended. Pure.

An end has a price in GPU time: `stop_price` of the pool's settings plus the cold start of the replacement. The length
of an idle period is unknown in advance. If an instance is ended when its idle period has cost as much as the end
itself, both together cost at most twice the optimum (ski rental). Idle periods that last nearly that long often end
soon, so `MARGIN` is added.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpufleet.domain.policies import IdlePolicy

MARGIN: Final = timedelta(minutes=15)
"""Waited beyond break-even. Chosen on one half of the replicas of a recorded service (docs/watchdog-defaults.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """The idle timer of one pool."""

    policy: IdlePolicy
    cold_start: timedelta
    """Measured, from launch to ready."""

    @property
    def price(self) -> timedelta | None:
        """Cost of one stop in GPU time; None: not stated, so window and grace decide."""
        return None if self.policy.stop_price is None else self.policy.stop_price + self.cold_start

    @property
    def after(self) -> timedelta:
        """The time without work after which an end is due: never less than window and grace."""
        least = self.policy.window + self.policy.grace
        return least if self.price is None else max(self.price + MARGIN, least)

    @property
    def grace(self) -> timedelta:
        """From mark to end: a mark comes after a whole window without work."""
        return self.after - self.policy.window

    def numbers(self) -> dict[str, str]:
        """For the evidence of a decision."""
        if self.policy.stop_price is None:
            return {"ends_after": _seconds(self.after)}
        return {
            "ends_after": _seconds(self.after),
            "stop_price": _seconds(self.policy.stop_price),
            "cold_start": _seconds(self.cold_start),
            "margin": _seconds(MARGIN),
        }

    def __str__(self) -> str:
        """`ends after 51 min without work (a stop costs 36 min: 30 min and a cold start of 6 min)`."""
        after = f"ends after {_minutes(self.after)} without work"
        if self.policy.stop_price is None or self.price is None:
            return after
        parts = f"{_minutes(self.policy.stop_price)} and a cold start of {_minutes(self.cold_start)}"
        return f"{after} (a stop costs {_minutes(self.price)}: {parts})"


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"


def _minutes(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.3g} min"
