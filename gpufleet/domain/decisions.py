"""A plan: one decision for every resource looked at, the untouched ones included.

A decision is a wish, an outcome is a deed. A dry run is a plan that was printed and not given to act.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class Action(StrEnum):
    """What a watchdog may wish for."""

    KEEP = "keep"
    MARK = "mark"
    UNMARK = "unmark"
    END = "end"
    """Drain, then end through its group with desired and target lowered."""
    STOP = "stop"
    """Stop a stand-alone machine."""
    RESIZE = "resize"
    """Set a group's desired size."""
    RETARGET = "retarget"
    """Set a pool's target."""
    REPLACE = "replace"
    """End a failed instance without lowering the group's size."""


class Reason(StrEnum):
    """Why. Closed: the docs have an entry for each."""

    # kept
    SERVING = "requests in flight"
    TOKENS_MOVED = "tokens were served in the window"
    GPU_ACTIVE = "GPU active"
    GPU_ACTIVE_WITHOUT_WORK = "GPU active without work"
    METRICS_MISSING = "metrics missing"
    METRICS_STALE = "metrics stale"
    METRICS_IMPLAUSIBLE = "metrics implausible"
    NEVER_REACHABLE = "never reachable since boot"
    WARMING_UP = "younger than its warm-up"
    LOADING = "loading its model"
    DRAINING = "draining already"
    KEPT_BY_PEOPLE = "kept by a person"
    PAUSED = "watchdogs paused"
    PREPAID = "prepaid capacity costs the same when stopped"
    POOL_FLOOR = "pool is at its floor"
    RUN_BUDGET = "most changes of this run reached"
    HOUR_BUDGET = "most changes of this hour reached"
    DAY_BUDGET = "most changes of this day reached"
    MARKED_WAITING = "marked, grace not over"
    IN_ROLLOUT = "in a rollout"
    OUTSIDE_POOLS = "outside every pool"
    MARK_ONLY = "its rule only marks"
    NOT_STOPPABLE = "it cannot be stopped without harm"
    NOT_RUNNING = "not running"
    POLICY_UNSEEN = "policy changed, its dry run was not seen"
    NO_WATCHDOG = "no such watchdog in its pool"
    NOT_READY = "not ready when due"
    AS_WANTED = "as wanted"
    # acted on
    IDLE = "idle"
    STILL_IDLE = "still idle after its grace"
    WORK_IS_BACK = "work is back"
    RESERVED_IN_FULL = "reserved capacity is paid for"
    TERM_NOT_BEGUN = "its prepaid time has not begun"
    TERM_ENDS = "its prepaid time ends"
    RUN_ENDS = "its stated time to run ends"
    SPOT_WANTED = "spot wanted"
    SAFER_ZONE = "a safer zone"
    SPOT_TOO_DEAR = "spot at or above its ceiling"
    ZONE_BACKING_OFF = "zone backing off"
    NO_SPOT = "no spot to be had"
    FALLBACK = "on-demand stands in for missing spot"
    HOLDING_FALLBACK = "spot is back, hold not over"
    SPOT_IS_BACK = "spot is back"
    PREEMPTED = "preempted, drained"
    SURPLUS = "more than the target needs"
    QUOTA = "quota reached"
    BOOTS_FAILING = "boots keep failing"
    BOOT_FAILED = "boot failed"
    LOAD_HIGH = "load above its limit"
    LOAD_EXPECTED = "load expected from earlier days"
    OBJECTIVE_MISSED = "latency above its objective"
    LOAD_LOW = "the rest can carry the load"
    LOAD_NEEDS_ALL = "the rest could not carry the load"
    SCHEDULE = "schedule"
    HELD_REQUESTS = "requests wait for a first replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One wish about one resource."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much a run may change, of one pool or of all."""

    per_run: int
    per_hour: int
    used_this_hour: int = 0
    left_today: int | None = None
    """None: the day has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All decisions of one pass of one watchdog."""

    watchdog: str
    at: datetime
    decisions: tuple[Decision, ...]
    budget: Budget | None = None
    """Over all pools, as the pass began. None: of a watchdog that ends nothing."""

    @property
    def acting(self) -> tuple[Decision, ...]:
        return tuple(d for d in self.decisions if d.action is not Action.KEEP)


class OutcomeKind(StrEnum):
    """What became of a wish."""

    DONE = "done"
    NO_LONGER_TRUE = "no longer true"
    """Looked again before acting, and the reason had gone. No error."""
    WAITING = "waiting"
    """Begun; a later pass goes on (a drain that still runs, say)."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened. `error` is a required word of a failed one."""

    decision: Decision
    kind: OutcomeKind
    detail: str = ""
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.kind is OutcomeKind.FAILED) != (self.error is not None):
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
