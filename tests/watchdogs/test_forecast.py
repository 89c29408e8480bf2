"""What a pool learns of its rises."""

from hypothesis import given
from hypothesis import strategies as st

from watchdogs.scale.forecast import Rises


@given(st.lists(st.floats(min_value=0, max_value=40), max_size=60))
def test_asking_at_each_look_changes_no_answer(demands: list[float]) -> None:
    """It goes on from its last answer; one that was never asked before counts from the beginning."""
    asked = Rises(horizon=180.0)
    for number, demand in enumerate(demands):
        asked.saw(60.0 * number, demand)
        fresh = Rises(horizon=180.0)
        for earlier, seen in enumerate(demands[: number + 1]):
            fresh.saw(60.0 * earlier, seen)
        assert asked.expected() == fresh.expected()
