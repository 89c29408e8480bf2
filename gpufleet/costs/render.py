"""The report as text for terminals and Slack. Cents add up: they are rounded together (largest remainder)."""

from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

from gpufleet.costs import energy_render, slice_view, speed, token_origins
from gpufleet.costs.allocation import UseState
from gpufleet.costs.figures import Figure, Method, UnitCosts
from gpufleet.costs.report import NONE, By, Report
from gpufleet.costs.uncertainty import UnknownCause, UnknownSpan
from gpufleet.domain import money

Row = tuple[str, ...]

HEADINGS: Row = (
    "",
    "USD",
    "used",
    "idle",
    "starting",
    "unused",
    "tokens in",
    "cached",
    "out",
    "$/M in",
    "$/M out",
    "$/M",
)


_SLICES: Final = 20
"""Rows of the table by slice; all are in the JSON file."""


def title(report: Report) -> str:
    """Environment and window, with its time zone."""
    scope = report.scope
    return (
        f"{scope.environment} ({scope.cloud}, {scope.region}): list cost, {report.confirmation},"
        f" {clock(scope.since, scope.timezone)} to {clock(scope.until, scope.timezone)} {scope.timezone}"
    )


def clock(moment: datetime, timezone: str) -> str:
    """A time in the time zone."""
    return moment.astimezone(ZoneInfo(timezone)).strftime("%Y-%m-%d %H:%M:%S")


def rows(report: Report, by: By) -> list[Row]:
    """One row per group and the total; each money column adds up to the cent, down and across."""
    groups = sorted(report.groups[by].items(), key=lambda item: (-item[1].allocation, item[0]))
    cells = cents([figure for _, figure in groups], report.total)
    names = [name for name, _ in groups]
    figures = [figure for _, figure in groups]
    return [
        (name, *[show(cell) for cell in line], *_served(figure))
        for name, figure, line in zip([*names, "total"], [*figures, report.total], cells, strict=True)
    ]


def cents(parts: Sequence[Figure], whole: Figure) -> list[list[Decimal]]:
    """Sum, used, idle, starting, unused of each part and of the whole, rounded so that they add up both ways.

    The whole is rounded first, so that every grouping shows the same totals; then each column is shared out to the
    parts, and a part's sum is that of its cells.
    """
    step = step_of(whole.allocation)
    whole_cells = [money.usd(amount) for amount in _amounts(whole)]
    totals = money.rounded_parts(whole_cells, sum(whole_cells, money.ZERO), step)
    columns: list[Sequence[Decimal]] = []
    for index, total in enumerate(totals):
        cells = [money.usd(_amounts(part)[index]) for part in parts]
        columns.append(money.rounded_parts(cells, total, step) if cells else ())
    lines = [[column[row] for column in columns] for row in range(len(parts))]
    return [[sum(line, money.ZERO), *line] for line in [*lines, list(totals)]]


def step_of(amount: Decimal) -> Decimal:
    """The rounding step: cents; hundredths of a cent if the total is less than ten dollars."""
    return money.CENT if abs(money.usd(amount)) >= 10 else Decimal("0.0001")


def _amounts(figure: Figure) -> tuple[Decimal, ...]:
    shared = money.total((figure.amounts[UseState.UNUSED], figure.amounts[UseState.SHARED]))
    return (figure.used, figure.amounts[UseState.IDLE], figure.amounts[UseState.STARTING], shared)


def _served(figure: Figure) -> Row:
    tokens, unit = figure.served, figure.unit_costs()
    return (
        count(tokens.prompt),
        count(tokens.cached),
        count(tokens.generation),
        rate(unit.input),
        rate(unit.output),
        rate(unit.blended),
    )


def facts(report: Report) -> list[str]:
    """Notes below the table, one per line."""
    total = report.total
    unit = total.unit_costs()
    lines = [unit_line(total, unit, report.scope.until - report.scope.since)]
    step = step_of(total.allocation)
    saved, on_demand = dollars(total.spot_saving, step), dollars(total.on_demand, step)
    lines.append(f"spot saved {saved} USD against on-demand; on-demand capacity cost {on_demand} USD")
    for pool, figure in sorted(report.groups[By.POOL].items()):
        if figure.allocation and not figure.tokens.total:
            idle = dollars(figure.allocation, step)
            lines.append(f"pool {pool}: {without_tokens(figure)}, {idle} USD spent")
    for kind, usd in sorted(total.adjustments.items()):
        lines.append(f"{kind.value}: {dollars(usd, step)} USD (contained in the rows above)")
    if total.coverage is not None:
        lines.append(f"measured: {total.coverage:.1%} of the serving time")
    lines += slice_view.facts(report.slices)
    return [*lines, *token_origins.lines(report.token_origins), *energy_render.lines(report), *coverage(report)]


def coverage(report: Report) -> list[str]:
    """The collected part of the window, and the bounds of the sum; nothing if everything is known."""
    lines: list[str] = []
    if report.uncollected:
        hours = sum((end - start for start, end in report.uncollected), timedelta(0)).total_seconds() / 3600
        lines.append(
            f"collected: {report.collected:.1%} of the window; {hours:,.1f} h were not collected:"
            " instances that started and ended in that time may be missing"
        )
    if is_uncertain(report):
        lines.append(f"cost with what is unknown: {bounds(report)}")
    return lines


def is_uncertain(report: Report) -> bool:
    """Whether costs are unknown for more than the minutes since the last pass."""
    undated = any(span.why in (UnknownCause.UNDATED, UnknownCause.RECOUNTED) for span in report.unknown)
    return bool(report.unknown) and (bool(report.uncollected) or undated)


def bounds(report: Report) -> str:
    """The bounds of the cost, of resources that the ledger knows."""
    total = report.total
    step = step_of(total.allocation)
    least, most = dollars(total.least, step), total.most
    return f"at least {least} USD" if most is None else f"{least} to {dollars(most, step)} USD"


UNKNOWN_HEADINGS: Row = ("unknown", "why", "pool", "from", "to", "USD at most")


def unknown_rows(report: Report, most: int = 20) -> list[Row]:
    """The largest unknown costs: how much they may exceed the charges."""
    if not is_uncertain(report):
        return []

    def more(span: UnknownSpan) -> Decimal:
        return Decimal("Infinity") if span.most is None else span.most - span.charged

    spans = sorted(report.unknown, key=lambda span: (-more(span), span.like.resource))
    zone = report.scope.timezone
    step = step_of(report.total.allocation)
    lines = [
        (span.like.resource, span.why.as_text, span.like.pool or NONE, clock(span.start, zone), clock(span.end, zone),
         "?" if span.most is None else dollars(more(span), step))
        for span in spans[:most]
    ]  # fmt: skip
    if len(spans) > most:
        lines.append((f"{len(spans) - most} more in the JSON file", "", "", "", "", ""))
    return lines


def unit_line(figure: Figure, unit: UnitCosts, window: timedelta) -> str:
    """USD per million tokens with its method; without tokens, the spend."""
    if unit.method is Method.NONE:
        hours = Decimal(str(window.total_seconds())) / money.SECONDS_PER_HOUR
        per_hour = money.usd(figure.allocation) / hours if hours else money.ZERO
        return f"{without_tokens(figure)}, {show(per_hour.quantize(money.CENT))} USD/h spent"
    return (
        f"USD per million tokens: input {rate(unit.input)}, output {rate(unit.output)}, blended {rate(unit.blended)}"
        f" (basis: allocation; split by {unit.method.value})"
    )


def without_tokens(figure: Figure) -> str:
    """Why a figure has no USD per million tokens. Unknown tokens are not zero."""
    if figure.served.total is None:
        return "tokens unknown"
    return "tokens without a known cost" if figure.served.total else "no traffic"


def dollars(amount: Decimal, step: Decimal = money.CENT) -> str:
    """Dollar-seconds as USD, to the step."""
    return show(money.usd(amount, step))


def show(value: Decimal) -> str:
    """A number with thousands separators; minus zero is shown as zero."""
    return f"{value + 0:,}" if value else f"{abs(value):,}"


def count(value: int | None) -> str:
    """Tokens; unknown is a question mark, never 0."""
    return "?" if value is None else f"{value:,}"


def rate(value: Decimal | None) -> str:
    """USD per million tokens to four decimals; none without tokens."""
    return "–" if value is None else f"{value.quantize(Decimal('0.0001')):,}"


def as_text(report: Report, by: Sequence[By] | None = None) -> str:
    """The whole report as plain text, in columns. `by` defaults to pool, model, capacity type and, if there are any,
    LoRA adapters.
    """
    with_slices = by is None and report.slices.rows
    by = by or (By.POOL, By.MODEL, By.CAPACITY_TYPE, *((By.ADAPTER,) if report.adapters else ()))
    parts = [title(report), ""]
    for group in by:
        parts += [table([(group.value, *HEADINGS[1:]), *rows(report, group)]), ""]
    if with_slices:
        lines = slice_view.rows(report.slices, _SLICES)
        parts += [table([slice_view.HEADINGS, *lines], frozenset({0, 1, 2})), ""]
    if report.total.energy.millijoules is not None:
        energy = energy_render.rows(report, by[0])
        parts += [table([(f"energy by {by[0].value}", *energy_render.HEADINGS[1:]), *energy]), ""]
    parts += facts(report)
    if report.speeds and By.MODEL in by:
        parts += [
            "",
            table([speed.HEADINGS, *map(speed.as_text, report.speeds)], frozenset({0, 1})),
            *references(report),
        ]
    lines = unknown_rows(report)
    if lines:
        parts += ["", table([UNKNOWN_HEADINGS, *lines], frozenset({0, 1, 2, 3, 4}))]
    if report.notes:
        parts += ["", *[f"! {note}" for note in report.notes]]
    return "\n".join(parts)


def references(report: Report) -> list[str]:
    """The sources of the speeds' references, or why they are unknown; each once."""
    found = {f"{one.model}, {one.machine_type}: {one.reference.basis}": None for one in report.speeds}
    return list(found)


def table(lines: Sequence[Row], left: Set[int] = frozenset({0})) -> str:
    """Lines in columns: columns in `left` are left-aligned, numbers right-aligned."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown: list[str] = []
    for line in lines:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)
