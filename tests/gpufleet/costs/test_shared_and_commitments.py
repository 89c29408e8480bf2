"""Shared costs, Capacity Blocks and spend commitments: computed by hand, and equal over any partition of a window."""

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from gpufleet.costs.allocation import ChargeKind, LedgerFacts, UseState, charges
from gpufleet.costs.commitments import BlockCommitment, Coverage, DeclaredCosts, SharedCost, SpendCommitment, shares
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import CostPass, Reservation, RunEnd
from gpufleet.ledger.schema import open_ledger
from gpufleet.prices.book import PriceBook, Sku, stated_price
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.toolchain.folders import ROOT
from stacks.document import shared_of
from stacks.reading import parse
from tests.fixtures.costs.overrides import override
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, read_json, run

AS_OF = "2026-11-01"


def stated(sku: str, usd: str) -> dict[str, str]:
    return {"sku": sku, "usd_per_hour": usd, "source": "contract", "as_of": AS_OF}


def term(**more: Any) -> dict[str, Any]:
    return {
        "starts": "2026-11-20T00:00:00Z",
        "ends": "2026-11-21T00:00:00Z",
        "source": "order",
        "as_of": AS_OF,
    } | more


@pytest.fixture
def ledger(tmp_path: Path) -> Engine:
    """Six hours: chat on demand all the time, batch for the first two; a block of two instances, one of them used."""
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    batch = run("i-batch", 0, CapacityType.ON_DEMAND, "batch", model="models/batch", owner="research")
    block = run("i-block", 0, CapacityType.RESERVED, reservation="cb-1", machine_type="p5.48xlarge")
    with writing(engine) as connection:
        facts.add_runs(connection, [run("i-chat", 0, CapacityType.ON_DEMAND), batch, block])
        end = RunEnd(
            cloud=Cloud.AWS, instance_id="i-batch", started_at=T0, ended_at=T0 + 2 * HOUR,
            cause=facts.EndCause.ENDED, exact=True,
        )  # fmt: skip
        facts.add_ends(connection, [end])
        reservation = Reservation(
            cloud=Cloud.AWS, reservation="cb-1", started_at=T0, instances=2, environment=FLEET, region="us-east-1",
            zone="us-east-1a", machine_type="p5.48xlarge", pool="chat", model=None, owner="search", ends_at=None,
            last_seen_at=T0 + 6 * HOUR,
        )  # fmt: skip
        facts.add_reservations(connection, [reservation])
        price = Price(
            sku="aws:ec2:g6.xlarge:on-demand", region="us-east-1", zone=None, source="test", valid_from=T0,
            usd_per_hour=Decimal(1), as_of=T0,
        )  # fmt: skip
        facts.add_prices(connection, [price])
        for at in (T0, T0 + 6 * HOUR):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    return engine


def report(folder: Path, **more: Any) -> Any:
    block = term(reservation="cb-1", instances=2, upfront_usd="96")
    return read_json("cost", "--fleet", document(folder, **({"commitments": {"blocks": [block]}} | more)), *WINDOW)


def test_fee_of_a_capacity_block_is_spread_over_its_time(tmp_path: Path, ledger: Engine) -> None:
    found = report(tmp_path)
    rows = [row for row in found["charges"] if row["machine_type"] == "p5.48xlarge"]
    # 96 USD over 2 instances and 24 hours are 2 USD an hour each; one of them is unused
    assert [(row["resource"], row["usd_per_hour"], row["usd"]) for row in rows] == [
        ("i-block", "2.000000000", "12.000000000"),
        ("cb-1", "2.000000000", "12.000000000"),
    ]
    assert found["total"]["usd_unused_reservation"] == "12.000000000"


def test_shared_cost_is_split_by_the_max_of_the_pools_and_adds_up(tmp_path: Path, ledger: Engine) -> None:
    shared = [
        {"name": "NAT gateway", "sku": "aws:vpc:nat-gateway", "units": "1"},
        {"name": "disk", "sku": "aws:ebs:gp3:gib", "units": "100", "per": "instance"},
    ]
    prices = {"overrides": [stated("aws:vpc:nat-gateway", "0.045"), stated("aws:ebs:gp3:gib", "0.0001")]}
    found = report(tmp_path, shared=shared, prices=prices)
    rows = {(row["resource"], row["pool"]): row["usd"] for row in found["charges"] if row["kind"] == "shared"}
    assert rows == {
        ("i-chat/disk", "chat"): "0.060000000",
        ("i-batch/disk", "batch"): "0.020000000",
        ("i-block/disk", "chat"): "0.060000000",
        ("NAT gateway", "batch"): "0.135000000",
        ("NAT gateway", "chat"): "0.135000000",
    }
    assert found["total"]["usd_shared"] == "0.410000000"
    assert found["by"]["capacity-type"]["shared"]["usd"] == "0.410000000"
    assert found["by"]["pool"]["batch"]["usd_shared"] == "0.155000000"


def test_shared_resource_without_a_price_is_an_error_that_names_it(tmp_path: Path, ledger: Engine) -> None:
    shared = [{"name": "NAT gateway", "sku": "aws:vpc:nat-gateway", "units": "1"}]
    with pytest.raises(AssertionError, match="aws:vpc:nat-gateway"):
        report(tmp_path, shared=shared)


def test_savings_plan_covers_the_oldest_first_and_its_remainder_is_a_row(tmp_path: Path, ledger: Engine) -> None:
    plan = term(name="sp-1", usd_per_hour="0.9", rates={"g6.xlarge": "0.6"})
    block = term(reservation="cb-1", instances=2, upfront_usd="96")
    found = report(tmp_path, commitments={"blocks": [block], "spends": [plan]})
    rows = [row for row in found["charges"] if row["machine_type"] != "p5.48xlarge"]
    # two hours: i-batch (first by id) wholly at 0.6, i-chat half (0.3 + half of 1 USD); then i-chat wholly, 0.3
    # unused
    assert [(row["resource"], row["kind"], row["usd_per_hour"], row["usd"]) for row in rows] == [
        ("i-batch", "time", "0.6", "1.200000000"),
        ("i-chat", "time", "0.800000000", "1.600000000"),
        ("i-chat", "time", "0.6", "2.400000000"),
        ("sp-1", "committed, not used", "0.3", "1.200000000"),
    ]
    assert found["by"]["pool"]["(none)"]["usd_unused_reservation"] == "1.200000000"


@given(
    cuts=st.lists(st.integers(1, 6 * 3_600_000_000 - 1), max_size=6),
    starts=st.lists(st.integers(0, 18_000), min_size=1, max_size=5),
    committed=st.decimals(0, 3, places=3),
    weights=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 5), min_size=1),
)
def test_sums_are_equal_over_any_partition(
    cuts: list[int], starts: list[int], committed: Decimal, weights: dict[str, int]
) -> None:
    runs = [run(f"i-{n}", second / 3600, CapacityType.ON_DEMAND) for n, second in enumerate(starts)]
    when = {"source": "s", "as_of": T0}
    declared = DeclaredCosts(
        shared=[
            SharedCost(name="nat", sku="aws:vpc:nat-gateway", units=Decimal(1)),
            SharedCost(name="disk", sku="aws:vpc:nat-gateway", units=Decimal(7), per_instance=True),
        ],
        weights=weights,
        blocks=[
            BlockCommitment(
                reservation="cb", instances=3, upfront_usd=Decimal(100), starts=T0, ends=T0 + 7 * HOUR, **when
            )
        ],
        spends=[
            SpendCommitment(
                name="sp", cloud=Cloud.AWS, usd_per_hour=committed, rates={"g6.xlarge": Decimal("0.7")},
                starts=T0 + HOUR, ends=T0 + 5 * HOUR, **when,
            )
        ],
    )  # fmt: skip
    known = LedgerFacts(
        runs=runs, declared=declared, coverage=Coverage(declared, runs), known=(T0 + HOUR / 2, T0 + 6 * HOUR)
    )
    prices = [("aws:vpc:nat-gateway", "0.045"), ("aws:ec2:g6.xlarge:on-demand", "0.72")]
    book = PriceBook(
        region="us-east-1",
        overrides=[override(sku, usd, T0) for sku, usd in prices],
    )
    edges = [T0, *sorted(T0 + timedelta(microseconds=cut) for cut in set(cuts)), T0 + 6 * HOUR]

    def by_pool(since: Any, until: Any) -> dict[tuple[str | None, UseState], Decimal]:
        sums: dict[tuple[str | None, UseState], Decimal] = {}
        for charge in charges(known, book, since, until):
            assert charge.amount is not None
            key = (charge.pool, charge.state)
            sums[key] = money.EXACT.add(sums.get(key, money.ZERO), charge.amount)
        return sums

    whole = by_pool(edges[0], edges[-1])
    parts: dict[tuple[str | None, UseState], Decimal] = {}
    for since, until in zip(edges, edges[1:], strict=False):
        for key, amount in by_pool(since, until).items():
            parts[key] = money.EXACT.add(parts.get(key, money.ZERO), amount)
    assert {key: amount for key, amount in parts.items() if amount} == {k: a for k, a in whole.items() if a}
    spent = [
        c for c in charges(known, book, edges[0], edges[-1]) if c.kind is ChargeKind.SHARED and c.resource == "nat"
    ]
    assert money.total(c.amount or money.ZERO for c in spent) == Decimal("0.045") * 19_800


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": "0.333333333", "b": "0.666666667"}, id="by weight"),
        pytest.param({"a": 0, "b": 0}, {"a": "0.500000000", "b": "0.500000000"}, id="evenly when all are 0"),
        pytest.param({"a": 0, "b": 3}, {"b": "1.000000000"}, id="none for weight 0"),
    ],
)
def test_shares_of_the_pools(weights: dict[str, int], expected: dict[str, str]) -> None:
    assert {pool: str(usd) for pool, (usd, _) in shares(Decimal(1), weights).items()} == expected


def test_shared_resources_of_every_settings_file_with_a_budget_have_a_price() -> None:
    """The report must not fail for any shared resource that the settings declare."""
    seen = 0
    for path in sorted((ROOT / "stacks" / "config").glob("Pulumi.*-*.yaml")):
        config = yaml.safe_load(path.read_text())["config"]
        settings = parse(config, path.name, date(2026, 11, 20))
        book = PriceBook(
            region=settings.region,
            overrides=[stated_price(entry, settings.region) for entry in settings.prices],
            packaged=PackagedPrices(),
        )
        for entry in shared_of(settings):
            assert book.at(Sku(name=entry.sku, region=settings.region), T0).usd_per_hour > 0, (path.name, entry)
            seen += 1
    assert seen
