"""The Google Cloud calls of the node agent, which contains this module: sent with the standard library.

`GcsStore` has the interface that the model cache requires. Errors are exceptions of the standard library:
FileNotFoundError, PermissionError and OSError with ESTALE (the object changed) are permanent, ConnectionError and
TimeoutError may be temporary.
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
    """Client of the metadata server at $GCE_METADATA_HOST, or at Google's default host."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    host: str = field(default_factory=lambda: os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal")
    _token: str | None = field(default=None, init=False)
    _token_until: datetime | None = field(default=None, init=False)

    def get(self, path: str) -> str | None:
        """The value at a path below computeMetadata/v1/; None if it does not exist (404). Raises OSError."""
        request = urllib.request.Request(
            f"http://{self.host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_METADATA_TIMEOUT_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise OSError(f"metadata {path}: HTTP {error.code}") from error
        except (HTTPException, ValueError) as error:
            raise ConnectionError(f"metadata {path}: {error}") from error

    def need(self, path: str) -> str:
        """The value at a path that all instances have. Raises OSError, also if it does not exist."""
        found = self.get(path)
        if found is None:
            raise OSError(f"metadata {path}: does not exist")
        return found

    def token(self) -> str:
        """A valid access token of the instance's service account. Raises OSError."""
        now = self.now()
        if self._token is None or self._token_until is None or now >= self._token_until:
            answer = self.need("instance/service-accounts/default/token")
            try:
                found = json.loads(answer)
                token, lasts = str(found["access_token"]), timedelta(seconds=int(found["expires_in"]))
            except (ValueError, KeyError, TypeError, OverflowError):
                # without the cause, which may contain the token
                raise ConnectionError(
                    "metadata instance/service-accounts/default/token: the answer contains no token"
                ) from None
            self._token, self._token_until = token, now + lasts - _RENEW_BEFORE
        return self._token


def call(method: str, url: str, token: str | None, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Make one JSON call to a Google API. Raises OSError with Google's message."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=wire.TIMEOUT_S) as answer:
            found: object = json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        message = error.read(300).decode(errors="replace")
        raise OSError(f"{method} {urlsplit(url).path}: HTTP {error.code}: {message}") from error
    except (HTTPException, ValueError) as error:
        # without the content, which may be a secret
        raise ConnectionError(
            f"{method} {urlsplit(url).path}: the answer is incomplete ({type(error).__name__})"
        ) from None
    if not isinstance(found, dict):
        raise ConnectionError(f"{method} {urlsplit(url).path}: the answer is not a JSON object")
    return cast("dict[str, Any]", found)


def secret(name: str, token: str | None) -> str:
    """Read the newest version of a secret, `projects/P/secrets/NAME`, or the version in `name`. Raises OSError."""
    base = os.environ.get("GPUFLEET_SECRETMANAGER_ENDPOINT", "https://secretmanager.googleapis.com")
    version = name if "/versions/" in name else f"{name}/versions/latest"
    found = call("GET", f"{base}/v1/{version}:access", token)
    try:
        return base64.b64decode(found["payload"]["data"]).decode()
    except (KeyError, TypeError, ValueError):
        # without the cause, which may contain the value
        raise ConnectionError(f"{version}: the answer contains no value") from None


class GcsStore:
    """A bucket, for reading. `token` returns None for an emulator that requires no token."""

    def __init__(self, bucket: str, token: Callable[[], str | None]) -> None:
        self._bucket = bucket
        self._token = token
        self._server = wire.Server((os.environ.get("STORAGE_EMULATOR_HOST") or STORAGE).rstrip("/"))

    def connect(self) -> "GcsReader":
        """A reader with a new connection."""
        return GcsReader(self._server, self._bucket, self._token)


class GcsReader:
    """One connection to a bucket, for use by one thread. It reopens after a failure."""

    def __init__(self, server: wire.Server, bucket: str, token: Callable[[], str | None]) -> None:
        self._bucket, self._token = bucket, token
        self._connection = wire.Connection(server)
        self._buffer = objects.Buffer()

    def size_and_version(self, key: str) -> tuple[int, str]:
        """Size of an object in bytes, and its generation. Raises OSError."""
        with self._answer(key, "", {}) as answer:
            objects.check(answer, key)
            try:
                found = json.loads(wire.read(answer))
                return int(found["size"]), str(found["generation"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConnectionError(f"{key}: the store reports no size") from error

    def read_range(  # noqa: PLR0913 - range, version and callbacks
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: Callable[[memoryview], None],
        on_object: objects.ObjectCallback | None = None,
    ) -> None:
        """Pass `length` bytes from `start` to `take`. Before that, report size and generation. Raises OSError."""
        asked = range(start, start + length)
        query = "alt=media" + (f"&ifGenerationMatch={version}" if version else "")
        with self._answer(key, query, {"Range": objects.range_header(asked)}) as answer:
            if on_object is not None and answer.status in objects.WITH_SIZE:
                on_object(objects.whole_size(answer), answer.headers.get("x-goog-generation", ""))
            objects.check(answer, key)
            objects.copy_body(answer, key, asked, self._buffer.of(length), take)

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
