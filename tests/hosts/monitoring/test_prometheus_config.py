"""prometheus.yml: promtool accepts it, and a real Prometheus discovers instances with it."""

import dataclasses
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import httpx
import pytest
import yaml

from app.targets import TargetsFile
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceList, InstanceState
from hosts.monitoring.prometheus import PrometheusSettings, render, targets
from serving import metrics
from tests.fixtures.networks import free_network
from tests.fixtures.prometheus import running

NETWORK = free_network()

PLAIN = PrometheusSettings(cloud=Cloud.AWS, environment="prod")

CLAIM = {"gpu-fleet:pool": "chat", "gpu-fleet:environment": "prod"}
"""Tags of a pool; they make no instance a member of it."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (make setup installs it)"
)


@needs_prometheus
@pytest.mark.parametrize("node_exporter", [False, True], ids=["", "node exporter"])
def test_promtool_accepts_the_configuration(node_exporter: bool, tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(
        render(
            dataclasses.replace(
                PLAIN,
                haproxy=("10.0.0.1:8404",),
                watchdogs=("10.0.0.1:9600",),
                alertmanagers=("10.0.0.1:9093",),
                node_exporter=node_exporter,
            )
        )
    )
    done = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_source_is_a_job_on_its_port() -> None:
    jobs = {
        job["job_name"]: job["relabel_configs"][1]["replacement"]
        for job in yaml.safe_load(render(PLAIN))["scrape_configs"]
    }
    assert jobs == {
        "engine": "$1:8000",
        "accelerator": "$1:9400",
        "node": "$1:9500",
        "haproxy": "$1:8404",
        "router": "$1:8404",
    }


def test_node_exporters_are_discovered_like_other_sources() -> None:
    def jobs(*, wanted: bool) -> dict[str, dict[str, Any]]:
        found = yaml.safe_load(render(dataclasses.replace(PLAIN, node_exporter=wanted)))
        return {job.pop("job_name"): job for job in found["scrape_configs"]}

    without, found = jobs(wanted=False), jobs(wanted=True)
    host = found.pop("host")
    assert found == without, "nothing else changes"
    assert [rule["action"] for rule in host["metric_relabel_configs"]] == ["drop", "keep"]
    own = {"metric_relabel_configs", "sample_limit", "body_size_limit"}
    node = {key: value for key, value in without["node"].items() if key not in own}
    assert json.dumps({k: v for k, v in host.items() if k not in own}) == json.dumps(node).replace("9500", "9100")


@pytest.mark.parametrize(
    ("series", "kept"),
    [
        pytest.param("node_cpu_seconds_total;idle", True, id="idle"),
        pytest.param("node_cpu_seconds_total;iowait", True, id="waiting for a disk"),
        pytest.param("node_cpu_seconds_total;user", False, id="a mode that the others imply"),
        pytest.param("node_cpu_guest_seconds_total;user", False, id="guests"),
        pytest.param("node_memory_MemAvailable_bytes;", True, id="without a mode"),
    ],
)
def test_a_large_machine_s_cpus_do_not_fill_prometheus(series: str, kept: bool) -> None:
    jobs = yaml.safe_load(render(dataclasses.replace(PLAIN, node_exporter=True)))["scrape_configs"]
    ((rule, _),) = [job["metric_relabel_configs"] for job in jobs if job["job_name"] == "host"]
    assert (re.fullmatch(rule["regex"], series) is None) == kept


def test_metrics_of_another_engine_are_renamed() -> None:
    def renames(**more: Any) -> dict[str, Any]:
        jobs = yaml.safe_load(render(dataclasses.replace(PLAIN, **more)))["scrape_configs"]
        return {job["job_name"]: job["metric_relabel_configs"] for job in jobs if "metric_relabel_configs" in job}

    # The filter of names applies after the renaming.
    *rules, keep = renames(engines=("vllm", "lmdeploy"))["engine"]
    assert keep["action"] == "keep"
    renamed = {rule["regex"]: rule["replacement"] for rule in rules if rule["target_label"] == "__name__"}
    assert renamed["lmdeploy[:_]num_requests_running"] == metrics.REQUESTS_RUNNING.name


def test_numbers_without_meaning_by_the_contract_are_marked() -> None:
    jobs = yaml.safe_load(render(dataclasses.replace(PLAIN, engines=("vllm", "trtllm"))))["scrape_configs"]
    (rules,) = (job["metric_relabel_configs"] for job in jobs if job["job_name"] == "engine")
    marked = {rule["regex"] for rule in rules if rule.get("target_label") == "evidence"}
    assert "trtllm_num_requests_running" in marked, "a gauge that keeps its last value"
    assert "trtllm_generation_tokens_total" not in marked
    assert "vllm[:_]num_requests_running" not in marked


def test_routers_are_static_or_in_the_targets_file() -> None:
    def routers(**more: Any) -> dict[str, Any]:
        jobs = yaml.safe_load(render(dataclasses.replace(PLAIN, **more)))["scrape_configs"]
        (job,) = [job for job in jobs if job["job_name"] == "router"]
        assert job["metrics_path"] == "/router/metrics"
        return job

    named = routers(haproxy=("10.0.0.1:8404",))
    assert named["static_configs"][0]["targets"] == ["10.0.0.1:8404"]
    found = json.dumps(routers())
    assert "static_configs" not in found
    assert "router" in found.replace("/router/metrics", "").replace('"job_name": "router"', "")


def test_prometheus_queries_no_cloud() -> None:
    """Its discovery would accept any instance with the tags of a pool, and needs permissions it should not have."""
    jobs = yaml.safe_load(render(dataclasses.replace(PLAIN, node_exporter=True)))["scrape_configs"]
    kinds = {key for job in jobs for key in job if key.endswith("_sd_configs")}
    assert kinds == {"file_sd_configs"}


@needs_prometheus
def test_a_real_prometheus_discovers_the_targets_of_the_feed(tmp_path: Path) -> None:
    at = datetime(2026, 11, 25, tzinfo=UTC)
    running_ = {"cloud": Cloud.AWS, "region": "us-east-1", "zone": "us-east-1a", "state": InstanceState.RUNNING}
    machine: dict[str, Any] = running_ | {"machine_type": "g6.xlarge", "launched_at": at, "environment": "prod"}
    machine["capacity_type"] = CapacityType.SPOT
    instances = [
        Instance(id="i-1", pool="chat", group="chat-a", private_address="127.0.0.1", **machine),
        Instance(id="i-2", tags={"gpu-fleet:role": "router"}, private_address="127.0.0.2", **machine),
        Instance(id="i-3", tags={"gpu-fleet:role": "control"}, private_address="127.0.0.3", **machine),
        Instance(id="i-4", private_address="127.0.0.4", **machine),
        Instance(id="i-5", pool="chat", private_address=None, **machine),
        Instance(id="i-7", tags=CLAIM, private_address="127.0.0.7", **machine),
        Instance(id="i-8", tags=CLAIM, group="dev-chat-a", private_address="127.0.0.8", **machine),
        Instance(id="i-9", tags=CLAIM | {"gpu-fleet:role": "router"}, private_address="127.0.0.9", **machine),
    ]
    stopping = dataclasses.replace(instances[0], id="i-6", private_address="127.0.0.6", state=InstanceState.STOPPING)
    (tmp_path / "prometheus.yml").write_text(render(PLAIN))
    (tmp_path / "targets.json").write_text(json.dumps(targets([*instances, stopping], "prod")))
    with running(tmp_path) as url:
        listed = _until_found(url)
    found = {(one["labels"]["job"], one["scrapeUrl"]): one["labels"] for one in listed}
    assert sorted(found) == [
        ("accelerator", "http://127.0.0.1:9400/metrics"),
        ("engine", "http://127.0.0.1:8000/metrics"),
        ("haproxy", "http://127.0.0.2:8404/metrics"),
        ("node", "http://127.0.0.1:9500/metrics"),
        ("router", "http://127.0.0.2:8404/router/metrics"),
    ]
    labels = found["engine", "http://127.0.0.1:8000/metrics"]
    assert labels | {"instance": ""} == {
        **{"job": "engine", "instance": "", "instance_id": "i-1", "pool": "chat", "group": "chat-a"},
        **{"environment": "prod", "capacity_type": "spot", "zone": "us-east-1a", "machine_type": "g6.xlarge"},
    }


def _until_found(url: str) -> list[dict[str, Any]]:
    """Return the targets of a Prometheus; it needs some seconds to apply its discovery results."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answer = httpx.get(f"{url}/api/v1/targets", params={"state": "active"}, timeout=60, trust_env=False).json()
        if found := answer["data"]["activeTargets"]:
            return found
        time.sleep(0.2)
    raise AssertionError("Prometheus has found no target")


@needs_prometheus
@pytest.mark.slow
def test_a_real_prometheus_reloads_a_changed_targets_file(tmp_path: Path) -> None:
    settings = dataclasses.replace(PLAIN, scrape_interval=timedelta(seconds=1), engines=("vllm", "lmdeploy"))
    (tmp_path / "prometheus.yml").write_text(render(settings))
    addresses = [f"{NETWORK}.1.{number}" for number in (1, 2)]
    machine: dict[str, Any] = {
        **{"cloud": Cloud.AWS, "region": "us-east-1", "zone": "us-east-1a", "state": InstanceState.RUNNING},
        **{"machine_type": "g6.xlarge", "launched_at": datetime(2026, 11, 25, tzinfo=UTC), "environment": "prod"},
        **{"capacity_type": CapacityType.SPOT, "pool": "chat", "group": "chat-a"},
    }
    members = [Instance(id=f"i-{n}", private_address=address, **machine) for n, address in enumerate(addresses)]
    file = TargetsFile(tmp_path / "targets.json")
    file.write(InstanceList(instances=members[:1]), "prod")
    with (
        _metrics(addresses[0], 8000),
        _metrics(addresses[1], 8000),
        running(tmp_path, f"{NETWORK}.0.10:9090") as prometheus,
    ):
        (engine,) = _wait_for(prometheus, 'gpufleet_engine_requests_running{job="engine"}')
        assert (engine["metric"]["instance_id"], engine["value"][1]) == ("i-0", "2")
        # A second instance is added and the first cannot be read: the first stays.
        file.write(InstanceList(instances=members[1:], errors={"i-0": "i-0 cannot be read"}), "prod")
        both = _wait_for(prometheus, 'count(up{job="engine"} == 1) == 2', all_of='up{job="engine"}')
        assert {one["metric"]["instance_id"] for one in both} == {"i-0", "i-1"}
        file.write(InstanceList(instances=members[1:]), "prod")
        _wait_for(prometheus, 'count(up{job="engine"}) == 1')


@contextmanager
def _metrics(address: str, port: int) -> Iterator[None]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"DCGM_FI_PROF_GR_ENGINE_ACTIVE 0.5\nlmdeploy:num_requests_running 2\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer((address, port), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def _wait_for(url: str, query: str, all_of: str = "") -> list[dict[str, Any]]:
    """Return the result of a query as soon as it is not empty; with `all_of`, the result of that query then."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := _ask(url, query):
            return _ask(url, all_of) if all_of else found
        time.sleep(0.2)
    pytest.fail(f"no answer to {query} within 60 s")


def _ask(url: str, query: str) -> list[dict[str, Any]]:
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=60) as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return []
