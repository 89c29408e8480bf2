"""Creates what the account has before the first `pulumi up`: the bucket, two keys, a model. Idempotent."""

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gpufleet.domain.files import write_atomically
from gpufleet.domain.rsa import EXPONENT, public_key
from gpufleet.toolchain.folders import Folders
from localcloud import addresses, tiny_model
from localcloud.aws.sdk import BotoCoreError, ClientError, Config, session
from localcloud.lifecycle.environment import token_of
from localcloud.lifecycle.waiting import LocalError
from serving.cache import manifest, publish

BUCKET: Final = "gpu-fleet-local-models"
ENGINE_KEY: Final = "/gpu-fleet/local/engine-key"
ORDER_KEY: Final = "/gpu-fleet/local/order-key"
"""Names of the parameters. They are created at each start: the cloud keeps its state in memory only."""
_ORDER_KEY_BITS: Final = 3072
MODEL: Final = "chat"
REVISION: Final = "made-on-the-spot"


def client(service: str, token: str) -> Any:
    """A client of the embedded cloud; it cannot reach any other endpoint."""
    made = session(access_key=addresses.ACCESS_KEY, secret_key=token, region=addresses.REGION)
    settings = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"total_max_attempts": 2},
        proxies={},
        s3={"addressing_style": "path"},
    )
    return made.client(service, endpoint_url=addresses.Places().api_url, config=settings)


class SeedBucket:
    """The models' bucket, as publishing needs it."""

    def __init__(self, token: str) -> None:
        self._s3 = client("s3", token)

    def exists(self, key: str) -> bool:
        return "Contents" in self._s3.list_objects_v2(Bucket=BUCKET, Prefix=key, MaxKeys=1)

    def put_bytes(self, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=body)

    def put_file(self, key: str, path: Path) -> None:
        self._s3.upload_file(str(path), BUCKET, key)


def seed(folders: Folders, announce: Callable[[str], None]) -> None:
    """Create what is missing. Raises LocalError."""
    token = token_of(folders)
    try:
        _make_bucket(token)
        _make_parameter(token, ENGINE_KEY, lambda: secrets.token_hex(32))
        _make_parameter(token, ORDER_KEY, _new_order_key)
        _write_public_key(folders, token)
        _put_model(folders, token, announce)
    except (BotoCoreError, ClientError) as error:
        raise LocalError(f"the embedded cloud refused: {error}; see {folders.logs / 'cloud.log'}") from error


def _make_bucket(token: str) -> None:
    s3 = client("s3", token)
    if BUCKET not in (bucket["Name"] for bucket in s3.list_buckets()["Buckets"]):
        s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})


def _make_parameter(token: str, name: str, value: Callable[[], str]) -> None:
    ssm = client("ssm", token)
    try:
        ssm.get_parameter(Name=name)
    except ssm.exceptions.ParameterNotFound:
        ssm.put_parameter(Name=name, Value=value(), Type="SecureString", Overwrite=False)


def secret(name: str, token: str) -> str:
    """The value of a parameter."""
    return str(client("ssm", token).get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])


def _new_order_key() -> str:
    made = generate_private_key(EXPONENT, _ORDER_KEY_BITS)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _write_public_key(folders: Folders, token: str) -> None:
    """Write the public part of the order key for `pulumi up` (`stacks.local_key`)."""
    private = load_pem_private_key(secret(ORDER_KEY, token).encode(), password=None)
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    folders.order_key.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(folders.order_key, f"{public_key(pem.decode()).text}\n".encode())


def make_model(folders: Folders) -> Path:
    """The model's folder, created once."""
    folder = folders.models / MODEL
    whole = folders.models / f"{MODEL}.whole"
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        tiny_model.make(folder)
        whole.touch()
    return folder


def _put_model(folders: Folders, token: str, announce: Callable[[str], None]) -> None:
    folder = make_model(folders)
    described = manifest.describe(folder, name=MODEL, revision=REVISION)
    bucket = SeedBucket(token)
    if publish.add(bucket, folder, described):
        size = sum(file.size for file in described.files)
        announce(f"model {MODEL}: {len(described.files)} files, {size / 1e6:.1f} MB, digest {described.digest[:12]}…")
    if not bucket.exists(f"models/{MODEL}/served.json"):
        publish.rollout(bucket, name=MODEL, digest=described.digest)
