"""What an idle pass asks its ledger and its cloud, however many instances it looks at."""

from collections import Counter

import pytest

from tests.watchdogs.plain import document
from tests.watchdogs.worlds import idle_world
from watchdogs.idle.watchdog import IdleWatchdog


@pytest.mark.parametrize("instances", [1, 20])
def test_nothing_is_asked_twice(instances: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = idle_world(instances), Counter[str]()
    monkeypatch.setattr(world, "before", lambda step: asked.update([step]))
    IdleWatchdog(document(), world.ports()).dry()
    once = ("instances", "brakes", "targets", "policy_seen", "unfinished", "done_since", "statuses")
    assert {step: asked[step] for step in once} == dict.fromkeys(once, 1)
    assert asked["ended_since"] == 2, "of the last hour and of the day"
