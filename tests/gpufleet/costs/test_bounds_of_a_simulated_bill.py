"""Report bounds contain the bill of a simulated cloud, for any changes of settings and any gaps between passes.

The simulation uses only the documented rules of the product. A setting applies from the pass that first sees it;
the first one also applies before that pass. Use of a reservation by others applies until the next pass, except in
gaps.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import count, groupby, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine

from gpufleet.costs.commitments import DeclaredCosts, SharedCost
from gpufleet.costs.declarations import content_of
from gpufleet.costs.document import document
from gpufleet.costs.query import CostQuery
from gpufleet.costs.report import NONE, By, Report, ReportScope
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price, Rank
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import note_declared
from gpufleet.ledger.facts import EndCause, Reservation, Run, RunEnd
from gpufleet.ledger.reservations import note_reservations
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import PASSES
from gpufleet.prices.packaged import PackagedPrices
from tests.fixtures.costs.report_arithmetic import faults

T0 = datetime(2026, 11, 20, tzinfo=UTC)
REGION = "anywhere"
END, HOUR = 200_000, 3_600
"""The latest second of the last pass: two and a half days after the start."""
KNOWN, UNKNOWN = "known.xlarge", "unknown.xlarge"
RATES = {
    CapacityType.SPOT: (Decimal("0.36"), Decimal("0.5")),
    CapacityType.ON_DEMAND: (Decimal("0.72"), Decimal("0.9")),
}
CHANGE = 90_000
"""The second at which the cloud changes its prices."""
SECRET = Decimal(7)
"""USD per hour of resources without a price in any list."""
NAT, DISK = "aws:x:nat", "aws:x:disk"
ON_DEMAND, SPOT, RESERVED = CapacityType.ON_DEMAND, CapacityType.SPOT, CapacityType.RESERVED
POOLS = ("a", "b")
Bill = defaultdict[tuple[str, str], Decimal]
"""Maps (grouping, name) to dollar-seconds. The total has the key ("", "")."""


def when(second: int) -> datetime:
    return T0 + timedelta(seconds=second)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the fleet document declares at one time."""

    owners: Mapping[str, str] = field(default_factory=lambda: {"a": "search", "b": "research"})
    models: Mapping[str, str] = field(default_factory=lambda: {"a": "m/a", "b": "m/b"})
    most: Mapping[str, int] = field(default_factory=lambda: {"a": 4, "b": 2})
    nat: int = 2
    disk: int = 1
    usd: Mapping[str, Decimal] = field(default_factory=lambda: {NAT: Decimal("0.05"), DISK: Decimal("0.01")})
    """Stated prices of shared resources and of on-demand machines."""
    declared_instances: int | None = None
    """The number of instances of the reservation that the fleet declares. None: all of them."""

    def declared(self) -> DeclaredCosts:
        shared = [
            SharedCost(name="nat", sku=NAT, units=Decimal(self.nat)),
            SharedCost(name="disk", sku=DISK, units=Decimal(self.disk), per_instance=True),
        ]
        return DeclaredCosts(
            shared=[one for one in shared if one.units], weights=self.most, models=self.models, owners=self.owners,
            prices=[
                Price(sku=_sku(name), region=REGION, usd_per_hour=usd, source="stated", as_of=T0,
                      valid_from=T0 - timedelta(days=99), rank=Rank.OVERRIDE)
                for name, usd in self.usd.items()
            ],
        )  # fmt: skip


def _sku(name: str) -> str:
    return name if ":" in name else f"aws:ec2:{name}:on-demand"


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """An instance as its cloud records it."""

    name: str
    kind: CapacityType
    machine: str
    pool: str
    start: int
    end: int | None
    taken: bool
    dated: bool
    """Whether the cloud reports the end time."""

    def alive(self, at: int) -> bool:
        return self.start <= at and (self.end is None or at < self.end)


@dataclass(frozen=True, kw_only=True)
class SimulatedFleet:
    """A cloud, the settings of a fleet in it, and the times of the passes that read both."""

    passes: Sequence[int]
    records: Sequence[SimulatedRun]
    settings: Sequence[tuple[int, Settings]]
    """The settings with the second from which each applies. The first applies from 0."""
    begins: int
    counts: Sequence[tuple[int, int]]
    """The instance counts of the reservation with the second from which each applies. 0: it is cancelled."""
    others: Sequence[int]
    """How many instances others would use: a new number with each pass, and any number in gaps."""
    now: int

    def seen(self) -> "SimulatedFleet":
        """A copy without instances that start and end between two passes: bounds cover only what the ledger knows."""
        return replace(self, records=[record for record in self.records if any(map(record.alive, self.passes))])

    def pass_before(self, at: int) -> int:
        return max((pass_time for pass_time in self.passes if pass_time <= at), default=self.passes[0])

    def between_passes(self, at: int) -> tuple[int, int]:
        """The interval between two passes that contains `at`."""
        before = self.pass_before(at)
        return before, min((pass_time for pass_time in self.passes if pass_time > before), default=self.now + 1)

    @cached_property
    def kept(self) -> list[tuple[int, Settings]]:
        """The settings that the passes saw, each with the time of the first pass that saw it."""
        found: list[tuple[int, Settings]] = []
        for pass_time in self.passes:
            now = self.declared_at(pass_time)
            if not found or found[-1][1] != now:
                found.append((pass_time, now))
        return found

    def declared_at(self, at: int) -> Settings:
        return next(one for since, one in reversed(self.settings) if since <= at)

    def rule(self, at: int) -> Settings:
        """The settings that apply at a time."""
        kept = self.kept
        return next((one for since, one in reversed(kept) if since <= at), kept[0][1])

    def rate(self, name: str, kind: CapacityType, at: int) -> Decimal:
        """USD per hour of a machine, or of one unit of a shared resource."""
        kept = [*self.kept, (10**9, self.settings[-1][1])]
        stated = [one.usd.get(name) for since, one in kept if since <= at] or [kept[0][1].usd.get(name)]
        if kind is not SPOT and stated[-1] is not None:
            return stated[-1]
        if name == KNOWN:
            return RATES[SPOT if kind is SPOT else ON_DEMAND][at >= CHANGE]
        later = [one.usd[name] for since, one in kept if since > at and name in one.usd]
        return later[0] if later else SECRET

    def unpriced(self) -> bool:
        """Whether any resource has no price at some time."""
        times = [0, *self.edges(0, self.now)]
        names = {NAT, DISK} | {record.machine for record in self.records}
        return any(self.rate(name, ON_DEMAND, at) == SECRET for name in names for at in times)

    def count_at(self, at: int) -> int:
        """The number of instances of the reservation."""
        return next((n for since, n in reversed(self.counts) if since <= at), 0)

    def elsewhere(self, at: int) -> int:
        """How many instances of the reservation others use. In a gap the number changes every half hour."""
        pass_time = self.pass_before(at)
        following = min((one for one in self.passes if one > pass_time), default=self.now)
        if following - pass_time > HOUR or following == self.now:
            step = max(at - at % 1_800, self.begins)
        elif pass_time < self.begins < following:  # the first reading applies from the start of the reservation
            return self.elsewhere(following)
        else:
            step = pass_time
        used = sum(record.kind is RESERVED and record.alive(step) for record in self.records)
        return max(0, min(self.others[step % len(self.others)], self.count_at(step) - used))

    def edges(self, since: int, until: int) -> list[int]:
        """Times at which any rate may change."""
        found = {CHANGE, *self.passes, *range(0, self.now, 1_800)}
        found |= {at for record in self.records for at in (record.start, record.end or 0)}
        found |= {at for at, _ in (*self.settings, *self.counts)}
        return sorted({since, until, *(at for at in found if since < at < until)})

    def bill(self, since: int, until: int) -> Bill:
        """What the cloud bills for a window by its rules, in dollar-seconds."""
        found: Bill = defaultdict(Decimal)
        until = min(until, self.now)
        for start, end in pairwise(self.edges(since, until) if since < until else ()):
            for pool, model, owner, usd in self._rates(start):
                _add(found, pool, model, owner, usd * (end - start))
        for record in self.records:
            young = (
                record.taken and record.kind is SPOT and record.end is not None and record.end - record.start < HOUR
            )
            if young and record.end is not None and since <= record.end < until:
                for start, end in pairwise(self.edges(record.start, record.end)):
                    applied, usd = self.rule(start), self.rate(record.machine, record.kind, start)
                    _add(
                        found,
                        record.pool,
                        applied.models[record.pool],
                        applied.owners[record.pool],
                        -usd * (end - start),
                    )
        return found

    def _rates(self, at: int) -> Iterator[tuple[str, str, str, Decimal]]:
        """Pool, model, owner and USD per hour of everything that costs money at a time."""
        applied = self.rule(at)
        for record in self.records:
            if record.alive(at):
                usd = self.rate(record.machine, record.kind, at) + applied.disk * self.rate(DISK, ON_DEMAND, at)
                yield record.pool, applied.models[record.pool], applied.owners[record.pool], usd
        nat = self.rate(NAT, ON_DEMAND, at)
        if nat == SECRET:  # a cost without a price is not split over pools
            yield NONE, NONE, NONE, applied.nat * nat
        for pool in POOLS if nat != SECRET else ():
            share = Decimal(applied.most[pool]) / sum(applied.most.values())
            yield pool, applied.models[pool], applied.owners[pool], applied.nat * nat * share
        total = self.count_at(at)
        used = sum(record.kind is RESERVED and record.alive(at) for record in self.records)
        free = max(0, total - used - self.elsewhere(at))
        if free:
            first = min(
                pass_time for pass_time in self.passes if pass_time >= self.begins
            )  # its settings apply from the start
            declared_instances = self.declared_at(max(self.pass_before(at), first)).declared_instances
            part = 1 if declared_instances is None else Decimal(min(declared_instances, total)) / total
            yield "a", applied.models["a"], applied.owners["a"], free * part * self.rate(KNOWN, RESERVED, at)


def _add(bill: Bill, pool: str, model: str, owner: str, usd: Decimal) -> None:
    for key in (("", ""), ("pool", pool), ("model", model), ("team", owner)):
        bill[key] += usd


def write(connection: Connection, fleet: str, simulation: SimulatedFleet) -> None:
    """Write what the passes would leave in the ledger."""
    found = [_run(fleet, record, simulation) for record in simulation.records]
    facts.add_runs(connection, [run for run, _ in found])
    facts.add_ends(connection, [end for _, ends in found for end in ends])
    for since, applied in simulation.kept:
        note_declared(connection, fleet, when(since), content_of(applied.declared()))
    paid = [
        (_reservation(fleet, simulation, pass_time), pass_time)
        for pass_time in simulation.passes
        if simulation.count_at(pass_time)
    ]
    for _, alike in groupby(paid, key=lambda one: one[0]):
        times = [pass_time for _, pass_time in alike]
        for pass_time in sorted({times[0], times[-1]}):
            note_reservations(
                connection, [replace(_reservation(fleet, simulation, pass_time), last_seen_at=when(pass_time))]
            )
    empty = {"metrics_from": None, "metrics_until": None, "notes": "", "priced": 1, "paid": 1}
    facts.merge(
        connection,
        PASSES,
        [{"environment": fleet, "at": when(pass_time), "host": "h", **empty} for pass_time in simulation.passes],
    )


def _reservation(fleet: str, simulation: SimulatedFleet, pass_time: int) -> Reservation:
    applied, others = simulation.declared_at(pass_time), simulation.elsewhere(pass_time)
    return Reservation(
        cloud=Cloud.AWS, reservation=f"cr-{fleet}", started_at=when(simulation.begins),
        instances=simulation.count_at(pass_time),
        environment=fleet, region=REGION, zone="z", machine_type=KNOWN, last_seen_at=T0, pool="a",
        model=applied.models["a"], owner=applied.owners["a"], elsewhere=others, seats=applied.declared_instances,
        accounts={"123": others} if others > 1 else None,
    )  # fmt: skip


def _run(fleet: str, record: SimulatedRun, simulation: SimulatedFleet) -> tuple[Run, list[RunEnd]]:
    alive = [pass_time for pass_time in simulation.passes if record.alive(pass_time)]
    applied, name = simulation.declared_at(alive[0]), f"{record.name}-{fleet}"
    run = Run(
        cloud=Cloud.AWS, instance_id=name, started_at=when(record.start), environment=fleet, region=REGION, zone="z",
        machine_type=record.machine, capacity_type=record.kind, last_seen_at=when(alive[-1]), pool=record.pool,
        model=applied.models[record.pool], owner=applied.owners[record.pool],
        reservation=f"cr-{fleet}" if record.kind is RESERVED else None,
    )  # fmt: skip
    missed = [pass_time for pass_time in simulation.passes if pass_time > alive[-1]]
    if not missed or record.end is None:
        return run, []
    cause = EndCause.PREEMPTED if record.taken else EndCause.ENDED if record.dated else EndCause.ABSENT
    at = record.end if record.dated else missed[0]
    ended = RunEnd(
        cloud=Cloud.AWS,
        instance_id=name,
        started_at=run.started_at,
        ended_at=when(at),
        cause=cause,
        exact=record.dated,
    )
    return run, [ended]


SECONDS = st.integers(0, END)
COUNTS = st.integers(2, 6)


@st.composite
def simulated_fleets(draw: st.DrawFn) -> SimulatedFleet:
    """Draws passes with gaps, and arbitrary changes between them."""
    every = draw(st.sampled_from([600, 3_000, 12_000]))
    gaps = draw(st.lists(st.tuples(SECONDS, st.integers(HOUR, 90_000)), max_size=3))
    last = draw(st.integers(END // 2, END))
    passes = [
        at
        for at in range(0, last + 1, every)
        if at == 0 or not any(start <= at < start + length for start, length in gaps)
    ]
    begins = draw(st.one_of(st.just(0), SECONDS))
    reserved, records = 0, list[SimulatedRun]()
    for number in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from([ON_DEMAND, SPOT, RESERVED]))
        reserved += kind is RESERVED
        start, length = draw(SECONDS), draw(st.one_of(st.none(), st.integers(60, END), st.integers(60, 5_000)))
        records.append(
            SimulatedRun(
                name=f"i-{number}",
                kind=ON_DEMAND if kind is RESERVED and reserved > 2 else kind,
                # a credit without a price has no bounds
                machine=KNOWN if kind in (SPOT, RESERVED) else draw(st.sampled_from([KNOWN, UNKNOWN])),
                pool="a" if kind is RESERVED else draw(st.sampled_from(POOLS)),
                start=start, end=None if length is None else start + length,
                taken=kind is SPOT and draw(st.booleans()), dated=draw(st.booleans()),
            )
        )  # fmt: skip
    return SimulatedFleet(
        passes=passes, records=records, begins=begins, counts=draw(_counts(passes, begins)),
        settings=draw(_settings()),
        others=draw(st.lists(st.integers(0, 6), min_size=1, max_size=7)), now=last + draw(st.integers(0, 50_000)),
    ).seen()  # fmt: skip


@st.composite
def _counts(draw: st.DrawFn, passes: Sequence[int], begins: int) -> list[tuple[int, int]]:
    """The instance counts of the reservation. A count changes at most once between two passes, and only where a
    pass sees it."""
    first = next((pass_time for pass_time in passes if pass_time >= begins), None)
    if first is None:
        return []
    found = [(begins, draw(COUNTS))]
    for at in sorted(draw(st.lists(SECONDS, max_size=3))):
        before = max(pass_time for pass_time in passes if pass_time <= at)
        if at > first and at <= passes[-1] and found[-1][0] <= before:
            found.append((at, draw(st.one_of(COUNTS, st.just(0)))))
            if not found[-1][1]:
                break
    return found


@st.composite
def _settings(draw: st.DrawFn) -> list[tuple[int, Settings]]:
    one = Settings(declared_instances=draw(st.one_of(st.none(), st.integers(1, 6))))
    found = [(0, one)]
    names, owners = st.sampled_from(["m/a", "m/b", "m/c"]), st.sampled_from(["search", "research", "others"])
    dollars = st.sampled_from([Decimal("0.25"), Decimal("0.75"), Decimal(2)])
    changes = {
        "owners": st.builds(lambda a, b: {"a": a, "b": b}, owners, owners),
        "models": st.builds(lambda a, b: {"a": a, "b": b}, names, names),
        "most": st.builds(lambda a, b: {"a": a, "b": b}, st.integers(1, 9), st.integers(0, 9)),
        "nat": st.integers(0, 3),
        "disk": st.integers(0, 3),
        "usd": st.dictionaries(st.sampled_from([NAT, DISK, KNOWN, UNKNOWN]), dollars),
        "declared_instances": st.one_of(st.none(), st.integers(1, 6)),
    }
    for at in sorted(draw(st.lists(st.integers(1, END), max_size=5))):
        name = draw(st.sampled_from(sorted(changes)))
        one = replace(one, **{name: draw(changes[name])})
        found.append((at, one))
    return found


_fleets = count()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """One ledger for all examples. Each example is a separate fleet."""
    engine = open_ledger(f"sqlite:///{tmp_path_factory.mktemp('bounds')}/ledger.db")
    prices = [
        Price(
            sku=f"aws:ec2:{KNOWN}:{kind}", region=REGION, usd_per_hour=usd, source="s", as_of=when(END), valid_from=at
        )
        for kind, rates in RATES.items()
        for usd, at in zip(rates, (T0 - timedelta(days=9), when(CHANGE)), strict=True)
    ]
    with writing(engine) as connection:
        facts.add_prices(connection, prices)
    return engine


def reports(engine: Engine, simulation: SimulatedFleet, windows: Sequence[tuple[int, int]]) -> list[Report]:
    fleet = f"fleet-{next(_fleets)}"
    with writing(engine) as connection:
        write(connection, fleet, simulation)
    today = simulation.settings[-1][1].declared()
    spans = [(when(since), when(until)) for since, until in windows]
    query = CostQuery(engine, fleet, REGION, overrides=today.prices, packaged=PackagedPrices(), declared=today)
    query.read(spans)
    scope = ReportScope(fleet=fleet, environment="e", cloud="aws", region=REGION, since=T0, until=T0,
        now=when(simulation.now),
                  allow_unpriced=True)  # fmt: skip
    return [query.report(replace(scope, since=since, until=until)) for since, until in spans]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(simulation=simulated_fleets(), cuts=st.lists(st.integers(1, END), max_size=3, unique=True).map(sorted))
def test_bounds_contain_the_bill_by_pool_model_and_team(
    ledger: Engine, simulation: SimulatedFleet, cuts: list[int]
) -> None:
    parts = [*pairwise([0, *cuts, END + 60_000])]
    # Bounds of one cause hide those of another, so each interval with a change is also checked alone.
    changes = sorted(
        {simulation.between_passes(at) for at, _ in simulation.counts}
        | {max(pairwise(simulation.passes), key=_length, default=(0, 1))}
    )
    windows = [(0, END + 60_000), *parts, *changes]
    whole, *found_of = reports(ledger, simulation, windows)
    of_parts = found_of[: len(parts)]
    assert money.total(part.total.allocation for part in of_parts) == whole.total.allocation
    for window, found in zip(windows, [whole, *found_of], strict=True):
        assert faults(document(found)) == [], window
        truth = simulation.bill(*window)
        for by in (By.POOL, By.MODEL, By.TEAM):
            names = {name for kind, name in truth if kind == by and truth[kind, name]}
            assert names <= found.groups[by].keys(), window
            for name, figure in found.groups[by].items():
                _holds(figure.least, truth[by.value, name], figure.most, (window, by, name))
        _holds(found.total.least, truth["", ""], found.total.most, (window,))
        assert found.total.most is not None or simulation.unpriced()


@pytest.mark.parametrize("begins", [2_000, 3_000, 6_000, 9_000])
@pytest.mark.parametrize("end", [3_500, 8_000, 12_500, None])
def test_bounds_contain_the_bill_of_an_instance_that_runs_before_its_reservation_starts(
    ledger: Engine, begins: int, end: int | None
) -> None:
    record = SimulatedRun(
        name="i-0", kind=RESERVED, machine=KNOWN, pool="a", start=1_000, end=end, taken=False, dated=False
    )
    simulation = SimulatedFleet(
        passes=[0, 3_000, 13_000],
        records=[record],
        settings=[(0, Settings())],
        begins=begins,
        counts=[(begins, 1)],
        others=[0],
        now=14_000,
    )
    (found,) = reports(ledger, simulation, [(0, 14_000)])
    _holds(found.total.least, simulation.bill(0, 14_000)["", ""], found.total.most, begins)


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _holds(least: Decimal, truth: Decimal, most: Decimal | None, what: object) -> None:
    # parts of a price are kept in nano-dollars
    assert least - 1 <= truth, what
    assert most is None or truth <= most + 1, what
