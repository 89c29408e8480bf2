"""Energy and CO2e in reports, checked by hand: by pool, model, adapter and state, per million tokens, and unknown."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs import energy_render, focus, render
from gpufleet.costs.closing import content_of as closing_content
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.declarations import content_of
from gpufleet.costs.document import document, figures_csv
from gpufleet.costs.energy import Energy
from gpufleet.costs.query import CostQuery
from gpufleet.costs.report import By, Report, ReportScope
from gpufleet.domain.energy import GridFactor
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger import facts
from gpufleet.ledger.closed_periods import BillConfirmation, add_closed_period
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import note_declared
from gpufleet.ledger.energy import EnergyReading, add_energy_readings, roll_up_energy
from gpufleet.ledger.facts import ActivityHour, CostPass, Run, TokenReading
from gpufleet.ledger.rollups import roll_up
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.teams import TeamReading, add_team_readings
from gpufleet.prices.packaged import PackagedPrices

T0 = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
FLEET = "aws/dev/us-east-1"
GRID = GridFactor(grams_per_kwh=Decimal(379), source="a list, 2025")
DECLARED = DeclaredCosts(models={"chat": "m/chat"}, owners={"chat": "search"}, weights={"chat": 1}, carbon=GRID)


class Fleet:
    """A ledger whose passes declare and measure what a test states."""

    def __init__(self, folder: Path) -> None:
        self.engine = open_ledger(f"sqlite:///{folder}/ledger.db")
        self.today = DECLARED

    def declare(self, declared: DeclaredCosts, at: datetime = T0) -> None:
        self.today = declared
        with writing(self.engine) as connection:
            note_declared(connection, FLEET, at, content_of(declared))

    def runs(self, name: str, machine_type: str = "g6.xlarge", pool: str = "chat", hours: float = 1) -> None:
        run = Run(
            cloud=Cloud.AWS,
            instance_id=name,
            started_at=T0,
            environment=FLEET,
            region="us-east-1",
            zone="us-east-1a",
            machine_type=machine_type,
            capacity_type=CapacityType.ON_DEMAND,
            pool=pool,
            model=f"m/{pool}",
            owner="search",
            last_seen_at=T0 + hours * HOUR,
        )
        with writing(self.engine) as connection:
            facts.add_runs(connection, [run])
            for at in (T0, T0 + 2 * HOUR):
                done = CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
                facts.add_pass(connection, done)

    def uses(
        self,
        name: str,
        watts: Mapping[tuple[int, int], float],
        devices: Iterable[str] = ("GPU-a",),
        activity: Sequence[ActivityHour] = (),
    ) -> None:
        """Write counters that grow with these powers. `watts`: minutes from and to."""
        readings: list[EnergyReading] = []
        for device in devices:
            joules, last = 1e6, -1
            for (start, end), power in sorted(watts.items()):
                for minute in range(start, end + 1, 5):
                    joules += power * 300 if minute > start else 0
                    if minute != last:
                        reading = EnergyReading(
                            environment=FLEET,
                            instance_id=name,
                            device=device,
                            at=T0 + minute * MINUTE,
                            millijoules=round(joules * 1000),
                        )
                        readings.append(reading)
                    last = minute
        with writing(self.engine) as connection:
            add_energy_readings(connection, readings)
            facts.add_activity(connection, activity)
            roll_up_energy(connection, readings, activity)

    def serves(self, name: str, per_minute: int, minutes: int = 60, model: str = "m") -> None:
        """Write token counters: input and output tokens in equal parts."""
        readings = [
            TokenReading(
                environment=FLEET,
                instance_id=name,
                engine="8000/0",
                model=model,
                at=T0 + minute * MINUTE,
                prompt=per_minute * minute // 2,
                generation=per_minute * minute // 2,
                created_at=T0,
            )
            for minute in range(0, minutes + 1, 5)
        ]
        with writing(self.engine) as connection:
            facts.add_readings(connection, readings)
            roll_up(connection, readings)

    def report(self, since: datetime = T0, until: datetime = T0 + HOUR + MINUTE) -> Report:
        query = CostQuery(self.engine, FLEET, "us-east-1", packaged=PackagedPrices(), declared=self.today)
        query.read([(since, until)])
        scope = ReportScope(
            fleet=FLEET,
            environment="dev",
            cloud="aws",
            region="us-east-1",
            since=since,
            until=until,
            now=until,
            allow_unpriced=True,
        )
        return query.report(scope)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def joules(report: Report, by: By) -> dict[str, float]:
    return {name: (figure.energy.millijoules or 0) / 1000 for name, figure in report.groups[by].items()}


def test_300_w_for_one_hour_are_1_08_megajoules_and_113_7_grams(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    fleet.serves("i-1", per_minute=10_000)
    energy = document(fleet.report())["total"]["energy"]
    assert energy["joules"] == "1080000.000"
    assert energy["measured_share"] == 1.0
    assert energy["co2e_grams"] == "113.700000"  # 0.3 kWh x 379 g
    assert energy["joules_per_million_tokens"] == "1800000.000"  # of 600,000 tokens
    assert energy["co2e_grams_per_million_tokens"] == "189.500000"


def test_two_models_on_one_instance_each_have_their_own_time(fleet: Fleet) -> None:
    fleet.declare(replace(DECLARED, models={"chat": "m/first"}), T0)
    fleet.declare(replace(DECLARED, models={"chat": "m/second"}), T0 + 30 * MINUTE)
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 30): 300, (30, 60): 100})
    report = fleet.report()
    # a span counts at its later reading: the one that ends at 06:30 counts in the second half
    assert joules(report, By.MODEL) == {"m/first": 300 * 25 * 60.0, "m/second": 300 * 300 + 100 * 1800.0}
    assert joules(report, By.POOL) == {"chat": 540_000 + 180_000.0}


def test_adapters_of_one_instance_share_its_energy_by_engine_seconds(fleet: Fleet) -> None:
    fleet.declare(replace(DECLARED, adapters={"chat": ["chat-sql"]}))
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    fleet.serves("i-1", per_minute=10_000)
    readings = [
        TeamReading(
            fleet=FLEET, router="r", team="", model=model, pool="chat", at=T0 + minute * MINUTE,
            replica_ms=minute * ms, tokens_in=minute * 5_000 // 2, tokens_out=minute * 5_000 // 2, unmetered=0,
        )
        for minute in (0, 60)
        for model, ms in (("chat", 3_000), ("chat-sql", 1_000))
    ]  # fmt: skip
    with writing(fleet.engine) as connection:
        add_team_readings(connection, readings)
    report = fleet.report()
    assert joules(report, By.ADAPTER) == {"chat": 810_000, "chat-sql": 270_000}
    rates = {one.name: one.figure.energy.joules_per_million_tokens for one in report.adapters}
    assert rates == {"chat": Decimal("2700000.000"), "chat-sql": Decimal("900000.000")}  # of 300,000 tokens each
    rows = list(focus.rows([report], "1", by_team=True))
    assert {row["x_RequestedModel"]: row["x_EnergyJoules"] for row in rows} == {
        "chat": "810000.0",
        "chat-sql": "270000.0",
    }


def test_idle_energy_is_that_of_idle_time(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.runs("i-1")
    idle = ActivityHour(
        environment=FLEET, instance_id="i-1", hour=T0, busy=(1 << 180) - 1, idle=(1 << 360) - (1 << 180)
    )
    fleet.uses("i-1", {(0, 30): 300, (30, 60): 60}, activity=[idle])
    energy = document(fleet.report())["by"]["pool"]["chat"]["energy"]
    assert (energy["joules_used"], energy["joules_idle"]) == ("540000.000", "108000.000")
    assert energy["joules_unknown_state"] == "0.000"


def test_device_that_was_not_measured_makes_the_ratio_unknown(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.runs("i-8", "g6.48xlarge")
    fleet.serves("i-8", per_minute=10_000)
    fleet.uses("i-8", {(0, 60): 300}, devices=[f"GPU-{n}" for n in range(7)])
    energy = document(fleet.report())["total"]["energy"]
    assert energy["measured_share"] == 0.875
    assert energy["joules"] == "7560000.000"
    assert energy["joules_per_million_tokens"] is None


def test_only_instances_with_both_are_compared(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    for name in ("i-both", "i-half", "i-silent", "i-no-counter"):
        fleet.runs(name)
    fleet.uses("i-both", {(0, 60): 300})
    fleet.uses("i-half", {(0, 30): 300})
    fleet.uses("i-silent", {(0, 60): 300})
    for name in ("i-both", "i-half", "i-no-counter"):
        fleet.serves(name, per_minute=10_000)
    report = fleet.report()
    energy = report.total.energy
    assert (energy.compared_mj, energy.compared_tokens) == (1_080_000_000, 600_000)
    assert energy.joules_per_million_tokens == Decimal("1800000.000")
    assert energy.coverage == 0.625
    assert "from 33.3% of the tokens and 40.0% of the energy" in "\n".join(energy_render.lines(report))


def test_energy_of_an_instance_without_requests_counts(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    for name, watts, tokens in (("i-1", 300, 10_000), ("i-idle", 100, 0)):
        fleet.runs(name)
        fleet.uses(name, {(0, 60): watts})
        fleet.serves(name, per_minute=tokens)
    assert fleet.report().total.energy.joules_per_million_tokens == Decimal("2400000.000")


def test_energy_that_nothing_measured_is_unknown(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.runs("i-1")
    fleet.serves("i-1", per_minute=10_000)
    report = fleet.report()
    energy = document(report)["total"]["energy"]
    for name in ("joules", "joules_idle", "co2e_grams", "joules_per_million_tokens"):
        assert energy[name] is None
    assert (energy["measured_share"], energy["device_seconds"]) == (0.0, "3600.000000")
    text = render.as_text(report)
    assert "energy: unknown" in text and "energy by pool" not in text
    (row,) = csv.DictReader(StringIO(figures_csv(report)).readlines()[:2])
    assert row["energy_joules"] == row["co2e_grams"] == ""
    assert {one["x_EnergyJoules"] for one in focus.rows([report], "1")} == {None}


def test_device_that_is_shared_with_other_machines_is_unknown(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.runs("i-part", "g6f.xlarge")
    fleet.uses("i-part", {(0, 60): 300})
    assert fleet.report().total.energy.millijoules is None


def test_instance_that_the_ledger_lacks_is_in_no_figure_but_named(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    fleet.uses("i-other", {(0, 60): 300})
    report = fleet.report()
    assert report.total.energy.millijoules == 1_080_000_000
    assert any("i-other" in note for note in report.notes)


def test_co2e_without_a_stated_factor_is_unknown(fleet: Fleet) -> None:
    fleet.declare(replace(DECLARED, carbon=None))
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    report = fleet.report()
    assert document(report)["total"]["energy"]["co2e_grams"] is None
    assert "CO2e: unknown: the settings state no grid factor (`carbon`)" in render.as_text(report)


def test_factor_that_is_stated_later_applies_to_the_time_before_it(fleet: Fleet) -> None:
    fleet.declare(replace(DECLARED, carbon=None))
    fleet.declare(DECLARED, T0 + 24 * HOUR)
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    assert fleet.report().total.energy.grams == Decimal("113.700000")


def test_factor_counts_before_a_pass_has_read_it(fleet: Fleet) -> None:
    fleet.declare(replace(DECLARED, carbon=None))
    fleet.today = DECLARED
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    assert fleet.report().total.energy.grams == Decimal("113.700000")


def test_each_time_has_its_own_factor(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.declare(replace(DECLARED, carbon=replace(GRID, grams_per_kwh=Decimal(100))), T0 + 31 * MINUTE)
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    report = fleet.report()
    assert report.total.energy.grams == Decimal("71.850000")  # 0.15 kWh x 379 g + 0.15 kWh x 100 g
    assert "379 g/kWh (a list, 2025); 100 g/kWh (a list, 2025)" in render.as_text(report)


def test_removed_factor_makes_the_sum_unknown(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    fleet.declare(replace(DECLARED, carbon=None), T0 + 31 * MINUTE)
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    report = fleet.report()
    assert report.total.energy.grams is None
    assert "CO2e: unknown: a part of the energy has no stated grid factor" in render.as_text(report)
    assert fleet.report(until=T0 + 30 * MINUTE).total.energy.grams is not None


def test_pue_multiplies_co2e_and_not_energy(fleet: Fleet) -> None:
    fleet.declare(replace(DECLARED, carbon=replace(GRID, pue=Decimal("1.2"))))
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    report = fleet.report()
    assert report.total.energy.millijoules == 1_080_000_000
    assert report.total.energy.grams == Decimal("136.440000")
    assert "379 g/kWh x PUE 1.2 (a list, 2025)" in render.as_text(report)


def test_factor_that_is_stated_after_a_closing_changes_nothing_in_it(fleet: Fleet) -> None:
    fleet.declare(replace(DECLARED, carbon=None))
    fleet.runs("i-1")
    fleet.uses("i-1", {(0, 60): 300})
    since, until = T0, T0 + HOUR + MINUTE
    query = CostQuery(fleet.engine, FLEET, "us-east-1", packaged=PackagedPrices(), declared=fleet.today)
    query.read([(since, until)])
    bill = BillConfirmation(
        fleet=FLEET, since=since, until=until, digest="d", form="FOCUS", billed_usd=Decimal(1),
        computed_usd=Decimal(1), at=T0 + 12 * HOUR, prices="[]",
        facts=closing_content(query.closing(since, until, T0 + 12 * HOUR)),
    )  # fmt: skip
    with writing(fleet.engine) as connection:
        add_closed_period(connection, bill)
    before = document(fleet.report())
    fleet.declare(DECLARED, T0 + 24 * HOUR)
    after = fleet.report()
    assert after.total.energy.grams is None
    assert document(after)["total"] == before["total"]


def test_terminal_and_page_columns_add_up(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    for name, pool, watts in (("i-1", "chat", 300.0), ("i-2", "batch", 33.3), ("i-3", "other", 70.7)):
        fleet.runs(name, pool=pool)
        fleet.uses(name, {(0, 60): watts})
    fleet.serves("i-1", per_minute=10_000)
    *parts, total = energy_render.rows(fleet.report(), By.POOL)
    assert [row[0] for row in parts] == ["chat", "other", "batch"]
    assert sum(Decimal(row[1]) for row in parts) == Decimal(total[1]) == Decimal("1.454")
    assert parts[0][5:] == ("100.0%", "113.7", "1,800,000", "189.50", "1.3413")  # 0.8048 USD
    assert parts[1][7:] == ("?", "?", "–")


def test_rows_and_focus_add_up_to_the_total(fleet: Fleet) -> None:
    fleet.declare(DECLARED)
    for name, watts in (("i-1", 300.0), ("i-2", 77.7)):
        fleet.runs(name)
        fleet.uses(name, {(0, 60): watts})
    report = fleet.report()
    whole = document(report)
    total = Decimal(whole["total"]["energy"]["joules"])
    names = ("joules_used", "joules_idle", "joules_unknown_state")
    assert sum(Decimal(row[name]) for row in whole["energy"] for name in names) == total
    assert whole["energy"][0]["grid_factor"] == {"grams_per_kwh": "379", "pue": None, "source": "a list, 2025"}
    rows = list(focus.rows([report], "1"))
    assert sum(Decimal(row["x_EnergyJoules"] or 0) for row in rows) == total
    grams = sum(Decimal(row["x_CarbonGrams"] or 0) for row in rows)
    assert grams == pytest.approx(Decimal(whole["total"]["energy"]["co2e_grams"]), abs=Decimal("1e-6"))


amounts = st.integers(0, 10**15)


@given(
    st.builds(
        Energy,
        used_mj=amounts,
        idle_mj=amounts,
        other_mj=amounts,
        measured_us=amounts,
        device_us=amounts,
        weighted=st.decimals(0, 10**18, places=6),
        without_factor_mj=amounts,
    ),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=6).filter(any),
)
def test_shares_add_up_to_the_millijoule(energy: Energy, weights: list[int]) -> None:
    parts = energy.split([Decimal(weight) for weight in weights])
    assert sum(parts, Energy()) == energy
    assert all(part.used_mj >= 0 for part in parts)


def test_comparison_with_no_tokens_stays_unknown() -> None:
    energy = Energy(used_mj=5, measured_us=1, device_us=1)
    assert energy.compared_with(Tokens()).joules_per_million_tokens is None
    assert energy.compared_with(Tokens(prompt=0, generation=0)).joules_per_million_tokens is None
