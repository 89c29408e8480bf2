"""A Prometheus whose clock is not ours: an old window would look like a new one. And one that takes its time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from gpufleet.clouds.prometheus import LONGEST_S, SKEW_LIMIT_S, Prometheus
from gpufleet.domain.activity import CloudError

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def store(date: str | None) -> Prometheus:
    """One that answers nothing, and says this about the time."""
    headers = {} if date is None else {"Date": date}
    answer = {"status": "success", "data": {"resultType": "vector", "result": []}}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer, headers=headers))
    return Prometheus("http://127.0.0.1:9", httpx.Client(transport=transport), now=lambda: NOW)


def http_date(moment: datetime) -> str:
    return f"{moment:%a, %d %b %Y %H:%M:%S} GMT"


@pytest.mark.parametrize("apart", [timedelta(hours=1), -timedelta(hours=1), timedelta(seconds=SKEW_LIMIT_S + 1)])
def test_clocks_apart_are_no_answer(apart: timedelta) -> None:
    with pytest.raises(CloudError, match="set both by NTP"):
        store(http_date(NOW + apart)).query("up", NOW)


@pytest.mark.parametrize(
    "date",
    [None, "yesterday", http_date(NOW), http_date(NOW + timedelta(seconds=30))],
    ids=["no", "bad", "same", "near"],
)
def test_clocks_together_or_unknown_are_believed(date: str | None) -> None:
    assert store(date).query("up", NOW) == []


class Trickle(httpx.SyncByteStream):
    """A whole answer in parts, with this time before each."""

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


def test_an_answer_that_trickles_is_given_up_before_its_end() -> None:
    trickle = Trickle(LONGEST_S / 2 + 1)
    with pytest.raises(CloudError, match=r"bytes in 120 s and goes on"):
        trickling(trickle).query("up", NOW)
    assert trickle.parts == 2


def test_an_answer_in_parts_within_the_time_is_believed() -> None:
    assert trickling(Trickle(LONGEST_S / 4)).query("up", NOW) == []
