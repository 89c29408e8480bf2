"""How the embedded Google Cloud reads requests: chunked bodies, HEAD, and refused requests."""

import http.client
import json
from collections.abc import Iterator

import pytest
from localcloud.callers import CallerCheck
from localcloud.gcp.exchange import Request
from localcloud.gcp.server import Endpoint

from gpufleet.http_server import Answer
from tests.fixtures import local_token
from tests.fixtures.networks import free_address


def seen(request: Request) -> Answer:
    shown = {"method": request.method, "query": dict(request.query), "body": request.body.decode()}
    return Answer(body=json.dumps(shown), headers={"Content-Type": "application/json"})


@pytest.fixture
def asking() -> Iterator[http.client.HTTPConnection]:
    host, port = free_address()
    own = f"{host}:{port}"
    endpoint = Endpoint(host, port, seen, CallerCheck(local_token.callers(), {own}))
    endpoint.start()
    connection = http.client.HTTPConnection(own, timeout=60)
    yield connection
    connection.close()
    endpoint.stop()


def test_consecutive_chunked_bodies_are_read_completely(asking: http.client.HTTPConnection) -> None:
    for pieces in ([b"one", b"two"], [b"x" * 70_000], []):
        asking.request("POST", "/upload?name=a&name2=", iter(pieces), dict(local_token.BEARER), encode_chunked=True)
        answer = asking.getresponse()
        assert answer.getheader("Content-Type") == "application/json"
        found = json.loads(answer.read())
        assert found == {"method": "POST", "query": {"name": "a", "name2": ""}, "body": b"".join(pieces).decode()}


def test_head_returns_the_headers_of_a_get(asking: http.client.HTTPConnection) -> None:
    asking.request("HEAD", "/", headers=dict(local_token.BEARER))
    answer = asking.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    assert int(answer.getheader("Content-Length") or 0) > 0


def test_body_of_a_request_without_the_token_is_not_read_as_the_next_request(
    asking: http.client.HTTPConnection,
) -> None:
    asking.request("POST", "/compute/v1/x", b"GET / HTTP/1.1\r\n\r\n")
    answer = asking.getresponse()
    assert (answer.status, answer.getheader("Connection")) == (403, "close")
    answer.read()
