"""Time spans on wall clocks: a clock that is set back never delays what is due."""

from datetime import UTC, datetime, timedelta

import pytest

from gpufleet.domain.clocks import is_over

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SPAN = timedelta(seconds=10)


@pytest.mark.parametrize(
    ("since", "over"),
    [
        pytest.param(None, True, id="nothing began"),
        pytest.param(NOW, False, id="it begins"),
        pytest.param(NOW - SPAN + timedelta(microseconds=1), False, id="almost"),
        pytest.param(NOW - SPAN, True, id="just over"),
        pytest.param(NOW - 100 * SPAN, True, id="long over"),
        pytest.param(NOW + timedelta(microseconds=1), True, id="set back by a little"),
        pytest.param(NOW + timedelta(hours=1), True, id="set back by an hour"),
    ],
)
def test_whether_a_span_is_over(since: datetime | None, over: bool) -> None:
    assert is_over(since, SPAN, NOW) is over
