"""A fleet's view for a terminal, readable in 80 columns."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpufleet.console.view import AlertView, CostView, FleetView, InstanceView, PoolStatus
from gpufleet.domain.brakes import Brake
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import CapacityType

NOTHING: Final = "–"
_MAX_LINES: Final = 5
"""Maximum number of lines of one kind; the others are counted."""
PAGE: Final = "page"
"""The severity of alerts that page the on-call person (`hosts.monitoring.alerts.Severity`)."""


def screen(view: FleetView) -> RenderableType:
    """The screen of one fleet."""
    # problems come first: a fleet with many pools is longer than a screen
    parts: list[RenderableType] = [_head(view), *_wrong(view), "", _pools(view)]
    lines = [line for group in _groups(view) for line in group]
    if lines:
        # as Text, because square brackets in untrusted text are not markup
        parts += ["", *(Text(line) for line in lines)]
    return Group(*parts)


def _head(view: FleetView) -> Text:
    spend = money(view.usd_per_hour, view.unpriced)
    today = view.read.today
    text = Text.assemble((view.name, "bold"), f"  {view.at:%Y-%m-%d %H:%M:%S} UTC\n", (f"{spend} USD/h", "bold"))
    text.append("" if today is None else f", today {money(today.usd, today.unpriced)} USD")
    return text


def _pools(view: FleetView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    # the only column that may wrap: numbers never do
    table.add_column("pool", max_width=20, overflow="fold")
    for name in ("target", "ready", "res", "spot", "o-d", "drain", "mark", "wait", "tok/s", "USD/h", "$/Mtok"):
        table.add_column(name, justify="right", no_wrap=True)
    for pool in view.pools:
        table.add_row(*_pool_cells(pool))
    return table


def _pool_cells(pool: PoolStatus) -> list[str | Text]:
    ready = Text(number(pool.ready), style="yellow" if pool.below_target else "")
    return [
        Text(pool.name),
        NOTHING if pool.target is None else str(pool.target),
        ready,
        *(counted(pool, kind, "/") for kind in (CapacityType.RESERVED, CapacityType.SPOT, pool.fallback_type)),
        str(pool.draining or NOTHING),
        str(pool.marked or NOTHING),
        short_number(pool.queued),
        short_number(pool.tokens_per_second),
        short_money(pool.usd_per_hour, pool.unpriced),
        NOTHING if pool.usd_per_million_tokens is None else f"{pool.usd_per_million_tokens:.2f}",
    ]


def counted(pool: PoolStatus, kind: CapacityType, of: str) -> str:
    """Ready instances of a capacity type, and the total if not all are ready; `–` if the pool does not
    have the type, or if the inventory is not known.
    """
    found = pool.types[kind]
    if found.there is None or (found.most is None and found.there == 0):
        return NOTHING
    return str(found.ready) if found.ready == found.there else f"{found.ready}{of}{found.there}"


def paging_first(alerts: Iterable[AlertView]) -> list[AlertView]:
    """Alerts that page a person first, then the others."""
    return sorted(alerts, key=lambda alert: alert.severity != PAGE)


def _wrong(view: FleetView) -> list[Text]:
    """Problems and alerts, with paging alerts first. As Text, because square brackets in them are not markup."""
    lines = [Text(f"! {problem}", style="red") for problem in view.read.problems]
    if view.read.alerts is None:
        return [*lines, Text("alerts: unknown", style="yellow")]
    first = paging_first(view.read.alerts)
    alerts = _cut([f"alert {a.name} {a.pool or ''}{_times(a.count)} ({a.severity})" for a in first])
    return lines + [Text(line, style="red" if line.endswith(f"({PAGE})") else "yellow") for line in alerts]


def _groups(view: FleetView) -> Iterable[list[str]]:
    read = view.read
    if read.hour is not None:
        known = as_of(read.hour, view.at)
        yield [_hour(read.hour), *([known] if known else [])]
    yield _cut([f"adapters of {pool.name}: {', '.join(pool.adapters)}" for pool in view.pools if pool.adapters])
    yield _cut([_marked(instance, view.at) for instance in view.instances if instance.idle_since is not None])
    yield _cut([f"drains: {i.id} ({i.pool}, {i.capacity_type}){why(i)}" for i in view.instances if i.draining])
    yield _cut([f"orphan: {i.id} ({i.machine_type}, pool {i.pool or NOTHING})" for i in view.orphans])
    yield _cut([f"brake: {brake(b)}" for b in read.brakes])
    yield _cut(
        [
            f"{_ago(view.at, act.at)} ago {act.watchdog}: {act.decision.action.sentence} {act.decision.resource}:"
            f" {(act.outcome.kind if act.outcome else act.decision.reason).sentence}"
            for act in read.acts
        ]
    )
    seen = ", ".join(f"{name} {_ago(view.at, at)} ago" for name, at in sorted(read.last_seen.items()))
    if read.ledger_read:
        yield [f"last records: {seen}"] if seen else ["no watchdog has recorded anything yet"]
    known = [m for m in read.market if m.spot is not None]
    yield _cut([market(m.zone, m.machine_type, m.spot, m.on_demand) for m in known])


def _hour(hour: CostView) -> str:
    unit = hour.unit
    if unit.blended is None:
        return f"last hour: {money(hour.usd, hour.unpriced)} USD, no tokens counted"
    return (
        f"last hour: {money(hour.usd, hour.unpriced)} USD; per million tokens {dollars(unit.input)} in, "
        f"{dollars(unit.output)} out, {dollars(unit.blended)} blended"
    )


def as_of(hour: CostView, now: datetime) -> str:
    """The age of the costs, which includes those of today; empty: not known."""
    if hour.known_until is None:
        return ""
    return f"costs as of {hour.known_until:%H:%M} UTC, {_ago(now, hour.known_until)} ago"


def _marked(instance: InstanceView, now: datetime) -> str:
    since = instance.idle_since or now
    kept = f", kept until {instance.keep_until:%H:%M}" if instance.keep_until and instance.keep_until > now else ""
    return f"marked: {instance.id} ({instance.pool}) idle for {_ago(now, since)}{kept}{why(instance)}"


def why(instance: InstanceView) -> str:
    """Who marked or drains the instance, and why, as a suffix; empty if it is not known."""
    return "" if instance.why is None else f"; {instance.why}"


def market(zone: str, machine_type: str, spot: Decimal | None, on_demand: Decimal | None) -> str:
    """A spot price, and its share of the on-demand price."""
    share = f", {spot / on_demand:.0%} of on-demand" if spot is not None and on_demand else ""
    return f"spot {machine_type} in {zone}: {dollars(spot)} USD/h{share}"


def _cut(lines: list[str]) -> list[str]:
    if len(lines) <= _MAX_LINES:
        return lines
    return [*lines[: _MAX_LINES - 1], f"  and {len(lines) - _MAX_LINES + 1} more like the last"]


def _times(count: int) -> str:
    return f" x{count}" if count > 1 else ""


def brake(one: Brake) -> str:
    """A manual brake: its scope, its owner, its end and its reason."""
    end = "until resumed" if one.until is None else f"until {one.until:%Y-%m-%d %H:%M}"
    return f"{one.kind.sentence} {one.scope} by {one.owner}, {end}: {one.reason}"


def _ago(now: datetime, then: datetime) -> str:
    return approximate(now - then)


def number(value: float | None) -> str:
    """A count; `–` for an unknown one."""
    return NOTHING if value is None else f"{value:,.0f}"


def short_number(value: float | None) -> str:
    """A count in at most five characters: `950`, `12.3k`, `4.5M`."""
    if value is None:
        return NOTHING
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if value >= size:
            scaled = value / (1e6 if unit == "M" else 1e3)
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def short_money(value: Decimal | None, unpriced: int = 0) -> str:
    """An amount in USD, with cents below 1,000; `–` for an unknown one."""
    if value is None:
        return NOTHING
    return f"{'≥' if unpriced else ''}{value:.2f}" if value < 1000 else f"{'≥' if unpriced else ''}{value:,.0f}"


def percent(value: float | None) -> str:
    """A share as percent."""
    return NOTHING if value is None else f"{value:.0%}"


def money(value: Decimal | None, unpriced: int = 0) -> str:
    """An amount in USD to the cent; `≥` if prices are missing, `–` for an unknown amount."""
    return NOTHING if value is None else f"{'≥' if unpriced else ''}{value:,.2f}"


def dollars(value: Decimal | None) -> str:
    """A price; `–` for none."""
    return NOTHING if value is None else f"{value:.3f}"
