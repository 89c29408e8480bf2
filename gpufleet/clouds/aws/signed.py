"""The AWS calls of the node agent, which contains this module: signed and sent with the standard library.

`S3Store` reads objects; it has the interface that the model cache requires. Errors are exceptions of the standard
library: FileNotFoundError, PermissionError and OSError with ESTALE (the object changed) are permanent,
ConnectionError and TimeoutError may be temporary.
"""

import contextlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from typing import Any, Final
from urllib.parse import quote, urlsplit

from gpufleet.clouds import objects, wire
from gpufleet.clouds.aws.signature import Credentials, Request, sign
from gpufleet.domain.parsed import is_map

ACTIONS: Final = frozenset(
    {
        "s3:GetObject",
        "ssm:GetParameter",
    }
)
"""IAM actions that the calls below need. The instance's role allows only these."""
_REFUSED: Final = frozenset({400, 401, 403})
_CLOCK_TOLERANCE: Final = timedelta(minutes=4)
"""Tolerated clock difference. AWS rejects signatures that differ from its time by more than 5 minutes (S3: 15)."""


class AwsError(OSError):
    """AWS refused a call. `code` is the error code from AWS."""

    def __init__(self, operation: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{operation}: {code} ({status}): {message}")
        self.code = code


@dataclass(slots=True)
class Skew:
    """How far AWS's clock is ahead of this machine's clock. Zero until a response shows a difference."""

    ahead: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Region, credentials and endpoint for calls."""

    region: str
    credentials: Callable[[], Credentials]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    endpoint: str | None = None
    """One address for all services (an emulator); None: the endpoints of AWS."""
    skew: Skew = field(default_factory=Skew, repr=False, compare=False)

    def signed(self, request: Request, service: str) -> dict[str, str]:
        """Signed headers of a request, with the known clock difference applied."""
        now = self.now() + self.skew.ahead
        return sign(request, self.credentials(), region=self.region, service=service, now=now)

    def learn_clock_difference(self, answer: HTTPResponse) -> bool:
        """Whether a refusal shows, by its Date header, that this machine's clock is wrong.

        Stores the clock difference, so that the caller can sign and send the request again.
        """
        if answer.status not in _REFUSED:
            return False
        try:
            theirs = parsedate_to_datetime(answer.headers.get("date", "")).replace(tzinfo=UTC)
        except ValueError:
            return False
        ahead = theirs - self.now()
        if abs(ahead - self.skew.ahead) < _CLOCK_TOLERANCE:
            return False
        self.skew.ahead = ahead
        return True

    def url(self, service: str) -> str:
        return self.endpoint or f"https://{service}.{self.region}.amazonaws.com"

    def bucket_url(self, bucket: str) -> str:
        """URL of a bucket: path style for an emulator or a name with dots, else a host name per bucket."""
        if self.endpoint or "." in bucket:
            return f"{self.url('s3')}/{bucket}"
        return f"https://{bucket}.s3.{self.region}.amazonaws.com"


def session(region: str, credentials: Callable[[], Credentials]) -> Session:
    """A session for $AWS_ENDPOINT_URL, else for AWS."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    return Session(region=region, credentials=credentials, endpoint=endpoint.rstrip("/") if endpoint else None)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _call(session: Session, service: str, request: Request) -> tuple[int, bytes]:
    with contextlib.closing(wire.Connection(wire.Server(request.url))) as connection:
        again = False
        while True:
            headers = session.signed(request, service)
            with connection.request(request.method, _target(request.url), headers, request.body) as answer:
                body = wire.read(answer)
            if again or not session.learn_clock_difference(answer):
                return answer.status, body
            again = True


def get_parameter(session: Session, name: str) -> str:
    """Read and decrypt a parameter of SSM. Raises AwsError, OSError."""
    request = Request(
        method="POST",
        url=f"{session.url('ssm')}/",
        headers={"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "AmazonSSM.GetParameter"},
        body=json.dumps({"Name": name, "WithDecryption": True}).encode(),
    )
    status, answer = _call(session, "ssm", request)
    found: object = None
    with contextlib.suppress(ValueError):
        found = json.loads(answer)
    parsed: Mapping[str, Any] = found if is_map(found) else {}
    if status != 200:
        code = str(parsed.get("__type", "Unknown")).rpartition("#")[2]
        raise AwsError("GetParameter", status, code, str(parsed.get("message", "")))
    parameter = parsed.get("Parameter")
    if not is_map(parameter) or not isinstance(value := parameter.get("Value"), str):
        raise ConnectionError("GetParameter: the answer contains no value")
    return value


class S3Store:
    """A bucket, for reading."""

    def __init__(self, session: Session, bucket: str) -> None:
        self._session, self._bucket = session, bucket
        self._server = wire.Server(session.bucket_url(bucket))

    def connect(self) -> "S3Reader":
        """A reader with a new connection."""
        return S3Reader(self._session, self._bucket, self._server)


class S3Reader:
    """One connection to a bucket, for use by one thread. It reopens after a failure."""

    def __init__(self, session: Session, bucket: str, server: wire.Server) -> None:
        self._session, self._base = session, session.bucket_url(bucket)
        self._connection = wire.Connection(server)
        self._buffer = objects.Buffer()

    def size_and_version(self, key: str) -> tuple[int, str]:
        """Size of an object in bytes, and its ETag. Raises OSError."""
        with self._answer("HEAD", key, {}) as answer:
            objects.check(answer, key)
            size = answer.headers.get("content-length", "")
            if not size.isdecimal():
                raise ConnectionError(f"{key}: the store reports no size")
            return int(size), answer.headers.get("etag", "")

    def read_range(  # noqa: PLR0913 - range, version and callbacks
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: Callable[[memoryview], None],
        on_object: objects.ObjectCallback | None = None,
    ) -> None:
        """Pass `length` bytes from `start` to `take`. Before that, report size and ETag. Raises OSError."""
        asked = range(start, start + length)
        headers = {"Range": objects.range_header(asked)}
        if version:
            headers["If-Match"] = version
        with self._answer("GET", key, headers) as answer:
            if on_object is not None and answer.status in objects.WITH_SIZE:
                on_object(objects.whole_size(answer), answer.headers.get("etag", ""))
            objects.check(answer, key)
            objects.copy_body(answer, key, asked, self._buffer.of(length), take)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextlib.contextmanager
    def _answer(self, method: str, key: str, headers: Mapping[str, str]) -> Generator[HTTPResponse]:
        request = Request(method=method, url=f"{self._base}/{quote(key, safe='/-_.~')}", headers=headers)
        with self._asked(request) as answer:
            if not self._session.learn_clock_difference(answer):
                yield answer
                return
        with self._asked(request) as answer:
            yield answer

    def _asked(self, request: Request) -> contextlib.AbstractContextManager[HTTPResponse]:
        return self._connection.request(request.method, _target(request.url), self._session.signed(request, "s3"))
