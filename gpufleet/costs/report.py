"""The cost report of one fleet over one window, by any grouping. Pure; gpufleet.costs.query reads the ledger."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpufleet.costs.adapters import adapter_shares
from gpufleet.costs.allocation import Charge, ChargeKind, LedgerFacts, charges
from gpufleet.costs.cost_owners import with_owner_at
from gpufleet.costs.energy import InstanceEnergy, shares_devices
from gpufleet.costs.energy_cells import energy_by_cell, energy_notes
from gpufleet.costs.figures import Figure
from gpufleet.costs.slice_bills import SliceReport
from gpufleet.costs.speed import MeasuredSpeed
from gpufleet.costs.teams import UseShare, split_by_engine_seconds
from gpufleet.costs.token_origins import PoolEngine, TokenOrigin, pool_engines
from gpufleet.costs.tokens import EngineTokens
from gpufleet.costs.uncertainty import UnknownCause, UnknownSpan, unknown_spans
from gpufleet.domain import money
from gpufleet.domain.prices import Price
from gpufleet.ledger import teams as ledger_teams
from gpufleet.ledger.closed_periods import BillConfirmation
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.facts import CostPass, Reservation, Run
from gpufleet.ledger.teams import Interval, TeamUse
from gpufleet.prices.book import PriceBook, is_stale


class By(StrEnum):
    """The groupings of figures."""

    POOL = "pool"
    MODEL = "model"
    CAPACITY_TYPE = "capacity-type"
    TEAM = "team"
    ZONE = "zone"
    MACHINE_TYPE = "machine-type"
    ADAPTER = "adapter"


class Confirmation(StrEnum):
    """Whether a bill has confirmed a window."""

    ESTIMATED = "estimated"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportScope:
    """The fleet and the window of a report."""

    fleet: str
    """The fleet's name in the ledger."""
    environment: str
    cloud: str
    region: str
    since: datetime
    until: datetime
    now: datetime
    timezone: str = "UTC"
    allow_unpriced: bool = False


QUIET: Final = timedelta(hours=1)
"""The longest time between passes that sees every instance: EC2 lists an ended instance for about that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every figure of a window, with all facts that are needed to recompute it."""

    scope: ReportScope
    known_until: datetime | None
    """Time of the last complete pass of the cost watchdog; None: there was none."""
    total: Figure
    groups: dict[By, dict[str, Figure]]
    charges: Sequence[Charge]
    engines: Sequence[EngineTokens]
    served_by: Sequence[Run | None] = ()
    """The run of each engine's instance, with its owner at that time; None: the instance is not in the ledger."""
    notes: Sequence[str] = ()
    prices: Sequence[Price] = ()
    """Every price used, once."""
    confirmation: Confirmation = Confirmation.ESTIMATED
    teams: Sequence[UseShare] = ()
    """Pools that are split by engine seconds; `groups[By.TEAM]` holds the same sums."""
    adapters: Sequence[UseShare] = ()
    """Pools with LoRA adapters, by the model name of the requests; `groups[By.ADAPTER]` holds the same sums."""
    cells: Mapping[tuple[str, ...], Figure] = field(default_factory=dict[tuple[str, ...], Figure])
    """The finest figures; see `_GROUPINGS`."""
    energies: Sequence[tuple[Run | None, InstanceEnergy]] = ()
    """The energy of each instance, with its run; None: the instance is not in the ledger."""
    reservations: Sequence[Reservation] = ()
    """Paid capacity of the window and its use elsewhere, one entry for each interval without a change."""
    unknown: Sequence[UnknownSpan] = ()
    """Costs that may be higher or lower than charged; the figures include their bounds."""
    uncollected: Sequence[Interval] = ()
    """Parts of the window without a pass for longer than `QUIET`: runs that started and ended in them are missing."""
    not_frozen: Sequence[Interval] = ()
    """Spans that an older release confirmed and did not close: later facts still change them."""
    speeds: Sequence[MeasuredSpeed] = ()
    """Tokens per second and GPU, compared with a reference; see gpufleet.costs.speed."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Model to its declared source."""
    pool_engines: Sequence[PoolEngine] = ()
    """The engines of all pools with instances, in the window."""
    token_origins: Sequence[TokenOrigin] = ()
    """Where the tokens of these pools come from; see gpufleet.costs.token_origins."""
    slices: SliceReport = field(default_factory=SliceReport)
    """The cost of nodes with slices or shared devices, by slice; see gpufleet.costs.slices."""
    would_change: Sequence[str] = ()
    """Differences that today's settings, prices and facts would make to a closed window. Not part of the report's
    documents, which stay equal to the byte."""

    @property
    def collected(self) -> float:
        """The collected share of the window's past."""
        whole = min(self.scope.until, self.scope.now) - self.scope.since
        missing = sum((end - start for start, end in self.uncollected), timedelta(0))
        return 1 - missing / whole if whole > timedelta(0) else 1.0

    @property
    def at_least(self) -> bool:
        """Whether the sum excludes costs without a bound: unknown prices, or instances that were never observed."""
        return bool(self.total.unpriced or self.uncollected or self.total.without_cost.total)


NONE = "(none)"
"""The name of an unknown pool, model, team or zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """The facts of a window in the ledger."""

    facts: LedgerFacts
    book: PriceBook
    last: CostPass | None
    begun: datetime | None = None
    """The first complete pass."""
    confirmed: Sequence[BillConfirmation] = ()
    """The bills that confirm parts of the window."""
    gaps: Sequence[Interval] = ()
    """Spans of the window without a pass, long enough for instances to start and end unobserved."""
    uses: ledger_teams.Uses = field(default_factory=dict[tuple[str, str, str], TeamUse])
    """(pool, team, requested model) to the use that the router counted in the window."""
    unreadable_prices: Sequence[str] = ()
    """Price rows of the ledger that cannot be read."""


def compute(
    scope: ReportScope,
    known: WindowFacts,
    engines: Sequence[EngineTokens],
    energy: Sequence[InstanceEnergy] = (),
) -> Report:
    """Compute the report, with notes, from the facts of a window."""
    report = build(scope, known.facts, known.book, engines, known.last, energy)
    report = by_adapter(by_team(report, known), known)
    notes = [
        f"trued up by a bill ({one.form}) from {one.since:%Y-%m-%dT%H:%MZ} to {one.until:%Y-%m-%dT%H:%MZ}:"
        f" billed {one.billed_usd.quantize(money.CENT)} USD, computed {one.computed_usd.quantize(money.CENT)} USD"
        for one in known.confirmed
    ]
    not_frozen = [(one.since, one.until) for one in known.confirmed if not _is_frozen(one, known.confirmed)]
    notes += [
        f"not frozen: the bill from {since:%Y-%m-%dT%H:%MZ} to {until:%Y-%m-%dT%H:%MZ} was compared by a release that"
        " did not close periods, so settings, prices and facts of today change these figures; compare it again"
        for since, until in not_frozen
    ]
    if known.begun is not None and known.begun > scope.since:
        first = f"{known.begun:%Y-%m-%dT%H:%M:%SZ}"
        notes.append(
            f"the window begins before the ledger ({first}): runs that ended before that are not in these figures"
        )
    notes += [
        f"no complete pass from {start:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}: instances that started and"
        " ended in between are not in these figures"
        for start, end in known.gaps
    ]
    notes += [f"a price in the ledger cannot be read and is ignored: {row}" for row in known.unreadable_prices]
    notes += _unknown_notes(report.unknown)
    paid = list(_paid(scope, known.facts.reservations))
    notes += _reservation_notes(paid)
    serving = [name for name, figure in report.groups[By.POOL].items() if figure.instances and name != NONE]
    confirmation = Confirmation.FINAL if _covered(scope, known.confirmed) else Confirmation.ESTIMATED
    return replace(
        report,
        notes=(*notes, *report.notes),
        confirmation=confirmation,
        reservations=paid,
        not_frozen=not_frozen,
        uncollected=uncollected(known, scope.since, min(scope.until, scope.now)),
        sources=known.facts.declared.sources,
        pool_engines=pool_engines(serving, known.facts, known.book, scope.since, min(scope.until, scope.now)),
    )


def _paid(scope: ReportScope, reservations: Iterable[Reservation]) -> Iterator[Reservation]:
    """Paid capacity, cut to the window."""
    for one in reservations:
        start = max(one.started_at, scope.since)
        stop = min(one.last_seen_at, one.ends_at or one.last_seen_at, scope.until)
        if start < stop:
            yield replace(one, started_at=start, last_seen_at=stop)


def _reservation_notes(paid: Sequence[Reservation]) -> Iterator[str]:
    """Notes about reservations that the fleet shares with others."""
    for name in sorted({one.reservation for one in paid}):
        times = [one for one in paid if one.reservation == name]
        elsewhere = sum(((one.last_seen_at - one.started_at) * one.elsewhere for one in times), timedelta())
        if elsewhere:
            yield (
                f"reservation {name}: {elsewhere / timedelta(hours=1):.1f} instance-hours were used outside"
                f" this fleet ({_users(times)}): this report counts them as neither used nor unused"
            )
        last = times[-1]
        if last.seats is not None and last.seats < last.instances:
            yield (
                f"reservation {name}: this fleet declares {last.seats} of its {last.instances} instances and is"
                " charged that share of the unused ones"
            )


def _users(times: Iterable[Reservation]) -> str:
    """Which accounts used a reservation, with their instance-hours."""
    used: dict[str, timedelta] = {}
    for one in times:
        by = {"other accounts": one.elsewhere} if one.accounts is None else one.accounts
        for account, count in by.items():
            name = account if one.accounts is None else f"account {account}"
            used[name] = used.get(name, timedelta()) + (one.last_seen_at - one.started_at) * count
    return ", ".join(f"{name}: {time / timedelta(hours=1):.1f}" for name, time in sorted(used.items()) if time)


def uncollected(known: WindowFacts, since: datetime, horizon: datetime) -> list[Interval]:
    """Times up to the horizon without a pass: before the first pass, between two, after the last one."""
    begun, last = (known.begun or horizon, known.last.at if known.last is not None else horizon)
    spans = [(since, begun), *known.gaps]
    if horizon - last > QUIET:
        spans.append((last, horizon))
    inside = [(max(start, since), min(end, horizon)) for start, end in spans]
    return [(start, end) for start, end in inside if start < end]


def _unknown_notes(spans: Sequence[UnknownSpan]) -> Iterable[str]:
    by_why = {why: [span for span in spans if span.why is why] for why in UnknownCause}
    if undated := by_why[UnknownCause.UNDATED]:
        ends = len({(span.like.resource, span.end) for span in undated if span.like.kind is not ChargeKind.SHARED})
        yield f"{ends} ends have no exact time: charged until last seen; they may have cost {_bounds(undated)}"
    if unobserved := by_why[UnknownCause.NOT_OBSERVED]:
        seen = len({span.like.resource for span in unobserved})
        yield f"since the last pass, the {seen} resources that it saw may have cost {_bounds(unobserved)}"
    if others := by_why[UnknownCause.OTHERS]:
        names = ", ".join(sorted({span.like.resource for span in others}))
        yield (
            f"use of {names} by others was not collected: its unused part is counted as in the last pass,"
            f" and may have cost {_bounds(others, '')}"
        )
    if recounted := by_why[UnknownCause.RECOUNTED]:
        names = ", ".join(sorted({span.like.resource for span in recounted}))
        yield (
            f"the count of {names} changed between two passes: the old count is charged until the new one was seen,"
            f" and its unused part may have cost {_bounds(recounted, '')}"
        )


def _bounds(spans: Sequence[UnknownSpan], why_less: str = " (a first hour may be free)") -> str:
    figure = Figure()
    for span in spans:
        figure.add_unknown(span)
    text = f"at most {money.usd(figure.too_little, money.CENT)} USD more"
    if figure.unbounded:
        text += f", and the cost of {figure.unbounded} without a price"
    if figure.too_much:
        text += f", or {money.usd(figure.too_much, money.CENT)} USD less{why_less}"
    return text


def by_team(report: Report, known: WindowFacts) -> Report:
    """The report with the cost of shared pools split over their teams."""
    shares: list[UseShare] = []
    notes: list[str] = []
    for pool in sorted(known.facts.declared.split_by_team & report.groups[By.POOL].keys()):
        parts = split_by_engine_seconds(pool, report.groups[By.POOL][pool], ledger_teams.by_team(known.uses, pool))
        if not parts:
            notes.append(f"pool {pool}: the router counted no engine seconds by team; its owner is charged all of it")
        shares += parts
    groups = report.groups | ({By.TEAM: _regrouped(report, shares, lambda cell: cell[3])} if shares else {})
    return replace(report, groups=groups, teams=shares, notes=(*report.notes, *notes))


def by_adapter(report: Report, known: WindowFacts) -> Report:
    """The report with the cost of pools with LoRA adapters split over model, adapters and unrecorded requests."""
    declared = (known.facts.declared, *(period.declared for period in known.facts.periods))
    shares, notes = adapter_shares(report.groups[By.POOL], known.uses, declared)
    groups = report.groups | ({By.ADAPTER: _regrouped(report, shares, lambda _: NONE)} if shares else {})
    return replace(report, groups=groups, adapters=shares, notes=(*report.notes, *notes))


def _regrouped(
    report: Report, shares: Sequence[UseShare], name_of: Callable[[tuple[str, ...]], str]
) -> dict[str, Figure]:
    """Figures by the name of each share, and by the name of each cell of the other pools."""
    split = {share.pool for share in shares}
    found: dict[str, Figure] = {}
    for cell, figure in report.cells.items():
        if cell[0] not in split:
            found.setdefault(name_of(cell), Figure()).include(figure)
    for share in shares:
        found.setdefault(share.name, Figure()).include(share.figure)
    return found


def _is_frozen(one: BillConfirmation, confirmed: Iterable[BillConfirmation]) -> bool:
    """Whether this bill, or another that covers its span, closed the span."""
    return any(
        other.facts is not None and other.since <= one.since and one.until <= other.until for other in confirmed
    )


def _covered(scope: ReportScope, confirmed: Iterable[BillConfirmation]) -> bool:
    """Whether bills confirm the whole window."""
    at = scope.since
    for one in confirmed:  # in the order of their start
        if one.since <= at:
            at = max(at, one.until)
    return at >= scope.until


def build(  # noqa: PLR0913 - the facts of a report
    scope: ReportScope,
    facts: LedgerFacts,
    book: PriceBook,
    engines: Sequence[EngineTokens],
    last: CostPass | None,
    energy: Sequence[InstanceEnergy] = (),
) -> Report:
    """Compute a report from facts."""
    bill = list(charges(facts, book, scope.since, scope.until, allow_unpriced=scope.allow_unpriced))
    cells: defaultdict[tuple[str, ...], Figure] = defaultdict(Figure)
    for charge in bill:
        cells[_cell(charge)].add(charge)
    spans = list(unknown_spans(facts, book, scope.since, scope.until, scope.now))
    for span in spans:
        cells[_cell(span.like)].add_unknown(span)
    runs = {run.instance_id: run for part, *_ in facts.over(scope.since, scope.until) for run in part.runs}
    served_by: list[Run | None] = []
    without_cost = Tokens()
    for engine in engines:
        run = runs.get(engine.instance_id)
        served_by.append(None if run is None else with_owner_at(run, facts.periods, engine.last.at))
        if (held := served_by[-1]) is None:
            without_cost += engine.tokens
        else:
            cells[_cell(held)].tokens += engine.tokens
    energies = [
        (None if run is None else with_owner_at(run, facts.periods, one.since), one)
        for one in energy
        for run in (runs.get(one.instance_id),)
        if run is None or not shares_devices(run.cloud, run.machine_type)
    ]
    for cell, used in energy_by_cell(_cell, bill, zip(engines, served_by, strict=True), energies).items():
        cells[cell].energy += used
    total, groups = _grouped(cells)
    total.without_cost = without_cost
    last_used = _last_used(bill)
    prices = sorted(last_used, key=lambda p: (p.sku, p.zone or "", p.valid_from))
    return Report(
        scope=scope,
        known_until=None if last is None else last.at,
        total=total,
        groups=groups,
        charges=bill,
        engines=engines,
        served_by=served_by,
        prices=prices,
        cells=dict(cells),
        unknown=spans,
        energies=energies,
        notes=(
            *_notes(scope, total, last),
            *energy_notes(energies),
            *_unpriced_notes(bill),
            *_price_notes(last_used),
        ),
    )


def _last_used(bill: Iterable[Charge]) -> dict[Price, datetime]:
    """Price to the last time of its use. Most charges share a price object, so its identity is compared first."""
    ends: dict[int, tuple[Price, datetime]] = {}
    for charge in bill:
        if charge.price is not None:
            known = ends.get(id(charge.price))
            if known is None or known[1] < charge.end:
                ends[id(charge.price)] = charge.price, charge.end
    found: dict[Price, datetime] = {}
    for price, end in ends.values():
        found[price] = max(end, found.get(price, end))
    return found


def _cell(it: Charge | Run) -> tuple[str, ...]:
    """The names of a charge or run in every grouping."""
    kind = it.capacity_type.value
    if isinstance(it, Charge) and it.kind is ChargeKind.SHARED:
        kind = ChargeKind.SHARED.value
    return (
        it.pool or NONE,
        it.model or NONE,
        kind,
        it.owner or NONE,
        it.zone or NONE,
        it.machine_type,
    )


_GROUPINGS: tuple[By, ...] = (By.POOL, By.MODEL, By.CAPACITY_TYPE, By.TEAM, By.ZONE, By.MACHINE_TYPE)
"""In the order of `_cell`."""


def _grouped(cells: Mapping[tuple[str, ...], Figure]) -> tuple[Figure, dict[By, dict[str, Figure]]]:
    total = Figure()
    groups: dict[By, defaultdict[str, Figure]] = {by: defaultdict(Figure) for by in By}
    for cell, figure in cells.items():
        total.include(figure)
        groups[By.ADAPTER][NONE].include(figure)
        for by, key in zip(_GROUPINGS, cell, strict=True):
            groups[by][key].include(figure)
    return total, {by: dict(group) for by, group in groups.items()}


def _notes(scope: ReportScope, total: Figure, last: CostPass | None) -> Iterable[str]:
    if last is None:
        yield "the ledger of this environment is empty: run `gpufleet watch cost`"
    elif last.at < min(scope.until, scope.now):
        yield f"the ledger ends at {last.at:%Y-%m-%dT%H:%M:%SZ}; later facts are not in these figures"
    tokens = total.served
    if tokens.resets:
        yield f"{tokens.resets} counter resets: tokens between the last reading and the reset are not counted"
    if tokens.late:
        yield f"{tokens.late} token differences span more than 15 minutes: exact in size, inexact in time"
    if tokens.unknown_before:
        yield f"{tokens.unknown_before} engines were first read long after their start: earlier tokens are unknown"
    if unknown_cost := total.without_cost.total:
        yield (
            f"{unknown_cost} tokens belong to instances that are not in the ledger, so their cost is unknown: only"
            " the total counts them, and its USD per million tokens leaves them out"
        )
    if total.coverage is not None and total.coverage < 0.9:
        yield f"{total.coverage:.0%} of the serving time was measured; the remainder counts as used"
    if total.spot_uncompared:
        yield "some spot time has no on-demand price for comparison; the spot saving excludes it"


def _unpriced_notes(bill: Iterable[Charge]) -> Iterable[str]:
    unpriced = [charge.priced_as for charge in bill if charge.amount is None]
    if unpriced:
        names = ", ".join(sorted(set(unpriced)))
        yield f"{len(unpriced)} charges have no price ({names}): every total is a lower bound"


def _price_notes(last_used: Mapping[Price, datetime]) -> Iterable[str]:
    for price, used in last_used.items():
        where = f"{price.sku} {price.zone or price.region}"
        if price.unverified:
            yield f"unverified price: {where} {price.usd_per_hour} USD/h ({price.source})"
        if price.note:
            yield f"{where}: {price.note}"
        if is_stale(price, used):
            yield f"stale price: {where}, last confirmed {price.as_of:%Y-%m-%d %H:%M} ({price.source})"
