"""Contract test of the ports `ObjectStore`, `Reader`, `Writer` and `Listing`.

Implementations: a folder, S3 and Cloud Storage of the embedded cloud, and the S3 server of `tests/fixtures`, which
other tests use because it can fail on purpose.
"""

import errno
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.cloud import storage

from app.stores import StorageLocation, open_place
from gpufleet.clouds.aws.signature import Credentials
from gpufleet.clouds.aws.signed import S3Store, Session
from serving.cache.store import read_object
from tests.fixtures import local_token
from tests.fixtures.clouds.emulator import RunningCloud
from tests.fixtures.clouds.google_token import google_clients_have_the_token as google_clients_have_the_token
from tests.fixtures.clouds.object_store import serving

_BUCKETS = (f"contract-{number}" for number in count(1))
KEY = "models/chat/file 1+é.bin"
BODY = bytes(range(256)) * 40


@pytest.fixture(
    params=[
        "folder",
        "fake S3",
        pytest.param("s3", marks=pytest.mark.slow),
        pytest.param("gs", marks=pytest.mark.slow),
    ]
)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageLocation]:
    if request.param == "folder":
        yield open_place(str(tmp_path))
        return
    if request.param == "fake S3":
        folder = open_place(str(tmp_path))
        keys = Credentials(access_key="a", secret_key="b")  # noqa: S106 - the server does not check it
        with serving(tmp_path) as server:
            store = S3Store(Session(region="us-east-1", credentials=lambda: keys, endpoint=server.url), "bucket")
            yield StorageLocation(store=store, writer=folder.writer, listing=folder.listing, prefix="")
        return
    cloud: RunningCloud = request.getfixturevalue("cloud")
    variables = {"STORAGE_EMULATOR_HOST": cloud.places.google_url, "AWS_ENDPOINT_URL": cloud.places.api_url}
    variables |= {**local_token.KEYS, "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    bucket = next(_BUCKETS)
    if request.param == "s3":
        cloud.client("s3").create_bucket(Bucket=bucket)
    else:
        options = {"api_endpoint": cloud.places.google_url}
        client: Any = storage.Client(
            project="gpu-fleet-local", credentials=local_token.google(), client_options=options
        )
        client.create_bucket(bucket, location="us-central1")
    yield open_place(f"{request.param}://{bucket}")


def taken(place: StorageLocation, key: str, start: int, length: int, version: str | None = None) -> bytes:
    body, reader = bytearray(), place.store.connect()
    try:
        reader.read_range(key, start, length, version, body.extend)
    finally:
        reader.close()
    return bytes(body)


def test_a_missing_object_raises_file_not_found(place: StorageLocation) -> None:
    place.writer.put_bytes(f"{KEY}.other", BODY)
    assert not place.writer.exists(KEY)
    assert not place.writer.exists("models/chat"), "a part of a key is not an object"
    reader = place.store.connect()
    with pytest.raises(FileNotFoundError):
        reader.size_and_version(KEY)
    with pytest.raises(FileNotFoundError):
        reader.read_range(KEY, 0, 1, None, bytearray().extend)
    assert reader.size_and_version(f"{KEY}.other")[0] == len(BODY), "the connection can be used further"
    reader.close()


def test_an_object_is_read_whole_and_in_ranges(place: StorageLocation) -> None:
    place.writer.put_bytes(KEY, BODY)
    assert place.writer.exists(KEY)
    reader = place.store.connect()
    assert reader.size_and_version(KEY)[0] == len(BODY)
    assert read_object(reader, KEY, len(BODY)) == BODY
    with pytest.raises(ValueError, match="more than"):
        read_object(reader, KEY, len(BODY) - 1)
    reader.close()
    assert taken(place, KEY, 0, 1) == BODY[:1]
    assert taken(place, KEY, 1000, 3000) == BODY[1000:4000]
    assert taken(place, KEY, len(BODY) - 1, 1) == BODY[-1:]


def test_the_size_and_version_are_reported_before_the_first_byte(place: StorageLocation) -> None:
    place.writer.put_bytes(KEY, BODY)
    events: list[object] = []
    reader = place.store.connect()
    known = reader.size_and_version(KEY)
    reader.read_range(
        KEY, 5, 10, known[1], lambda piece: events.append(bytes(piece)), lambda *seen: events.append(seen)
    )
    reader.close()
    assert events[0] == known and b"".join(part for part in events[1:] if isinstance(part, bytes)) == BODY[5:15]


def test_a_range_beyond_the_end_is_an_error_that_may_pass(place: StorageLocation) -> None:
    place.writer.put_bytes(KEY, BODY)
    for start in (len(BODY) - 5, len(BODY) + 5):
        with pytest.raises(ConnectionError):
            taken(place, KEY, start, 10)


def test_an_empty_object_has_size_zero(place: StorageLocation) -> None:
    place.writer.put_bytes(KEY, b"")
    reader = place.store.connect()
    assert reader.size_and_version(KEY)[0] == 0 and read_object(reader, KEY, 10) == b""
    reader.close()


def test_an_object_that_was_replaced_is_not_read_as_its_old_version(place: StorageLocation) -> None:
    place.writer.put_bytes(KEY, BODY)
    reader = place.store.connect()
    _, old = reader.size_and_version(KEY)
    assert reader.size_and_version(KEY)[1] == old, "a version is stable"
    place.writer.put_bytes(KEY, BODY[::-1])
    assert reader.size_and_version(KEY)[1] != old
    with pytest.raises(OSError, match="changed") as error:
        reader.read_range(KEY, 0, 5, old, bytearray().extend)
    assert error.value.errno == errno.ESTALE
    reader.close()
    assert taken(place, KEY, 0, 5) == BODY[::-1][:5], "without a version, the newest is read"


def test_a_file_is_written_as_an_object(place: StorageLocation, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = tmp_path_factory.mktemp("source") / "weights"
    for body in (BODY, BODY[:7]):
        source.write_bytes(body)
        place.writer.put_file(KEY, source)
        assert taken(place, KEY, 0, len(body)) == body
    assert place.listing.objects("models") == [KEY]


def test_lists_are_sorted_and_a_prefix_ends_at_a_slash(place: StorageLocation) -> None:
    for key in ("models/b/2", "models/a/x/1", "models-old/c/1", "models/a/0", "top"):
        place.writer.put_bytes(key, b"x")
    assert place.listing.objects("models") == ["models/a/0", "models/a/x/1", "models/b/2"]
    assert place.listing.objects("models/") == place.listing.objects("models")
    assert place.listing.folders("models") == ["a", "b"]
    assert place.listing.folders("") == ["models", "models-old"]
    assert place.listing.objects("")[-1] == "top"
    assert place.listing.objects("none") == place.listing.folders("none") == []
