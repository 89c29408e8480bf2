"""Creates what the Google project has before the first `pulumi up`: the bucket, two keys, a model. Idempotent."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from gpufleet.toolchain.folders import Folders
from localcloud import addresses
from localcloud.gcp.locations import PROJECT
from localcloud.lifecycle import seed as aws_seed
from localcloud.lifecycle.environment import token_of
from localcloud.lifecycle.seed import MODEL, REVISION, make_model
from localcloud.lifecycle.waiting import LocalError, request_json
from serving.cache import manifest, publish

BUCKET: Final = "gpu-fleet-local-gcp-models"
ENGINE_KEY: Final = "gpu-fleet-local-engine-key"
ORDER_KEY: Final = "gpu-fleet-local-order-key"
"""Names of the secrets. Their values are those of the AWS side (`localcloud.lifecycle.seed`), which is made first."""
_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Api:
    """The embedded Google Cloud, called with the token of its start."""

    token: str

    def call(self, method: str, path: str, body: bytes | Mapping[str, Any] | None = None) -> tuple[int, Any]:
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        url = f"{addresses.Places().google_url}{path}"
        status, answer = request_json(url, sent, method, _LIMIT_S, token=self.token)
        return status, json.loads(answer or b"{}")

    def made(self, method: str, path: str, body: Mapping[str, Any] | bytes) -> None:
        """Create a resource that may exist. Raises LocalError."""
        status, answer = self.call(method, path, body)
        if status not in (200, 409):
            raise LocalError(f"the embedded Google Cloud refused {method} {path}: {answer}")


class GoogleSeedBucket:
    """The models' bucket, as publishing needs it."""

    def __init__(self, token: str) -> None:
        self._api = _Api(token)

    def exists(self, key: str) -> bool:
        return self._api.call("GET", f"/storage/v1/b/{BUCKET}/o/{quote(key, safe='')}")[0] == 200

    def put_bytes(self, key: str, body: bytes) -> None:
        place = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}"
        self._api.made("POST", place, body)

    def put_file(self, key: str, path: Path) -> None:
        self.put_bytes(key, path.read_bytes())


def seed(folders: Folders, announce: Callable[[str], None]) -> None:
    """Create what is missing. Raises LocalError."""
    token = token_of(folders)
    api = _Api(token)
    try:
        api.made("POST", f"/storage/v1/b?project={PROJECT}", {"name": BUCKET, "versioning": {"enabled": True}})
        for name, parameter in ((ENGINE_KEY, aws_seed.ENGINE_KEY), (ORDER_KEY, aws_seed.ORDER_KEY)):
            _make_secret(api, name, aws_seed.secret(parameter, token))
        _put_model(folders, token, announce)
    except OSError as error:
        raise LocalError(f"the embedded Google Cloud does not answer: {error}; see {folders.logs}") from error


def _make_secret(api: _Api, name: str, value: str) -> None:
    base = f"/v1/projects/{PROJECT}/secrets"
    api.made("POST", f"{base}?secretId={name}", {"replication": {"automatic": {}}})
    if api.call("GET", f"{base}/{name}/versions/latest:access")[0] == 404:
        data = base64.b64encode(value.encode()).decode()
        api.made("POST", f"{base}/{name}:addVersion", {"payload": {"data": data}})


def _put_model(folders: Folders, token: str, announce: Callable[[str], None]) -> None:
    folder = make_model(folders)
    described = manifest.describe(folder, name=MODEL, revision=REVISION)
    bucket = GoogleSeedBucket(token)
    if publish.add(bucket, folder, described):
        announce(f"model {MODEL}: also in gs://{BUCKET}, digest {described.digest[:12]}…")
    if not bucket.exists(f"models/{MODEL}/served.json"):
        publish.rollout(bucket, name=MODEL, digest=described.digest)
