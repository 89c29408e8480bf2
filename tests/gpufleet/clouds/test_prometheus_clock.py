"""A Prometheus with another clock, whose old samples could be read as current ones, and a slow Prometheus."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from gpufleet.clouds.clock_check import SKEW_LIMIT_S
from gpufleet.clouds.prometheus import LONGEST_S, Prometheus
from gpufleet.domain.activity import CloudError

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def store(date: str | None) -> Prometheus:
    """A store with an empty result and this Date header."""
    headers = {} if date is None else {"Date": date}
    answer = {"status": "success", "data": {"resultType": "vector", "result": []}}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer, headers=headers))
    return Prometheus("http://127.0.0.1:9", httpx.Client(transport=transport), now=lambda: NOW)


def http_date(moment: datetime) -> str:
    return f"{moment:%a, %d %b %Y %H:%M:%S} GMT"


@pytest.mark.parametrize("apart", [timedelta(hours=1), -timedelta(hours=1), timedelta(seconds=SKEW_LIMIT_S + 1)])
def test_a_large_clock_difference_is_an_error(apart: timedelta) -> None:
    with pytest.raises(CloudError, match="synchronize both with NTP"):
        store(http_date(NOW + apart)).query("up", NOW)


@pytest.mark.parametrize(
    "date",
    [None, "yesterday", http_date(NOW), http_date(NOW + timedelta(seconds=30))],
    ids=["no", "bad", "same", "near"],
)
def test_a_small_or_unknown_clock_difference_is_accepted(date: str | None) -> None:
    assert store(date).query("up", NOW) == []


class Trickle(httpx.SyncByteStream):
    """A complete response in several parts, with this delay before each part."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.passed, self.parts = seconds, 0.0, 0

    def __iter__(self) -> Iterator[bytes]:
        for part in (b'{"status": "success", ', b'"data": {"resultType": ', b'"vector", ', b'"result": []}}'):
            self.passed += self.seconds
            self.parts += 1
            yield part


def trickling(trickle: Trickle) -> Prometheus:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=trickle))
    client = httpx.Client(transport=transport)
    return Prometheus("http://127.0.0.1:9", client, now=lambda: NOW, clock=lambda: trickle.passed)


def test_a_slow_response_is_aborted_before_its_end() -> None:
    trickle = Trickle(LONGEST_S / 2 + 1)
    with pytest.raises(CloudError, match=r"bytes in 120 s without ending"):
        trickling(trickle).query("up", NOW)
    assert trickle.parts == 2


def test_a_response_in_parts_within_the_limit_is_accepted() -> None:
    assert trickling(Trickle(LONGEST_S / 4)).query("up", NOW) == []
