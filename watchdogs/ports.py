"""What the watchdogs need of the world.

All fail loudly: a method returns everything, names what it could not read, or raises OSError.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

from gpufleet.domain.activity import Activity, CloudError, GroupActivities
from gpufleet.domain.boots import Boot
from gpufleet.domain.brakes import Brake
from gpufleet.domain.decisions import Decision, FailedAttempts, Outcome, PastAction, Plan, Target
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus, Evidence
from gpufleet.domain.last_lists import LastLists
from gpufleet.domain.model import CapacityType, Group, GroupList, Instance, InstanceList
from gpufleet.logs import SILENT, Log


class Inventory(Protocol):
    """The instances of a fleet."""

    def claiming(self) -> InstanceList:
        """Those with a pool's tag and no environment's, of anybody. Raises OSError."""
        ...

    def listed(self) -> InstanceList:
        """All of them, every page; a failed page raises. What is malformed fails alone."""
        ...

    def instance(self, instance_id: str) -> Instance | None:
        """One, read anew; None when the cloud no longer knows it."""
        ...

    def ended(self, instance_ids: Sequence[str]) -> Sequence[Instance]:
        """Those of them that the cloud still describes, also after they ended. What it has forgotten is left out."""
        ...

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        """Write tags. Returns the error by instance where it failed; one bad item does not stop the rest."""
        ...

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        """Remove tags. Returns the error by instance where it failed."""
        ...


class Account(Protocol):
    """The whole account and region, beyond the fleet. The orphan watchdog alone looks there."""

    def gpus(self) -> InstanceList:
        """All of a GPU machine type, whoever made them; a failed page raises. What is malformed fails alone."""
        ...

    def stop(self, instance_id: str) -> None:
        """Stop a stand-alone machine; its network disks stay. Stopping what is stopped is no error."""
        ...


class Groups(Protocol):
    """The scaling groups of a fleet."""

    def groups(self, names: Sequence[str]) -> Sequence[Group]:
        """Each of them; a missing one raises."""
        ...

    def readable(self, names: Sequence[str]) -> GroupList:
        """Those of them that can be read, and why the others cannot; a failed page raises."""
        ...

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]:
        """What happened to them since then, oldest first."""
        ...

    def resize(self, group: Group, size: int) -> None:
        """Set the desired size of a group that was just read.

        A cloud that can tell raises ConflictError when its size is no longer what `group` says.
        """
        ...

    def end(self, instance_id: str, group: str, *, lower_desired: bool) -> None:
        """End an instance through its group. Ending what has ended is no error."""
        ...

    def resume_processes(self, name: str, processes: Collection[str]) -> None:
        """Let a group do again what its cloud had suspended. Google Cloud suspends nothing: there it does nothing."""
        ...

    def complete_hooks(self, name: str, *, serving: Collection[str], drained: Collection[str]) -> Mapping[str, str]:
        """Let a group go on with instances that it holds at a lifecycle hook: those that serve, those that drained.

        Completing what is complete is no error. Returns the error by instance where it failed; one bad item does not
        stop the rest. Google Cloud has no hooks: there it does nothing.
        """
        ...

    def in_rollout(self, names: Sequence[str], surely: Collection[str] = ()) -> frozenset[str]:
        """Those of the groups that are being refreshed now.

        Of the groups in `surely` nothing is guessed; of others a refresh that moves nothing just now may be missed.
        """
        ...


class Metrics(Protocol):
    """A store of metrics that speaks PromQL."""

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        """Labels and value of each series."""
        ...

    def now(self) -> datetime:
        """What its own clock says, by which its samples are dated."""
        ...

    def interval(self, job: str) -> timedelta | None:
        """How often a job is scraped; None: there is no such job."""
        ...


class Utilization(Protocol):
    """GPU utilization of instances that no Prometheus scrapes."""

    def gather(self, instance_ids: Sequence[str], window: timedelta, now: datetime) -> Mapping[str, Evidence]:
        """Evidence of GPUs alone by instance; who does not report is absent. Raises OSError."""
        ...


class Agents(Protocol):
    """The node agents."""

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, AgentStatus]:
        """By instance; one that does not answer is absent."""
        ...

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
        """Ask it to drain. Idempotent."""
        ...


class Prices(Protocol):
    """What instances cost."""

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        """None: unknown (never 0)."""
        ...

    def spot_usd_per_hour(self, machine_type: str, zone: str) -> Decimal | None:
        """The market price now; None: unknown."""
        ...

    def on_demand_usd_per_hour(self, machine_type: str) -> Decimal | None: ...

    def list_usd_per_hour(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        """Of a machine that is not there yet. `zone` None: of any zone of the region."""
        ...


class Messages(Protocol):
    """The way to people."""

    def tell(self, key: str, text: str, detail: Mapping[str, Any]) -> None:
        """Put a message into the outbox, once per key."""
        ...


LEASE_OVER: Final = "our lease is over, another run may be at work"
"""In outcomes of a pass that is too late."""


class CutShortError(CloudError):
    """A pass failed after it had begun to act. What it did is recorded, and the next pass goes on from there."""


class Ledger(Protocol):
    """The store, seen from one fleet."""

    def targets(self) -> Mapping[str, Target]: ...

    def set_target(self, seen: Target, value: int, by: str, reason: str, at: datetime) -> Target:
        """Compare-and-set. Raises ConflictError when the version has moved on."""
        ...

    def lower_target(self, pool: str, floor: int, because: str, at: datetime) -> Target:
        """One less, once per `because`, however often it is asked. As it is: at the floor, or while it is held."""
        ...

    def brakes(self, now: datetime) -> Sequence[Brake]: ...

    def record(self, plan: Plan) -> None:
        """Write the decisions whose action or reason changed."""
        ...

    def intend(self, watchdog: str, decision: Decision, at: datetime) -> None:
        """Note what is about to be done; an outcome other than WAITING and FAILED settles it."""
        ...

    def unfinished(self, watchdog: str) -> Sequence[Decision]:
        """What a killed run began and left without an outcome."""
        ...

    def record_outcome(self, watchdog: str, outcome: Outcome, at: datetime) -> None: ...

    def ended_since(self, watchdog: str, since: datetime) -> Mapping[str, int]:
        """Instances ended by a watchdog since then, by pool."""
        ...

    def done_since(self, watchdog: str, since: datetime) -> Sequence[PastAction]:
        """Everything that a watchdog did since then, oldest first."""
        ...

    def failed_since(self, watchdog: str, since: datetime) -> Mapping[str, FailedAttempts]:
        """By resource: ends and stops that failed or wait since then."""
        ...

    def boots(self) -> Sequence[Boot]:
        """By launch: the instances that were there, those that left within three days, and the newest boots of each
        pool and machine type that became ready.
        """
        ...

    def note_boots(self, seen: Collection[Boot], now: datetime) -> None:
        """Write what a look saw of these; other boots stay as they are."""
        ...

    def activities(self, since: datetime) -> Sequence[GroupActivities]:
        """What passes have read of what happened to each group, with the events since then."""
        ...

    def note_activities(self, read: Collection[GroupActivities], since: datetime) -> None:
        """Write what was read of these groups: their events are added to those that are known. Older events than
        `since`, of all groups, are forgotten.
        """
        ...

    def last_lists(self) -> LastLists:
        """The lists that a pass of any process noted last."""
        ...

    def note_last_lists(self, lists: LastLists, at: datetime) -> None:
        """Write these in place of those before."""
        ...

    def policy_seen(self, watchdog: str, pool: str, digest: str) -> bool:
        """Whether a dry run of this policy was printed, or somebody accepted it."""
        ...

    def see_policy(self, watchdog: str, pool: str, digest: str, by: str, at: datetime) -> None: ...

    def hold(self, now: datetime) -> bool:
        """Renew our lease; False when somebody else has or had it since, or its term is over: what we saw is old."""
        ...


class Clock(Protocol):
    """Time that passes; a test passes it by hand."""

    def now(self) -> datetime: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All of them, for one fleet."""

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
    """None: the cloud has no such service."""
    log: Log = SILENT
    """Of one pass."""
