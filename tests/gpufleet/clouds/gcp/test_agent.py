"""The real node agent on an emulated Compute Engine instance: it boots, serves and drains."""

import base64
import hashlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.cloud import storage

from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.model import CapacityType, Cloud
from localcloud import tiny_model
from serving import agent_archive, user_data
from serving.accelerators import CONTRACTS
from serving.accelerators.reading import AcceleratorReading, read
from serving.cache import manifest, publish
from serving.exposition import parse
from serving.instance_settings import EngineSettings, InstanceSettings
from tests.fixtures import local_token, signing
from tests.fixtures.clouds.emulator import REPOSITORY, start_cloud, stop_cloud, wait_for
from tests.fixtures.clouds.google import PROJECT, REGION, Google
from tests.fixtures.signing import ENGINE_KEY as KEY

pytestmark = pytest.mark.slow

BUCKET = "agent-models"
SECRET = f"projects/{PROJECT}/secrets/engine-key"  # noqa: S105 - the secret's name


class Bucket:
    """The bucket for models, with the interface that publishing requires."""

    def __init__(self, google: Google) -> None:
        options = {"api_endpoint": google.cloud.places.google_url}
        client = storage.Client(project=PROJECT, credentials=local_token.google(), client_options=options)
        self._bucket: Any = client.create_bucket(BUCKET)

    def exists(self, key: str) -> bool:
        return self._bucket.get_blob(key) is not None

    def put_bytes(self, key: str, body: bytes) -> None:
        self._bucket.blob(key).upload_from_string(body)

    def put_file(self, key: str, path: Path) -> None:
        self._bucket.blob(key).upload_from_filename(str(path))


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    cloud = start_cloud(tmp_path_factory.mktemp("google"))
    try:
        made = Google(cloud=cloud)
        made.make_network()
        _post(made, f"/v1/projects/{PROJECT}/secrets?secretId=engine-key", {"replication": {"automatic": {}}})
        _post(made, f"/v1/{SECRET}:addVersion", {"payload": {"data": base64.b64encode(KEY.encode()).decode()}})
        settings, digest = _publish(Bucket(made), tmp_path_factory.mktemp("model"))
        tpu = replace(settings, pool="tpu", accelerator=AcceleratorKind.TPU)
        made.make_group("chat", made.make_template("chat", user_data.render(settings, digest)), 1)
        script = user_data.render(tpu, digest)
        made.make_group("tpu", made.make_template("tpu", script, machine_type="ct6e-standard-4t"), 1)
        yield made
    finally:
        stop_cloud(cloud)


def _post(google: Google, path: str, body: Any) -> None:
    url = f"{google.cloud.places.google_url}{path}"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=local_token.BEARER)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def _publish(bucket: Bucket, folder: Path) -> tuple[InstanceSettings, str]:
    """Publish model and agent, and return the settings of the pool `chat` and the digest of the agent."""
    tiny_model.make(folder)
    described = manifest.describe(folder, name="chat", revision="r1")
    publish.add(bucket, folder, described)
    publish.rollout(bucket, name="chat", digest=described.digest)
    archive = agent_archive.build(REPOSITORY)
    digest = hashlib.sha256(archive).hexdigest()
    bucket.put_bytes(user_data.archive_key(digest), archive)
    made = InstanceSettings(
        environment="test",
        cloud=Cloud.GCP,
        region=REGION,
        pool="chat",
        capacity_type=CapacityType.SPOT,
        bucket=f"gs://{BUCKET}",
        model="models/chat",
        served_name="chat",
        engine=EngineSettings(
            kind="vllm", image="gpu-fleet/simulated-engine@sha256:ab", args=("--max-model-len", "2048")
        ),
        dcgm_image="gpu-fleet/dcgm-exporter@sha256:cd",
        engine_key=f"gcp-secret:{SECRET}",
        order_keys=(signing.key().public.text,),
        drain_deadline=timedelta(seconds=10),
        metadata_poll=timedelta(seconds=1),
    )
    return made, digest


def _status(address: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}:9500/status", timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return {}


def _ready(google: Google, group: str) -> tuple[str, str]:
    """Wait until the agent of a group's member is ready. Returns the member's name and address."""
    member = wait_for("the member", lambda: google.running(group))[0]
    address = google.instance(member.name).network_interfaces[0].network_i_p
    log = google.cloud.machines / member.name / "var/log/machine.log"
    try:
        wait_for("the agent to be ready", lambda: _status(address).get("ready"), 180)
    except BaseException:
        print(_status(address), log.read_text("utf-8", "replace"))  # noqa: T201 - shown on failure
        raise
    return member.name, address


def test_an_agent_boots_serves_and_drains_on_preemption(google: Google) -> None:
    name, address = _ready(google, "chat")
    request = urllib.request.Request(f"http://{address}:8000/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["data"][0]["id"] == "chat"
    with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=60) as answer:
        assert answer.read().decode().count("DCGM_FI_PROF_GR_ENGINE_ACTIVE{") == 1
    logs = [path.read_text("utf-8", "replace") for path in (google.cloud.machines / name).rglob("*.log")]
    assert KEY not in "".join(logs)
    caller = f"gpu@{PROJECT}.iam.gserviceaccount.com/{name}"
    calls = {
        f"{row['service']}:{row['operation']}"
        for row in google.control("GET", "calls")[1]
        if row["principal"] == caller
    }
    assert calls == {
        "storage:objects.get",
        "secretmanager:versions_access",
    }
    google.control("POST", "preempt", {"instance": name, "notice_s": 120})
    wait_for("the agent to drain", lambda: _status(address).get("draining"))
    wait_for("it to be drained", lambda: _status(address).get("drained"))


def test_an_agent_serves_the_metrics_of_tpus_while_the_engine_holds_them(google: Google) -> None:
    """libtpu is in the engine's process: without it, the page has no series, which proves nothing."""
    name, address = _ready(google, "tpu")

    def page() -> AcceleratorReading:
        with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=60) as answer:
            return read(CONTRACTS["tpu"], parse(answer.read().decode()))

    reading = wait_for("the metrics of four chips", lambda: (found := page()).units and found)
    assert [key.device for key in reading.units] == ["0", "1", "2", "3"]
    assert all(not unit.unknown and unit.highest is not None for unit in reading.units.values())
    unit = google.cloud.machines / name / "etc/systemd/system/gpufleet-engine.service"
    text = unit.read_text("utf-8")
    assert "--device=/dev/vfio/0" in text
    assert "--gpus" not in text
    google.control("POST", "fault", {"instance": name, "what": "engine-crash"})
    wait_for("the end of libtpu", lambda: not page().units)
    assert page().unknown
