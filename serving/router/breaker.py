"""Excludes replicas that answer with errors for a while, but never most of a pool. Pure.

HAProxy's own breaker (`observe layer7`) has no minimum: one client whose requests crash every handler could exclude a
whole pool. So this module judges errors from the counters of `show stat`, and excludes a replica by its weight.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from serving.router.runtime import ServerStatus

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """The thresholds for excluding a replica."""

    errors: int = 5
    """Minimum number of errors within the window."""
    share: float = 0.5
    """Minimum share of errors among its answers, 0 to 1."""
    window_s: float = 10
    exclusion_s: float = 10
    """Seconds of the first exclusion. It doubles each time, until a window without errors."""
    longest_exclusion_s: float = 160
    floor: float = 0.5
    """Share of the pool's ready replicas that is never excluded, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The stored state of one replica."""

    window_since: float
    total: int
    errors: int
    """Counters at the start of the window."""
    excluded_until: float | None = None
    exclusions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    records: Mapping[Key, Record] = field(default_factory=dict[Key, Record])

    @property
    def excluded(self) -> frozenset[Key]:
        return frozenset(key for key, record in self.records.items() if record.excluded_until is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """A change of a replica's weight: exclude it (0) or include it again (100)."""

    path: str
    percent: int
    why: str

    @property
    def command(self) -> str:
        return f"set server {self.path} weight {self.percent}%"


def judge(
    shown: Iterable[ServerStatus], memory: BreakerState, rules: BreakerRules, now: float
) -> tuple[tuple[WeightChange, ...], BreakerState]:
    """Return the weights to change now, and the state for the next call."""
    servers = {(s.backend, s.name): s for s in shown}
    records: dict[Key, Record] = {}
    changes: list[WeightChange] = []
    for key, server in servers.items():
        record = memory.records.get(key)
        if record is None or server.total < record.total:
            record = Record(window_since=now, total=server.total, errors=server.errors)
            if server.weight == 0:
                # a controller that no longer runs excluded it
                changes.append(WeightChange(path=server.path, percent=100, why="not excluded"))
        elif record.excluded_until is not None and now >= record.excluded_until:
            record = replace(record, excluded_until=None, window_since=now, total=server.total, errors=server.errors)
            changes.append(WeightChange(path=server.path, percent=100, why="its exclusion ended"))
        records[key] = record
    for key, server in sorted(servers.items()):
        record = records[key]
        if record.excluded_until is None:
            records[key], change = _evaluate(
                server, record, _may_exclude(server, servers, records, rules), rules, now
            )
            changes += [change] if change else []
    return tuple(changes), BreakerState(records=records)


def _evaluate(
    server: ServerStatus, record: Record, may_exclude: bool, rules: BreakerRules, now: float
) -> tuple[Record, WeightChange | None]:
    errors, total = server.errors - record.errors, server.total - record.total
    if errors >= rules.errors and errors >= rules.share * total and may_exclude:
        duration_s = min(rules.exclusion_s * 2**record.exclusions, rules.longest_exclusion_s)
        why = f"{errors} errors in {total} responses; excluded for {duration_s:.0f} s"
        updated = replace(record, excluded_until=now + duration_s, exclusions=record.exclusions + 1)
        return updated, WeightChange(path=server.path, percent=0, why=why)
    if now - record.window_since >= rules.window_s:
        exclusions = record.exclusions if errors else 0
        return replace(
            record, window_since=now, total=server.total, errors=server.errors, exclusions=exclusions
        ), None
    return record, None


def _may_exclude(
    server: ServerStatus, servers: Mapping[Key, ServerStatus], records: Mapping[Key, Record], rules: BreakerRules
) -> bool:
    ready = [key for key, other in servers.items() if other.pool == server.pool and other.ready]
    working = [key for key in ready if records[key].excluded_until is None]
    return len(working) - 1 >= rules.floor * len(ready)
