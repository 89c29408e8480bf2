"""Passes of the cost watchdog write energy to a real ledger: repeated, late, on two hosts, and in closed spans."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from app.cost_sources import ENERGY_NAMES
from gpufleet.costs.collector import CollectorSources, FleetFacts, PoolFacts, collect
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slots import ActivitySample, Measure
from gpufleet.domain.instance_history import InstanceHistory, InstanceRecord
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.ledger.closed_periods import BillConfirmation, add_closed_period
from gpufleet.ledger.database import writing
from gpufleet.ledger.energy import EnergyUse, energy_uses
from gpufleet.ledger.invariants import verify
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import ENERGY_HOURS, ENERGY_READINGS
from serving.accelerators import metrics
from tests.fixtures.costs.metric_names import NAMES
from tests.fixtures.costs.metrics_only import MetricsOnly, within

T0 = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
FLEET = "aws/test/us-east-1"
FACTS = FleetFacts(
    name=FLEET,
    environment="test",
    pools={"chat": PoolFacts(model="models/chat", owner="search")},
    machine_types=(),
    measure=Measure(),
    host="here",
)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


@dataclass
class Fake(MetricsOnly):
    """A cloud with one instance, and a metrics store."""

    series: list[RawSeries] = field(default_factory=list[RawSeries])

    def history(self) -> InstanceHistory:
        instance = Instance(
            id="i-1",
            cloud=Cloud.AWS,
            region="us-east-1",
            zone="us-east-1a",
            machine_type="g6.xlarge",
            capacity_type=CapacityType.ON_DEMAND,
            state=InstanceState.RUNNING,
            launched_at=T0,
            environment="test",
            pool="chat",
        )
        return InstanceHistory(records=[InstanceRecord(instance=instance)], errors={})

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[RawSeries]:
        assert metrics.ENERGY.name in selector and metrics.POWER.name in selector
        return within(self.series, since, until)

    def as_sources(self) -> CollectorSources:
        return CollectorSources(history=self, paid=self, market=self, samples=self, names=NAMES, energy=ENERGY_NAMES)


def counter(watts: float, seconds: int) -> RawSeries:
    labels = {
        "__name__": metrics.ENERGY.name,
        "instance_id": "i-1",
        "accelerator": "nvidia",
        "accelerator_device": "GPU-a",
        "unit": "millijoules",
    }
    return RawSeries(labels, [ActivitySample(at(s), 7e9 + 1000 * watts * s) for s in range(0, seconds, 15)])


def plain(name: str, value: float, seconds: int) -> RawSeries:
    labels = {"__name__": name, "instance_id": "i-1", "instance": "10.0.0.1:8000"}
    return RawSeries(labels, [ActivitySample(at(s), value) for s in range(0, seconds, 15)])


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_ledger(f"sqlite:///{tmp_path}/ledger.db")


def use(engine: Engine) -> EnergyUse:
    with engine.connect() as connection:
        assert list(verify(connection)) == []
        return energy_uses(connection, FLEET, T0, at(24 * 3600))["i-1"]


def rows(engine: Engine) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for table in (ENERGY_READINGS, ENERGY_HOURS) for row in connection.execute(select(table))]


@pytest.mark.parametrize(
    "passes",
    [
        pytest.param([3600], id="one pass"),
        pytest.param([3600, 3600], id="twice"),
        pytest.param([1800, 3600], id="two passes"),
        pytest.param([3600, 1800], id="the older pass comes late"),
        pytest.param([600, 610, 1800, 1810, 3600], id="two hosts"),
    ],
)
def test_passes_leave_the_same_energy(engine: Engine, passes: Sequence[int]) -> None:
    fake = Fake([counter(300, 3601), plain("running", 0, 3601), plain("gpu", 0.0, 3601)])
    for second in passes:
        collect(engine, fake.as_sources(), FACTS, at(second))
    assert use(engine) == EnergyUse(devices=1, idle_mj=300 * 3600 * 1000, measured_us=3600 * 1_000_000)


def test_repeated_pass_adds_no_row(engine: Engine) -> None:
    fake = Fake([counter(300, 3601)])
    collect(engine, fake.as_sources(), FACTS, at(3600))
    collect(engine, fake.as_sources(), FACTS, at(3600))  # its first reading is one that the pass before thinned
    before = rows(engine)
    assert collect(engine, fake.as_sources(), replace(FACTS, host="there"), at(3600)).energy_readings
    assert rows(engine) == before


def test_time_without_metrics_is_unknown(engine: Engine) -> None:
    whole = counter(300, 7201)
    fake = Fake([RawSeries(whole.labels, [s for s in whole.samples if not at(1800) < s.at < at(5400)])])
    collect(engine, fake.as_sources(), FACTS, at(7200))
    assert use(engine).measured_us == 3600 * 1_000_000


def test_rejected_counter_is_a_note_of_the_pass(engine: Engine) -> None:
    done = collect(engine, Fake([counter(300_000, 3601)]).as_sources(), FACTS, at(3600))
    assert done.energy_readings == 0
    assert "energy of 1 devices was rejected: i-1 GPU-a" in done.notes[-1]


def test_closed_span_keeps_its_energy(engine: Engine) -> None:
    early, late = Fake([counter(300, 901)]), Fake([counter(300, 3601)])
    collect(engine, early.as_sources(), FACTS, at(900))
    before = use(engine)
    bill = BillConfirmation(
        fleet=FLEET,
        since=T0,
        until=at(1800),
        digest="d",
        form="FOCUS",
        billed_usd=Decimal(1),
        computed_usd=Decimal(1),
        at=at(1800),
        prices="[]",
        facts="{}",
    )
    with writing(engine) as connection:
        add_closed_period(connection, bill)
    collect(engine, late.as_sources(), FACTS, at(3600))
    with engine.connect() as connection:
        assert energy_uses(connection, FLEET, T0, at(1800))["i-1"] == before
        assert energy_uses(connection, FLEET, at(1800), at(7200))["i-1"].measured_us
