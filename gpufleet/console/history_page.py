"""The page of a fleet's history: cost over time, decisions, waste. Pure.

It has no script: groupings and periods are links, and each interval of the chart is a radio button. So the arrow
keys and a touch choose an interval, whose values are below the chart; hovering shows them, too. All amounts are
text from exact sums; only the heights of bars are rounded.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from html import escape
from typing import Final
from urllib.parse import urlencode

from gpufleet.console import history, markup, text
from gpufleet.console.history import Amount, CostHistory, CostInterval, Grouping, Period, Series
from gpufleet.console.view import FleetView, InstanceView
from gpufleet.costs.waste import Waste, WasteCause
from gpufleet.domain import money
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import LedgerEntry

UNKNOWN: Final = "not known"
MAX_NAMES: Final = 200
"""Rows of the table of parts. Those after the first `_FIRST` are folded, as are actions."""
_FIRST: Final = 10
MAX_KEPT: Final = 5
"""Instances of one cause of waste that have a button."""
_LINES: Final = 4
"""Number of horizontal lines of the chart, at most one more."""
_FINE: Final = Decimal("0.0001")
_LABELS: Final = {Period.DAY: (6, "%H:%M"), Period.WEEK: (4, "%a %d"), Period.MONTH: (7, "%d %b")}
"""Every how many intervals there is a label, and its form."""
_LABEL_COLUMNS: Final = 5
"""Columns that a label covers on a narrow screen."""
_PERIODS: Final = {Period.DAY: "24 hours", Period.WEEK: "7 days", Period.MONTH: "30 days"}
_KEEPABLE: Final = frozenset({WasteCause.IDLE, WasteCause.UNOBSERVED})
"""Causes of instances that the idle watchdog may end."""


def page(  # noqa: PLR0913 - the whole page
    views: Sequence[FleetView], view: FleetView, found: CostHistory, by: Grouping, csrf_token: str
) -> str:
    """The whole page. `csrf_token` proves that a form came from this page."""
    shown = history.series(found, by)
    known = "" if found.known_until is None else f" Costs are known until {found.known_until:%d %b %H:%M} UTC."
    parts = [
        f"<h1>History: {escape(view.name)}</h1>",
        _switches(views, view, found.period, by),
        f'<h2>Cost over time, by {by.value}</h2><p class="soft">USD, list prices.{known}</p>',
        _costs(found, by, shown),
        f"<h2>Actions</h2>{_timeline(view, found)}",
        f"<h2>Waste of the last 24 hours</h2>{_waste(view, found.waste, csrf_token)}",
    ]
    return markup.page(f"History: {view.name}", "\n".join(parts))


def _switches(views: Sequence[FleetView], view: FleetView, period: Period, by: Grouping) -> str:
    def link(label: str, fleet: str, span: Period, grouping: Grouping) -> str:
        same = (fleet, span, grouping) == (view.name, period, by)
        query = urlencode({"fleet": fleet, "span": span.value, "by": grouping.value})
        current = ' aria-current="true"' if same else ""
        return f'<a href="{escape(f"/history?{query}")}"{current}>{escape(label)}</a>'

    groups = [
        ("Fleet", [link(one.name, one.name, period, by) for one in views] if len(views) > 1 else []),
        ("Group by", [link(one.value.capitalize(), view.name, period, one) for one in Grouping]),
        ("Period", [link(label, view.name, one, by) for one, label in _PERIODS.items()]),
    ]
    return "".join(
        f'<nav class="switch" aria-label="{name}"><span class="soft">{name}</span>{"".join(links)}</nav>'
        for name, links in groups
        if links
    )


def _costs(found: CostHistory, by: Grouping, shown: Sequence[Series]) -> str:
    if found.known_until is None:
        return "<p>The ledger has no costs yet: run <code>gpufleet watch cost</code>.</p>"
    if not shown:
        return "<p>No costs in this time.</p>"
    drawn, sums = history.drawn(shown), history.totals(found)
    step = _step(sums)
    return (
        f'<p class="soft">Hover over the chart, or choose an interval with the arrow keys.</p>'
        f"{_chart(found, drawn, sums, step)}{_parts(by, shown, sums, step)}{_numbers(found, drawn, sums, step)}"
    )


def _step(sums: Sequence[Amount]) -> Decimal:
    """The rounding of amounts: cents, or finer if all are below 1 USD."""
    return money.CENT if any(abs(_usd(one)) >= 1 for one in sums) else _FINE


def _usd(amount: Amount) -> Decimal:
    return money.usd(amount.dollar_seconds)


def _show(amount: Amount, shown: Decimal) -> str:
    if not amount.is_known:
        return UNKNOWN
    return f"{'≥ ' if amount.is_lower_bound else ''}{shown:,}"


def _rounded(parts: Sequence[Amount], whole: Amount, step: Decimal) -> list[str]:
    """The parts as text, rounded so that they add up to the rounded whole."""
    shares = money.rounded_parts([_usd(one) for one in parts], _usd(whole), step)
    return [_show(one, share) for one, share in zip(parts, shares, strict=True)]


def _whole(amount: Amount, step: Decimal) -> str:
    return _show(amount, _usd(amount).quantize(step))


def _when(interval: CostInterval) -> str:
    start, end = interval.start, interval.end
    if end - start == timedelta(days=1):
        return f"{start:%a %d %b}"
    return f"{start:%a %d %b %H:%M}–{end:%H:%M}"


# the chart


def _chart(found: CostHistory, drawn: Sequence[Series], sums: Sequence[Amount], step: Decimal) -> str:
    low, high, line = _scale(drawn, len(found.intervals))
    size = high - low

    def at(value: Decimal) -> str:
        return f"{float((value - low) / size) * 100:.3f}%"

    lines = "".join(
        f'<span style="bottom:{at(value)}"{" class=zero" if not value else ""}><b>{value.normalize():,f}</b></span>'
        for value in _steps(low, high, line)
    )
    columns = "".join(_column(found, number, drawn, sums, step, low, size) for number in range(len(found.intervals)))
    return (
        f'<div class="plot" role="radiogroup" aria-label="Cost of each interval in USD"'
        f' style="grid-template-columns:var(--side) repeat({len(found.intervals)},minmax(0,1fr))">'
        f'<div class="lines" aria-hidden="true">{lines}</div>{columns}</div>'
    )


def _scale(drawn: Sequence[Series], count: int) -> tuple[Decimal, Decimal, Decimal]:
    """The lowest and the highest value of the chart, and the distance of its lines. Credits are below zero."""
    usd = [[_usd(one.amounts[number]) for one in drawn] for number in range(count)]
    high = max(sum((value for value in column if value > 0), money.ZERO) for column in usd)
    low = min(sum((value for value in column if value < 0), money.ZERO) for column in usd)
    if high == low:
        return money.ZERO, Decimal(1), Decimal(1)
    raw = (high - low) / _LINES
    unit = Decimal(1).scaleb(raw.adjusted())
    line = next(unit * factor for factor in (1, 2, Decimal("2.5"), 5, 10) if unit * factor >= raw)
    return (
        (low / line).to_integral_value(ROUND_FLOOR) * line,
        (high / line).to_integral_value(ROUND_CEILING) * line,
        line,
    )


def _steps(low: Decimal, high: Decimal, line: Decimal) -> Iterator[Decimal]:
    value = low
    while value <= high:
        yield value
        value += line


def _column(  # noqa: PLR0913 - one column of the chart
    found: CostHistory, number: int, drawn: Sequence[Series], sums: Sequence[Amount], step: Decimal,
    low: Decimal, size: Decimal,
) -> str:  # fmt: skip
    interval, total = found.intervals[number], sums[number]
    amounts = [one.amounts[number] for one in drawn]
    place = f"grid-column:{number + 2}"
    values = _values(interval, drawn, amounts, total, step, number)
    checked = " checked" if number == len(found.intervals) - 1 else ""
    label = f"{_when(interval)}: {_whole(total, step)}"
    return (
        f'<div class="col"><input type="radio" name="interval" style="{place}" aria-label="{escape(label)}"'
        f' aria-describedby="values-{number}"{checked}>'
        f'<span class="bars{"" if total.is_known else " gap"}" style="{place}">{_bars(amounts, low, size)}</span>'
        f"{_label(found, number, place)}{values}</div>"
    )


def _bars(amounts: Sequence[Amount], low: Decimal, size: Decimal) -> str:
    above = below = money.ZERO
    parts = ""
    for number, usd in enumerate(map(_usd, amounts)):
        start = above if usd > 0 else below + usd
        above, below = (above + usd, below) if usd > 0 else (above, below + usd)
        if usd:
            bottom, height = (float(value / size) * 100 for value in (start - low, abs(usd)))
            parts += f'<i class="s{number}" style="bottom:{bottom:.3f}%;height:{height:.3f}%"></i>'
    if any(one.is_lower_bound for one in amounts) and above:
        parts += f'<i class="more" style="bottom:{float((above - low) / size) * 100:.3f}%"></i>'
    return parts


def _label(found: CostHistory, number: int, place: str) -> str:
    every, form = _LABELS[found.period]
    start, count = found.intervals[number].start, len(found.intervals)
    index = (start - history.EPOCH) // found.period.step
    if index % every:
        return ""
    # on a narrow screen a label is wider than its column: at the end it grows to the left
    names = ["tick"] + (["last"] if number > count - _LABEL_COLUMNS else [])
    if found.period is not Period.DAY and (index // every) % 2:
        names.append("second")
    shown = f"{start:%d %b}" if found.period is Period.DAY and not start.hour else f"{start:{form}}"
    return f'<span class="{" ".join(names)}" style="{place}" aria-hidden="true">{shown}</span>'


def _values(  # noqa: PLR0913 - one interval
    interval: CostInterval, drawn: Sequence[Series], amounts: Sequence[Amount], total: Amount, step: Decimal,
    number: int,
) -> str:  # fmt: skip
    why = [] if interval.is_collected else ["the cost watchdog did not run all the time"]
    if missing := sorted(interval.spend.total.unpriced):
        why.append(f"no price for {', '.join(missing[:3])}{' …' if missing[3:] else ''}")
    reason = f' <span class="warn">{escape("; ".join(why))}</span>' if why else ""
    rows = "".join(
        f'<span><i class="s{index}"></i><span>{escape(one.name)}</span><b>{value}</b></span>'
        for index, (one, value) in enumerate(zip(drawn, _rounded(amounts, total, step), strict=True))
    )
    return (
        f'<div class="values" id="values-{number}"><p><b>{_when(interval)} UTC: {_whole(total, step)}</b>'
        f"{reason}</p><div>{rows}</div></div>"
    )


# the tables


def _parts(by: Grouping, shown: Sequence[Series], sums: Sequence[Amount], step: Decimal) -> str:
    whole = history.added(sums)
    coloured = history.MAX_SERIES if len(shown) > history.MAX_SERIES + 1 else len(shown)
    costs = _rounded([one.total for one in shown], whole, step)
    names = (by.value, "USD", "share")
    rows = [
        markup.row(
            names,
            (
                f'<i class="key s{min(number, coloured)}"></i>{escape(one.name)}',
                cost,
                _share(one.total, whole),
            ),
        )
        for number, (one, cost) in enumerate(zip(shown[:MAX_NAMES], costs, strict=False))
    ]
    total = markup.row(names, ("<b>total</b>", f"<b>{_whole(whole, step)}</b>", ""))
    cut = f'<p class="soft">and {len(shown) - MAX_NAMES} more</p>' if len(shown) > MAX_NAMES else ""
    return f'<div class="narrow">{_folded(names, [total, *rows], cards=False)}{cut}</div>'


def _folded(names: Sequence[str], rows: Sequence[str], *, cards: bool) -> str:
    """A table whose first rows are visible; the others unfold."""
    first = markup.table(names, "".join(rows[:_FIRST]), cards=cards)
    if not rows[_FIRST:]:
        return first
    folded = markup.table(names, "".join(rows[_FIRST:]), cards=cards)
    return f"{first}<details><summary>{len(rows) - _FIRST} more</summary>{folded}</details>"


def _share(part: Amount, whole: Amount) -> str:
    if not part.is_known or whole.is_lower_bound or whole.dollar_seconds <= 0:
        return text.NOTHING
    return f"{part.dollar_seconds / whole.dollar_seconds:.1%}"


def _numbers(found: CostHistory, drawn: Sequence[Series], sums: Sequence[Amount], step: Decimal) -> str:
    """The numbers of the chart."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("total", *(one.name for one in drawn)))
    rows = ""
    for number in reversed(range(len(found.intervals))):
        amounts = [one.amounts[number] for one in drawn]
        cells = [_whole(sums[number], step), *_rounded(amounts, sums[number], step)]
        inner = "".join(f"<td>{cell}</td>" for cell in cells)
        rows += f'<tr><th scope="row">{_when(found.intervals[number])}</th>{inner}</tr>'
    return (
        '<details><summary>The numbers of the chart as a table</summary><div class="scroll" tabindex="0"'
        ' role="region" aria-label="The numbers of the chart"><table><thead><tr><th scope="col" class="left">'
        f"interval (UTC)</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _timeline(view: FleetView, found: CostHistory) -> str:
    if not found.acts:
        return f'<p class="soft">No action in these {_PERIODS[found.period]}.</p>'
    lanes: dict[str, list[str]] = {}
    for act in found.acts:
        dot = f'<i style="left:{_place(found, act):.3f}%" title="{escape(_about(act))}"></i>'
        lanes.setdefault(act.watchdog, []).append(dot)
    picture = "".join(
        f'<div class="lane"><span>{escape(name)}</span><div>{"".join(dots)}</div></div>'
        for name, dots in sorted(lanes.items())
    )
    links = {one.id: markup.instance_link(view, one) for one in view.instances}
    names = ("time (UTC)", "watchdog", "resource", "action", "reason code", "why", "outcome")
    rows = [
        markup.row(
            names,
            (
                f"{act.at:%d %b %H:%M:%S}",
                escape(act.watchdog),
                links.get(act.decision.resource, escape(act.decision.resource)),
                escape(act.decision.action.sentence),
                f"<code>{escape(act.decision.reason.value)}</code>",
                escape(act.decision.reason.sentence + (f": {act.detail}" if act.detail else "")),
                escape(text.NOTHING if act.outcome is None else act.outcome.kind.sentence),
            ),
            long={"resource", "why"},
        )
        for act in found.acts
    ]
    return f'<div class="lanes" aria-hidden="true">{picture}</div>{_folded(names, rows, cards=True)}'


def _place(found: CostHistory, act: LedgerEntry) -> float:
    """Where a moment is in the chart of costs, in percent of its width: all its columns have the same width."""
    passed = (act.at - found.intervals[0].start) / found.period.step
    return max(0.0, min(passed / len(found.intervals), 1.0)) * 100


def _about(act: LedgerEntry) -> str:
    decision = act.decision
    return (
        f"{act.at:%d %b %H:%M} UTC {act.watchdog}: {decision.action.sentence} {decision.resource} ({decision.reason})"
    )


def _waste(view: FleetView, waste: Sequence[Waste], csrf_token: str) -> str:
    if not waste:
        return '<p class="good">None is known.</p>'
    running = {one.id: one for one in view.instances}
    names = ("cause", "pool", "USD", "hours", "what to do", "action")
    rows = "".join(
        markup.row(
            names,
            (
                escape(one.cause.value),
                escape(one.pool),
                _whole(Amount(dollar_seconds=one.amount, is_lower_bound=bool(one.unpriced)), money.CENT),
                f"{one.time / timedelta(hours=1):,.1f}",
                escape(one.advice),
                "".join(_actions(view, one, running, csrf_token)),
            ),
            long={"what to do", "action"},
        )
        for one in waste[: markup.MAX_ENTRIES]
    )
    note = (
        '<p class="soft">Keep protects an instance from the idle watchdog for 4 hours. Pause stops all watchdogs of a'
        " pool for 4 hours; <code>gpufleet resume POOL</code> ends it earlier.</p>"
    )
    return f"{markup.table(names, rows)}{markup.more(len(waste))}{note}"


def _actions(view: FleetView, waste: Waste, running: dict[str, InstanceView], csrf_token: str) -> Iterable[str]:
    here = [running[name] for name in waste.resources if name in running] if waste.cause in _KEEPABLE else []
    for one in here[:MAX_KEPT]:
        brake = _brake(view, BrakeKind.KEEP, one.id)
        end = text.NOTHING if brake is None else _end(brake)
        done = f"kept {end}" if brake is not None else markup.keep_button(view, one, csrf_token)
        yield f'<div class="act">{markup.instance_link(view, one)} {done}</div>'
    if here[MAX_KEPT:]:
        yield f'<div class="soft">and {len(here) - MAX_KEPT} more instances</div>'
    if waste.pool in {pool.name for pool in view.pools}:
        brake = _brake(view, BrakeKind.PAUSE, waste.pool)
        fields = {"fleet": view.name, "pool": waste.pool, "stamp": csrf_token}
        pause = markup.button("/pause", "Pause 4 h", f"pool {waste.pool}", fields)
        yield f'<div class="act">{pause if brake is None else f"pool paused {_end(brake)}"}</div>'


def _brake(view: FleetView, kind: BrakeKind, scope: str) -> Brake | None:
    """The brake that already holds this instance or pool."""
    found = (one for one in view.read.brakes if one.counts_as(kind) and one.scope in (scope, "all"))
    return next((one for one in found if one.is_active(view.at)), None)


def _end(brake: Brake) -> str:
    return "until resumed" if brake.until is None else f"until {brake.until:%d %b %H:%M} UTC"
