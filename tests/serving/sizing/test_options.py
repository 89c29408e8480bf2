"""Number formats and speculative decoding: exact bytes, published factors inside their range only, refusals."""

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from serving.sizing.choice import MachineSizing, Missing, SizingDemand, UnrankedCode, ability
from serving.sizing.fit import FitRequest, ParallelSplit, fit
from serving.sizing.options import BITS, NEEDS_DRAFT, SOURCES, ServingOption, effects
from serving.sizing.speed import SizedReplica, SpeedOrigin, Traffic
from serving.sizing.validity import model_error
from tests.fixtures.sized_models import BYTES, sized

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
TRAFFIC = Traffic(input_tokens=1000, output_tokens=200)


def sizing(name: str, machine_type: str, **more: Any) -> MachineSizing | Missing:
    demand = SizingDemand(traffic=TRAFFIC, requests_per_s=5, **more)
    cloud = Cloud.AWS if "." in machine_type else Cloud.GCP
    return ability(*sized(name), catalogue.machine(cloud, machine_type), demand)


@pytest.mark.parametrize(
    ("option", "size"),
    [
        # 16,060,522,496 bytes in 16 bits
        pytest.param(ServingOption.FP8, 8_030_261_248, id="fp8: 8 bits"),
        pytest.param(ServingOption.INT8, 8_030_261_248, id="int8: 8 bits"),
        # 4 bits, and 20 bits (scale and zero point) per group of 128: × 4.15625 / 16
        pytest.param(ServingOption.AWQ, 4_171_971_664, id="awq: 4.15625 bits"),
        pytest.param(ServingOption.GPTQ, 4_171_971_664, id="gptq: 4.15625 bits"),
    ],
)
def test_weights_in_a_format_take_these_bytes(option: ServingOption, size: int) -> None:
    model, weights = sized(LLAMA_8B)
    request = FitRequest(context=1200, weight_bits=BITS[option])
    answer = fit(model, weights, catalogue.gpu("H100-80GB"), request)
    assert abs(answer.weights_bytes - size) <= 1
    plain = fit(model, weights, catalogue.gpu("H100-80GB"), FitRequest(context=1200))
    assert plain.weights_bytes == BYTES[LLAMA_8B]
    # the KV cache gets what the weights give
    assert answer.kv_bytes - plain.kv_bytes == plain.weights_bytes - answer.weights_bytes


def test_a_draft_model_takes_its_bytes_on_each_gpu() -> None:
    model, weights = sized(LLAMA_70B)
    gpu = catalogue.gpu("H100-80GB")
    request = FitRequest(context=1200)
    for split in (2, 4):
        without = fit(model, weights, gpu, request, ParallelSplit(tp=split))
        drafted = fit(model, weights, gpu, replace(request, draft_bytes=2_500_000_000), ParallelSplit(tp=split))
        assert drafted.weights_bytes - without.weights_bytes == 2_500_000_000


@pytest.mark.parametrize("machine_type", ["g4dn.12xlarge", "g5.xlarge", "p4d.24xlarge", "p4de.24xlarge"])
def test_gpus_without_fp8_refuse_it(machine_type: str) -> None:
    found = sizing(LLAMA_8B, machine_type, option=ServingOption.FP8)
    assert isinstance(found, Missing)
    assert found.code is UnrankedCode.HARDWARE_CANNOT
    assert "has no FP8 arithmetic" in found.detail


# published factor for one GPU of this type at about 100 requests; the newest of several counts
@pytest.mark.parametrize(
    ("option", "machine_type", "factor", "others"),
    [
        pytest.param(ServingOption.INT8, "a2-highgpu-1g", 1.343, (1, 1), id="W8A8 on an A100-40GB is faster"),
        pytest.param(ServingOption.INT8, "a2-ultragpu-1g", 0.825, (1, 1.32 / 0.825), id="a newer engine, slower"),
        pytest.param(ServingOption.GPTQ, "p5.4xlarge", 0.625, (1, 1), id="GPTQ without Marlin is slower"),
        pytest.param(ServingOption.EAGLE, "g6.xlarge", 0.716, (1, 1), id="EAGLE at 100 requests is slower"),
    ],
)
def test_a_published_effect_scales_the_modelled_speed(
    option: ServingOption, machine_type: str, factor: float, others: tuple[float, float]
) -> None:
    found = sizing(LLAMA_8B, machine_type, option=option)
    if machine_type == "g6.xlarge":
        # 22 GB hold 16 GB of weights and 24 requests: the effect was measured at 64 and more
        assert isinstance(found, Missing)
        assert found.code is UnrankedCode.NO_EFFECT
        assert "are for 64 concurrent requests or more" in found.detail
        return
    assert isinstance(found, MachineSizing), found
    model, weights = sized(LLAMA_8B)
    machine = catalogue.machine(Cloud.AWS if "." in machine_type else Cloud.GCP, machine_type)
    replica = SizedReplica(model=model, weights=weights, gpu=catalogue.gpu(machine.gpu), gpus=1)
    assert found.speed.concurrency in (64, 96)
    plain = replica.at(found.speed.concurrency or 0, TRAFFIC)
    assert plain.itl_s is not None and found.speed.itl_s is not None
    assert found.speed.requests_per_s == pytest.approx(plain.requests_per_s * factor)
    assert found.speed.itl_s == pytest.approx(plain.itl_s / factor)
    assert found.speed.kind is SpeedOrigin.MODELLED
    assert "AccelMark" in found.speed.source
    base, error = model_error(machine.gpu, 1), found.speed.error
    assert error is not None and error.high is not None and base.high is not None
    assert error.low == pytest.approx((1 + base.low) * others[0] - 1)
    assert error.high == pytest.approx((1 + base.high) * others[1] - 1)


@pytest.mark.parametrize(
    ("option", "name", "machine_type"),
    [
        pytest.param(ServingOption.AWQ, LLAMA_8B, "p5.4xlarge", id="published for another GPU and model"),
        pytest.param(ServingOption.NGRAM, LLAMA_70B, "a3-highgpu-4g", id="published for a rate, not for a batch"),
        pytest.param(ServingOption.EAGLE, LLAMA_70B, "a3-highgpu-4g", id="published for a smaller model"),
        pytest.param(ServingOption.INT8, LLAMA_8B, "g6e.xlarge", id="published for other GPUs"),
    ],
)
def test_no_factor_is_carried_over(option: ServingOption, name: str, machine_type: str) -> None:
    found = sizing(name, machine_type, option=option)
    assert isinstance(found, Missing)
    assert found.code is UnrankedCode.NO_EFFECT
    assert option in found.detail


def test_a_factor_of_another_engine_is_not_applied() -> None:
    assert any(effect.engine == "SGLang" and effect.concurrency == range(1, 2) for effect in effects())
    found = sizing(LLAMA_8B, "p5.4xlarge", option=ServingOption.EAGLE)
    assert isinstance(found, MachineSizing)
    assert found.speed.concurrency != 1
    assert "SGLang" not in found.speed.source


def test_a_quantized_checkpoint_is_not_quantized_again() -> None:
    model, weights = sized(LLAMA_8B)
    demand = SizingDemand(traffic=TRAFFIC, requests_per_s=5, option=ServingOption.INT8)
    found = ability(replace(model, quantization="awq"), weights, catalogue.machine(Cloud.AWS, "p5.4xlarge"), demand)
    assert isinstance(found, Missing)
    assert found.code is UnrankedCode.NOT_APPLICABLE


def test_every_effect_has_a_source_hardware_and_a_range_or_a_load() -> None:
    assert {effect.option for effect in effects()} == set(ServingOption)
    for effect in effects():
        assert effect.source in SOURCES
        assert effect.factor > 0
        assert effect.gpu and effect.load
        assert effect.concurrency is None or len(effect.concurrency) > 0
    assert set(BITS).isdisjoint(NEEDS_DRAFT)
    slow = {effect.option for effect in effects() if effect.factor < 1}
    assert {ServingOption.EAGLE, ServingOption.NGRAM, ServingOption.DRAFT} <= slow
