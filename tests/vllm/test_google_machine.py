"""Real vLLM on a machine of the embedded Google Cloud: from Cloud Storage to the first token, to its preemption."""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from localcloud.gcp.locations import PROJECT

from gpufleet.domain.model import CapacityType, Cloud
from localcloud import tiny_model
from serving import agent_archive, user_data
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.instance_settings import EngineSettings, InstanceSettings
from tests.fixtures.e2e.control_hosts import ZONE, OnGoogle
from tests.fixtures.e2e.embedded_cloud import BUCKET, CLONE, instance_settings, started, status, wait_for, wait_until
from tests.fixtures.local_token import BEARER
from tests.fixtures.networks import free_network
from tests.fixtures.vllm.servers import KEY, Streams

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
BOOT_LIMIT_S = 700
NOTICE_S = 110
NAME = "chat-spot-us-central1-a-g2-standard-8-".ljust(63, "0")
"""The maximum length of a name on Google Cloud: vLLM's sockets are in the machine's folder, which has this name."""
SECRETS = f"/v1/projects/{PROJECT}/secrets"
INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The bucket of the test environment, with the operations that publishing needs."""

    platform: OnGoogle

    def exists(self, key: str) -> bool:
        url = f"{self.platform.url}/storage/v1/b/{BUCKET}/o/{quote(key, safe='')}"
        return httpx.get(url, headers=BEARER, timeout=60).status_code == 200

    def put_bytes(self, key: str, body: bytes) -> None:
        self.platform.put(key, body)

    def put_file(self, key: str, path: Path) -> None:
        self.platform.put(key, path.read_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A spot instance that serves, and its model's digest."""

    platform: OnGoogle
    address: str
    digest: str


def settings(platform: OnGoogle) -> InstanceSettings:
    return instance_settings(
        "chat",
        CapacityType.SPOT,
        cloud=Cloud.GCP,
        region=platform.region,
        bucket=platform.bucket,
        engine_key=f"gcp-secret:projects/{PROJECT}/secrets/engine-key",
        engine=EngineSettings(
            kind="vllm",
            image="gpu-fleet/vllm-cpu@sha256:" + "0" * 64,
            args=("--max-model-len", "2048", "--max-num-seqs", "32"),
        ),
        drain_deadline=timedelta(seconds=60),
        # long, because the machine shares two cores with other processes: a quarter of it is for the kill
        drain_margin=timedelta(seconds=30),
    )


def start(platform: OnGoogle, script: str) -> str:
    """Start a spot instance with a local disk, and a preemption notice as in the templates; return its address."""
    image = "projects/debian-cloud/global/images/debian-12"
    body = {
        "name": NAME,
        "machineType": f"zones/{ZONE}/machineTypes/g2-standard-8",
        "labels": {"gpu-fleet-pool": "chat", "gpu-fleet-environment": "test", "gpu-fleet-capacity-type": "spot"},
        "disks": [
            {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}},
            {
                "type": "SCRATCH",
                "autoDelete": True,
                "interface": "NVME",
                "initializeParams": {"diskType": f"zones/{ZONE}/diskTypes/local-ssd"},
            },
        ],
        "networkInterfaces": [{"subnetwork": f"regions/{platform.region}/subnetworks/net"}],
        "serviceAccounts": [
            {
                "email": f"gpu@{PROJECT}.iam.gserviceaccount.com",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "metadata": {
            "items": [
                {"key": "startup-script", "value": script},
                {"key": "gpu-fleet-preemption-notice-s", "value": str(NOTICE_S)},
            ]
        },
        "scheduling": {
            "provisioningModel": "SPOT",
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
        },
    }
    platform.call("POST", INSTANCES, body)
    return platform.address(NAME)


@pytest.fixture(scope="module")
def machine(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    assert vllm.is_dir()
    folder = tmp_path_factory.mktemp("cloud")
    network = free_network()
    with started(folder, network):
        platform = OnGoogle(url=f"http://{network}.0.4:4567", network=network)
        platform.set_up()
        value = base64.b64encode(KEY.encode()).decode()
        platform.call("POST", f"{SECRETS}?secretId=engine-key", {"replication": {"automatic": {}}})
        platform.call("POST", f"{SECRETS}/engine-key:addVersion", {"payload": {"data": value}})
        yield _booted(platform, folder)


def _booted(platform: OnGoogle, folder: Path) -> Machine:
    tiny_model.make(folder / "source")
    manifest = manifests.describe(folder / "source", name="chat", revision="first")
    bucket = Bucket(platform=platform)
    publish.add(bucket, folder / "source", manifest)
    publish.rollout(bucket, name="chat", digest=manifest.digest)
    archive = agent_archive.build(CLONE)
    sha256 = hashlib.sha256(archive).hexdigest()
    bucket.put_bytes(user_data.archive_key(sha256), archive)
    script = user_data.render(settings(platform), sha256)
    assert KEY not in script
    address = start(platform, script)
    wait_until(address, "ready", BOOT_LIMIT_S)
    return Machine(platform=platform, address=address, digest=manifest.digest)


def test_a_machine_boots_from_cloud_storage_serves_and_drains(machine: Machine) -> None:
    """One test for everything: separate boots of real vLLM cost too much."""
    found = status(machine.address)
    assert [step["step"] for step in found["boot"]] == ["disks", "cache", "engine", "warm-up"]
    assert all(step["error"] is None for step in found["boot"])
    assert found["model_digest"] == machine.digest
    version = httpx.get(f"http://{machine.address}:8000/version", timeout=30).json()["version"]
    assert version.startswith("0.32.0")
    assert "simulated" not in version
    _a_preemption_loses_no_stream(machine)


def _a_preemption_loses_no_stream(machine: Machine) -> None:
    streams = Streams(f"http://{machine.address}:8000", count=20, tokens=500, model="chat", key=KEY).start()
    wait_for("first words", streams.all_began)
    body = {"instance": NAME, "notice_s": NOTICE_S}
    answer = httpx.post(f"{machine.platform.admin_url}/preempt?cloud=gcp", json=body, headers=BEARER, timeout=30)
    assert answer.is_success, answer.text
    assert wait_until(machine.address, "draining", 30)["reason"] == "preempted by its cloud"
    usages = streams.usages()
    assert not streams.errors
    assert [usage["completion_tokens"] for usage in usages] == [500] * 20
    wait_until(machine.address, "drained", 100)

    def is_deleted() -> bool:
        return httpx.get(f"{machine.platform.url}{INSTANCES}/{NAME}", headers=BEARER, timeout=30).status_code == 404

    wait_for("the end of the instance", is_deleted, 2 * NOTICE_S)
