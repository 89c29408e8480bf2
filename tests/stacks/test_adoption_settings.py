"""Settings of pools that adopt existing groups: accepted values, and messages for rejected ones."""

from typing import Any

import pytest

from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, a_pool, changed, problems

ON_DEMAND = {"on_demand": {"max": 4, "machine_types": ["g6.xlarge"]}}
ADOPT = f"{FLEET}.pools.0.adopt"


def adopting(adopt: dict[str, str], **more: Any) -> list[str]:
    """The problems with `adopt` of the first pool, which has on-demand capacity."""
    config = changed(AWS, {"pools.0.capacity": ON_DEMAND, "pools.0.adopt": adopt, **more})
    return [line for line in problems(config) if "adopt" in line]


def test_a_group_of_the_pool_is_accepted() -> None:
    assert adopting({"on-demand": "inference"}) == []


@pytest.mark.parametrize(
    ("adopt", "message"),
    [
        pytest.param(
            {"spot-us-east-1a": "inference"},
            f"{ADOPT}.spot-us-east-1a: is not a group of the pool (on-demand) (is 'inference'); correct the key",
            id="capacity that the pool does not buy",
        ),
        pytest.param({"reserved-us-east-1a": "inference"}, "expected on-demand, or spot- and a zone", id="reserved"),
        pytest.param({"on-demand": ""}, "expected the name of a group", id="no name"),
    ],
)
def test_a_group_that_the_pool_does_not_have_is_refused(adopt: dict[str, str], message: str) -> None:
    (line,) = adopting(adopt)
    assert message in line


def test_two_pools_cannot_adopt_one_group() -> None:
    other = a_pool("other", capacity=ON_DEMAND, adopt={"on-demand": "inference"})
    lines = adopting({"on-demand": "inference"}, **{f"pools.{len(AWS[FLEET]['pools'])}": other})
    assert len(lines) == 2
    assert all("is adopted twice" in line for line in lines)


def test_google_is_refused() -> None:
    (line,) = [one for one in problems(changed(GCP, {"pools.0.adopt": {"on-demand": "old"}})) if "adopt" in one]
    assert line.startswith(f"{ADOPT}: is only for AWS")
