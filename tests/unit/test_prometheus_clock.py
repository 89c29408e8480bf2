"""A Prometheus whose clock is not ours: an old window would look like a new one."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from clouds.prometheus import SKEW_LIMIT_S, Prometheus
from fleet.activity import CloudError

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
