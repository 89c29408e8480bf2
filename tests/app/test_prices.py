"""The prices that a fleet needs: one per capacity type of its groups, spot by zone, and none is invented."""

import json
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app import prices
from app.errors import AppError, ErrorCode
from app.fleets import load_one
from app.wiring import prices_of
from cli.commands import build
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.small_fleet import T0, document

GROUPS = [
    {"name": "spot-b", "type": "spot", "zone": "us-east-1b", "machine_types": ["g6.xlarge"], "max": 5},
    {"name": "spot-a", "type": "spot", "zone": "us-east-1a", "machine_types": ["g6.xlarge"], "max": 5},
    {"name": "on-demand", "type": "on-demand", "machine_types": ["g6e.xlarge"], "max": 5},
]


def fleet(folder: Path, **more: Any) -> FleetDocument:
    pool: dict[str, Any] = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "search", "target": 1, "min": 0, "max": 5,
        "drain_deadline": "90s", "watchdogs": {}, "groups": GROUPS,
    }  # fmt: skip
    return load_one(str(document(folder, pools=[pool], **more)))


def test_every_machine_type_on_demand_and_spot_in_each_zone(tmp_path: Path) -> None:
    found = list(prices.quotes(fleet(tmp_path), (), T0))
    assert [(quote.sku.name, quote.sku.zone) for quote in found] == [
        (f"aws:ec2:{name}:{kind}", zone)
        for name in ("g6.xlarge", "g6e.xlarge")
        for kind, zone in (("on-demand", None), ("spot", "us-east-1a"), ("spot", "us-east-1b"))
    ]
    # spot prices are observed, and this ledger contains none
    assert [bool(quote.sources) for quote in found] == [True, False, False] * 2
    assert [quote.error is None for quote in found] == [True, False, False] * 2


def test_named_machine_types_replace_the_fleet_s(tmp_path: Path) -> None:
    names = {quote.sku.name.split(":")[2] for quote in prices.quotes(fleet(tmp_path), ["g5.xlarge"], T0)}
    assert names == {"g5.xlarge"}
    with pytest.raises(AppError, match=r"g6\.xlrge") as error:
        list(prices.quotes(fleet(tmp_path), ["g6.xlrge"], T0))
    assert error.value.code is ErrorCode.WRONG_USE


def seen(kind: str, usd: str, as_of: datetime, zone: str | None = None) -> Price:
    return Price(
        sku=f"aws:ec2:g6.xlarge:{kind}", region="us-east-1", zone=zone, usd_per_hour=Decimal(usd),
        source="spot history" if zone else "price list", as_of=as_of, valid_from=T0 - timedelta(days=90),
    )  # fmt: skip


def stated(usd: str) -> dict[str, Any]:
    return {"sku": "aws:ec2:g6.xlarge:on-demand", "usd_per_hour": usd, "source": "contract", "as_of": "2026-11-01"}


def listed(folder: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(build("prices"), ["prices", "list", "--fleet", str(folder / "fleet.json"), *arguments])
    assert done.exit_code == 3, (done.output, done.exception)  # spot in one zone and g6e have no price
    return done


def test_the_list_shows_the_order_of_sources_and_how_fresh_each_is(tmp_path: Path) -> None:
    made = fleet(tmp_path, prices={"overrides": [stated("0.5")]})
    rows = [
        seen("spot", "0.3", T0 - timedelta(hours=3), "us-east-1a"),
        seen("spot", "0.4", T0 - timedelta(hours=1), "us-east-1b"),
        seen("on-demand", "0.7", T0 - timedelta(days=50)),
    ]
    with writing(open_ledger(made.ledger_url)) as connection:
        facts.add_prices(connection, rows)
    at = ("--at", "2026-11-20T06:00")
    found = {(row["sku"], row["zone"]): row for row in json.loads(listed(tmp_path, *at, "--json").stdout)}
    on_demand = found["aws:ec2:g6.xlarge:on-demand", None]
    assert [(one["source_kind"], one["age_seconds"], one["stale_after_seconds"], one["stale"])
            for one in on_demand["sources"]] == [
        ("settings", 19 * 86_400 + 6 * 3600, None, False),
        ("cloud", 50 * 86_400, 45 * 86_400, True),
        ("packaged", on_demand["sources"][2]["age_seconds"], 45 * 86_400, True),
        ("settings_before_date", 19 * 86_400 + 6 * 3600, None, False),
    ]  # fmt: skip
    assert (on_demand["usd_per_hour"], on_demand["watchdogs_usd_per_hour"]) == ("0.5", "0.5")
    old, fresh = (found["aws:ec2:g6.xlarge:spot", f"us-east-1{zone}"] for zone in "ab")
    assert (old["usd_per_hour"], old["stale"], old["watchdogs_usd_per_hour"]) == ("0.3", True, None)
    assert (fresh["stale"], fresh["watchdogs_usd_per_hour"]) == (False, "0.4")
    output = listed(tmp_path, *at).stdout
    assert "sources in order: 1 prices in the settings; 2 prices read from the cloud" in output
    (line,) = [line for line in output.splitlines() if "us-east-1a" in line and "g6.xlarge" in line]
    assert line.split()[2:] == ["1", "0.3", "2026-11-20T03:00", "3.0", "h", "2.0", "h", "spot", "history", "stale,",
                                "watchdogs", "do", "not", "use", "it"]  # fmt: skip


@pytest.mark.parametrize("hours", [1, 3])
def test_watchdogs_use_the_price_that_the_list_shows(tmp_path: Path, hours: int) -> None:
    made = fleet(tmp_path)
    with writing(open_ledger(made.ledger_url)) as connection:
        facts.add_prices(connection, [seen("spot", "0.3", T0 - timedelta(hours=hours), "us-east-1a")])
    book = prices_of(open_ledger(made.ledger_url), made, T0)
    known = book.spot_usd_per_hour("g6.xlarge", "us-east-1a")
    found = {(row["sku"], row["zone"]): row for row in json.loads(
        listed(tmp_path, "--at", "2026-11-20T06:00", "--json").stdout)}  # fmt: skip
    price = found["aws:ec2:g6.xlarge:spot", "us-east-1a"]["watchdogs_usd_per_hour"]
    assert price == (None if known is None else str(known)) == ("0.3" if hours == 1 else None)
