"""Counter arithmetic: the tokens between two raw readings of an engine. Pure.

Rules. A counter that decreases, or whose process is newer, was reset: its value then counts from zero. A
difference is counted at the time of its later reading, so that the sums over any partition of a window are equal.
The first reading of an engine counts from zero when its process began to count not long before (`MAX_GAP`), or when
it has counted nothing yet; else the tokens before it are unknown. A difference over more than `MAX_GAP` is exact in
size, inexact in time, and marked.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from gpufleet.ledger.facts import TokenReading
from gpufleet.ledger.tables import COUNTERS

MAX_GAP: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What engines served in a window. None: unknown, which is not zero."""

    prompt: int | None = None
    """Input tokens, cached ones included."""
    cached: int | None = None
    generation: int | None = None
    prefill_ms: int | None = None
    decode_ms: int | None = None
    resets: int = 0
    late: int = 0
    """Differences over a long gap: exact in size, inexact in time."""
    unknown_before: int = 0
    """Engines whose tokens before their first reading are unknown."""

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            prompt=_plus(self.prompt, other.prompt),
            cached=_plus(self.cached, other.cached),
            generation=_plus(self.generation, other.generation),
            prefill_ms=_plus(self.prefill_ms, other.prefill_ms),
            decode_ms=_plus(self.decode_ms, other.decode_ms),
            resets=self.resets + other.resets,
            late=self.late + other.late,
            unknown_before=self.unknown_before + other.unknown_before,
        )

    @property
    def total(self) -> int | None:
        """Input and output together; None when either is unknown."""
        return None if self.prompt is None or self.generation is None else self.prompt + self.generation


def step(before: TokenReading | None, after: TokenReading) -> Tokens:
    """What one reading adds to the one before it."""
    if before is None:
        if begins(after):
            return _values(after)
        return replace(_nothing(after), unknown_before=1)
    restarted = (
        after.created_at is not None and before.created_at is not None and after.created_at > before.created_at
    )
    fell = any(_fell(getattr(before, name), getattr(after, name)) for name in COUNTERS)
    late = int(after.at - before.at > MAX_GAP)
    if restarted or fell:
        return replace(_values(after), resets=1, late=late)
    return Tokens(
        prompt=_minus(after.prompt, before.prompt),
        cached=_minus(after.cached, before.cached),
        generation=_minus(after.generation, before.generation),
        prefill_ms=_minus(after.prefill_ms, before.prefill_ms),
        decode_ms=_minus(after.decode_ms, before.decode_ms),
        late=late,
    )


def begins(reading: TokenReading) -> bool:
    """Whether the first reading counts from zero: the engine's process is young, or has counted nothing yet."""
    if reading.created_at is not None and reading.at - reading.created_at <= MAX_GAP:
        return True
    return not any(getattr(reading, name) for name in COUNTERS)


def _values(reading: TokenReading) -> Tokens:
    return Tokens(
        prompt=reading.prompt,
        cached=reading.cached,
        generation=reading.generation,
        prefill_ms=reading.prefill_ms,
        decode_ms=reading.decode_ms,
    )


def _nothing(reading: TokenReading) -> Tokens:
    values = _values(reading)
    return Tokens(
        prompt=_zero(values.prompt),
        cached=_zero(values.cached),
        generation=_zero(values.generation),
        prefill_ms=_zero(values.prefill_ms),
        decode_ms=_zero(values.decode_ms),
    )


def _zero(value: int | None) -> int | None:
    return None if value is None else 0


def _fell(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after < before


def _minus(after: int | None, before: int | None) -> int | None:
    """The difference; 0 if the counter was not read before, None if it is not read now."""
    if after is None:
        return None
    return 0 if before is None else after - before


def _plus(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other
