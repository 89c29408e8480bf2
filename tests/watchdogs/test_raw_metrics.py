"""A user's own Prometheus: metrics under the exporters' names are found, and the remedy is printed."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from gpufleet.clouds.prometheus import Prometheus
from tests.fixtures.prometheus import running
from tests.fixtures.watchdogs.plain import START
from watchdogs.raw_metrics import RawMetricsCode, find

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus"),
]
PAGE: Final = (
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{job="dcgm",gpu="0",UUID="GPU-1"} 0.5',
    'DCGM_FI_DEV_GPU_UTIL{job="dcgm",gpu="0",UUID="GPU-1"} 50',
    'amd_gpu_gfx_activity{job="accelerator",instance_id="i-2",serial_number="S"} 0',
    'duty_cycle{job="tpu",make="cloud-tpu",accelerator_id="7-0"} 0',
    'duty_cycle{job="pumps",make="acme"} 0',
    'gpufleet_accelerator_active_ratio{job="gpus",accelerator="nvidia",instance_id="i-3",unit="ratio"} 0',
    'gpufleet_accelerator_active_ratio{job="accelerator",accelerator="nvidia",unit="ratio"} 0',
    'gpufleet_accelerator_active_ratio{job="accelerator",accelerator="tpu",instance_id="i-4",unit="percent"} 0',
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    times = [f"{START.timestamp() - ago:.0f}" for ago in (60, 30, 0)]
    lines = [f"{series} {at}" for series in PAGE for at in times]
    (folder / "pages.txt").write_text("\n".join([*lines, "# EOF", ""]))
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "pages.txt"), str(folder / "data")]
    subprocess.run(made, check=True, capture_output=True, timeout=180)
    (folder / "prometheus.yml").write_text("{}")
    with running(folder, "", "--storage.tsdb.retention.time=100y") as url, closing(Prometheus(url)) as found:
        yield found


def test_metrics_that_prove_nothing_are_found_once_per_job_and_cause(store: Prometheus) -> None:
    found = find(store, START)
    assert [(one.code, one.job, one.kind) for one in found] == [
        (RawMetricsCode.NOT_RELABELLED, "accelerator", "amd"),
        (RawMetricsCode.NOT_RELABELLED, "dcgm", "nvidia"),
        (RawMetricsCode.NOT_RELABELLED, "tpu", "tpu"),
        (RawMetricsCode.OTHER_JOB, "gpus", "nvidia"),
        (RawMetricsCode.NO_INSTANCE_ID, "accelerator", "nvidia"),
    ]
    assert found[1].sentence == (
        "job 'dcgm' has DCGM_FI_DEV_GPU_UTIL under the exporter's own name, which proves nothing:"
        " `gpufleet accelerators relabelling nvidia` prints its metric_relabel_configs"
    )
    assert "instance_id" in found[-1].sentence and "'accelerator'" in found[3].sentence
