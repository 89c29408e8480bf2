"""The ledger as the watchdogs of one fleet use it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from gpufleet.domain.activity import GroupActivities
from gpufleet.domain.boots import Boot
from gpufleet.domain.brakes import Brake
from gpufleet.domain.decisions import Decision, OpenAttempts, Outcome, PastAction, Plan, Target
from gpufleet.domain.last_lists import LastLists
from gpufleet.ledger import decisions, operations
from gpufleet.ledger.activities import note_activities, read_activities
from gpufleet.ledger.boots import note_boots, read_boots
from gpufleet.ledger.last_lists import last_lists, note_last_lists

LEASE_TERM: Final = timedelta(minutes=10)
"""Longer than the longest call: a drain's deadline, and what boto3 may spend on its retries."""


def _never_dead(holder: str) -> bool:
    return False


class FleetLedger:
    """The ledger, seen from one fleet and one holder of its lease."""

    def __init__(
        self, engine: Engine, fleet: str, lease: str, holder: str, is_dead: Callable[[str], bool] = _never_dead
    ) -> None:
        """`is_dead`: whether another holder can no longer release its lease."""
        self._engine = engine
        self._fleet = fleet
        self._lease = f"{fleet}:{lease}"
        self._holder = holder
        self._is_dead = is_dead

    def targets(self) -> Mapping[str, Target]:
        return {target.pool: target for target in operations.targets(self._engine, self._fleet)}

    def set_target(self, seen: Target, value: int, by: str, reason: str, at: datetime) -> Target:
        change = operations.TargetChange(by=by, reason=reason, at=at)
        return operations.set_target(self._engine, self._fleet, seen, value, change)

    def lower_target(self, pool: str, floor: int, because: str, at: datetime) -> Target:
        change = operations.TargetChange(by="idle", reason="ended an idle instance", at=at, because=because)
        return operations.lower_target(self._engine, self._fleet, pool, floor, change)

    def brakes(self, now: datetime) -> Sequence[Brake]:
        return operations.brakes(self._engine, self._fleet, now)

    def policy_seen(self, watchdog: str, pool: str, digest: str) -> bool:
        return operations.policy_seen(self._engine, self._fleet, watchdog, pool, digest)

    def see_policy(self, watchdog: str, pool: str, digest: str, by: str, at: datetime) -> None:
        operations.see_policy(self._engine, self._fleet, (watchdog, pool, digest), by, at)

    def record(self, plan: Plan) -> None:
        decisions.record_decisions(self._engine, self._fleet, plan.watchdog, plan.decisions, plan.at)

    def intend(self, watchdog: str, decision: Decision, at: datetime) -> None:
        decisions.intend(self._engine, self._fleet, watchdog, decision, at)

    def unfinished(self, watchdog: str) -> Sequence[Decision]:
        return decisions.unfinished(self._engine, self._fleet, watchdog)

    def record_outcome(self, watchdog: str, outcome: Outcome, at: datetime) -> None:
        decisions.record_outcome(self._engine, self._fleet, watchdog, outcome, at)

    def ended_since(self, watchdog: str, since: datetime) -> Mapping[str, int]:
        return decisions.ended_since(self._engine, self._fleet, watchdog, since)

    def done_since(self, watchdog: str, since: datetime) -> Sequence[PastAction]:
        return decisions.done_since(self._engine, self._fleet, watchdog, since)

    def open_attempts_since(self, watchdog: str, since: datetime) -> Mapping[str, OpenAttempts]:
        return decisions.open_attempts_since(self._engine, self._fleet, watchdog, since)

    def boots(self) -> Sequence[Boot]:
        return read_boots(self._engine, self._fleet)

    def note_boots(self, seen: Collection[Boot], now: datetime) -> None:
        note_boots(self._engine, self._fleet, seen, now)

    def activities(self, since: datetime) -> Sequence[GroupActivities]:
        return read_activities(self._engine, self._fleet, since)

    def last_lists(self) -> LastLists:
        return last_lists(self._engine, self._fleet)

    def note_last_lists(self, lists: LastLists, at: datetime) -> None:
        note_last_lists(self._engine, self._fleet, lists, at)

    def note_activities(self, read: Collection[GroupActivities], since: datetime) -> None:
        note_activities(self._engine, self._fleet, read, since)

    def renew_lease(self, now: datetime) -> bool:
        return operations.renew_lease(self._engine, self._lease, self._holder, (now, LEASE_TERM))

    def take_lease(self, now: datetime) -> str | None:
        """Returns None if we hold the lease, else its holder."""
        return operations.acquire_lease(self._engine, self._lease, self._holder, (now, LEASE_TERM), self._is_dead)

    def release_lease(self) -> None:
        operations.release_lease(self._engine, self._lease, self._holder)
