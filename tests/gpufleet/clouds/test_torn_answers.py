"""Incomplete and invalid responses, as from a proxy or a failing server. Each reader raises its documented error."""

import socketserver
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from gpufleet.clouds.aws import metadata as aws_metadata
from gpufleet.clouds.aws import signed as aws
from gpufleet.clouds.aws.signature import Credentials
from gpufleet.clouds.gcp import signed as google
from gpufleet.clouds.gcp.bootstrap import GoogleRest
from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.secrets import read_secret
from gpufleet.domain.activity import CloudError
from tests.fixtures.networks import served

HEAD_END = b"\r\n\r\n"
VALUE = "c2VjcmV0LXZhbHVl"


def answer(body: bytes, length: int | None = None, status: str = "200 OK") -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\nConnection: close"
    return head.encode() + HEAD_END + body


TORN = {
    "cut": answer(f'{{"payload": {{"data": "{VALUE}"'.encode(), length=500),
    "cut by its sender": answer(f'{{"payload": {{"data": "{VALUE}"'.encode()),
    "page of a proxy": answer(b"<html>please log in</html>"),
    "no text": answer(b'\xff\xfe{"a":1}'),
    "no HTTP": b"\x00\x01\r\n\r\n",
    "nothing": b"",
}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a server that gives the parametrized response to all requests."""
    response: bytes = request.param

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked = b""
            while HEAD_END not in asked and (part := self.request.recv(65_536)):
                asked += part
            self.request.sendall(response)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with served(Server(("127.0.0.1", 0), Connection)) as listening:
        yield f"http://127.0.0.1:{listening.server_address[1]}"


def session(url: str) -> aws.Session:
    return aws.Session(
        region="us-east-1", credentials=lambda: Credentials(access_key="local", secret_key="local"), endpoint=url
    )


def imds(url: str) -> aws_metadata.Ec2Metadata:
    return aws_metadata.Ec2Metadata(endpoint=url, now=lambda: datetime.now(UTC))


READERS: dict[str, tuple[Callable[[str], object], type[OSError]]] = {
    "IMDS credentials": (lambda url: imds(url).role_credentials(), aws_metadata.MetadataError),
    "SSM": (lambda url: aws.get_parameter(session(url), "/token"), OSError),
    "Google token": (lambda url: google.GoogleMetadata(host=url.removeprefix("http://")).token(), OSError),
    "Google secret": (lambda _: read_secret("project", "engine-key"), CloudError),
    "Google API": (lambda url: google.call("GET", f"{url}/x", None), OSError),
    "Compute Engine, one": (lambda _: GoogleCalls("project").one("regions", "get", region="us-central1"), CloudError),
    "Compute Engine, pages": (
        lambda _: list(GoogleCalls("project").pages("instances", "aggregated_list")),
        CloudError,
    ),
    "bootstrap": (lambda _: GoogleRest().ask("storage", "GET", "/storage/v1/b/x"), CloudError),
}
OF_SECRETS = ("SSM", "Google token", "Google secret", "Google API")


@pytest.mark.parametrize("server", TORN.values(), ids=TORN.keys(), indirect=True)
@pytest.mark.parametrize("reader", READERS)
def test_an_invalid_response_raises_the_documented_error(
    server: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (ENDPOINT, "GPUFLEET_SECRETMANAGER_ENDPOINT"):
        monkeypatch.setenv(name, server)
    ask, promised = READERS[reader]
    with pytest.raises(promised) as caught:
        ask(server)
    assert reader not in OF_SECRETS or VALUE not in str(caught.value)


@pytest.mark.parametrize("server", [answer(b'{"error": {"message": "no"}}', status="404 Not Found")], indirect=True)
def test_404_is_absence_for_get_and_an_error_for_post(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, server)
    assert GoogleRest().ask("storage", "GET", "/storage/v1/b/x") is None
    with pytest.raises(CloudError, match="POST /storage/v1/b was refused: no"):
        GoogleRest().ask("storage", "POST", "/storage/v1/b", {})
