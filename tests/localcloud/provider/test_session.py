"""The local provider connects only to the loopback interface."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from localcloud.callers import VARIABLE
from localcloud.provider.aws.session import AwsSession, read_settings
from localcloud.provider.errors import CancelledError, NotReadyError
from localcloud.provider.session import Cloud, NotLocalError, Settings, require_loopback

LOCAL = {"AWS_ENDPOINT_URL": "http://127.16.0.2:4566", "AWS_REGION": "us-east-1", VARIABLE: "t"}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:5000", "http://127.16.0.2:4566", "http://[::1]:80", "http://localhost:1"]
)
def test_loopback_endpoint_is_accepted(url: str) -> None:
    assert require_loopback(url, "test") == url


@pytest.mark.parametrize(
    "url",
    [
        "https://ec2.us-east-1.amazonaws.com",
        "http://10.0.0.1:4566",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://user@169.254.169.254/",
        "http://127.0.0.1@example.com/",
        "http://0.0.0.0:4566",
        "127.0.0.1:4566",
        "",
    ],
)
def test_other_endpoints_are_refused(url: str) -> None:
    with pytest.raises(NotLocalError, match="gpufleet local up"):
        require_loopback(url, "test")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        pytest.param({}, {"AWS_REGION": "us-east-1"}, "AWS_ENDPOINT_URL is not set", id="no-endpoint"),
        pytest.param({}, LOCAL | {"AWS_ENDPOINT_URL_S3": "https://s3.amazonaws.com"}, "AWS_ENDPOINT_URL_S3",
                     id="one-service-elsewhere"),
        pytest.param({"endpoints": '[{"ec2": "https://ec2.amazonaws.com"}]'}, LOCAL, "endpoints",
                     id="endpoint-of-the-program-elsewhere"),
        pytest.param({"profile": "production"}, LOCAL, "'profile' is not modelled", id="profile"),
        pytest.param({"maxRetries": "many"}, LOCAL, "aws:maxRetries: expected a whole number", id="retries"),
        pytest.param({"assumeRoles": '[{"roleArn": "arn:x"}]'}, LOCAL, "'assumeRoles' is not modelled", id="role"),
        pytest.param({}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", VARIABLE: "t"}, "aws:region is not set",
                     id="no-region"),
        pytest.param({}, LOCAL | {VARIABLE: ""}, f"{VARIABLE} is not set.*local env", id="no-token"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(arguments: dict[str, Any], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(arguments, environment)


def test_settings_are_read_in_the_format_of_the_engine() -> None:
    arguments = {
        "region": "us-west-2",
        "defaultTags": '{"tags": {"team": "ml"}}',
        "ignoreTags": '{"keys": ["noise"], "keyPrefixes": ["cost:"]}',
        "skipCredentialsValidation": "true",
        "maxRetries": "25",
        "version": "7.51.1",
    }
    settings = read_settings(arguments, LOCAL)
    assert settings == Settings(
        endpoint="http://127.16.0.2:4566",
        token="t",
        region="us-west-2",
        default_tags={"team": "ml"},
        ignored_keys=frozenset({"noise"}),
        ignored_prefixes=("cost:",),
        max_retries=25,
    )


class _Recorder(BaseHTTPRequestHandler):
    """Responds to every request with an empty document and records the requests."""

    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.seen.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<DescribeRegionsResponse/>")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_credentials_and_proxies_of_the_shell_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Recorder)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAREAL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "real")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_REGION": "us-east-1",
        VARIABLE: "t",
    }
    AwsSession(read_settings({}, environment)).client("ec2", "us-east-1").describe_regions()
    thread.join(timeout=60)
    server.server_close()
    assert len(_Recorder.seen) == 1
    assert "Credential=local/" in _Recorder.seen[0]


def _cloud(limit_s: float) -> Cloud:
    return Cloud(session=AwsSession(read_settings({}, LOCAL)), region="us-east-1", limit_s=limit_s)


def test_wait_fails_after_its_limit_and_names_what_it_waited_for() -> None:
    with pytest.raises(NotReadyError, match="waited 0 s for the moon"):
        _cloud(0).wait("the moon", lambda: False)


def test_wait_ends_when_the_run_is_stopped() -> None:
    cloud = _cloud(60)
    cloud.session.cancelled.set()
    with pytest.raises(CancelledError, match="stopped while waiting for the moon"):
        cloud.wait("the moon", lambda: False)


def test_wait_polls_repeatedly() -> None:
    answers = iter([False, True])
    _cloud(60).wait("an answer", lambda: next(answers))
    assert list(answers) == []
