"""prometheus.yml: what promtool thinks of it, and that a real Prometheus finds instances with it."""

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

from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from monitoring.prometheus import Discovery, PrometheusSettings, render, targets
from serving.engine import VLLM
from tests.networks import free_network
from tests.prometheus import running

NETWORK = free_network()

AWS = Discovery(cloud=Cloud.AWS, environment="prod", region="us-east-1")
GCP = Discovery(cloud=Cloud.GCP, environment="prod", region="r", project="p", zones=("r-a", "r-b"))
FED = dataclasses.replace(AWS, targets_file="/run/gpu-fleet/feed/targets.json")
GCP_LOCAL = Discovery(cloud=Cloud.GCP, environment="local", region="r", endpoint="http://127.17.0.2:8080/targets")

OTHER = dataclasses.replace(VLLM, running=dataclasses.replace(VLLM.running, name="other:num_running_reqs"))
"""An engine that speaks another name."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (make setup installs it)"
)


@needs_prometheus
@pytest.mark.parametrize("node_exporter", [False, True], ids=["", "node exporter"])
@pytest.mark.parametrize("discovery", [AWS, GCP, GCP_LOCAL, FED], ids=["aws", "gcp", "gcp-local", "fed"])
def test_promtool_accepts_it(discovery: Discovery, node_exporter: bool, tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(
        render(
            PrometheusSettings(
                discovery=discovery,
                haproxy=("10.0.0.1:8404",),
                watchdogs=("10.0.0.1:9600",),
                alertmanagers=("10.0.0.1:9093",),
                node_exporter=node_exporter,
            )
        )
    )
    done = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_source_is_a_job_on_its_port() -> None:
    jobs = {
        job["job_name"]: job["ec2_sd_configs"][0]["port"]
        for job in yaml.safe_load(render(PrometheusSettings(discovery=AWS)))["scrape_configs"]
    }
    assert jobs == {"engine": 8000, "dcgm": 9400, "node": 9500, "haproxy": 8404, "router": 8404}


@pytest.mark.parametrize("discovery", [AWS, GCP, GCP_LOCAL, FED], ids=["aws", "gcp", "gcp-local", "fed"])
def test_node_exporters_are_found_as_everything_else_on_an_instance_is(discovery: Discovery) -> None:
    def jobs(*, wanted: bool) -> dict[str, dict[str, Any]]:
        found = yaml.safe_load(render(PrometheusSettings(discovery=discovery, node_exporter=wanted)))
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
        pytest.param("node_cpu_seconds_total;user", False, id="a mode that the rest tells of"),
        pytest.param("node_cpu_guest_seconds_total;user", False, id="guests"),
        pytest.param("node_memory_MemAvailable_bytes;", True, id="without a mode"),
    ],
)
def test_a_large_machine_s_cpus_do_not_fill_prometheus(series: str, kept: bool) -> None:
    jobs = yaml.safe_load(render(PrometheusSettings(discovery=AWS, node_exporter=True)))["scrape_configs"]
    ((rule, _),) = [job["metric_relabel_configs"] for job in jobs if job["job_name"] == "host"]
    assert (re.fullmatch(rule["regex"], series) is None) == kept


def test_numbers_of_another_engine_get_the_names_that_are_asked_for() -> None:
    def renames(**more: Any) -> dict[str, Any]:
        jobs = yaml.safe_load(render(PrometheusSettings(discovery=AWS, **more)))["scrape_configs"]
        return {job["job_name"]: job["metric_relabel_configs"] for job in jobs if "metric_relabel_configs" in job}

    assert {rule["action"] for rules in renames().values() for rule in rules} == {"keep"}
    # what is kept is asked after the names are ours
    rule, keep = renames(engines=(VLLM, OTHER))["engine"]
    assert keep["action"] == "keep"
    assert (rule["regex"], rule["replacement"]) == ("other:num_running_reqs", "vllm:num_requests_running")


@pytest.mark.parametrize("discovery", [AWS, GCP, GCP_LOCAL, FED], ids=["aws", "gcp", "gcp-local", "fed"])
def test_routers_are_named_or_found_by_their_tag(discovery: Discovery) -> None:
    def routers(**more: Any) -> dict[str, Any]:
        jobs = yaml.safe_load(render(PrometheusSettings(discovery=discovery, **more)))["scrape_configs"]
        (job,) = [job for job in jobs if job["job_name"] == "router"]
        assert job["metrics_path"] == "/router/metrics"
        return job

    named = routers(haproxy=("10.0.0.1:8404",))
    assert named["static_configs"][0]["targets"] == ["10.0.0.1:8404"]
    found = json.dumps(routers())
    assert "static_configs" not in found
    assert "router" in found.replace("/router/metrics", "").replace('"job_name": "router"', "")


@pytest.mark.parametrize("discovery", [AWS, GCP, GCP_LOCAL], ids=["aws", "gcp", "gcp-local"])
def test_a_prometheus_without_credentials_asks_no_cloud(discovery: Discovery) -> None:
    fed = dataclasses.replace(discovery, targets_file="targets.json")
    jobs = yaml.safe_load(render(PrometheusSettings(discovery=fed, node_exporter=True)))["scrape_configs"]
    kinds = {key for job in jobs for key in job if key.endswith("_sd_configs")}
    assert kinds == {"file_sd_configs"}


@needs_prometheus
def test_a_real_prometheus_finds_what_the_feed_names(tmp_path: Path) -> None:
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
    ]
    gone = dataclasses.replace(instances[0], id="i-6", private_address="127.0.0.6", state=InstanceState.STOPPING)
    fed = dataclasses.replace(AWS, targets_file=str(tmp_path / "targets.json"))
    (tmp_path / "prometheus.yml").write_text(render(PrometheusSettings(discovery=fed)))
    (tmp_path / "targets.json").write_text(json.dumps(targets([*instances, gone], "prod")))
    with running(tmp_path) as url:
        listed = _until_found(url)
    found = {(one["labels"]["job"], one["scrapeUrl"]): one["labels"] for one in listed}
    assert sorted(found) == [
        ("dcgm", "http://127.0.0.1:9400/metrics"),
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
    """The targets of a Prometheus; it takes some seconds to take up what its discoveries found."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answer = httpx.get(f"{url}/api/v1/targets", params={"state": "active"}, timeout=60, trust_env=False).json()
        if found := answer["data"]["activeTargets"]:
            return found
        time.sleep(0.2)
    raise AssertionError("Prometheus has found no target")


def test_production_asks_the_real_cloud() -> None:
    assert "endpoint" not in render(PrometheusSettings(discovery=AWS))
    assert "http_sd_configs" not in render(PrometheusSettings(discovery=GCP))


@needs_prometheus
@pytest.mark.slow
def test_a_real_prometheus_finds_instances_and_routers_by_their_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=f"{NETWORK}.0.2", port=4566, verbose=False)
    server.start()
    try:
        url = f"http://{NETWORK}.0.2:4566"
        instance = _launch(url, "prod", {"pool": "chat", "capacity-type": "spot"})
        _launch(url, "other", {"pool": "chat", "capacity-type": "spot"})
        router, gone = (_launch(url, "prod", {"role": "router"}) for _ in range(2))
        with (
            _metrics(instance["PrivateIpAddress"], 9400),
            _metrics(instance["PrivateIpAddress"], 8000),
            _metrics(router["PrivateIpAddress"], 8404),
            _prometheus(tmp_path, url) as prometheus,
        ):
            found = _wait_for(prometheus, 'up{job="dcgm"} == 1')
            (engine,) = _wait_for(prometheus, 'vllm:num_requests_running{job="engine"}')
            both = 'count(up{job="router"}) == 2 and on () max(up{job="router"}) == 1'
            routers = _wait_for(prometheus, both, all_of='up{job="router"}')
            assert not _ask(prometheus, 'up{job="router",pool=~".+"}')
    finally:
        server.stop()
    ups = {one["metric"]["instance_id"]: one["value"][1] for one in routers}
    assert ups == {router["InstanceId"]: "1", gone["InstanceId"]: "0"}
    assert {one["metric"]["environment"] for one in routers} == {"prod"}
    assert engine["value"][1] == "2"
    assert len(found) == 1
    labels = found[0]["metric"]
    assert labels["instance_id"] == instance["InstanceId"]
    assert labels["pool"] == "chat"
    assert labels["environment"] == "prod"
    assert labels["capacity_type"] == "spot"
    assert labels["zone"] == instance["Placement"]["AvailabilityZone"]
    assert labels["machine_type"] == "g6.xlarge"


def _launch(endpoint: str, environment: str, more: dict[str, str]) -> dict[str, Any]:
    import boto3

    ec2: Any = boto3.client("ec2", endpoint_url=endpoint)
    known = ec2.describe_subnets(Filters=[{"Name": "cidr-block", "Values": [f"{NETWORK}.1.0/24"]}])["Subnets"]
    if known:
        subnet = known[0]["SubnetId"]
    else:
        vpc = ec2.create_vpc(CidrBlock=f"{NETWORK}.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=f"{NETWORK}.1.0/24")["Subnet"]["SubnetId"]
    tags = {"environment": environment, **more}
    return ec2.run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        InstanceType="g6.xlarge",
        SubnetId=subnet,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": f"gpu-fleet:{key}", "Value": value} for key, value in tags.items()],
            }
        ],
    )["Instances"][0]


@contextmanager
def _metrics(address: str, port: int) -> Iterator[None]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"DCGM_FI_PROF_GR_ENGINE_ACTIVE 0.5\nother:num_running_reqs 2\n"
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


@contextmanager
def _prometheus(folder: Path, endpoint: str) -> Iterator[str]:
    second = timedelta(seconds=1)
    discovery = Discovery(cloud=Cloud.AWS, environment="prod", region="us-east-1", endpoint=endpoint, refresh=second)
    (folder / "prometheus.yml").write_text(
        render(PrometheusSettings(discovery=discovery, scrape_interval=second, engines=(VLLM, OTHER)))
    )
    with running(folder, f"{NETWORK}.0.10:9090") as url:
        yield url


def _wait_for(url: str, query: str, all_of: str = "") -> list[dict[str, Any]]:
    """What a query gives once it gives anything; with `all_of`, what that gives then."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := _ask(url, query):
            return _ask(url, all_of) if all_of else found
        time.sleep(0.2)
    pytest.fail(f"no answer to {query} within 60 s")


def _ask(url: str, query: str) -> list[dict[str, Any]]:
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=5) as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return []
