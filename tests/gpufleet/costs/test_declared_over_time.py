"""Reports of past windows use what was declared at that time, whatever the settings declare today."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from gpufleet.costs.allocation import LedgerFacts, charges
from gpufleet.costs.commitments import BlockCommitment, DeclaredCosts, SharedCost, SpendCommitment
from gpufleet.costs.declarations import Declarations, StoredDeclaration, content_of, read
from gpufleet.costs.query import CostQuery
from gpufleet.costs.report import By, Report, ReportScope, build
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import Declaration, declarations, note_declared
from gpufleet.ledger.facts import CostPass, Run
from gpufleet.ledger.rollups import roll_up
from gpufleet.ledger.schema import open_ledger
from gpufleet.prices.book import MissingPriceError, PriceBook
from gpufleet.prices.packaged import PackagedPrices
from tests.fixtures.costs.overrides import override

OCTOBER, NOVEMBER = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
SEEN = datetime(2026, 11, 22, tzinfo=UTC)
HOUR = timedelta(hours=1)
PLACES = {Cloud.AWS: ("us-east-1", "g6.xlarge"), Cloud.GCP: ("us-central1", "g2-standard-4")}


class Fleet:
    """A ledger that a cost pass fills with the declarations of a fleet document."""

    def __init__(self, folder: Path, cloud: Cloud) -> None:
        self.cloud, (self.region, self.machine_type) = cloud, PLACES[cloud]
        self.name = f"{cloud}/dev/{self.region}"
        self.engine: Engine = open_ledger(f"sqlite:///{folder}/ledger.db")

    def price(self, what: str, usd: str, as_of: datetime = OCTOBER) -> Price:
        return replace(override(f"{self.cloud}:{what}", usd, as_of), region=self.region)

    def first(self) -> DeclaredCosts:
        return DeclaredCosts(
            shared=[
                SharedCost(name="nat", sku=f"{self.cloud}:x:nat", units=Decimal(3)),
                SharedCost(name="disk", sku=f"{self.cloud}:x:disk", units=Decimal(100), per_instance=True),
            ],
            weights={"chat": 4, "batch": 4},
            owners={"chat": "search", "batch": "research"},
            models={"chat": "m/chat", "batch": "m/batch"},
            prices=[
                self.price("x:nat", "0.045"),
                self.price("x:disk", "0.001"),
                self.price(f"{'ec2' if self.cloud is Cloud.AWS else 'compute'}:{self.machine_type}:on-demand", "2"),
            ],
        )

    def look(self, at: datetime, declared: DeclaredCosts) -> None:
        run = Run(
            cloud=self.cloud, instance_id="i-1", started_at=OCTOBER + HOUR, environment=self.name, region=self.region,
            zone=f"{self.region}-a", machine_type=self.machine_type, capacity_type=CapacityType.ON_DEMAND,
            pool="chat", last_seen_at=max(at, OCTOBER + HOUR),
        )  # fmt: skip
        with writing(self.engine) as connection:
            facts.add_runs(connection, [run])
            note_declared(connection, self.name, at, content_of(declared))
            done = CostPass(environment=self.name, at=at, host="h", metrics_from=None, metrics_until=None)
            facts.add_pass(connection, done)

    def rows(self, today: DeclaredCosts, since: datetime = OCTOBER, until: datetime = NOVEMBER) -> list[Any]:
        query = CostQuery(
            self.engine, self.name, self.region, overrides=today.prices, packaged=PackagedPrices(), declared=today
        )
        query.read([(since, until)])
        known = query.known(since, until)
        return list(charges(known.facts, known.book, since, until))


@pytest.fixture(params=list(Cloud))
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Fleet:
    found = Fleet(tmp_path, request.param)
    found.look(OCTOBER, found.first())
    found.look(SEEN - HOUR, found.first())
    return found


def changed(first: DeclaredCosts, what: str) -> DeclaredCosts:
    expensive = [replace(price, usd_per_hour=Decimal(9), source="other") for price in first.prices]
    changes: dict[str, dict[str, Any]] = {
        "more shared": {"shared": [*first.shared, replace(first.shared[0], name="host")]},
        "nothing shared": {"shared": []},
        "max": {"weights": {"chat": 36, "batch": 4}},
        "owners and models": {"owners": {"chat": "others"}, "models": {"chat": "m/new"}},
        "prices": {"prices": expensive},
        "a price for one zone": {"prices": [*first.prices, *(replace(one, zone="us-east-1-a") for one in expensive)]},
        "no prices": {"prices": []},
    }
    return replace(first, **changes[what])


@pytest.mark.parametrize(
    "what",
    ["more shared", "nothing shared", "max", "owners and models", "prices", "a price for one zone", "no prices"],
)
def test_settings_of_november_do_not_change_a_report_of_october(fleet: Fleet, what: str) -> None:
    before = fleet.rows(fleet.first())
    assert money.total(row.amount for row in before) > 0
    today = changed(fleet.first(), what)
    assert fleet.rows(today) == before, "before a pass has seen it"
    fleet.look(SEEN, today)
    fleet.look(SEEN + 2 * HOUR, today)
    assert fleet.rows(today) == before


def test_change_applies_from_the_pass_that_saw_it(fleet: Fleet) -> None:
    today = changed(fleet.first(), "max")
    fleet.look(SEEN, today)
    fleet.look(SEEN + HOUR, today)
    rows = [row for row in fleet.rows(today, SEEN - HOUR, SEEN + HOUR) if row.resource == "nat"]
    found = [(row.pool, row.start, row.end, row.price.usd_per_hour) for row in rows]
    assert found == [
        ("batch", SEEN - HOUR, SEEN, Decimal("0.067500000")),
        ("chat", SEEN - HOUR, SEEN, Decimal("0.067500000")),
        ("batch", SEEN, SEEN + HOUR, Decimal("0.013500000")),
        ("chat", SEEN, SEEN + HOUR, Decimal("0.121500000")),
    ]


def test_unchanged_declaration_is_one_row_across_a_change_of_another(fleet: Fleet) -> None:
    fleet.look(SEEN, changed(fleet.first(), "max"))
    fleet.look(SEEN + HOUR, changed(fleet.first(), "max"))
    rows = [row for row in fleet.rows(fleet.first(), SEEN - HOUR, SEEN + HOUR) if row.resource.startswith("i-1")]
    assert [(row.start, row.end) for row in rows] == [(SEEN - HOUR, SEEN + HOUR)] * 2


def report_of(fleet: Fleet, today: DeclaredCosts, since: datetime, until: datetime) -> Report:
    query = CostQuery(fleet.engine, fleet.name, fleet.region, packaged=PackagedPrices(), declared=today)
    query.read([(since, until)])
    scope = ReportScope(
        fleet=fleet.name,
        environment="dev",
        cloud=fleet.cloud,
        region=fleet.region,
        since=since,
        until=until,
        now=until,
    )
    return query.report(scope)


def test_change_of_owner_and_model_splits_the_charges_of_a_running_instance(fleet: Fleet) -> None:
    before = fleet.rows(fleet.first())
    today = changed(fleet.first(), "owners and models")
    fleet.look(SEEN, today)
    fleet.look(SEEN + HOUR, today)
    rows = [row for row in fleet.rows(today, SEEN - HOUR, SEEN + HOUR) if row.resource.startswith("i-1")]
    assert [(row.resource, row.owner, row.model, row.start, row.end) for row in rows] == [
        (name, owner, model, start, start + HOUR)
        for name in ("i-1", "i-1/disk")
        for owner, model, start in (("search", "m/chat", SEEN - HOUR), ("others", "m/new", SEEN))
    ]
    assert fleet.rows(today) == before


def test_tokens_of_a_running_instance_count_for_the_owner_at_that_time(fleet: Fleet) -> None:
    readings = [
        facts.TokenReading(
            environment=fleet.name, instance_id="i-1", engine="0", model="chat",
            at=SEEN + timedelta(minutes=minute), prompt=minutes, generation=minutes, created_at=OCTOBER,
        )
        for minutes, minute in enumerate(range(-120, 121, 10), start=1000)
    ]  # fmt: skip
    with writing(fleet.engine) as connection:
        facts.add_readings(connection, readings)
        roll_up(connection, readings)
    today = changed(fleet.first(), "owners and models")
    fleet.look(SEEN - timedelta(minutes=25), today)
    fleet.look(SEEN + 2 * HOUR, today)
    found = report_of(fleet, today, SEEN - HOUR, SEEN + HOUR)
    teams = {owner: figure.tokens.prompt for owner, figure in found.groups[By.TEAM].items() if figure.tokens.total}
    # readings at :00, :10, :20 and :30 before the change; each counts the increase since the previous one
    assert teams == {"search": 4, "others": 8}
    assert found.total.tokens.prompt == 12
    assert {model for model, figure in found.groups[By.MODEL].items() if figure.tokens.total} == {"m/chat", "m/new"}


def test_before_the_first_declaration_an_instance_has_the_owner_of_its_tags(tmp_path: Path) -> None:
    """The ledger of an older release has no declarations. Its reports of past windows stay as they were."""
    fleet = Fleet(tmp_path, Cloud.AWS)
    with writing(fleet.engine) as connection:
        done = CostPass(environment=fleet.name, at=OCTOBER, host="h", metrics_from=None, metrics_until=None)
        facts.add_pass(connection, done)
        old = Run(
            cloud=Cloud.AWS, instance_id="i-1", started_at=OCTOBER + HOUR, environment=fleet.name,
            region=fleet.region, zone=f"{fleet.region}-a", machine_type=fleet.machine_type,
            capacity_type=CapacityType.ON_DEMAND, pool="chat", owner="founders", model="m/old",
            last_seen_at=OCTOBER + HOUR,
        )  # fmt: skip
        facts.add_runs(connection, [old])
    fleet.look(SEEN, fleet.first())
    fleet.look(SEEN + HOUR, fleet.first())
    rows = [row for row in fleet.rows(fleet.first(), SEEN - HOUR, SEEN + HOUR) if row.resource == "i-1"]
    assert [(row.owner, row.model, row.start) for row in rows] == [
        ("founders", "m/old", SEEN - HOUR), ("search", "m/chat", SEEN),
    ]  # fmt: skip


@given(
    changes=st.lists(
        st.tuples(st.integers(1, 6 * 3600 - 1), st.sampled_from("ab"), st.sampled_from("xy")), max_size=4
    ),
    cuts=st.lists(st.integers(1, 6 * 3600 - 1), max_size=4),
    ends=st.lists(
        st.tuples(st.integers(0, 5 * 3600), st.integers(0, 6 * 3600), st.booleans()), min_size=1, max_size=3
    ),
)
def test_sums_of_owners_and_models_add_up_and_keep_their_bounds(
    changes: list[tuple[int, str, str]], cuts: list[int], ends: list[tuple[int, int, bool]]
) -> None:
    def declared(owner: str, model: str) -> DeclaredCosts:
        price = override("aws:ec2:g6.xlarge:on-demand", "1", OCTOBER)
        return DeclaredCosts(owners={"chat": owner}, models={"chat": model}, prices=[price])

    def moment(second: int) -> datetime:
        return OCTOBER + timedelta(seconds=second)

    kept = {OCTOBER: declared("a", "x")} | {moment(at): declared(o, m) for at, o, m in sorted(changes)}
    runs = [
        Run(
            cloud=Cloud.AWS, instance_id=f"i-{n}", started_at=moment(start), environment="e", region="us-east-1",
            zone="us-east-1a", machine_type="g6.xlarge", capacity_type=CapacityType.ON_DEMAND, pool="chat",
            last_seen_at=moment(start + length // 2), ended_at=moment(start + length), end_exact=exact,
            end_cause=facts.EndCause.ENDED,
        )
        for n, (start, length, exact) in enumerate(ends)
    ]  # fmt: skip
    over = Declarations([StoredDeclaration(at, one) for at, one in kept.items()], [], PriceBook(region="us-east-1"))
    last = CostPass(environment="e", at=moment(12 * 3600), host="h", metrics_from=None, metrics_until=None)

    def found(since: int, until: int) -> Report:
        periods = over.periods(runs, moment(since), moment(until))
        scope = ReportScope(
            fleet="e",
            environment="e",
            cloud="aws",
            region="us-east-1",
            since=moment(since),
            until=moment(until),
            now=moment(until),
        )
        known = LedgerFacts(runs=runs, periods=periods, known=(OCTOBER, last.at))
        return build(scope, known, periods[-1].book, (), last)

    edges = [0, *sorted(set(cuts)), 12 * 3600]
    whole, parts = found(0, 12 * 3600), [found(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    for by in (By.TEAM, By.MODEL):
        for name, figure in whole.groups[by].items():
            mine = [part.groups[by][name] for part in parts if name in part.groups[by]]
            assert money.total(one.allocation for one in mine) == figure.allocation
        for one in (whole, *parts):
            for bound in ("allocation", "too_much", "too_little"):
                assert money.total(getattr(part, bound) for part in one.groups[by].values()) == getattr(
                    one.total, bound
                )
            assert all(figure.least <= figure.allocation for figure in one.groups[by].values())


def test_price_stated_later_fills_only_times_without_a_price(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, Cloud.AWS)
    first = fleet.first()
    unpriced = replace(first, prices=first.prices[1:])
    fleet.look(OCTOBER, unpriced)
    fleet.look(SEEN - HOUR, unpriced)
    with pytest.raises(MissingPriceError):
        fleet.rows(unpriced)
    found = fleet.rows(first)
    assert {row.price.source for row in found if row.resource == "nat"} == {"t; 4 of 8 parts"}
    fleet.look(SEEN, first)
    fleet.look(SEEN + HOUR, replace(first, prices=[fleet.price("x:nat", "7"), *first.prices[1:]]))
    assert fleet.rows(first) == found


def test_ledger_records_declarations_when_they_change(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with writing(engine) as connection:
        for hour, content in enumerate(["a", "a", "b", "a", "a"]):
            note_declared(connection, "aws/dev/us-east-1", SEEN + hour * HOUR, content)
        note_declared(connection, "aws/other/us-east-1", SEEN, "c")
        found = declarations(connection, "aws/dev/us-east-1")
    assert found == [(SEEN, "a"), (SEEN + 2 * HOUR, "b"), (SEEN + 3 * HOUR, "a")]


def test_everything_declared_is_stored_and_read_back() -> None:
    when = {"source": "order", "as_of": OCTOBER, "starts": OCTOBER, "ends": NOVEMBER}
    whole = DeclaredCosts(
        shared=[SharedCost(name="nat", sku="aws:vpc:nat", units=Decimal("1.50"))],
        weights={"chat": 1},
        models={"chat": "m"},
        owners={"chat": "o"},
        split_by_team=frozenset({"chat", "batch", "embed"}),
        blocks=[BlockCommitment(reservation="cr-1", instances=2, upfront_usd=Decimal("96.10"), **when)],
        spends=[
            SpendCommitment(
                name="sp", cloud=Cloud.AWS, usd_per_hour=Decimal("0.9"), rates={"g6.xlarge": Decimal("0.6")}, **when
            )
        ],
        prices=[override("aws:vpc:nat", "0.0450", OCTOBER)],
        gpu_active_below={"chat": 0.02},
    )  # fmt: skip
    (found,) = read([Declaration(SEEN, content_of(whole))])
    assert found == StoredDeclaration(SEEN, whole)
    assert content_of(found.declared) == content_of(whole)


@given(
    cuts=st.lists(st.integers(1, 6 * 3_600_000_000 - 1), max_size=5),
    changes=st.lists(
        st.tuples(
            st.integers(1, 6 * 3600 - 1), st.integers(0, 3), st.integers(0, 5), st.sampled_from(["1", "0.7", ""])
        ),
        max_size=4,
    ),
    starts=st.lists(st.integers(0, 18_000), min_size=1, max_size=3),
)
def test_parts_add_up_for_any_sequence_of_changes(
    cuts: list[int], changes: list[tuple[int, int, int, str]], starts: list[int]
) -> None:
    def declared(units: int, weight: int, usd: str) -> DeclaredCosts:
        sku = "aws:ec2:g6.xlarge:on-demand"
        return DeclaredCosts(
            shared=[SharedCost(name="nat", sku="aws:vpc:nat", units=Decimal(units))] if units else [],
            weights={"chat": weight, "batch": 3},
            prices=[override("aws:vpc:nat", "0.045", OCTOBER), *([override(sku, usd, OCTOBER)] if usd else [])],
            spends=[
                SpendCommitment(
                    name="sp", cloud=Cloud.AWS, usd_per_hour=Decimal(units), rates={"g6.xlarge": Decimal("0.3")},
                    starts=OCTOBER, ends=NOVEMBER, source="s", as_of=OCTOBER,
                )
            ],
        )  # fmt: skip

    seen = {OCTOBER: declared(1, 1, "1")} | {
        OCTOBER + timedelta(seconds=at): declared(units, weight, usd) for at, units, weight, usd in sorted(changes)
    }
    runs = [
        Run(
            cloud=Cloud.AWS, instance_id=f"i-{n}", started_at=OCTOBER + timedelta(seconds=second), environment="e",
            region="us-east-1", zone="us-east-1a", machine_type="g6.xlarge", capacity_type=CapacityType.ON_DEMAND,
            pool="chat", last_seen_at=OCTOBER + 6 * HOUR,
        )
        for n, second in enumerate(starts)
    ]  # fmt: skip
    kept = Declarations([StoredDeclaration(at, one) for at, one in seen.items()], [], PriceBook(region="us-east-1"))

    def total(since: datetime, until: datetime) -> tuple[Decimal, timedelta]:
        periods = kept.periods(runs, since, until)
        known = LedgerFacts(runs=runs, periods=periods, known=(OCTOBER, OCTOBER + 6 * HOUR))
        found = list(charges(known, periods[-1].book, since, until, allow_unpriced=True))
        unknown = sum((row.duration for row in found if row.amount is None), timedelta())
        return money.total(row.amount for row in found if row.amount is not None), unknown

    edges = [OCTOBER, *sorted(OCTOBER + timedelta(microseconds=cut) for cut in set(cuts)), OCTOBER + 6 * HOUR]
    parts = [total(since, until) for since, until in zip(edges, edges[1:], strict=False)]
    assert money.total(part[0] for part in parts) == total(edges[0], edges[-1])[0]
    assert sum((part[1] for part in parts), timedelta()) == total(edges[0], edges[-1])[1]
