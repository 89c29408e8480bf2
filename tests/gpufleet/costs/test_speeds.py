"""Tokens per second and GPU next to the measured benchmark: by hand, through the command, and unknown without a
measurement."""

import csv
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.allocation import UseState
from gpufleet.costs.figures import Figure
from gpufleet.costs.speed import MeasuredSpeed, ReferenceSpeed, speeds
from gpufleet.domain.catalogue import MachineType
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger import facts, rollups
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import ActivityHour, CostPass, TokenReading
from gpufleet.ledger.schema import open_ledger
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, read_json, run, stdout_of

MEASURED = ROOT / "serving" / "sizing" / "data" / "measured.csv"
MODEL = "models/large"
PRICE = {"sku": "aws:ec2:p5.48xlarge:on-demand", "usd_per_hour": "55.04", "source": "list", "as_of": "2026-11-01"}


def never_measured(model: str, machine: MachineType) -> ReferenceSpeed:
    return ReferenceSpeed(
        tokens_per_second_per_gpu=None, basis=f"unknown: no measurement of {model} on {machine.gpu}"
    )


def cell(machine_type: str = "p5.48xlarge", kind: str = "spot", pool: str = "chat") -> tuple[str, ...]:
    return (pool, MODEL, kind, "team", "us-east-1a", machine_type)


def figure(used_s: int = 0, unmeasured_s: int = 0, idle_s: int = 0, **tokens: int) -> Figure:
    made = Figure(tokens=Tokens(**tokens))
    made.times[UseState.USED] = timedelta(seconds=used_s)
    made.times[UseState.UNMEASURED] = timedelta(seconds=unmeasured_s)
    made.times[UseState.IDLE] = timedelta(seconds=idle_s)
    return made


def one(cells: dict[tuple[str, ...], Figure], cloud: Cloud = Cloud.AWS) -> MeasuredSpeed:
    (row,) = speeds(cells, cloud, never_measured)
    return row


def test_computed_tokens_over_used_time_and_gpus() -> None:
    used = figure(used_s=50, unmeasured_s=10, idle_s=10_000, prompt=10_000, cached=4_000, generation=3_600)
    row = one({cell(): used, cell(kind="on-demand"): figure(used_s=40)})
    # 9,600 computed tokens over 100 s of 8 GPUs; idle time does not count as used
    assert (row.tokens, row.gpu_seconds, row.tokens_per_second_per_gpu) == (9_600, 800, 12)


def test_fractional_gpu_counts_less_than_one() -> None:
    row = one({cell("g6f.xlarge"): figure(used_s=80, prompt=600, generation=200)})
    assert row.gpus == Fraction(1, 8)
    assert row.tokens_per_second_per_gpu == 80


def test_shared_costs_have_no_rate() -> None:
    assert speeds({cell("aws:vpc:nat-gateway", "shared"): figure(used_s=9)}, Cloud.AWS, never_measured) == []


@pytest.mark.parametrize(
    ("name", "tokens", "why"),
    [
        pytest.param("x9.huge", {"prompt": 1, "generation": 1}, "x9.huge is not in the catalogue", id="machine type"),
        pytest.param("p5.48xlarge", {"prompt": 1}, "no measurement of", id="output tokens"),
    ],
)
def test_unknown_figures_give_no_rate_instead_of_zero(name: str, tokens: dict[str, int], why: str) -> None:
    row = one({cell(name): figure(used_s=60, **tokens)})
    assert row.tokens_per_second_per_gpu is None and row.share_of_reference is None
    assert why in row.reference.basis


def test_machines_that_served_without_a_measured_second_have_no_rate() -> None:
    assert one({cell(): figure(prompt=5, generation=5)}).tokens_per_second_per_gpu is None


@given(parts=st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 9_000), st.integers(0, 10**9)), min_size=1))
def test_rate_is_a_sum_over_a_sum_for_any_split_into_pools(parts: list[tuple[int, int, int]]) -> None:
    pieces = {
        cell(pool=f"p{n}"): figure(used_s=used, unmeasured_s=rest, prompt=tokens, generation=0)
        for n, (used, rest, tokens) in enumerate(parts)
    }
    whole = Figure()
    for piece in pieces.values():
        whole.include(piece)
    assert speeds(pieces, Cloud.AWS, never_measured) == speeds({cell(): whole}, Cloud.AWS, never_measured)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with the ledger of one p5.48xlarge that runs two hours: idle in one, serving in the other."""
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    machine = run("i-1", 0, CapacityType.ON_DEMAND, model=MODEL, machine_type="p5.48xlarge")
    readings = [
        TokenReading(
            environment=FLEET, instance_id="i-1", engine="0", model="large", at=T0 + timedelta(minutes=minute),
            prompt=minute * 600_000, cached=minute * 100_000, generation=minute * 220_000, created_at=T0,
        )
        for minute in range(0, 61, 5)
    ]  # fmt: skip
    hours = [(0, (1 << 360) - 1, 0), (1, 0, (1 << 360) - 1)]
    with writing(engine) as connection:
        facts.add_runs(connection, [machine])
        facts.add_readings(connection, readings)
        rollups.roll_up(connection, readings)
        facts.add_activity(
            connection,
            [ActivityHour(environment=FLEET, instance_id="i-1", hour=T0 + n * HOUR, busy=busy, idle=idle)
             for n, busy, idle in hours],
        )  # fmt: skip
        for at in (T0, T0 + 6 * HOUR):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    engine.dispose()
    return tmp_path


def fleet(folder: Path, source: str | None) -> Path:
    pool: dict[str, Any] = {
        "name": "chat", "model": MODEL, "model_source": source, "engine": "vllm", "owner": "search", "target": 1,
        "min": 0, "max": 5, "drain_deadline": "90s", "watchdogs": {}, "groups": [],
    }  # fmt: skip
    return document(folder, pools=[pool], prices={"overrides": [PRICE]})


def best(model: str, gpu: str, gpus: str) -> Decimal:
    """The highest tokens per second and GPU in the benchmark table, computed from it again."""
    with MEASURED.open() as file:
        rows = [r for r in csv.DictReader(file) if (r["model"], r["gpu"], r["gpus"]) == (model, gpu, gpus)]
    return max(
        Decimal(r["concurrency"]) * (int(r["input"]) + int(r["output"])) * 1000
        / (Decimal(r["ttft_ms"]) + int(r["output"]) * Decimal(r["tpot_ms"])) / int(gpus)
        for r in rows
    )  # fmt: skip


TWO_HOURS = ("--since", "2026-11-20T06:00", "--until", "2026-11-20T08:00")


def test_report_shows_the_measured_rate_next_to_its_own(large: Path) -> None:
    path = fleet(large, "hf://meta-llama/Llama-3.1-70B-Instruct@abc")
    (row,) = read_json("cost", "--fleet", path, *TWO_HOURS)["speeds"]
    reference = best("meta-llama/Llama-3.1-70B", "H100-80GB", "8")
    # 60 minutes of 720,000 computed tokens on 8 GPUs
    assert (row["gpu"], row["gpus"], row["tokens_computed"]) == ("H100-80GB", "8", 43_200_000)
    assert (row["gpu_seconds"], row["tokens_per_second_per_gpu"]) == ("28800.0000", "1500.0000")
    assert abs(Decimal(row["reference_tokens_per_second_per_gpu"]) - reference) < Decimal("0.001")
    assert abs(Decimal(row["share_of_reference"]) - 1500 / reference) < Decimal("0.0001")
    assert "Llama-3.1-70B on 8 x H100-80GB" in row["reference"] and "InferenceX" in row["reference"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param(None, "has no known name on a hub", id="an older document"),
        pytest.param("s3://bucket/models/large", "has no known name on a hub", id="an own model"),
        pytest.param("hf://acme/large@1", "no measurement of acme/large on 8 x H100-80GB", id="not measured"),
    ],
)
def test_report_without_a_measurement_shows_unknown(large: Path, source: str | None, why: str) -> None:
    path = fleet(large, source)
    (row,) = read_json("cost", "--fleet", path, *TWO_HOURS)["speeds"]
    assert (row["reference_tokens_per_second_per_gpu"], row["share_of_reference"]) == (None, None)
    assert row["tokens_per_second_per_gpu"] == "1500.0000" and why in row["reference"]
    table = stdout_of("cost", "--fleet", path, *TWO_HOURS)
    assert "8 x H100-80GB" in table and "1,500.0" in table and f"{MODEL}, p5.48xlarge: unknown: " in table


def test_html_report_shows_the_measured_rate(large: Path) -> None:
    out = large / "cost.html"
    stdout_of(
        "cost", "--fleet", fleet(large, "hf://meta-llama/Llama-3.1-70B"), *WINDOW, "--format", "html", "--out", out
    )
    text = out.read_text(encoding="utf-8")
    assert "<h2>Tokens per second and GPU</h2>" in text and "<td>8 x H100-80GB</td>" in text
    assert "Sources of the references" in text and "Llama-3.1-70B on 8 x H100-80GB" in text
