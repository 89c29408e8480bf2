"""Callers that the embedded cloud refuses: pages of other sites in a browser, other Unix users, and requests
without the token."""

import base64
import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from localcloud.addresses import ACCESS_KEY, METADATA_PORT, REGION
from localcloud.callers import MESSAGES, TOKEN_FILE, Unknown, make_token
from localcloud.engine.api import EngineServer
from localcloud.engine.arguments import parse
from localcloud.exporters import frame, nvidia
from localcloud.exporters.metadata import hardware_of

from localcloud import node_exporter
from tests.fixtures.clouds.emulator import (
    REPOSITORY,
    RunningCloud,
    make_group,
    make_template,
    start_cloud,
    stop_cloud,
    wait_for,
)
from tests.fixtures.clouds.google import PROJECT, Google
from tests.fixtures.local_token import BEARER, BOT, TOKEN, WEBHOOK
from tests.fixtures.networks import served

EVIL = "https://evil.example"
OTHER_USER = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A request that would change state or reveal a secret if it were accepted."""

    base: str
    """The name of a server's URL in `Places`."""
    method: str
    path: str
    body: bytes = b""
    shown: Mapping[str, str] | None = None
    """Headers that make the request valid. None: only its sender decides."""


FORM = urlencode({"Action": "DescribeInstances", "Version": "2016-11-15"}).encode()
TARGETS = {
    "aws": Target(base="api_url", method="POST", path="/", body=FORM),
    "aws-moto-reset": Target(base="api_url", method="POST", path="/moto-api/reset"),
    "aws-bucket": Target(base="api_url", method="PUT", path="/a-bucket"),
    "aws-admin": Target(base="api_url", method="POST", path="/_localcloud/restore", body=b"{}", shown=BEARER),
    "aws-state": Target(base="api_url", method="GET", path="/_localcloud/state", shown=BEARER),
    "google": Target(
        base="google_url", method="POST", path=f"/compute/v1/projects/{PROJECT}/global/networks",
        body=b'{"name": "evil", "autoCreateSubnetworks": false}', shown=BEARER,
    ),
    "google-secrets": Target(base="google_url", method="GET", path=f"/v1/projects/{PROJECT}/secrets", shown=BEARER),
    "google-bucket": Target(
        base="google_url", method="POST", path=f"/storage/v1/b?project={PROJECT}", body=b'{"name": "evil"}',
        shown=BEARER,
    ),
    "google-admin": Target(
        base="api_url", method="POST", path="/_localcloud/restore?cloud=gcp", body=b"{}", shown=BEARER,
    ),
    "slack-api": Target(
        base="slack_url", method="POST", path="/api/chat.postMessage", body=b'{"channel": "#c", "text": "evil"}',
        shown={"Authorization": f"Bearer {BOT}"},
    ),
    "slack-webhook": Target(base="slack_url", method="POST", path=WEBHOOK, body=b'{"text": "evil"}', shown={}),
    "slack-click": Target(base="slack_url", method="POST", path="/click", body=b"ts=1", shown=BEARER),
    "slack-faults": Target(base="slack_url", method="POST", path="/faults", body=b"{}", shown=BEARER),
    "slack-messages": Target(base="slack_url", method="GET", path="/messages", shown=BEARER),
}  # fmt: skip
PAGES: dict[str, dict[str, str | None]] = {
    "another host": {"Host": "rebound.evil.example:4567"},
    "an empty host": {"Host": ""},
    "no host": {"Host": None},
    "localhost": {"Host": "localhost:4567"},
    "another origin": {"Origin": EVIL},
    "no origin to name": {"Origin": "null"},
    "another port": {"Origin": "http://127.0.0.1:9"},
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "same-site": {"Sec-Fetch-Site": "same-site"},
}
"""Headers that a browser sends for a page of another site, one case each."""


def ask(url: str, target: Target, headers: Mapping[str, str | None]) -> tuple[int, str]:
    """Send the request with exactly these headers. Returns status and body. None omits a header that each request
    has."""
    host = urlsplit(url).netloc
    connection = http.client.HTTPConnection(host, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest(target.method, target.path, skip_host=True, skip_accept_encoding=True)
        # what a page may send without a preflight (a "simple" request of CORS)
        every = {"Host": host, "Content-Type": "text/plain", "Content-Length": str(len(target.body))}
        for name, value in {**every, **headers}.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(target.body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    cloud = start_cloud(tmp_path_factory.mktemp("guarded"))
    try:
        yield cloud
    finally:
        stop_cloud(cloud)


def networks(cloud: RunningCloud) -> str:
    """The state that a valid request of the table would change."""
    google = ask(cloud.places.google_url, Target(base="", method="GET", path=TARGETS["google"].path), BEARER)[1]
    sink = ask(cloud.places.slack_url, Target(base="", method="GET", path="/messages"), BEARER)[1]
    return google + sink + str(cloud.client("s3").list_buckets()["Buckets"])


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", TARGETS)
def test_page_of_another_site_is_refused_by_every_server_even_with_the_token(
    guarded: RunningCloud, name: str, page: str
) -> None:
    target = TARGETS[name]
    before = networks(guarded)
    status, answer = ask(getattr(guarded.places, target.base), target, {**(target.shown or {}), **PAGES[page]})
    assert status == 403, answer
    assert "another host" in answer or "page of another site" in answer
    assert networks(guarded) == before
    assert "refused: " in guarded.log.splitlines()[-1], "the log has the refusal"


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"Authorization": "Bearer local"}, id="the token of before"),
        pytest.param({"Authorization": "Bearer "}, id="an empty token"),
        pytest.param({"Authorization": f"Bearer {TOKEN}x"}, id="a token that begins like it"),
        pytest.param({"Authorization": "Basic " + base64.b64encode(b"local:local").decode()}, id="a password"),
        pytest.param(
            {
                "Authorization": f"AWS4-HMAC-SHA256 Credential={TOKEN}/20261125/us-east-1/ec2/aws4_request, "
                f"SignedHeaders=host;x-amz-date, Signature={'0' * 64}",
                "X-Amz-Date": "20261125T000000Z",
            },
            id="a signature without a valid key",
        ),
    ],
)
@pytest.mark.parametrize("name", [name for name in TARGETS if name != "slack-webhook"])
def test_request_without_the_token_is_refused_by_every_server(
    guarded: RunningCloud, name: str, shown: dict[str, str]
) -> None:
    target = TARGETS[name]
    before = networks(guarded)
    status, answer = ask(getattr(guarded.places, target.base), target, shown)
    assert status == 403, answer
    assert "gpufleet local env" in answer
    assert networks(guarded) == before


def test_guessed_webhook_is_refused(guarded: RunningCloud) -> None:
    target = Target(base="", method="POST", path="/services/T/B/x", body=b'{"text": "evil"}')
    assert ask(guarded.places.slack_url, target, {})[0] == 403


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.shown is not None])
def test_same_requests_are_answered_with_the_token(guarded: RunningCloud, name: str) -> None:
    target = TARGETS[name]
    own = getattr(guarded.places, target.base)
    status, answer = ask(own, target, {**(target.shown or {}), "Origin": own, "Sec-Fetch-Site": "same-origin"})
    assert status in (200, 400), answer


def test_access_key_in_a_query_is_not_a_signature(guarded: RunningCloud) -> None:
    query = urlencode(
        {"X-Amz-Credential": f"{TOKEN}/20261125/us-east-1/ec2/aws4_request", "X-Amz-Signature": "0" * 64}
    )
    target = Target(base="", method="GET", path=f"/?Action=DescribeInstances&{query}")
    status, answer = ask(guarded.places.api_url, target, {})
    assert (status, "<Code>AccessDenied</Code>" in answer) == (403, True), answer


@pytest.mark.parametrize("service", ["ec2", "autoscaling", "s3", "ssm"])
def test_keys_of_an_earlier_start_are_refused_with_the_error_of_the_service(
    guarded: RunningCloud, service: str
) -> None:
    session: Any = boto3.Session(ACCESS_KEY, "of-an-earlier-start", region_name=REGION)
    settings = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    client = session.client(service, endpoint_url=guarded.places.api_url, config=settings)
    call = {"ec2": "describe_instances", "autoscaling": "describe_auto_scaling_groups", "s3": "list_buckets"}
    with pytest.raises(ClientError) as caught:
        getattr(client, call.get(service, "describe_parameters"))()
    assert caught.value.response["Error"] == {
        **caught.value.response["Error"],
        "Code": "SignatureDoesNotMatch",
        "Message": MESSAGES[Unknown.WRONG_SIGNATURE],
    }
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


@pytest.mark.parametrize("key", ["a", "models/chat/a b+c~d/ü=1", "a//b", "x?y&z=1"])
def test_signatures_are_valid_for_every_key_and_body(guarded: RunningCloud, key: str) -> None:
    s3 = guarded.client("s3")
    if "odd-keys" not in {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}:
        s3.create_bucket(Bucket="odd-keys")
    s3.put_object(Bucket="odd-keys", Key=key, Body=b"\0\xff" * 100)
    assert s3.get_object(Bucket="odd-keys", Key=key)["Body"].read() == b"\0\xff" * 100
    listed = s3.list_objects_v2(Bucket="odd-keys", Prefix=key)["Contents"]
    assert key in [one["Key"] for one in listed]


def test_health_needs_no_token_and_refuses_pages_of_other_sites(guarded: RunningCloud) -> None:
    target = Target(base="", method="GET", path="/_localcloud/health")
    assert ask(guarded.places.api_url, target, {})[0] == 200
    assert ask(guarded.places.api_url, target, PAGES["cross-site"])[0] == 403


def test_browser_asks_for_the_token_and_shows_the_slack_page(guarded: RunningCloud) -> None:
    page = Target(base="", method="GET", path="/")
    typed = {"Sec-Fetch-Site": "none"}
    assert ask(guarded.places.slack_url, page, typed)[0] == 401
    password = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    status, answer = ask(guarded.places.slack_url, page, {**typed, "Authorization": f"Basic {password}"})
    assert (status, "Slack sink" in answer) == (200, True)
    assert TOKEN not in answer


# Machines.


@pytest.fixture(scope="module")
def machine(session_cloud: RunningCloud) -> Iterator[str]:
    """The address of an AWS machine, which has a metadata service."""
    session_cloud.control("POST", "restore", {})
    make_group(session_cloud, "asked", make_template(session_cloud, "asked"), size=1)
    wait_for("the machine", lambda: session_cloud.in_service("asked"), 60)
    yield session_cloud.instances("asked")[0]["PrivateIpAddress"]
    session_cloud.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="asked", ForceDelete=True)


SESSION = Target(base="", method="PUT", path="/latest/api/token")
TTL = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}


@pytest.mark.parametrize("page", PAGES)
def test_metadata_refuses_a_page_of_another_site(machine: str, page: str) -> None:
    url = f"http://{machine}:{METADATA_PORT}"
    assert ask(url, SESSION, TTL)[0] == 200
    assert ask(url, SESSION, {**TTL, **PAGES[page]})[0] == 403


def as_other_user(do: Callable[[], str]) -> str:
    """The result of `do` in a process of another Unix user."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        result = b"failed"
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            result = do().encode()
        os.write(writes, result)
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:  # noqa: PTH123 - a pipe
        result = answer.read().decode()
    os.waitpid(child, 0)
    return result


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another Unix user")
def test_another_unix_user_gets_neither_metadata_nor_the_token(machine: str, tmp_path: Path) -> None:
    url = f"http://{machine}:{METADATA_PORT}"
    make_token(tmp_path)
    tmp_path.chmod(0o755)

    def read() -> str:
        try:
            return (tmp_path / TOKEN_FILE).read_text()
        except PermissionError:
            return "not for you"

    assert (
        as_other_user(lambda: " ".join(map(str, ask(url, SESSION, TTL)))) == f"403 {MESSAGES[Unknown.OTHER_USER]}\n"
    )
    assert as_other_user(read) == "not for you"
    assert ask(url, SESSION, TTL)[0] == 200


def test_each_start_has_its_own_token_that_only_the_owner_can_read(tmp_path: Path) -> None:
    seen: list[str] = []
    file = tmp_path / "state" / TOKEN_FILE
    for _ in range(2):
        file.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "localcloud.cloud", "--state", str(file.parent), "--network", "127.0"],
            cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "GPUFLEET_EMULATOR_TOKEN": "inherited-from-a-shell"},
        )  # fmt: skip
        try:
            wait_for("the token", file.is_file, 60)
            assert file.stat().st_mode & 0o777 == 0o600
            seen.append(file.read_text().strip())
        finally:
            process.terminate()
            process.wait(60)
    assert len(set(seen)) == 2
    assert all(len(token) >= 32 for token in seen)
    assert "inherited-from-a-shell" not in seen


def test_machine_credentials_sign_but_do_not_permit_the_admin_api(machine: str, session_cloud: RunningCloud) -> None:
    url = f"http://{machine}:{METADATA_PORT}"
    token = {"X-aws-ec2-metadata-token": ask(url, SESSION, TTL)[1]}
    place = Target(base="", method="GET", path="/latest/meta-data/iam/security-credentials/node")
    given = json.loads(ask(url, place, token)[1])
    session: Any = boto3.Session(given["AccessKeyId"], given["SecretAccessKey"], given["Token"], region_name=REGION)
    assert session.client("ec2", endpoint_url=session_cloud.places.api_url).describe_instances()
    control = TARGETS["aws-admin"]
    wrong = {"Authorization": f"Bearer {given['SecretAccessKey']}"}
    assert ask(session_cloud.places.api_url, control, wrong)[0] == 403


def test_calls_with_the_token_have_a_principal_without_showing_it(guarded: RunningCloud) -> None:
    google = Google(cloud=guarded)
    ask(guarded.places.google_url, TARGETS["google-secrets"], BEARER)
    guarded.client("ec2").describe_instances()
    shown = json.dumps([google.control("GET", "calls")[1], guarded.control("GET", "calls")[1]])
    assert TOKEN not in shown
    assert '"principal": "local"' in shown


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("server", ["node exporter", "simulated engine", "DCGM exporter"])
def test_servers_of_a_machine_refuse_pages_of_other_sites(tmp_path: Path, server: str, page: str) -> None:
    through_a_router = server == "simulated engine" and "Host" in PAGES[page]
    with served(made(server, tmp_path)) as running:
        url = f"http://127.0.0.1:{running.server_address[1]}"
        metrics = Target(base="", method="GET", path="/metrics" if server != "simulated engine" else "/version")
        assert ask(url, metrics, {})[0] == 200
        assert ask(url, metrics, PAGES[page])[0] == (200 if through_a_router else 403)


def made(server: str, folder: Path) -> TCPServer:
    """One of a machine's servers, on a free port."""
    if server == "node exporter":
        return node_exporter.server(("127.0.0.1", 0), folder)
    if server == "DCGM exporter":
        hardware = hardware_of("g6.xlarge", "i-1")
        simulator = frame.Simulator(kind=nvidia.KIND, hardware=hardware, engine_url="", faults=folder)
        return frame.server(("127.0.0.1", 0), simulator)
    engine = EngineServer(parse(["serve", str(folder), "--host", "127.0.0.1", "--port", "0"]))
    engine.server_bind()
    engine.server_activate()
    return engine
