"""Expected USD per million tokens of a plan: computed by hand from measured rows, unknown without them."""

import csv
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from app.plan_tokens import Expected, as_text, expected
from gpufleet.prices.plan.cost import CostLine, PlanCost, Priced
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.stacks.settings_files import a_pool

MEASURED = ROOT / "serving" / "sizing" / "data" / "measured.csv"
AT = datetime(2026, 11, 21, tzinfo=UTC)


def line(machine_type: str, desired: str, usd: str, kind: str = "on-demand") -> CostLine:
    price = Decimal(usd)
    return CostLine(
        pool="chat", what=kind, sku=f"aws:ec2:{machine_type}:{kind}", least=Decimal(0), desired=Decimal(desired),
        most=Decimal(9), price=Priced(usd_per_hour=price, low=price, high=price, prices=()),
    )  # fmt: skip


def of(source: str, *lines: CostLine) -> Expected:
    config: Mapping[str, Any] = {
        "gpu-fleet:fleet": {
            "cloud": "aws",
            "models": [{"name": "m", "source": source, "weights_gib": 1}],
            "pools": [a_pool("chat", model="m")],
        }
    }
    (row,) = expected(config, PlanCost(lines=lines, fallbacks=(), by_use=()))
    return row


def best(model: str, gpu: str, gpus: str) -> Decimal:
    """Highest tokens per second in the table, input and output together."""
    with MEASURED.open() as file:
        rows = [r for r in csv.DictReader(file) if (r["model"], r["gpu"], r["gpus"]) == (model, gpu, gpus)]
    return max(
        Decimal(r["concurrency"]) * (int(r["input"]) + int(r["output"])) * 1000
        / (Decimal(r["ttft_ms"]) + int(r["output"]) * Decimal(r["tpot_ms"]))
        for r in rows
    )  # fmt: skip


def test_measurements_of_another_engine_do_not_apply() -> None:
    config = {
        "gpu-fleet:fleet": {
            "cloud": "aws",
            "models": [{"name": "m", "source": "hf://meta-llama/Llama-3.1-70B", "weights_gib": 1}],
            "pools": [a_pool("chat", model="m", engine=a_pool("chat")["engine"] | {"kind": "sglang", "args": []})],
        }
    }
    lines = (line("p5.48xlarge", "2", "55.04"),)
    (row,) = expected(config, PlanCost(lines=lines, fallbacks=(), by_use=()))
    assert row.usd_per_million_tokens is None
    assert row.basis == "unknown: not modelled for sglang: formulas and measured speeds are those of vLLM"


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct@abc"])
def test_a_measured_pool(name: str) -> None:
    found = of(f"hf://{name}", line("p5.48xlarge", "2", "55.04"), line("p5.48xlarge", "1", "20", "spot"))
    usd = Decimal("130.08") / (3 * best("meta-llama/Llama-3.1-70B", "H100-80GB", "8") * 3600) * 1_000_000
    assert found.usd_per_million_tokens == usd.quantize(Decimal("0.0001"))
    assert "8 x H100-80GB" in as_text(found)


@pytest.mark.parametrize(
    ("source", "lines", "why"),
    [
        pytest.param(
            "hf://meta-llama/Llama-3.1-8B", (line("p5.48xlarge", "1", "55.04"),),
            "no measurement of meta-llama/Llama-3.1-8B on 8 x H100-80GB", id="another model",
        ),
        pytest.param(
            "hf://meta-llama/Llama-3.1-70B", (line("p5.48xlarge", "1", "55.04"), line("g6e.12xlarge", "1", "10")),
            "no measurement of meta-llama/Llama-3.1-70B on 4 x L40S", id="one of two machine types",
        ),
        pytest.param("s3://b/m", (line("p5.48xlarge", "1", "55.04"),), "has no known name on a hub", id="own model"),
        pytest.param(
            "hf://meta-llama/Llama-3.1-70B", (line("p5.48xlarge", "0", "55.04"),), "has no machine",
            id="scaled to zero"
        ),
    ],
)  # fmt: skip
def test_unmeasured_speed_is_unknown(source: str, lines: tuple[CostLine, ...], why: str) -> None:
    found = of(source, *lines)
    assert found.usd_per_million_tokens is None
    assert why in as_text(found)
