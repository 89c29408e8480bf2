"""Invalid and incomplete responses of a metrics store. Each one is a CloudError and never a partial result."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.activity import CloudError

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
ROW: dict[str, Any] = {"metric": {"instance_id": "i-1"}, "value": [1, "0"]}


def answered(status: int, body: Any) -> Prometheus:
    """A store that gives this response to all requests."""
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=body))
    return Prometheus("http://store", client=httpx.Client(transport=transport), now=lambda: NOW)


def vector(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "vector", "result": list(rows)}, **more}


def test_a_complete_response_is_read() -> None:
    assert answered(200, vector(ROW)).query("up", NOW) == [({"instance_id": "i-1"}, 0.0)]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        pytest.param(503, vector(ROW), "answered with status 503: no reason given", id="success by its text alone"),
        pytest.param(200, vector(ROW, isPartial=True), "partial answer", id="partial, by VictoriaMetrics"),
        pytest.param(
            200, vector(ROW, warnings=["one store is missing"]), "one store is missing", id="partial, by Thanos"
        ),
        pytest.param(200, {"status": "success", "data": None}, "expected a vector", id="no data"),
        pytest.param(200, {"status": "success"}, "expected a vector", id="data left out"),
        pytest.param(200, {"status": "success", "data": [ROW]}, "expected a vector", id="a list for data"),
        pytest.param(200, [vector(ROW)], "no valid answer .status 200", id="a list"),
        pytest.param(400, {"status": "error", "error": "no such"}, "answered with status 400: no such", id="refused"),
        pytest.param(
            200,
            {"status": "success", "data": {"resultType": "vector", "result": None}},
            "expected a vector of numbers",
            id="no result",
        ),
        pytest.param(
            200, vector({"metric": {}, "histogram": [1, {}]}), "expected a vector of numbers", id="a histogram"
        ),
        pytest.param(
            200, vector({"metric": {}, "value": [1, "many"]}), "expected a vector of numbers", id="no number"
        ),
        pytest.param(200, vector({"metric": {}, "value": [1]}), "expected a vector of numbers", id="no value"),
        pytest.param(200, vector("row"), "expected a vector of numbers", id="a word"),
    ],
)
def test_an_invalid_response_is_an_error(status: int, body: Any, message: str) -> None:
    with pytest.raises(CloudError, match=message):
        answered(status, body).query("up", NOW)


@pytest.mark.parametrize("status", [200, 502])
def test_a_page_that_is_not_json_is_an_error_with_its_remedy(status: int) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text="<html>a portal</html>"))
    store = Prometheus("http://store", client=httpx.Client(transport=transport), now=lambda: NOW)
    with pytest.raises(CloudError, match=f"http://store sent no valid answer .status {status}.: .*; check that"):
        store.query("up", NOW)


@pytest.mark.parametrize("data", [None, {}, {"result": []}, {"result": [1, "soon"]}, {"yaml": 5}])
def test_an_invalid_clock_or_configuration_is_an_error(data: Any) -> None:
    store = answered(200, {"status": "success", "data": data})
    with pytest.raises(CloudError, match="expected a scalar"):
        store.now()
    with pytest.raises(CloudError, match="contains no configuration"):
        store.interval("engine")


@pytest.mark.parametrize(
    "url", ["", "store", "ftp://store", "http://", "http://[::1", "http://store:port", "http://\0"]
)
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(CloudError, match="did not answer: "):
        Prometheus(url).query("up", NOW)
