"""A plan: one decision for each inspected resource, including the unchanged ones.

A decision is what the watchdog wants, an outcome is what happened. A dry run prints a plan without executing it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from gpufleet.domain.codes import Code


class Action(Code):
    """The actions of a watchdog."""

    KEEP = "keep", "keep"
    MARK = "mark", "mark"
    UNMARK = "unmark", "unmark"
    END = "end", "end"
    """Drain the instance, then terminate it through its group and lower desired size and target."""
    STOP = "stop", "stop"
    """Stop a machine that is in no group."""
    RESIZE = "resize", "resize"
    """Set a group's desired size."""
    RETARGET = "retarget", "retarget"
    """Set a pool's target."""
    REPLACE = "replace", "replace"
    """Terminate a failed instance without lowering the group's size."""


class Reason(Code):
    """The reasons of decisions. A closed set: the docs have an entry for each."""

    # Reasons to keep a resource unchanged.
    SERVING = "serving", "requests in flight"
    TOKENS_MOVED = "tokens_moved", "tokens were served in the window"
    GPU_ACTIVE = "gpu_active", "GPU active"
    GPU_ACTIVE_WITHOUT_WORK = "gpu_active_without_work", "GPU active without work"
    METRICS_MISSING = "metrics_missing", "metrics missing"
    METRICS_STALE = "metrics_stale", "metrics stale"
    ENGINE_UNKNOWN = "engine_unknown", "metrics of the engine not understood"
    ACCELERATOR_UNKNOWN = "accelerator_unknown", "no proof that an accelerator is idle"
    METRICS_IMPLAUSIBLE = "metrics_implausible", "metrics implausible"
    NEVER_REACHABLE = "never_reachable", "never reachable since boot"
    WARMING_UP = "warming_up", "younger than its warm-up"
    LOADING = "loading", "loading its model"
    DRAINING = "draining", "already draining"
    KEPT_BY_PEOPLE = "kept_by_people", "kept by a person"
    PAUSED = "paused", "watchdogs paused"
    PREPAID = "prepaid", "prepaid capacity costs the same when stopped"
    POOL_FLOOR = "pool_floor", "pool is at its floor"
    NEEDED_SOON = "needed_soon", "its pool needs it within the hour"
    RUN_BUDGET = "run_budget", "limit of stops per pass reached"
    HOUR_BUDGET = "hour_budget", "limit of stops per hour reached"
    POOL_CEILING = "pool_ceiling", "pool is at its maximum of instances"
    STARTS_CEILING = "starts_ceiling", "limit of starts per hour reached"
    SPEND_CEILING = "spend_ceiling", "fleet is at its limit of USD per hour"
    DAY_BUDGET = "day_budget", "limit of stops per day reached"
    MARKED_WAITING = "marked_waiting", "marked, grace period not over"
    IN_ROLLOUT = "in_rollout", "in a rollout"
    OUTSIDE_POOLS = "outside_pools", "outside every pool"
    MARK_ONLY = "mark_only", "its rule only marks"
    NOT_STOPPABLE = "not_stoppable", "it cannot be stopped without harm"
    NOT_RUNNING = "not_running", "not running"
    POLICY_UNSEEN = "policy_unseen", "policy changed, its dry run was not accepted"
    NO_WATCHDOG = "no_watchdog", "its pool has no such watchdog"
    NOT_READY = "not_ready", "not ready when due"
    AS_WANTED = "as_wanted", "as wanted"
    GROUP_UNREADABLE = "group_unreadable", "its group cannot be read"
    NOT_LISTED = "not_listed", "missing from the list of instances"
    CANNOT_LAUNCH = "cannot_launch", "the cloud permanently refuses launches"
    SUSPENDED = "suspended", "suspended by a person"
    LIST_INCOMPLETE = "list_incomplete", "a list of all pools cannot be read"
    # Reasons to act.
    IDLE = "idle", "idle"
    STILL_IDLE = "still_idle", "still idle after its grace"
    WORK_IS_BACK = "work_is_back", "work is back"
    RESERVED_IN_FULL = "reserved_in_full", "reserved capacity is paid for"
    TERM_NOT_BEGUN = "term_not_begun", "its prepaid period has not begun"
    TERM_ENDS = "term_ends", "its prepaid period ends"
    RUN_ENDS = "run_ends", "its maximum run time ends"
    SPOT_WANTED = "spot_wanted", "spot wanted"
    SAFER_ZONE = "safer_zone", "a safer zone"
    SPOT_TOO_EXPENSIVE = "spot_too_dear", "spot price at or above its ceiling"
    ZONE_BACKING_OFF = "zone_backing_off", "zone backing off"
    NO_SPOT = "no_spot", "no spot capacity available"
    FALLBACK = "fallback", "on-demand replaces missing spot"
    HOLDING_FALLBACK = "holding_fallback", "spot is back, hold period not over"
    SPOT_IS_BACK = "spot_is_back", "spot is back"
    PREEMPTED = "preempted", "preempted, drained"
    SURPLUS = "surplus", "more than the target needs"
    QUOTA = "quota", "quota reached"
    BOOTS_FAILING = "boots_failing", "boots keep failing"
    BOOT_FAILED = "boot_failed", "boot failed"
    ENGINE_CRASHED = "engine_crashed", "engine crashed"
    LOAD_HIGH = "load_high", "load above its limit"
    LOAD_EXPECTED = "load_expected", "load expected from earlier days"
    """Only earlier releases gave this reason; their ledgers contain it."""
    OBJECTIVE_MISSED = "objective_missed", "latency above its objective"
    LOAD_LOW = "load_low", "the other replicas can carry the load"
    LOAD_NEEDS_ALL = "load_needs_all", "the other replicas could not carry the load"
    SCHEDULE = "schedule", "schedule"
    HELD_REQUESTS = "held_requests", "requests wait for a first replica"


UNOBSERVED: Final = frozenset(
    {
        Reason.METRICS_MISSING,
        Reason.METRICS_STALE,
        Reason.METRICS_IMPLAUSIBLE,
        Reason.ENGINE_UNKNOWN,
        Reason.ACCELERATOR_UNKNOWN,
        Reason.NEVER_REACHABLE,
    }
)
"""Reasons to keep an instance because its activity is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUnobserved:
    """An instance that was kept continuously for reasons in `UNOBSERVED`."""

    instance_id: str
    pool: str | None
    reason: Reason
    """The latest reason."""
    since: datetime
    until: datetime | None
    """Time of the first later decision with a reason outside `UNOBSERVED`; None if there is none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why an instance is not ended, or why a group is not used or is used last."""

    reason: Reason
    detail: str = ""
    of: str | None = None
    """The other resource that this objection is about; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a watchdog wants to do with one resource."""

    resource: str
    """Instance id, group name or pool name."""
    pool: str | None
    action: Action
    reason: Reason
    detail: str = ""
    """The evidence in one line, for people."""
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])
    """The evaluated numbers, for the ledger."""
    from_size: int | None = None
    to_size: int | None = None
    """Old and new size, for RESIZE and RETARGET."""
    usd_per_hour: Decimal | None = None
    """What the action saves (positive) or costs (negative); of a kept idle instance or orphan, its price. None:
    unknown."""

    def kept(self, reason: Reason, detail: str) -> "Decision":
        """Return the decision to keep the resource, with the same evidence. It changes and costs nothing."""
        return Decision(
            resource=self.resource,
            pool=self.pool,
            action=Action.KEEP,
            reason=reason,
            detail=detail,
            evidence=self.evidence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBudget:
    """How many instances a pass may terminate or stop, in one pool or in all pools."""

    per_run: int
    per_hour: int
    used_this_hour: int = 0
    left_today: int | None = None
    """None if there is no daily limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendRate:
    """The cost of a fleet at list prices, in USD per hour, and the limit at which it stops growing."""

    limit_usd_per_hour: Decimal
    usd_per_hour: Decimal
    """Cost of the running and the requested instances of all pools."""
    unpriced: int = 0
    """Number of instances with an unknown price: the sum is a lower bound then."""
    unpriced_stops: bool = False
    """Whether the fleet stops growing if a price is unknown."""

    @property
    def sentence(self) -> str:
        """The sum, for people."""
        if not self.unpriced:
            return f"{self.usd_per_hour}"
        return f"at least {self.usd_per_hour} ({self.unpriced} without a price)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All decisions of one pass of one watchdog."""

    watchdog: str
    at: datetime
    decisions: tuple[Decision, ...]
    budget: ChangeBudget | None = None
    """Budget over all pools at the start of the pass. None for a watchdog that terminates nothing."""
    spend: SpendRate | None = None
    """Cost including the growth in this plan. None for a watchdog that buys nothing, or without a limit."""

    @property
    def acting(self) -> tuple[Decision, ...]:
        return tuple(d for d in self.decisions if d.action is not Action.KEEP)


class OutcomeKind(Code):
    """The result of a decision."""

    DONE = "done", "done"
    NO_LONGER_TRUE = "no_longer_true", "no longer true"
    """The check before the action found that the reason no longer applies. Not an error."""
    WAITING = "waiting", "waiting"
    """The action has started; a later pass continues it (for example, a drain in progress)."""
    FAILED = "failed", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened to a decision. `error` is required for a failed outcome and forbidden for all others."""

    decision: Decision
    kind: OutcomeKind
    detail: str = ""
    error: str | None = None

    def __post_init__(self) -> None:
        if self.kind.known and (self.kind is OutcomeKind.FAILED) != (self.error is not None):
            raise ValueError("a failed outcome needs an error; other outcomes must not have one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The number of ready replicas that a pool needs. A change must name its version (optimistic locking)."""

    pool: str
    value: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAction:
    """An action that a watchdog took on a resource."""

    resource: str
    pool: str | None
    action: Action
    reason: Reason
    at: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttempts:
    """Attempts to terminate or stop a resource that failed or still wait."""

    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A past decision, or its outcome."""

    at: datetime
    watchdog: str
    decision: Decision
    outcome: Outcome | None
    """None for the decision itself."""

    @property
    def detail(self) -> str:
        """The text that people see."""
        if self.outcome is None:
            return self.decision.detail
        return self.outcome.error or self.outcome.detail
