"""The few Google Cloud calls that an instance makes, with the standard library: the node agent carries this.

`GcsStore` has the shape that the model cache asks for. Errors are the standard library's: FileNotFoundError,
PermissionError, OSError with ESTALE (the object changed) are final, ConnectionError and TimeoutError may pass.
"""

import base64
import contextlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

from gpufleet.clouds import objects, wire

_METADATA_TIMEOUT_S: Final = 3.0
_RENEW_BEFORE: Final = timedelta(minutes=3)
STORAGE: Final = "https://storage.googleapis.com"


@dataclass(slots=True, kw_only=True)
class GoogleMetadata:
    """The metadata server as an instance sees it, at $GCE_METADATA_HOST or where Google has it."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    host: str = field(default_factory=lambda: os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal")
    _token: str | None = field(default=None, init=False)
    _token_until: datetime | None = field(default=None, init=False)

    def get(self, path: str) -> str | None:
        """A value below computeMetadata/v1/; None where there is none. Raises OSError."""
        wish = urllib.request.Request(
            f"http://{self.host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
        )
        try:
            with urllib.request.urlopen(wish, timeout=_METADATA_TIMEOUT_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise OSError(f"metadata {path}: HTTP {error.code}") from error
        except (HTTPException, ValueError) as error:
            raise ConnectionError(f"metadata {path}: {error}") from error

    def need(self, path: str) -> str:
        """A value that every instance has. Raises OSError."""
        found = self.get(path)
        if found is None:
            raise OSError(f"metadata {path}: there is none")
        return found

    def token(self) -> str:
        """An access token of the instance's service account, good now. Raises OSError."""
        now = self.now()
        if self._token is None or self._token_until is None or now >= self._token_until:
            said = self.need("instance/service-accounts/default/token")
            try:
                found = json.loads(said)
                token, lasts = str(found["access_token"]), timedelta(seconds=int(found["expires_in"]))
            except (ValueError, KeyError, TypeError, OverflowError):
                # without the cause: it may show the token
                raise ConnectionError("metadata instance/service-accounts/default/token: gives no token") from None
            self._token, self._token_until = token, now + lasts - _RENEW_BEFORE
        return self._token


def call(method: str, url: str, token: str | None, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One JSON call of a Google API. Raises OSError with Google's words."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    wish = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(wish, timeout=wire.TIMEOUT_S) as answer:
            found: object = json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        words = error.read(300).decode(errors="replace")
        raise OSError(f"{method} {urlsplit(url).path}: HTTP {error.code}: {words}") from error
    except (HTTPException, ValueError) as error:
        # without what was read: it may be a secret
        raise ConnectionError(f"{method} {urlsplit(url).path}: no whole answer ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise ConnectionError(f"{method} {urlsplit(url).path}: an answer that is no JSON object")
    return cast("dict[str, Any]", found)


def secret(name: str, token: str | None) -> str:
    """The newest version of a secret, `projects/P/secrets/NAME`. Raises OSError."""
    base = os.environ.get("GPUFLEET_SECRETMANAGER_ENDPOINT", "https://secretmanager.googleapis.com")
    version = name if "/versions/" in name else f"{name}/versions/latest"
    found = call("GET", f"{base}/v1/{version}:access", token)
    try:
        return base64.b64decode(found["payload"]["data"]).decode()
    except (KeyError, TypeError, ValueError):
        # without the cause: it may show the value
        raise ConnectionError(f"{version}: an answer without a value") from None


class GcsStore:
    """A bucket to read from. A `token` that gives None: an emulator that asks for none."""

    def __init__(self, bucket: str, token: Callable[[], str | None]) -> None:
        self._bucket = bucket
        self._token = token
        self._server = wire.Server((os.environ.get("STORAGE_EMULATOR_HOST") or STORAGE).rstrip("/"))

    def connect(self) -> "GcsReader":
        """A connection of its own."""
        return GcsReader(self._server, self._bucket, self._token)


class GcsReader:
    """One connection to a bucket, opened again when it broke; used by one thread."""

    def __init__(self, server: wire.Server, bucket: str, token: Callable[[], str | None]) -> None:
        self._bucket, self._token = bucket, token
        self._connection = wire.Connection(server)
        self._buffer = objects.Buffer()

    def size_and_version(self, key: str) -> tuple[int, str]:
        """Bytes of an object and its generation. Raises OSError."""
        with self._answer(key, "", {}) as answer:
            objects.check(answer, key)
            try:
                found = json.loads(wire.read(answer))
                return int(found["size"]), str(found["generation"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConnectionError(f"{key}: the store does not say how large it is") from error

    def read_range(  # noqa: PLR0913 - a range, of which version, and who hears of it
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: Callable[[memoryview], None],
        told: objects.Told | None = None,
    ) -> None:
        """Give exactly `length` bytes from `start` to `take`, and first size and generation to `told`.

        Raises OSError.
        """
        asked = range(start, start + length)
        query = "alt=media" + (f"&ifGenerationMatch={version}" if version else "")
        with self._answer(key, query, {"Range": objects.range_header(asked)}) as answer:
            if told is not None and answer.status in objects.TELLING:
                told(objects.whole_size(answer), answer.headers.get("x-goog-generation", ""))
            objects.check(answer, key)
            objects.pass_on(answer, key, asked, self._buffer.of(length), take)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _answer(
        self, key: str, query: str, headers: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[HTTPResponse]:
        target = f"/storage/v1/b/{self._bucket}/o/{quote(key, safe='')}" + (f"?{query}" if query else "")
        sent = dict(headers)
        if (token := self._token()) is not None:
            sent["Authorization"] = f"Bearer {token}"
        return self._connection.request("GET", target, sent)
