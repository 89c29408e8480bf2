"""Rules of the FOCUS 1.2 specification, checked on rows of a fleet with every kind of charge."""

import csv
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.allocation import LedgerFacts
from gpufleet.costs.focus import COLUMNS, MANDATORY, UnpricedError, days, quantity_and_cost, rows, write_csv
from gpufleet.costs.report import Report, ReportScope, build
from gpufleet.costs.tokens import EngineTokens
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.facts import EndCause, Reservation, Run, TokenReading
from gpufleet.prices.book import PriceBook
from tests.fixtures.costs.overrides import override

T0 = datetime(2026, 10, 31, 22, 0, tzinfo=UTC)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def run(name: str, capacity: CapacityType, start: float, end: float, **more: object) -> Run:
    fields: dict[str, object] = {
        "pool": "chat",
        "model": "models/chat",
        "owner": "search",
        "machine_type": "g6.xlarge",
    }
    return Run(
        cloud=Cloud.AWS,
        instance_id=name,
        started_at=T0 + timedelta(seconds=start),
        environment="aws/prod/us-east-1",
        region="us-east-1",
        zone="us-east-1a",
        capacity_type=capacity,
        last_seen_at=T0 + timedelta(seconds=end),
        ended_at=T0 + timedelta(seconds=end),
        **(fields | {"end_cause": EndCause.ENDED} | more),  # pyright: ignore[reportArgumentType]
    )


FACTS = LedgerFacts(
    runs=[
        run("i-od", CapacityType.ON_DEMAND, 0, 90_000.123456),
        run("i-spot", CapacityType.SPOT, 0, 1_000, end_cause=EndCause.PREEMPTED),
        run("i-short", CapacityType.SPOT, 10, 17),
        run("i-paid", CapacityType.RESERVED, 100, 8_000, reservation="cr-1", pool=None, owner=None),
    ],
    reservations=[
        Reservation(
            cloud=Cloud.AWS,
            reservation="cr-1",
            started_at=T0,
            instances=1,
            environment="e",
            region="us-east-1",
            zone="us-east-1a",
            machine_type="g6.xlarge",
            last_seen_at=T0 + timedelta(hours=4),
        )
    ],
)


def reports(facts: LedgerFacts = FACTS) -> list[Report]:
    names = ("on-demand", "spot")
    prices = [
        override(f"aws:ec2:g6.xlarge:{kind}", usd, T0 - timedelta(days=40))
        for kind, usd in zip(names, ("0.804800001", "0.3123"), strict=True)
    ]
    book = PriceBook(region="us-east-1", overrides=prices)
    reading = TokenReading(environment="e", instance_id="i-od", engine="8000/0", model="m", at=T0, prompt=7)
    served = Tokens(prompt=700, cached=70, generation=300)
    engine = EngineTokens(instance_id="i-od", engine="8000/0", model="m", tokens=served, base=None, last=reading)
    found: list[Report] = []
    for since, until in days(T0, T0 + timedelta(days=3)):
        scope = ReportScope(
            fleet="f",
            environment="prod",
            cloud="aws",
            region="us-east-1",
            since=since,
            until=until,
            now=until,
            allow_unpriced=True,
        )
        found.append(build(scope, facts, book, [engine] if since == T0 else [], None))
    return found


ROWS = list(csv.DictReader(StringIO(write_csv(rows(reports(), "123456789012")))))


def test_rows_have_exactly_the_specified_columns() -> None:
    assert len(MANDATORY) == 21
    assert tuple(ROWS[0]) == COLUMNS
    assert all(name[0].isupper() or name.startswith("x_") for name in COLUMNS)


def test_mandatory_columns_are_not_null() -> None:
    always = set(MANDATORY) - {"ChargeClass", "PricingQuantity", "PricingUnit"}
    for row in ROWS:
        assert [name for name in always if not row[name]] == []
        if row["ChargeCategory"] == "Usage":
            needed = (
                "PricingQuantity",
                "PricingUnit",
                "PricingCategory",
                "ConsumedQuantity",
                "ConsumedUnit",
                "SkuId",
            )
            assert all(row[name] for name in (*needed, "SkuPriceId", "ListUnitPrice", "ContractedUnitPrice"))


def test_columns_hold_only_allowed_values() -> None:
    allowed = {
        "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
        "ChargeClass": {"", "Correction"},
        "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
        "PricingCategory": {"", "Standard", "Dynamic", "Committed", "Other"},
        "CapacityReservationStatus": {"", "Used", "Unused"},
        "BillingCurrency": {"USD"},
        "ServiceCategory": {"Compute"},
    }
    for row in ROWS:
        for name, values in allowed.items():
            assert row[name] in values, name


def test_times_are_utc_and_periods_contain_their_charges() -> None:
    for row in ROWS:
        times = [
            row[name] for name in ("BillingPeriodStart", "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodEnd")
        ]
        assert all(TIME.fullmatch(value) for value in times)
        assert times == sorted(times) and times[1] < times[2]
        assert times[0].endswith("-01T00:00:00Z") and times[3].endswith("-01T00:00:00Z")
    assert {row["BillingPeriodStart"] for row in ROWS} == {"2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z"}


def test_quantity_times_unit_price_is_cost_in_decimals_and_in_floats() -> None:
    for row in ROWS:
        if row["ListUnitPrice"]:
            product = Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"])
            assert product == Decimal(row["ListCost"])
            assert float(row["PricingQuantity"]) * float(row["ListUnitPrice"]) == float(row["ListCost"])
        assert row["BilledCost"] == row["EffectiveCost"] == row["ContractedCost"] == row["ListCost"]


def test_reservations_are_used_or_unused_and_both_add_up_to_the_paid_amount() -> None:
    mine = [row for row in ROWS if row["CapacityReservationId"]]
    assert {row["CapacityReservationId"] for row in mine} == {"cr-1"}
    assert {row["CapacityReservationStatus"] for row in mine} == {"Used", "Unused"}
    hours = sum(Decimal(row["PricingQuantity"]) for row in mine)
    assert hours == pytest.approx(Decimal(4), abs=Decimal("1e-7"))
    for row in ROWS:
        assert bool(row["CapacityReservationId"]) == bool(row["CapacityReservationStatus"])


def test_credit_reduces_the_cost_and_not_the_hours() -> None:
    (credit,) = [row for row in ROWS if row["ChargeCategory"] == "Credit"]
    assert credit["ResourceId"] == "i-spot" and Decimal(credit["EffectiveCost"]) < 0
    assert not credit["PricingQuantity"] and not credit["SkuPriceId"]


def test_rows_add_up_to_the_report() -> None:
    whole = money.usd(money.total(report.total.allocation for report in reports()))
    assert sum(Decimal(row["EffectiveCost"]) for row in ROWS) == pytest.approx(whole, abs=Decimal("1e-6"))


def test_tokens_are_on_one_row() -> None:
    assert [row["x_PromptTokens"] for row in ROWS if row["x_PromptTokens"]] == ["700"]
    assert [row["x_GeneratedTokens"] for row in ROWS if row["x_GeneratedTokens"]] == ["300"]


def test_json_columns_hold_objects_without_nulls() -> None:
    for row in ROWS:
        for name in ("Tags", "SkuPriceDetails"):
            if row[name]:
                assert all(isinstance(value, str) for value in json.loads(row[name]).values())


def test_charge_without_a_price_is_an_error() -> None:
    facts = LedgerFacts(runs=[run("i-x", CapacityType.SPOT, 0, 100, machine_type="g5.xlarge")])
    with pytest.raises(UnpricedError, match=r"g5\.xlarge, spot.*no price"):
        list(rows(reports(facts), "1"))


@given(micros=st.integers(0, 10**12), price=st.decimals(Decimal("0.000001"), 200, places=9))
def test_quantities_match_the_duration(micros: int, price: Decimal) -> None:
    duration = timedelta(microseconds=micros)
    quantity, cost = quantity_and_cost(duration, price)
    assert abs(quantity - Decimal(micros) / 3_600_000_000) < Decimal("3e-9")
    assert float(quantity) * float(price) == float(cost)
    assert quantity * price == cost
