"""Busy and idle time of instances whose engine's own gauges prove nothing: the gate's count decides."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from app.cost_sources import METRIC_NAMES
from gpufleet.costs.samples import RawSeries, activity
from gpufleet.costs.slots import ActivitySample, Measure
from serving.accelerators import CONTRACTS as ACCELERATORS
from serving.accelerators import relabelling as accelerators
from serving.engines import CONTRACTS
from serving.engines.reading import relabelling
from tests.fixtures.relabelling import relabelled

T0: Final = datetime(2026, 11, 21, 6, tzinfo=UTC)
EVERY: Final = timedelta(seconds=10)
ACCELERATOR_RULES: Final = accelerators.relabelling(ACCELERATORS.values())
SCRAPES: Final = 31
Page = Callable[[int], str]


def series(kind: str, engine: Page, others: Page) -> Iterator[RawSeries]:
    """The series of 31 scrapes of an engine's page, as Prometheus stores them, and of other pages."""
    found: dict[tuple[tuple[str, str], ...], list[ActivitySample]] = {}
    for number in range(SCRAPES):
        for text, rules in ((engine(number), relabelling([CONTRACTS[kind]])), (others(number), ACCELERATOR_RULES)):
            for sample in relabelled(text, rules):
                labels = {**sample.labels, "__name__": sample.name, "instance_id": "i-1"}
                at = T0 + EVERY * number
                found.setdefault(tuple(sorted(labels.items())), []).append(ActivitySample(at, sample.value))
    for labels, samples in found.items():
        yield RawSeries(dict(labels), samples)


def minutes(kind: str, engine: Page, others: Page) -> tuple[float, float]:
    """Busy and idle minutes of five."""
    hours = activity("f", METRIC_NAMES, series(kind, engine, others), Measure())
    return sum(hour.busy.bit_count() for hour in hours) / 6, sum(hour.idle.bit_count() for hour in hours) / 6


def quiet_gpu(_: int) -> str:
    return 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0\n'


@pytest.mark.parametrize(
    ("open_at", "expected"),
    [
        pytest.param(lambda _: 0, (0, 5), id="a gauge that keeps its last value is not work"),
        pytest.param(lambda number: int(number < 15), (2.5, 2.5), id="a gauge of 0 is not idle time"),
    ],
)
@pytest.mark.parametrize("gauge", [0, 2])
def test_the_gate_decides_where_the_engines_gauges_prove_nothing(
    gauge: int, open_at: Callable[[int], int], expected: tuple[float, float]
) -> None:
    found = minutes(
        "trtllm",
        lambda _: f"trtllm_num_requests_running {gauge}\ntrtllm_num_requests_waiting {gauge}\n",
        lambda number: quiet_gpu(number) + f"gpufleet_node_engine_requests {open_at(number)}\n",
    )
    assert found == expected


def test_without_the_gates_count_the_time_is_unknown() -> None:
    page = "trtllm_num_requests_running 0\ntrtllm_num_requests_waiting 0\n"
    assert minutes("trtllm", lambda _: page, quiet_gpu) == (0, 0)


def test_the_gate_shows_idle_time_of_an_engine_without_gauges() -> None:
    page = 'nv_inference_exec_count{model="m",version="1"} 40\n'
    others: Page = lambda number: quiet_gpu(number) + "gpufleet_node_engine_requests 0\n"  # noqa: E731
    assert minutes("triton", lambda _: page, others) == (0, 5)


def neuron(share: float, executions: int) -> str:
    """A page of neuron-monitor's script with one runtime."""
    return (
        f'neuroncore_utilization_ratio{{neuroncore="0",runtime_tag="15439"}} {share}\n'
        f'execution_status_total{{runtime_tag="15439",status_type="completed"}} {executions}\n'
    )


@pytest.mark.parametrize(
    ("share", "executions", "expected"),
    [
        pytest.param(0.86, lambda _: 2977, (0, 0), id="a value that stays after the end is unknown"),
        pytest.param(0.86, lambda number: number, (5, 0), id="executions are work"),
        pytest.param(0.0, lambda number: min(number, 15), (2.5, 2.5), id="executions that stop"),
        pytest.param(0.0, lambda _: 2977, (0, 5), id="at rest"),
    ],
)
def test_activity_that_outlasts_its_program_is_neither_work_nor_rest(
    share: float, executions: Callable[[int], int], expected: tuple[float, float]
) -> None:
    assert minutes("vllm", _idle_engine, lambda number: neuron(share, executions(number))) == expected


def _idle_engine(_: int) -> str:
    return "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param('DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0\n', (0, 5), id="idle"),
        pytest.param(
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0.005\n', (0, 5), id="half a percent is below the floor"
        ),
        pytest.param('gpu_gfx_activity{serial_number="a"} 0.87\n', (0, 0), id="a share under a percentage's name"),
        pytest.param('gpu_gfx_activity{serial_number="a"} 50\n', (5, 0), id="percent"),
        pytest.param('DCGM_FI_DEV_GPU_UTIL{UUID="a"} 0\n', (0, 0), id="utilization proves no idle time"),
        pytest.param('DCGM_FI_DEV_GPU_UTIL{UUID="a"} 60\n', (5, 0), id="utilization proves work"),
        pytest.param(
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0\nDCGM_FI_DEV_GPU_UTIL{UUID="a"} 60\n',
            (5, 0),
            id="utilization vetoes",
        ),
        pytest.param(
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0\nDCGM_FI_DEV_GPU_UTIL{UUID="a"} 0.87\n',
            (5, 0),
            id="utilization as a share vetoes",
        ),
        pytest.param(
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0\nDCGM_FI_DEV_GPU_UTIL_RATIO{UUID="a"} 60\n',
            (5, 0),
            id="utilization in percent under a share's name vetoes",
        ),
        pytest.param(
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0\nDCGM_FI_DEV_GPU_UTIL{UUID="b"} 0\n',
            (0, 0),
            id="a second GPU without profiling",
        ),
        pytest.param(
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0\nDCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a",vgpu="1"} 0\n',
            (0, 0),
            id="a shared GPU",
        ),
        pytest.param('duty_cycle_node{make="cloud-tpu",accelerator_id="0"} 0\n', (0, 0), id="a TPU without workload"),
    ],
)
def test_time_is_idle_only_if_each_gpu_proves_it(page: str, expected: tuple[float, float]) -> None:
    assert minutes("vllm", _idle_engine, lambda _: page) == expected
