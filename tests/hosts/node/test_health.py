"""Detection of GPUs that must not serve, from the exporter's metrics."""

import pytest

from gpufleet.domain.model import Cloud
from hosts.node.health import expected_gpus, judge
from serving import metrics
from serving.exposition import Sample


def page(count: int, **more: float) -> list[Sample]:
    """Return the exporter's metrics for `count` GPUs; `more` are metrics of the last one."""
    used = [
        Sample(name=metrics.FB_USED.name, labels={"gpu": str(n), "UUID": f"GPU-{n}"}, value=1.0) for n in range(count)
    ]
    last = {"gpu": str(count - 1), "UUID": f"GPU-{count - 1}"}
    return [*used, *(Sample(name=name, labels=last, value=value) for name, value in more.items())]


@pytest.mark.parametrize(
    ("samples", "expected", "broken", "unknown"),
    [
        pytest.param(page(4), 4, None, False, id="all well"),
        pytest.param(page(3), 4, "the GPU exporter reports 3 of 4 GPUs", False, id="one fell off the bus"),
        pytest.param(page(4), None, None, False, id="an unknown machine type"),
        pytest.param([], 4, None, True, id="no page: nothing is known"),
        pytest.param(page(1, **{metrics.XID_ERRORS.name: 79}), 1, "GPU 0: XID error 79", False, id="XID 79"),
        pytest.param(page(1, **{metrics.XID_ERRORS.name: 31}), 1, None, False, id="a program's own fault"),
        pytest.param(page(2, **{metrics.ECC_DOUBLE_BIT.name: 1}), 2, "double-bit ECC", False, id="ECC"),
    ],
)
def test_the_health_of_gpus_is_judged_by_their_metrics(
    samples: list[Sample], expected: int | None, broken: str | None, unknown: bool
) -> None:
    report = judge(samples, expected)
    assert (report.broken is None) is (broken is None)
    assert (broken or "") in (report.broken or "")
    assert (report.unknown is not None) is unknown


def test_the_machine_type_defines_the_expected_gpus() -> None:
    assert expected_gpus(Cloud.AWS, "g6.12xlarge") == 4
    assert expected_gpus(Cloud.AWS, "m7i.large") is None
