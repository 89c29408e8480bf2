"""A pass of the cost watchdog into a real SQLite ledger, and the report that results from it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Engine, select

from app.cost_sources import facts_of
from gpufleet.costs.collector import OVERLAP, Collected, CollectorSources, FleetFacts, PoolFacts, collect
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.declarations import read
from gpufleet.costs.document import document
from gpufleet.costs.query import CostQuery
from gpufleet.costs.render import as_text
from gpufleet.costs.report import By, Report, ReportScope
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slots import ActivitySample, Measure
from gpufleet.domain import money, tags
from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.domain.policies import IdlePolicy
from gpufleet.domain.prices import Price
from gpufleet.ledger.closed_periods import BillConfirmation, add_closed_period
from gpufleet.ledger.database import writing
from gpufleet.ledger.decisions import record_outcome
from gpufleet.ledger.declared import declarations
from gpufleet.ledger.facts import NOT_MISSED, EndCause, Run
from gpufleet.ledger.history import runs as read_runs
from gpufleet.ledger.reservations import reservations
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import METADATA, RESERVATION_READS
from gpufleet.prices.packaged import PackagedPrices
from tests.fixtures.costs.metric_names import NAMES
from tests.fixtures.watchdogs.plain import document as fleet_document

Item = TypeVar("Item")
T0 = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
FLEET = "aws/test/us-east-1"
FACTS = FleetFacts(
    name=FLEET,
    environment="test",
    pools={"chat": PoolFacts(model="models/chat", owner="search", reservations={"cr-1": 2})},
    machine_types=("g6.xlarge",),
    measure=Measure(),
    host="here",
)


@dataclass
class FakeSources:
    """A fake cloud and a fake metrics store."""

    records_now: list[InstanceRecord] = field(default_factory=list[InstanceRecord])
    endings_now: list[InstanceEnd] = field(default_factory=list[InstanceEnd])
    paid_now: list[PaidCapacity] = field(default_factory=list[PaidCapacity])
    market_now: list[Price] = field(default_factory=list[Price])
    usage_now: Mapping[str, int] | None = None
    series_now: list[RawSeries] = field(default_factory=list[RawSeries])
    broken: set[str] = field(default_factory=set[str])
    malformed: dict[str, str] = field(default_factory=dict[str, str])
    """Instance id to the reason why a listed instance cannot be parsed."""
    asked_since: list[datetime] = field(default_factory=list[datetime])
    """The start of the price window that each pass asks for."""

    def history(self) -> InstanceHistory:
        readable = [record for record in self.records_now if record.instance.id not in self.malformed]
        return InstanceHistory(records=self._or_raise("history", readable), errors=self.malformed)

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        assert zones, "requested only if an instance is missing"
        return self._or_raise("endings", self.endings_now)

    def paid(self) -> Sequence[PaidCapacity]:
        return self._or_raise("paid", self.paid_now)

    def used_by(self, reservation: str) -> Mapping[str, int] | None:
        assert reservation == "cr-1"
        return self._or_raise("usage", [self.usage_now])[0]

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        self.asked_since.append(since)
        return self._or_raise("prices", [replace(p, as_of=until) for p in self.market_now if p.valid_from <= until])

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[RawSeries]:
        cut = [RawSeries(s.labels, [x for x in s.samples if since <= x.at <= until]) for s in self.series_now]
        return self._or_raise("samples", [s for s in cut if s.samples])

    def as_collector_sources(self) -> CollectorSources:
        return CollectorSources(history=self, paid=self, market=self, samples=self, names=NAMES)

    def _or_raise(self, what: str, value: list[Item]) -> list[Item]:
        if what in self.broken:
            raise OSError(f"{what} is down")
        return value


def record(name: str, start: float, capacity: CapacityType, **more: object) -> InstanceRecord:
    instance = Instance(
        id=name,
        cloud=Cloud.AWS,
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        capacity_type=capacity,
        state=InstanceState.RUNNING,
        launched_at=at(start),
        environment="test",
        pool="chat",
        reservation="cr-1" if capacity is CapacityType.RESERVED else None,
    )
    return replace(InstanceRecord(instance=instance), **more)  # pyright: ignore[reportArgumentType]


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def series(name: str, instance: str, values: Sequence[tuple[float, float]], **labels: str) -> RawSeries:
    known = {"__name__": name, "instance_id": instance, "instance": "10.0.0.1:8000", "environment": "test"}
    return RawSeries(known | labels, [ActivitySample(at(second), value) for second, value in values])


def engine_series(
    instance: str, every: float, until: float, tokens_per_second: float, start: float
) -> list[RawSeries]:
    """Series of an engine and its GPU that work evenly from `start`."""
    times = [start + every * n for n in range(int((until - start) / every) + 1)]
    count = [(t, (t - start) * tokens_per_second) for t in times]
    began = (T0 + timedelta(seconds=start)).timestamp()
    return [
        series("prompt", instance, [(t, 2 * v) for t, v in count], engine="0", model_name="chat"),
        series("cached", instance, [(t, v / 2) for t, v in count], engine="0", model_name="chat"),
        series("generation", instance, count, engine="0", model_name="chat"),
        series("process_start", instance, [(t, began) for t in times]),
        series("running", instance, [(t, float(tokens_per_second > 0)) for t in times], engine="0"),
        series("gpu", instance, [(t, 0.5 if tokens_per_second else 0.0) for t in times], gpu="0"),
    ]


@pytest.fixture
def ledger(tmp_path: Path) -> Engine:
    return open_ledger(f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def sources() -> FakeSources:
    """A busy reserved instance and an idle spot instance, both first seen after an hour."""
    return FakeSources(
        records_now=[record("i-reserved", 0, CapacityType.RESERVED), record("i-spot", 600, CapacityType.SPOT)],
        paid_now=[
            PaidCapacity(
                cloud=Cloud.AWS,
                reservation="cr-1",
                region="us-east-1",
                zone="us-east-1a",
                machine_type="g6.xlarge",
                instances=1,
                started_at=at(-600),
            )
        ],
        market_now=[
            Price(
                sku="aws:ec2:g6.xlarge:spot",
                region="us-east-1",
                zone="us-east-1a",
                usd_per_hour=Decimal("0.3"),
                valid_from=at(-7200),
                as_of=at(-7200),
                source="market",
            )
        ],
        series_now=[
            *engine_series("i-reserved", 10, 3600, 100, 60),
            *engine_series("i-spot", 10, 3600, 0, 700),
        ],
    )


def report(ledger: Engine, since: float = -3600, until: float = 3601) -> Report:
    scope = ReportScope(
        fleet=FLEET,
        environment="test",
        cloud="aws",
        region="us-east-1",
        since=at(since),
        until=at(until),
        now=at(4000),
    )
    query = CostQuery(ledger, scope.fleet, scope.region, packaged=PackagedPrices())
    query.read([(scope.since, scope.until)])
    return query.report(scope)


def one_pass(ledger: Engine, sources: FakeSources, second: float = 3600) -> Collected:
    return collect(ledger, sources.as_collector_sources(), FACTS, at(second))


def dump(ledger: Engine) -> dict[str, list[tuple[object, ...]]]:
    """Every fact in the ledger, without the records of passes."""
    tables = [t for t in METADATA.sorted_tables if t.name not in ("passes", "outbox")]
    with ledger.connect() as connection:
        return {t.name: sorted(tuple(row) for row in connection.execute(select(t))) for t in tables}


def test_pass_becomes_a_report_that_can_be_recomputed(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources)
    found = document(report(ledger))
    total = found["total"]
    # reserved: 3600 s at 0.8048 (packaged list price), unused for 600 s before; spot: 3000 s at 0.3
    assert Decimal(total["usd"]) == pytest.approx(
        Decimal("0.8048") * 4200 / 3600 + Decimal("0.25"), abs=Decimal("1e-8")
    )
    parts = ("usd_used", "usd_idle", "usd_starting", "usd_unused_reservation", "usd_shared")
    assert sum(Decimal(total[part]) for part in parts) == pytest.approx(Decimal(total["usd"]), abs=Decimal("1e-8"))
    by_hand = sum(Decimal(row["seconds"]) * Decimal(row["usd_per_hour"]) / 3600 for row in found["charges"])
    assert by_hand == pytest.approx(Decimal(total["usd"]), abs=Decimal("1e-8"))
    assert total["tokens"]["prompt"] == 2 * 354_000 and total["tokens"]["generation"] == 354_000
    blended = Decimal(total["usd"]) / (3 * 354_000) * 1_000_000
    assert Decimal(total["usd_per_million_tokens"]["blended"]) == pytest.approx(blended, abs=Decimal("1e-8"))
    assert {row["source"] for row in found["prices"]} == {"market", "packaged: karpenter-provider-aws"}


def test_idle_starting_and_unused_time_are_distinguished(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources)
    groups = report(ledger).groups[By.CAPACITY_TYPE]
    spot, reserved = document(report(ledger))["by"]["capacity-type"]["spot"], groups["reserved"]
    assert spot["seconds"] == {"idle": "2900.000000", "starting": "100.000000"}
    assert Decimal(spot["spot_saving_usd"]) == pytest.approx(Decimal("0.5048") * 3000 / 3600, abs=Decimal("1e-8"))
    assert spot["usd_per_million_tokens"]["blended"] is None
    assert {state.value: time.total_seconds() for state, time in reserved.times.items() if time} == {
        "unused": 600,
        "starting": 60,
        "used": 3540,
    }


@pytest.mark.parametrize("role", [tags.CONTROL, tags.ROUTER])
def test_control_host_and_routers_are_shared_costs_and_not_runs(
    ledger: Engine, sources: FakeSources, role: str
) -> None:
    one_pass(ledger, sources)
    before = report(ledger).total
    found = record("i-control-host", 0, CapacityType.ON_DEMAND)
    control_host = replace(found.instance, machine_type="m6i.large", pool=None, tags={tags.ROLE: role})
    sources.records_now.append(replace(found, instance=control_host))
    one_pass(ledger, sources)
    with ledger.connect() as connection:
        assert {run.instance_id for run in read_runs(connection, FLEET, at(-1), at(9000))} == {"i-reserved", "i-spot"}
    assert report(ledger).total == before, "m6i.large has no price here, and needs none"


def test_instance_of_an_unknown_pool_is_charged(ledger: Engine, sources: FakeSources) -> None:
    found = record("i-astray", 0, CapacityType.ON_DEMAND)
    sources.records_now.append(replace(found, instance=replace(found.instance, pool=None)))
    one_pass(ledger, sources)
    with ledger.connect() as connection:
        assert "i-astray" in {run.instance_id for run in read_runs(connection, FLEET, at(-1), at(9000))}


def test_repeated_late_and_parallel_passes_leave_the_same_rows(tmp_path: Path, sources: FakeSources) -> None:
    once, often = (open_ledger(f"sqlite:///{tmp_path}/{name}.db") for name in ("once", "often"))
    one_pass(once, sources)
    for second in (1800, 3600, 3000, 3600):
        one_pass(often, sources, second)
    first, second = dump(once), dump(often)
    for name in ("runs", "run_ends", "activity_hours", RESERVATION_READS.name):
        assert first[name] == second[name], name
    assert document(report(once))["total"] == document(report(often))["total"]


@pytest.mark.parametrize(
    ("available", "elsewhere"),
    [
        pytest.param(3, 0, id="used only by this fleet"),
        pytest.param(1, 2, id="two used by others"),
        pytest.param(4, 0, id="own instance not counted yet"),
        pytest.param(None, 0, id="the cloud does not report it"),
    ],
)
def test_use_of_a_reservation_by_others_is_recorded(
    ledger: Engine, sources: FakeSources, available: int | None, elsewhere: int
) -> None:
    sources.paid_now = [replace(sources.paid_now[0], instances=4, available=available)]
    one_pass(ledger, sources)
    with ledger.connect() as connection:
        (found,) = reservations(connection, FLEET, at(0), at(3600))
    assert (found.instances, found.elsewhere, found.seats) == (4, elsewhere, 2)


OWN, OTHER = "111111111111", "222222222222"


@pytest.mark.parametrize(
    ("used", "accounts", "text"),
    [
        pytest.param({OWN: 1, OTHER: 2}, {OTHER: 2}, f"account {OTHER}: 2.3", id="another account"),
        pytest.param({OWN: 3}, {OWN: 2}, f"account {OWN}: 2.3", id="another fleet of this account"),
        pytest.param({OWN: 2, OTHER: 1}, {OTHER: 1, OWN: 1}, f"account {OWN}: 1.2, account {OTHER}: 1.2", id="both"),
        pytest.param({OWN: 1, OTHER: 5}, None, "other accounts: 2.3", id="of another time"),
        pytest.param(None, None, "other accounts: 2.3", id="not allowed"),
    ],
)
def test_accounts_that_use_a_reservation_are_named_where_the_cloud_reports_them(
    ledger: Engine, sources: FakeSources, used: dict[str, int] | None, accounts: dict[str, int] | None, text: str
) -> None:
    sources.paid_now = [replace(sources.paid_now[0], instances=4, available=1)]
    sources.usage_now = used
    for second in (3000, 3600):
        collect(ledger, sources.as_collector_sources(), replace(FACTS, account=OWN), at(second))
    with ledger.connect() as connection:
        (found,) = reservations(connection, FLEET, at(0), at(3600))
    assert (found.elsewhere, found.accounts) == (2, accounts)
    made = report(ledger)
    assert f"2.3 instance-hours were used outside this fleet ({text})" in " ".join(made.notes)
    (row,) = document(made)["reservations"]
    named = [(None, 2)] if accounts is None else sorted(accounts.items())
    assert row["used_elsewhere_by"] == [{"account": account, "instances": count} for account, count in named]


def test_unreadable_use_by_account_is_reported_and_requested_again(ledger: Engine, sources: FakeSources) -> None:
    sources.paid_now = [replace(sources.paid_now[0], instances=4, available=1)]
    sources.broken = {"usage"}
    note = "use of reservation cr-1 by account: usage is down; the next pass retries"
    assert one_pass(ledger, sources, 3600).notes == (note,)
    sources.broken, sources.usage_now = set(), {OTHER: 2}
    assert one_pass(ledger, sources, 3900).notes == ()


def test_reservation_ends_at_the_first_pass_that_lists_reservations_without_it(
    ledger: Engine, sources: FakeSources
) -> None:
    sources.paid_now = [replace(sources.paid_now[0], instances=3)]
    one_pass(ledger, sources, 1200)

    def missed() -> datetime | None:
        with ledger.connect() as connection:
            (found,) = reservations(connection, FLEET, at(1500), at(3600))
        return found.missed_at

    sources.broken = {"paid"}
    one_pass(ledger, sources, 1800)
    assert missed() == NOT_MISSED
    assert bounds_of(ledger) == [("not_observed", at(1200), at(3601), 0, 2)], "no more is known of it"
    sources.broken, sources.paid_now = set(), []
    for second in (2400, 3000):
        one_pass(ledger, sources, second)
    assert missed() == at(2400)
    assert bounds_of(ledger) == [("undated_end", at(1200), at(2400), 0, 2)]


def test_count_that_changes_between_two_passes_has_bounds(ledger: Engine, sources: FakeSources) -> None:
    for second, instances in ((1200, 3), (2400, 5), (3600, 5)):
        sources.paid_now = [replace(sources.paid_now[0], instances=instances)]
        pools = {"chat": replace(FACTS.pools["chat"], reservations={"cr-1": 5})}
        collect(ledger, sources.as_collector_sources(), replace(FACTS, pools=pools), at(second))
    assert bounds_of(ledger) == [
        ("count_not_dated", at(1200), at(2400), 2, 4),
        ("not_observed", at(3600), at(3601), 0, 4),
    ]


def bounds_of(ledger: Engine) -> list[tuple[str, datetime, datetime, Decimal, Decimal]]:
    """Cause, start, end and the least and most paid unused instances of each interval in which the count is
    unknown."""
    found: list[tuple[str, datetime, datetime, Decimal, Decimal]] = []
    for span in report(ledger).unknown:
        if span.like.resource == "cr-1":
            assert span.like.price is not None and span.most is not None
            cost_of_one = money.dollar_seconds(span.like.price.usd_per_hour, span.end - span.start)
            found.append((span.why, span.start, span.end, span.least / cost_of_one, span.most / cost_of_one))
    return found


def test_pass_records_declarations_only_after_a_change(ledger: Engine, sources: FakeSources) -> None:
    for second, owner in ((1800, "search"), (2400, "search"), (3600, "others")):
        declared = DeclaredCosts(owners={"chat": owner}, gpu_active_below={"chat": 0.02})
        collect(ledger, sources.as_collector_sources(), replace(FACTS, declared=declared), at(second))
    with ledger.connect() as connection:
        found = read(declarations(connection, FLEET))
    assert [(one.at, one.declared.owners) for one in found] == [
        (at(1800), {"chat": "search"}),
        (at(3600), {"chat": "others"}),
    ]
    assert found[0].declared.gpu_active_below == {"chat": 0.02}


def test_changed_threshold_does_not_reclassify_past_hours(ledger: Engine, sources: FakeSources) -> None:
    def floor(value: float) -> FleetFacts:
        return replace(FACTS, pools={"chat": replace(FACTS.pools["chat"], gpu_active_below=value)})

    quiet = [one for one in engine_series("i-spot", 10, 3600, 0, 700) if one.labels["__name__"] != "gpu"]
    sources.series_now = [*quiet, series("gpu", "i-spot", [(n, 0.05) for n in range(700, 3600, 10)], gpu="0")]
    collect(ledger, sources.as_collector_sources(), floor(0.01), at(3600))
    before = document(report(ledger, until=3600))["by"]["capacity-type"]["spot"]
    assert Decimal(before["usd_used"]) > 0
    collect(ledger, sources.as_collector_sources(), floor(0.5), at(7200))
    assert document(report(ledger, until=3600))["by"]["capacity-type"]["spot"] == before


def test_pass_writes_no_activity_into_a_closed_period(ledger: Engine, sources: FakeSources) -> None:
    sources.broken = {"samples"}
    one_pass(ledger, sources)
    sources.broken = set()
    with writing(ledger) as connection:
        bill = BillConfirmation(
            fleet=FLEET, since=at(905), until=at(1_805), digest="d", form="f", billed_usd=Decimal(1),
            computed_usd=Decimal(1), at=at(3_600), prices="[]", facts="{}",
        )  # fmt: skip
        add_closed_period(connection, bill)
    one_pass(ledger, sources, 3_700)
    with ledger.connect() as connection:
        read = connection.execute(select(METADATA.tables["token_readings"].c.at)).scalars().all()
        slots = connection.execute(select(METADATA.tables["activity_hours"])).all()
    assert read and not [one for one in read if at(905) <= one < at(1_805)]
    known = {n for row in slots for n in range(360) if (int(row.busy, 16) | int(row.idle, 16)) >> n & 1}
    assert {89, 181} <= known and not known & set(range(90, 181))


def test_missing_instance_ended_before_the_pass_that_did_not_list_it(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources, 1800)
    sources.records_now = sources.records_now[:1]
    one_pass(ledger, sources, 2100)
    with ledger.connect() as connection:
        ended = {run.instance_id: run for run in read_runs(connection, FLEET, at(-1), at(9000))}["i-spot"]
    assert (ended.ended_at, ended.end_cause, ended.end_exact) == (at(2100), EndCause.ABSENT, False)


def test_end_time_stated_by_the_cloud_counts_although_a_fast_clock_saw_the_instance_later(
    ledger: Engine, sources: FakeSources
) -> None:
    one_pass(ledger, sources, 3600)
    sources.records_now = [
        replace(
            record,
            instance=replace(record.instance, state=InstanceState.TERMINATED, end_reason=ActivityKind.PREEMPTED),
        )
        if record.instance.id == "i-spot"
        else record
        for record in sources.records_now
    ]
    one_pass(ledger, sources, 2100)
    run = spot_run(ledger)
    assert (run.ended_at, run.end_cause, run.end_exact) == (at(2100), EndCause.PREEMPTED, False)


def test_clock_set_back_dates_no_end_before_the_last_sighting(ledger: Engine, sources: FakeSources) -> None:
    """The cloud still lists the instance as terminated, without a time."""
    one_pass(ledger, sources, 3600)
    sources.records_now = [
        replace(record, instance=replace(record.instance, state=InstanceState.TERMINATED))
        if record.instance.id == "i-spot"
        else record
        for record in sources.records_now
    ]
    for second in (4200, 3000):
        one_pass(ledger, sources, second)
    run = spot_run(ledger)
    assert (run.last_seen_at, run.ended_at, run.end_exact) == (at(3600), at(4200), False)


def spot_run(ledger: Engine) -> Run:
    with ledger.connect() as connection:
        return next(r for r in read_runs(connection, FLEET, at(-1), at(9000)) if r.instance_id == "i-spot")


def ending(second: float, name: str = "i-spot", *, preempted: bool = False) -> InstanceEnd:
    return InstanceEnd(instance_id=name, ended_at=at(second), preempted=preempted)


@pytest.mark.parametrize(
    ("reported", "end", "cause", "exact"),
    [
        pytest.param([ending(2000, preempted=True)], 2000, EndCause.PREEMPTED, True, id="preempted"),
        pytest.param([ending(2000)], 2000, EndCause.ENDED, True, id="deleted"),
        pytest.param([ending(1700, preempted=True)], 1800, EndCause.PREEMPTED, True, id="a notice, then seen alive"),
        pytest.param([ending(2050), ending(2000, preempted=True)], 2000, EndCause.PREEMPTED, True, id="the first"),
        pytest.param([ending(2000, "i-other")], 2100, EndCause.ABSENT, False, id="of another instance"),
        pytest.param([ending(-500)], 2100, EndCause.ABSENT, False, id="of an earlier run with that name"),
        pytest.param([], 2100, EndCause.ABSENT, False, id="nothing reported"),
    ],
)
def test_missing_instance_ends_as_its_cloud_reports(  # noqa: PLR0913
    ledger: Engine, sources: FakeSources, reported: list[InstanceEnd], end: float, cause: EndCause, exact: bool
) -> None:
    one_pass(ledger, sources, 1800)
    sources.records_now, sources.endings_now = sources.records_now[:1], reported
    one_pass(ledger, sources, 2100)
    run = spot_run(ledger)
    assert (run.ended_at, run.end_cause, run.end_exact) == (at(end), cause, exact)


def test_instance_recreated_under_the_same_name_ends_the_earlier_run(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources, 1800)
    reserved, spot = sources.records_now
    sources.records_now = [reserved, InstanceRecord(instance=replace(spot.instance, launched_at=at(2000)))]
    sources.endings_now = [ending(1950, preempted=True), ending(2500)]
    one_pass(ledger, sources, 2100)
    with ledger.connect() as connection:
        runs = [r for r in read_runs(connection, FLEET, at(-1), at(9000)) if r.instance_id == "i-spot"]
    assert [(run.ended_at, run.end_cause) for run in runs] == [(at(1950), EndCause.PREEMPTED), (None, None)]


def test_end_times_that_cannot_be_read_are_reported_and_requested_again(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources, 1800)
    sources.records_now, sources.broken = sources.records_now[:1], {"endings"}
    assert one_pass(ledger, sources, 2100).notes == ("ends of 1 instances: endings is down; the next pass retries",)
    assert spot_run(ledger).ended_at is None
    sources.broken, sources.endings_now = set(), [ending(1900, preempted=True)]
    one_pass(ledger, sources, 2400)
    assert (spot_run(ledger).ended_at, spot_run(ledger).end_cause) == (at(1900), EndCause.PREEMPTED)


def test_end_time_of_the_cloud_replaces_an_estimate(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources, 1800)
    reserved, spot = sources.records_now
    sources.records_now = [reserved]
    one_pass(ledger, sources, 2100)
    ended = replace(spot.instance, state=InstanceState.TERMINATED, end_reason=ActivityKind.PREEMPTED)
    sources.records_now = [reserved, InstanceRecord(instance=ended, ended_at=at(1950))]
    one_pass(ledger, sources, 2400)
    with ledger.connect() as connection:
        run = {r.instance_id: r for r in read_runs(connection, FLEET, at(-1), at(9000))}["i-spot"]
    assert (run.ended_at, run.end_cause, run.end_exact) == (at(1950), EndCause.PREEMPTED, True)


def test_instance_that_one_listing_omits_continues(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources, 1800)
    whole = sources.records_now
    sources.records_now = whole[:1]
    one_pass(ledger, sources, 2100)
    sources.records_now = whole
    one_pass(ledger, sources, 2400)
    with ledger.connect() as connection:
        run = {r.instance_id: r for r in read_runs(connection, FLEET, at(-1), at(9000))}["i-spot"]
    assert run.ended_at is None and run.last_seen_at == at(2400)


def test_unreadable_instance_has_not_ended_and_the_others_are_recorded(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources, 1800)
    sources.malformed = {"i-spot": "i-spot cannot be read"}
    done = one_pass(ledger, sources, 2100)
    assert (done.instances, done.ended) == (1, 0)
    assert "1 instances: i-spot cannot be read; the next pass retries" in done.notes
    assert spot_run(ledger).ended_at is None
    sources.malformed = {}
    one_pass(ledger, sources, 2400)
    assert (spot_run(ledger).ended_at, spot_run(ledger).last_seen_at) == (None, at(2400)), "it continues"


@pytest.mark.parametrize(
    ("before", "noted"),
    [pytest.param(True, 0, id="seen before"), pytest.param(False, None, id="never seen before")],
)
def test_unreadable_instance_is_not_counted_as_use_of_a_reservation_by_others(
    ledger: Engine, sources: FakeSources, before: bool, noted: int | None
) -> None:
    capacity = replace(sources.paid_now[0], instances=4, available=3)
    if before:
        sources.paid_now = []
        one_pass(ledger, sources, 1800)
    sources.paid_now, sources.malformed = [capacity], {"i-reserved": "i-reserved cannot be read"}
    one_pass(ledger, sources, 2100)
    with ledger.connect() as connection:
        found = reservations(connection, FLEET, at(0), at(9000))
    assert [one.elsewhere for one in found] == ([] if noted is None else [noted])


def test_failed_listing_of_instances_fails_the_pass_and_writes_nothing(ledger: Engine, sources: FakeSources) -> None:
    sources.broken = {"history"}
    with pytest.raises(OSError, match="history is down"):
        one_pass(ledger, sources)
    assert not any(dump(ledger).values())


def test_unavailable_metrics_are_reported_and_requested_again(ledger: Engine, sources: FakeSources) -> None:
    sources.broken = {"samples"}
    assert any("metrics" in note for note in one_pass(ledger, sources, 3000).notes)
    sources.broken = set()
    one_pass(ledger, sources, 3600)
    assert report(ledger).total.tokens.generation == 354_000


def test_prices_of_a_window_with_a_failed_price_source_are_requested_again(
    ledger: Engine, sources: FakeSources
) -> None:
    launched = min(record.instance.launched_at for record in sources.records_now)
    for minute, broken in ((60, True), (70, False), (80, True), (90, True), (100, False), (110, False)):
        sources.broken = {"prices"} if broken else set()
        done = collect(ledger, sources.as_collector_sources(), FACTS, at(minute * 60))
        assert any("prices is down; older prices stay in force" in note for note in done.notes) is broken
    first, second = at(70 * 60) - OVERLAP, at(100 * 60) - OVERLAP
    assert sources.asked_since == [launched, launched, first, first, first, second]


def test_text_report_names_its_parts_and_adds_up(ledger: Engine, sources: FakeSources) -> None:
    one_pass(ledger, sources)
    text = as_text(report(ledger))
    assert "list cost, estimated" in text
    assert "unverified" not in text
    lines = [line.split() for line in text.splitlines() if line.startswith(("reserved ", "spot  ", "total"))]
    reserved, spot, total = [[Decimal(cell) for cell in line[1:6]] for line in lines[-3:]]
    assert [a + b for a, b in zip(reserved, spot, strict=True)] == total
    assert all(line[0] == sum(line[1:]) for line in (reserved, spot, total))


def test_empty_ledger_is_reported(ledger: Engine) -> None:
    found = report(ledger)
    assert found.total.unit_costs().blended is None
    assert any("gpufleet watch cost" in note for note in found.notes)


def terminated(
    record: InstanceRecord, state: InstanceState, *, preempted: bool = False, **more: object
) -> InstanceRecord:
    why = ActivityKind.PREEMPTED if preempted else None
    ended = InstanceRecord(instance=replace(record.instance, state=state, end_reason=why))
    return replace(ended, **more)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("state", [InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED])
@pytest.mark.parametrize("preempted", [False, True])
def test_undated_end_is_between_two_passes(
    ledger: Engine, sources: FakeSources, state: InstanceState, preempted: bool
) -> None:
    reserved, spot = sources.records_now
    one_pass(ledger, sources, 1800)
    for second in (2100, 2400, 5000):  # EC2 lists it for an hour
        sources.records_now = [reserved, terminated(spot, state, preempted=preempted)]
        one_pass(ledger, sources, second)
    sources.records_now = [reserved]
    one_pass(ledger, sources, 9000)
    run = spot_run(ledger)
    assert (run.last_seen_at, run.ended_at, run.end_exact) == (at(1800), at(2100), False)
    assert run.end_cause is (EndCause.PREEMPTED if preempted else EndCause.ENDED)


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        pytest.param(InstanceState.TERMINATED, 1, id="terminated: it ended recently"),
        pytest.param(InstanceState.STOPPING, 1, id="stopping: it ends now"),
        pytest.param(InstanceState.STOPPED, 0, id="stopped: perhaps weeks ago"),
    ],
)
def test_instance_that_starts_and_ends_between_two_passes(
    ledger: Engine, sources: FakeSources, state: InstanceState, runs: int
) -> None:
    one_pass(ledger, sources, 1800)
    sources.records_now.append(terminated(record("i-short", 1900, CapacityType.ON_DEMAND), state))
    one_pass(ledger, sources, 2100)
    with ledger.connect() as connection:
        found = [r for r in read_runs(connection, FLEET, at(-1), at(9000)) if r.instance_id == "i-short"]
    assert [(run.last_seen_at, run.ended_at, run.end_exact) for run in found] == [(at(1900), at(2100), False)] * runs


def ended_by_watchdogs(ledger: Engine, second: float) -> None:
    decision = Decision(resource="i-spot", pool="chat", action=Action.END, reason=Reason.STILL_IDLE)
    done = Outcome(decision=decision, kind=OutcomeKind.DONE, detail="ended")
    record_outcome(ledger, FLEET, "idle", done, at(second))


@pytest.mark.parametrize(
    ("ended", "end", "exact"),
    [
        pytest.param(2000, 2000, True, id="after it was last seen"),
        pytest.param(1700, 30_000, False, id="before it was last seen: that end failed"),
    ],
)
def test_termination_by_the_fleet_dates_an_end_that_the_cloud_does_not(
    ledger: Engine, sources: FakeSources, ended: float, end: float, exact: bool
) -> None:
    one_pass(ledger, sources, 1800)
    ended_by_watchdogs(ledger, ended)
    sources.records_now = sources.records_now[:1]
    one_pass(ledger, sources, 30_000)
    run = spot_run(ledger)
    assert (run.ended_at, run.end_exact) == (at(end), exact)


@pytest.mark.parametrize(
    ("ours", "preempted", "end", "cause", "exact"),
    [
        pytest.param(2000, False, 2000, EndCause.ENDED, True, id="ended by a watchdog"),
        pytest.param(1700, False, 2100, EndCause.ENDED, False, id="before it was last seen: that end failed"),
        pytest.param(None, True, 2100, EndCause.PREEMPTED, False, id="preempted without a time"),
        pytest.param(2000, True, 2000, EndCause.PREEMPTED, False, id="preempted before a watchdog ended it"),
    ],
)
def test_termination_by_the_fleet_dates_an_end_that_the_cloud_lists_without_a_time(  # noqa: PLR0913
    ledger: Engine,
    sources: FakeSources,
    ours: float | None,
    preempted: bool,
    end: float,
    cause: EndCause,
    exact: bool,
) -> None:
    one_pass(ledger, sources, 1800)
    if ours is not None:
        ended_by_watchdogs(ledger, ours)
    reserved, spot = sources.records_now
    sources.records_now = [reserved, terminated(spot, InstanceState.TERMINATED, preempted=preempted)]
    for second in (2100, 2400, 5000):
        one_pass(ledger, sources, second)
    run = spot_run(ledger)
    assert (run.ended_at, run.end_cause, run.end_exact) == (at(end), cause, exact)


def test_instance_terminated_before_any_pass_saw_it_has_the_time_of_the_termination(
    ledger: Engine, sources: FakeSources
) -> None:
    reserved, spot = sources.records_now
    sources.records_now = [reserved]
    one_pass(ledger, sources, 300)
    ended_by_watchdogs(ledger, 2000)
    sources.records_now = [reserved, terminated(spot, InstanceState.TERMINATED)]
    one_pass(ledger, sources, 2100)
    run = spot_run(ledger)
    assert (run.ended_at, run.end_cause, run.end_exact) == (at(2000), EndCause.ENDED, True)


@pytest.mark.parametrize(
    ("preempted", "credit"),
    [pytest.param(True, True, id="preempted by AWS"), pytest.param(False, False, id="ended by a watchdog")],
)
def test_first_hour_is_credited_only_when_aws_ended_the_instance(
    ledger: Engine, sources: FakeSources, preempted: bool, credit: bool
) -> None:
    one_pass(ledger, sources, 1800)
    if not preempted:
        ended_by_watchdogs(ledger, 2000)
    reserved, spot = sources.records_now
    sources.records_now = [reserved, terminated(spot, InstanceState.TERMINATED, preempted=preempted)]
    one_pass(ledger, sources, 2100)
    found = document(report(ledger))["by"]["capacity-type"]["spot"]
    # 1,400 s at 0.30 USD per hour, from the launch to the termination by the fleet
    assert Decimal(found["usd"]) == (0 if credit else Decimal("0.116666667"))
    assert bool(found["usd_adjustments"]) is credit


def test_report_charges_an_undated_end_until_it_was_last_seen_and_states_it(
    ledger: Engine, sources: FakeSources
) -> None:
    one_pass(ledger, sources, 4200)
    sources.records_now = sources.records_now[:1]
    one_pass(ledger, sources, 4200 + 10 * 3600)
    made = report(ledger, until=100_000)
    [end] = document(made)["unknown"]
    assert (end["why"], end["why_code"]) == ("its end has no time", "undated_end")
    assert (end["resource"], end["pool"]) == ("i-spot", "chat")
    assert (end["start"], end["end"]) == ("2026-07-01T07:10:00Z", "2026-07-01T17:10:00Z")
    assert (end["usd"], end["usd_at_least"]) == ("0.000000000", "0.000000000")
    assert end["usd_at_most"] == "3.000000000"
    spot = document(made)["by"]["capacity-type"]["spot"]
    assert (spot["usd_at_least"], spot["usd_at_most"]) == ("0.300000000", "3.300000000")
    # one hour of 0.30 USD
    assert document(made)["by"]["capacity-type"]["spot"]["usd"] == "0.300000000"
    assert (
        "1 ends have no exact time: charged until last seen; they may have cost at most 3.00 USD more" in made.notes
    )
    gap = "no complete pass from 2026-07-01T07:10Z to 2026-07-01T17:10Z: instances that started and ended in between"
    assert any(note.startswith(gap) for note in made.notes)


def test_passes_an_hour_apart_leave_no_gap(ledger: Engine, sources: FakeSources) -> None:
    for second in (0, 3600, 7200):
        one_pass(ledger, sources, second)
    assert not any("no complete pass" in note for note in report(ledger, until=7200).notes)


def test_gpu_is_idle_by_the_noise_floor_of_its_pool(ledger: Engine, sources: FakeSources) -> None:
    """The idle watchdog uses this threshold, so the report must use it, too."""
    noisy = engine_series("i-spot", 10, 3600, 0, 700)
    gpu = next(one for one in noisy if one.name == "gpu")
    noisy.remove(gpu)
    noisy.append(RawSeries(gpu.labels, [ActivitySample(sample.at, 0.03) for sample in gpu.samples]))
    sources.series_now = [*engine_series("i-reserved", 10, 3600, 100, 60), *noisy]
    idle: list[Decimal] = []
    for number, below in enumerate((0.01, 0.05)):
        engine = ledger if number == 0 else open_ledger(f"{ledger.url}-{number}")
        pools = {"chat": replace(FACTS.pools["chat"], gpu_active_below=below)}
        collect(engine, sources.as_collector_sources(), replace(FACTS, pools=pools), at(3600))
        idle.append(Decimal(document(report(engine))["total"]["usd_idle"]))
    assert idle[0] == 0 < idle[1]


def test_report_uses_the_noise_floor_of_the_idle_policy() -> None:
    fleet = fleet_document(watchdogs={"idle": {"gpu_active_below": 0.04}, "spot": {}})
    assert facts_of(fleet).pools["batch"].gpu_active_below == 0.04
    assert facts_of(fleet_document(watchdogs={})).pools["batch"].gpu_active_below == IdlePolicy().gpu_active_below
