"""The interfaces that the watchdogs use: clouds, metrics, agents, prices, messages, ledger.

A method returns the complete answer, names the items that it could not read, or raises OSError.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

from gpufleet.domain.activity import Activity, CloudError, GroupActivities
from gpufleet.domain.boots import Boot
from gpufleet.domain.brakes import Brake
from gpufleet.domain.clocks import Clock
from gpufleet.domain.decisions import Decision, OpenAttempts, Outcome, PastAction, Plan, Target
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus, Evidence
from gpufleet.domain.last_lists import LastLists
from gpufleet.domain.model import CapacityType, Group, GroupList, Instance, InstanceList
from gpufleet.logs import SILENT, Log


class Inventory(Protocol):
    """The instances of a fleet."""

    def claiming(self) -> InstanceList:
        """Instances of the account with a pool tag and without an environment tag. Raises OSError."""
        ...

    def listed(self) -> InstanceList:
        """All instances, from all pages. Raises OSError if a page fails; a malformed item is an error of its own."""
        ...

    def instance(self, instance_id: str) -> Instance | None:
        """The current state of one instance; None: the cloud no longer knows it."""
        ...

    def ended(self, instance_ids: Sequence[str]) -> Sequence[Instance]:
        """Those of the instances that have ended and that the cloud still describes."""
        ...

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        """Write tags. Returns the error by instance where it failed; one bad item does not stop the rest."""
        ...

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        """Remove tags. Returns the error by instance where it failed."""
        ...


class Account(Protocol):
    """The whole account and region, beyond the fleet. Only the orphan watchdog reads it."""

    def gpus(self) -> InstanceList:
        """All instances with GPUs, of any owner.

        Raises OSError if a page fails; a malformed item is an error of its own.
        """
        ...

    def stop(self, instance_id: str) -> None:
        """Stop a stand-alone machine; its network disks stay. Idempotent."""
        ...


class Groups(Protocol):
    """The scaling groups of a fleet."""

    def groups(self, names: Sequence[str]) -> Sequence[Group]:
        """All of the named groups. Raises OSError if one is missing."""
        ...

    def readable(self, names: Sequence[str]) -> GroupList:
        """The named groups that can be read, and the errors of the others. Raises OSError if a page fails."""
        ...

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]:
        """Activities of the groups since then, oldest first."""
        ...

    def resize(self, group: Group, size: int) -> None:
        """Set the desired size of a group that was just read.

        Raises ConflictError when the size is no longer that of `group`, on clouds that can detect it.
        """
        ...

    def end(self, instance_id: str, group: str, *, lower_desired: bool) -> None:
        """End an instance through its group. Idempotent."""
        ...

    def resume_processes(self, name: str, processes: Collection[str]) -> None:
        """Resume processes of a group that its cloud suspended. No effect on Google Cloud, which suspends none."""
        ...

    def complete_hooks(self, name: str, *, serving: Collection[str], drained: Collection[str]) -> Mapping[str, str]:
        """Complete the lifecycle hooks of instances of a group: of those that serve, and of those that have drained.

        Idempotent. Returns the error by instance where it failed; a failed item does not stop the others. No effect
        on Google Cloud, which has no hooks.
        """
        ...

    def in_rollout(self, names: Sequence[str], required: Collection[str] = ()) -> frozenset[str]:
        """Those of the groups that are being refreshed now.

        The answer is exact for the groups in `required`; of others, a refresh that is between two steps may be
        missed.
        """
        ...


class Metrics(Protocol):
    """A metrics store with the PromQL API."""

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        """Labels and value of each series."""
        ...

    def now(self) -> datetime:
        """The time of the store's own clock, which dates its samples."""
        ...

    def interval(self, job: str) -> timedelta | None:
        """Scrape interval of a job; None: there is no such job."""
        ...


class Utilization(Protocol):
    """GPU utilization of instances that no Prometheus scrapes."""

    def gather(self, instance_ids: Sequence[str], window: timedelta, now: datetime) -> Mapping[str, Evidence]:
        """GPU evidence by instance; an instance that does not report is absent. Raises OSError."""
        ...


class Agents(Protocol):
    """The node agents."""

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, AgentStatus]:
        """Status by instance; an agent that does not answer is absent."""
        ...

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
        """Start to drain an instance. Idempotent."""
        ...


class Prices(Protocol):
    """Prices of instances, in USD per hour."""

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        """Price of an instance; None: unknown (never 0)."""
        ...

    def spot_usd_per_hour(self, machine_type: str, zone: str) -> Decimal | None:
        """Current market price; None: unknown."""
        ...

    def on_demand_usd_per_hour(self, machine_type: str) -> Decimal | None: ...

    def list_usd_per_hour(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        """List price of a machine that does not exist yet; None: unknown. `zone` None: any zone of the region."""
        ...


class Messages(Protocol):
    """Messages to people."""

    def notify(self, key: str, text: str, detail: Mapping[str, Any]) -> None:
        """Put a message into the outbox, once per key."""
        ...


LEASE_OVER: Final = "the lease of this pass has expired; another pass may be running"
"""Detail of outcomes of a pass that lost its lease."""


class CutShortError(CloudError):
    """A pass failed after it had begun to act. Its actions are recorded, and the next pass continues from there."""


class Ledger(Protocol):
    """The ledger of one fleet."""

    def targets(self) -> Mapping[str, Target]: ...

    def set_target(self, seen: Target, value: int, by: str, reason: str, at: datetime) -> Target:
        """Compare-and-set. Raises ConflictError when the version has changed."""
        ...

    def lower_target(self, pool: str, floor: int, because: str, at: datetime) -> Target:
        """Lower the target by one, once per `because`.

        Unchanged at the floor, and while a person holds the target.
        """
        ...

    def brakes(self, now: datetime) -> Sequence[Brake]: ...

    def record(self, plan: Plan) -> None:
        """Record the decisions whose action or reason changed."""
        ...

    def intend(self, watchdog: str, decision: Decision, at: datetime) -> None:
        """Record an action before it begins. An outcome other than WAITING and FAILED resolves it."""
        ...

    def unfinished(self, watchdog: str) -> Sequence[Decision]:
        """Actions that a killed pass began and left without an outcome."""
        ...

    def record_outcome(self, watchdog: str, outcome: Outcome, at: datetime) -> None: ...

    def ended_since(self, watchdog: str, since: datetime) -> Mapping[str, int]:
        """Instances ended by a watchdog since then, by pool."""
        ...

    def done_since(self, watchdog: str, since: datetime) -> Sequence[PastAction]:
        """Actions of a watchdog since then, oldest first."""
        ...

    def open_attempts_since(self, watchdog: str, since: datetime) -> Mapping[str, OpenAttempts]:
        """By resource: ends and stops that failed or wait since then."""
        ...

    def boots(self) -> Sequence[Boot]:
        """By launch: boots of existing instances, of those that ended within three days, and the newest successful
        boots of each pool and machine type.
        """
        ...

    def note_boots(self, seen: Collection[Boot], now: datetime) -> None:
        """Write these boots as observed; other boots stay unchanged."""
        ...

    def activities(self, since: datetime) -> Sequence[GroupActivities]:
        """The activities that earlier passes read of each group, with the events since then."""
        ...

    def note_activities(self, read: Collection[GroupActivities], since: datetime) -> None:
        """Add the events that were read of these groups. Events of all groups before `since` are deleted."""
        ...

    def last_lists(self) -> LastLists:
        """The lists that a pass of any process recorded last."""
        ...

    def note_last_lists(self, lists: LastLists, at: datetime) -> None:
        """Replace the recorded lists."""
        ...

    def policy_seen(self, watchdog: str, pool: str, digest: str) -> bool:
        """Whether a dry run of this policy was printed, or a person accepted it."""
        ...

    def see_policy(self, watchdog: str, pool: str, digest: str, by: str, at: datetime) -> None: ...

    def renew_lease(self, now: datetime) -> bool:
        """Renew the lease.

        False when it has expired, or another process holds or held it: observations are outdated then.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All interfaces, for one fleet."""

    inventory: Inventory
    groups: Groups
    metrics: Metrics
    agents: Agents
    prices: Prices
    messages: Messages
    ledger: Ledger
    clock: Clock
    account: Account | None = None
    utilization: Utilization | None = None
    """None: the cloud has no service for it."""
    log: Log = SILENT
    """Of one pass."""
