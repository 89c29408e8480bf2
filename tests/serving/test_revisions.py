"""Rollouts of a revision in a pool, with agents that can fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.model import Instance
from serving.revisions import PoolRollout, RevisionRollout, RolloutError
from tests.fixtures.watchdogs import plain

OLD, NEW = "0" * 64, "1" * 64


def instance(name: str) -> Instance:
    return plain.instance(id=name)


@dataclass(slots=True)
class Pool:
    """Instances whose agents need `takes_s` seconds to change."""

    digests: dict[str, str]
    takes_s: float = 10
    fails: frozenset[str] = frozenset()
    """These instances roll back."""
    preempted: frozenset[str] = frozenset()
    """These instances are preempted while they change."""
    phases: dict[str, str] = field(default_factory=dict[str, str])
    now: float = 0
    busy: dict[str, float] = field(default_factory=dict[str, float])
    asked: list[str] = field(default_factory=list[str])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    min_ready: int = 99

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, Mapping[str, Any]]:
        self._complete_switches()
        return {i.id: self._status(i.id) for i in instances if self.phases.get(i.id) != "silent"}

    def _status(self, name: str) -> dict[str, Any]:
        draining = self.phases.get(name) == "draining"
        ready = name not in self.busy and name not in self.phases
        return {
            "ready": ready,
            "phase": self.phases.get(name, "ready"),
            "model_digest": self.digests[name],
            "switching_to": NEW if name in self.busy else None,
            "switch_error": self.errors.get(name),
            "draining": draining,
        }

    def switch(self, instance: Instance, digest: str) -> None:
        assert not self.busy, "one at a time"
        self.asked.append(instance.id)
        self.busy[instance.id] = self.now + self.takes_s
        self.min_ready = min(self.min_ready, len(self.digests) - len(self.busy) - len(self.phases))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _complete_switches(self) -> None:
        for name in [name for name, at in self.busy.items() if self.now >= at]:
            del self.busy[name]
            if name in self.fails:
                self.errors[name] = "the engine stopped during its start"
            elif name in self.preempted:
                self.phases[name] = "draining"
            else:
                self.digests[name] = NEW

    def walk(self, floor: int = 1) -> RevisionRollout:
        return RevisionRollout(
            rollout=PoolRollout(pool="chat", floor=floor, limit=timedelta(seconds=60)),
            instances=lambda: [instance(name) for name in self.digests],
            agents=self,
            announce=lambda _line: None,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


def test_instances_change_one_at_a_time_and_up_to_date_ones_are_skipped() -> None:
    pool = Pool({"a": OLD, "b": NEW, "c": OLD})
    assert pool.walk().run(NEW) == 2
    assert pool.asked == ["a", "c"]
    assert pool.min_ready == 2
    assert pool.walk().run(NEW) == 0


def test_a_failure_stops_the_rollout_at_the_first_instance() -> None:
    pool = Pool({"a": OLD, "b": OLD, "c": OLD}, fails=frozenset({"a"}))
    with pytest.raises(RolloutError, match=r"chat a: rolled back: the engine stopped.*rollback"):
        pool.walk().run(NEW)
    assert pool.asked == ["a"]
    assert pool.digests == {"a": OLD, "b": OLD, "c": OLD}


def test_the_floor_is_kept_and_the_error_gives_the_fix() -> None:
    pool = Pool({"a": OLD, "b": OLD})
    with pytest.raises(RolloutError, match="gpufleet target chat 3"):
        pool.walk(floor=2).run(NEW)
    assert pool.asked == []


def test_a_preempted_instance_does_not_stop_the_rollout() -> None:
    pool = Pool({"a": OLD, "b": OLD, "c": OLD}, preempted=frozenset({"a"}))
    assert pool.walk().run(NEW) == 3
    assert pool.digests["b"] == pool.digests["c"] == NEW


def test_an_instance_that_never_finishes_times_out() -> None:
    pool = Pool({"a": OLD, "b": OLD}, takes_s=10_000)
    with pytest.raises(RolloutError, match="did not serve 111111111111 within"):
        pool.walk().run(NEW)


class _KilledError(Exception):
    """The process of the rollout ended."""


@pytest.mark.parametrize("after", range(1, 14))
def test_the_next_rollout_continues_a_killed_one(after: int) -> None:
    pool = Pool({"a": OLD, "b": OLD, "c": OLD})
    walk, slept = pool.walk(), 0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == after:
            raise _KilledError
        pool.sleep(seconds)

    walk.sleep = sleep
    with pytest.raises(_KilledError):
        walk.run(NEW)
    asked = len(pool.asked)
    # the rollout waits for the instance that still changes: the pool fails if two change at once
    assert pool.walk().run(NEW) == 3 - asked
    assert set(pool.digests.values()) == {NEW}
    assert pool.asked == ["a", "b", "c"]


def test_a_stuck_change_of_another_rollout_is_named() -> None:
    pool = Pool({"a": OLD, "b": OLD, "c": OLD}, busy={"b": 10_000})
    with pytest.raises(RolloutError, match="b is switching its revision"):
        pool.walk().run(NEW)
    assert pool.asked == []


@pytest.mark.parametrize(("phase", "message"), [("cache", "b is cache"), ("silent", r"b \(no answer\)")])
def test_a_booting_instance_is_waited_for_and_named(phase: str, message: str) -> None:
    pool = Pool({"a": NEW, "b": OLD}, phases={"b": phase})
    with pytest.raises(RolloutError, match=message):
        pool.walk().run(NEW)
