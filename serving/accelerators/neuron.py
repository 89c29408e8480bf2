"""The contract of AWS Inferentia and Trainium: neuron-monitor with its Prometheus script.

Series of NeuronCores exist only while a Neuron runtime holds them, and only for the cores of a runtime. When one of
several runtimes ends, its gauges keep their last value until none runs: so activity alone does not prove work. The
counter of executions has no label of a core: it shows work of the host, and which runtime's gauges are alive. The
script's default port is the port of vLLM. Label `runtime_tag` is the process id unless `NEURON_PROCESS_TAG` is set.
"""

from datetime import timedelta
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import (
    AcceleratorContract,
    AcceleratorEvidenceRule,
    AcceleratorSeries,
    CoresPerDevice,
    Exporter,
    Scope,
    SeriesUnit,
    UnitIdentity,
    UnknownCode,
)
from serving.accelerators.launch import AcceleratorLaunch, DeviceAccess, ExporterContainer
from serving.exposition import Sample

_NAME: Final = "neuron-monitor-prometheus"
_EVERY: Final = timedelta(seconds=5)
"""Default period of neuron-monitor."""
_MEMORY: Final = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")


def _defect(sample: Sample) -> str:
    event = sample.labels.get("event_type", "")
    wrong = sample.name == "hardware_ecc_events_total" and event.endswith("_uncorrected") and sample.value > 0
    return f"{event} ({sample.value:.0f})" if wrong else ""


_LAUNCH: Final = AcceleratorLaunch(
    access=DeviceAccess(files=("/dev/neuron[0-9]*",)),
    exporter=ExporterContainer(
        title="Neuron exporter",
        # k8s-neuron-monitor-daemonset.yml of the SDK: privileged, with this entry point
        options=("--privileged", "--memory=256m", "--env=GOMEMLIMIT=160MiB", "--entrypoint=/opt/bin/entrypoint.sh"),
        arguments=lambda _host, port: ("--port", str(port)),
        metadata=True,  # labels of the instance, among them its type
    ),
    no_driver="use a Neuron machine image of AWS, or install the package aws-neuronx-dkms",
    defect=_defect,
)

CONTRACT: Final = AcceleratorContract(
    kind="neuron",
    title="AWS Neuron device",
    exporters=(
        Exporter(name=_NAME, port=8000, note="set another port: vLLM has the same one; the Neuron SDK 2.29 was read"),
    ),
    series=(
        AcceleratorSeries(
            name="neuroncore_utilization_ratio",
            measures=metrics.ACTIVE,
            unit=SeriesUnit.RATIO,
            exporter=_NAME,
            every=_EVERY,
            kept_at_rest=True,
            absent=UnknownCode.NO_WORKLOAD,
        ),
        AcceleratorSeries(
            name="execution_status_total",
            measures=metrics.EXECUTIONS,
            unit=SeriesUnit.EXECUTIONS,
            exporter=_NAME,
            scope=Scope.HOST,
            parts=("runtime_tag", "status_type"),
            every=_EVERY,
            absent=UnknownCode.NO_WORKLOAD,
        ),
        *(
            AcceleratorSeries(
                name=f"neuroncore_memory_usage_{name}",
                measures=metrics.MEMORY_USED,
                unit=SeriesUnit.BYTES,
                exporter=_NAME,
                parts=("runtime_tag",),
                adds=True,
                every=_EVERY,
                kept_at_rest=True,
                absent=UnknownCode.NO_WORKLOAD,
            )
            for name in _MEMORY
        ),
        AcceleratorSeries(
            name="system_memory_used_bytes",
            measures=metrics.HOST_MEMORY_USED,
            unit=SeriesUnit.BYTES,
            exporter=_NAME,
            scope=Scope.HOST,
            every=_EVERY,
        ),
        AcceleratorSeries(
            name="hardware_ecc_events_total",
            measures=metrics.HEALTHY,
            unit=SeriesUnit.OK_IS_0,
            exporter=_NAME,
            scope=Scope.DEVICE,
            where={"event_type": "(?:mem|sram)_ecc_uncorrected"},
            every=_EVERY,
        ),
    ),
    identity=UnitIdentity(
        device=("neuron_device_index",),
        slice=("neuroncore",),
        copies=("memory_location", "instance_name", "subnet_id", "availability_zone", "region"),
        cores=CoresPerDevice(
            series="neuron_hardware_info",
            label="neuroncore_per_device_count",
            # Trainium2 numbers logical cores, of one or two physical ones: the page does not show which
            where={"instance_type": r"(?:inf1|inf2|trn1|trn1n)\..+"},
        ),
    ),
    evidence=AcceleratorEvidenceRule(
        work=(metrics.EXECUTIONS,),
        idle=(metrics.ACTIVE, metrics.EXECUTIONS),
        program="runtime_tag",
        # the script repeats its last numbers when neuron-monitor stops
        pulse=metrics.HOST_MEMORY_USED,
        measurements=2,
        window=timedelta(seconds=60),
    ),
    launch=_LAUNCH,
    sources=(
        "aws-neuron-sdk 2.29: tools/neuron-sys-tools/neuron-monitor-user-guide (groups of metrics, periods)",
        "neuron-monitor-prometheus.py of the Neuron tools: process_data clears gauges only when no runtime runs",
        "aws-neuron-sdk: src/k8/k8s-neuron-monitor-daemonset.yml; containers/tutorials/build-run-neuron-container "
        "(devices of a container)",
        "public recorded page of an inf1.xlarge with one runtime; page of a trn1n.32xlarge in tests of Amazon's "
        "CloudWatch agent",
    ),
)
