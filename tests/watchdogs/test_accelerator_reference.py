"""The query for accelerators, on a real Prometheus, never finds idle what the reference does not find idle."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import pytest

from gpufleet.domain.decisions import Objection, Reason
from gpufleet.domain.evidence import GpuEvidence
from gpufleet.domain.policies import IdlePolicy
from serving.accelerators import CONTRACTS
from serving.accelerators.evidence import ProvedActivity, TimedReading, judge
from serving.accelerators.reading import read
from serving.exposition import parse
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
"""Pages in the window: the query looks at the last ones."""
GPU_CHECKS: Final = (
    checks.gpus_quiet, checks.gpu_known, checks.gpu_reported, checks.gpu_covered, checks.gpu_fresh,
    checks.gpu_in_range, checks.gpu_not_frozen, checks.gpu_not_contradicted,
)  # fmt: skip
PLAYED: Final = 120
"""Instances of each kind."""
Chance = random.Random
ODD_VALUES: Final = {"blank": 9223372036854775794.0, "nan": float("nan"), "high": 40.0}
INF2: Final = 'neuron_device_count="1",neuroncore_per_device_count="2",instance_type="inf2.xlarge"'


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The pages of one instance, oldest first."""

    kind: str
    devices: int
    pages: Sequence[str | None]


def nvidia(chance: Chance) -> History:
    devices, slices = chance.choice((1, 1, 2)), chance.choice((0, 0, 3))
    units = [(d, s) for d in range(devices) for s in (range(slices) if slices else (None,))]
    works = {unit: chance.random() < 0.15 for unit in units}
    util = {unit: chance.choice((0, 0, 0, None, None, 60)) for unit in units}
    pods = chance.choice(((), (), (), ("a",), ("a", "b")))
    vgpu = chance.random() < 0.1
    energy_name, per_watt = chance.choice(
        (("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1000), ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1))
    )
    frozen, unit_error = chance.random() < 0.1, chance.choice((1, 1, 1, 1, 1, 1, 1, 1000, 0.001))
    odd = chance.choice((None, None, None, "gone", "blank", "nan", "high", "energy gone", "no profiling"))
    when, odd_unit = chance.randrange(PAGES), chance.choice(units)
    frozen_at = chance.randrange(PAGES), chance.choice((0, 0, 0, PAGES // 4, 2 * PAGES // 3))

    def page(number: int) -> str:
        lines: list[str] = []
        for device, part in units:
            labels = f'gpu="{device}",UUID="GPU-{device}"'
            labels += f',GPU_I_ID="{part}",GPU_I_PROFILE="1g"' if part is not None else ""
            value = 0.4 if works[device, part] and chance.random() < 0.5 else 0.0
            hit = (device, part) == odd_unit and number == when
            value = (
                {"blank": 9223372036854775794.0, "nan": float("nan"), "high": 40.0}.get(odd or "", value)
                if hit
                else value
            )
            for pod in pods or ("",):
                more = (
                    labels
                    + (f',pod="{pod}",namespace="n"' if pod else "")
                    + (',vgpu="1"' if vgpu and pod == "b" else "")
                )
                if not (odd == "no profiling" and (device, part) == odd_unit) and not (hit and odd == "gone"):
                    lines.append(f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{more}}} {value}")
                if part is None and util[device, part] is not None:
                    lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{more}}} {util[device, part]}")
            read = frozen_at[0] if frozen_at[0] <= number < sum(frozen_at) else number
            joules = 9000 + (0 if frozen else 30 * 15 * read * unit_error)
            lines.append(f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 30")
            if not (hit and odd == "energy gone"):
                lines.append(f"{energy_name}{{{labels}}} {joules * per_watt}")
        return "\n".join(lines) + "\n"

    return History(kind="nvidia", devices=devices, pages=[page(n) for n in range(PAGES)])


def amd(chance: Chance) -> History:
    mode = chance.choice(("SPX", "SPX", "", "CPX"))
    frozen, unit_error = chance.random() < 0.1, chance.choice((1, 1, 1, 1, 1000, 0.001))
    prefix, works = chance.choice(("", "amd_")), chance.random() < 0.3
    lost = chance.choice((None, None, chance.randrange(PAGES)))

    def page(number: int) -> str:
        lines: list[str] = []
        for part in range(2 if mode == "CPX" else 1):
            labels = (
                f'serial_number="S",gpu_id="{part}",gpu_partition_id="{part}",gpu_compute_partition_type="{mode}"'
            )
            value = 50 if works and part == 0 and chance.random() < 0.3 else 0
            if number != lost:
                lines.append(f"{prefix}gpu_gfx_activity{{{labels}}} {value}")
            lines.append(f"{prefix}gpu_package_power{{{labels}}} {140 if part == 0 else 0}")
            joules = 50_000 + (0 if frozen else 140 * 15 * number * unit_error)
            lines.append(f"{prefix}gpu_energy_consumed{{{labels}}} {joules * 1e6 if part == 0 else 0}")
        return "\n".join(lines) + "\n"

    return History(kind="amd", devices=1, pages=[page(n) for n in range(PAGES)])


def neuron(chance: Chance) -> History:
    tags = chance.choice((("1",), ("1",), ("1", "2")))
    executes, kept = chance.random() < 0.3, chance.random() < 0.2
    frozen, held = chance.random() < 0.1, chance.choice((2, 2, 2, 1))
    ends = chance.choice((None, None, chance.randrange(PAGES)))
    appears = chance.choice((None, None, chance.randrange(PAGES)))

    def page(number: int) -> str:
        lines = [
            f"system_memory_used_bytes {1e9 + (0 if frozen else 4096 * number)}",
            f"neuron_hardware_info{{{INF2}}} 1",
            'hardware_ecc_events_total{event_type="mem_ecc_uncorrected",neuron_device_index="0"} 0',
        ]
        if ends is None or number < ends:
            for core in range(held):
                share = 0.4 if kept and core == 0 else 0
                lines.append(f'neuroncore_utilization_ratio{{neuroncore="{core}",runtime_tag="1"}} {share}')
            for tag in tags:
                if tag == "1" or appears is None or number >= appears:
                    count = 7 + (number if executes else 0)
                    lines.append(f'execution_status_total{{runtime_tag="{tag}",status_type="completed"}} {count}')
        return "\n".join(lines) + "\n"

    return History(kind="neuron", devices=1, pages=[page(n) for n in range(PAGES)])


def tpu(chance: Chance) -> History:
    chips, works = chance.choice((1, 4)), chance.random() < 0.3
    gke = chance.random() < 0.5
    ends = chance.choice((None, None, 0, chance.randrange(PAGES)))
    idle_since = chance.choice((None, 30, 4000))
    lacking = chance.choice((None, None, chance.randrange(chips)))
    factor = chance.choice((1, 1, 1, 1000, 1e6, 0.001, 0))
    falls, absent = chance.choice((None, None, chance.randrange(PAGES))), chance.choice((None, None, 3))

    def page(number: int) -> str:
        lines: list[str] = []
        for chip in range(chips):
            value = 30 if works and chance.random() < 0.3 else 0
            held = (ends is None or number < ends) and chip != lacking
            if gke:
                labels = f'make="cloud-tpu",accelerator_id="7-{chip}"'
                lines.append(f"duty_cycle_node{{{labels}}} {value if held else 0}")
                if held:
                    lines.append(f'duty_cycle{{{labels},pod="p"}} {value}')
            elif held:
                lines.append(f'tpu_runtime_tensorcore_dutycycle_percent{{chip="{chip}"}} {value}')
                if idle_since is not None and number != absent:
                    idle_s = idle_since + 15 * number if falls is None or number < falls else 15 * (number - falls)
                    clock = factor * idle_s if factor else idle_since
                    lines.append(f'tpu_runtime_tensorcore_idle_duration_seconds{{chip="{chip}"}} {clock}')
        return "".join(f"{line}\n" for line in lines)

    return History(kind="tpu", devices=chips, pages=[page(n) for n in range(PAGES)])


def history(kind: str, seed: int) -> History:
    """A generated history; some scrapes have no answer."""
    chance = random.Random(f"{kind}/{seed}")
    generators: dict[str, Callable[[Chance], History]] = {"nvidia": nvidia, "amd": amd, "neuron": neuron, "tpu": tpu}
    made = generators[kind](chance)
    lost = chance.choice((None, None, None, chance.randrange(PAGES - 1)))
    return replace(made, pages=[None if number == lost else page for number, page in enumerate(made.pages)])


def reference(made: History, floor: float) -> bool:
    """Whether the reference finds each unit idle."""
    contract = CONTRACTS[made.kind]
    pages = [
        TimedReading(at=number * EVERY, reading=read(contract, parse(page)))
        for number, page in enumerate(made.pages)
        if page is not None
    ]
    found = judge(contract, pages, floor)
    return bool(found) and all(one.activity is ProvedActivity.IDLE for one in found.values())


def objection(gpu: GpuEvidence | None, made: History) -> Objection | None:
    evidence = replace(QUIET, window=WINDOW, interval=EVERY, gpu=gpu)
    policy = IdlePolicy(window=WINDOW, coverage=0.9)
    given = case(evidence=evidence, policy=policy, gpus_expected=made.devices, watts_rated=700.0)
    return checks.judge(given, GPU_CHECKS)


HISTORIES: Final = {f"i-{kind}-{seed}": history(kind, seed) for kind in CONTRACTS for seed in range(PLAYED)}


@pytest.fixture(scope="module")
def objections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Objection | None]:
    """Why each instance is not idle by the query; None: it is."""
    pages = {name: made.pages for name, made in HISTORIES.items()}
    with scraped(pages, tmp_path_factory.mktemp("pages"), newest=START, every=EVERY) as store:
        found = signals.gather(store, signals.of_environment("test"), WINDOW, START)
    return {name: objection(found[name].gpu if name in found else None, made) for name, made in HISTORIES.items()}


@pytest.mark.parametrize("kind", CONTRACTS)
def test_the_query_proves_no_more_than_the_reference(kind: str, objections: dict[str, Objection | None]) -> None:
    floor = IdlePolicy().gpu_active_below
    idle = Counter[str]()
    for name, made in HISTORIES.items():
        if made.kind != kind:
            continue
        by_query, by_reference = objections[name] is None, reference(made, floor)
        assert by_reference or not by_query, (name, made.pages[-1])
        idle["query"] += by_query
        idle["reference"] += by_reference
    assert idle["query"] >= PLAYED / 20, idle
    assert idle["query"] >= 0.5 * idle["reference"], "what the reference finds idle is mostly found"


def test_each_kind_of_objection_was_played(objections: dict[str, Objection | None]) -> None:
    reasons = {found.reason for found in objections.values() if found is not None}
    assert reasons >= {
        Reason.GPU_ACTIVE_WITHOUT_WORK, Reason.ACCELERATOR_UNKNOWN, Reason.METRICS_MISSING, Reason.METRICS_IMPLAUSIBLE
    }  # fmt: skip
