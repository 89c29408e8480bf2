"""Contract test of the node agent's port `CloudServices`: EC2, Compute Engine, and `FakeCloud`.

The real ones use metadata, secrets and buckets of instances on the embedded cloud.
"""

import base64
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.cloud import storage

from gpufleet.clouds.aws.metadata import Ec2Metadata
from gpufleet.clouds.gcp.signed import GoogleMetadata
from hosts.node.aws import AwsServices
from hosts.node.google import GoogleServices
from hosts.node.ports import CloudNotice, CloudServices, Notice
from serving.cache.store import read_object
from tests.fixtures import local_token, signing
from tests.fixtures.clouds.emulator import REGION, RunningCloud, make_group, make_template, wait_for
from tests.fixtures.clouds.google import PROJECT, Google
from tests.fixtures.clouds.google_token import google_clients_have_the_token as google_clients_have_the_token
from tests.fixtures.node.fake_node import FakeCloud

_NAMES = (f"side{number}" for number in count(1))
VALUE = signing.ENGINE_KEY


@dataclass(kw_only=True)
class InstanceOnCloud:
    """A spot instance with its secret and its bucket, which has the object `key`."""

    side: CloudServices
    instance_id: str
    machine_type: str
    secret: str
    missing_secret: str
    bucket: str
    preempt: Callable[[], object]
    """The cloud gives its notice."""


@pytest.fixture(
    params=["fake", pytest.param("aws", marks=pytest.mark.slow), pytest.param("gcp", marks=pytest.mark.slow)]
)
def instance(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InstanceOnCloud]:
    if request.param == "fake":
        yield _fake(tmp_path)
        return
    cloud: RunningCloud = request.getfixturevalue("cloud")
    name = next(_NAMES)
    if request.param == "aws":
        yield _aws(cloud, name, monkeypatch)
        return
    google = Google(cloud=cloud)
    yield _google(google, name, monkeypatch)
    google.groups.delete_unary(project=PROJECT, zone="us-central1-a", instance_group_manager=name)


def _fake(folder: Path) -> InstanceOnCloud:
    (folder / "key").write_bytes(b"content")
    side = FakeCloud(folder)

    def preempt() -> None:
        at = datetime.now(UTC) + timedelta(seconds=60)
        side.announced.append(CloudNotice(kind=Notice.PREEMPTION, at=at))

    return InstanceOnCloud(
        side=side, instance_id=side.instance_id, machine_type="g6.xlarge", secret="ssm:/engine-key",  # noqa: S106
        missing_secret="ssm:/missing", bucket="s3://models", preempt=preempt,  # noqa: S106
    )  # fmt: skip


def _aws(cloud: RunningCloud, name: str, patch: pytest.MonkeyPatch) -> InstanceOnCloud:
    make_group(cloud, name, make_template(cloud, name), size=1, spot=True, types=("g6.xlarge",))
    wait_for("the member", lambda: cloud.in_service(name))
    (found,) = cloud.instances(name)
    patch.setenv("AWS_ENDPOINT_URL", cloud.places.api_url)
    for variable in local_token.KEYS:
        patch.delenv(variable, raising=False)
    cloud.client("ssm").put_parameter(Name=f"/{name}", Value=VALUE, Type="SecureString")
    cloud.client("s3").create_bucket(Bucket=f"models-{name}")
    cloud.client("s3").put_object(Bucket=f"models-{name}", Key="key", Body=b"content")
    endpoint = f"http://{found['PrivateIpAddress']}:1338"
    notice = {"instance": found["InstanceId"], "notice_s": 60}
    return InstanceOnCloud(
        side=AwsServices(Ec2Metadata(endpoint=endpoint, now=lambda: datetime.now(UTC)), REGION),
        instance_id=found["InstanceId"], machine_type="g6.xlarge", secret=f"ssm:/{name}", missing_secret="ssm:/none",  # noqa: S106
        bucket=f"s3://models-{name}", preempt=lambda: cloud.control("POST", "preempt", notice),
    )  # fmt: skip


def _google(google: Google, name: str, patch: pytest.MonkeyPatch) -> InstanceOnCloud:
    url = google.cloud.places.google_url
    if not google.has_network():
        google.make_network()
    google.make_group(name, google.make_template(name), 1)
    (member,) = wait_for("the member", lambda: google.running(name))
    address = google.instance(member.name).network_interfaces[0].network_i_p
    patch.setenv("STORAGE_EMULATOR_HOST", url)
    patch.setenv("GPUFLEET_SECRETMANAGER_ENDPOINT", url)
    secrets = f"{url}/v1/projects/{PROJECT}/secrets"
    _post(f"{secrets}?secretId={name}", {"replication": {"automatic": {}}})
    _post(f"{secrets}/{name}:addVersion", {"payload": {"data": base64.b64encode(VALUE.encode()).decode()}})
    client: Any = storage.Client(
        project=PROJECT, credentials=local_token.google(), client_options={"api_endpoint": url}
    )
    client.create_bucket(f"models-{name}", location="us-central1").blob("key").upload_from_string(b"content")
    notice = {"instance": member.name, "notice_s": 60}
    return InstanceOnCloud(
        side=GoogleServices(GoogleMetadata(host=f"{address}:1338")),
        instance_id=member.name, machine_type="g2-standard-8",
        secret=f"gcp-secret:projects/{PROJECT}/secrets/{name}",
        missing_secret=f"gcp-secret:projects/{PROJECT}/secrets/none", bucket=f"gs://models-{name}",
        preempt=lambda: google.control("POST", "preempt", notice),
    )  # fmt: skip


def _post(url: str, body: Any) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), local_token.BEARER, method="POST")
    with urllib.request.urlopen(request, timeout=60):
        pass


def test_an_instance_knows_its_id_its_address_and_its_machine_type(instance: InstanceOnCloud) -> None:
    side = instance.side
    assert (side.instance_id, side.machine_type) == (instance.instance_id, instance.machine_type)
    assert side.address.startswith("127.")


def test_a_secret_is_read_and_a_missing_one_raises(instance: InstanceOnCloud) -> None:
    assert instance.side.secret(instance.secret) == VALUE
    for wrong in (instance.missing_secret, "engine-key", "vault:/engine-key", ""):
        with pytest.raises(OSError):  # noqa: PT011 - any subclass: the boot retries
            instance.side.secret(wrong)


def test_the_bucket_is_opened_by_its_url(instance: InstanceOnCloud) -> None:
    reader = instance.side.store(instance.bucket).connect()
    assert read_object(reader, "key", 100) == b"content"
    reader.close()
    with pytest.raises(OSError, match="bucket"):
        instance.side.store("file:///models")


def test_a_preemption_is_announced_until_the_instance_ends(instance: InstanceOnCloud) -> None:
    assert instance.side.notices() == []
    before = datetime.now(UTC)
    instance.preempt()

    def preemptions() -> list[CloudNotice]:
        return [notice for notice in instance.side.notices() if notice.kind is Notice.PREEMPTION]

    (notice,) = wait_for("the notice", preemptions)
    assert notice.at is not None and notice.at.tzinfo is not None
    assert before < notice.at <= before + timedelta(seconds=125), "within two minutes"
    assert preemptions() == [notice], "a repeated notice has the same time"
