"""What Mélange's and AIConfigurator's public inputs give for a demand, and what they do not cover."""

from dataclasses import replace
from decimal import Decimal

import pytest

from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from serving.sizing.choice import Offer, SizingDemand
from serving.sizing.options import ServingOption
from serving.sizing.peers import UncoveredCode, aic_rows, aiconfigurator, melange
from serving.sizing.speed import SpeedOrigin, Traffic
from tests.fixtures.sized_models import sized

LLAMA_7B, LLAMA_8B, LLAMA_70B = (
    "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
)


def demand(sizes: tuple[int, int], **more: object) -> SizingDemand:
    traffic = Traffic(input_tokens=sizes[0], output_tokens=sizes[1])
    return replace(SizingDemand(traffic=traffic, requests_per_s=10), **more)  # type: ignore[arg-type]


def offer(machine_type: str, usd: str, cloud: Cloud = Cloud.AWS) -> Offer:
    machine = catalogue.machine(cloud, machine_type)
    return Offer(
        machine=machine, capacity_type=CapacityType.ON_DEMAND, usd_per_hour=Decimal(usd), price_source="a test"
    )


# read from the plot by eye: plots/all-gpus-best of the documentation
@pytest.mark.parametrize(
    ("sizes", "gpu", "percent"),
    [
        pytest.param((25, 25), "L4", 9, id="the smallest requests: L4"),
        pytest.param((100, 100), "A10G", 19, id="small requests: A10G"),
        pytest.param((101, 30), "A10G", 15, id="between tiles: the next larger one"),
        pytest.param((2000, 2000), "A100-80GB", 38, id="large ones: A100"),
        pytest.param((8000, 1000), "H100-80GB", 35, id="long prompts: H100"),
        pytest.param((16000, 2000), "H100-80GB", 99, id="the largest"),
    ],
)
def test_melange_names_the_gpu_of_its_plot(sizes: tuple[int, int], gpu: str, percent: int) -> None:
    answer = melange(sized(LLAMA_7B)[0], demand(sizes))
    assert (answer.gpu, answer.percent, answer.uncovered) == (gpu, percent, None)


@pytest.mark.parametrize(
    ("model", "wanted", "why"),
    [
        pytest.param(LLAMA_8B, demand((100, 100)), UncoveredCode.MODEL, id="fewer key heads are another model"),
        pytest.param(LLAMA_7B, demand((20_000, 100)), UncoveredCode.REQUEST_SIZE, id="longer than its plot"),
        pytest.param(LLAMA_7B, demand((100, 100), weights_fp8=True), UncoveredCode.FORMAT, id="FP8"),
        pytest.param(LLAMA_7B, demand((100, 100), option=ServingOption.NGRAM), UncoveredCode.OPTION, id="n-grams"),
    ],
)
def test_melange_does_not_cover_what_it_did_not_publish(model: str, wanted: SizingDemand, why: UncoveredCode) -> None:
    answer = melange(sized(model)[0], wanted)
    assert (answer.gpu, answer.uncovered) == (None, why)


def test_aiconfigurator_at_our_prices_by_hand() -> None:
    # its best measurement on two H100, of vLLM: 64 requests, 415 ms to the first of 1,024 tokens, 28.8 ms per token
    offers = [offer("a3-highgpu-2g", "20", Cloud.GCP), offer("p5.48xlarge", "50")]
    answer = aiconfigurator(sized(LLAMA_70B)[0], demand((1024, 1024), weights_fp8=True), offers)
    assert answer.uncovered is None
    by_name = {option.offer.machine.name: option for option in answer.options}
    two = by_name["a3-highgpu-2g"]
    rate = two.able.speed.requests_per_s
    assert rate == pytest.approx(64 / (0.415 + 1023 * 0.0288), rel=0.01)
    # 10 requests/s need 5 machines: 100 USD/h over 10 × 2,048 × 3,600 tokens
    assert (two.count, two.usd_per_hour) == (5, Decimal(100))
    assert two.usd_per_million_tokens == pytest.approx(Decimal(100_000_000) / Decimal(73_728_000))
    assert by_name["p5.48xlarge"].able.speed.requests_per_s >= 4 * rate * 0.999
    assert answer.for_offer_of(two) == two
    in_awq = replace(two, able=replace(two.able, option=ServingOption.AWQ))
    assert answer.for_offer_of(in_awq) is None
    assert list(answer.options) == sorted(answer.options, key=lambda option: option.usd_per_hour)


def test_aiconfigurator_estimates_only_where_it_has_no_measurement() -> None:
    wanted = demand((1024, 128))
    answer = aiconfigurator(sized(LLAMA_8B)[0], wanted, [offer("p4de.24xlarge", "40"), offer("p5.4xlarge", "6")])
    kinds = {option.offer.machine.gpu: option.able.speed.kind for option in answer.options}
    assert kinds == {"A100-80GB": SpeedOrigin.MODELLED, "H100-80GB": SpeedOrigin.PUBLISHED}


@pytest.mark.parametrize(
    ("model", "wanted", "why"),
    [
        pytest.param(LLAMA_7B, demand((1024, 1024)), UncoveredCode.MODEL, id="a model without rows"),
        pytest.param(LLAMA_70B, demand((30, 30), weights_fp8=True), UncoveredCode.REQUEST_SIZE, id="short requests"),
        pytest.param(
            LLAMA_70B, demand((1024, 1024), option=ServingOption.AWQ), UncoveredCode.FORMAT, id="another format"
        ),
        pytest.param(
            LLAMA_70B, demand((1024, 1024), option=ServingOption.EAGLE), UncoveredCode.OPTION, id="speculation"
        ),
    ],
)
def test_aiconfigurator_does_not_cover_what_its_tables_lack(
    model: str, wanted: SizingDemand, why: UncoveredCode
) -> None:
    answer = aiconfigurator(sized(model)[0], wanted, [offer("p5.48xlarge", "50")])
    assert (list(answer.options), answer.uncovered) == ([], why)


def test_aiconfigurator_needs_a_priced_machine_and_keeps_the_objective() -> None:
    wanted = demand((1024, 1024), weights_fp8=True)
    model = sized(LLAMA_70B)[0]
    assert aiconfigurator(model, wanted, [offer("g6.xlarge", "1")]).uncovered is UncoveredCode.MACHINES
    strict = replace(wanted, traffic=replace(wanted.traffic, itl_s=0.001))
    assert aiconfigurator(model, strict, [offer("p5.48xlarge", "50")]).uncovered is UncoveredCode.OBJECTIVE
    kept = replace(wanted, traffic=replace(wanted.traffic, itl_s=0.02))
    (option,) = aiconfigurator(model, kept, [offer("p5.48xlarge", "50")]).options
    assert option.able.speed.itl_s is not None and option.able.speed.itl_s <= 0.02


def test_rows_are_of_gpus_in_the_catalogue() -> None:
    for row in aic_rows():
        assert catalogue.gpu(row.gpu)
        assert row.ttft_s > 0 and row.itl_s > 0 and row.concurrency > 0
