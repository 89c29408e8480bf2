"""What a policy is called: its name changes with what people have to see, and with nothing else."""

from dataclasses import dataclass, field
from datetime import date, timedelta

import pytest

from gpufleet.domain.policies import AS_BEFORE, IdlePolicy, OrphanPolicy, ScalePolicy, ScheduleRule, SpotPolicy
from watchdogs.policy import Policy, digest

XMAS = ScheduleRule(days=("mon",), start="08:00", end="18:00", target=2, except_on=(date(2026, 12, 25),))
NAMED = OrphanPolicy(name="forgotten", tags={"team": "x*"}, older_than=timedelta(days=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded(SpotPolicy):
    """The spot policy of a later release."""

    pause: timedelta = field(default=timedelta(0), metadata={AS_BEFORE: timedelta(0)})


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradedAgain(SpotPolicy):
    """That of the release after it, whose default is another one."""

    pause: timedelta = field(default=timedelta(minutes=1), metadata={AS_BEFORE: timedelta(0)})


@pytest.mark.parametrize(
    ("policy", "limits", "name"),
    [
        # stops got a price: whoever saw the rule that had none has to look again
        pytest.param(IdlePolicy(), (0,), "173af736c8bd", id="idle"),
        pytest.param(IdlePolicy(stop_price=None, max_stops_per_day=2.0), (0,), "963d8036ca1e", id="idle, as before"),
        pytest.param(SpotPolicy(), (0, 4, 1), "0cc542d67b01", id="spot"),
        pytest.param(ScalePolicy(schedule=(XMAS,)), (0, 4), "b55fb6ec4273", id="scale"),
        # the job of GPU exporters has another name: users see what the rule finds with it
        pytest.param(NAMED, (), "52bc7e7ee6a1", id="orphans"),
    ],
)
def test_ledgers_keep_the_policies_that_were_seen(policy: Policy, limits: tuple[int, ...], name: str) -> None:
    assert digest(policy, *limits) == name, (
        "after an upgrade every such policy waits for a dry run: idle ends nothing, spot makes no loss good."
        " Give a new setting AS_BEFORE (gpufleet/domain/policies.py); write the new name here only if people have to"
        " look again"
    )


@pytest.mark.parametrize(
    ("policy", "same"),
    [
        pytest.param(Upgraded(), True, id="as before"),
        pytest.param(Upgraded(pause=timedelta(seconds=5)), False, id="set"),
        pytest.param(Upgraded(max_surge=1), False, id="another setting is changed"),
        pytest.param(UpgradedAgain(), False, id="a later default"),
        pytest.param(UpgradedAgain(pause=timedelta(0)), True, id="set to what was before"),
    ],
)
def test_a_new_setting_changes_a_policy_only_if_its_value_differs(policy: SpotPolicy, same: bool) -> None:
    assert (digest(policy, 0, 4, 1) == digest(SpotPolicy(), 0, 4, 1)) == same
