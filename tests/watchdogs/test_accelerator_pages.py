"""What pages of exporters lead to: idle, working or unknown with a code, on a real Prometheus."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import pytest

from gpufleet.domain.decisions import Reason
from gpufleet.domain.evidence import GpuEvidence
from gpufleet.domain.policies import IdlePolicy
from serving.accelerators.contract import UnknownCode
from tests.fixtures.watchdogs.idle import case
from tests.fixtures.watchdogs.pages import scraped
from tests.fixtures.watchdogs.plain import QUIET, START
from watchdogs import signals
from watchdogs.idle import checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus"),
]
EVERY: Final = timedelta(seconds=15)
WINDOW: Final = timedelta(minutes=6)
PAGES: Final = WINDOW // EVERY
Page = Callable[[int], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """An exporter's pages by number, and why the instance is kept; None: it is idle."""

    name: str
    page: Page
    reason: Reason | None = None
    code: str = ""
    devices: int = 1
    before: int = 0
    """Pages before the window, with negative numbers."""


def energy(number: int, *, watts: float = 60.0) -> float:
    """Joules of a GPU that draws so much."""
    return 50_000 + watts * 15 * number


def gpu(
    number: int, *, active: float = 0.0, labels: str = 'UUID="a"', watts: float = 60.0, joules: float = 1.0
) -> str:
    """A page of dcgm-exporter. `joules`: factor of a wrong unit."""
    return (
        f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} {active}\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {watts}\n"
        f"DCGM_FI_DEV_FB_USED{{{labels}}} 2000\nDCGM_FI_DEV_FB_FREE{{{labels}}} 20000\n"
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {1000 * joules * energy(number)}\n"
    )


def tenants(number: int, *shares: float) -> str:
    """Three MIG instances, each with its own tenant."""
    return "".join(
        gpu(number, active=share, labels=f'UUID="a",GPU_I_ID="{n}",GPU_I_PROFILE="1g",pod="{n}",namespace="n"')
        for n, share in enumerate(shares)
    )


def shared(number: int, label: str) -> str:
    return "".join(gpu(number, labels=f'UUID="a",{label}="{n}",namespace="n"') for n in range(2))


def tpu(number: int, ends: int = PAGES) -> str:
    held = 'duty_cycle{make="cloud-tpu",accelerator_id="0",pod="p"} 0\n' if number < ends else ""
    return held + 'duty_cycle_node{make="cloud-tpu",accelerator_id="0"} 0\n'


def agent_tpu(number: int, idle_s: float, *, factor: float = 1) -> str:
    return (
        'tpu_runtime_tensorcore_dutycycle_percent{chip="0"} 0\n'
        f'tpu_runtime_tensorcore_idle_duration_seconds{{chip="0"}} {factor * (idle_s + 15 * number)}\n'
    )


def amd(number: int, mode: str, *, microjoules: float = 1e6) -> str:
    labels = f'serial_number="s",gpu_id="0",gpu_partition_id="0",gpu_compute_partition_type="{mode}"'
    return (
        f"gpu_gfx_activity{{{labels}}} 0\ngpu_package_power{{{labels}}} 60\n"
        f"gpu_energy_consumed{{{labels}}} {microjoules * energy(number)}\n"
        # the same labels after relabelling: a query over several names must keep them
        f"gpu_used_vram{{{labels}}} 283\ngpu_free_vram{{{labels}}} 16101\ngpu_total_vram{{{labels}}} 16384\n"
    )


def neuron(number: int, *, cores: int = 2, share: float = 0.0, count: int = 7) -> str:
    used = "".join(
        f'neuroncore_utilization_ratio{{neuroncore="{core}",runtime_tag="1"}} {share}\n' for core in range(cores)
    )
    return (
        f'{used}execution_status_total{{runtime_tag="1",status_type="completed"}} {count}\n'
        f"system_memory_used_bytes {1e9 + 4096 * number}\n"
        'neuron_hardware_info{neuroncore_per_device_count="2",instance_type="inf2.xlarge"} 1\n'
        'hardware_ecc_events_total{event_type="mem_ecc_uncorrected",neuron_device_index="0"} 0\n'
    )


WORKS, UNKNOWN, WRONG = Reason.GPU_ACTIVE_WITHOUT_WORK, Reason.ACCELERATOR_UNKNOWN, Reason.METRICS_IMPLAUSIBLE
STORIES: Final = (
    Story(name="an idle GPU", page=gpu),
    Story(name="a busy GPU", page=lambda n: gpu(n, active=0.4), reason=WORKS),
    Story(name="three idle tenants", page=lambda n: tenants(n, 0, 0, 0)),
    Story(name="one idle tenant of three", page=lambda n: tenants(n, 0.5, 0, 0.2), reason=WORKS),
    Story(
        name="a slice without activity",
        page=lambda n: tenants(n, 0, 0) + 'DCGM_FI_DEV_FB_USED{UUID="a",GPU_I_ID="7"} 9\n',
        reason=UNKNOWN,
        code=UnknownCode.NO_PROFILING,
    ),
    Story(
        name="numbers of the whole GPU with its slices",
        page=lambda n: tenants(n, 0, 0, 0) + 'DCGM_FI_DEV_FB_USED{UUID="a"} 6000\n',
    ),
    Story(name="two pods on a GPU", page=lambda n: shared(n, "pod"), reason=UNKNOWN, code=UnknownCode.SHARED),
    Story(
        name="two pods whose labels Prometheus renamed",
        page=lambda n: shared(n, 'pod="exporter",exported_pod'),
        reason=UNKNOWN,
        code=UnknownCode.SHARED,
    ),
    Story(name="time-slicing", page=lambda n: shared(n, "vgpu"), reason=UNKNOWN, code=UnknownCode.SHARED),
    Story(
        name="a copy that shows time-slicing",
        page=lambda n: gpu(n) + 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a",vgpu="0"} 0\n',
        reason=UNKNOWN,
        code=UnknownCode.SHARED,
    ),
    Story(
        name="utilization without profiling",
        page=lambda n: 'DCGM_FI_DEV_GPU_UTIL{UUID="a"} 0\n' + gpu(n).partition("\n")[2],
        reason=UNKNOWN,
        code=UnknownCode.NO_PROFILING,
    ),
    Story(
        name="one percent of utilization",
        page=lambda n: gpu(n) + f'DCGM_FI_DEV_GPU_UTIL{{UUID="a"}} {int(n == 9)}\n',
        reason=WORKS,
    ),
    Story(name="energy a thousand times too high", page=lambda n: gpu(n, joules=1000), reason=WRONG),
    Story(name="energy a thousand times too low", page=lambda n: gpu(n, joules=0.001), reason=WRONG),
    Story(name="power in milliwatts", page=lambda n: gpu(n, watts=60_000), reason=WRONG),
    Story(name="power in kilowatts", page=lambda n: gpu(n, watts=0.06), reason=WRONG),
    Story(
        name="memory in bytes under the name of mebibytes",
        page=lambda n: gpu(n).replace("} 20000\n", "} 20000000\n").replace("} 2000\n", "} 2000000\n"),
        reason=WRONG,
    ),
    Story(
        name="memory a thousand times too low",
        page=lambda n: gpu(n).replace("} 20000\n", "} 20\n").replace("} 2000\n", "} 2\n"),
        reason=WRONG,
    ),
    Story(name="memory that the exporter cannot read", page=lambda n: gpu(n).replace("} 2000\n", "} 2147483632\n")),
    Story(
        name="one page without the GPU",
        page=lambda n: gpu(n) if n != 9 else "process_cpu_seconds_total 1\n",
        reason=Reason.METRICS_MISSING,
    ),
    Story(
        name="an exporter that does not answer any more",
        page=lambda n: gpu(n) if n < 0 else None,
        reason=Reason.METRICS_MISSING,
        before=40,
    ),
    Story(
        name="an exporter of NVIDIA without a series",
        page=lambda n: gpu(n) if n < 0 else "process_cpu_seconds_total 1\n",
        reason=Reason.METRICS_MISSING,
        before=40,
    ),
    Story(
        name="a TPU whose workload ended before the window",
        page=lambda n: tpu(n) if n < 0 else "process_cpu_seconds_total 1\n",
        reason=UNKNOWN,
        code=UnknownCode.NO_WORKLOAD,
        before=40,
    ),
    Story(name="an idle TPU", page=tpu),
    Story(name="a TPU whose workload ended", page=lambda n: tpu(n, 14), reason=UNKNOWN, code=UnknownCode.NO_WORKLOAD),
    Story(name="a TPU without a program", page=lambda n: tpu(n, 0), reason=UNKNOWN, code=UnknownCode.NO_WORKLOAD),
    Story(name="a TPU with an old idle clock", page=lambda n: agent_tpu(n, 4000)),
    Story(name="a TPU that computed within the window", page=lambda n: agent_tpu(n, -30), reason=WORKS),
    Story(
        name="a TPU that computed within the window, by a clock in milliseconds",
        page=lambda n: agent_tpu(n, 4000 if n < 9 else -15 * 9, factor=1000),
        reason=WORKS,
    ),
    Story(
        name="a TPU whose idle clock is in milliseconds", page=lambda n: agent_tpu(n, 4000, factor=1000), reason=WRONG
    ),
    Story(
        name="a TPU whose idle clock is in minutes",
        page=lambda n: agent_tpu(n, 400_000, factor=1 / 60),
        reason=UNKNOWN,
        code=UnknownCode.REPEATED,
    ),
    Story(
        name="a TPU whose idle clock is frozen",
        page=lambda n: agent_tpu(0, 4000),
        reason=UNKNOWN,
        code=UnknownCode.REPEATED,
    ),
    Story(name="a TPU whose idle clock is updated once a minute", page=lambda n: agent_tpu(n // 4 * 4, 4000)),
    Story(
        name="a TPU whose idle clock is missing on pages",
        page=lambda n: agent_tpu(n, 4000) if n % 2 else agent_tpu(n, 4000).partition("\n")[0] + "\n",
        reason=Reason.METRICS_MISSING,
    ),
    Story(
        name="a GPU whose exporter was frozen for half the window",
        page=lambda n: gpu(5 if 5 <= n <= PAGES // 2 + 5 else n),
        reason=WRONG,
    ),
    Story(name="an idle AMD GPU", page=lambda n: amd(n, "SPX")),
    *(
        Story(
            name=f"an idle AMD GPU whose second name of power is {blank}",
            page=lambda n, blank=blank: (
                amd(n, "SPX") + f'gpu_average_package_power{{serial_number="s",gpu_id="0"}} {blank}\n'
            ),
        )
        for blank in (0, 65535, 4294967295)
    ),
    Story(
        name="partitions of an AMD GPU without their type",
        page=lambda n: (
            amd(n, "") + amd(n, "").replace('gpu_id="0",gpu_partition_id="0"', 'gpu_id="1",gpu_partition_id="1"')
        ),
        reason=UNKNOWN,
        code=UnknownCode.PARTITION,
    ),
    Story(
        name="a partitioned AMD GPU",
        page=lambda n: amd(n, "CPX"),
        reason=UNKNOWN,
        code=UnknownCode.PARTITION,
    ),
    Story(
        name="activity of AMD as a share",
        page=lambda n: amd(n, "SPX").replace("} 0\n", "} 0.87\n" if n == 9 else "} 0\n"),
        reason=WRONG,
    ),
    Story(
        name="utilization of NVIDIA as a share",
        page=lambda n: gpu(n) + 'DCGM_FI_DEV_GPU_UTIL{UUID="a"} 0.87\n',
        reason=WORKS,
    ),
    Story(name="energy of AMD in millijoules", page=lambda n: amd(n, "SPX", microjoules=1e3), reason=WRONG),
    Story(name="idle Neuron cores", page=neuron),
    Story(name="executions", page=lambda n: neuron(n, count=n), reason=WORKS),
    Story(
        name="the last value of a Neuron runtime that ended",
        page=lambda n: neuron(n, share=0.9),
        reason=UNKNOWN,
        code=UnknownCode.KEPT_VALUE,
    ),
    Story(name="one of two cores held", page=lambda n: neuron(n, cores=1), reason=Reason.METRICS_MISSING),
)
GPU_CHECKS: Final = tuple(check for check in checks.METRIC_CHECKS if check.__name__.startswith("gpu"))
NUMBERED: Final = {f"i-{number}": story for number, story in enumerate(STORIES)}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GpuEvidence | None]:
    pages = {name: [story.page(n) for n in range(-story.before, PAGES)] for name, story in NUMBERED.items()}
    with scraped(pages, tmp_path_factory.mktemp("pages"), newest=START, every=EVERY) as store:
        found = signals.gather(store, signals.of_environment("test"), WINDOW, START)
    return {story.name: found[name].gpu if name in found else None for name, story in NUMBERED.items()}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_pages_prove_idleness_work_or_nothing(story: Story, evidence: dict[str, GpuEvidence | None]) -> None:
    given = case(
        evidence=replace(QUIET, window=WINDOW, interval=EVERY, gpu=evidence[story.name]),
        policy=IdlePolicy(window=WINDOW),
        gpus_expected=story.devices,
        watts_rated=700.0,
    )
    found = checks.judge(given, GPU_CHECKS)
    assert (None if found is None else found.reason) is story.reason, found
    if found is not None:
        assert story.code in found.detail


def test_slices_are_units(evidence: dict[str, GpuEvidence | None]) -> None:
    idle = evidence["three idle tenants"]
    assert idle is not None
    assert (idle.gpus, idle.units, idle.metered) == (1, 3, 1)
