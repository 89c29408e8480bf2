from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpufleet.domain import tags
from tests.fixtures.watchdogs.plain import instance


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        pytest.param("20261121t0215z", datetime(2026, 11, 21, 2, 15, tzinfo=UTC), id="minutes"),
        pytest.param("20261121t021530z", datetime(2026, 11, 21, 2, 15, 30, tzinfo=UTC), id="seconds"),
        pytest.param(" 20261121T0215Z ", datetime(2026, 11, 21, 2, 15, tzinfo=UTC), id="written by hand"),
        pytest.param(None, None, id="no tag"),
        pytest.param("", None, id="empty"),
        pytest.param("tomorrow", None, id="words"),
        pytest.param("20261321t0215z", None, id="month 13"),
        pytest.param("2026-11-21T02:15Z", None, id="another form"),
    ],
)
def test_reading_a_time(value: str | None, moment: datetime | None) -> None:
    assert tags.read_time(value) == moment


def test_a_written_time_is_utc_and_reads_back() -> None:
    berlin = datetime(2026, 11, 21, 3, 15, 7, tzinfo=timezone(timedelta(hours=1)))
    assert tags.write_time(berlin) == "20261121t021507z"
    assert tags.read_time(tags.write_time(berlin)) == berlin


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="with a time zone"):
        tags.write_time(datetime(2026, 11, 21))  # noqa: DTZ001


def test_labels_have_no_colon() -> None:
    assert tags.label(tags.POOL) == "gpu-fleet-pool"


@pytest.mark.parametrize(
    ("there", "written"),
    [
        pytest.param(None, "20261121t120000z", id="no tag"),
        pytest.param("20261121t115959z", "20261121t120000z", id="a shorter one"),
        pytest.param("20261121t120000z", None, id="as long"),
        pytest.param("20261128t080000z", None, id="a longer one"),
        pytest.param("yes", None, id="one that cannot be read"),
        pytest.param("", None, id="an empty one"),
    ],
)
def test_a_keep_does_not_shorten_an_existing_one(there: str | None, written: str | None) -> None:
    kept = instance(1, tags={} if there is None else {tags.KEEP_UNTIL: there})
    until = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert kept.keep_tags(until) == ({} if written is None else {tags.KEEP_UNTIL: written})
