"""A console without a proxy refuses all requests from pages of other sites."""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from gpufleet.console import server
from gpufleet.console.access import Access
from tests.fixtures.console.pages import TOKEN, FakeConsoleData
from tests.fixtures.networks import free_address

FOREIGN = {
    "another host": {"Host": "rebound.evil.example:9600"},
    "localhost": {"Host": "localhost:9600"},
    "another origin": {"Origin": "https://evil.example"},
    "no origin to name": {"Origin": "null"},
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "same-site": {"Sec-Fetch-Site": "same-site"},
}
ASKED = {
    "page": ("GET", "/", ""),
    "metrics": ("GET", "/metrics", ""),
    "sign-in": ("POST", "/sign-in", f"token={TOKEN}"),
    "alerts": ("POST", "/alerts", "{}"),
    "keep": ("POST", "/keep", "instance=i-1"),
}


@pytest.fixture
def address() -> Iterator[str]:
    host, port = free_address()
    own = f"{host}:{port}"
    running = server.serve(server.Console(FakeConsoleData(), Access(token=TOKEN), own=own), host, port)
    yield own
    running.stop()


def ask(address: str, name: str, headers: dict[str, str]) -> tuple[int, str]:
    method, path, body = ASKED[name]
    connection = HTTPConnection(address, timeout=60)
    connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **headers})
    answer = connection.getresponse()
    result = answer.status, answer.read().decode()
    connection.close()
    return result


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("name", ASKED)
def test_a_page_of_another_site_is_refused_even_with_the_token(address: str, name: str, foreign: str) -> None:
    status, text = ask(address, name, FOREIGN[foreign])
    assert status == 403
    assert "another host" in text or "page of another site" in text


@pytest.mark.parametrize("name", ["page", "metrics", "sign-in"])
def test_own_pages_and_clients_without_a_browser_are_answered(address: str, name: str) -> None:
    own = {"Origin": f"http://{address}", "Sec-Fetch-Site": "same-origin"}
    for headers in ({}, own, {"Sec-Fetch-Site": "none"}):
        assert ask(address, name, headers)[0] in (200, 303)
