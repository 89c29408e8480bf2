"""The message if a rollout would take a pool below its floor."""

import pytest

from gpufleet.domain import floors

WAY_OUT = "raise the pool first: gpufleet target chat 3 --reason rollout"


@pytest.mark.parametrize(
    ("ready", "objects"),
    [
        pytest.param(4, False, id="more than enough"),
        pytest.param(3, False, id="the others carry it"),
        pytest.param(2, True, id="at the floor"),
        pytest.param(0, True, id="none is ready"),
    ],
)
def test_an_objection_contains_the_remedy(ready: int, *, objects: bool) -> None:
    objection = floors.objection("chat", 2, ready)
    assert (objection is not None) is objects
    assert objection is None or (objection.startswith(f"{ready} replicas are ready") and objection.endswith(WAY_OUT))
