"""A ledger without passes for three days, on both clouds: what each output states about the bill."""

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest

from gpufleet.costs.collector import CollectorSources, FleetFacts, PoolFacts, collect
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slots import ActivitySample, Measure
from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.domain.prices import Price
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.costs.metric_names import NAMES
from tests.fixtures.costs.report_arithmetic import faults
from tests.fixtures.small_fleet import document, read_json, stdout_of

T0 = datetime(2026, 11, 2, tzinfo=UTC)
HOUR, LOOK = timedelta(hours=1), timedelta(minutes=30)
STOPPED, RESUMED, END = 54.0, 126.0, 144.0
"""Hours of the last pass before the gap, the first one after it, and the last one of all."""
PLACES = {
    Cloud.AWS: ("us-east-1", "g6.xlarge", "aws:ec2"),
    Cloud.GCP: ("us-central1", "g2-standard-4", "gcp:compute"),
}
FREE = {Cloud.AWS: 1.0, Cloud.GCP: 1 / 60}
RATES = {
    CapacityType.SPOT: [(-999.0, Decimal("0.25")), (80.0, Decimal("0.5"))],
    CapacityType.ON_DEMAND: [(-999.0, Decimal("0.75")), (90.0, Decimal("1"))],
}
"""Start hour to USD per hour. Both prices change in the gap."""


def when(hours: float) -> datetime:
    return T0 + hours * HOUR


@dataclass(frozen=True, kw_only=True)
class One:
    """An instance as its cloud records it. Times are hours after T0."""

    name: str
    kind: CapacityType = CapacityType.ON_DEMAND
    pool: str = "chat"
    start: float = 0.0
    end: float | None = None
    taken: bool = False

    def alive(self, at: float) -> bool:
        return self.start <= at and (self.end is None or at < self.end)

    def cost(self, since: float, until: float) -> Decimal:
        rates = RATES.get(self.kind, RATES[CapacityType.ON_DEMAND])
        start, end = max(self.start, since), min(until if self.end is None else self.end, until)
        cuts = [start, *(at for at, _ in rates if start < at < end), end]
        spans = pairwise(cuts) if start < end else ()
        usd = ((a, b, [rate for at, rate in rates if at <= a][-1]) for a, b in spans)
        return sum((rate * Decimal(str(b - a)) for a, b, rate in usd), Decimal(0))

    def billed(self, cloud: Cloud, since: float, until: float) -> Decimal:
        usd = self.cost(since, until)
        young = self.end is not None and self.taken and self.end - self.start < FREE[cloud]
        if young and self.end is not None and since <= self.end < until:
            usd -= self.cost(self.start, self.end)
        return usd


SPOT, RESERVED = CapacityType.SPOT, CapacityType.RESERVED
SEEN = [
    One(name="i-through"),
    One(name="i-over-before", start=2, end=20),
    One(name="i-ended-in-it", pool="batch", start=10, end=70),
    One(name="i-spot-taken", kind=SPOT, start=40, end=100, taken=True),
    One(name="i-spot-young", kind=SPOT, pool="batch", start=53.6, end=54.3, taken=True),
    One(name="i-began-in-it", start=100),
    One(name="i-began-in-it-spot", kind=SPOT, pool="batch", start=119, end=130, taken=True),
    One(name="i-after", pool="batch", start=127, end=127.7),
    One(name="i-paid", kind=RESERVED, start=1, end=77),
]
UNOBSERVED = One(name="i-came-and-went", pool="batch", start=60, end=90)


@dataclass
class FakeSources:
    """A fake cloud and a fake metrics store at one time."""

    cloud: Cloud
    now: float = 0.0
    every: Sequence[One] = field(default_factory=lambda: [*SEEN, UNOBSERVED])

    def history(self) -> InstanceHistory:
        shown = 1.0 if self.cloud is Cloud.AWS else 0.0
        return InstanceHistory(
            records=[
                InstanceRecord(instance=self._instance(one), ended_at=self._end(one))
                for one in self.every
                if one.start <= self.now and (one.end is None or self.now < one.end + shown)
            ]
        )

    def used_by(self, reservation: str) -> None:
        del reservation

    def _end(self, one: One) -> datetime | None:
        return None if one.end is None or one.alive(self.now) else when(one.end)

    def _instance(self, one: One) -> Instance:
        region, machine_type, _ = PLACES[self.cloud]
        return Instance(
            id=one.name, cloud=self.cloud, region=region, zone=f"{region}-a", machine_type=machine_type,
            capacity_type=one.kind, launched_at=when(one.start), environment="dev", pool=one.pool,
            state=InstanceState.RUNNING if one.alive(self.now) else InstanceState.TERMINATED,
            reservation="cr-1" if one.kind is RESERVED else None,
            end_reason=ActivityKind.PREEMPTED if one.taken and not one.alive(self.now) else None,
        )  # fmt: skip

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        # Google keeps operations for weeks, but those of two of these instances are missing
        if self.cloud is Cloud.AWS:
            return []
        return [
            InstanceEnd(instance_id=one.name, ended_at=when(one.end), preempted=one.taken)
            for one in self.every
            if one.end is not None and one.end <= self.now and one.name in ("i-spot-taken", "i-paid", "i-over-before")
        ]

    def paid(self) -> Sequence[PaidCapacity]:
        region, machine_type, _ = PLACES[self.cloud]
        return [
            PaidCapacity(cloud=self.cloud, reservation="cr-1", region=region, zone=f"{region}-a",
                         machine_type=machine_type, instances=2, started_at=T0)
        ]  # fmt: skip

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        region, machine_type, prefix = PLACES[self.cloud]
        return [
            Price(sku=f"{prefix}:{machine_type}:{kind}", region=region, usd_per_hour=usd, source="cloud",
                  as_of=until, valid_from=when(at))
            for kind, rates in RATES.items()
            for at, usd in rates
            if when(at) <= until
        ]  # fmt: skip

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[RawSeries]:
        """Samples of the engine of `i-through`: two prompt tokens and one output token each second. It restarts
        in the gap."""
        first, last = ((at - T0).total_seconds() for at in (since, until))
        times = [n * 60.0 for n in range(int(first // 60) + 1, int(last // 60) + 1) if n]
        began = [0.0 if at < 75 * 3600 else 75 * 3600 for at in times]
        values = {
            "prompt": [2 * (at - start) for at, start in zip(times, began, strict=True)],
            "generation": [at - start for at, start in zip(times, began, strict=True)],
            "process_start": [(T0 + timedelta(seconds=start)).timestamp() for start in began],
            "running": [1.0 for _ in times],
        }
        labels = {"instance_id": "i-through", "instance": "10.0.0.1:8000", "environment": "dev", "engine": "0",
                  "model_name": "chat"}  # fmt: skip
        moments = [T0 + timedelta(seconds=at) for at in times]
        series = {name: [*map(ActivitySample, moments, found)] for name, found in values.items() if times}
        return [RawSeries(labels | {"__name__": name}, found) for name, found in series.items()]


def filled(folder: Path, cloud: Cloud) -> Path:
    region, machine_type, _ = PLACES[cloud]
    name = f"{cloud}/dev/{region}"
    engine = open_ledger(f"sqlite:///{folder}/ledger.db")
    facts = FleetFacts(
        name=name, environment="dev", machine_types=(machine_type,), measure=Measure(), host="here",
        pools={
            "chat": PoolFacts(model="models/chat", owner="search", reservations={"cr-1": 2}),
            "batch": PoolFacts(model="models/batch", owner="research"),
        },
    )  # fmt: skip
    fake = FakeSources(cloud)
    hours = [n / 2 for n in range(int(END * 2) + 1) if not STOPPED < n / 2 < RESUMED]
    for hour in hours:
        fake.now = hour
        sources = CollectorSources(history=fake, paid=fake, market=fake, samples=fake, names=NAMES)
        collect(engine, sources, facts, when(hour))
    engine.dispose()
    return document(
        folder, cloud=str(cloud), region=region, budget={"usd_per_month": "900", "usd_per_hour_at_max": "9"}
    )


@pytest.fixture(scope="module", params=list(Cloud))
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Cloud, Path]:
    return request.param, filled(tmp_path_factory.mktemp("hole"), request.param)


def window(since: float, until: float) -> tuple[str, ...]:
    return tuple(f"--{name}={when(at):%Y-%m-%dT%H:%M:%S}" for name, at in (("since", since), ("until", until)))


WINDOWS = [(0, END), (STOPPED, RESUMED), (50, 60), (60, 100), (100, 130), *((d, d + 24) for d in range(0, 144, 24))]


def bill(cloud: Cloud, since: float, until: float, pool: str | None = None) -> Decimal:
    """What the cloud bills for the instances that passes saw, and for the two declared instances of the
    reservation."""
    mine = [one for one in SEEN if pool in (None, one.pool) and one.kind is not RESERVED]
    usd = sum((one.billed(cloud, since, until) for one in mine), Decimal(0))
    reserved = One(name="reserved", kind=RESERVED)
    return usd + (2 * reserved.cost(since, until) if pool in (None, "chat") else 0)


@pytest.mark.parametrize(("since", "until"), WINDOWS)
def test_figures_follow_from_the_lines_and_bounds_contain_the_bill(
    fleet: tuple[Cloud, Path], since: float, until: float
) -> None:
    cloud, path = fleet
    found = read_json("cost", "--fleet", path, *window(since, until))
    assert faults(found) == []
    for pool in (None, "chat", "batch"):
        figure = found["total"] if pool is None else found["by"]["pool"].get(pool)
        truth = bill(cloud, since, until, pool)
        if figure is None:
            assert truth == 0
            continue
        assert Decimal(figure["usd_at_least"]) <= Decimal(figure["usd"]) <= Decimal(figure["usd_at_most"])
        assert Decimal(figure["usd_at_least"]) - Decimal("1e-6") <= truth, pool
        assert truth <= Decimal(figure["usd_at_most"]) + Decimal("1e-6"), pool


def test_days_add_up_to_the_whole_window(fleet: tuple[Cloud, Path]) -> None:
    whole, *days = (read_json("cost", "--fleet", fleet[1], *window(*span)) for span in [WINDOWS[0], *WINDOWS[5:]])
    for name in ("usd", "usd_idle", "usd_used", "usd_unused_reservation", "usd_starting"):
        parts = sum(Decimal(day["total"][name]) for day in days)
        assert abs(parts - Decimal(whole["total"][name])) < Decimal("1e-6")
    for name in ("prompt", "generation"):
        assert sum(day["total"]["tokens"][name] or 0 for day in days) == whole["total"]["tokens"][name]


def test_gap_is_stated_wherever_the_sum_is_shown(fleet: tuple[Cloud, Path]) -> None:
    _, path = fleet
    found = read_json("cost", "--fleet", path, *window(0, END))
    assert found["collected"] == {
        "share": 0.5,
        "not_looked_at": [{"start": "2026-11-04T06:00:00Z", "end": "2026-11-07T06:00:00Z"}],
    }
    assert any("instances that started and ended" in note for note in found["notes"])
    text = stdout_of("cost", "--fleet", path, *window(0, END))
    assert "collected: 50.0% of the window; 72.0 h were not collected" in text
    assert "cost with what is unknown: " in text
    rows = list(csv.DictReader(StringIO(stdout_of("cost", "--fleet", path, *window(0, END), "--format", "csv"))))
    assert [(row["start"], row["end"]) for row in rows if row["kind"] == "not collected"] == [
        ("2026-11-04T06:00:00Z", "2026-11-07T06:00:00Z")
    ]
    unknown = {row["resource"]: row for row in rows if row["kind"] == "unknown"}
    assert {"i-ended-in-it", "i-spot-young"} <= unknown.keys()
    assert all(row["usd"] == "" and row["usd_at_most"] for row in unknown.values())
    html = stdout_of("cost", "--fleet", path, *window(0, END), "--format", "html")
    assert "50% of the time collected" in html
    digest = stdout_of("digest", "--fleet", path, *window(0, END))
    assert "50% of the time collected" in digest.split("\n\n")[0] + digest.split("\n\n")[1]


def test_budget_and_forecast_of_the_month_are_uncertain(fleet: tuple[Cloud, Path]) -> None:
    (found,) = read_json("digest", "--fleet", fleet[1], *window(120, END))
    assert found["budget"]["state"] != "within"
    assert any("not collected" in one for one in found["budget"]["unknown"])
    assert found["month"]["at_least"] is True
    assert Decimal(found["month"]["days_unknown"]) >= 2


def test_tokens_of_a_restarted_counter_are_not_invented(fleet: tuple[Cloud, Path]) -> None:
    found = read_json("cost", "--fleet", fleet[1], *window(0, END))
    tokens = found["total"]["tokens"]
    served = (STOPPED + END - 75) * 3600
    assert tokens["resets"] == 1
    assert served - 1_000 <= tokens["generation"] <= served
    assert any("counter resets" in note for note in found["notes"])


def test_focus_rows_with_a_gap_add_up_to_the_report(fleet: tuple[Cloud, Path]) -> None:
    whole = read_json("cost", "--fleet", fleet[1], *window(0, END))
    rows = list(
        csv.DictReader(StringIO(stdout_of("cost", "--fleet", fleet[1], *window(0, END), "--format", "focus")))
    )
    billed = sum((Decimal(row["EffectiveCost"]) for row in rows), Decimal(0))
    assert abs(billed - Decimal(whole["total"]["usd"])) < Decimal("1e-5")
