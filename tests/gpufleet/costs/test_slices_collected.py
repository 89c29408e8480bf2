"""Passes of the cost watchdog write the activity of slices, and a report shows their cost."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from app.cost_sources import ENERGY_NAMES
from app.unit_names import UNIT_NAMES
from gpufleet.costs import focus, slice_view
from gpufleet.costs.collector import CollectorSources, FleetFacts, PoolFacts, collect
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.digest import Digest, all_waste_lines
from gpufleet.costs.digest import as_text as digest_text
from gpufleet.costs.document import document
from gpufleet.costs.forecast import Forecast
from gpufleet.costs.page import page
from gpufleet.costs.query import CostQuery
from gpufleet.costs.render import as_text
from gpufleet.costs.report import Report, ReportScope
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.savings import Savings
from gpufleet.costs.slots import ActivitySample, Measure
from gpufleet.domain import money
from gpufleet.domain.energy import GridFactor
from gpufleet.domain.instance_history import InstanceHistory, InstanceRecord
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.domain.money import ZERO
from gpufleet.ledger.closed_periods import BillConfirmation, add_closed_period
from gpufleet.ledger.database import writing
from gpufleet.ledger.invariants import verify
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import UNIT_ACTIVITY
from gpufleet.prices.packaged import PackagedPrices
from tests.fixtures.costs.metric_names import NAMES
from tests.fixtures.costs.metrics_only import MetricsOnly, within
from tests.fixtures.costs.overrides import override
from tests.fixtures.costs.unit_series import mig, series_of

T0 = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
FLEET = "gcp/test/us-east-1"
FACTS = FleetFacts(
    name=FLEET,
    environment="test",
    pools={"chat": PoolFacts(model="models/chat", owner="search")},
    machine_types=(),
    measure=Measure(),
    host="here",
)
PODS = {1: "one", 2: "two", 3: "three"}


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def instance(name: str, machine_type: str = "a2-ultragpu-1g") -> InstanceRecord:
    return InstanceRecord(
        instance=Instance(
            id=name, cloud=Cloud.GCP, region="us-east-1", zone="us-east-1-b", machine_type=machine_type,
            capacity_type=CapacityType.ON_DEMAND, state=InstanceState.RUNNING, launched_at=T0, environment="test",
            pool="chat",
        )
    )  # fmt: skip


@dataclass
class Fake(MetricsOnly):
    """A cloud with two nodes, one of them divided, and a metrics store."""

    series: list[RawSeries] = field(default_factory=list[RawSeries])
    asked: list[str] = field(default_factory=list[str])

    def history(self) -> InstanceHistory:
        return InstanceHistory(records=[instance("i-1"), instance("i-whole")], errors={})

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[RawSeries]:
        self.asked.append(selector)
        return within(self.series, since, until)

    def as_sources(self) -> CollectorSources:
        return CollectorSources(history=self, paid=self, market=self, samples=self, names=NAMES, units=UNIT_NAMES)


def three_tenants(seconds: int = 7201) -> Fake:
    """Tenant two does nothing; a seventh of the GPU has no slice."""
    series = series_of(lambda s: mig(s, {1: 0.6, 2: 0.0, 3: 0.6 if s < 3600 else 0.0}, pods=PODS), T0, seconds)
    ready = [ActivitySample(at(s), 0.0) for s in range(0, seconds, 30)]
    return Fake([*series, RawSeries({"__name__": "prompt", "instance_id": "i-1", "instance": "h:8000"}, ready)])


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_ledger(f"sqlite:///{tmp_path}/ledger.db")


def rows(engine: Engine) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        assert list(verify(connection)) == []
        return [tuple(row) for row in connection.execute(select(UNIT_ACTIVITY))]


def report(engine: Engine, hours: float = 2, since: datetime = T0) -> Report:
    price = override("gcp:compute:a2-ultragpu-1g:on-demand", "7", T0)
    query = CostQuery(engine, FLEET, "us-east-1", overrides=[price], packaged=PackagedPrices())
    until = since + timedelta(hours=hours)
    scope = ReportScope(
        fleet=FLEET, environment="test", cloud="gcp", region="us-east-1", since=since, until=until, now=at(7200)
    )
    query.read([(since, until)])
    return query.report(scope)


def usd_by_user(found: Report) -> dict[tuple[str, ...], dict[str, str]]:
    """Part and users to the amounts that are not 0."""
    shown: dict[tuple[str, ...], dict[str, str]] = {}
    for row in slice_view.document(found.slices)["rows"]:
        amounts = {name: value for name, value in row.items() if name.startswith("usd") and Decimal(value or 0)}
        shown[row["part"], *row["users"]] = {
            name: format(Decimal(value).normalize(), "f") for name, value in amounts.items()
        }
    return shown


def test_idle_tenant_of_a_divided_node_is_shown_with_its_cost(engine: Engine) -> None:
    fake = three_tenants()
    collect(engine, fake.as_sources(), FACTS, at(7200))
    assert usd_by_user(report(engine)) == {
        ("slice", "ns/one"): {"usd": "4", "usd_used": "4", "usd_per_hour": "2"},
        ("slice", "ns/two"): {"usd": "4", "usd_idle": "4", "usd_per_hour": "2"},
        ("slice", "ns/three"): {
            "usd": "4", "usd_used": "2", "usd_idle": "2", "usd_per_hour": "2",
        },
        ("stranded",): {"usd": "2", "usd_stranded": "2", "usd_per_hour": "1"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "passes",
    [
        pytest.param([7200], id="one pass"),
        pytest.param([7200, 7200], id="twice"),
        pytest.param([3600, 7200], id="two passes"),
        pytest.param([7200, 3600], id="the older pass comes late"),
        pytest.param([600, 610, 3600, 3610, 7200], id="two hosts"),
    ],
)
def test_passes_leave_the_same_activity_of_slices(engine: Engine, tmp_path: Path, passes: Sequence[int]) -> None:
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    collect(other, three_tenants().as_sources(), FACTS, at(7200))
    for second in passes:
        collect(engine, three_tenants().as_sources(), FACTS, at(second))
    assert rows(engine) == rows(other)
    other.dispose()


def test_one_row_is_stored_per_slice_and_hour_and_none_for_whole_gpus(engine: Engine) -> None:
    fake = three_tenants()
    whole = series_of(
        lambda s: mig(s, {1: 0.5}).replace('GPU_I_PROFILE="2g.20gb",GPU_I_ID="1",', ""), T0, 7201,
        labels={"instance_id": "i-whole", "instance": "10.0.0.2:9400"},
    )  # fmt: skip
    fake.series += whole
    collect(engine, fake.as_sources(), FACTS, at(7199))
    assert len(rows(engine)) == 6
    assert {row[2] for row in rows(engine)} == {"i-1"}


def test_all_outputs_add_up_to_the_nodes_bill(engine: Engine) -> None:
    collect(engine, three_tenants().as_sources(), FACTS, at(7200))
    found = report(engine, 1.7)
    bill = sum((c.amount or 0 for c in found.charges if c.resource == "i-1"), Decimal(0)) / 3600
    shown: dict[str, Any] = json.loads(json.dumps(document(found)))["slices"]
    assert sum(Decimal(row["usd"]) for row in shown["rows"]) == Decimal(shown["total"]["usd"]) == bill
    for row in shown["rows"]:
        parts = ("usd_used", "usd_idle", "usd_stranded", "usd_starting", "usd_fixed")
        assert Decimal(row["usd"]) == sum(Decimal(row[name]) for name in parts)
    table = [list(csv.DictReader(StringIO(slice_view.as_csv([("test", found.slices)]))))][0]
    assert sum(Decimal(row["usd"]) for row in table) == bill
    lines = slice_view.rows(found.slices)
    numbers = [[Decimal(value.replace(",", "")) for value in line[3:8]] for line in lines]
    assert [sum(column) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]
    assert all(line[0] == sum(line[1:]) for line in numbers)
    few = slice_view.rows(found.slices, 2)
    assert few[-2][0] == "2 more rows" and few[-1] == lines[-1]


def test_terminal_and_page_show_the_idle_tenant_and_what_is_stranded(engine: Engine) -> None:
    collect(engine, three_tenants().as_sources(), FACTS, at(7200))
    found = report(engine)
    text = as_text(found)
    (line,) = [line for line in text.splitlines() if "ns/two" in line]
    assert line.split() == [
        "i-1",
        "GPU-1",
        "2",
        "2g.20gb",
        "ns/two",
        "chat",
        "4.00",
        "0.00",
        "4.00",
        "0.00",
        "0.00",
        "2.0000",
    ]
    assert "(stranded 1/7 of a GPU: another slice may fit)" in text
    assert "by slice: 1 nodes with slices or shared devices; idle 6.00 USD, stranded 2.00 USD" in text
    savings = Savings(spot=ZERO, spot_by_pool={}, stops=(), fallback=ZERO)
    month = Forecast(spent=ZERO, expected=ZERO, low=ZERO, high=ZERO, days_known=ZERO)
    digest = Digest(report=found, before=None, waste=(), savings=savings, month=month, budget=None)
    (line,) = all_waste_lines(digest)
    assert line.startswith("6.00 USD  idle in 2 slices or shared accelerators, most in i-1 GPU-1 2 2g.20gb of chat")
    assert "ns/two: 4.00 USD; 2.00 USD stranded" in line and line in digest_text(digest)
    html = page(digest, [], [])
    assert "<h2>By slice</h2>" in html and "<td>ns/two</td>" in html


def test_focus_rows_of_a_divided_node_are_its_slices_and_add_up(engine: Engine) -> None:
    collect(engine, three_tenants().as_sources(), FACTS, at(7200))
    found = report(engine)
    table = list(focus.rows([found], "account"))
    sums: dict[tuple[str | None, ...], Decimal] = {}
    names = (
        "ResourceId",
        "x_SliceId",
        "x_SliceProfile",
        "x_SliceUsers",
        "x_SliceShare",
        "x_SliceState",
        "x_SliceRule",
    )
    for row in table:
        key = tuple(row[name] for name in names)
        sums[key] = sums.get(key, Decimal(0)) + Decimal(row["EffectiveCost"] or 0)
    assert {key: round(usd, 6) for key, usd in sums.items()} == {
        ("i-1", "1", "2g.20gb", "ns/one", "2/7", "used", "slice"): Decimal(4),
        ("i-1", "2", "2g.20gb", "ns/two", "2/7", "idle", "slice"): Decimal(4),
        ("i-1", "3", "2g.20gb", "ns/three", "2/7", "used", "slice"): Decimal(2),
        ("i-1", "3", "2g.20gb", "ns/three", "2/7", "idle", "slice"): Decimal(2),
        ("i-1", None, None, None, "1/7", "stranded", "stranded"): Decimal(2),
        ("i-whole", None, None, None, None, None, None): Decimal(14),
    }
    bill = sum((Decimal(row["EffectiveCost"] or 0) for row in table), Decimal(0))
    assert abs(bill - money.usd(found.total.allocation)) < Decimal("0.000001")


def with_energy(engine: Engine, factor: GridFactor | None) -> Report:
    """The report of the divided node, whose device used 120 W in both hours."""
    sources = replace(three_tenants().as_sources(), energy=ENERGY_NAMES)
    collect(engine, sources, replace(FACTS, declared=DeclaredCosts(carbon=factor)), at(7200))
    return report(engine)


def focus_sums(found: Report, column: str, by: str) -> dict[tuple[str | None, str | None], Decimal | None]:
    """A column by instance and another column; None: some rows of it are unknown."""
    sums: dict[tuple[str | None, str | None], Decimal | None] = {}
    for row in focus.rows([found], "account"):
        key, value, known = (row["ResourceId"], row[by]), row[column], sums.get((row["ResourceId"], row[by]), ZERO)
        sums[key] = None if value is None or known is None else known + Decimal(value)
    return sums


def test_focus_divides_the_energy_of_a_node_over_its_slices_like_its_cost(engine: Engine) -> None:
    """An idle slice gets the same part as a busy one of its size."""
    found = with_energy(engine, GridFactor(grams_per_kwh=Decimal(379), source="a list, 2025"))
    joules, grams = (focus_sums(found, name, "x_SliceUsers") for name in ("x_EnergyJoules", "x_CarbonGrams"))
    ((_, measured),) = found.energies
    assert measured.use.millijoules > 800_000_000
    for column, whole in (
        ("x_EnergyJoules", Decimal(measured.use.millijoules) / 1_000),
        ("x_IdleEnergyJoules", Decimal(measured.use.idle_mj) / 1_000),
        ("x_EnergyMeasuredSeconds", Decimal(measured.use.measured_us) / 1_000_000),
    ):
        sums = focus_sums(found, column, "x_SliceUsers")
        assert sums.pop(("i-whole", None)) is None, "not measured"
        assert sum(value or ZERO for value in sums.values()) == whole, column
    for row in found.slices.rows:
        part, name = Decimal(row.allocated_mj or 0) / 1_000, ("i-1", " ".join(row.key.users) or None)
        assert abs((joules[name] or ZERO) - part) <= Decimal("0.002"), "as in the report by slice"
        assert abs((grams[name] or ZERO) - part * 379 / 3_600_000) < Decimal("0.00001")
    assert abs((joules["i-1", "ns/one"] or ZERO) - (joules["i-1", "ns/two"] or ZERO)) <= Decimal("0.002")


def test_focus_has_no_co2e_of_slices_without_a_stated_factor(engine: Engine) -> None:
    found = with_energy(engine, None)
    assert None not in (
        one for (name, _), one in focus_sums(found, "x_EnergyJoules", "x_SliceId").items() if name == "i-1"
    )
    assert set(focus_sums(found, "x_CarbonGrams", "x_SliceId").values()) == {None}


def test_report_without_slices_is_as_before(engine: Engine) -> None:
    collect(engine, Fake().as_sources(), FACTS, at(7200))
    found = report(engine)
    assert "slice" not in as_text(found)
    assert document(found)["slices"]["rows"] == []


def test_unmeasured_hour_of_a_divided_node_counts_as_used(engine: Engine) -> None:
    """The exporter is not reached in the second hour."""
    fake = three_tenants(3601)
    collect(engine, fake.as_sources(), FACTS, at(7200))
    shown = usd_by_user(report(engine))
    assert shown["not_reported",] == {
        "usd": "7", "usd_used": "7", "usd_used_unmeasured": "7", "usd_per_hour": "7",
    }  # fmt: skip


def test_closed_span_keeps_the_activity_of_its_slices(engine: Engine) -> None:
    collect(engine, three_tenants().as_sources(), FACTS, at(1800))
    before = rows(engine)
    bill = BillConfirmation(
        fleet=FLEET, since=T0, until=at(3600), digest="d", form="FOCUS", billed_usd=Decimal(1),
        computed_usd=Decimal(1), at=at(3600), prices="[]", facts="{}",
    )  # fmt: skip
    with writing(engine) as connection:
        add_closed_period(connection, bill)
    collect(engine, three_tenants().as_sources(), FACTS, at(7200))
    assert [row for row in rows(engine) if row[1] == T0] == before
    assert len(rows(engine)) > len(before)
