"""Checks of all accelerator contracts: they are consistent, and they read pages in the format of each exporter.

The pages are written from the documented formats: each contract names its sources. Two lines are of recorded pages.
"""

from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Final

import pytest

from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.contract import (
    AcceleratorContract,
    AcceleratorEvidenceRule,
    AcceleratorSeries,
    SeriesUnit,
    UnitIdentity,
    UnknownCode,
    faults,
)
from serving.accelerators.reading import AcceleratorReading, UnitKey, read
from serving.exposition import parse
from serving.metrics import Metric

GPU: Final = (
    'gpu="0",UUID="GPU-a",pci_bus_id="00000000:18:00.0",device="nvidia0",modelName="NVIDIA H100",hostname="h"'
)
NVIDIA_WHOLE: Final = f"""
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{GPU}}} 0.25
DCGM_FI_DEV_GPU_UTIL{{{GPU}}} 30
DCGM_FI_DEV_FB_USED{{{GPU}}} 1024
DCGM_FI_DEV_FB_FREE{{{GPU}}} 79000
DCGM_FI_DEV_FB_RESERVED{{{GPU}}} 500
DCGM_FI_DEV_POWER_USAGE{{{GPU}}} 350.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{GPU}}} 7000000
DCGM_EXP_GPU_HEALTH_STATUS{{{GPU},health_watch="PCIE"}} 0
DCGM_EXP_GPU_HEALTH_STATUS{{{GPU},health_watch="MEM"}} 10
"""
MIG: Final = "".join(
    f"""
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{GPU},GPU_I_PROFILE="{profile}",GPU_I_ID="{number}",pod="p{number}"}} {active}
DCGM_FI_DEV_FB_USED{{{GPU},GPU_I_PROFILE="{profile}",GPU_I_ID="{number}"}} 2048
DCGM_FI_DEV_POWER_USAGE{{{GPU},GPU_I_PROFILE="{profile}",GPU_I_ID="{number}"}} 410
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{GPU},GPU_I_PROFILE="{profile}",GPU_I_ID="{number}"}} 9000
"""
    for number, profile, active in (("1", "3g.40gb", 0.9), ("2", "2g.20gb", 0.4), ("3", "1g.10gb", 0.0))
)
"""Three tenants; the third one is idle."""
SHARED: Final = "".join(
    f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{GPU},namespace="n",pod="p{pod}",vgpu="{pod}"}} 0.0\n' for pod in range(4)
)
AMD_GPU: Final = 'gpu_id="0",serial_number="S0",card_model="c",hostname="h",pod="",namespace="",job_id=""'
AMD_WHOLE: Final = f"""
amd_gpu_gfx_activity{{{AMD_GPU},gpu_partition_id="0",gpu_compute_partition_type="spx"}} 40
amd_gpu_used_vram{{{AMD_GPU},gpu_partition_id="0",gpu_compute_partition_type="spx"}} 4096
amd_gpu_total_vram{{{AMD_GPU},gpu_partition_id="0",gpu_compute_partition_type="spx"}} 196592
amd_gpu_package_power{{{AMD_GPU},gpu_partition_id="0",gpu_compute_partition_type="spx"}} 255
amd_gpu_energy_consumed{{{AMD_GPU},gpu_partition_id="0",gpu_compute_partition_type="spx"}} 5.0e9
amd_gpu_health{{{AMD_GPU},gpu_partition_id="0",gpu_compute_partition_type="spx"}} 1
"""
CPX: Final = 'serial_number="S0",gpu_compute_partition_type="CPX"'
AMD_PARTITIONS: Final = "".join(
    f"""
gpu_gfx_activity{{gpu_id="{index}",gpu_partition_id="{index}",{CPX}}} {active}
gpu_package_power{{gpu_id="{index}",gpu_partition_id="{index}",{CPX}}} {watts}
"""
    for index, active, watts in ((0, 70, 600), (1, 0, 0), (2, 0, 0))
)
NEURON_HOST: Final = 'instance_id="i-1",instance_type="inf2.24xlarge",region="us-east-1"'
NEURON_MEMORY: Final = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
NEURON: Final = (
    "".join(
        f'neuroncore_utilization_ratio{{{NEURON_HOST},neuroncore="{core}",runtime_tag="71"}} {active}\n'
        + "".join(
            f'neuroncore_memory_usage_{name}{{{NEURON_HOST},neuroncore="{core}",runtime_tag="71"}} 100\n'
            for name in NEURON_MEMORY
        )
        for core, active in ((0, 0.86), (1, 0.0), (2, 0.0))
    )
    + f"""
neuron_hardware_info{{{NEURON_HOST},neuron_device_count="6",neuroncore_per_device_count="2"}} 1
system_memory_used_bytes{{{NEURON_HOST}}} 7e9
execution_status_total{{{NEURON_HOST},runtime_tag="71",status_type="completed"}} 2977
execution_status_total{{{NEURON_HOST},runtime_tag="71",status_type="timed_out"}} 3
hardware_ecc_events_total{{{NEURON_HOST},event_type="mem_ecc_corrected",neuron_device_index="0"}} 9
hardware_ecc_events_total{{{NEURON_HOST},event_type="mem_ecc_uncorrected",neuron_device_index="0"}} 0
hardware_ecc_events_total{{{NEURON_HOST},event_type="sram_ecc_uncorrected",neuron_device_index="1"}} 2
"""
)
NEURON_AT_REST: Final = f"""
neuron_hardware_info{{{NEURON_HOST},neuron_device_count="6",neuroncore_per_device_count="2"}} 1
hardware_ecc_events_total{{{NEURON_HOST},event_type="mem_ecc_uncorrected",neuron_device_index="0"}} 0
system_memory_used_bytes{{{NEURON_HOST}}} 7000000
"""
HELD: Final = 'container="c",make="cloud-tpu",model="tpu7x",namespace="n",pod="p",tpu_topology="2x2x2"'
NODE: Final = 'make="cloud-tpu",model="tpu7x",tpu_topology="2x2x2"'
GKE_TPU: Final = f"""
duty_cycle{{accelerator_id="77-4",{HELD}}} 0
duty_cycle_node{{accelerator_id="77-0",{NODE}}} 0
duty_cycle_node{{accelerator_id="77-4",{NODE}}} 0
tensorcore_utilization_node{{accelerator_id="77-0",{NODE}}} 0
memory_total{{accelerator_id="77-4",{HELD}}} 2.0e+11
memory_used{{accelerator_id="77-4",{HELD}}} 1.8e+11
memory_used{{pod="a-database"}} 12
"""
VM_TPU: Final = """
tpu_runtime_tensorcore_dutycycle_percent{chip="0"} 12.5
tpu_runtime_hbm_memory_usage_bytes{chip="0",core="0"} 1e9
tpu_runtime_hbm_memory_usage_bytes{chip="0",core="1"} 2e9
tpu_runtime_hbm_memory_total_bytes{chip="0",core="0"} 5e10
tpu_runtime_hbm_memory_total_bytes{chip="0",core="1"} 5e10
tpu_runtime_tensorcore_idle_duration_seconds{chip="0"} 0.5
"""


def page(kind: str, text: str) -> AcceleratorReading:
    return read(CONTRACTS[kind], parse(text))


def every() -> list[object]:
    return [pytest.param(contract, id=contract.kind) for contract in CONTRACTS.values()]


@pytest.mark.parametrize("contract", every())
def test_a_contract_claims_only_what_its_numbers_support(contract: AcceleratorContract) -> None:
    assert faults(contract) == []
    assert len(contract.sources) > 1
    assert contract.run is None, "nothing of it ran on hardware"


def test_each_contract_has_the_name_of_its_module() -> None:
    assert {"nvidia", "amd", "neuron", "tpu"} <= set(CONTRACTS)
    for kind, contract in CONTRACTS.items():
        assert import_module(f"serving.accelerators.{kind}").CONTRACT is contract


COARSE: Final = AcceleratorSeries(
    name="x", measures=metrics.ACTIVE, unit=SeriesUnit.RATIO, exporter="node agent", zero_while_busy=True
)
KEPT: Final = replace(COARSE, zero_while_busy=False, kept_at_rest=True)
SLOW: Final = replace(COARSE, zero_while_busy=False, every=timedelta(seconds=90))
WRONG: Final = replace(COARSE, zero_while_busy=False, unit=SeriesUnit.MIB)


@pytest.mark.parametrize(
    ("series", "work", "fault"),
    [
        pytest.param((COARSE,), (), "does not prove idleness", id="coarse"),
        pytest.param((KEPT,), (metrics.ACTIVE,), "stays above 0 at rest", id="kept"),
        pytest.param((KEPT,), (), "need each other", id="kept, of no program"),
        pytest.param((SLOW,), (), "shorter than two measurements", id="window"),
        pytest.param((WRONG,), (), "has the unit mebibytes", id="unit"),
        pytest.param((SLOW,), (metrics.ENERGY,), "no series of tpu carries", id="no such number"),
        pytest.param((SLOW, SLOW), (), "carries several metrics", id="name twice"),
        pytest.param((replace(SLOW, exporter="y"),), (), "which tpu does not have", id="exporter"),
        pytest.param((SLOW, replace(SLOW, name="z", adds=True)), (), "are alternatives", id="sum and alternatives"),
        pytest.param(
            (replace(SLOW, parts=("chip",)),), (), "divides a number and identifies", id="part and identity"
        ),
    ],
)
def test_a_contract_that_claims_too_much_is_found(
    series: tuple[AcceleratorSeries, ...], work: tuple[Metric, ...], fault: str
) -> None:
    evidence = AcceleratorEvidenceRule(work=work, idle=(metrics.ACTIVE,), window=timedelta(seconds=120))
    wrong = replace(CONTRACTS["tpu"], series=series, evidence=evidence)
    assert any(fault in one for one in faults(wrong))


@pytest.mark.parametrize(
    ("identity", "fault"),
    [
        pytest.param(UnitIdentity(device=()), "no label identifies the device", id="no device"),
        pytest.param(UnitIdentity(device=("pod",), tenants=("pod",)), "identifies a unit and marks copies", id="pod"),
    ],
)
def test_an_identity_that_cannot_distinguish_units_is_found(identity: UnitIdentity, fault: str) -> None:
    assert any(fault in one for one in faults(replace(CONTRACTS["tpu"], identity=identity)))


def test_a_whole_gpu_is_read_in_si_units() -> None:
    found = page("nvidia", NVIDIA_WHOLE).units[UnitKey("GPU-a")]
    assert found.unknown == ()
    assert found.highest == pytest.approx(0.30), "of activity and utilization the higher one can veto"
    assert found.values == pytest.approx(
        {
            metrics.ACTIVE: 0.25,
            metrics.MEMORY_USED: 1024 * 2**20,
            metrics.MEMORY_FREE: 79000 * 2**20,
            metrics.MEMORY_RESERVED: 500 * 2**20,
            metrics.MEMORY_TOTAL: 80524 * 2**20,
            metrics.POWER: 350.5,
            metrics.ENERGY: 7000.0,
            metrics.HEALTHY: 0.0,
        }
    )


def test_mig_instances_are_units_and_power_is_of_their_gpu() -> None:
    found = page("nvidia", MIG)
    assert [(key.slice, unit.values[metrics.ACTIVE]) for key, unit in found.units.items()] == [
        ("1", 0.9),
        ("2", 0.4),
        ("3", 0.0),
    ]
    assert [unit.profile for unit in found.units.values()] == ["3g.40gb", "2g.20gb", "1g.10gb"]
    assert all(unit.unknown == () and metrics.POWER not in unit.values for unit in found.units.values())
    assert found.devices["GPU-a"] == pytest.approx({metrics.POWER: 410.0, metrics.ENERGY: 9.0})


def test_numbers_of_a_gpu_that_is_divided_are_of_no_schedulable_unit() -> None:
    found = page("nvidia", MIG + f"DCGM_FI_DEV_FB_USED{{{GPU}}} 6000\n")
    assert UnitKey("GPU-a") not in found.units
    assert found.devices["GPU-a"][metrics.MEMORY_USED] == 6000 * 2**20


@pytest.mark.parametrize("names", [("UUID", "Hostname"), ("uuid", "hostname"), ("gpu_uuid", "hostname")])
def test_renamed_labels_identify_the_same_gpu(names: tuple[str, str]) -> None:
    text = f'DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{gpu="0",{names[0]}="GPU-a",{names[1]}="h"}} 0.5\n'
    assert list(page("nvidia", text).units) == [UnitKey("GPU-a")]


def test_a_time_sliced_gpu_can_veto_but_proves_no_idleness_of_one_program() -> None:
    found = page("nvidia", SHARED)
    assert list(found.units) == [UnitKey("GPU-a")]
    assert found.units[UnitKey("GPU-a")].unknown == (UnknownCode.SHARED,)
    declared = read(CONTRACTS["nvidia"], parse(NVIDIA_WHOLE), shared=True)
    assert declared.units[UnitKey("GPU-a")].unknown == (UnknownCode.SHARED,)


def test_a_gpu_without_profiling_metrics_is_unknown_at_rest() -> None:
    text = f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}} 0\nDCGM_FI_DEV_POWER_USAGE{{{GPU}}} 60\n"
    assert page("nvidia", text).units[UnitKey("GPU-a")].unknown == (UnknownCode.NO_PROFILING,)


def test_nvml_numbers_are_read_without_a_proof_of_idleness() -> None:
    text = 'nvidia_smi_utilization_gpu_ratio{uuid="a"} 0.4\nnvidia_smi_memory_used_bytes{uuid="a"} 5e9\n'
    found = page("nvidia", text).units[UnitKey("a")]
    assert found.values == {metrics.ACTIVE: 0.4, metrics.MEMORY_USED: 5e9}
    assert found.unknown == (UnknownCode.NO_PROFILING,)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        pytest.param("9223372036854775794", UnknownCode.BLANK, id="not supported, 64 bits"),
        pytest.param("2147483634", UnknownCode.BLANK, id="not supported, 32 bits"),
        pytest.param("NaN", UnknownCode.BLANK, id="NaN"),
        pytest.param("37", UnknownCode.IMPLAUSIBLE, id="percent under the name of a ratio"),
        pytest.param("-0.1", UnknownCode.IMPLAUSIBLE, id="negative"),
    ],
)
def test_a_value_that_was_not_measured_is_left_out(value: str, code: UnknownCode) -> None:
    found = page("nvidia", f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{GPU}}} {value}\n").units[UnitKey("GPU-a")]
    assert metrics.ACTIVE not in found.values
    assert found.unknown == (code,)


def test_recorded_pages_without_activity_show_no_unit_instead_of_an_idle_one() -> None:
    """Lines of pages recorded from a T4 and from a GPU without a sensor in its memory."""
    t4 = (
        'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-0781f3bb",device="nvidia0",modelName="Tesla T4",Hostname="ip"} 1365\n'
    )
    blank = 'DCGM_FI_DEV_MEMORY_TEMP{gpu="0", UUID="GPU-604ac76c"} 9223372036854775794\n'
    for text in (t4, blank):
        found = page("nvidia", text)
        assert found.units == {}
        assert found.unknown == (UnknownCode.NO_PROFILING,)


def test_an_amd_gpu_is_read_with_the_prefix_of_its_exporter() -> None:
    found = page("amd", AMD_WHOLE).units[UnitKey("S0")]
    assert found.unknown == ()
    assert found.values == pytest.approx(
        {
            metrics.ACTIVE: 0.40,
            metrics.MEMORY_USED: 4096 * 2**20,
            metrics.MEMORY_TOTAL: 196592 * 2**20,
            metrics.POWER: 255.0,
            metrics.ENERGY: 5000.0,
            metrics.HEALTHY: 1.0,
        }
    )


def test_amd_partitions_that_read_0_are_unknown_and_not_idle() -> None:
    found = page("amd", AMD_PARTITIONS)
    codes = {key.slice: unit.unknown for key, unit in found.units.items()}
    assert codes == {"0/0": (), "1/1": (UnknownCode.PARTITION,), "2/2": (UnknownCode.PARTITION,)}
    assert all(metrics.ACTIVE not in unit.values for key, unit in found.units.items() if key.slice != "0/0")
    assert found.devices["S0"] == {metrics.POWER: 600.0}


def test_amd_partitions_of_a_release_that_numbers_all_of_them_0_are_unknown() -> None:
    text = "".join(
        f'gpu_gfx_activity{{gpu_id="{number}",serial_number="S0",gpu_partition_id="0",'
        f'gpu_compute_partition_type="cpx"}} 0\n'
        for number in (40, 47)
    )
    found = page("amd", text)
    assert [unit.unknown for unit in found.units.values()] == [(UnknownCode.PARTITION,), (UnknownCode.PARTITION,)]


def test_an_amd_guest_without_serial_number_is_identified_by_its_number() -> None:
    text = 'gpu_gfx_activity{gpu_id="3",serial_number="",gpu_partition_id="NA",gpu_compute_partition_type=""} 0\n'
    assert page("amd", text).units[UnitKey("3")].unknown == ()


def test_neuron_cores_are_units_of_their_device() -> None:
    found = page("neuron", NEURON)
    assert list(found.units) == [UnitKey("0", "0"), UnitKey("0", "1"), UnitKey("1", "2")]
    assert found.units[UnitKey("0", "0")].values == {metrics.ACTIVE: 0.86, metrics.MEMORY_USED: 500.0}
    assert found.host == {metrics.EXECUTIONS: 2980.0, metrics.HOST_MEMORY_USED: 7e9}
    assert found.devices == {"0": {metrics.HEALTHY: 1.0}, "1": {metrics.HEALTHY: 0.0}}
    assert all(unit.unknown == () for unit in found.units.values())


def test_logical_cores_of_trainium2_are_not_assigned_to_a_device() -> None:
    found = page("neuron", NEURON.replace("inf2.24xlarge", "trn2.48xlarge"))
    assert list(found.units) == [UnitKey("", "0"), UnitKey("", "1"), UnitKey("", "2")]


def test_a_neuron_host_without_a_runtime_is_unknown() -> None:
    found = page("neuron", NEURON_AT_REST)
    assert found.units == {}
    assert found.unknown == (UnknownCode.NO_WORKLOAD,)


def test_memory_of_a_core_is_left_out_if_one_of_its_parts_is_missing() -> None:
    text = "\n".join(line for line in NEURON.splitlines() if "tensors" not in line)
    assert metrics.MEMORY_USED not in page("neuron", text).units[UnitKey("0", "0")].values


def test_a_tpu_chip_that_a_program_holds_can_be_idle_and_others_are_unknown() -> None:
    found = page("tpu", GKE_TPU)
    assert found.units[UnitKey("77-4")].unknown == ()
    assert found.units[UnitKey("77-4")].values[metrics.MEMORY_USED] == 1.8e11
    assert found.units[UnitKey("77-0")].unknown == (UnknownCode.NO_WORKLOAD,)


def test_a_tpu_vm_is_read_through_the_agent() -> None:
    found = page("tpu", VM_TPU).units[UnitKey("0")]
    assert found.unknown == ()
    assert found.values == {
        metrics.ACTIVE: 0.125,
        metrics.MEMORY_USED: 3e9,
        metrics.MEMORY_TOTAL: 1e11,
        metrics.IDLE_SECONDS: 0.5,
    }


def test_a_page_without_a_program_on_the_tpu_is_unknown() -> None:
    assert page("tpu", "process_cpu_seconds_total 5\n").unknown == (UnknownCode.NO_WORKLOAD,)
