"""The fast timestamp parser returns the same values and errors as botocore's."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.clouds.aws.moments import moment


@given(
    st.integers(min_value=3 * 10**13, max_value=10**16),
    st.sampled_from((UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8)))),
    st.sampled_from(("seconds", "milliseconds", "microseconds")),
)
def test_iso_timestamps_are_parsed_as_by_botocore(microseconds: int, zone: timezone, precision: str) -> None:
    at = datetime.fromtimestamp(0, zone) + timedelta(microseconds=microseconds)
    value = at.isoformat(timespec=precision).replace("+00:00", "Z")
    assert moment(value) == parse_timestamp(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(1763755200, id="epoch"),
        pytest.param(1763755200.25, id="epoch with a part"),
        pytest.param("1763755200", id="epoch as text"),
        pytest.param("Fri, 21 Nov 2025 20:00:00 GMT", id="as in HTTP"),
        pytest.param("2025-11-21", id="a day"),
        pytest.param("2025-11-21T20:00:00", id="no zone"),
        pytest.param("20251121T200000Z", id="basic form"),
    ],
)
def test_other_formats_are_parsed_as_by_botocore(value: str | float) -> None:
    found = moment(value)
    assert (found, found.tzinfo is None) == (parse_timestamp(value), parse_timestamp(value).tzinfo is None)


@pytest.mark.parametrize("value", ["", "T", "yesterday", "2025-13-45T99:00:00Z"])
def test_an_invalid_timestamp_is_an_error(value: str) -> None:
    with pytest.raises(ValueError, match="Invalid timestamp"):
        moment(value)
