"""The real node agent on an emulated machine: it boots from user data, serves, and drains after a notice or a
request."""

import hashlib
import json
import tempfile
import urllib.error
import urllib.request
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
from serving.engines import EngineKind
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


@pytest.fixture(scope="module")
def script(session_cloud: RunningCloud) -> str:
    """User data of a pool `chat`, with its model, agent and key in the places where the agent looks for them."""
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
        engine=EngineSettings(
            kind=EngineKind.VLLM, image="gpu-fleet/simulated-engine@sha256:ab", args=("--max-model-len", "2048")
        ),
        dcgm_image="gpu-fleet/dcgm-exporter@sha256:cd",
        node_exporter_image="gpu-fleet/node-exporter@sha256:ef",
        engine_key="ssm:/agent/key",
        order_keys=(signing.key().public.text,),
        drain_deadline=timedelta(seconds=10),
        metadata_poll=timedelta(seconds=1),
    )
    return user_data.render(settings, digest)


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
def ready(cloud: RunningCloud, script: str, request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """Group, instance and address of a machine whose agent is ready. It has eight disks, so the agent builds an
    array."""
    name = f"agent-{request.function.__name__[-20:].strip('_')}".replace("_", "-")
    hook = {
        "LifecycleHookName": "drain",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "HeartbeatTimeout": 7200,
        "DefaultResult": "CONTINUE",
    }
    template = make_template(cloud, name, script)
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
