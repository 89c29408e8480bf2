"""Expected charges written by hand, with every field of every row."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.costs.allocation import Charge, ChargeKind, LedgerFacts, UseState, charges, fixed_charges, unused
from gpufleet.costs.commitments import BlockCommitment, Coverage, DeclaredCosts, SharedCost, SpendCommitment
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price, Rank
from gpufleet.ledger.facts import ActivityHour, EndCause, Reservation, Run
from gpufleet.prices.book import MissingPriceError, PriceBook
from tests.fixtures.costs.overrides import override

T0 = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SPOT, ON_DEMAND, RESERVED = CapacityType.SPOT, CapacityType.ON_DEMAND, CapacityType.RESERVED
RUN = Run(
    cloud=Cloud.AWS, instance_id="i-1", started_at=T0, environment="aws/test/us-east-1", region="us-east-1",
    zone="us-east-1a", machine_type="g6.xlarge", capacity_type=SPOT, last_seen_at=T0 + 4 * HOUR, pool="chat",
    model="models/chat", owner="search",
)  # fmt: skip
PAID = Reservation(
    cloud=Cloud.AWS, reservation="cr-1", started_at=T0, instances=3, environment="aws/test/us-east-1",
    region="us-east-1", zone="us-east-1a", machine_type="g6.xlarge", last_seen_at=T0 + 4 * HOUR, pool="chat",
    model="models/chat", owner="search",
)  # fmt: skip
BLOCK = BlockCommitment(
    reservation="cr-1", instances=3, upfront_usd=Decimal(24), starts=T0, ends=T0 + 4 * HOUR, source="order", as_of=T0
)
PLAN = SpendCommitment(
    name="sp-1", cloud=Cloud.AWS, usd_per_hour=Decimal(1), rates={"g6.xlarge": Decimal("0.6")}, starts=T0 - HOUR,
    ends=T0 + 9 * HOUR, source="order", as_of=T0,
)  # fmt: skip
GATEWAY = SharedCost(name="NAT gateway", sku="aws:vpc:nat-gateway", units=Decimal(2))
DISK = SharedCost(name="disk", sku="aws:ebs:gp3:gib", units=Decimal(100), per_instance=True)
USD = {
    "aws:ec2:g6.xlarge:spot": "0.36",
    "aws:ec2:g6.xlarge:on-demand": "0.72",
    "aws:vpc:nat-gateway": "0.045",
    "aws:ebs:gp3:gib": "0.0001",
}


def price(sku: str, usd: str, **more: Any) -> Price:
    base = Price(
        sku=sku, region="us-east-1", usd_per_hour=Decimal(usd), source="t", as_of=T0 - 9 * HOUR,
        valid_from=T0 - 9 * HOUR, rank=Rank.OVERRIDE,
    )  # fmt: skip
    return replace(base, **more)


def book(known: Mapping[str, str] = USD) -> PriceBook:
    return PriceBook(
        region="us-east-1",
        overrides=[override(sku, usd, T0 - 9 * HOUR) for sku, usd in known.items()],
    )


SPOT_PRICE, LIST_PRICE = price("aws:ec2:g6.xlarge:spot", "0.36"), price("aws:ec2:g6.xlarge:on-demand", "0.72")


def row(begin: float, end: float, hours: str, usd_seconds: str | None, at: Price | None, **more: Any) -> Charge:
    """A row of chat's spot instance. Times and duration are in hours, the cost is in dollar-seconds."""
    base = Charge(
        kind=ChargeKind.TIME, state=UseState.UNMEASURED, resource="i-1", cloud=Cloud.AWS, region="us-east-1",
        zone="us-east-1a", machine_type="g6.xlarge", capacity_type=SPOT, pool="chat", model="models/chat",
        owner="search", reservation=None, start=T0 + begin * HOUR, end=T0 + end * HOUR,
        duration=timedelta(seconds=float(hours) * 3_600), price=at,
        amount=None if usd_seconds is None else Decimal(usd_seconds),
    )  # fmt: skip
    return replace(base, **more)


def of_reservation(begin: float, end: float, hours: str, usd_seconds: str | None, at: Price | None) -> Charge:
    more = {"kind": ChargeKind.RESERVATION, "state": UseState.UNUSED, "capacity_type": RESERVED}
    return row(begin, end, hours, usd_seconds, at, resource="cr-1", reservation="cr-1", **more)


def of_shared(sku: str, begin: float, end: float, usd_seconds: str | None, at: Price | None, **more: Any) -> Charge:
    base = {"kind": ChargeKind.SHARED, "state": UseState.SHARED, "capacity_type": ON_DEMAND, "machine_type": sku}
    return row(begin, end, str(end - begin), usd_seconds, at, **(base | more))


def same(found: Iterable[Charge], *expected: Charge) -> None:
    assert list(found) == list(expected)


def facts(*runs: Run, declared: DeclaredCosts = DeclaredCosts(), **more: Any) -> LedgerFacts:
    everything = {"coverage": Coverage(declared, runs), "known": (T0, T0 + 4 * HOUR)} | more
    return LedgerFacts(runs=runs, declared=declared, **everything)


def bill(given: LedgerFacts, begin: float, end: float, prices: PriceBook | None = None, **more: bool) -> list[Charge]:
    return list(charges(given, prices or book(), T0 + begin * HOUR, T0 + end * HOUR, **more))


def test_run_is_split_by_use_state() -> None:
    busy = ActivityHour(environment="e", instance_id="i-1", hour=T0, busy=0b11 << 180, idle=0b1111 << 182)
    given = facts(RUN, activity={"i-1": [busy]}, first_readings={"i-1": [T0 + 0.25 * HOUR, T0 + HOUR]})
    same(
        bill(given, 0, 0.75),
        row(0, 0.25, "0.25", "324", SPOT_PRICE, state=UseState.STARTING, on_demand=Decimal(648)),
        row(0.25, 0.75, str(2 / 360), "7.2", SPOT_PRICE, state=UseState.USED, on_demand=Decimal("14.4")),
        row(0.25, 0.75, str(4 / 360), "14.4", SPOT_PRICE, state=UseState.IDLE, on_demand=Decimal("28.8")),
        row(0.25, 0.75, str(174 / 360), "626.4", SPOT_PRICE, on_demand=Decimal("1252.8")),
    )


@pytest.mark.parametrize(
    ("sign", "starting"),
    [
        pytest.param(0, 0, id="at the launch"),
        pytest.param(4, 4, id="at the end"),
        pytest.param(-0.01, 0, id="before the launch: another run"),
        pytest.param(4.01, 0, id="after the end: another run"),
    ],
)
def test_starting_state_ends_with_the_first_sign_of_the_engine(sign: float, starting: float) -> None:
    given = facts(replace(RUN, ended_at=T0 + 4 * HOUR), first_readings={"i-1": [T0 + sign * HOUR]})
    found = {charge.state: charge.duration / HOUR for charge in bill(given, 0, 4)}
    kept = {UseState.STARTING: starting, UseState.UNMEASURED: 4 - starting}
    assert found == {state: hours for state, hours in kept.items() if hours}


ENDED = replace(RUN, ended_at=T0 + 0.5 * HOUR, end_exact=True)


def test_preemption_within_the_free_time_is_credited_at_the_end() -> None:
    taken = facts(replace(ENDED, end_cause=EndCause.PREEMPTED, reservation="x"))
    credit = row(
        0.5, 0.5, "0.5", "-648", SPOT_PRICE, kind=ChargeKind.PREEMPTED, reservation="x", on_demand=Decimal(-1296)
    )
    same(bill(taken, 0.5, 1), credit)
    unknown = replace(credit, price=None, amount=None, on_demand=None)
    same(bill(taken, 0.5, 1, book({}), allow_unpriced=True), unknown)
    with pytest.raises(MissingPriceError, match="spot"):
        bill(taken, 0.5, 1, book({}))


@pytest.mark.parametrize("kind", [ON_DEMAND, RESERVED])
def test_only_preempted_spot_is_credited(kind: CapacityType) -> None:
    taken = facts(replace(ENDED, end_cause=EndCause.PREEMPTED, capacity_type=kind))
    assert bill(taken, 0.5, 1) == []


def test_one_minute_is_charged_at_least_except_for_reserved_capacity() -> None:
    short = replace(RUN, ended_at=T0 + timedelta(seconds=20), end_cause=EndCause.ENDED, end_exact=True)
    at = T0 + timedelta(seconds=20)
    paid = timedelta(seconds=40)
    minute = row(
        0, 0, "0", "14.4", SPOT_PRICE, kind=ChargeKind.MINIMUM, state=UseState.STARTING, on_demand=Decimal("28.8")
    )
    same(bill(facts(short), 20 / 3600, 1), replace(minute, start=at, end=at, duration=paid))
    assert bill(facts(replace(short, capacity_type=RESERVED)), 20 / 3600, 1) == []
    exact = replace(short, ended_at=T0 + timedelta(seconds=60))
    assert bill(facts(exact), 60 / 3600, 1) == []


def test_end_of_a_run_belongs_to_the_window_that_starts_with_it() -> None:
    taken = facts(replace(ENDED, end_cause=EndCause.PREEMPTED))
    assert [charge.kind for charge in bill(taken, 0, 0.5)] == [ChargeKind.TIME]
    assert [charge.kind for charge in bill(taken, 0.5, 0.51)] == [ChargeKind.PREEMPTED]


def test_unused_declared_instances_are_charged() -> None:
    sits = replace(RUN, capacity_type=RESERVED, reservation="cr-1", started_at=T0 + HOUR, ended_at=T0 + 2 * HOUR)
    other = replace(RUN, instance_id="i-2", capacity_type=RESERVED, reservation="cr-2")
    given = facts(sits, other, reservations=[PAID])
    same(
        unused(given, book(), T0, T0 + 3 * HOUR),
        of_reservation(0, 1, "3", "7776", LIST_PRICE),
        of_reservation(1, 2, "2", "5184", LIST_PRICE),
        of_reservation(2, 3, "3", "7776", LIST_PRICE),
    )
    same(unused(given, book({}), T0, T0 + HOUR), of_reservation(0, 1, "3", None, None))
    with pytest.raises(MissingPriceError, match="on-demand"):
        list(unused(given, book({}), T0, T0 + HOUR, allow_unpriced=False))
    full = facts(*(replace(sits, instance_id=f"i-{n}") for n in range(4)), reservations=[PAID])
    found = [(charge.start, charge.duration) for charge in unused(full, book(), T0, T0 + 3 * HOUR)]
    assert found == [(T0, 3 * HOUR), (T0 + 2 * HOUR, 3 * HOUR)]


@pytest.mark.parametrize(
    ("more", "begin", "end"),
    [
        pytest.param({}, 1, 4, id="until it was last seen"),
        pytest.param({"ends_at": T0 + 2 * HOUR}, 1, 2, id="until it ends"),
        pytest.param({"ends_at": T0 + 9 * HOUR}, 1, 4, id="an end in the future"),
        pytest.param({"started_at": T0 + 3 * HOUR}, 3, 4, id="since its start"),
        pytest.param({"last_seen_at": T0 + HOUR}, None, None, id="ended before"),
    ],
)
def test_period_for_which_a_reservation_is_charged(
    more: dict[str, Any], begin: float | None, end: float | None
) -> None:
    given = facts(reservations=[replace(PAID, **more), PAID])
    *mine, _ = unused(given, book(), T0 + HOUR, T0 + 9 * HOUR)
    assert [(c.start, c.end) for c in mine] == ([(T0 + begin * HOUR, T0 + end * HOUR)] if begin and end else [])


@pytest.mark.parametrize(
    ("more", "free"),
    [
        pytest.param({}, 2, id="alike, without a reservation"),
        pytest.param({"reservation": "cr-1", "zone": "z", "capacity_type": ON_DEMAND}, 2, id="in the reservation"),
        pytest.param({"reservation": "cr-2"}, 3, id="in another one"),
        pytest.param({"capacity_type": ON_DEMAND}, 3, id="on demand"),
        pytest.param({"zone": "us-east-1b"}, 3, id="another zone"),
        pytest.param({"machine_type": "g6.2xlarge"}, 3, id="another machine"),
        pytest.param({"cloud": Cloud.GCP}, 3, id="another cloud"),
    ],
)
def test_which_instances_use_a_reservation(more: dict[str, Any], free: int) -> None:
    given = facts(replace(RUN, **({"capacity_type": RESERVED} | more)), reservations=[PAID])
    (left,) = unused(given, book(), T0, T0 + HOUR)
    assert left.duration == free * HOUR


def test_capacity_block_has_its_own_price_whether_used_or_not() -> None:
    declared = DeclaredCosts(blocks=[BLOCK])
    sits = replace(RUN, capacity_type=RESERVED, reservation="cr-1")
    own = price(
        "block:cr-1:g6.xlarge", "2.000000000", source="order; 24 USD upfront, spread over its time", as_of=T0,
        valid_from=T0,
    )  # fmt: skip
    given = facts(sits, declared=declared, reservations=[PAID])
    same(
        bill(given, 0, 4, book({})),
        row(0, 4, "4", "28800", own, capacity_type=RESERVED, reservation="cr-1"),
        of_reservation(0, 4, "8", "57600", own),
    )
    later = replace(BLOCK, starts=T0 + HOUR, ends=T0 + 3 * HOUR)
    cut = facts(sits, declared=DeclaredCosts(blocks=[later]))
    spans = {(c.start, c.end): str(c.price.sku) for c in bill(cut, 0, 4) if c.price is not None}
    own_name, usual = "block:cr-1:g6.xlarge", "aws:ec2:g6.xlarge:on-demand"
    assert spans == {
        (T0 + HOUR, T0 + 3 * HOUR): own_name, (T0, T0 + HOUR): usual, (T0 + 3 * HOUR, T0 + 4 * HOUR): usual,
    }  # fmt: skip
    with pytest.raises(MissingPriceError):  # outside the time of the block the usual price is needed
        bill(cut, 0, 4, book({}))


def test_attached_resources_are_charged_for_the_run_of_their_instance() -> None:
    given = facts(ENDED, declared=DeclaredCosts(shared=[DISK]))
    listed = Decimal("0.0001")
    units = price("aws:ebs:gp3:gib", "0.0100", source=f"t; 100 units of {listed} USD/h", list_usd_per_hour=listed)
    disk = of_shared("aws:ebs:gp3:gib", 0.25, 0.5, "9", units, resource="i-1/disk")
    same((c for c in bill(given, 0.25, 2) if c.kind is not ChargeKind.TIME), disk)
    unknown = replace(disk, price=None, amount=None)
    prices = book({sku: usd for sku, usd in USD.items() if "ec2" in sku})
    same((c for c in bill(given, 0.25, 2, prices, allow_unpriced=True) if c.kind is not ChargeKind.TIME), unknown)
    with pytest.raises(MissingPriceError, match="gp3"):
        bill(given, 0.25, 2, prices)
    assert bill(given, 0.5, 2) == []


def test_shared_cost_is_split_over_pools_only_while_it_is_known() -> None:
    declared = DeclaredCosts(
        shared=[DISK, GATEWAY], weights={"chat": 2, "batch": 1}, models={"chat": "models/chat"},
        owners={"batch": "research"},
    )  # fmt: skip
    given = facts(declared=declared, known=(T0 + HOUR, T0 + 3 * HOUR))
    sku = "aws:vpc:nat-gateway"

    def part(usd: str, seconds: str, units: str, **more: Any) -> Charge:
        mine = price(sku, usd, source=f"t; {units} of 3 parts", list_usd_per_hour=Decimal("0.045"))
        return of_shared(sku, 1, 3, seconds, mine, resource="NAT gateway", zone="", **more)

    rows = (
        part("0.030000000", "216", "1", pool="batch", model=None, owner="research"),
        part("0.060000000", "432", "2", pool="chat", owner=None),
    )
    same(fixed_charges(given, book(), T0, T0 + 4 * HOUR), *rows)
    same(bill(given, 0, 4), *rows)
    inside = [(c.start, c.end) for c in fixed_charges(given, book(), T0 + 1.5 * HOUR, T0 + 2 * HOUR)]
    assert inside == [(T0 + 1.5 * HOUR, T0 + 2 * HOUR)] * 2
    assert list(fixed_charges(given, book(), T0, T0 + HOUR)) == []
    assert list(fixed_charges(replace(given, known=None), book(), T0, T0 + 4 * HOUR)) == []
    unassigned = {"resource": "NAT gateway", "zone": "", "pool": None, "model": None, "owner": None}
    same(fixed_charges(given, book({}), T0, T0 + 2 * HOUR), of_shared(sku, 1, 2, None, None, **unassigned))
    with pytest.raises(MissingPriceError, match="nat-gateway"):
        bill(given, 0, 4, book({}))


def test_unused_commitment_is_charged() -> None:
    run = replace(RUN, capacity_type=ON_DEMAND, started_at=T0 + HOUR, ended_at=T0 + 2 * HOUR)
    given = facts(run, declared=DeclaredCosts(spends=[PLAN]), known=(T0, T0 + 3 * HOUR))

    def unused_part(begin: float, end: float, usd: str, seconds: str) -> Charge:
        mine = price("commitment:sp-1", usd, region="", source="order; not used of 1 USD/h", as_of=T0,
                     valid_from=T0 - HOUR)  # fmt: skip
        more = {"kind": ChargeKind.COMMITTED, "state": UseState.UNUSED, "capacity_type": RESERVED, "resource": "sp-1"}
        unassigned = {"region": "", "zone": "", "pool": None, "model": None, "owner": None}
        return of_shared("commitment:sp-1", begin, end, seconds, mine, **(unassigned | more))

    same(
        fixed_charges(given, book(), T0 - HOUR, T0 + 4 * HOUR),
        unused_part(0, 1, "1", "3600"),
        unused_part(1, 2, "0.4", "1440"),
        unused_part(2, 3, "1", "3600"),
    )
    same(fixed_charges(given, book(), T0 + 1.5 * HOUR, T0 + 1.75 * HOUR), unused_part(1.5, 1.75, "0.4", "360"))
    assert list(fixed_charges(replace(given, known=None), book(), T0, T0 + HOUR)) == []
    covered, *_ = bill(given, 1, 2)
    assert covered.price is not None and covered.price.usd_per_hour == Decimal("0.6")


def test_only_the_time_without_a_price_has_an_unknown_amount() -> None:
    known = [
        replace(price(f"aws:ec2:g6.xlarge:{kind}", usd), rank=Rank.LIVE, valid_from=T0 + since * HOUR)
        for kind, usd, since in (("spot", "0.36", 1), ("on-demand", "0.72", 2))
    ]
    some = PriceBook(region="us-east-1", observed=known)
    found = bill(facts(RUN), 0, 4, some, allow_unpriced=True)
    assert [(c.start, c.amount, c.on_demand) for c in found] == [
        (T0, None, None),
        (T0 + HOUR, Decimal(1296), None),
        (T0 + 2 * HOUR, Decimal(2592), Decimal(5184)),
    ]
    with pytest.raises(MissingPriceError, match="06:00"):
        bill(facts(RUN), 0, 4, some)
