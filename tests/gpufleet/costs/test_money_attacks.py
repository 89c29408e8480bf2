"""Published cost errors of other tools as test cases: reported defects of OpenCost and Kubecost, and bad samples.

Issue numbers refer to github.com/opencost/opencost unless another repository is named.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpufleet.costs.allocation import Charge, LedgerFacts, UseState, charges
from gpufleet.costs.document import summed
from gpufleet.costs.samples import MetricNames, RawSeries, activity, readings
from gpufleet.costs.slots import ActivitySample, Measure
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger.facts import ActivityHour, Run
from gpufleet.prices.book import MissingPriceError, Packaged, PriceBook
from gpufleet.prices.packaged import PackagedPrices
from tests.fixtures.costs.overrides import override

T0 = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAMES = MetricNames(
    prompt="p", cached="c", generation="g", prefill_seconds="ps", decode_seconds="ds", process_start="start",
    requests=("running",), gpu_active=("active",),
)  # fmt: skip


def run(hours: float, machine_type: str = "p5.48xlarge", kind: CapacityType = CapacityType.ON_DEMAND) -> Run:
    return Run(
        cloud=Cloud.AWS, instance_id="i-1", started_at=T0, environment="e", region="us-east-1", zone="us-east-1a",
        machine_type=machine_type, capacity_type=kind, last_seen_at=T0 + hours * HOUR, pool="chat", model="m",
        owner="o",
    )  # fmt: skip


def book(packaged: Packaged | None = None, **usd: str) -> PriceBook:
    stated = [
        override(f"aws:ec2:p5.48xlarge:{kind}", price, T0)
        for kind, price in ((name.replace("_", "-"), price) for name, price in usd.items())
    ]
    return PriceBook(region="us-east-1", overrides=stated, packaged=packaged)


def bill(facts: LedgerFacts, prices: PriceBook, start: timedelta, end: timedelta) -> list[Charge]:
    return list(charges(facts, prices, T0 + start, T0 + end))


def test_machine_with_eight_gpus_is_charged_once() -> None:
    """#2987, #2901: the GPU cost was a multiple of the instance's price."""
    facts = LedgerFacts(runs=[run(1)])
    assert money.usd(summed(bill(facts, book(on_demand="55.04"), timedelta(), HOUR))) == Decimal("55.04")


def test_hourly_price_is_not_read_as_a_monthly_price() -> None:
    """#3830: stated prices came out 730 times too low."""
    facts = LedgerFacts(runs=[run(730)])
    assert money.usd(summed(bill(facts, book(on_demand="2"), timedelta(), 730 * HOUR))) == 1460


def test_spot_does_not_have_the_on_demand_price() -> None:
    """#3725, #882: 2.6 times too high, and hours late."""
    facts = LedgerFacts(runs=[run(2, kind=CapacityType.SPOT)])
    found = bill(facts, book(spot="10", on_demand="26"), timedelta(), 2 * HOUR)
    assert (money.usd(summed(found)), [one.on_demand for one in found]) == (20, [26 * 7200])


def test_spot_without_a_price_is_an_error_and_not_the_on_demand_price() -> None:
    with pytest.raises(MissingPriceError, match="p5.48xlarge:spot"):
        bill(LedgerFacts(runs=[run(2, kind=CapacityType.SPOT)]), book(on_demand="26"), timedelta(), HOUR)


def test_stated_price_overrides_the_price_of_gpu_machines() -> None:
    """#3160, #2029, kubecost#2418: custom prices were ignored."""
    found = bill(LedgerFacts(runs=[run(1)]), book(PackagedPrices(), on_demand="31"), timedelta(), HOUR)
    assert [(one.price.usd_per_hour if one.price else None) for one in found] == [31]


def test_one_unknown_machine_type_does_not_hide_the_others() -> None:
    """kubecost#2010: one machine type made every node disappear."""
    facts = LedgerFacts(runs=[run(1), replace(run(1, "a2-highgpu-1g"), instance_id="i-2")])
    found = list(charges(facts, book(on_demand="55"), T0, T0 + HOUR, allow_unpriced=True))
    assert [(one.resource, one.amount) for one in found] == [("i-1", 55 * 3600), ("i-2", None)]


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        pytest.param(0, 76, "1.52", id="76 s (#4057: negative minutes)"),
        pytest.param(3_599, 1, "0.02", id="one second within an hour (#656: always an hour)"),
        pytest.param(1_234, 86_400, "1728", id="24 h from an odd second (#3164: 23.91667 h)"),
        pytest.param(0, 300, "6", id="five minutes (#2096: lost)"),
    ],
)
def test_cost_of_a_window_is_for_its_own_length(start: int, length: int, expected: str) -> None:
    begin = timedelta(seconds=start)
    found = bill(LedgerFacts(runs=[run(100)]), book(on_demand="72"), begin, begin + timedelta(seconds=length))
    assert money.usd(summed(found)) == Decimal(expected)
    assert all(one.duration > timedelta() for one in found)


def test_idle_time_is_what_was_measured_as_idle() -> None:
    """PR #1266: a swapped subtraction made idle large; #3900: both bases were the same."""
    hour = ActivityHour(environment="e", instance_id="i-1", hour=T0, busy=(1 << 270) - 1, idle=((1 << 90) - 1) << 270)
    facts = LedgerFacts(runs=[run(1)], activity={"i-1": [hour]}, first_readings={"i-1": [T0]})
    of = {one.state: one.amount for one in bill(facts, book(on_demand="40"), timedelta(), HOUR)}
    assert of == {UseState.USED: 30 * 3600, UseState.IDLE: 10 * 3600}


def series(name: str, *values: float) -> RawSeries:
    samples = [ActivitySample(T0 + timedelta(minutes=n), value) for n, value in enumerate(values)]
    return RawSeries({"__name__": name, "instance_id": "i-1", "instance": "10.0.0.1:8000"}, samples)


@pytest.mark.parametrize("bad", [float("nan"), -5.0, float("inf"), float("-inf")], ids=str)
def test_nan_reading_is_skipped_and_is_not_a_reset(bad: float) -> None:
    found = readings("f", NAMES, [series("p", 100, bad, 250), series("g", 10, bad, 30)])
    assert [(one.prompt, one.generation) for one in found] == [(100, 10), (250, 30)]
    assert readings("f", NAMES, [series("p", bad, bad)]) == []


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf"), 2.0**31 - 16], ids=str)
def test_gpu_without_samples_is_not_idle(bad: float) -> None:
    idle = [series("running", 0, 0, 0)]
    assert activity("f", NAMES, [*idle, series("active", bad, bad, bad)], Measure()) == []
    assert len(activity("f", NAMES, [*idle, series("active", 0, 0, 0)], Measure())) == 1
