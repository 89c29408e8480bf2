"""Where the token counts of each pool come from, and their known error. Pure.

A pool may change its engine within a window: each time with one engine is a row. What an engine counts is an
argument: this package does not depend on an engine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpufleet.costs.allocation import LedgerFacts
from gpufleet.costs.tokens import EngineTokens
from gpufleet.ledger.facts import Run
from gpufleet.prices.book import PriceBook


class TokenState(StrEnum):
    """Whether tokens are known. The values are stable codes."""

    COUNTED = "counted"
    UNKNOWN = "unknown"
    """Nothing was measured: this is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMethod:
    """How the tokens of one engine are counted."""

    title: str
    """Name of the engine, for people."""
    source: str
    """Code of the source of record: `engine`, `histogram`, `router`, or `unknown`."""
    source_text: str
    errors: tuple[str, ...]
    """Codes of what may be missing, counted twice, or counted in a later window."""
    error_text: str
    by_engine: bool
    """Whether metrics of the engine contain the tokens. Else no figure of the report does."""


Methods = Callable[[str | None], TokenMethod]
"""Code of an engine to its method; None: an older release declared no engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEngine:
    """A time in which a pool had one engine."""

    pool: str
    engine: str | None
    """Its code; None: an older release declared none."""
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOrigin:
    """Where the tokens of a pool come from while it had one engine."""

    of: PoolEngine
    method: TokenMethod
    state: TokenState


def pool_engines(
    pools: Iterable[str], facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime
) -> list[PoolEngine]:
    """The engines that the settings declared for these pools in the window, by pool and time."""
    found: list[PoolEngine] = []
    periods = [
        (period.declared.engines, max(period.since, start), min(period.until, end))
        for part, start, end in facts.over(since, until)
        for period in part.over_time(book)
    ]
    for pool in sorted(pools):
        for engines, start, end in periods:
            one = PoolEngine(pool=pool, engine=engines.get(pool), since=start, until=end)
            if start >= end:
                continue
            if found and (found[-1].pool, found[-1].engine, found[-1].until) == (pool, one.engine, start):
                found[-1] = replace(found[-1], until=end)
            else:
                found.append(one)
    return found


def token_origins(
    pools: Iterable[PoolEngine], engines: Iterable[tuple[EngineTokens, Run | None]], methods: Methods
) -> list[TokenOrigin]:
    """One row for each pool and engine. `engines`: tokens of each engine, with the run of its instance."""
    counted: dict[str, list[datetime]] = {}
    for one, run in engines:
        if run is not None and run.pool is not None and one.tokens.total is not None:
            counted.setdefault(run.pool, []).append(one.last.at)
    found: list[TokenOrigin] = []
    for pool in pools:
        method = methods(pool.engine)
        known = method.by_engine and any(pool.since <= at < pool.until for at in counted.get(pool.pool, ()))
        found.append(TokenOrigin(of=pool, method=method, state=TokenState.COUNTED if known else TokenState.UNKNOWN))
    return found


_MAX_POOLS: Final = 5


def lines(origins: Sequence[TokenOrigin]) -> list[str]:
    """For people: one line for each engine whose tokens are counted, and one for each whose tokens are unknown."""
    found: list[str] = []
    is_mixed = any(origin.state is TokenState.COUNTED for origin in origins)
    unknown = "unknown, which is not zero" + (
        ": USD per million tokens of sums that contain them are upper bounds" if is_mixed else ""
    )
    for method in dict.fromkeys(origin.method for origin in origins):
        for state in TokenState:
            pools = sorted({o.of.pool for o in origins if o.method == method and o.state is state})
            if not pools:
                continue
            source = method.source_text if state is TokenState.COUNTED else unknown
            found.append(f"tokens of {method.title} ({_names(pools)}): {source}; {method.error_text}")
    return found


def _names(pools: Sequence[str]) -> str:
    more = f" and {len(pools) - _MAX_POOLS} more" if len(pools) > _MAX_POOLS else ""
    return ("pool " if len(pools) == 1 else "pools ") + ", ".join(pools[:_MAX_POOLS]) + more


def sources_of(origins: Iterable[TokenOrigin], pool: str | None = None) -> str:
    """The codes of the sources of a pool, or of the whole fleet, as one text: `engine`, `engine+unknown`."""
    mine = [origin for origin in origins if pool is None or origin.of.pool == pool]
    codes = {one.method.source if one.state is TokenState.COUNTED else TokenState.UNKNOWN.value for one in mine}
    return "+".join(sorted(codes))
