"""A revision's way through a pool, with agents that tests let fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.model import Instance
from serving.revisions import PoolRollout, RolloutError, Walk
from tests.fixtures.watchdogs import plain

OLD, NEW = "0" * 64, "1" * 64


def instance(name: str) -> Instance:
    return plain.instance(id=name)


@dataclass(slots=True)
class Pool:
    """Instances whose agents take `takes_s` to change."""

    digests: dict[str, str]
    takes_s: float = 10
    fails: frozenset[str] = frozenset()
    """These go back."""
    preempted: frozenset[str] = frozenset()
    """These get a notice while they change."""
    phases: dict[str, str] = field(default_factory=dict[str, str])
    now: float = 0
    busy: dict[str, float] = field(default_factory=dict[str, float])
    asked: list[str] = field(default_factory=list[str])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    least_ready: int = 99

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, Mapping[str, Any]]:
        self._settle()
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
        self.least_ready = min(self.least_ready, len(self.digests) - len(self.busy) - len(self.phases))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _settle(self) -> None:
        for name in [name for name, at in self.busy.items() if self.now >= at]:
            del self.busy[name]
            if name in self.fails:
                self.errors[name] = "the engine ended while it loaded"
            elif name in self.preempted:
                self.phases[name] = "draining"
            else:
                self.digests[name] = NEW

    def walk(self, floor: int = 1) -> Walk:
        return Walk(
            rollout=PoolRollout(pool="chat", floor=floor, limit=timedelta(seconds=60)),
            instances=lambda: [instance(name) for name in self.digests],
            agents=self,
            say=lambda _line: None,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


def test_one_after_the_other_and_those_that_serve_it_are_left_alone() -> None:
    pool = Pool({"a": OLD, "b": NEW, "c": OLD})
    assert pool.walk().run(NEW) == 2
    assert pool.asked == ["a", "c"]
    assert pool.least_ready == 2
    assert pool.walk().run(NEW) == 0


def test_a_failure_stops_it_at_the_first_instance() -> None:
    pool = Pool({"a": OLD, "b": OLD, "c": OLD}, fails=frozenset({"a"}))
    with pytest.raises(RolloutError, match=r"chat a: went back: the engine ended.*rollback"):
        pool.walk().run(NEW)
    assert pool.asked == ["a"]
    assert pool.digests == {"a": OLD, "b": OLD, "c": OLD}


def test_the_floor_is_kept_and_the_remedy_said() -> None:
    pool = Pool({"a": OLD, "b": OLD})
    with pytest.raises(RolloutError, match="gpufleet target chat 3"):
        pool.walk(floor=2).run(NEW)
    assert pool.asked == []


def test_one_that_is_preempted_meanwhile_does_not_stop_it() -> None:
    pool = Pool({"a": OLD, "b": OLD, "c": OLD}, preempted=frozenset({"a"}))
    assert pool.walk().run(NEW) == 3
    assert pool.digests["b"] == pool.digests["c"] == NEW


def test_one_that_never_ends_is_given_up() -> None:
    pool = Pool({"a": OLD, "b": OLD}, takes_s=10_000)
    with pytest.raises(RolloutError, match="did not serve 111111111111 within"):
        pool.walk().run(NEW)


class _KilledError(Exception):
    """The walker's process ended."""


@pytest.mark.parametrize("after", range(1, 14))
def test_a_walk_that_was_killed_goes_on_with_the_next_one(after: int) -> None:
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
    # the one that still changes is waited for: two at once would fail in the pool
    assert pool.walk().run(NEW) == 3 - asked
    assert set(pool.digests.values()) == {NEW}
    assert pool.asked == ["a", "b", "c"]


def test_one_that_changes_for_somebody_else_and_never_ends_is_named() -> None:
    pool = Pool({"a": OLD, "b": OLD, "c": OLD}, busy={"b": 10_000})
    with pytest.raises(RolloutError, match="b changes its revision already"):
        pool.walk().run(NEW)
    assert pool.asked == []


@pytest.mark.parametrize(("phase", "says"), [("cache", "b is cache"), ("silent", r"b \(no answer\)")])
def test_one_that_boots_is_waited_for_and_named(phase: str, says: str) -> None:
    pool = Pool({"a": NEW, "b": OLD}, phases={"b": phase})
    with pytest.raises(RolloutError, match=says):
        pool.walk().run(NEW)
