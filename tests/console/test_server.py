"""The console's server: what of its clients is told on stderr, and what is not."""

from http.server import BaseHTTPRequestHandler

import pytest

from console.server import Server


@pytest.mark.parametrize("gone", [BrokenPipeError, ConnectionResetError], ids=lambda kind: kind.__name__)
def test_a_client_that_goes_away_is_no_news(gone: type[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    _fails_with(gone("it waits no longer"))
    assert capsys.readouterr().err == ""


def test_what_fails_otherwise_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    _fails_with(ValueError("the page is broken"))
    assert "the page is broken" in capsys.readouterr().err


def _fails_with(error: Exception) -> None:
    with Server(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        try:
            raise error
        except type(error):
            server.handle_error(None, ("127.0.0.1", 1))
