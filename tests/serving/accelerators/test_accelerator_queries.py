"""Relabelling and conversion at the metrics store give the values that the reader gives."""

import json
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.contract import FACTORS, HEALTHY_AT, SeriesUnit
from serving.accelerators.queries import (
    DEVICE_LABEL,
    SLICE_LABEL,
    TENANT_LABEL,
    UNIT_LABEL,
    VETO,
    activity,
    memory,
    scaled,
)
from serving.accelerators.relabelling import relabelling
from serving.engines.reading import EVIDENCE
from serving.exposition import parse
from tests.fixtures.relabelling import relabel

with_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")
MIG: Final = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",GPU_I_ID="3",device="nvidia0",pod="p"} 0.5\n'
PAGES: Final = {
    "slice": (MIG, "gpufleet_accelerator_active_ratio", "GPU-a", "3", 0.5, None),
    "shared": (
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-a",vgpu="1"} 0\n',
        "gpufleet_accelerator_active_ratio", "GPU-a", None, 0.0, VETO,
    ),
    "coarse": (
        'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a"} 40\n', "gpufleet_accelerator_active_ratio", "GPU-a", None, 0.4, VETO,
    ),
    "energy": (
        'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu_uuid="GPU-a",gpu="0"} 9000\n',
        "gpufleet_accelerator_energy_joules_total", "GPU-a", None, 9.0, None,
    ),
    "prefix": (
        'amd_gpu_energy_consumed{serial_number="S",gpu_id="0",gpu_partition_id="0",gpu_compute_partition_type="SPX"} '
        "3e6\n",
        "gpufleet_accelerator_energy_joules_total", "S", None, 3.0, None,
    ),
    "partition": (
        'gpu_gfx_activity{serial_number="S",gpu_id="9",gpu_partition_id="1",gpu_compute_partition_type="CPX"} 0\n',
        "gpufleet_accelerator_active_ratio", "S", "1/9", 0.0, VETO,
    ),
    "guest": (
        'gpu_gfx_activity{serial_number="",gpu_id="9"} 50\n',
        "gpufleet_accelerator_active_ratio", "9", None, 0.5, None,
    ),
    "health": (
        'hardware_ecc_events_total{event_type="sram_ecc_uncorrected",neuron_device_index="1"} 2\n',
        "gpufleet_accelerator_healthy", "1", None, 0.0, None,
    ),
    "other events": (
        'hardware_ecc_events_total{event_type="mem_ecc_corrected",neuron_device_index="1"} 2\n',
        "hardware_ecc_events_total", None, None, None, None,
    ),
    "TPU": (
        'duty_cycle{make="cloud-tpu",accelerator_id="7-0"} 25\n',
        "gpufleet_accelerator_active_ratio", "7-0", None, 0.25, None,
    ),
    "a database": ("memory_used 12\n", "memory_used", None, None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_relabelling_names_the_metric_the_unit_and_what_its_0_proves(name: str) -> None:
    text, metric, device, part, value, evidence = PAGES[name]
    (sample,) = parse(text)
    labels = relabel(sample, relabelling(CONTRACTS.values()))
    assert labels["__name__"] == metric
    assert labels.get(DEVICE_LABEL) == device
    assert labels.get(SLICE_LABEL) == part
    assert labels.get(EVIDENCE) == evidence
    if value is not None:
        assert SeriesUnit(labels[UNIT_LABEL]).convert(sample.value) == pytest.approx(value)


@pytest.mark.parametrize(
    ("labels", "tenant"),
    [
        pytest.param('namespace="ns",pod="p"', "ns/p", id="labels of the page"),
        pytest.param(
            'namespace="gpu-operator",pod="exporter",exported_namespace="ns",exported_pod="p"', "ns/p", id="renamed"
        ),
        pytest.param('namespace="gpu-operator",exported_namespace="ns",pod="p"', "ns/p", id="one of the two renamed"),
        pytest.param('namespace="ns",pod="exporter",exported_pod="p"', "ns/p", id="the other one renamed"),
        pytest.param('container="c"', None, id="no tenant"),
    ],
)
def test_the_tenant_is_the_program_that_the_exporter_names(labels: str, tenant: str | None) -> None:
    (sample,) = parse(f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="a",{labels}}} 0\n')
    assert relabel(sample, relabelling(CONTRACTS.values())).get(TENANT_LABEL) == tenant
    assert "/".join(CONTRACTS["nvidia"].identity.tenant_of(sample.labels)) == (tenant or "/")


def test_each_name_has_one_canonical_name_in_all_contracts() -> None:
    names = [series.name for contract in CONTRACTS.values() for series in contract.series]
    assert len(names) == len(set(names))


def test_each_series_of_each_contract_is_renamed() -> None:
    rules = relabelling(CONTRACTS.values())
    renamed = {rule["regex"].partition(";")[0] for rule in rules if rule["target_label"] == "__name__"}
    for contract in CONTRACTS.values():
        for series in contract.series:
            for prefix in contract.prefixes:
                assert any(re.fullmatch(regex, prefix + series.name) for regex in renamed)


def test_a_query_converts_each_unit_of_the_metric() -> None:
    assert scaled(metrics.ACTIVE, 'environment="prod"') == (
        '(gpufleet_accelerator_active_ratio{environment="prod",unit="ratio"} or '
        'gpufleet_accelerator_active_ratio{environment="prod",unit="percent"} * 0.01)'
    )
    assert scaled(metrics.ENERGY, over=("increase", timedelta(minutes=5))) == (
        '(increase(gpufleet_accelerator_energy_joules_total{unit="joules"}[300s]) or '
        'increase(gpufleet_accelerator_energy_joules_total{unit="millijoules"}[300s]) * 0.001 or '
        'increase(gpufleet_accelerator_energy_joules_total{unit="microjoules"}[300s]) * 1e-06)'
    )


def test_health_is_compared_with_the_value_that_means_healthy() -> None:
    assert scaled(metrics.HEALTHY) == (
        '((gpufleet_accelerator_healthy{unit="1_is_healthy"} == bool 1) or '
        '(gpufleet_accelerator_healthy{unit="0_is_healthy"} == bool 0))'
    )
    with pytest.raises(ValueError, match="needs a subquery"):
        scaled(metrics.HEALTHY, over=("min_over_time", timedelta(minutes=5)))


def test_each_unit_is_converted_in_queries() -> None:
    covered = {unit for metric in metrics.ALL.values() for unit in SeriesUnit if f'unit="{unit}"' in scaled(metric)}
    assert covered == set(SeriesUnit) == FACTORS.keys() | HEALTHY_AT.keys()


def test_memory_in_mebibytes_keeps_its_exact_factor() -> None:
    (factor,) = re.findall(r'unit="mebibytes"} \* (\S+)\)', scaled(metrics.MEMORY_USED))
    assert float(factor) == 2**20


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_prometheus_accepts_the_relabelling(tmp_path: Path) -> None:
    job = {"job_name": "accelerators", "metric_relabel_configs": relabelling(CONTRACTS.values())}
    file = tmp_path / "prometheus.yml"
    file.write_text(json.dumps({"scrape_configs": [job]}))
    promtool("check", "config", "--syntax-only", file)


SERIES: Final = {
    'active_ratio{unit="ratio",accelerator_device="a"}': "0.5x5",
    'active_ratio{unit="percent",accelerator_device="b"}': "25x5",
    'energy_joules_total{unit="millijoules",accelerator_device="a"}': "0+60000x5",
    'energy_joules_total{unit="microjoules",accelerator_device="b"}': "0+60000000x5",
    'memory_used_bytes{unit="mebibytes",accelerator_device="a"}': "1x5",
    'memory_used_bytes{unit="bytes",accelerator_device="b"}': "7x5",
    'healthy{unit="0_is_healthy",accelerator_device="a"}': "2x5",
    'healthy{unit="1_is_healthy",accelerator_device="b"}': "1x5",
}
"""Values of two devices at the metrics store, in the units of their exporters."""


@with_promtool
def test_prometheus_converts_each_device_by_its_own_unit(tmp_path: Path) -> None:
    expected = (
        (scaled(metrics.ACTIVE), 0.5, 0.25),
        (scaled(metrics.ENERGY, over=("rate", timedelta(minutes=4))), 1, 1),
        (scaled(metrics.MEMORY_USED), 2**20, 7),
        (scaled(metrics.HEALTHY), 0, 1),
    )
    checks = [
        {
            "expr": f"sum by (accelerator_device) {query}",
            "eval_time": "5m",
            "exp_samples": [
                {"labels": '{accelerator_device="a"}', "value": first},
                {"labels": '{accelerator_device="b"}', "value": second},
            ],
        }
        for query, first, second in expected
    ]
    series = [{"series": f"gpufleet_accelerator_{name}", "values": values} for name, values in SERIES.items()]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]}))
    promtool("test", "rules", file)


RATIO: Final = 'active_ratio{unit="ratio",accelerator="nvidia",accelerator_device='
UNITS: Final = {
    f'{RATIO}"a",accelerator_slice="1",pod="p"}}': "0.5x5",
    f'{RATIO}"a",accelerator_slice="1",pod="q"}}': "0.5x5",
    f'{RATIO}"a",accelerator_slice="2"}}': "0x5",
    f'{RATIO}"b"}}': "0x5",
    f'{RATIO}"b",evidence="veto",part="u"}}': "0.9x5",
    f'{RATIO}"c",evidence="veto"}}': "0.3x5",
    f'{RATIO}"d"}}': "9e18x5",
    'active_ratio{unit="percent",accelerator="amd",accelerator_device="e",evidence="veto",'
    'accelerator_doubt="partition_not_measured"}': "0x5",
    'active_ratio{unit="percent",accelerator="amd",accelerator_device="f"}': "0.87x5",
    'memory_used_bytes{unit="bytes",accelerator="tpu",accelerator_device="a",accelerator_part="0"}': "7x5",
    'memory_used_bytes{unit="bytes",accelerator="tpu",accelerator_device="a",accelerator_part="1"}': "8x5",
    'memory_used_bytes{unit="mebibytes",accelerator="nvidia",accelerator_device="b",pod="p"}': "1x5",
    'memory_used_bytes{unit="mebibytes",accelerator="nvidia",accelerator_device="b",pod="q"}': "1x5",
}


@with_promtool
def test_prometheus_counts_copies_of_a_unit_once_and_leaves_out_what_is_not_measured(tmp_path: Path) -> None:
    nvidia = '{accelerator="nvidia",accelerator_device='
    expected = {
        activity("environment"): [
            (f'{nvidia}"a",accelerator_slice="1"}}', 0.5),
            (f'{nvidia}"a",accelerator_slice="2"}}', 0),
            (f'{nvidia}"b"}}', 0),
            (f'{nvidia}"c"}}', 0.3),
        ],
        memory(metrics.MEMORY_USED, "environment"): [
            ('{accelerator="tpu",accelerator_device="a"}', 15),
            (f'{nvidia}"b"}}', 2**20),
        ],
    }
    checks = [
        {"expr": query, "eval_time": "5m", "exp_samples": [{"labels": one, "value": value} for one, value in found]}
        for query, found in expected.items()
    ]
    series = [{"series": f"gpufleet_accelerator_{name}", "values": values} for name, values in UNITS.items()]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]}))
    promtool("test", "rules", file)
