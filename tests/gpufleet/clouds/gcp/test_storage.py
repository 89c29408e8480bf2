"""Objects, secrets, policies and DNS records of the embedded Google Cloud."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import storage

from gpufleet.clouds.gcp.signed import GcsStore
from gpufleet.clouds.gcp.signed import secret as read_secret
from tests.fixtures.clouds.emulator import RunningCloud, start_cloud, stop_cloud
from tests.fixtures.local_token import BEARER, TOKEN, google

pytestmark = pytest.mark.slow
PROJECT = "gpu-fleet-local"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    cloud = start_cloud(tmp_path_factory.mktemp("google"))
    try:
        yield cloud
    finally:
        stop_cloud(cloud)


@pytest.fixture
def client(cloud: RunningCloud) -> Any:
    options = {"api_endpoint": cloud.places.google_url}
    return storage.Client(project=PROJECT, credentials=google(), client_options=options)


@pytest.fixture
def bucket(client: Any, request: pytest.FixtureRequest) -> Any:
    name = request.node.name.replace("_", "-").split("[")[0][:60].strip("-")
    made = client.bucket(name)
    made.versioning_enabled = True
    made.create(location="us-central1")
    return made


def test_an_object_is_written_and_read_with_checksums(bucket: Any) -> None:
    blob = bucket.blob("models/chat/served.json")
    blob.upload_from_string(b'{"version": 1}', content_type="application/json")
    read = bucket.get_blob("models/chat/served.json")
    assert (read.size, read.content_type) == (14, "application/json")
    assert read.download_as_bytes(checksum="crc32c") == b'{"version": 1}'
    assert [found.name for found in bucket.list_blobs(prefix="models/")] == ["models/chat/served.json"]
    assert bucket.get_blob("models/none") is None


def test_a_file_is_uploaded_in_parts_and_read_in_ranges(bucket: Any, tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096 * 2
    source = tmp_path / "weights"
    source.write_bytes(body)
    blob = bucket.blob("big", chunk_size=256 * 1024)
    blob.upload_from_filename(str(source))
    assert bucket.blob("big").download_as_bytes(start=1000, end=1999) == body[1000:2000]
    assert bucket.blob("big").download_as_bytes() == body


def test_a_conditional_write_happens_only_once(bucket: Any) -> None:
    blob = bucket.blob("lease")
    blob.upload_from_string(b"mine", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("lease").upload_from_string(b"also mine", if_generation_match=0)
    first = bucket.get_blob("lease").generation
    bucket.blob("lease").upload_from_string(b"changed", if_generation_match=first)
    assert bucket.get_blob("lease").generation > first
    assert bucket.blob("lease", generation=first).download_as_bytes() == b"mine", "versioned: the old one is there"
    bucket.blob("lease").delete()
    assert bucket.get_blob("lease") is None


def test_the_reader_reads_ranges_of_one_generation(
    bucket: Any, cloud: RunningCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.places.google_url)
    bucket.blob("models/chat/a b").upload_from_string(b"0123456789")
    reader = GcsStore(bucket.name, lambda: TOKEN).connect()
    size, version = reader.size_and_version("models/chat/a b")
    assert size == 10
    taken = bytearray()
    reader.read_range("models/chat/a b", 2, 5, version, taken.extend)
    assert taken == b"23456"
    bucket.blob("models/chat/a b").upload_from_string(b"abcdefghij")
    with pytest.raises(OSError, match="changed while it was read"):
        reader.read_range("models/chat/a b", 2, 5, version, taken.extend)
    with pytest.raises(FileNotFoundError):
        reader.size_and_version("models/chat/none")
    reader.close()


def test_a_bucket_with_objects_is_not_deleted(bucket: Any) -> None:
    bucket.blob("kept").upload_from_string(b"x")
    with pytest.raises(exceptions.Conflict):
        bucket.delete()
    with pytest.raises(exceptions.Conflict):
        bucket.client.create_bucket(bucket.name)


def _call(cloud: RunningCloud, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{cloud.places.google_url}{path}", data=data, method=method, headers=BEARER)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_newest_version_of_a_secret_is_read(cloud: RunningCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_SECRETMANAGER_ENDPOINT", cloud.places.google_url)
    base = f"/v1/projects/{PROJECT}/secrets"
    assert _call(cloud, "POST", f"{base}?secretId=token", {"replication": {"automatic": {}}})[0] == 200
    assert _call(cloud, "POST", f"{base}?secretId=token", {})[0] == 409
    for value in (b"old", b"new"):
        payload = {"payload": {"data": base64.b64encode(value).decode()}}
        assert _call(cloud, "POST", f"{base}/token:addVersion", payload)[0] == 200
    assert read_secret(f"projects/{PROJECT}/secrets/token", TOKEN) == "new"
    assert read_secret(f"projects/{PROJECT}/secrets/token/versions/1", TOKEN) == "old"


def test_a_policy_is_changed_only_with_the_current_etag(cloud: RunningCloud) -> None:
    status, account = _call(cloud, "POST", f"/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "gpu-machine"})
    assert (status, account["email"]) == (200, f"gpu-machine@{PROJECT}.iam.gserviceaccount.com")
    _, policy = _call(cloud, "POST", f"/v1/projects/{PROJECT}:getIamPolicy", {})
    binding = {"role": "roles/viewer", "members": [f"serviceAccount:{account['email']}"]}
    changed = {"policy": {**policy, "bindings": [binding]}}
    assert _call(cloud, "POST", f"/v1/projects/{PROJECT}:setIamPolicy", changed)[0] == 200
    assert _call(cloud, "POST", f"/v1/projects/{PROJECT}:setIamPolicy", changed)[0] == 409
    made_up = {"policy": {"bindings": [{"role": f"projects/{PROJECT}/roles/none", "members": []}]}}
    status, answer = _call(cloud, "POST", f"/v1/projects/{PROJECT}:setIamPolicy", made_up)
    assert (status, "does not exist" in answer["error"]["message"]) == (400, True)


def test_a_dns_record_must_belong_to_its_zone(cloud: RunningCloud) -> None:
    base = f"/dns/v1/projects/{PROJECT}/managedZones"
    zone = {"name": "inside", "dnsName": "fleet.internal.", "description": "d", "visibility": "private"}
    assert _call(cloud, "POST", base, zone)[0] == 200
    record = {"name": "router.fleet.internal.", "type": "A", "ttl": 30, "rrdatas": ["127.16.64.9"]}
    assert _call(cloud, "POST", f"{base}/inside/rrsets", record)[0] == 200
    assert _call(cloud, "GET", f"{base}/inside/rrsets/router.fleet.internal./A")[1]["rrdatas"] == ["127.16.64.9"]
    assert _call(cloud, "DELETE", f"{base}/inside")[1]["error"]["errors"][0]["reason"] == "containerNotEmpty"
    elsewhere = {**record, "name": "router.example.com."}
    assert _call(cloud, "POST", f"{base}/inside/rrsets", elsewhere)[0] == 400
