"""What several pages prove: idle units are found, and nothing that is unknown is called idle."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.contract import SeriesUnit, UnknownCode
from serving.accelerators.evidence import ProvedActivity, TimedReading, contradicted_units, judge
from serving.accelerators.reading import UnitKey, read
from serving.exposition import Sample, parse

NVIDIA, AMD, NEURON, TPU = (CONTRACTS[kind] for kind in ("nvidia", "amd", "neuron", "tpu"))
MINUTE: Final = timedelta(minutes=1)
Proved = tuple[ProvedActivity, tuple[UnknownCode, ...]]
SHARES: Final = st.floats(0, 1, allow_nan=False)


def timed(kind: str, texts: list[str], step: timedelta = MINUTE) -> list[TimedReading]:
    return [
        TimedReading(at=number * step, reading=read(CONTRACTS[kind], parse(text)))
        for number, text in enumerate(texts)
    ]


PULSES: Final = {
    "nvidia": 'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="G"}} {}\n',
    "amd": 'gpu_energy_consumed{{serial_number="S"}} {}\n',
    "neuron": "system_memory_used_bytes {}\n",
    "tpu": "",
}
"""Numbers of each exporter that change also at rest."""


def activities(kind: str, texts: list[str], floor: float = 0.0, *, frozen: bool = False) -> Mapping[str, Proved]:
    """What pages prove; `frozen`: the exporter repeats old values."""
    pages = [text + PULSES[kind].format(5 if frozen else 5 + number) for number, text in enumerate(texts)]
    found = judge(CONTRACTS[kind], timed(kind, pages), floor)
    return {f"{key.device}/{key.slice}": (one.activity, one.unknown) for key, one in found.items()}


def mig(*shares: float) -> str:
    return "".join(
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="G",GPU_I_ID="{number}"}} {share}\n'
        for number, share in enumerate(shares)
    )


def core(number: int, share: float, tag: str = "1") -> str:
    return f'neuroncore_utilization_ratio{{neuroncore="{number}",runtime_tag="{tag}"}} {share}\n'


def executions(count: int, tag: str = "1") -> str:
    return f'execution_status_total{{runtime_tag="{tag}",status_type="completed"}} {count}\n'


def test_of_three_mig_tenants_the_idle_one_is_found() -> None:
    found = activities("nvidia", [mig(0.5, 0.0, 0.0), mig(0.0, 0.0, 0.2), mig(0.0, 0.0, 0.0)])
    assert found == {
        "G/0": (ProvedActivity.WORKING, ()),
        "G/1": (ProvedActivity.IDLE, ()),
        "G/2": (ProvedActivity.WORKING, ()),
    }


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("nvidia", mig(0.0), id="nvidia"),
        pytest.param("amd", 'gpu_gfx_activity{serial_number="S"} 0\n', id="amd"),
        pytest.param("neuron", core(0, 0.0) + executions(7), id="neuron"),
    ],
)
def test_an_exporter_that_repeats_old_values_proves_nothing(kind: str, text: str) -> None:
    assert {activity for activity, _ in activities(kind, [text] * 6).values()} == {ProvedActivity.IDLE}
    (found,) = activities(kind, [text] * 6, frozen=True).values()
    assert found == (ProvedActivity.UNKNOWN, (UnknownCode.REPEATED,))
    (alone,) = judge(CONTRACTS[kind], timed(kind, [text] * 6)).values()
    assert alone.unknown == (UnknownCode.MISSING_SERIES,), "no number that changes"


def test_utilization_vetoes_profiling_fields_that_read_0() -> None:
    text = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="G"} 0\nDCGM_FI_DEV_GPU_UTIL{UUID="G"} 60\n'
    assert activities("nvidia", [text] * 3) == {"G/": (ProvedActivity.WORKING, ())}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("amd", 'gpu_gfx_activity{serial_number="S"} 0.87\n', id="AMD"),
        pytest.param("tpu", 'duty_cycle{make="cloud-tpu",accelerator_id="0"} 0.87\n', id="TPU on GKE"),
        pytest.param("tpu", 'tpu_runtime_tensorcore_dutycycle_percent{chip="0"} 0.87\n', id="TPU on a VM"),
        pytest.param("nvidia", mig(0.0) + 'DCGM_FI_DEV_GPU_UTIL{UUID="G",GPU_I_ID="0"} 0.87\n', id="utilization"),
    ],
)
def test_a_share_under_the_name_of_a_percentage_is_not_noise(kind: str, text: str) -> None:
    (found,) = activities(kind, [text] * 6, floor=0.01).values()
    assert found == (ProvedActivity.UNKNOWN, (UnknownCode.IMPLAUSIBLE,))


def test_a_percentage_with_fractions_is_not_taken_for_a_share() -> None:
    labels = 'make="cloud-tpu",accelerator_id="0",pod="p"'
    text = f"duty_cycle{{{labels}}} 12\ntensorcore_utilization{{{labels}}} 0.4\n"
    assert read(TPU, parse(text)).units[UnitKey("0")].unknown == ()


def test_activity_within_the_noise_does_not_prove_work() -> None:
    assert activities("nvidia", [mig(0.001)] * 3, floor=0.002) == {"G/0": (ProvedActivity.IDLE, ())}


def test_a_shared_gpu_is_neither_working_nor_idle_for_one_program() -> None:
    for share in (0, 0.7):
        text = "".join(f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="G",pod="{pod}"}} {share}\n' for pod in "ab")
        assert activities("nvidia", [text] * 3) == {"G/": (ProvedActivity.UNKNOWN, (UnknownCode.SHARED,))}


def test_a_short_window_proves_nothing() -> None:
    assert activities("nvidia", [mig(0.0)]) == {"G/0": (ProvedActivity.UNKNOWN, (UnknownCode.WINDOW_TOO_SHORT,))}


@pytest.mark.parametrize(
    ("kind", "text", "count", "idle"),
    [
        pytest.param("nvidia", mig(0.0), 3, True, id="two measurements of NVIDIA"),
        pytest.param("nvidia", mig(0.0), 2, False, id="one measurement"),
        pytest.param("amd", 'gpu_gfx_activity{serial_number="S"} 0\n', 3, False, id="AMD reports moments only"),
        pytest.param("tpu", 'duty_cycle{make="cloud-tpu",accelerator_id="0"} 0\n', 3, False, id="no such number"),
    ],
)
def test_a_short_window_is_a_proof_with_measurements_that_a_number_shows(
    kind: str, text: str, count: int, idle: bool
) -> None:
    texts = [text + PULSES[kind].format(5 + number) for number in range(count)]
    (found,) = judge(CONTRACTS[kind], timed(kind, texts, timedelta(seconds=5))).values()
    assert found.unknown == (() if idle else (UnknownCode.WINDOW_TOO_SHORT,))


def test_a_unit_that_was_missing_in_one_page_is_unknown() -> None:
    found = activities("nvidia", [mig(0.0, 0.0), mig(0.0), mig(0.0, 0.0)])
    assert found == {
        "G/0": (ProvedActivity.IDLE, ()),
        "G/1": (ProvedActivity.UNKNOWN, (UnknownCode.MISSING_SERIES,)),
    }


def test_a_partitioned_amd_gpu_works_or_is_unknown() -> None:
    def page(share: int) -> str:
        return "".join(
            f'gpu_gfx_activity{{serial_number="S",gpu_id="{number}",gpu_partition_id="{number}",'
            f'gpu_compute_partition_type="qpx"}} {value}\n'
            for number, value in ((0, share), (1, 0))
        )

    assert activities("amd", [page(0)] * 6) == {
        "S/0/0": (ProvedActivity.UNKNOWN, (UnknownCode.PARTITION,)),
        "S/1/1": (ProvedActivity.UNKNOWN, (UnknownCode.PARTITION,)),
    }
    assert activities("amd", [page(50)] * 6)["S/0/0"] == (ProvedActivity.WORKING, ())


def test_a_core_without_executions_on_the_host_is_idle() -> None:
    assert activities("neuron", [core(0, 0.0) + executions(7)] * 3) == {"/0": (ProvedActivity.IDLE, ())}


def test_executions_between_two_pages_prove_work_of_active_cores_only() -> None:
    found = activities("neuron", [core(0, 0.5) + core(1, 0.0) + executions(number) for number in range(3)])
    assert found == {"/0": (ProvedActivity.WORKING, ()), "/1": (ProvedActivity.UNKNOWN, (UnknownCode.SHARED,))}


def test_the_last_value_of_a_runtime_that_ended_proves_neither_work_nor_idleness() -> None:
    text = core(0, 0.9, "1") + core(1, 0.0, "2") + executions(5, "1") + executions(5, "2")
    assert activities("neuron", [text] * 3) == {
        "/0": (ProvedActivity.UNKNOWN, (UnknownCode.KEPT_VALUE,)),
        "/1": (ProvedActivity.IDLE, ()),
    }


def test_the_last_value_of_a_runtime_proves_no_work_while_another_runtime_executes() -> None:
    def page(number: int) -> str:
        ended, alive = executions(5, "1"), executions(number, "2")
        return core(0, 0.9, "1") + core(1, 0.4, "2") + ended + alive

    assert activities("neuron", [page(number) for number in range(3)]) == {
        "/0": (ProvedActivity.UNKNOWN, (UnknownCode.KEPT_VALUE, UnknownCode.SHARED)),
        "/1": (ProvedActivity.WORKING, ()),
    }


def test_neuron_cores_that_vanish_with_their_runtime_are_unknown() -> None:
    found = activities("neuron", [core(0, 0.0) + executions(7), "process_cpu_seconds_total 1\n", core(0, 0.0)])
    assert found == {"/0": (ProvedActivity.UNKNOWN, (UnknownCode.NO_WORKLOAD,))}


def test_a_tpu_whose_metrics_vanish_with_its_workload_is_unknown() -> None:
    held = 'duty_cycle{make="cloud-tpu",accelerator_id="7-0",pod="p"} 0\n'
    node = 'duty_cycle_node{make="cloud-tpu",accelerator_id="7-0"} 0\n'
    assert activities("tpu", [held + node] * 3) == {"7-0/": (ProvedActivity.IDLE, ())}
    assert activities("tpu", [held + node, node, node]) == {
        "7-0/": (ProvedActivity.UNKNOWN, (UnknownCode.NO_WORKLOAD,))
    }
    assert activities("tpu", [held + node, held + node, ""]) == {
        "7-0/": (ProvedActivity.UNKNOWN, (UnknownCode.NO_WORKLOAD,))
    }


def test_the_idle_clock_of_a_tpu_shows_work_between_two_pages() -> None:
    def page(idle: float) -> str:
        return (
            'tpu_runtime_tensorcore_dutycycle_percent{chip="0"} 0\n'
            f'tpu_runtime_tensorcore_idle_duration_seconds{{chip="0"}} {idle}\n'
        )

    assert activities("tpu", [page(500), page(560), page(20)]) == {"0/": (ProvedActivity.WORKING, ())}
    assert activities("tpu", [page(500), page(560), page(620)]) == {"0/": (ProvedActivity.IDLE, ())}


@given(share=SHARES, copies=st.integers(1, 9), label=st.sampled_from(["pod", "hpc_job", "pod_uid", "container"]))
def test_copies_of_a_number_count_once(share: float, copies: int, label: str) -> None:
    samples = [
        Sample(name=name, labels={"UUID": "G", label: f"{number}"}, value=value)
        for number in range(copies)
        for name, value in (
            ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", share),
            ("DCGM_FI_DEV_FB_USED", 100.0),
            ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5000.0),
        )
    ]
    found = read(NVIDIA, samples)
    assert list(found.units) == [UnitKey("G")]
    assert found.units[UnitKey("G")].values == {
        metrics.ACTIVE: share,
        metrics.MEMORY_USED: 100.0 * 2**20,
        metrics.ENERGY: 5.0,
    }


@given(
    mode=st.sampled_from(["dpx", "QPX", "cpx", "TPX"]),
    shares=st.lists(st.integers(0, 100), min_size=2, max_size=8),
    numbered=st.booleans(),
)
def test_no_partition_of_a_divided_amd_gpu_is_called_idle(mode: str, shares: list[int], numbered: bool) -> None:
    samples = [
        Sample(
            name="gpu_gfx_activity",
            labels={
                "serial_number": "S",
                "gpu_id": f"{number}",
                "gpu_partition_id": f"{number}" if numbered else "0",
                "gpu_compute_partition_type": mode,
            },
            value=share,
        )
        for number, share in enumerate(shares)
    ]
    pages = [TimedReading(at=number * MINUTE, reading=read(AMD, samples)) for number in range(7)]
    found = judge(AMD, pages)
    assert len(found) == len(shares)
    working = sum(one.activity is ProvedActivity.WORKING for one in found.values())
    assert working == sum(share > 0 for share in shares)
    assert all(one.activity is not ProvedActivity.IDLE for one in found.values())


@given(shares=st.lists(st.lists(SHARES, min_size=3, max_size=3), min_size=3, max_size=6))
def test_exactly_the_slices_that_never_computed_are_idle(shares: list[list[float]]) -> None:
    found = activities("nvidia", [mig(*page) for page in shares])
    for number in range(3):
        worked = any(page[number] > 0 for page in shares)
        assert found[f"G/{number}"] == (ProvedActivity.WORKING if worked else ProvedActivity.IDLE, ())


POWERED: Final = [
    pytest.param("nvidia", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "UUID", id="nvidia"),
    pytest.param("amd", "gpu_package_power", "gpu_energy_consumed", "serial_number", id="amd"),
]


@pytest.mark.parametrize(("kind", "power", "energy", "label"), POWERED)
@given(
    watts=st.floats(20, 1400),
    swing=st.floats(1 / 25, 25),
    seconds=st.integers(5, 3600),
    start=st.floats(1e3, 1e7),
    planted=st.sampled_from([1.0, 1000.0, 0.001]),
)
def test_a_unit_that_is_wrong_by_1000_contradicts_the_power(
    kind: str,
    power: str,
    energy: str,
    label: str,
    watts: float,
    swing: float,
    seconds: int,
    start: float,
    planted: float,
) -> None:
    """`swing`: the mean power between two pages and the power on both pages differ by up to this factor.

    The energy stays below DCGM's blank value also if it is 1,000 times too high.
    """
    contract = CONTRACTS[kind]
    units = {series.name: series.unit for series in contract.series}
    per_joule = 1 / units[energy].convert(1.0)

    def page(second: int) -> TimedReading:
        joules = (start + watts * swing * second) * planted
        samples = [
            Sample(name=power, labels={label: "D"}, value=watts),
            Sample(name=energy, labels={label: "D"}, value=joules * per_joule),
        ]
        return TimedReading(at=timedelta(seconds=second), reading=read(contract, samples))

    assert contradicted_units(page(0), page(seconds)) == (() if planted == 1.0 else ("D",))


@pytest.mark.parametrize("wrong", [SeriesUnit.JOULES, SeriesUnit.MICROJOULES])
def test_a_contract_with_the_wrong_unit_of_energy_is_contradicted_by_its_pages(wrong: SeriesUnit) -> None:
    series = tuple(
        replace(one, unit=wrong) if one.name == "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" else one
        for one in NVIDIA.series
    )

    def pages(contract: object) -> list[TimedReading]:
        assert isinstance(contract, type(NVIDIA))
        return [
            TimedReading(
                at=timedelta(seconds=30 * number),
                reading=read(
                    contract,
                    parse(
                        f'DCGM_FI_DEV_POWER_USAGE{{UUID="G"}} 300\n'
                        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="G"}} {5_000_000 + 9_000_000 * number}\n'
                    ),
                ),
            )
            for number in range(2)
        ]

    assert contradicted_units(*pages(NVIDIA)) == ()
    assert contradicted_units(*pages(replace(NVIDIA, series=series))) == ("G",)


@pytest.mark.parametrize(
    ("millijoules", "contradicted"),
    [
        pytest.param(300 * 30_000, (), id="300 W"),
        pytest.param(300 * 30, ("G",), id="joules under the name of millijoules"),
        pytest.param(300 * 30_000_000, ("G",), id="microjoules under the name of millijoules"),
    ],
)
def test_energy_without_power_is_compared_with_what_accelerators_draw(
    millijoules: int, contradicted: tuple[str, ...]
) -> None:
    def page(number: int) -> TimedReading:
        text = f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="G"}} {5_000_000 + millijoules * number}\n'
        return TimedReading(at=timedelta(seconds=30 * number), reading=read(NVIDIA, parse(text)))

    assert contradicted_units(page(0), page(1)) == contradicted


def test_an_energy_counter_that_restarted_contradicts_nothing() -> None:
    def page(second: int, millijoules: int) -> TimedReading:
        energy = f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="G"}} {millijoules}\n'
        text = f'DCGM_FI_DEV_POWER_USAGE{{UUID="G"}} 300\n{energy}'
        return TimedReading(at=timedelta(seconds=second), reading=read(NVIDIA, parse(text)))

    assert contradicted_units(page(0, 10**9), page(30, 50)) == ()


@pytest.mark.parametrize("factor", [1024.0, 1 / 1024])
def test_memory_in_another_unit_is_left_out(factor: float) -> None:
    text = f'gpu_gfx_activity{{serial_number="S"}} 0\ngpu_total_vram{{serial_number="S"}} {196592 * factor}\n'
    found = read(AMD, parse(text)).units[UnitKey("S")]
    assert found.rejected == {metrics.MEMORY_TOTAL: UnknownCode.IMPLAUSIBLE}


USED: Final = "nvidia_smi_memory_used_bytes"
ALL: Final = "nvidia_smi_memory_total_bytes"


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param({USED: 700, ALL: 24 << 30}, id="used MiB under the name of bytes"),
        pytest.param({USED: (700 << 20) / 1000, ALL: 24 << 30}, id="used a thousand times too low"),
        pytest.param({USED: (700 << 20) * 1000, ALL: 24 << 30}, id="more used than the device has"),
        pytest.param({"DCGM_FI_DEV_FB_USED": 70, "DCGM_FI_DEV_FB_FREE": 10}, id="used and free too low"),
        pytest.param({"DCGM_FI_DEV_FB_USED": 7e5, "DCGM_FI_DEV_FB_FREE": 8e5}, id="used and free too high"),
    ],
)
def test_numbers_of_memory_that_contradict_each_other_are_left_out(numbers: Mapping[str, float]) -> None:
    text = "".join(f'{name}{{UUID="G",uuid="G"}} {value}\n' for name, value in numbers.items())
    found = read(NVIDIA, parse(mig(0.0).replace(',GPU_I_ID="0"', "") + text)).units[UnitKey("G")]
    assert found.values == {metrics.ACTIVE: 0.0}
    assert found.unknown == (UnknownCode.IMPLAUSIBLE,)


def test_free_memory_in_bytes_under_the_name_of_mebibytes_is_left_out() -> None:
    found = read(NVIDIA, parse('DCGM_FI_DEV_FB_FREE{UUID="G"} 21474836480\n')).units[UnitKey("G")]
    assert found.rejected == {metrics.MEMORY_FREE: UnknownCode.IMPLAUSIBLE}


@pytest.mark.parametrize("renamed", [("namespace", "pod"), ("namespace",), ("pod",)])
def test_pods_whose_labels_prometheus_renamed_share_a_gpu(renamed: tuple[str, ...]) -> None:
    def labels(pod: str) -> dict[str, str]:
        own = {"namespace": "ns", "pod": pod}
        target = {"namespace": "gpu-operator", "pod": "exporter"}
        return {f"exported_{name}" if name in renamed else name: own[name] for name in own} | {
            name: target[name] for name in renamed
        }

    def shared(*pods: str) -> bool:
        samples = [
            Sample(name="DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels={"UUID": "G"} | labels(pod), value=0) for pod in pods
        ]
        return read(NVIDIA, samples).units[UnitKey("G")].shared

    assert shared("a", "b")
    assert not shared("a")


def vm_tpu(idle_s: float | None) -> str:
    clock = "" if idle_s is None else f'tpu_runtime_tensorcore_idle_duration_seconds{{chip="0"}} {idle_s}\n'
    return f'tpu_runtime_tensorcore_dutycycle_percent{{chip="0"}} 0\n{clock}'


@pytest.mark.parametrize(
    ("clock", "proved"),
    [
        pytest.param([500, 560, 620], (ProvedActivity.IDLE, ()), id="advances"),
        pytest.param([500, 20, 80], (ProvedActivity.WORKING, ()), id="falls"),
        pytest.param([500, 20, None], (ProvedActivity.WORKING, ()), id="falls before it ends"),
        pytest.param([9e6, 5e6, 5.06e6], (ProvedActivity.WORKING, ()), id="falls in milliseconds"),
        pytest.param([5e5, 5.6e5, 6.2e5], (ProvedActivity.UNKNOWN, (UnknownCode.IMPLAUSIBLE,)), id="in milliseconds"),
        pytest.param([5e3, 5.001e3, 5.002e3], (ProvedActivity.UNKNOWN, (UnknownCode.REPEATED,)), id="in minutes"),
        pytest.param([500, 500, 500], (ProvedActivity.UNKNOWN, (UnknownCode.REPEATED,)), id="frozen"),
        pytest.param(
            [500, None, 620], (ProvedActivity.UNKNOWN, (UnknownCode.MISSING_SERIES,)), id="missing on a page"
        ),
        pytest.param(
            [500, float("nan"), 620], (ProvedActivity.UNKNOWN, (UnknownCode.MISSING_SERIES,)), id="not a number"
        ),
    ],
)
def test_the_idle_clock_of_a_tpu_has_to_run(clock: list[float | None], proved: Proved) -> None:
    assert activities("tpu", [vm_tpu(idle_s) for idle_s in clock]) == {"0/": proved}


@pytest.mark.parametrize(
    ("counts", "activity"),
    [
        pytest.param([1, 2, 3, 4, 5, 6, 7, 8, 9], ProvedActivity.IDLE, id="counts"),
        pytest.param([1, 1, 1, 1, 1, 1, 1, 1, 9], ProvedActivity.UNKNOWN, id="frozen, then resumes"),
        pytest.param([1, 2, 2, 2, 2, 2, 2, 2, 9], ProvedActivity.UNKNOWN, id="frozen in between"),
        pytest.param([1, 1, 2, 2, 3, 3, 4, 4, 5], ProvedActivity.IDLE, id="counts with every other page"),
    ],
)
def test_an_exporter_that_was_frozen_for_half_the_window_proves_nothing(
    counts: list[int], activity: ProvedActivity
) -> None:
    texts = [mig(0.0) + PULSES["nvidia"].format(count) for count in counts]
    (found,) = judge(NVIDIA, timed("nvidia", texts)).values()
    assert found.activity is activity
