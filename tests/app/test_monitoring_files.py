"""The files of a fleet's Prometheus, Alertmanager and Grafana."""

import json
from pathlib import Path

import pytest
import yaml

from app.fleets import load
from app.monitoring_files import Addresses, write
from tests.fixtures.small_fleet import document

ADDRESSES = Addresses(
    console="127.0.0.1:9600",
    daemon="127.0.0.1:9470",
    alertmanager="127.0.0.1:9093",
    routers=("127.0.0.1:8404",),
    token_file=Path("/etc/gpu-fleet/console.token"),
)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_change_of_a_pool_s_engine_keeps_the_metrics_of_the_previous_one(tmp_path: Path, kind: str) -> None:
    """Instances that start before the change run the previous engine until they are replaced."""
    path = document(tmp_path)
    fleet = json.loads(path.read_text())
    for pool in fleet["pools"]:
        pool["engine"] = kind
    path.write_text(json.dumps(fleet))
    (found,) = load([str(path)])
    write(found, tmp_path / "monitoring", ADDRESSES)
    jobs = yaml.safe_load((tmp_path / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    (rules,) = (job["metric_relabel_configs"] for job in jobs if job["job_name"] == "engine")
    renamed = {rule["regex"].partition(";")[0] for rule in rules if rule.get("target_label") == "__name__"}
    assert renamed >= {
        "vllm[:_]generation_tokens_total",
        "sglang[:_]num_running_reqs",
        "trtllm_generation_tokens_total",
    }
