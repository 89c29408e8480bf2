"""Buckets and folders with models, by URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `file:///folder`, a path."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from app.errors import AppError, ErrorCode
from app.fleets import split_url
from serving.cache.store import FolderStore, ObjectStore, PartConsumer, Writer

_PIECE: Final = 8 * 1024 * 1024


class Listing(Protocol):
    """Lists keys of a storage location; an ObjectStore reads objects by key."""

    def folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that contain something, sorted. Raises OSError."""
        ...

    def objects(self, prefix: str) -> list[str]:
        """Full keys of all objects below `prefix`, sorted. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLocation:
    """The storage location of a URL."""

    store: ObjectStore
    writer: Writer
    listing: Listing
    prefix: str
    """Without slashes at its ends; empty for the root."""
    folder: Path | None = None
    """The folder of this machine; None: it is a bucket."""

    @property
    def is_bucket(self) -> bool:
        return self.folder is None

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


def open_place(url: str) -> StorageLocation:
    """The storage location of a URL. Raises AppError."""
    parts = split_url(url)
    if parts.scheme in ("", "file"):
        folder = Path(parts.path if parts.scheme else url).expanduser()
        store = FolderStore(folder)
        return StorageLocation(store=store, writer=store, listing=_FolderListing(folder), prefix="", folder=folder)
    if not parts.netloc:
        raise AppError(f"{url}: contains no bucket name", ErrorCode.WRONG_USE)
    prefix = parts.path.strip("/")
    if parts.scheme == "s3":
        return _s3(parts.netloc, prefix)
    if parts.scheme == "gs":
        return _gcs(parts.netloc, prefix)
    raise AppError(
        f"{url}: the scheme {parts.scheme!r} is not supported; use s3://, gs://, file:// or a path",
        ErrorCode.WRONG_USE,
    )


def fetch_file(place: StorageLocation, key: str, path: Path) -> str:
    """Read an object into a file. Returns its sha256. Raises OSError."""
    reader = place.store.connect()
    try:
        size, version = reader.size_and_version(key)
        with path.open("wb") as file:
            for start in range(0, size, _PIECE):
                reader.read_range(key, start, min(_PIECE, size - start), version, _into(file))
    finally:
        reader.close()
    return digest_of(path)


def digest_of(path: Path) -> str:
    """The sha256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _into(file: BinaryIO) -> PartConsumer:
    def take(piece: memoryview) -> None:
        file.write(piece)

    return take


class _FolderListing:
    def __init__(self, root: Path) -> None:
        self._root = root

    def folders(self, prefix: str) -> list[str]:
        folder = self._root / prefix
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    def objects(self, prefix: str) -> list[str]:
        found = (self._root / prefix).rglob("*")
        return sorted(path.relative_to(self._root).as_posix() for path in found if path.is_file())


def _s3(bucket: str, prefix: str) -> StorageLocation:
    import boto3
    from botocore.exceptions import BotoCoreError

    from gpufleet.clouds.aws.calls import LOGIN
    from gpufleet.clouds.aws.signature import Credentials
    from gpufleet.clouds.aws.signed import S3Store, session

    try:
        mine = boto3.Session()
        found = mine.get_credentials()
    except BotoCoreError as error:
        raise AppError(f"s3://{bucket}: no AWS credentials: {error}; {LOGIN}") from error
    if found is None:
        raise AppError(f's3://{bucket}: no AWS credentials: {LOGIN} (locally: eval "$(gpufleet local env)")')

    def credentials() -> Credentials:
        frozen = found.get_frozen_credentials()
        return Credentials(
            access_key=frozen.access_key or "", secret_key=frozen.secret_key or "", session_token=frozen.token
        )

    store = S3Store(session(mine.region_name or "us-east-1", credentials), bucket)
    place = _S3Place(mine.client("s3"), bucket)
    return StorageLocation(store=store, writer=place, listing=place, prefix=prefix)


class _S3Place:
    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def exists(self, key: str) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.head_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                return False
            raise OSError(f"s3://{self._bucket}/{key}: {error}") from error
        except BotoCoreError as error:
            raise OSError(f"s3://{self._bucket}/{key}: {error}") from error
        return True

    def put_bytes(self, key: str, body: bytes) -> None:
        self._do(lambda: self._client.put_object(Bucket=self._bucket, Key=key, Body=body), key)

    def put_file(self, key: str, path: Path) -> None:
        self._do(lambda: self._client.upload_file(str(path), self._bucket, key), key)

    def folders(self, prefix: str) -> list[str]:
        pages = self._pages(f"{prefix.strip('/')}/".lstrip("/"), Delimiter="/")
        found = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ())]
        return sorted(one.rstrip("/").rpartition("/")[2] for one in found)

    def objects(self, prefix: str) -> list[str]:
        pages = self._pages(f"{prefix.strip('/')}/".lstrip("/"))
        return sorted(one["Key"] for page in pages for one in page.get("Contents", ()))

    def _pages(self, prefix: str, **options: str) -> list[Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        pages = self._client.get_paginator("list_objects_v2")
        try:
            return list(pages.paginate(Bucket=self._bucket, Prefix=prefix, **options))
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"s3://{self._bucket}/{prefix}: {error}") from error

    def _do(self, work: Callable[[], object], key: str) -> None:
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            work()
        except (BotoCoreError, ClientError, S3UploadFailedError) as error:
            raise OSError(f"s3://{self._bucket}/{key}: {error}") from error


def _gcs(bucket: str, prefix: str) -> StorageLocation:
    import os

    from gpufleet.clouds.gcp.emulator import emulator_token
    from gpufleet.clouds.gcp.signed import GcsStore

    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    token = (lambda: emulator_token(endpoint)) if endpoint else _google_tokens()
    place = _GcsPlace(bucket)
    return StorageLocation(store=GcsStore(bucket, token), writer=place, listing=place, prefix=prefix)


def _google_tokens() -> Callable[[], str]:
    from gpufleet.clouds.gcp.login import tokens
    from gpufleet.domain.activity import CloudError

    try:
        return tokens("https://www.googleapis.com/auth/devstorage.read_write")
    except CloudError as error:
        raise AppError(str(error)) from error


class _GcsPlace:
    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def exists(self, key: str) -> bool:
        from gpufleet.clouds.gcp.objects import read_object

        try:
            read_object(self._bucket, key)
        except FileNotFoundError:
            return False
        return True

    def put_bytes(self, key: str, body: bytes) -> None:
        from gpufleet.clouds.gcp.objects import write_object

        write_object(self._bucket, key, body)

    def put_file(self, key: str, path: Path) -> None:
        from gpufleet.clouds.gcp.objects import write_file

        write_file(self._bucket, key, path)

    def folders(self, prefix: str) -> list[str]:
        from gpufleet.clouds.gcp.objects import list_objects

        return list_objects(self._bucket, f"{prefix.strip('/')}/".lstrip("/"), folders=True)

    def objects(self, prefix: str) -> list[str]:
        from gpufleet.clouds.gcp.objects import list_objects

        return list_objects(self._bucket, f"{prefix.strip('/')}/".lstrip("/"))
