"""The console's server: failing pages, and requests that no page or form of the console sends."""

from http.client import HTTPConnection

import httpx
import pytest

from tests.fixtures.console.pages import FakeConsoleData, serving


def test_an_error_of_a_page_is_reported_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(FakeConsoleData):
        def metrics(self) -> str:
            raise ValueError("the page is broken")

    with serving(Broken()) as url:
        answer = httpx.get(f"{url}/metrics", timeout=60)
    assert (answer.status_code, answer.text) == (500, "internal error\n")
    assert answer.headers["content-security-policy"]
    assert "the page is broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        pytest.param("GET", "//[", "", id="invalid URL"),
        pytest.param("GET", "/?" + "&".join(f"a{n}=1" for n in range(50)), "", id="fifty query fields"),
        pytest.param("POST", "/sign-in", "&".join(f"a{n}=1" for n in range(50)), id="fifty form fields"),
    ],
)
def test_unexpected_requests_are_answered(
    method: str, target: str, body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FakeConsoleData()) as url:
        asked = HTTPConnection(url.removeprefix("http://"), timeout=60)
        asked.request(method, target, body)
        assert asked.getresponse().status == 401
        asked.close()
    assert "Traceback" not in capsys.readouterr().err
