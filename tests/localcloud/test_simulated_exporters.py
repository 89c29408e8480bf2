"""The simulated exporters: pages in the format of the real ones, and what our contracts can prove with them.

Expected labels are those of public recorded pages and of the exporters' sources; each module names them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from localcloud.exporters import amd, gke_tpu, libtpu, neuron, nvidia
from localcloud.exporters.frame import ExporterFaults, ExporterKind, Simulator
from localcloud.exporters.metadata import Hardware, hardware_of

from gpufleet.domain import catalogue
from serving.accelerators import CONTRACTS
from serving.accelerators.contract import UnknownCode
from serving.accelerators.evidence import ProvedActivity, TimedReading, contradicted_units, judge
from serving.accelerators.reading import UnitKey, read
from serving.exposition import Sample, parse

H100: Final = Hardware(kind="nvidia", name="H100-80GB", count=2, memory_mib=81920, watts=700, seed="i-1")
MI300X: Final = Hardware(kind="amd", name="MI300X", count=1, memory_mib=196592, watts=750, seed="i-2")
INF2: Final = Hardware(
    kind="neuron",
    name="Inferentia2",
    count=2,
    cores=2,
    memory_mib=32768,
    watts=190,
    seed="i-3",
    machine_type="inf2.24xlarge",
    zone="us-east-1a",
)
TPU: Final = Hardware(kind="tpu", name="v5e", count=4, memory_mib=16384, watts=200, seed="n-4")
BUSY, IDLE, UNKNOWN = ProvedActivity.WORKING, ProvedActivity.IDLE, ProvedActivity.UNKNOWN


@dataclass(frozen=True, slots=True)
class Machine:
    """An exporter without an engine; the fault `gpu-active` stands for a program."""

    simulator: Simulator

    def set(self, **faults: str) -> None:
        for name, text in faults.items():
            (self.simulator.faults / name.replace("_", "-")).write_text(text)

    def clear(self, *names: str) -> None:
        for name in names:
            (self.simulator.faults / name.replace("_", "-")).unlink()

    def after(self, seconds: float) -> "Machine":
        self.simulator.sample(seconds)
        return self

    @property
    def page(self) -> list[Sample]:
        return list(parse(self.simulator.page()))

    def values(self, name: str, label: str = "") -> dict[str, float]:
        """Values of a metric by one of its labels."""
        return {sample.labels.get(label, ""): sample.value for sample in self.page if sample.name == name}


Make = Callable[[ExporterKind, Hardware], Machine]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr("localcloud.exporters.engine_work.EngineProbe._page", lambda _self: None)
    monkeypatch.setattr("localcloud.exporters.engine_work._opened_at_gate", lambda _url: 0.0)
    return lambda kind, hardware: Machine(
        Simulator(kind=kind, hardware=hardware, engine_url="http://127.0.0.1:9", faults=tmp_path)
    )


def labels(machine: Machine, name: str) -> list[str]:
    return list(next(sample.labels for sample in machine.page if sample.name == name))


def test_labels_of_nvidia_gpus_are_those_of_a_recorded_page(make: Make) -> None:
    machine = make(nvidia.KIND, H100)
    recorded = ["gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"]
    assert labels(machine, "DCGM_FI_DEV_SM_CLOCK") == recorded
    machine.set(exporter_variant="hostname", slices="3g.40gb,2g.20gb,1g.10gb")
    assert labels(machine, "DCGM_FI_DEV_SM_CLOCK") == [
        *recorded[:5], "GPU_I_PROFILE", "GPU_I_ID", "hostname", "DCGM_FI_DRIVER_VERSION",
    ]  # fmt: skip


def test_instances_have_no_utilization_and_repeat_the_numbers_of_their_gpu(make: Make) -> None:
    machine = make(nvidia.KIND, H100)
    machine.set(slices="3g.40gb,2g.20gb,1g.10gb", gpu_active="0.9,0.4,0")
    machine.after(10)
    first = [sample for sample in machine.page if sample.labels["gpu"] == "0"]
    assert "DCGM_FI_DEV_GPU_UTIL" not in {sample.name for sample in first}
    assert {sample.labels["UUID"] for sample in first} == {"GPU-i-1-0000"}
    assert {sample.labels["GPU_I_ID"]: sample.labels["GPU_I_PROFILE"] for sample in first} == {
        "1": "3g.40gb", "3": "2g.20gb", "7": "1g.10gb",
    }  # fmt: skip
    by_field: dict[str, list[float]] = {}
    for sample in first:
        by_field.setdefault(sample.name, []).append(sample.value)
    assert by_field["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] == [0.9, 0.4, 0.0]
    for name in ("POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION", "SM_CLOCK"):
        assert len(by_field[f"DCGM_FI_DEV_{name}"]) == 3
        assert len(set(by_field[f"DCGM_FI_DEV_{name}"])) == 1
    share = (0.9 * 3 + 0.4 * 2) / 7
    assert by_field["DCGM_FI_DEV_POWER_USAGE"][0] == pytest.approx(700 * (0.18 + 0.82 * 0.9 * share), abs=0.01)


@pytest.mark.parametrize("profiles", ["4g.40gb,4g.40gb", "5g.40gb", "7g.141gb", "half"])
def test_a_division_that_the_gpu_does_not_have_is_refused(make: Make, profiles: str) -> None:
    machine = make(nvidia.KIND, H100)
    machine.set(slices=profiles)
    with pytest.raises(ValueError, match="slices"):
        machine.page  # noqa: B018


def test_a_shared_gpu_has_a_copy_for_each_pod_and_values_of_their_processes(make: Make) -> None:
    machine = make(nvidia.KIND, H100)
    machine.set(slices="shared:3", gpu_active="0.5,0,0", gpus="1")
    machine.after(10)
    active = [sample for sample in machine.page if sample.name == "DCGM_FI_PROF_GR_ENGINE_ACTIVE"]
    assert [(sample.labels["vgpu"], sample.value) for sample in active] == [("0", 0.5), ("1", 0.5), ("2", 0.5)]
    assert not any("pod_uid" in sample.labels for sample in active)
    used = [sample for sample in machine.page if sample.name == "DCGM_FI_DEV_GPU_UTIL"]
    assert [(sample.labels.get("pod", ""), sample.value) for sample in used] == [
        ("", 55.0), ("tenant-0", 50.0), ("tenant-1", 0.0), ("tenant-2", 0.0),
    ]  # fmt: skip
    assert ["pod_uid" in sample.labels for sample in used] == [False, True, True, True]


def test_renamed_fields_have_other_units(make: Make) -> None:
    machine = make(nvidia.KIND, H100)
    machine.set(gpu_active="0.5")
    machine.after(100)
    old = machine.values("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu")["0"]
    machine.set(exporter_variant="renamed")
    assert machine.values("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "gpu")["0"] == pytest.approx(old / 1000)
    assert machine.values("DCGM_FI_DEV_GPU_UTIL_RATIO", "gpu")["0"] == pytest.approx(0.55)
    assert not machine.values("DCGM_FI_DEV_GPU_UTIL")


def test_labels_of_amd_gpus_are_those_that_the_exporter_always_sets(make: Make) -> None:
    machine = make(amd.KIND, MI300X)
    assert labels(machine, "gpu_gfx_activity") == sorted(
        ["gpu_id", "card_model", "gpu_partition_id", "gpu_compute_partition_type", "gpu_memory_partition_type"]
        + ["deployment_mode", "serial_number", "pod", "namespace", "container", "job_id", "job_user", "job_partition"]
        + ["hostname"]
    )


def test_partitions_of_an_amd_gpu_report_0_or_nothing(make: Make) -> None:
    machine = make(amd.KIND, MI300X)
    machine.set(slices="cpx", gpu_active="0.8")
    machine.after(10)
    assert machine.values("gpu_gfx_activity", "gpu_partition_id") == {"0": 80.0} | {str(n): 0.0 for n in range(1, 8)}
    assert machine.values("gpu_package_power", "gpu_partition_id").keys() == {str(n) for n in range(8)}
    assert machine.values("gpu_energy_consumed", "gpu_partition_id").keys() == {"0"}
    assert set(machine.values("gpu_total_vram", "gpu_partition_id").values()) == {24574.0}
    machine.set(exporter_variant="suppressed,prefix")
    assert machine.values("amd_gpu_gfx_activity", "gpu_partition_id") == {"0": 80.0}
    machine.set(exporter_variant="guest", slices="spx")
    machine.after(10)
    assert not machine.values("gpu_package_power")
    assert machine.values("gpu_gfx_activity", "serial_number") == {"": 80.0}


def test_series_of_neuron_cores_exist_only_while_a_runtime_runs(make: Make) -> None:
    machine = make(neuron.KIND, INF2)
    names = {sample.name for sample in machine.after(5).page}
    assert names >= {"system_memory_used_bytes", "hardware_ecc_events_total", "instance_info", "neuron_hardware_info"}
    assert not any(name.startswith(("neuroncore_", "execution_", "neuron_runtime_")) for name in names)
    machine.set(gpu_active="0.25")
    machine.after(5)
    assert machine.values("neuroncore_utilization_ratio", "neuroncore") == dict.fromkeys("0123", 0.25)
    (tag,) = machine.values("neuroncore_utilization_ratio", "runtime_tag")
    done = machine.values("execution_status_total", "status_type")["completed"]
    assert done > 0
    machine.set(exporter_reset="")
    machine.set(gpu_active="0")
    machine.after(5)
    assert machine.values("execution_status_total", "status_type")["completed"] == 0
    (other,) = machine.values("neuroncore_utilization_ratio", "runtime_tag")
    assert other != tag
    machine.clear("gpu_active")
    machine.after(5)
    assert not machine.values("neuroncore_utilization_ratio")


def test_series_of_tpu_chips_with_a_container_exist_only_while_it_holds_them(make: Make) -> None:
    machine = make(gke_tpu.KIND, TPU)
    assert not machine.after(5).values("duty_cycle")
    assert set(machine.values("duty_cycle_node", "accelerator_id").values()) == {0.0}
    machine.set(gpu_active="0.3,0")
    machine.after(5)
    assert machine.values("duty_cycle", "accelerator_id") == {"n-4-0": 30.0, "n-4-1": 0.0, "n-4-2": 0.0, "n-4-3": 0.0}
    assert labels(machine, "duty_cycle") == [
        "accelerator_id", "container", "make", "model", "namespace", "pod", "tpu_topology",
    ]  # fmt: skip


@contextmanager
def ask_libtpu(machine: Machine) -> Iterator[Callable[[str], dict[int, float]]]:
    """Yield a function that asks the service for a metric, as a client with Google's libraries does."""
    service, port = libtpu.make_service(machine.simulator, ("127.0.0.1", 0))
    service.start()
    types = libtpu.message_types()
    untyped: Any = grpc
    with untyped.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric",
            request_serializer=types["MetricRequest"].SerializeToString,
            response_deserializer=types["MetricResponse"].FromString,
        )

        def ask(name: str) -> dict[int, float]:
            response = call(types["MetricRequest"](metric_name=name), timeout=10)
            return {
                one.attribute.value.int_attr: getattr(one.gauge, one.gauge.WhichOneof("value"))
                for one in response.metric.metrics
            }

        yield ask
    service.stop(None)


def test_libtpu_serves_the_duty_cycle_of_chips_and_the_memory_of_cores(make: Make) -> None:
    machine = make(libtpu.KIND, TPU)
    machine.set(gpu_active="0.3,0")
    machine.after(5)
    with ask_libtpu(machine) as ask:
        assert ask("tpu.runtime.tensorcore.dutycycle.percent") == {0: 30.0, 1: 0.0, 2: 0.0, 3: 0.0}
        assert ask("tpu.runtime.hbm.memory.total.bytes") == dict.fromkeys(range(4), 16384 * 2**20)
        assert ask("tpu.runtime.tensorcore.idle_duration.seconds") == {0: 0.0, 1: 5.0, 2: 5.0, 3: 5.0}
        machine.set(exporter_variant="no-idle-clock")
        with pytest.raises(grpc.RpcError, match="unsupported metric"):
            ask("tpu.runtime.tensorcore.idle_duration.seconds")
        machine.set(exporter="")
        with pytest.raises(grpc.RpcError, match="not available"):
            ask("tpu.runtime.tensorcore.dutycycle.percent")


def judged(machine: Machine, kind: str, seconds: float = 600, step: float = 30) -> Mapping[UnitKey, Any]:
    """What our contract proves with pages of this machine."""
    pages: list[TimedReading] = []
    for number in range(int(seconds / step) + 1):
        machine.after(step)
        reading = read(CONTRACTS[kind], machine.page)
        pages.append(TimedReading(at=timedelta(seconds=number * step), reading=reading))
    return judge(CONTRACTS[kind], pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Faults, and what is proved about each unit in order."""

    kind: ExporterKind
    hardware: Hardware
    faults: Mapping[str, str]
    proved: tuple[ProvedActivity, ...]
    codes: frozenset[UnknownCode] = frozenset()
    """Codes of the units that are unknown."""


CASES: Final = {
    "GPUs at rest": Case(
        kind=nvidia.KIND, hardware=H100, faults={"gpu_active": "0"}, proved=(IDLE, IDLE)
    ),
    "one GPU works": Case(
        kind=nvidia.KIND, hardware=H100, faults={"gpu_active": "0.3,0"}, proved=(BUSY, IDLE)
    ),
    "three tenants on instances, one idle": Case(
        kind=nvidia.KIND, hardware=H100,
        faults={"slices": "3g.40gb,2g.20gb,1g.10gb", "gpu_active": "0.9,0.4,0", "gpus": "1",
                "exporter_variant": "pods"},
        proved=(BUSY, BUSY, IDLE),
    ),
    "a shared GPU": Case(
        kind=nvidia.KIND, hardware=H100, faults={"slices": "shared:3", "gpu_active": "0", "gpus": "1"},
        proved=(UNKNOWN,), codes=frozenset({UnknownCode.SHARED}),
    ),
    "a GPU without profiling": Case(
        kind=nvidia.KIND, hardware=H100, faults={"gpu_active": "0", "exporter_variant": "no-profiling", "gpus": "1"},
        proved=(UNKNOWN,), codes=frozenset({UnknownCode.NO_PROFILING}),
    ),
    "renamed fields": Case(
        kind=nvidia.KIND, hardware=H100, faults={"gpu_active": "0", "exporter_variant": "renamed,hostname"},
        proved=(IDLE, IDLE),
    ),
    "blank values": Case(
        kind=nvidia.KIND, hardware=H100, faults={"gpu_active": "0", "exporter-blank": "", "gpus": "1"},
        proved=(UNKNOWN,), codes=frozenset({UnknownCode.BLANK, UnknownCode.MISSING_SERIES}),
    ),
    "a frozen page": Case(
        kind=nvidia.KIND, hardware=H100, faults={"gpu_active": "0", "exporter-frozen": "", "gpus": "1"},
        proved=(UNKNOWN,), codes=frozenset({UnknownCode.REPEATED}),
    ),
    "an AMD GPU at rest": Case(kind=amd.KIND, hardware=MI300X, faults={"gpu_active": "0"}, proved=(IDLE,)),
    "an AMD GPU with a prefix works": Case(
        kind=amd.KIND, hardware=MI300X, faults={"gpu_active": "0.2", "exporter_variant": "prefix"}, proved=(BUSY,)
    ),
    "partitions of an idle AMD GPU": Case(
        kind=amd.KIND, hardware=MI300X, faults={"gpu_active": "0", "slices": "cpx"}, proved=(UNKNOWN,) * 8,
        codes=frozenset({UnknownCode.PARTITION}),
    ),
    "an AMD GPU without energy": Case(
        kind=amd.KIND, hardware=MI300X, faults={"gpu_active": "0", "exporter_variant": "guest"}, proved=(UNKNOWN,),
        codes=frozenset({UnknownCode.MISSING_SERIES}),
    ),
    "blank values of an AMD GPU": Case(
        kind=amd.KIND, hardware=MI300X, faults={"gpu_active": "0", "exporter-blank": ""}, proved=(UNKNOWN,),
        codes=frozenset({UnknownCode.BLANK, UnknownCode.MISSING_SERIES}),
    ),
    "Neuron cores at rest": Case(
        kind=neuron.KIND, hardware=INF2, faults={"gpu_active": "0"}, proved=(IDLE,) * 4
    ),
    "one Neuron core works": Case(
        kind=neuron.KIND, hardware=INF2, faults={"gpu_active": "0.5,0"}, proved=(BUSY, *(UNKNOWN,) * 3),
        codes=frozenset({UnknownCode.SHARED}),  # executions are of the host
    ),
    "no Neuron runtime": Case(kind=neuron.KIND, hardware=INF2, faults={}, proved=()),
    "an ended Neuron runtime": Case(
        kind=neuron.KIND, hardware=INF2, faults={"gpu_active": "0", "exporter_variant": "ended-runtime"},
        proved=(UNKNOWN,) * 4, codes=frozenset({UnknownCode.KEPT_VALUE}),
    ),
    "Neuron cores without values": Case(
        kind=neuron.KIND, hardware=INF2, faults={"gpu_active": "0", "exporter-blank": ""}, proved=()
    ),
    "TPU chips at rest": Case(kind=gke_tpu.KIND, hardware=TPU, faults={"gpu_active": "0"}, proved=(IDLE,) * 4),
    "a TPU without a program": Case(
        kind=gke_tpu.KIND, hardware=TPU, faults={}, proved=(UNKNOWN,) * 4, codes=frozenset({UnknownCode.NO_WORKLOAD})
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_contracts_prove_work_and_idleness_and_nothing_else(make: Make, case: Case) -> None:
    machine = make(case.kind, case.hardware)
    machine.set(**case.faults)
    found = judged(machine, case.kind.kind)
    assert tuple(one.activity for one in found.values()) == case.proved
    codes = {code for one in found.values() for code in one.unknown}
    assert codes == case.codes


@pytest.mark.parametrize("factor", ["1000", "0.001"])
@pytest.mark.parametrize(
    ("kind", "hardware"), [pytest.param(nvidia.KIND, H100, id="nvidia"), pytest.param(amd.KIND, MI300X, id="amd")]
)
def test_a_wrong_unit_of_energy_contradicts_the_power(
    make: Make, kind: ExporterKind, hardware: Hardware, factor: str
) -> None:
    machine = make(kind, hardware)
    machine.set(gpu_active="0.4")

    def step() -> tuple[str, ...]:
        pages = [read(CONTRACTS[kind.kind], machine.after(60).page) for _ in range(2)]
        before, after = (TimedReading(at=timedelta(minutes=n), reading=page) for n, page in enumerate(pages))
        return contradicted_units(before, after)

    assert not step()
    machine.set(exporter_unit=factor)
    assert len(step()) == hardware.count


def test_counters_restart_once_when_the_driver_is_loaded_again(make: Make) -> None:
    machine = make(nvidia.KIND, H100)
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    before = machine.after(1000).values(name, "gpu")["0"]
    machine.set(exporter_reset="")
    restarted = machine.after(10).values(name, "gpu")["0"]
    assert restarted < before
    assert machine.after(10).values(name, "gpu")["0"] > restarted


def test_an_exporter_of_another_kind_does_not_start(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the real one, which finds no device."""
    del make
    monkeypatch.setattr("sys.argv", ["neuron-monitor", "--port", "0", "--machine-type", "g6.xlarge"])
    assert neuron.main() == 1
    assert "g6.xlarge: has no neuron device" in capsys.readouterr().err


def test_every_machine_type_with_accelerators_has_an_exporter() -> None:
    """Also types with devices whose figures are not published."""
    for machine in catalogue.machines():
        hardware = hardware_of(machine.name, "i-1")
        kind = {"nvidia": nvidia.KIND, "amd": amd.KIND, "neuron": neuron.KIND, "tpu": libtpu.KIND}[hardware.kind]
        assert kind.units(hardware, ExporterFaults()), machine.name
