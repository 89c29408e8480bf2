"""The real node agent on an emulated machine: it boots from user data, serves, and drains after a notice or a
request."""

import hashlib
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.domain.model import CapacityType, Cloud
from localcloud import tiny_model
from serving import agent_archive, user_data
from serving.cache import manifest, publish
from serving.instance_settings import EngineSettings, InstanceSettings
from tests.fixtures import signing
from tests.fixtures.clouds.emulator import REPOSITORY, RunningCloud, make_group, make_template, wait_for
from tests.fixtures.signing import ENGINE_KEY as KEY

pytestmark = pytest.mark.slow

BUCKET = "agent-models"


class Bucket:
    """The models' bucket, with the operations that publishing needs."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3

    def exists(self, key: str) -> bool:
        return "Contents" in self._s3.list_objects_v2(Bucket=BUCKET, Prefix=key, MaxKeys=1)

    def put_bytes(self, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=body)

    def put_file(self, key: str, path: Path) -> None:
        self._s3.upload_file(str(path), BUCKET, key)


ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("--max-model-len", "2048"),
    "sglang": ("--context-length", "2048"),
    "trtllm": ("--max_seq_len", "2048"),
    "lmdeploy": ("--session-len", "2048"),
    "dynamo": ("--max-model-len", "2048"),
    "triton": ("--max-model-len", "2048"),
}
STATED = {"lmdeploy": "0.16.0", "dynamo": "1.6.1", "triton": "2.71.0"}
"""Releases in the settings, of engines that do not report theirs."""


@pytest.fixture(scope="module")
def scripts(session_cloud: RunningCloud) -> Mapping[str, str]:
    """User data of a pool `chat` by engine, with its model, agent and key in the places where the agent looks for
    them.
    """
    s3 = session_cloud.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    bucket = Bucket(s3)
    with tempfile.TemporaryDirectory() as folder:
        tiny_model.make(Path(folder) / "model")
        described = manifest.describe(Path(folder) / "model", name="chat", revision="r1")
        publish.add(bucket, Path(folder) / "model", described)
        publish.rollout(bucket, name="chat", digest=described.digest)
    session_cloud.client("ssm").put_parameter(Name="/agent/key", Value=KEY, Type="SecureString")
    archive = agent_archive.build(REPOSITORY)
    digest = hashlib.sha256(archive).hexdigest()
    bucket.put_bytes(user_data.archive_key(digest), archive)
    settings = InstanceSettings(
        environment="local",
        cloud=Cloud.AWS,
        region="us-east-1",
        pool="chat",
        capacity_type=CapacityType.SPOT,
        bucket=f"s3://{BUCKET}",
        model="models/chat",
        served_name="chat",
        engine=EngineSettings(kind="vllm", image="gpu-fleet/simulated-engine@sha256:ab"),
        dcgm_image="gpu-fleet/dcgm-exporter@sha256:cd",
        node_exporter_image="gpu-fleet/node-exporter@sha256:ef",
        gate_image="gpu-fleet/haproxy@sha256:01",
        engine_key="ssm:/agent/key",
        order_keys=(signing.key().public.text,),
        drain_deadline=timedelta(seconds=10),
        metadata_poll=timedelta(seconds=1),
    )
    engines = {
        kind: replace(settings.engine, kind=kind, args=args, version=STATED.get(kind))
        for kind, args in ARGUMENTS.items()
    }
    return {kind: user_data.render(replace(settings, engine=engine), digest) for kind, engine in engines.items()}


def _status(address: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}:9500/status", timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return {}


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@pytest.fixture
def ready(cloud: RunningCloud, scripts: Mapping[str, str], request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """Group, instance and address of a machine whose agent is ready. It has eight disks, so the agent builds an
    array."""
    kind: str = getattr(request, "param", "vllm")
    name = f"agent-{kind}-{request.function.__name__[-20:].strip('_')}".replace("_", "-")
    hook = {
        "LifecycleHookName": "drain",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "HeartbeatTimeout": 7200,
        "DefaultResult": "CONTINUE",
    }
    template = make_template(cloud, name, scripts[kind])
    make_group(
        cloud, name, template, size=1, spot=True, types=("p5.48xlarge",), LifecycleHookSpecificationList=[hook]
    )
    member = wait_for("the machine", lambda: cloud.in_service(name))[0]["InstanceId"]
    address = cloud.instances(name)[0]["PrivateIpAddress"]
    wait_for("the agent to be ready", lambda: _status(address).get("ready"), 180)
    return name, member, address


def test_agent_boots_serves_and_exports_gpu_metrics(cloud: RunningCloud, ready: tuple[str, str, str]) -> None:
    _, member, address = ready
    request = urllib.request.Request(f"http://{address}:8000/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["data"][0]["id"] == "chat"
    with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=60) as answer:
        assert answer.read().decode().count("DCGM_FI_PROF_GR_ENGINE_ACTIVE{") == 8
    host = wait_for("the node exporter", lambda: _page(f"http://{address}:9100/metrics"), 60)
    assert 'node_filesystem_avail_bytes{mountpoint="/mnt/nvme"} ' in host
    assert "\nnode_memory_MemAvailable_bytes " in host
    commands = (cloud.machines / member / "var/log/disks.log").read_text("utf-8")
    assert "--raid-devices=8" in commands
    logs = "".join(path.read_text("utf-8", "replace") for path in (cloud.machines / member).rglob("*.log"))
    assert KEY not in logs
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request.full_url, timeout=60)


def _post(url: str, key: str | None = None, **body: object) -> urllib.request.Request:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)


def _metric(address: str, name: str) -> str | None:
    lines = _page(f"http://{address}:9500/metrics").splitlines()
    return next((line.rpartition(" ")[2] for line in lines if line.startswith(f"{name}{{")), None)


@pytest.mark.parametrize("ready", ["trtllm"], indirect=True)
def test_agent_starts_an_engine_without_a_key_behind_a_gate(cloud: RunningCloud, ready: tuple[str, str, str]) -> None:
    _, member, address = ready
    gate, engine = f"http://{address}:8000", f"http://{address}:8001"
    info = 'gpufleet_node_engine_info{pool="chat",kind="trtllm",version="1.3.0+simulated"} 1.0'
    wait_for("the release of the engine", lambda: info in _page(f"http://{address}:9500/metrics"))
    assert "gpufleet_node_engine_missing{" not in _page(f"http://{address}:9500/metrics")
    assert "trtllm_request_success_total{" in _page(f"{gate}/metrics"), "the warm-up request was counted"
    with urllib.request.urlopen(_post(f"{engine}/update_weights"), timeout=60) as answer:
        assert answer.status == 200, "the engine itself protects nothing"
    for request, status in (
        (_post(f"{gate}/update_weights", KEY), 404),
        (_post(f"{gate}/v1/completions", None, prompt="hello"), 401),
        (_post(f"{gate}/v1/completions", "0" * 64, prompt="hello"), 401),
    ):
        with pytest.raises(urllib.error.HTTPError, match=str(status)):
            urllib.request.urlopen(request, timeout=60)
    assert _metric(address, "gpufleet_node_engine_requests") == "0.0"
    passed = _metric(address, "gpufleet_node_engine_requests_passed_total")
    long = _post(f"{gate}/v1/completions", KEY, model="chat", prompt="hello", max_tokens=200, ignore_eos=True)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: json.load(urllib.request.urlopen(long, timeout=120)))
        wait_for("a request that runs", lambda: _metric(address, "gpufleet_node_engine_requests") == "1.0")
        cloud.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=member, ShouldDecrementDesiredCapacity=True
        )
        assert answer.result()["usage"]["completion_tokens"] == 200, "a drain waits for requests"
    assert _metric(address, "gpufleet_node_engine_requests_passed_total") != passed
    wait_for("it to be drained", lambda: _status(address).get("drained"))
    logs = "".join(path.read_text("utf-8", "replace") for path in (cloud.machines / member).rglob("*.log"))
    assert KEY not in logs
    unit = (cloud.machines / member / "etc/systemd/system/gpufleet-engine-gate.service").read_text("utf-8")
    config = (cloud.machines / member / "run/gpu-fleet/engine-gate.cfg").read_text("utf-8")
    assert KEY not in unit + config


@pytest.mark.parametrize(
    ("ready", "kind", "dangerous"),
    [
        pytest.param("lmdeploy", "lmdeploy", "/update_weights", id="lmdeploy", marks=pytest.mark.long),
        pytest.param("dynamo", "dynamo", "/busy_threshold", id="dynamo", marks=pytest.mark.long),
        pytest.param("triton", "triton", "/v1/models/chat/load", id="triton"),
    ],
    indirect=["ready"],
)
def test_agent_starts_an_engine_whose_release_the_settings_state(
    ready: tuple[str, str, str], kind: str, dangerous: str
) -> None:
    _, _, address = ready
    gate = f"http://{address}:8000"
    info = f'gpufleet_node_engine_info{{pool="chat",kind="{kind}",version="{STATED[kind]}"}} 1.0'
    wait_for("the release of the engine", lambda: info in _page(f"http://{address}:9500/metrics"))
    assert "gpufleet_node_engine_missing{" not in _page(f"http://{address}:9500/metrics")
    with urllib.request.urlopen(_post(f"http://{address}:8001{dangerous}"), timeout=60) as answer:
        assert answer.status == 200, "the engine itself protects nothing"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(_post(f"{gate}{dangerous}", KEY), timeout=60)
    request = _post(f"{gate}/v1/completions", KEY, model="chat", prompt="hello", max_tokens=3, ignore_eos=True)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("ready", ["sglang"], indirect=True)
def test_agent_starts_identifies_and_drains_another_engine(cloud: RunningCloud, ready: tuple[str, str, str]) -> None:
    _, member, address = ready
    info = 'gpufleet_node_engine_info{pool="chat",kind="sglang",version="0.5.23+simulated"} 1.0'
    wait_for("the release of the engine", lambda: info in _page(f"http://{address}:9500/metrics"))
    assert "gpufleet_node_engine_missing{" not in _page(f"http://{address}:9500/metrics")
    body = json.dumps({"model": "chat", "prompt": "hello", "max_tokens": 600, "ignore_eos": True}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}:8000/v1/completions", data=body, headers=headers)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: json.load(urllib.request.urlopen(request, timeout=120)))
        wait_for("a request that runs", lambda: _status(address).get("requests_running"))
        cloud.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=member, ShouldDecrementDesiredCapacity=True
        )
        assert answer.result()["usage"]["completion_tokens"] == 600, "a drain waits for requests"
    wait_for("it to be drained", lambda: _status(address).get("drained"))
    logs = "".join(path.read_text("utf-8", "replace") for path in (cloud.machines / member).rglob("*.log"))
    assert KEY not in logs


def test_agent_drains_before_its_group_terminates_it(cloud: RunningCloud, ready: tuple[str, str, str]) -> None:
    name, member, address = ready
    cloud.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=member, ShouldDecrementDesiredCapacity=True
    )
    wait_for("it to be drained", lambda: _status(address).get("drained"))
    # The hook waits for two hours of cloud time. The control host, which sees the drained status, completes it
    # earlier.
    groups = AwsGroups(AwsCalls("us-east-1", cloud.client))
    assert groups.groups([name])[0].waiting_to_end == {member}
    assert groups.complete_hooks(name, serving=(), drained=[member]) == {}
    wait_for("the end", lambda: not cloud.group(name)["Instances"])
    log = (cloud.machines / member / "var/log/machine.log").read_text("utf-8")
    assert "gpufleet-engine.service: process" in log
    called = {row["operation"] for row in cloud.control("GET", "calls")[1] if row["principal"] == f"node/{member}"}
    assert called <= {"GetObject", "HeadObject", "GetParameter"}, "it changes nothing"


def test_agent_drains_when_it_is_preempted(cloud: RunningCloud, ready: tuple[str, str, str]) -> None:
    _, member, address = ready
    cloud.control("POST", "preempt", {"instance": member, "notice_s": 120, "capacity_lost": True})
    wait_for("the agent to drain", lambda: _status(address).get("draining"))
    assert _status(address)["deadline"] is not None
    wait_for("it to be drained", lambda: _status(address).get("drained"))


def test_silent_exporter_does_not_affect_engine_and_agent(cloud: RunningCloud, ready: tuple[str, str, str]) -> None:
    _, member, address = ready
    cloud.control("POST", "fault", {"instance": member, "what": "exporter"})
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=60)
    assert _status(address)["ready"]
    with urllib.request.urlopen(f"http://{address}:8000/health", timeout=60) as answer:
        assert answer.status == 200
    cloud.control("DELETE", "fault", {"instance": member})
    with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=60) as answer:
        assert answer.status == 200
