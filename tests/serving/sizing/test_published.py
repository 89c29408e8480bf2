"""Accelerators that the model is not fitted to: ranked by published throughput of the same model class, or not."""

from dataclasses import replace
from decimal import Decimal

import pytest

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind, MachineType
from gpufleet.domain.model import CapacityType, Cloud
from serving.sizing.choice import MachineSizing, Missing, Offer, SizingDemand, UnrankedCode, ability, option_of
from serving.sizing.measurements import SOURCES, measured, published
from serving.sizing.options import ServingOption
from serving.sizing.speed import SpeedOrigin, Traffic
from tests.fixtures.sized_models import sized

LLAMA_8B, LLAMA_70B, QWEN_32B = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-32B",
)


def machine(gpu: str, count: int, kind: AcceleratorKind = AcceleratorKind.NEURON) -> MachineType:
    known = catalogue.machine(Cloud.AWS, "g6.xlarge")
    return replace(known, name=f"{count}x{gpu}", gpu=gpu, gpu_count=count, accelerator=kind)


def demand(
    sizes: tuple[int, int], rps: float = 1, itl: float | None = None, option: ServingOption | None = None
) -> SizingDemand:
    traffic = Traffic(input_tokens=sizes[0], output_tokens=sizes[1], itl_s=itl)
    return SizingDemand(traffic=traffic, requests_per_s=rps, option=option)


# tokens/s of the source; output tokens of its requests; machines for the demand; USD per million tokens at 10 USD/h.
# By hand, first row: 120.62953 / 2048 = 0.0589 requests/s, so 0.1 need 2 machines: 20 USD/h over
# 0.1 × 4,096 × 3,600 = 1,474,560 tokens/h
@pytest.mark.parametrize(
    ("gpu", "devices", "model", "wanted", "requests_s", "count", "usd"),
    [
        pytest.param(
            "Trainium", 16, LLAMA_70B, demand((2048, 2048), 0.1), 120.62953 / 2048, 2, "13.5633680556",
            id="trn1.32xlarge, Llama 70B",
        ),
        pytest.param(
            "Inferentia2", 12, LLAMA_70B, demand((1024, 1024), 0.02), 30.16 / 1024, 1, "67.8168402778",
            id="inf2.48xlarge, Llama 70B",
        ),
        pytest.param(
            "Inferentia2", 12, LLAMA_8B, demand((128, 3968), 0.5, option=ServingOption.INT8), 859.09 / 3968, 3,
            "4.0690104167", id="inf2.48xlarge, Llama 8B in INT8",
        ),
        pytest.param(
            "TPU-v6e", 8, LLAMA_70B, demand((1000, 1000), 5), 3.54, 2, "0.5555555556", id="v6e-8, Llama 70B"
        ),
        pytest.param(
            "TPU-v6e", 8, LLAMA_70B, demand((1000, 1000), 5, 0.03), 2.49, 3, "0.8333333333",
            id="v6e-8, Llama 70B, 30 ms per token",
        ),
        pytest.param(
            "TPU-v6e", 4, LLAMA_8B, demand((256, 346), 40), 4 * 100 / 12.6, 2, "0.2307124400",
            id="v6e-4, four copies of Llama 8B",
        ),
        pytest.param(
            "TPU7x", 4, QWEN_32B, demand((1024, 1024), 20, option=ServingOption.FP8), 4 * 6556.72 / 1024, 1,
            "0.0678168403", id="TPU7x, four copies of Qwen3 32B in FP8",
        ),
    ],
)  # fmt: skip
def test_published_throughput_and_its_cost_by_hand(
    gpu: str, devices: int, model: str, wanted: SizingDemand, requests_s: float, count: int, usd: str
) -> None:
    on = machine(gpu, devices)
    found = ability(*sized(model), on, wanted)
    assert isinstance(found, MachineSizing), found
    assert found.fit is None
    assert found.speed.kind is SpeedOrigin.PUBLISHED
    assert found.speed.requests_per_s == pytest.approx(requests_s, rel=1e-4)
    offer = Offer(machine=on, capacity_type=CapacityType.ON_DEMAND, usd_per_hour=Decimal(10), price_source="a test")
    option = option_of(offer, found, wanted)
    assert option.count == count
    assert option.usd_per_million_tokens == pytest.approx(Decimal(usd), abs=Decimal("1e-9"))


@pytest.mark.parametrize(
    ("gpu", "devices", "model", "wanted", "code", "detail"),
    [
        pytest.param(
            "Inferentia", 16, LLAMA_8B, demand((1000, 200)), UnrankedCode.NO_THROUGHPUT, "none for such a model",
            id="nothing is published",
        ),
        pytest.param(
            "Inferentia2", 12, LLAMA_8B, demand((1000, 200)), UnrankedCode.NO_THROUGHPUT, "int8 128 to 8064",
            id="published for other requests and another format",
        ),
        pytest.param(
            "Trainium", 8, LLAMA_70B, demand((2048, 2048)), UnrankedCode.NO_THROUGHPUT, "bf16 2048 to 2048",
            id="published for more devices",
        ),
        pytest.param(
            "TPU7x", 1, QWEN_32B, demand((1024, 1024), itl=0.1, option=ServingOption.FP8), UnrankedCode.NO_LATENCY,
            "without latencies", id="an objective, and no published latency",
        ),
        pytest.param(
            "TPU-v6e", 8, LLAMA_70B, demand((1000, 1000), itl=0.01), UnrankedCode.OVER_OBJECTIVE, "objective",
            id="published, and too slow",
        ),
        pytest.param(
            "Trainium2", 16, LLAMA_70B, demand((10_000, 1500), option=ServingOption.NGRAM), UnrankedCode.NO_EFFECT,
            "ngram", id="speculative decoding that was not measured there",
        ),
        pytest.param(
            "Radeon-Pro-V520", 1, LLAMA_8B, demand((1000, 200)), UnrankedCode.NO_THROUGHPUT, "Radeon-Pro-V520",
            id="a GPU of another maker",
        ),
    ],
)  # fmt: skip
def test_without_a_source_a_machine_is_not_ranked(
    gpu: str, devices: int, model: str, wanted: SizingDemand, code: UnrankedCode, detail: str
) -> None:
    found = ability(*sized(model), machine(gpu, devices, AcceleratorKind.TPU), wanted)
    assert isinstance(found, Missing), found
    assert found.code is code
    assert detail in found.detail


def test_a_kind_without_fitted_rows_is_never_modelled() -> None:
    # the same figures as an NVIDIA GPU: only the kind differs
    for kind in AcceleratorKind:
        found = ability(*sized(LLAMA_8B), machine("L4", 1, kind), demand((1000, 200)))
        assert isinstance(found, MachineSizing) is (kind is AcceleratorKind.NVIDIA)


def test_every_row_has_a_source_and_a_rate() -> None:
    for row in published():
        assert row.source in SOURCES
        assert row.requests_per_s > 0
        if row.ttft_s is not None and row.itl_s is not None and row.concurrency is not None:
            loop = row.concurrency / (row.ttft_s + (row.output_tokens - 1) * row.itl_s)
            error = row.speed().error
            assert error is not None and error.high is not None
            # the stated latencies give a rate inside the error of the stated rate
            assert error.low - 1e-9 <= loop / row.requests_per_s - 1 <= error.high + 1e-9, row
        else:
            assert row.speed().error is None
    assert len(published()) > len(measured()) + 70
