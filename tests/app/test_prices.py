"""The prices that a fleet needs: each way of buying that its groups have, spot by zone, nothing made up."""

from pathlib import Path
from typing import Any

import pytest

from app import prices
from app.errors import AppError, Code
from app.fleets import load_one
from gpufleet.domain.prices import Price
from gpufleet.settings.document import FleetDocument
from tests.unit.small_fleet import T0, document

GROUPS = [
    {"name": "spot-b", "type": "spot", "zone": "us-east-1b", "machine_types": ["g6.xlarge"], "max": 5},
    {"name": "spot-a", "type": "spot", "zone": "us-east-1a", "machine_types": ["g6.xlarge"], "max": 5},
    {"name": "on-demand", "type": "on-demand", "machine_types": ["g6e.xlarge"], "max": 5},
]


def fleet(folder: Path) -> FleetDocument:
    pool: dict[str, Any] = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "search", "target": 1, "min": 0, "max": 5,
        "drain_deadline": "90s", "watchdogs": {}, "groups": GROUPS,
    }  # fmt: skip
    return load_one(str(document(folder, pools=[pool])))


def test_every_machine_type_on_demand_and_spot_in_each_zone(tmp_path: Path) -> None:
    found = list(prices.in_force(fleet(tmp_path), (), T0))
    assert [(sku.name, sku.zone) for sku, _ in found] == [
        (f"aws:ec2:{name}:{kind}", zone)
        for name in ("g6.xlarge", "g6e.xlarge")
        for kind, zone in (("on-demand", None), ("spot", "us-east-1a"), ("spot", "us-east-1b"))
    ]
    # spot prices are observed, and this ledger has seen none
    assert [isinstance(price, Price) for _, price in found] == [True, False, False] * 2


def test_named_machine_types_replace_the_fleet_s(tmp_path: Path) -> None:
    names = {sku.name.split(":")[2] for sku, _ in prices.in_force(fleet(tmp_path), ["g5.xlarge"], T0)}
    assert names == {"g5.xlarge"}
    with pytest.raises(AppError, match=r"g6\.xlrge") as error:
        list(prices.in_force(fleet(tmp_path), ["g6.xlrge"], T0))
    assert error.value.code is Code.WRONG_USE
