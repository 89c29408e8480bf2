"""A reservation that several fleets or other users of the account share is charged once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.allocation import Charge, ChargeKind, LedgerFacts, charges
from gpufleet.costs.report import ReportScope, WindowFacts, compute
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import Reservation, Run
from gpufleet.ledger.reservations import note_reservations, reservations
from gpufleet.ledger.schema import open_ledger
from gpufleet.prices.book import PriceBook
from tests.fixtures.costs.overrides import override

T0 = datetime(2026, 11, 21, tzinfo=UTC)
HOUR = timedelta(hours=1)
END = T0 + 10 * HOUR
PLACES = {
    Cloud.AWS: ("us-east-1", "us-east-1a", "p5.48xlarge", "aws:ec2:p5.48xlarge:on-demand"),
    Cloud.GCP: ("us-central1", "us-central1-a", "a3-highgpu-8g", "gcp:compute:a3-highgpu-8g:on-demand"),
}


def book(cloud: Cloud) -> PriceBook:
    region, _, _, sku = PLACES[cloud]
    return PriceBook(region=region, overrides=[replace(override(sku, "55", T0 - HOUR), region=region)])


def seen(cloud: Cloud = Cloud.AWS, fleet: str = "prod", at: datetime = END, **more: object) -> Reservation:
    """What a pass sees of a reservation of four instances."""
    region, zone, machine_type, _ = PLACES[cloud]
    found = Reservation(
        cloud=cloud, reservation="cr-1", started_at=T0, instances=4, environment=fleet, region=region, zone=zone,
        machine_type=machine_type, last_seen_at=at, pool="chat", seats=2,
    )  # fmt: skip
    return replace(found, **more)


def ran(name: str, cloud: Cloud = Cloud.AWS, start: datetime = T0, end: datetime = END) -> Run:
    region, zone, machine_type, _ = PLACES[cloud]
    return Run(
        cloud=cloud, instance_id=name, started_at=start, environment="e", region=region, zone=zone,
        machine_type=machine_type, capacity_type=CapacityType.RESERVED, last_seen_at=end, reservation="cr-1",
    )  # fmt: skip


def usd(rows: Sequence[Charge]) -> Decimal:
    return money.usd(money.total(row.amount for row in rows if row.amount is not None))


@pytest.mark.parametrize("cloud", list(Cloud))
@pytest.mark.parametrize(
    ("prod", "search", "others", "unused"),
    [
        pytest.param(2, 2, 0, ("0", "0"), id="full"),
        pytest.param(2, 0, 2, ("0", "0"), id="full, half used by others"),
        pytest.param(2, 1, 0, ("275", "275"), id="one instance unused"),
        pytest.param(1, 1, 1, ("275", "275"), id="one instance unused, one of others"),
        pytest.param(0, 0, 0, ("1100", "1100"), id="empty"),
        pytest.param(3, 0, 0, ("275", "275"), id="one fleet on more than it declares"),
    ],
)
def test_fleets_that_share_a_reservation_pay_it_once(
    cloud: Cloud, prod: int, search: int, others: int, unused: tuple[str, str]
) -> None:
    total, found = Decimal(0), list[Decimal]()
    for mine, elsewhere in ((prod, search + others), (search, prod + others)):
        runs = [ran(f"i-{n}", cloud) for n in range(mine)]
        rows = list(
            charges(LedgerFacts(runs=runs, reservations=[seen(cloud, elsewhere=elsewhere)]), book(cloud), T0, END)
        )
        total += usd(rows)
        found.append(usd([row for row in rows if row.kind is ChargeKind.RESERVATION]))
    assert found == list(map(Decimal, unused))
    assert total + others * 10 * 55 == 4 * 10 * 55


@given(
    readings=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8),
    declared_instances=st.integers(0, 7),
    cuts=st.lists(st.integers(1, 8 * 3600 - 1), max_size=4),
)
def test_sum_over_fleets_is_the_bill_over_any_partition(
    readings: list[tuple[int, int, int]], declared_instances: int, cuts: list[int]
) -> None:
    """Seven declared instances. Each hour some instances of two fleets and of others use them."""
    total, until = 7, T0 + len(readings) * HOUR
    hours = [(a, b, min(c, total - a - b)) for a, b, c in readings]
    edges = [T0, *sorted({at for cut in cuts if (at := T0 + timedelta(seconds=cut)) < until}), until]
    paid = Decimal(0)
    for fleet, declared in ((0, declared_instances), (1, total - declared_instances)):
        known = LedgerFacts(
            runs=[
                ran(f"i-{h}-{n}", start=at, end=at + HOUR) for h, at in _hours(hours) for n in range(hours[h][fleet])
            ],
            reservations=[
                seen(started_at=at, at=at + HOUR, instances=total, seats=declared,
                     elsewhere=sum(hours[h]) - hours[h][fleet])
                for h, at in _hours(hours)
            ],
        )  # fmt: skip
        whole = usd(list(charges(known, book(Cloud.AWS), T0, until)))
        parts = [usd(list(charges(known, book(Cloud.AWS), *span))) for span in zip(edges, edges[1:], strict=False)]
        assert abs(sum(parts, Decimal(0)) - whole) <= Decimal("1e-8")
        paid += whole
    others = sum(hour[2] for hour in hours) * 55
    assert abs(paid + others - total * 55 * len(hours)) <= Decimal("1e-6")


def _hours(hours: Sequence[object]) -> Iterator[tuple[int, datetime]]:
    return ((number, T0 + number * HOUR) for number in range(len(hours)))


def test_ledger_keeps_each_time_of_the_same_use(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    readings = [(1, 4, 0), (2, 4, 0), (3, 4, 2), (4, 6, 2), (5, 6, 2)]
    with writing(engine) as connection:
        for hour, instances, elsewhere in [*readings, readings[-1]]:
            for fleet in ("prod", "search"):
                reading = seen(fleet=fleet, at=T0 + hour * HOUR, instances=instances, elsewhere=elsewhere)
                note_reservations(connection, [reading])
        found = reservations(connection, "prod", T0 + 2 * HOUR, END)
    assert [(one.started_at, one.last_seen_at, one.instances, one.elsewhere) for one in found] == [
        (T0, T0 + 3 * HOUR, 4, 0),
        (T0 + 3 * HOUR, T0 + 4 * HOUR, 4, 2),
        (T0 + 4 * HOUR, T0 + 5 * HOUR, 6, 2),
    ]


def test_reservation_recreated_under_its_name_costs_nothing_in_between(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with writing(engine) as connection:
        note_reservations(connection, [seen(at=T0 + HOUR)])
        note_reservations(connection, [seen(at=T0 + 5 * HOUR, started_at=T0 + 4 * HOUR)])
        found = reservations(connection, "prod", T0, END)
    assert [(one.started_at, one.last_seen_at) for one in found] == [
        (T0, T0 + HOUR),
        (T0 + 4 * HOUR, T0 + 5 * HOUR),
    ]


def test_rows_of_an_older_release_count_until_this_release_writes(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with writing(engine) as connection:
        facts.add_reservations(connection, [seen(at=T0 + 2 * HOUR, seats=None)])
        note_reservations(connection, [seen(at=T0 + 3 * HOUR, elsewhere=1)])
        # the older release runs again for a while
        facts.add_reservations(connection, [seen(at=T0 + 4 * HOUR, seats=None)])
        note_reservations(connection, [seen(at=T0 + 5 * HOUR, elsewhere=1)])
        found = reservations(connection, "prod", T0, END)
    assert [(one.started_at, one.last_seen_at, one.elsewhere, one.seats) for one in found] == [
        (T0, T0 + 2 * HOUR, 0, None),
        (T0 + 2 * HOUR, T0 + 5 * HOUR, 1, 2),
    ]


def test_report_names_other_users_of_a_reservation() -> None:
    scope = ReportScope(
        fleet="prod", environment="prod", cloud="aws", region="us-east-1", since=T0 + HOUR, until=END, now=END
    )
    known = WindowFacts(facts=LedgerFacts(runs=[], reservations=[seen(elsewhere=2)]), book=book(Cloud.AWS), last=None)
    found = compute(scope, known, [])
    assert [(one.started_at, one.last_seen_at, one.elsewhere) for one in found.reservations] == [(T0 + HOUR, END, 2)]
    notes = [note for note in found.notes if note.startswith("reservation cr-1: ")]
    assert [note.split(": ")[1][:24] for note in notes] == ["18.0 instance-hours were", "this fleet declares 2 of"]
