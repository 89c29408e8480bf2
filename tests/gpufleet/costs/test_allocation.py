"""Charges of runs and reservations: use states that add up, prices in force, minimum and interruption rules."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.allocation import Charge, ChargeKind, LedgerFacts, UseState, charges
from gpufleet.costs.document import summed
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger.facts import ActivityHour, EndCause, Reservation, Run
from gpufleet.prices.book import MissingPriceError, PriceBook
from tests.fixtures.costs.overrides import override

T0 = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def run(start: float, end: float | None, capacity: CapacityType = SPOT, **more: object) -> Run:
    """A run from `start` to `end` seconds after T0. With `end` None it still runs and was last seen after four
    hours."""
    ended = None if end is None else T0 + timedelta(seconds=end)
    base = Run(
        cloud=Cloud.AWS,
        instance_id="i-1",
        started_at=T0 + timedelta(seconds=start),
        environment="aws/test/us-east-1",
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        capacity_type=capacity,
        last_seen_at=ended or T0 + 4 * HOUR,
        pool="chat",
        model="models/chat",
        owner="search",
        ended_at=ended,
        end_cause=None if ended is None else EndCause.ENDED,
        end_exact=ended is not None,
    )
    return replace(base, **more)  # pyright: ignore[reportArgumentType]


def book(spot: Sequence[tuple[float, str]] = ((-86_400, "0.36"),), on_demand: str | None = "0.72") -> PriceBook:
    """A price book. Keys are seconds after T0 at which a price begins."""
    overrides = [override("aws:ec2:g6.xlarge:spot", usd, T0 + timedelta(seconds=at)) for at, usd in spot]
    if on_demand:
        overrides.append(override("aws:ec2:g6.xlarge:on-demand", on_demand, T0 - timedelta(days=9)))
    return PriceBook(region="us-east-1", overrides=overrides)


def bill(facts: LedgerFacts, since: float, until: float, prices: PriceBook | None = None) -> list[Charge]:
    return list(charges(facts, prices or book(), T0 + timedelta(seconds=since), T0 + timedelta(seconds=until)))


def usd(rows: Sequence[Charge]) -> Decimal:
    return money.usd(summed(rows))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(24 * 3600, "17.28", id="24 h are 24 h"),
        pytest.param(76, "0.0152", id="76 s are 76 s"),
        pytest.param(3599, "0.7198", id="less than an hour is not an hour"),
        pytest.param(3600, "0.72", id="an hour"),
    ],
)
def test_charge_is_duration_times_price(seconds: int, expected: str) -> None:
    on = run(0, seconds, ON_DEMAND)
    assert usd(bill(LedgerFacts(runs=[on]), -10, 200_000)) == Decimal(expected)


def test_a_price_change_splits_the_bill_to_the_second() -> None:
    prices = book(((-86_400, "0.36"), (1_801, "0.72")))
    rows = bill(LedgerFacts(runs=[run(0, 3_600)]), 0, 3_601, prices)
    assert [(row.duration.total_seconds(), row.price.usd_per_hour) for row in rows if row.price] == [
        (1801, Decimal("0.36")),
        (1799, Decimal("0.72")),
    ]
    assert usd(rows) == Decimal("0.5399")


def test_spot_is_compared_with_on_demand() -> None:
    (row,) = bill(LedgerFacts(runs=[run(0, 3_600)]), 0, 3_601)
    assert row.on_demand is not None
    assert money.usd(row.on_demand) == Decimal("0.72")


def test_spot_without_an_on_demand_price_has_no_comparison() -> None:
    (row,) = bill(LedgerFacts(runs=[run(0, 3_600)]), 0, 3_601, book(on_demand=None))
    assert row.on_demand is None


def test_missing_price_raises_unless_unpriced_is_allowed() -> None:
    facts = LedgerFacts(runs=[run(0, 3_600, machine_type="g6.2xlarge")])
    with pytest.raises(MissingPriceError, match=r"g6\.2xlarge"):
        bill(facts, 0, 3_601)
    (row,) = charges(facts, book(), T0, T0 + 2 * HOUR, allow_unpriced=True)
    assert row.amount is None and row.duration == HOUR


@pytest.mark.parametrize(
    ("cloud", "seconds", "cause", "expected"),
    [
        pytest.param(Cloud.AWS, 3599, EndCause.PREEMPTED, "0", id="preempted by AWS within the first hour"),
        pytest.param(Cloud.AWS, 3600, EndCause.PREEMPTED, "0.36", id="preempted by AWS after an hour"),
        pytest.param(Cloud.AWS, 1800, EndCause.ENDED, "0.18", id="ended by a watchdog"),
        pytest.param(Cloud.AWS, 20, EndCause.ENDED, "0.006", id="the minimum of a minute"),
        pytest.param(Cloud.AWS, 0, EndCause.ENDED, "0.006", id="a minute without charge"),
        pytest.param(Cloud.AWS, 60, EndCause.ENDED, "0.006", id="a minute"),
        pytest.param(Cloud.GCP, 59, EndCause.PREEMPTED, "0", id="preempted by Google within the first minute"),
        pytest.param(Cloud.GCP, 1800, EndCause.PREEMPTED, "0.18", id="preempted by Google after a minute"),
    ],
)
def test_billing_rules_at_the_end_of_a_run(cloud: Cloud, seconds: int, cause: EndCause, expected: str) -> None:
    sku = f"{cloud}:{'ec2' if cloud is Cloud.AWS else 'compute'}:g6.xlarge:spot"
    prices = PriceBook(
        region="us-east-1",
        overrides=[override(sku, "0.36", T0 - HOUR)],
    )
    rows = bill(LedgerFacts(runs=[run(0, seconds, cloud=cloud, end_cause=cause)]), -5, 7_200, prices)
    assert usd(rows) == Decimal(expected)


def test_interruption_credit_is_charged_at_the_end_of_the_run() -> None:
    facts = LedgerFacts(runs=[run(0, 600, end_cause=EndCause.PREEMPTED)])
    assert usd(bill(facts, 0, 600)) == Decimal("0.06")
    (credit,) = bill(facts, 600, 601)
    assert (credit.kind, credit.start, credit.end) == (
        ChargeKind.PREEMPTED,
        credit.end,
        T0 + timedelta(seconds=600),
    )
    assert money.usd(credit.amount or money.ZERO) == Decimal("-0.06")


def test_use_states_partition_the_duration_of_a_run() -> None:
    hour = ActivityHour(environment="e", instance_id="i-1", hour=T0, busy=0b111 << 12, idle=0b11111 << 15)
    facts = LedgerFacts(
        runs=[run(0, 300)], activity={"i-1": [hour]}, first_readings={"i-1": [T0 + timedelta(seconds=115)]}
    )
    found = {row.state: row.duration.total_seconds() for row in bill(facts, 0, 301)}
    assert found == {UseState.STARTING: 115, UseState.USED: 30, UseState.IDLE: 50, UseState.UNMEASURED: 105}


def test_unused_reservation_time_excludes_the_instances_in_it() -> None:
    paid = Reservation(
        cloud=Cloud.AWS,
        reservation="cr-1",
        started_at=T0,
        instances=2,
        environment="e",
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        last_seen_at=T0 + HOUR,
        pool="chat",
    )
    one = run(0, 3_600, CapacityType.RESERVED, reservation="cr-1")
    two = run(1_800, 2_700, CapacityType.RESERVED, reservation="cr-1", instance_id="i-2")
    rows = bill(LedgerFacts(runs=[one, two], reservations=[paid]), 0, 7_200)
    free = [row for row in rows if row.kind is ChargeKind.RESERVATION]
    assert sum(row.duration.total_seconds() for row in free) == 2_700
    assert usd(rows) == 2 * Decimal("0.72")  # two declared instances for an hour, whichever instances used them


SECONDS = st.integers(0, 20_000)
SLOTS = st.integers(0, (1 << 360) - 1)


@st.composite
def fleets(draw: st.DrawFn) -> LedgerFacts:
    """Draws a few runs with their activity, over about five hours."""
    runs: list[Run] = []
    activity: dict[str, list[ActivityHour]] = {}
    signs: dict[str, list[datetime]] = {}
    for number in range(draw(st.integers(1, 4))):
        name, start = f"i-{number}", draw(SECONDS)
        end = draw(st.none() | st.integers(start, start + 9_000))
        capacity = draw(st.sampled_from((SPOT, ON_DEMAND, CapacityType.RESERVED)))
        cause = draw(st.sampled_from(list(EndCause))) if end is not None else None
        one = run(start, end, capacity, instance_id=name, end_cause=cause)
        runs.append(replace(one, last_seen_at=max(one.last_seen_at, one.started_at)))
        activity[name] = []
        for hour in range(draw(st.integers(0, 6))):
            busy = draw(SLOTS)
            activity[name].append(
                ActivityHour(
                    environment="e", instance_id=name, hour=T0 + hour * HOUR, busy=busy, idle=draw(SLOTS) & ~busy
                )
            )
        signs[name] = [T0 + timedelta(seconds=draw(SECONDS)) for _ in range(draw(st.integers(0, 2)))]
    paid = Reservation(
        cloud=Cloud.AWS,
        reservation="cr-1",
        started_at=T0 + timedelta(seconds=draw(SECONDS)),
        instances=draw(st.integers(1, 3)),
        environment="e",
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        last_seen_at=T0 + timedelta(seconds=30_000),
    )
    return LedgerFacts(runs=runs, activity=activity, first_readings=signs, reservations=[paid])


CHANGES = st.lists(st.tuples(st.integers(1, 30_000), st.integers(1, 10**6)), max_size=4, unique_by=lambda c: c[0])


@given(facts=fleets(), cuts=st.lists(st.integers(1, 39_999_999), max_size=6), changes=CHANGES)
def test_sums_over_any_partition_of_a_window_are_equal(
    facts: LedgerFacts, cuts: list[int], changes: list[tuple[int, int]]
) -> None:
    prices = book(((-86_400, "0.361234567"), *((at, str(Decimal(p).scaleb(-6))) for at, p in changes)))
    edges = [0, *sorted({cut / 1000 for cut in cuts}), 40_000]
    whole = bill(facts, 0, 40_000, prices)
    parts = [row for start, end in zip(edges, edges[1:], strict=False) for row in bill(facts, start, end, prices)]
    assert summed(parts) == summed(whole)
    for state in UseState:
        mine = [r for r in parts if r.state is state], [r for r in whole if r.state is state]
        assert summed(mine[0]) == summed(mine[1])
        times = [sum((r.duration for r in rows if r.kind is not ChargeKind.MINIMUM), timedelta(0)) for rows in mine]
        assert times[0] == times[1]


@given(facts=fleets())
def test_use_states_add_up_to_the_paid_time(facts: LedgerFacts) -> None:
    rows = [row for row in bill(facts, 0, 40_000) if row.kind is ChargeKind.TIME]
    for one in facts.runs:
        mine = [row.duration for row in rows if row.resource == one.instance_id]
        assert sum(mine, timedelta(0)) == (one.ended_at or one.last_seen_at) - one.started_at
        assert all(duration > timedelta(0) for duration in mine)
