"""A router may list only its policy: a bucket answers alike for a missing object and a forbidden one."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from app.router_fleet import LiveFleet
from serving.router.policy import RouterPolicy

KEY = "fleet/router.json"
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@contextmanager
def refusing(listed: dict[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """Run a bucket that refuses all objects and lists some prefixes. Yields its URL and the requested lists."""
    asked: list[str] = []

    class Bucket(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            google, prefix = "/storage/v1/" in self.path, query.get("prefix", [""])[0]
            if "prefix" in query:
                asked.append(prefix)
            if prefix not in listed:
                self._answer(403, json.dumps({"error": {"code": 403, "message": "denied"}}) if google else DENIED)
            elif google:
                items = [{"name": name, "bucket": "models"} for name in listed[prefix]]
                self._answer(200, json.dumps({"kind": "storage#objects", "items": items}))
            else:
                found = "".join(f"<Contents><Key>{name}</Key></Contents>" for name in listed[prefix])
                self._answer(200, f"<ListBucketResult>{found}</ListBucketResult>")

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json" if text.startswith("{") else "application/xml")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(params=["s3", "gs"])
def scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    return request.param


def fleet_of(scheme: str, url: str, monkeypatch: pytest.MonkeyPatch) -> LiveFleet:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    return LiveFleet(f"{scheme}://models/fleet/fleet.json")


def test_a_missing_policy_means_the_default(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing({KEY: ["fleet/router.json.old"]}) as (url, asked):
        assert fleet_of(scheme, url, monkeypatch).policy() == RouterPolicy()
    assert asked == [KEY]


@pytest.mark.parametrize("listed", [{KEY: [KEY]}, {}], ids=["is there", "may not be listed"])
def test_a_forbidden_policy_is_an_error_and_never_the_default(
    scheme: str, listed: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default no key is required: lost permission must not open the router to all clients."""
    with refusing(listed) as (url, _), pytest.raises(OSError, match="(?i)denied|refused"):
        fleet_of(scheme, url, monkeypatch).policy()
