"""`gpufleet report digest --daily`: reports the day that the settings select, and posts it once over several runs."""

from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from app.windows import Window, last_day
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.small_fleet import call, document, fill, read_json

BERLIN = {"slack_channel": "#gpu-cost", "digest_at": "07:30", "timezone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("at", "zone", "now", "since", "until"),
    [
        pytest.param("08:00", "UTC", "2026-11-21T08:00", "2026-11-20T08:00", "2026-11-21T08:00", id="at its end"),
        pytest.param("08:00", "UTC", "2026-11-21T07:59", "2026-11-19T08:00", "2026-11-20T08:00", id="before its end"),
        pytest.param("00:00", "UTC", "2026-11-21T23:59", "2026-11-20T00:00", "2026-11-21T00:00", id="midnight"),
        pytest.param(
            "08:00", "Asia/Tokyo", "2026-11-20T23:30", "2026-11-19T23:00", "2026-11-20T23:00", id="tomorrow there"
        ),
        pytest.param(
            "08:00", "Europe/Berlin", "2026-10-25T12:00", "2026-10-24T06:00", "2026-10-25T07:00", id="of 25 hours"
        ),
        pytest.param(
            "08:00", "Europe/Berlin", "2026-03-29T12:00", "2026-03-28T07:00", "2026-03-29T06:00", id="of 23 hours"
        ),
    ],
)
def test_the_day_that_ended_last(at: str, zone: str, now: str, since: str, until: str) -> None:
    then = _utc(now)
    expected = Window(since=_utc(since), until=_utc(until), now=then, timezone=zone)
    assert last_day(time.fromisoformat(at), zone, then) == expected


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_digest_covers_the_day_that_the_settings_select(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    engine.dispose()
    fleet = document(tmp_path, notify=BERLIN)
    before = _shown_day()
    (found,) = read_json("digest", "--fleet", fleet, "--daily")
    # the day may end while the command runs
    assert (found["since"], found["until"]) in (before, _shown_day())


def _shown_day() -> tuple[str, str]:
    day = last_day(time(7, 30), "Europe/Berlin", datetime.now(UTC))
    return f"{day.since:%Y-%m-%dT%H:%M:%SZ}", f"{day.until:%Y-%m-%dT%H:%M:%SZ}"


def test_settings_without_notify_are_an_error(tmp_path: Path) -> None:
    done = call("digest", "--fleet", document(tmp_path, notify=None), "--daily")
    assert done.exception is not None and "`notify` is not set" in str(done.exception)
