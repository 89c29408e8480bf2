"""Watchdogs use a price for as long as reports call it fresh, and the cost pass requests list prices once a day."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app import cost_pass, prices
from app.cost_pass import CostPassListener
from app.fleets import load_one
from app.ledgers import open_ledger_of
from app.wiring import prices_of
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts, history
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from gpufleet.prices.book import Sku, fresh_since, is_stale, machine_sku
from gpufleet.settings.document import FleetDocument
from tests.fixtures.small_fleet import T0, document

TYPE, DAY = "p5.48xlarge", timedelta(days=1)
ON_DEMAND, SPOT = CapacityType.ON_DEMAND, CapacityType.SPOT


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    group = {"name": "od", "type": "on-demand", "machine_types": ["g6.xlarge"], "max": 5}
    pool: dict[str, Any] = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "search", "target": 1, "min": 0, "max": 5,
        "drain_deadline": "90s", "watchdogs": {}, "groups": [group],
    }  # fmt: skip
    made = load_one(str(document(tmp_path, pools=[pool])))
    return made.model_copy(update={"region": "us-west-2", "ledger_url": f"sqlite:///{tmp_path / 'prices.db'}"})


def price(kind: CapacityType, as_of: datetime, cloud: Cloud = Cloud.AWS, machine_type: str = TYPE) -> Price:
    return Price(
        sku=machine_sku(cloud, machine_type, kind),
        region="us-west-2",
        zone="us-west-2a" if kind is SPOT else None,
        usd_per_hour=Decimal("55.04"),
        source="a test",
        as_of=as_of,
        valid_from=T0 - 99 * DAY,
    )


@pytest.mark.parametrize("cloud", Cloud)
@pytest.mark.parametrize("kind", CapacityType)
@pytest.mark.parametrize("age", [timedelta(hours=1), timedelta(hours=3), 2 * DAY, 29 * DAY, 44 * DAY, 46 * DAY])
def test_watchdogs_use_prices_that_reports_call_fresh(
    fleet: FleetDocument, cloud: Cloud, kind: CapacityType, age: timedelta
) -> None:
    engine, one = open_ledger_of(fleet), price(kind, T0 - age, cloud)
    with writing(engine) as connection:
        facts.add_prices(connection, [one])
    with engine.connect() as connection:
        read = history.prices(connection, fleet.region, fresh_since(cloud, T0))
    assert bool(read) is not is_stale(one, T0)


def test_list_price_of_yesterday_is_used_and_spot_price_is_not(fleet: FleetDocument) -> None:
    engine = open_ledger_of(fleet)
    with writing(engine) as connection:
        facts.add_prices(connection, [price(ON_DEMAND, T0 - 25 * timedelta(hours=1)), price(SPOT, T0 - DAY)])
    known = prices_of(engine, fleet, T0)
    assert known.on_demand_usd_per_hour(TYPE) == Decimal("55.04")
    assert known.spot_usd_per_hour(TYPE, "us-west-2a") is None


@dataclass
class Catalogue:
    """A cloud's price list that may fail."""

    error: str | None = None
    asked: list[datetime] = field(default_factory=list[datetime])

    def refresh(self, machine_types: Sequence[str], now: datetime) -> tuple[list[Price], list[str]]:
        self.asked.append(now)
        if self.error is not None:
            return [], [self.error]
        return [price(ON_DEMAND, now, machine_type=name) for name in machine_types], []


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    made = Catalogue()
    monkeypatch.setattr(prices, "market_of", lambda _: made)
    return made


def test_list_prices_are_requested_once_a_day_by_all_processes(fleet: FleetDocument, catalogue: Catalogue) -> None:
    engines: list[Engine] = [open_ledger_of(fleet), open_ledger(fleet.ledger_url)]
    moments = [T0 + hours * timedelta(hours=1) for hours in range(49)]
    done = [prices.refresh_daily(fleet, engines[n % 2], moment) for n, moment in enumerate(moments)]
    assert catalogue.asked == [T0, T0 + DAY, T0 + 2 * DAY]
    assert [bool(one and one.prices) for one in done].count(True) == 3
    sku = Sku(name=machine_sku(Cloud.AWS, "g6.xlarge", ON_DEMAND), region="us-west-2")
    with engines[0].connect() as connection:
        newest = max(one.as_of for one in history.prices(connection, fleet.region) if one.sku == sku.name)
    assert newest == T0 + 2 * DAY


def test_failure_waits_for_the_next_day_and_does_not_fail_the_pass(
    fleet: FleetDocument, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.error = "the Price List was not there"
    assert [bool(prices.refresh_daily(fleet, open_ledger_of(fleet), T0 + n * DAY / 4)) for n in range(5)] == [
        True, False, False, False, True,
    ]  # fmt: skip

    problems: list[str] = []
    progress = CostPassListener(written=lambda _: None, problem=problems.append)
    fresh = fleet.model_copy(update={"environment": "other"})
    engine = open_ledger_of(fresh)
    cost_pass.refresh_prices(fresh, engine, progress, T0)
    cost_pass.refresh_prices(fresh, engine, progress, T0 + timedelta(minutes=5))
    assert problems == ["prices: the Price List was not there; they are requested again tomorrow"]

    def broken(*_: object) -> None:
        raise CloudError("no such region")

    monkeypatch.setattr(prices, "market_of", broken)
    cost_pass.refresh_prices(fresh, engine, progress, T0 + DAY)
    assert problems[1:] == ["prices: no such region; they are requested again tomorrow"]
