"""Pages of exporters, relabelled as Prometheus does, give the energy of each device once."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from localcloud.exporters import amd, gke_tpu, nvidia
from localcloud.exporters.frame import ExporterKind, Simulator
from localcloud.exporters.metadata import Hardware

from app.cost_sources import ENERGY_NAMES
from gpufleet.costs.energy_samples import energy_readings
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slots import ActivitySample
from gpufleet.ledger.energy import EnergyReading, use_of
from serving.accelerators import CONTRACTS
from serving.accelerators.relabelling import relabelling
from tests.fixtures.relabelling import relabelled

T0 = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
RULES = list(relabelling(CONTRACTS.values()))
TARGET = {"instance_id": "i-1", "job": "accelerators", "instance": "10.0.0.1:9400"}


def dcgm(joules: float) -> str:
    """A GPU with three MIG instances, two of them with a pod, and a whole GPU; both use the same power."""
    slices = (("1", 'pod="a",'), ("2", 'pod="b",'), ("3", ""))
    of_slices = "".join(
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="GPU-a",GPU_I_ID="{number}",GPU_I_PROFILE="1g.10gb",'
        f'{pod}Hostname="h"}} {joules * 1000}\n'
        for number, pod in slices
    )
    return of_slices + f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="1",UUID="GPU-b"}} {joules * 1000}\n'


def renamed(joules: float) -> str:
    """The names of DCGM 4.7, in joules, next to the old ones."""
    return dcgm(joules) + "".join(
        f'DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{{UUID="{device}"}} {joules}\n' for device in ("GPU-a", "GPU-b")
    )


def instinct(joules: float) -> str:
    """Two GPUs, one of them in partitions: its energy is that of partition 0, others report 0."""
    line = 'gpu_energy_consumed{{serial_number="{}",gpu_id="{}",gpu_partition_id="{}",{}}} {}\n'
    parts = (("S1", 0, 0, "CPX", joules * 1e6), ("S1", 1, 1, "CPX", 0), ("S2", 8, 0, "SPX", joules * 1e6))
    return "".join(
        line.format(serial, gpu, part, f'gpu_compute_partition_type="{mode}"', value)
        for serial, gpu, part, mode, value in parts
    )


def without_counter(joules: float) -> str:
    """A TPU and a Neuron device."""
    del joules
    return (
        'duty_cycle{make="cloud-tpu",accelerator_id="7-0"} 25\n'
        'neuroncore_utilization_ratio{neuroncore="0",neuron_device_index="0"} 0.5\n'
    )


def readings_of(pages: Iterable[str]) -> tuple[list[EnergyReading], list[str]]:
    """The readings of one page each minute, and the notes."""
    samples: dict[tuple[tuple[str, str], ...], list[ActivitySample]] = defaultdict(list)
    for minute, page in enumerate(pages):
        for one in relabelled(page, RULES):
            labels = {"__name__": one.name, **{name: value for name, value in one.labels.items() if value}, **TARGET}
            samples[tuple(sorted(labels.items()))].append(ActivitySample(T0 + timedelta(minutes=minute), one.value))
    return energy_readings("f", ENERGY_NAMES, [RawSeries(dict(labels), of) for labels, of in samples.items()])


@pytest.mark.parametrize(
    ("page", "devices"),
    [(dcgm, 2), (renamed, 2), (instinct, 2), (without_counter, 0)],
    ids=lambda value: str(value)[:20],
)
def test_each_device_counts_once(page: Callable[[float], str], devices: int) -> None:
    readings, notes = readings_of(page(1_000_000 + 300 * 60 * minute) for minute in range(61))
    use = use_of(readings, {}, T0, T0 + timedelta(minutes=61))
    assert notes == []
    assert (use.devices, use.millijoules) == (devices, devices * 1_080_000_000)


H100 = Hardware(kind="nvidia", name="H100-80GB", count=2, memory_mib=81920, watts=700, seed="i-1")
MI300X = Hardware(kind="amd", name="MI300X", count=1, memory_mib=196592, watts=750, seed="i-2")
TPU = Hardware(kind="tpu", name="v5e", count=4, memory_mib=16384, watts=200, seed="n-4")


@pytest.mark.parametrize(
    ("kind", "hardware", "faults", "watts"),
    [
        pytest.param(nvidia.KIND, H100, {}, 2 * 126, id="two GPUs at rest"),
        pytest.param(nvidia.KIND, H100, {"slices": "3g.40gb,2g.20gb,1g.10gb"}, 2 * 126, id="MIG instances"),
        pytest.param(nvidia.KIND, H100, {"slices": "shared:3"}, 2 * 126, id="time slices"),
        pytest.param(nvidia.KIND, H100, {"gpus": "1"}, 126, id="one GPU lost"),
        pytest.param(nvidia.KIND, H100, {"exporter-blank": ""}, None, id="blank values"),
        pytest.param(nvidia.KIND, H100, {"exporter-unit": "1000"}, None, id="a thousand times too high"),
        pytest.param(nvidia.KIND, H100, {"exporter-unit": "0.001"}, None, id="a thousand times too low"),
        pytest.param(amd.KIND, MI300X, {}, 135, id="AMD"),
        pytest.param(amd.KIND, MI300X, {"slices": "cpx"}, 135, id="AMD partitions"),
        pytest.param(amd.KIND, MI300X, {"exporter-variant": "guest"}, None, id="AMD guest"),
        pytest.param(amd.KIND, MI300X, {"exporter-unit": "0.001"}, None, id="AMD, a thousand times too low"),
        pytest.param(amd.KIND, MI300X, {"exporter-blank": ""}, None, id="AMD, blank values"),
        pytest.param(gke_tpu.KIND, TPU, {}, None, id="TPU"),
    ],
)
def test_simulated_exporters_are_measured_or_unknown(
    kind: ExporterKind,
    hardware: Hardware,
    faults: Mapping[str, str],
    watts: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localcloud.exporters.engine_work.EngineProbe._page", lambda _self: None)
    monkeypatch.setattr("localcloud.exporters.engine_work._opened_at_gate", lambda _url: 0.0)
    for name, text in faults.items():
        (tmp_path / name).write_text(text)
    simulator = Simulator(kind=kind, hardware=hardware, engine_url="http://127.0.0.1:9", faults=tmp_path)

    def pages() -> Iterator[str]:
        for _ in range(61):
            simulator.sample(60)
            yield simulator.page()

    readings, notes = readings_of(pages())
    use = use_of(readings, {}, T0, T0 + timedelta(minutes=61))
    assert bool(notes) == ("exporter-unit" in faults)
    if watts is None:
        assert use.measured_us == 0
    else:
        assert use.millijoules / 1000 == pytest.approx(watts * 3600, rel=0.001)
