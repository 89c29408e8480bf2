"""The digest: key figures with their trend, the largest waste, savings, and the forecast of the month. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpufleet.costs import render, slice_view, token_origins
from gpufleet.costs.forecast import BudgetState, BudgetUse, Forecast
from gpufleet.costs.report import By, Report
from gpufleet.costs.savings import Savings
from gpufleet.costs.waste import Waste
from gpufleet.costs.waste import total as waste_total
from gpufleet.domain import money

MAX_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The content of the digest, for every output format."""

    report: Report
    before: Report | None
    """The report of the previous window of the same length; None: that begins before the ledger."""
    waste: Sequence[Waste]
    savings: Savings
    month: Forecast
    budget: BudgetUse | None
    budgets: Sequence[tuple[str, BudgetUse]] = ()
    """Budgets of pools and teams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number for the top of a page."""

    name: str
    value: str
    trend: str = ""


def numbers(digest: Digest) -> list[Number]:
    """Four to six numbers."""
    report, before = digest.report, digest.before
    total, saved = report.total, digest.savings
    # a lower bound has no trend
    old = before.total if before is not None and not (report.at_least or before.at_least) else None
    unit = total.unit_costs()
    old_unit = old.unit_costs() if old else None
    step = render.step_of(total.allocation)
    wasted_at_least = bool(report.uncollected) or any(one.unpriced for one in digest.waste)
    found = [
        Number(
            name="cost",
            value=f"{_least(report.at_least and not total.too_much)}{render.dollars(total.allocation, step)} USD"
            f"{_bounds(report)}",
            trend=trend(money.usd(total.allocation), money.usd(old.allocation) if old else None),
        ),
        Number(
            name="USD per million tokens (blended)",
            value=f"{_least(total.unpriced > 0)}{render.rate(unit.blended)}"
            if unit.blended is not None
            else render.without_tokens(total),
            trend=trend(unit.blended, old_unit.blended if old_unit else None),
        ),
        Number(
            name="idle, starting, unused",
            value=f"{_least(wasted_at_least)}{render.dollars(waste_total(digest.waste), step)} USD",
        ),
        Number(
            name="saved by spot and by ending idle instances",
            value=f"{_least(bool(saved.unpriced_stops or saved.uncompared))}"
            f"{render.dollars(money.total((saved.spot, saved.stopped)), step)} USD",
        ),
        Number(name="this month", value=month_text(digest.month)),
    ]
    if digest.budget is not None:
        found.append(Number(name="budget", value=budget_text(digest.budget)))
    return found


def trend(now: Decimal | None, before: Decimal | None) -> str:
    """The change from the window before; empty if there is none to compare with."""
    if now is None or before is None or before == 0:
        return ""
    change = (now - before) / before * 100
    arrow = "▲" if change > 0 else "▼" if change < 0 else "="
    return f"{arrow} {abs(change):.0f} %"


def month_text(month: Forecast) -> str:
    """The spent and the expected cost, its range, and its known part."""
    if not month.days_known:
        least = _least(bool(month.unknown) and not month.too_much)
        return f"{least}{render.show(month.spent.quantize(money.CENT))} USD so far (no full day known yet)"
    low, high = render.show(month.low), render.show(month.high)
    whole = month.days_known + month.days_unknown
    basis = f", from {days(month.days_known)} of {days(whole)} days" if month.days_unknown else ""
    # uncollected time is estimated; costs without a price, or before the ledger began, are not
    least = _least(bool(month.unpriced) or month.before is not None)
    return f"{least}{render.show(month.expected)} USD expected ({low} to {high}{basis})"


def days(count: Decimal) -> str:
    """A number of days, with hundredths where it is not whole."""
    return f"{count.normalize():f}"


def budget_text(budget: BudgetUse) -> str:
    """The used share of the budget and its state."""
    mark = {BudgetState.EXCEEDED: " ‼", BudgetState.WILL_EXCEED: " !"}.get(budget.state, "")
    unknown = f" ({'; '.join(budget.unknown[:3])})" if budget.unknown else ""
    used = f"{_least(budget.is_lower_bound)}{budget.share:.0%} of {render.show(budget.usd_per_month)} USD used"
    return f"{used}, {budget.state}{mark}{unknown}"


def _bounds(report: Report) -> str:
    known = f", {report.collected:.0%} of the time collected" if report.uncollected else ""
    return known + (f" ({render.bounds(report)})" if render.is_uncertain(report) else "")


def _least(is_lower_bound: bool) -> str:
    """The prefix of a lower bound."""
    return "at least " if is_lower_bound else ""


def _no_price(names: Sequence[str]) -> str:
    """The items that a lower bound excludes."""
    return f" (no price for {', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""


def all_waste_lines(digest: Digest) -> list[str]:
    """The waste by cause, and one line about idle slices, which may be of instances that are used."""
    return [*waste_lines(digest.waste), *slice_view.idle_lines(digest.report.slices)]


def waste_lines(found: Sequence[Waste], most: int = MAX_ROWS) -> list[str]:
    """The most expensive waste, each with advice."""
    step = render.step_of(waste_total(found))
    lines = [
        f"{_least(bool(w.unpriced))}{render.dollars(w.amount, step)} USD  {w.cause} in {w.pool}: {w.advice}"
        f"{_no_price(w.unpriced)}"
        for w in found[:most]
    ]
    if len(found) > most:
        lines.append(f"{len(found) - most} more: `gpufleet report waste`")
    return lines


def savings_lines(found: Savings) -> list[str]:
    """The savings by cause."""
    step = render.step_of(money.total((found.spot, found.stopped)))
    spot = f"{_least(bool(found.uncompared))}{render.dollars(found.spot, step)} USD"
    lines = [f"{spot}  spot against on-demand{_no_price(found.uncompared)}"]
    lines += [
        f"    {render.dollars(usd, step)} USD  in pool {pool}" for pool, usd in sorted(found.spot_by_pool.items())
    ]
    stopped = f"{_least(found.unpriced_stops > 0)}{render.dollars(found.stopped, step)} USD"
    count = len(found.stops)
    lines.append(f"{stopped}  by ending {count} idle instance{'' if count == 1 else 's'}")
    for one in found.stops[:MAX_ROWS]:
        ended = f"{one.stop.instance_id} ({one.stop.pool or 'no pool'})"
        saved = "unknown" if one.amount is None else f"{render.dollars(one.amount, step)} USD"
        lines.append(f"    {saved}  {ended}, counted until {one.because}")
    if len(found.stops) > MAX_ROWS:
        lines.append(f"    and {len(found.stops) - MAX_ROWS} more")
    fallback = f"{_least(bool(found.unpriced_fallback))}{render.dollars(found.fallback, step)} USD"
    sign = "" if found.fallback == 0 and not found.unpriced_fallback else "−"
    lines.append(f"{sign}{fallback}  cost of on-demand that replaced spot{_no_price(found.unpriced_fallback)}")
    return lines


def as_text(digest: Digest) -> str:
    """The digest for a terminal."""
    lines = [render.title(digest.report), ""]
    lines += [f"{n.name}: {n.value}{f'  {n.trend}' if n.trend else ''}" for n in numbers(digest)]
    lines += [f"budget of {name}: {budget_text(use)}" for name, use in digest.budgets]
    lines += ["", "Waste:", *(f"  {line}" for line in all_waste_lines(digest) or ["none"])]
    lines += ["", "Saved:", *(f"  {line}" for line in savings_lines(digest.savings))]
    lines += ["", pool_table(digest)]
    lines += ["", *token_origins.lines(digest.report.token_origins)] if digest.report.token_origins else []
    if digest.report.notes:
        lines += ["", *(f"! {note}" for note in digest.report.notes)]
    return "\n".join(lines)


def pool_table(digest: Digest) -> str:
    """The most expensive pools and the total, at most ten rows."""
    rows = render.rows(digest.report, By.POOL)
    short = [*rows[: MAX_ROWS - 1], rows[-1]] if len(rows) > MAX_ROWS else rows
    return render.table([("pool", *render.HEADINGS[1:]), *short])
