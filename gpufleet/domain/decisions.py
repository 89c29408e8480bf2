"""A plan: one decision for every resource looked at, the untouched ones included.

A decision says what is wanted, an outcome what happened. A dry run is a plan that was printed and not given to act.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from gpufleet.domain.codes import Code


class Action(Code):
    """What a watchdog may do."""

    KEEP = "keep", "keep"
    MARK = "mark", "mark"
    UNMARK = "unmark", "unmark"
    END = "end", "end"
    """Drain, then end through its group with desired and target lowered."""
    STOP = "stop", "stop"
    """Stop a stand-alone machine."""
    RESIZE = "resize", "resize"
    """Set a group's desired size."""
    RETARGET = "retarget", "retarget"
    """Set a pool's target."""
    REPLACE = "replace", "replace"
    """End a failed instance without lowering the group's size."""


class Reason(Code):
    """Why. Closed: the docs have an entry for each."""

    # kept
    SERVING = "serving", "requests in flight"
    TOKENS_MOVED = "tokens_moved", "tokens were served in the window"
    GPU_ACTIVE = "gpu_active", "GPU active"
    GPU_ACTIVE_WITHOUT_WORK = "gpu_active_without_work", "GPU active without work"
    METRICS_MISSING = "metrics_missing", "metrics missing"
    METRICS_STALE = "metrics_stale", "metrics stale"
    METRICS_IMPLAUSIBLE = "metrics_implausible", "metrics implausible"
    NEVER_REACHABLE = "never_reachable", "never reachable since boot"
    WARMING_UP = "warming_up", "younger than its warm-up"
    LOADING = "loading", "loading its model"
    DRAINING = "draining", "draining already"
    KEPT_BY_PEOPLE = "kept_by_people", "kept by a person"
    PAUSED = "paused", "watchdogs paused"
    PREPAID = "prepaid", "prepaid capacity costs the same when stopped"
    POOL_FLOOR = "pool_floor", "pool is at its floor"
    NEEDED_SOON = "needed_soon", "its pool needs it within the hour"
    RUN_BUDGET = "run_budget", "most changes of this run reached"
    HOUR_BUDGET = "hour_budget", "most changes of this hour reached"
    POOL_CEILING = "pool_ceiling", "pool holds as many instances as it may"
    STARTS_CEILING = "starts_ceiling", "most starts of this hour reached"
    SPEND_CEILING = "spend_ceiling", "fleet costs as much as it may"
    DAY_BUDGET = "day_budget", "most changes of this day reached"
    MARKED_WAITING = "marked_waiting", "marked, grace not over"
    IN_ROLLOUT = "in_rollout", "in a rollout"
    OUTSIDE_POOLS = "outside_pools", "outside every pool"
    MARK_ONLY = "mark_only", "its rule only marks"
    NOT_STOPPABLE = "not_stoppable", "it cannot be stopped without harm"
    NOT_RUNNING = "not_running", "not running"
    POLICY_UNSEEN = "policy_unseen", "policy changed, its dry run was not seen"
    NO_WATCHDOG = "no_watchdog", "no such watchdog in its pool"
    NOT_READY = "not_ready", "not ready when due"
    AS_WANTED = "as_wanted", "as wanted"
    GROUP_UNREADABLE = "group_unreadable", "its group cannot be read"
    NOT_LISTED = "not_listed", "missing in the list of instances"
    CANNOT_LAUNCH = "cannot_launch", "refused for good"
    SUSPENDED = "suspended", "suspended by a person"
    LIST_INCOMPLETE = "list_incomplete", "a list of all pools cannot be read"
    # acted on
    IDLE = "idle", "idle"
    STILL_IDLE = "still_idle", "still idle after its grace"
    WORK_IS_BACK = "work_is_back", "work is back"
    RESERVED_IN_FULL = "reserved_in_full", "reserved capacity is paid for"
    TERM_NOT_BEGUN = "term_not_begun", "its prepaid time has not begun"
    TERM_ENDS = "term_ends", "its prepaid time ends"
    RUN_ENDS = "run_ends", "its stated time to run ends"
    SPOT_WANTED = "spot_wanted", "spot wanted"
    SAFER_ZONE = "safer_zone", "a safer zone"
    SPOT_TOO_DEAR = "spot_too_dear", "spot at or above its ceiling"
    ZONE_BACKING_OFF = "zone_backing_off", "zone backing off"
    NO_SPOT = "no_spot", "no spot to be had"
    FALLBACK = "fallback", "on-demand stands in for missing spot"
    HOLDING_FALLBACK = "holding_fallback", "spot is back, hold not over"
    SPOT_IS_BACK = "spot_is_back", "spot is back"
    PREEMPTED = "preempted", "preempted, drained"
    SURPLUS = "surplus", "more than the target needs"
    QUOTA = "quota", "quota reached"
    BOOTS_FAILING = "boots_failing", "boots keep failing"
    BOOT_FAILED = "boot_failed", "boot failed"
    ENGINE_CRASHED = "engine_crashed", "engine crashed"
    LOAD_HIGH = "load_high", "load above its limit"
    LOAD_EXPECTED = "load_expected", "load expected from earlier days"
    """Given by earlier releases alone; their ledgers hold it."""
    OBJECTIVE_MISSED = "objective_missed", "latency above its objective"
    LOAD_LOW = "load_low", "the rest can carry the load"
    LOAD_NEEDS_ALL = "load_needs_all", "the rest could not carry the load"
    SCHEDULE = "schedule", "schedule"
    HELD_REQUESTS = "held_requests", "requests wait for a first replica"


UNSEEN: Final = frozenset(
    {Reason.METRICS_MISSING, Reason.METRICS_STALE, Reason.METRICS_IMPLAUSIBLE, Reason.NEVER_REACHABLE}
)
"""Of those that are kept because nobody can say whether they work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUnseen:
    """An instance that was kept all the time for reasons of `UNSEEN`."""

    instance_id: str
    pool: str | None
    reason: Reason
    """The last one."""
    since: datetime
    until: datetime | None
    """When something else was decided about it; None: that is the newest decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why something is not done or is done last: an instance is not idle, a group is not asked."""

    reason: Reason
    detail: str = ""
    of: str | None = None
    """The other resource that this is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is wanted of one resource."""

    resource: str
    """Instance id, group name or pool name."""
    pool: str | None
    action: Action
    reason: Reason
    detail: str = ""
    """The evidence in one line, for people."""
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])
    """The numbers judged, for the ledger."""
    from_size: int | None = None
    to_size: int | None = None
    """Of RESIZE and RETARGET."""
    usd_per_hour: Decimal | None = None
    """What the move costs (negative) or saves (positive); None: unknown."""

    def kept(self, reason: Reason, detail: str) -> "Decision":
        """The decision to leave the resource alone instead, on the same evidence. It moves and costs nothing."""
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
    """How much a run may change, of one pool or of all."""

    per_run: int
    per_hour: int
    used_this_hour: int = 0
    left_today: int | None = None
    """None: the day has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendRate:
    """What a fleet costs at list prices, in USD per hour, and the limit at which it stops growing."""

    limit_usd_per_hour: Decimal
    usd_per_hour: Decimal
    """Of what runs, in all pools, and of what is asked for."""
    unpriced: int = 0
    """Instances whose price is unknown: the sum is at least that."""
    unpriced_stops: bool = False
    """Whether the fleet stops growing while a price is unknown."""

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
    """Over all pools, as the pass began. None: of a watchdog that ends nothing."""
    spend: SpendRate | None = None
    """With the growth of this plan. None: of a watchdog that buys nothing, or of a fleet without such a limit."""

    @property
    def acting(self) -> tuple[Decision, ...]:
        return tuple(d for d in self.decisions if d.action is not Action.KEEP)


class OutcomeKind(Code):
    """What became of a decision."""

    DONE = "done", "done"
    NO_LONGER_TRUE = "no_longer_true", "no longer true"
    """Looked again before acting, and the reason had gone. No error."""
    WAITING = "waiting", "waiting"
    """Begun; a later pass goes on (a drain that still runs, say)."""
    FAILED = "failed", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened. `error` is a required word of a failed one."""

    decision: Decision
    kind: OutcomeKind
    detail: str = ""
    error: str | None = None

    def __post_init__(self) -> None:
        if self.kind.known and (self.kind is OutcomeKind.FAILED) != (self.error is not None):
            raise ValueError("a failed outcome has an error, and no other has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Ready replicas that a pool needs, with the version that a change must name."""

    pool: str
    value: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAction:
    """Something that a watchdog did to a resource."""

    resource: str
    pool: str | None
    action: Action
    reason: Reason
    at: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempts:
    """Tries to end or stop a resource that came to nothing."""

    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A decision of the past, or what became of it."""

    at: datetime
    watchdog: str
    decision: Decision
    outcome: Outcome | None
    """None: it was decided then."""

    @property
    def detail(self) -> str:
        """What people are shown of it."""
        if self.outcome is None:
            return self.decision.detail
        return self.outcome.error or self.outcome.detail
