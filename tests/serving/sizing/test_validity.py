"""The error of the model, computed from measurements that it is not fitted to."""

import csv
from collections import defaultdict

import pytest

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.toolchain.folders import ROOT
from serving.sizing import families
from serving.sizing.measurements import measured, shape_of
from serving.sizing.model import ModelShape, Weights
from serving.sizing.speed import SizedReplica, Traffic
from serving.sizing.validity import CHECKED, CHECKED_ON, Checked, model_error, modelled_kinds
from tests.fixtures.public_models import CONFIGS

ROWS = ROOT / "tests" / "data" / "sizing_validation.csv"
# configuration of the same shape, parameters, bytes of experts; from the model cards and safetensors indices
MODELS = {
    "meta-llama/Meta-Llama-3-8B": ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248, 0),
    "meta-llama/Meta-Llama-3-70B": ("meta-llama/Llama-3.1-70B-Instruct", 70_553_706_496, 0),
    "meta-llama/Llama-2-7b-hf": ("meta-llama/Llama-2-7b-hf", 6_738_415_616, 0),
    "meta-llama/Llama-2-70b-hf": ("meta-llama/Llama-2-70b-hf", 68_976_648_192, 0),
    "mistralai/Mistral-7B-v0.1": ("mistralai/Mistral-7B-v0.1", 7_241_732_096, 0),
    "mistralai/Mixtral-8x7B-v0.1": ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704, 90_194_313_216),
    "Qwen/Qwen2-7B": ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 0),
    "Qwen/Qwen2-72B": ("Qwen/Qwen2.5-72B-Instruct", 72_706_203_648, 0),
    "Qwen/Qwen2.5-0.5B-Instruct": ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 0),
}


def model_of(name: str) -> tuple[ModelShape, Weights]:
    config, parameters, experts = MODELS[name]
    size = parameters * 2
    weights = Weights(
        split=size, copied=0, key_value=0, ends=0, quantizable=size, parameters=parameters, experts=experts
    )
    return families.read(CONFIGS[config]), weights


def differences() -> dict[tuple[str, int], list[float]]:
    """Measured throughput minus the model's, as a share of the model's, by GPU and GPUs per replica."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            model, weights = model_of(row["model"])
            gpus = int(row["gpus"])
            replica = SizedReplica(
                model=model, weights=weights, gpu=catalogue.gpu(row["gpu"]), gpus=gpus,
                weights_fp8=row["precision"] == "fp8",
            )  # fmt: skip
            traffic = Traffic(input_tokens=int(row["input"]), output_tokens=int(row["output"]))
            modelled = replica.at(int(row["concurrency"]), traffic).requests_per_s
            found[row["gpu"], gpus].append(float(row["requests_s"]) / modelled - 1)
    return found


def checked(values: list[float]) -> Checked:
    values = sorted(values)
    tails = (0.1, 0.9) if len(values) >= 10 else (0, 1)
    low, high = (round(values[round(tail * (len(values) - 1))], 2) for tail in tails)
    return Checked(low, high, len(values))


def test_errors_are_those_of_the_validation_rows() -> None:
    assert {key: checked(values) for key, values in differences().items()} == CHECKED


def test_errors_on_unchecked_gpus_are_those_of_all_checked_ones() -> None:
    by_count: dict[int, list[float]] = defaultdict(list)
    for (_, gpus), values in differences().items():
        by_count[gpus] += values
    assert {gpus: checked(values) for gpus, values in by_count.items()} == CHECKED_ON


def test_the_model_is_not_fitted_to_its_validation_rows() -> None:
    fitted = {(row.shape, row.gpu, row.gpus, row.precision) for row in measured()}
    with ROWS.open() as file:
        rows = [
            (shape_of(model_of(row["model"])[0]), row["gpu"], int(row["gpus"]), row["precision"])
            for row in csv.DictReader(file)
        ]
    assert len(rows) >= 300
    assert not fitted & set(rows)


@pytest.mark.parametrize(
    ("gpu", "gpus", "basis"),
    [
        pytest.param("A100-40GB", 1, "on 1 × A100-40GB", id="checked"),
        pytest.param("A10G", 1, "none on 1 × A10G", id="another GPU"),
        pytest.param("L4", 4, "none on 4 × L4", id="another number"),
        pytest.param("A10G", 3, "2 per replica: none on 3 × A10G", id="a number that no GPU was checked with"),
    ],
)
def test_an_error_names_the_hardware_that_it_was_measured_on(gpu: str, gpus: int, basis: str) -> None:
    error = model_error(gpu, gpus)
    assert basis in error.basis
    assert error.high is not None
    assert -1 < error.low <= error.high


def test_only_kinds_with_fitted_rows_are_modelled() -> None:
    assert modelled_kinds() == {AcceleratorKind.NVIDIA}
