"""The report states for each pool and engine where its tokens come from, and never shows unknown tokens as 0."""

import csv
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from app import reports
from app.ledgers import ledger_name
from app.price_inputs import declared_of
from app.token_methods import token_method
from app.windows import Window
from gpufleet.costs.declarations import content_of
from gpufleet.costs.digest import as_text as digest_text
from gpufleet.costs.document import document as as_document
from gpufleet.costs.document import figures_csv
from gpufleet.costs.render import as_text
from gpufleet.costs.token_origins import PoolEngine, TokenState, lines, sources_of, token_origins
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import note_declared
from gpufleet.ledger.rollups import roll_up
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from serving.engines import CONTRACTS
from tests.fixtures.watchdogs.plain import document

T0 = datetime(2026, 11, 16, tzinfo=UTC)
HOUR = timedelta(hours=1)
WINDOW = Window(since=T0, until=T0 + 10 * HOUR, now=T0 + 10 * HOUR, timezone="UTC")


def fleet_of(folder: Path, engines: list[tuple[int, str | None]], counted: list[int]) -> FleetDocument:
    """A fleet with one instance in pool `batch`, declared engines from some hours on, and tokens at some hours."""
    changes: dict[str, Any] = {"ledger_url": f"sqlite:///{folder}/ledger.db"}
    fleet = FleetDocument.model_validate(document().model_dump(mode="json", by_alias=True) | changes)
    name, declared = ledger_name(fleet), declared_of(fleet)
    run = facts.Run(
        cloud=Cloud.AWS, instance_id="i-1", started_at=T0, environment=name, region="us-east-1", zone="us-east-1a",
        machine_type="p5.48xlarge", capacity_type=CapacityType.ON_DEMAND, last_seen_at=WINDOW.until, pool="batch",
        owner="team",
    )  # fmt: skip
    readings = [
        facts.TokenReading(
            environment=name, instance_id="i-1", engine="8000/0", model="m", prompt=1000 * n, generation=10 * n,
            at=T0 + hour * HOUR + timedelta(minutes=1), created_at=T0,
        )
        for n, hour in enumerate(counted)
    ]  # fmt: skip
    with writing(open_ledger(fleet.ledger_url)) as connection:
        facts.add_runs(connection, [run])
        facts.add_readings(connection, readings)
        roll_up(connection, readings)
        for hour, engine in engines:
            pools = {} if engine is None else {"batch": engine}
            note_declared(connection, name, T0 + hour * HOUR, content_of(replace(declared, engines=pools)))
        for hour in range(11):
            facts.add_pass(
                connection,
                facts.CostPass(
                    environment=name, at=T0 + hour * HOUR, host="h", metrics_from=None, metrics_until=None
                ),
            )
    return fleet


def rows_of(fleet: FleetDocument) -> list[tuple[str | None, int, str, str]]:
    """Engine, hours, source and state of each row of the JSON document."""
    found = as_document(reports.cost(fleet, WINDOW, True))["token_sources"]
    assert {row["pool"] for row in found} == {"batch"}
    hours = [(datetime.fromisoformat(row["until"]) - datetime.fromisoformat(row["since"])) // HOUR for row in found]
    return [(row["engine"], n, row["source"], row["tokens"]) for row, n in zip(found, hours, strict=True)]


@pytest.mark.parametrize(
    ("engines", "counted", "expected"),
    [
        pytest.param([(0, "vllm")], [1, 2], [("vllm", 10, "engine", "counted")], id="counted by the engine"),
        pytest.param([(0, "vllm")], [], [("vllm", 10, "engine", "unknown")], id="nothing was measured"),
        pytest.param([(0, "triton")], [1, 2], [("triton", 10, "histogram", "counted")], id="sums of histograms"),
        pytest.param([(0, "ollama")], [1, 2], [("ollama", 10, "router", "unknown")], id="the engine counts nothing"),
        pytest.param([(0, "new")], [1, 2], [("new", 10, "unknown", "unknown")], id="an engine of a newer release"),
        pytest.param([(0, None)], [1, 2], [(None, 10, "engine", "counted")], id="settings of an older release"),
        pytest.param(
            [(0, "vllm"), (4, "sglang"), (7, "ollama")],
            [1, 2, 5, 8],
            [
                ("vllm", 4, "engine", "counted"),
                ("sglang", 3, "engine", "counted"),
                ("ollama", 3, "router", "unknown"),
            ],
            id="a pool that changes its engine",
        ),
    ],
)
def test_each_engine_of_a_pool_is_a_row_with_its_source(
    tmp_path: Path,
    engines: list[tuple[int, str | None]],
    counted: list[int],
    expected: list[tuple[str, int, str, str]],
) -> None:
    assert rows_of(fleet_of(tmp_path, engines, counted)) == expected


def test_every_format_names_the_source_and_its_error(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, [(0, "sglang")], [1, 2])
    line = "tokens of SGLang (pool batch): counters of the engine; " + CONTRACTS_ERROR
    report = reports.cost(fleet, WINDOW, True)
    assert line in as_text(report)
    assert line in digest_text(reports.digest(fleet, WINDOW, True))
    assert line in reports.html(fleet, WINDOW, True)
    row = as_document(report)["token_sources"][0]
    assert "counted_at_request_end" in row["errors"] and row["error_text"] == CONTRACTS_ERROR
    rows = list(csv.DictReader(StringIO(figures_csv(report))))
    assert rows[0]["token_source"] == "engine"
    assert [row["token_source"] for row in rows if (row["grouping"], row["name"]) == ("pool", "batch")] == ["engine"]


CONTRACTS_ERROR = next(one.tokens.error for one in CONTRACTS.values() if one.title == "SGLang")


def test_tokens_that_nothing_measured_are_unknown_and_not_absent_traffic(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, [(0, "ollama")], [])
    report = reports.cost(fleet, WINDOW, True)
    shown = as_text(report)
    assert "pool batch: tokens unknown" in shown and "no traffic" not in shown
    assert "tokens of Ollama (pool batch): unknown, which is not zero; " in shown
    found = as_document(report)
    assert found["total"]["tokens"]["prompt"] is None
    assert found["total"]["usd_per_million_tokens"]["blended"] is None
    page = reports.html(fleet, WINDOW, True)
    assert "Tokens unknown: " in page and "No traffic" not in page
    assert "no traffic" not in digest_text(reports.digest(fleet, WINDOW, True))
    assert next(csv.DictReader(StringIO(figures_csv(report))))["token_source"] == "unknown"


@pytest.mark.parametrize("kind", CONTRACTS)
def test_every_contract_states_its_errors_as_codes(kind: str) -> None:
    method = token_method(kind)
    assert method.errors and method.error_text
    assert method.source in ("engine", "histogram", "router")
    assert all(code == code.lower() and " " not in code for code in method.errors)


def test_lines_name_few_pools_and_separate_what_is_unknown() -> None:
    pools = [PoolEngine(pool=f"p{n}", engine="vllm", since=T0, until=T0 + HOUR) for n in range(7)]
    origins = [
        replace(one, state=TokenState.COUNTED) if n else one
        for n, one in enumerate(token_origins(pools, [], token_method))
    ]
    counted, unknown = lines(origins)
    assert counted.startswith("tokens of vLLM (pools p1, p2, p3, p4, p5 and 1 more): counters of the engine; ")
    assert unknown.startswith(
        "tokens of vLLM (pool p0): unknown, which is not zero: USD per million tokens of sums that contain them are"
        " upper bounds; "
    )
    assert lines(origins[:1])[0].startswith("tokens of vLLM (pool p0): unknown, which is not zero; ")
    assert sources_of(origins) == "engine+unknown"
    assert sources_of(origins, "p0") == "unknown"
