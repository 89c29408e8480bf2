"""GPU instances of no fleet: the cost of each slice over the window in which they are judged."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from app.unmanaged_slices import cost_by_slice
from gpufleet.costs import slice_view
from tests.fixtures.costs.unit_series import gpu, mig, series_of
from tests.fixtures.watchdogs.orphans import orphan
from tests.fixtures.watchdogs.plain import START

HOUR = timedelta(hours=1)
NODE = replace(orphan(), machine_type="p4d.24xlarge")
TARGET = {"instance_id": NODE.id}
TENANTS = {1: "one", 2: "two", 3: "three"}


def rows(page: object, usd: str | None = "70") -> list[tuple[str, ...]]:
    series = series_of(page, START - HOUR, 3601, labels=TARGET)  # pyright: ignore[reportArgumentType]
    prices = {} if usd is None else {NODE.id: Decimal(usd)}
    found = cost_by_slice([NODE], series, prices, HOUR, START)
    return [row[1:2] + row[3:] for row in slice_view.rows(found)]


def test_each_tenant_of_a_foreign_node_has_the_cost_of_its_slice() -> None:
    def page(at: int) -> str:
        return mig(at, {1: 0.7, 2: 0.0, 3: 0.3}, pods=TENANTS, profile="2g.10gb")

    # one of eight GPUs reports: each slice is 2/7 of 1/8 of 70 USD/h
    assert rows(page) == [
        ("(not reported)", "61.25", "61.25", "0.00", "0.00", "0.00", "61.2500"),
        ("ns/one", "2.50", "2.50", "0.00", "0.00", "0.00", "2.5000"),
        ("ns/two", "2.50", "0.00", "2.50", "0.00", "0.00", "2.5000"),
        ("ns/three", "2.50", "2.50", "0.00", "0.00", "0.00", "2.5000"),
        ("(stranded 1/7 of a GPU: another slice may fit)", "1.25", "0.00", "0.00", "1.25", "0.00", "1.2500"),
        ("", "70.00", "66.25", "2.50", "1.25", "0.00", ""),
    ]


def test_tenants_of_a_shared_gpu_without_engine_metrics_are_inseparable() -> None:
    found = rows(lambda at: gpu(at, 0.4, {"one": "0", "two": "1"}))
    assert ("ns/one, ns/two (inseparable)", "8.75", "8.75", "0.00", "0.00", "0.00", "8.7500") in found


def test_without_a_price_the_cost_is_unknown() -> None:
    found = rows(lambda at: mig(at, {1: 0.7}, pods=TENANTS), usd=None)
    assert {row[-1] for row in found[:-1]} == {"?"}


@pytest.mark.parametrize("page", [lambda at: gpu(at, 0.4, {"": ""}), lambda _: ""], ids=["whole GPU", "no metrics"])
def test_instance_without_slices_has_no_rows(page: object) -> None:
    assert rows(page) == []
