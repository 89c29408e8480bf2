from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain import durations


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("4h", 14_400), ("7d", 604_800), ("0s", 0)]
)
def test_durations_in_settings(text: str, seconds: int) -> None:
    assert durations.parse(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "90", "1.5h", "-5m", "5 m", "5M", "m", "1h30m", "9" * 10 + "s", "٣m\n"])
def test_an_invalid_duration_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration|is too long"):
        durations.parse(text)


@given(st.integers(0, 10**8))
def test_rendered_durations_read_back(seconds: int) -> None:
    duration = timedelta(seconds=seconds)
    assert durations.parse(durations.render(duration)) == duration


@pytest.mark.parametrize("duration", [timedelta(milliseconds=1), timedelta(seconds=-1)])
def test_fractions_of_a_second_and_negative_durations_are_refused(duration: timedelta) -> None:
    with pytest.raises(ValueError, match="whole number of seconds, 0 or more"):
        durations.render(duration)
