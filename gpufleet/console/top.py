"""The live screen of instances: its content, and the effect of each key. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpufleet.console import text
from gpufleet.console.view import FleetView, InstanceView
from gpufleet.domain.decisions import LedgerEntry
from gpufleet.domain.durations import approximate

HELP: Final = "s sort  p pool  up/down choose  enter decisions  esc back  q quit"
_MAX_ACTS: Final = 20


class Sort(StrEnum):
    """The sort order."""

    IDLE = "idle"
    """The least busy GPU first; instances with unknown activity last."""
    COST = "cost"
    WAITING = "waiting"
    KV = "kv"
    TOKENS = "tokens"
    AGE = "age"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The user's selections."""

    sort: Sort = Sort.IDLE
    pool: str = ""
    """Empty: every pool."""
    row: int = 0
    chosen: str = ""
    """Instance whose decisions are shown; empty: the list."""
    over: bool = False


def rows(screen: Screen, views: Sequence[FleetView]) -> list[tuple[FleetView, InstanceView]]:
    """The instances in the selected order."""
    found = [(view, one) for view in views for one in view.instances if not screen.pool or one.pool == screen.pool]
    key = _KEYS[screen.sort]
    return sorted(found, key=lambda pair: (*_last(key(pair[1])), pair[1].id))


def after_key(screen: Screen, key: str, views: Sequence[FleetView]) -> Screen:
    """The screen after a key press."""
    found = rows(screen, views)
    if key == "q":
        return replace(screen, over=True)
    if key == "escape":
        return replace(screen, chosen="")
    if key == "enter" and found:
        return replace(screen, chosen=found[min(screen.row, len(found) - 1)][1].id)
    if key in ("up", "k"):
        return replace(screen, row=max(screen.row - 1, 0))
    if key in ("down", "j"):
        return replace(screen, row=min(screen.row + 1, max(len(found) - 1, 0)))
    if key == "s":
        kinds = list(Sort)
        return replace(screen, sort=kinds[(kinds.index(screen.sort) + 1) % len(kinds)], row=0)
    if key == "p":
        pools = ["", *sorted({one.pool for view in views for one in view.instances if one.pool})]
        here = pools.index(screen.pool) if screen.pool in pools else 0
        return replace(screen, pool=pools[(here + 1) % len(pools)], row=0)
    return screen


def draw(screen: Screen, views: Sequence[FleetView], acts: Sequence[LedgerEntry], lines: int) -> RenderableType:
    """The whole screen, with at most `lines` instances."""
    if screen.chosen:
        return _one(screen, views, acts)
    found, numbers = rows(screen, views), _numbers(views)
    lines = max(lines - len(numbers), 1)
    first = max(min(screen.row - lines // 2, len(found) - lines), 0)
    head = Text(
        f"{len(found)} instances by {screen.sort}" + (f" of pool {screen.pool}" if screen.pool else ""), style="bold"
    )
    for view in views:
        spend = text.money(view.usd_per_hour, view.unpriced)
        before = f"\n{numbers[view.name]}" if numbers else " "
        head.append(f"{before} {view.name} {view.at:%H:%M:%S} UTC {spend} USD/h", style="not bold")
    problems = [Text(f"! {problem}", style="red") for view in views for problem in view.read.problems]
    shown = _table(found[first : first + lines], screen.row - first, numbers)
    return Group(head, *problems, shown, Text(HELP, style="dim"))


def _numbers(views: Sequence[FleetView]) -> Mapping[str, str]:
    """By fleet: its number, which fits in 80 columns, if there are several fleets; empty for one fleet."""
    return {view.name: str(number) for number, view in enumerate(views, 1)} if len(views) > 1 else {}


def _table(found: Sequence[tuple[FleetView, InstanceView]], row: int, numbers: Mapping[str, str]) -> Table:
    """`numbers`: numbers of the fleets; empty: no fleet column."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    if numbers:
        table.add_column("#", no_wrap=True)
    table.add_column("instance", no_wrap=True)
    table.add_column("pool", overflow="fold", max_width=14)
    for name in ("type", "phase"):
        table.add_column(name, no_wrap=True)
    for name in ("GPU", "run", "wait", "KV", "tok/s", "USD/h", "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, (view, one) in enumerate(found):
        fleet = [Text(numbers[view.name])] if numbers else []
        table.add_row(*fleet, *_cells(view, one), style="reverse" if number == row else "")
    return table


_SHORT: Final[Mapping[str, str]] = {"reserved": "res", "spot": "spot", "on-demand": "o-d", "flex-start": "flex"}


def _cells(view: FleetView, one: InstanceView) -> list[Text]:
    signals = one.signals
    return [
        Text(cell)
        for cell in (
            one.id,
            one.pool or text.NOTHING,
            _SHORT[one.capacity_type],
            signals.phase or text.NOTHING,
            text.percent(signals.gpu_active),
            text.short_number(signals.running),
            text.short_number(signals.waiting),
            text.percent(signals.kv_cache),
            text.short_number(signals.tokens_per_second),
            text.NOTHING if one.usd_per_hour is None else f"{one.usd_per_hour:.2f}",
            text.NOTHING if one.idle_since is None else approximate(view.at - one.idle_since).replace(" ", ""),
        )
    ]


def _one(screen: Screen, views: Sequence[FleetView], acts: Sequence[LedgerEntry]) -> RenderableType:
    found = next(((view, one) for view, one in rows(Screen(), views) if one.id == screen.chosen), None)
    if found is None:
        return Group(
            Text(f"{screen.chosen} is no longer listed", style="bold"), Text("esc back  q quit", style="dim")
        )
    view, one = found
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("when", "watchdog", "what", "outcome"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", overflow="fold")
    for act in acts[:_MAX_ACTS]:
        why = act.decision.reason.sentence + (f": {act.detail}" if act.detail else "")
        outcome = text.NOTHING if act.outcome is None else act.outcome.kind.sentence
        cells = (f"{approximate(view.at - act.at)} ago", act.watchdog, act.decision.action.sentence, outcome, why)
        table.add_row(*(Text(cell) for cell in cells))
    head = f"{one.id}  {one.machine_type} {one.capacity_type} in {one.zone}, pool {one.pool or 'none'}"
    none = () if acts else (Text("no decision is recorded yet"),)
    return Group(
        Text(head, style="bold"), _table([found], -1, {}), Text(), table, *none, Text("esc back  q quit", style="dim")
    )


def _last(value: float | Decimal | datetime | None) -> tuple[bool, float]:
    """The sort key; unknown values come last."""
    if value is None:
        return True, 0.0
    return False, value.timestamp() if isinstance(value, datetime) else float(value)


def _falling(value: float | Decimal | None) -> float | None:
    return None if value is None else -float(value)


_KEYS: Final[Mapping[Sort, Callable[[InstanceView], float | datetime | None]]] = {
    Sort.IDLE: lambda one: one.signals.gpu_active,
    Sort.COST: lambda one: _falling(one.usd_per_hour),
    Sort.WAITING: lambda one: _falling(one.signals.waiting),
    Sort.KV: lambda one: _falling(one.signals.kv_cache),
    Sort.TOKENS: lambda one: _falling(one.signals.tokens_per_second),
    Sort.AGE: lambda one: one.launched_at,
}
