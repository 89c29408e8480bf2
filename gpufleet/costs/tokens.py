"""Tokens per engine in a window, with the readings from which they follow. Rules: see gpufleet.ledger.counters."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpufleet.ledger.counters import Tokens, begins, step
from gpufleet.ledger.facts import TokenReading
from gpufleet.ledger.rollups import ReadingSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTokens:
    """The tokens of one engine in a window, with the readings from which they follow."""

    instance_id: str
    engine: str
    model: str
    tokens: Tokens
    base: TokenReading | None
    """The reading from which differences count; None: from zero."""
    last: TokenReading


def engine_tokens(
    engines: Iterable[Sequence[ReadingSpan]], since: datetime, until: datetime
) -> Iterator[EngineTokens]:
    """Tokens per engine in the window. A span that begins before the window is the base of its differences."""
    for parts in engines:
        found = _of_engine(parts, since, until)
        if found is not None:
            yield found


def _of_engine(parts: Sequence[ReadingSpan], since: datetime, until: datetime) -> EngineTokens | None:
    before: TokenReading | None = None
    base: TokenReading | None = None
    tokens = Tokens()
    last: TokenReading | None = None
    for part in parts:
        if part.first.at >= until:
            break
        if part.first.at >= since:
            if last is None:
                base = before if before is not None or begins(part.first) else part.first
            tokens += step(before, part.first) + part.inner
            last = part.last
        before = part.last
    if last is None:
        return None
    return EngineTokens(
        instance_id=last.instance_id, engine=last.engine, model=last.model, tokens=tokens, base=base, last=last
    )
