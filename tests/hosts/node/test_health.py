"""Detection of GPUs that must not serve, from the exporter's metrics."""

import pytest

from gpufleet.domain.model import Cloud
from hosts.node.health import expected_gpus, judge
from serving import metrics
from serving.accelerators import CONTRACTS
from serving.exposition import Sample


def page(count: int, **more: float) -> list[Sample]:
    """Return the exporter's metrics for `count` GPUs; `more` are metrics of the last one."""
    used = [
        Sample(name="DCGM_FI_DEV_FB_USED", labels={"gpu": str(n), "UUID": f"GPU-{n}"}, value=1.0)
        for n in range(count)
    ]
    last = {"gpu": str(count - 1), "UUID": f"GPU-{count - 1}"}
    return [*used, *(Sample(name=name, labels=last, value=value) for name, value in more.items())]


@pytest.mark.parametrize(
    ("samples", "expected", "broken", "unknown"),
    [
        pytest.param(page(4), 4, None, False, id="all well"),
        pytest.param(page(3), 4, "the exporter reports 3 of 4 NVIDIA GPUs", False, id="one fell off the bus"),
        pytest.param(page(4), None, None, False, id="an unknown machine type"),
        pytest.param([], 4, None, True, id="no page: nothing is known"),
        pytest.param(
            page(1, **{metrics.XID_ERRORS.name: 79}), 1, "NVIDIA GPU GPU-0: XID error 79", False, id="XID 79"
        ),
        pytest.param(page(1, **{metrics.XID_ERRORS.name: 31}), 1, None, False, id="a program's own fault"),
        pytest.param(page(1, **{metrics.XID_ERRORS.name: float("nan")}), 1, None, False, id="XID not a number"),
        pytest.param(page(2, **{metrics.ECC_DOUBLE_BIT.name: 1}), 2, "double-bit ECC", False, id="ECC"),
    ],
)
def test_the_health_of_gpus_is_judged_by_their_metrics(
    samples: list[Sample], expected: int | None, broken: str | None, unknown: bool
) -> None:
    report = judge(CONTRACTS["nvidia"], samples, expected)
    assert (report.broken is None) is (broken is None)
    assert (broken or "") in (report.broken or "")
    assert (report.unknown is not None) is unknown


AMD = {"gpu_id": "0", "gpu_compute_partition_type": "spx", "serial_number": "s"}
ECC = {"neuron_device_index": "0"}


@pytest.mark.parametrize(
    ("kind", "samples", "expected", "broken", "unknown"),
    [
        pytest.param("amd", [("gpu_gfx_activity", AMD, 0), ("gpu_health", AMD, 1)], 1, None, False, id="AMD"),
        pytest.param(
            "amd", [("gpu_gfx_activity", AMD, 0), ("gpu_health", AMD, 0)], 1, "AMD Instinct GPU s: the exporter",
            False, id="an unhealthy AMD GPU",
        ),
        pytest.param(
            "amd", [("amd_gpu_gfx_activity", AMD, 0), ("amd_gpu_health", AMD, 0)], 1,
            "AMD Instinct GPU s: the exporter", False, id="an unhealthy AMD GPU, names with a prefix",
        ),
        pytest.param(
            "neuron", [("hardware_ecc_events_total", {**ECC, "event_type": "mem_ecc_uncorrected"}, 0)], 1, None,
            False, id="a Neuron device without a runtime",
        ),
        pytest.param(
            "neuron", [("hardware_ecc_events_total", {**ECC, "event_type": "sram_ecc_uncorrected"}, 2)], 1,
            "AWS Neuron device 0: sram_ecc_uncorrected (2)", False, id="ECC of a Neuron device",
        ),
        pytest.param(
            "neuron", [("hardware_ecc_events_total", {**ECC, "event_type": "mem_ecc_uncorrected"}, 0)], 6,
            "reports 1 of 6 AWS Neuron devices", False, id="missing Neuron devices",
        ),
        pytest.param(
            "tpu", [("tpu_runtime_tensorcore_dutycycle_percent", {"chip": "0"}, 0)], 4, None, True,
            id="TPU chips that the engine does not hold",
        ),
        pytest.param("tpu", [], 4, None, True, id="no TPU metrics"),
    ],
)  # fmt: skip
def test_each_kind_states_what_its_page_shows_to_be_broken(
    kind: str,
    samples: list[tuple[str, dict[str, str], float]],
    expected: int,
    broken: str | None,
    unknown: bool,
) -> None:
    page = [Sample(name=name, labels=labels, value=value) for name, labels, value in samples]
    report = judge(CONTRACTS[kind], page, expected)
    assert (report.broken is None) is (broken is None)
    assert (broken or "") in (report.broken or "")
    assert (report.unknown is not None) is unknown


def test_the_machine_type_defines_the_expected_gpus() -> None:
    assert expected_gpus(Cloud.AWS, "g6.12xlarge") == 4
    assert expected_gpus(Cloud.AWS, "m7i.large") is None
