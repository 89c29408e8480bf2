"""Explains why a pool does not grow, from its fleet's ledger: its target and who holds it, its groups, refusals."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Engine

from app.ledgers import ledger_errors, ledger_name
from app.passes import SCALE, SPOT
from gpufleet.domain.decisions import Action, LedgerEntry, OutcomeKind, Reason
from gpufleet.ledger import operations
from gpufleet.settings.document import FleetDocument, Pool
from watchdogs.brakes import paused_by, target_held_by

FROM_THE_CLOUD: Final = frozenset({Reason.NO_SPOT, Reason.QUOTA})
"""Reasons whose detail is the cloud's message."""
OBSTACLES: Final = FROM_THE_CLOUD | {
    Reason.ZONE_BACKING_OFF,
    Reason.SPOT_TOO_EXPENSIVE,
    Reason.BOOTS_FAILING,
    Reason.POOL_CEILING,
    Reason.STARTS_CEILING,
    Reason.SPEND_CEILING,
    Reason.PAUSED,
    Reason.POLICY_UNSEEN,
    Reason.KEPT_BY_PEOPLE,
    Reason.IN_ROLLOUT,
    Reason.GROUP_UNREADABLE,
    Reason.NOT_LISTED,
    Reason.LIST_INCOMPLETE,
    Reason.TERM_NOT_BEGUN,
    Reason.NO_WATCHDOG,
}
"""Reasons why a group does not grow although the pool may need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRefusal:
    """The cloud's message when it refused to grow a group."""

    at: datetime
    group: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The causes of a pool's size, and the obstacles to its growth."""

    environment: str
    pool: Pool
    target: int
    changed: operations.TargetMove | None
    """The last change of the target; None: it was never set."""
    paused_by: str | None
    held_by: str | None
    scale: LedgerEntry | None
    """The last decision about the target."""
    groups: Sequence[LedgerEntry]
    """The last decision about each group, in the order of the settings. Groups without a decision are left out."""
    refusal: GrowthRefusal | None
    """The newest one."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        changed = self.changed
        return {
            "environment": self.environment,
            "pool": self.pool.name,
            "target": self.target,
            "min": self.pool.min,
            "max": self.pool.max,
            "target_set_by": None if changed is None else changed.changed_by,
            "target_set_at": None if changed is None else _time(changed.at),
            "target_reason": None if changed is None else changed.reason,
            "paused_by": self.paused_by,
            "held_by": self.held_by,
            "scale": None if self.scale is None else _last(self.scale),
            "groups": [{"group": one.decision.resource} | _last(one) for one in self.groups],
            "newest_refusal": self.refusal
            and {"at": _time(self.refusal.at), "group": self.refusal.group, "text": self.refusal.text},
        }

    def lines(self) -> list[str]:
        """Lines for people. The last decision about each group comes at the end."""
        pool, changed = self.pool, self.changed
        first = f"{pool.name}: target {self.target}, min {pool.min}, max {pool.max}"
        if self.target >= pool.max:
            first += " (at its max: it can only grow with other settings)"
        found = [first]
        if changed is not None:
            found.append(f"target set by {changed.changed_by}, {_time(changed.at)}: {changed.reason}")
        if self.paused_by is not None:
            found.append(f"paused {self.paused_by}")
        if self.held_by is not None:
            found.append(self.held_by)
        if pool.watchdogs.scale is None:
            found.append("no scale watchdog: its target does not follow the load")
        elif self.scale is not None:
            found.append(f"last decision of the scale watchdog, {_as_text(self.scale)}")
        if self.refusal is not None:
            found.append(f"newest refusal, {_time(self.refusal.at)}, {self.refusal.group}: {self.refusal.text}")
        return [*found, *(f"last decision about {one.decision.resource}, {_as_text(one)}" for one in self.groups)]


def growth_of(
    document: FleetDocument, engine: Engine, name: str, past: Sequence[LedgerEntry], now: datetime
) -> Growth:
    """Why a pool of the fleet has its current size. `past`: its history, oldest first. Raises AppError."""
    pool, fleet = document.pool(name), ledger_name(document)
    with ledger_errors(document):
        targets = {one.pool: one.value for one in operations.targets(engine, fleet)}
        moves = operations.target_moves(engine, fleet, name)
        brakes = [brake for brake in operations.brakes(engine, fleet, now) if brake.is_active(now)]
    names = [group.name for group in pool.groups]
    decided = {one.decision.resource: one for one in past if one.outcome is None and one.watchdog == SPOT}
    scaled = [one for one in past if one.outcome is None and one.watchdog == SCALE and one.decision.resource == name]
    return Growth(
        environment=document.environment,
        pool=pool,
        target=targets.get(name, pool.target),
        changed=moves[-1] if moves else None,
        paused_by=paused_by(name, brakes),
        held_by=target_held_by(name, brakes),
        scale=scaled[-1] if scaled else None,
        groups=[decided[group] for group in names if group in decided],
        refusal=_newest_refusal(past, frozenset(names)),
    )


def _newest_refusal(past: Sequence[LedgerEntry], groups: frozenset[str]) -> GrowthRefusal | None:
    found: GrowthRefusal | None = None
    for one in past:
        if one.decision.resource not in groups or not one.detail:
            continue
        refused = one.decision.reason in FROM_THE_CLOUD
        if one.outcome is not None:
            refused = one.outcome.kind is OutcomeKind.FAILED and one.decision.action is Action.RESIZE
        if refused:
            found = GrowthRefusal(at=one.at, group=one.decision.resource, text=one.detail)
    return found


def _last(past: LedgerEntry) -> dict[str, Any]:
    decision = past.decision
    return {
        "at": _time(past.at),
        "action": decision.action.sentence,
        "reason": decision.reason.sentence,
        "reason_code": decision.reason.value,
        "detail": decision.detail,
        "from_size": decision.from_size,
        "to_size": decision.to_size,
        "obstacle": decision.action is Action.KEEP and decision.reason in OBSTACLES,
    }


def _as_text(past: LedgerEntry) -> str:
    detail = f" ({past.decision.detail})" if past.decision.detail else ""
    return f"{_time(past.at)}: {past.decision.action.sentence}, {past.decision.reason.sentence}{detail}"


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
