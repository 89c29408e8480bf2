"""The choice of machines: rooflines and measurements, exact costs, missing data."""

import json
import struct
from dataclasses import replace
from decimal import Decimal
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli.commands import build
from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from serving.sizing import families, measurements
from serving.sizing.choice import (
    MachineSizing,
    Missing,
    Offer,
    SizingDemand,
    UnrankedCode,
    ability,
    cheapest_mix,
    rank,
)
from serving.sizing.fit import FitRequest, spread
from serving.sizing.measurements import from_published, was_measured
from serving.sizing.model import ModelShape, Weights
from serving.sizing.speed import SizedReplica, Speed, SpeedOrigin, Traffic
from tests.fixtures.public_models import CONFIGS

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
# bytes and parameters, from the model cards and safetensors indices of these repositories
WEIGHTS = {
    LLAMA_8B: (16_060_522_496, 8_030_261_248, 0),
    LLAMA_70B: (141_107_412_992, 70_553_706_496, 0),
    "Qwen/Qwen3-32B": (65_524_246_528, 32_762_123_264, 0),
    "openai/gpt-oss-120b": (65_248_815_744, 116_829_156_672, 60_900_000_000),
}
MEASURED_AS = {
    "meta-llama/Llama-3.1-70B": LLAMA_70B,
    "openai/gpt-oss-120b": "openai/gpt-oss-120b",
    "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
}


def model_of(name: str) -> tuple[ModelShape, Weights]:
    size, parameters, experts = WEIGHTS[name]
    heavy = Weights(
        split=size, copied=0, key_value=0, ends=0, quantizable=size, parameters=parameters, experts=experts
    )
    return families.read(CONFIGS[name]), heavy


@pytest.mark.parametrize(
    ("cloud", "name"),
    [
        pytest.param(Cloud.AWS, "trn1.32xlarge", id="Neuron"),
        pytest.param(Cloud.AWS, "g4ad.xlarge", id="AMD"),
        pytest.param(Cloud.GCP, "ct6e-standard-8t", id="TPU"),
    ],
)
def test_other_accelerators_have_no_modelled_speed(cloud: Cloud, name: str) -> None:
    demand = SizingDemand(traffic=Traffic(input_tokens=500, output_tokens=100), requests_per_s=1)
    found = ability(*model_of(LLAMA_8B), catalogue.machine(cloud, name), demand)
    assert isinstance(found, Missing) and found.code is UnrankedCode.NO_THROUGHPUT


def test_the_roofline_is_fitted_to_the_measured_rows() -> None:
    ratios: dict[int, list[float]] = {}
    for row in measurements.measured():
        model, heavy = model_of(MEASURED_AS[row.model])
        replica = SizedReplica(
            model=model,
            weights=heavy,
            gpu=catalogue.gpu(row.gpu),
            gpus=row.gpus,
            weights_fp8=row.precision == "fp8",
        )
        guess = replica.at(
            row.concurrency or 0, Traffic(input_tokens=row.input_tokens, output_tokens=row.output_tokens)
        )
        ratios.setdefault(row.gpus, []).append(row.requests_per_s / guess.requests_per_s)
    assert sum(len(rows) for rows in ratios.values()) >= 400
    for gpus, rows in ratios.items():
        assert median(rows) == pytest.approx(1, rel=0.05), gpus
        # an estimate is rarely wrong by more than a factor of two
        assert sum(0.5 < ratio < 2 for ratio in rows) / len(rows) > 0.85, gpus


def test_published_speeds_take_precedence_and_meet_the_objective() -> None:
    model, _ = model_of(LLAMA_70B)
    traffic = Traffic(input_tokens=1024, output_tokens=1024)
    best = from_published(model, "fp8", "H100-80GB", 2, traffic)
    assert best is not None
    assert best.kind is SpeedOrigin.PUBLISHED
    assert best.error is not None and best.error.high == 0.1
    # concurrency 64, first token 415 ms, 28.8 ms per token: 1,098 output tokens per second and GPU
    assert best.requests_per_s * 1024 / 2 == pytest.approx(1098, rel=0.01)
    slower = from_published(model, "fp8", "H100-80GB", 2, replace(traffic, itl_s=0.02))
    assert slower is not None and slower.itl_s is not None
    assert slower.itl_s <= 0.02
    assert slower.requests_per_s < best.requests_per_s
    assert from_published(model, "fp8", "H100-80GB", 2, replace(traffic, itl_s=0.001)) is None


@pytest.mark.parametrize(
    ("gpu", "gpus", "traffic"),
    [
        pytest.param("L4", 1, Traffic(input_tokens=1024, output_tokens=1024), id="another GPU"),
        pytest.param("H100-80GB", 1, Traffic(input_tokens=1024, output_tokens=1024), id="another number of GPUs"),
        pytest.param("H100-80GB", 2, Traffic(input_tokens=3000, output_tokens=100), id="other requests"),
    ],
)
def test_unmeasured_speeds_are_not_labelled_published(gpu: str, gpus: int, traffic: Traffic) -> None:
    model, _ = model_of(LLAMA_70B)
    assert not was_measured(model, "fp8", gpu, gpus, traffic)


def test_a_roofline_does_not_override_measurements_that_miss_the_objective() -> None:
    model, heavy = model_of(LLAMA_70B)
    machine = catalogue.machine(Cloud.AWS, "p5.48xlarge")
    demand = SizingDemand(
        traffic=Traffic(input_tokens=1024, output_tokens=1024, itl_s=0.001), requests_per_s=1, weights_fp8=True
    )
    found = ability(model, heavy, machine, demand)
    assert isinstance(found, Missing) and found.code is UnrankedCode.OVER_OBJECTIVE


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        pytest.param("g4dn.xlarge", UnrankedCode.DOES_NOT_FIT, "too little", id="16 GB"),
        pytest.param("p4d.24xlarge", UnrankedCode.HARDWARE_CANNOT, "no FP8", id="A100 in FP8"),
        pytest.param("g6f.xlarge", UnrankedCode.FRACTION, "fraction", id="a part of an L4"),
    ],
)
def test_an_unsuitable_machine_gives_the_reason(name: str, code: UnrankedCode, reason: str) -> None:
    model, heavy = model_of(LLAMA_8B)
    demand = SizingDemand(
        traffic=Traffic(input_tokens=1000, output_tokens=200), requests_per_s=1, weights_fp8=name.startswith("p4")
    )
    found = ability(model, heavy, catalogue.machine(Cloud.AWS, name), demand)
    assert isinstance(found, Missing)
    assert found.code is code
    assert reason in found.detail


def test_more_load_gives_slower_tokens_and_higher_throughput() -> None:
    model, heavy = model_of(LLAMA_8B)
    replica = SizedReplica(model=model, weights=heavy, gpu=catalogue.gpu("L4"), gpus=1)
    traffic = Traffic(input_tokens=500, output_tokens=200)
    rows = [replica.at(batch, traffic) for batch in (1, 4, 16)]
    assert [row.requests_per_s for row in rows] == sorted(row.requests_per_s for row in rows)
    assert [row.itl_s for row in rows] == sorted(row.itl_s or 0 for row in rows)
    # one stream reads 16 GB at 65 % of 300 GB/s
    assert rows[0].itl_s == pytest.approx(16.06e9 / (300e9 * 0.65), rel=0.05)


@pytest.mark.parametrize(
    ("name", "machine_type", "copies"),
    [
        pytest.param(LLAMA_8B, "p4d.24xlarge", 8, id="a small model on eight GPUs: one copy each"),
        pytest.param(LLAMA_70B, "p4d.24xlarge", 1, id="a large one needs them all"),
        pytest.param(LLAMA_8B, "g6.xlarge", 1, id="one GPU"),
    ],
)
def test_unneeded_gpus_serve_further_copies(name: str, machine_type: str, copies: int) -> None:
    model, heavy = model_of(name)
    machine = catalogue.machine(Cloud.AWS, machine_type)
    traffic = Traffic(input_tokens=1000, output_tokens=200)
    found = ability(model, heavy, machine, SizingDemand(traffic=traffic, requests_per_s=1))
    assert isinstance(found, MachineSizing) and found.fit is not None
    options = found.fit.options
    assert options.data_parallel_size == copies
    assert (
        options.data_parallel_size * options.tensor_parallel_size * options.pipeline_parallel_size
        == machine.gpu_count
    )
    gpu, gpus = catalogue.gpu(machine.gpu), machine.gpu_count
    alone = SizedReplica(model=model, weights=heavy, gpu=gpu, gpus=gpus // copies).from_roofline(traffic, 256)
    assert alone is not None
    assert found.speed.requests_per_s <= alone.requests_per_s * copies


def _offer(name: str, usd: str, rate: float) -> tuple[Offer, MachineSizing]:
    model, heavy = model_of(LLAMA_8B)
    machine = catalogue.machine(Cloud.AWS, name)
    fits = spread(model, heavy, catalogue.gpu("L4"), 1, FitRequest(context=1024))
    offer = Offer(
        machine=machine, capacity_type=CapacityType.ON_DEMAND, usd_per_hour=Decimal(usd), price_source="a test"
    )
    made = Speed(
        requests_per_s=rate, concurrency=8, ttft_s=0.1, itl_s=0.01, kind=SpeedOrigin.MODELLED, source="a test"
    )
    return offer, MachineSizing(fit=fits, speed=made)


def test_costs_are_exact_and_include_idle_time() -> None:
    demand = SizingDemand(traffic=Traffic(input_tokens=900, output_tokens=100), requests_per_s=2.5)
    (option,) = rank([_offer("g6.xlarge", "0.8048", 1.0)], demand)
    assert (option.count, option.usd_per_hour) == (3, Decimal("2.4144"))
    assert option.usd_per_million_tokens == Decimal("2.4144") * 1_000_000 / Decimal(9_000_000)


@given(
    rates=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    prices=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    wanted=st.integers(1, 12),
)
def test_the_mix_is_the_cheapest_of_all_mixes(rates: list[int], prices: list[int], wanted: int) -> None:
    names = ["g6.xlarge", "g6.2xlarge", "g6.4xlarge"]
    offers = [_offer(name, str(usd), float(rate)) for name, usd, rate in zip(names, prices, rates, strict=False)]
    demand = SizingDemand(traffic=Traffic(input_tokens=1, output_tokens=1), requests_per_s=float(wanted))
    found = cheapest_mix(rank(offers, demand), demand)
    assert found is not None
    best = min(
        sum(n * offer.usd_per_hour for n, (offer, _) in zip(counts, offers, strict=True))
        for counts in product(range(13), repeat=len(offers))
        if sum(n * able.speed.requests_per_s for n, (_, able) in zip(counts, offers, strict=True)) >= wanted
    )
    assert found.usd_per_hour == best
    assert sum(count * option.able.speed.requests_per_s for option, count in found.parts) >= wanted


def _headers_only(folder: Path, config: dict[str, Any], size: int) -> Path:
    """Create a model whose weights are holes in the file: only their header is ever read."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps(
        {"model.layers.0.mlp.up_proj.weight": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    ).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return folder


def test_the_command_names_prices_speeds_and_what_is_unknown(tmp_path: Path) -> None:
    folder = _headers_only(tmp_path / "8b", CONFIGS[LLAMA_8B], WEIGHTS[LLAMA_8B][0])
    arguments = ["choose", str(folder), "--rps", "5", "--input", "1000", "--output", "200", "--itl", "0.06", "--json"]
    done = CliRunner().invoke(build("choose"), [*arguments, "--cloud", "aws"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    costs = [float(row["usd_per_million_tokens"]) for row in found["options"]]
    assert costs == sorted(costs)
    assert {row["cloud"] for row in found["options"]} == {"aws"}
    assert all(row["price_source"] and row["speed_source"] and row["itl_s"] <= 0.06 for row in found["options"])
    assert float(found["mix"]["usd_per_hour"]) <= float(found["options"][0]["usd_per_hour"])
    # AWS's spot prices change hourly: the package contains none, and invents none
    assert "spot" not in {row["capacity_type"] for row in found["options"]}
    assert any(
        (row["machine_type"], row["capacity_type"], row["code"]) == ("g6e.xlarge", "spot", "no_price")
        for row in found["not_ranked"]
    )


def test_the_command_reports_when_no_machine_suffices(tmp_path: Path) -> None:
    folder = _headers_only(tmp_path / "8b", CONFIGS[LLAMA_8B], WEIGHTS[LLAMA_8B][0])
    arguments = ["choose", str(folder), "--rps", "1", "--input", "1000", "--output", "200", "--itl", "0.0001"]
    done = CliRunner().invoke(build("choose"), arguments)
    assert done.exit_code == 3
    assert "not ranked, over_latency_objective: " in done.stdout
