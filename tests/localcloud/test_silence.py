"""Metadata services that do not respond for a while."""

import http.client
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from localcloud.addresses import METADATA_PORT
from localcloud.aws import metadata as amazon
from localcloud.faults import Silence
from localcloud.gcp import metadata as google

from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.networks import free_network


class Switch:
    """Whether the service is silent, and how often it checked."""

    def __init__(self) -> None:
        self.on = threading.Event()
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.on.is_set()


def test_held_request_ends_with_its_server() -> None:
    switch = Switch()
    switch.on.set()
    silence = Silence(switch)
    silence.end()
    assert silence.holds(), "it would be answered"


def _amazon(address: str, switch: Switch) -> Callable[[], None]:
    return amazon.MetadataServer(address, lambda: None, lambda key, secret, principal: None, switch).close


def _google(address: str, switch: Switch) -> Callable[[], None]:
    def facts() -> google.InstanceFacts:
        return google.InstanceFacts(row={}, zone="z", preempted=False, maintenance=False, now=datetime.now(UTC))

    return google.GoogleMetadataServer(address, facts, lambda key, principal: None, switch).close


@pytest.mark.slow
@pytest.mark.parametrize(
    ("serve", "port", "status"),
    [pytest.param(_amazon, METADATA_PORT, 401, id="aws"), pytest.param(_google, google.METADATA_PORT, 200, id="gcp")],
)
def test_request_to_a_silent_service_gets_no_response(
    serve: Callable[[str, Switch], Callable[[], None]], port: int, status: int
) -> None:
    address, switch = f"{free_network()}.1.4", Switch()
    close = serve(address, switch)
    try:
        assert _ask(address, port) == status
        switch.on.set()
        connection = http.client.HTTPConnection(address, port, timeout=60)
        connection.request("GET", "/")
        before = switch.asked
        wait_for("a request that is held", lambda: switch.asked > before + 1)
        switch.on.clear()
        with pytest.raises(http.client.RemoteDisconnected):
            connection.getresponse()
        connection.close()
        assert _ask(address, port) == status
    finally:
        close()


def _ask(address: str, port: int) -> int:
    connection = http.client.HTTPConnection(address, port, timeout=60)
    try:
        connection.request("GET", "/")
        with connection.getresponse() as answer:
            return answer.status
    finally:
        connection.close()
