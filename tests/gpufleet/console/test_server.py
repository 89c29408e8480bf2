"""The console's server: what of its clients is told on stderr, and what is not."""

from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler

import pytest

from gpufleet.console.server import ConsoleServer
from tests.fixtures.console.pages import FakeBook, serving


@pytest.mark.parametrize("gone", [BrokenPipeError, ConnectionResetError], ids=lambda kind: kind.__name__)
def test_a_client_that_goes_away_is_no_news(gone: type[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    _fails_with(gone("it waits no longer"))
    assert capsys.readouterr().err == ""


def test_what_fails_otherwise_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    _fails_with(ValueError("the page is broken"))
    assert "the page is broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        pytest.param("GET", "//[", "", id="no address"),
        pytest.param("GET", "/?" + "&".join(f"a{n}=1" for n in range(50)), "", id="fifty words"),
        pytest.param("POST", "/sign-in", "&".join(f"a{n}=1" for n in range(50)), id="fifty fields"),
    ],
)
def test_what_no_form_of_ours_sends_is_answered(
    method: str, target: str, body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FakeBook()) as url:
        asked = HTTPConnection(url.removeprefix("http://"), timeout=10)
        asked.request(method, target, body)
        assert asked.getresponse().status == 401
        asked.close()
    assert "Traceback" not in capsys.readouterr().err


def _fails_with(error: Exception) -> None:
    with ConsoleServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        try:
            raise error
        except type(error):
            server.handle_error(None, ("127.0.0.1", 1))
