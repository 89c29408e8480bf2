"""Manual brakes of a fleet: keep, pause, release, held targets and manual drains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.engine import Engine

from app.adapters import FleetAgents
from app.errors import AppError, ErrorCode
from app.ledgers import ledger_name, not_here
from app.wiring import agents_of, inventory_of, open_engine
from gpufleet.domain import tags
from gpufleet.domain.activity import ConflictError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Outcome, OutcomeKind
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Cloud, Instance
from gpufleet.ledger import decisions, operations
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.schema import file_of
from gpufleet.settings.document import FleetDocument, Pool
from watchdogs.ports import Inventory
from watchdogs.spot import lifecycle
from watchdogs.spot.decide import WATCHDOG as SPOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The result of releasing a scope's brakes in one fleet."""

    document: FleetDocument
    released: list[Brake]
    left: list[Brake]
    """Brakes of a wider scope that still apply. For the scope `all`: every remaining brake."""


def keep(document: FleetDocument, known: Instance | None, brake: Brake) -> str | None:
    """Set a keep brake; if it has an end, also write the instance's tag.

    Returns why an existing tag stays unchanged, or None. Raises AppError.
    """
    set_brake(document, brake)
    until = brake.until
    if known is None or until is None:
        return None
    written = known.keep_tags(until)
    failed = inventory_of(document).tag([known.id] if written else [], written)
    for error in failed.values():
        raise AppError(f"the brake is set in the ledger, but its tag could not be written: {error}")
    if written:
        return None
    return f"its tag {tags.KEEP_UNTIL}={known.tags[tags.KEEP_UNTIL]} keeps it longer; this tag is unchanged"


def release(scope: str, documents: Sequence[FleetDocument], who: str, now: datetime) -> list[Release]:
    """Release the brakes of a scope and let its pools try failed boots again. Raises AppError."""
    chosen = _braked(scope, documents, now)
    for document, _ in chosen:
        _check_ledger_is_here(document)
    done: list[Release] = []
    for document, known in chosen:
        engine = open_engine(document)
        released, remaining = _release(engine, document, scope, known, (who, now))
        _allow_boots_again(engine, document, [p for p in document.pools if scope in ("all", p.name)], who, now)
        done.append(Release(document=document, released=released, left=remaining))
        if known is not None:
            remove_keep(inventory_of(document), known.id)
    return done


def _release(
    engine: Engine, document: FleetDocument, scope: str, known: Instance | None, by: tuple[str, datetime]
) -> tuple[list[Brake], list[Brake]]:
    """The released brakes of a scope, and those that still apply to it. For `all`: every remaining brake."""
    fleet = ledger_name(document)
    before = operations.brakes(engine, fleet, by[1])
    # also release brakes of kinds that only a newer release knows
    for kind in (*BrakeKind, *{brake.kind for brake in before if brake.scope == scope and not brake.kind.known}):
        operations.release_brakes(engine, fleet, kind, scope, by)
    after = operations.brakes(engine, fleet, by[1])
    removed = {brake.id for brake in before} - {brake.id for brake in after}
    wider = {"all"} if known is None else {"all", known.pool}
    return (
        [brake for brake in before if brake.id in removed],
        [brake for brake in after if scope == "all" or brake.scope in wider],
    )


def _allow_boots_again(
    engine: Engine, document: FleetDocument, pools: Sequence[Pool], who: str, now: datetime
) -> None:
    ledger = FleetLedger(engine, ledger_name(document), SPOT, who)
    for pool in pools:
        if pool.watchdogs.spot is not None:
            decision = lifecycle.retry_requested(pool.name, who)
            ledger.record_outcome(
                SPOT, Outcome(decision=decision, kind=OutcomeKind.DONE, detail=decision.detail), now
            )


def _braked(
    scope: str, documents: Sequence[FleetDocument], now: datetime
) -> Sequence[tuple[FleetDocument, Instance | None]]:
    """The fleets in which a scope's brakes are released, with the instance if the scope is one. Raises AppError."""
    if scope == "all":
        return [(document, None) for document in documents]
    try:
        return [owner_of(scope, documents)]
    except AppError as error:
        # a pause can outlast its instance, and its pool's settings
        left = [(document, None) for document in documents if scope in _scopes(document, now)]
        if error.code is not ErrorCode.WRONG_USE or not left:
            raise
        return left


def _scopes(document: FleetDocument, now: datetime) -> set[str]:
    _check_ledger_is_here(document)
    return {brake.scope for brake in operations.brakes(open_engine(document), ledger_name(document), now)}


def remove_keep(inventory: Inventory, instance: str) -> None:
    """Remove the keep-until tag from an instance. Raises AppError if the tag remains, because it still keeps the
    instance.
    """
    try:
        failed = inventory.untag([instance], [tags.KEEP_UNTIL])
    except OSError as error:
        failed = {instance: str(error)}
    for error in failed.values():
        raise AppError(
            f"the brakes of {instance} are released in the ledger, but its tag {tags.KEEP_UNTIL}, which keeps it too,"
            f" could not be removed: {error}"
        )


def targets(document: FleetDocument) -> list[dict[str, Any]]:
    """The pools' targets for JSON output. If the ledger is not on this machine, they are those of the settings."""
    engine, fleet = open_engine(document, reading=True), ledger_name(document)
    found = operations.brakes(engine, fleet, datetime.now(UTC))
    held = {brake.scope: brake for brake in found if brake.counts_as(BrakeKind.TARGET)}
    rows: list[dict[str, Any]] = []
    for row in operations.targets(engine, fleet):
        last, brake = operations.target_moves(engine, fleet, row.pool)[-1], held.get(row.pool)
        until = None if brake is None else brake.until
        rows.append(
            {
                "environment": document.environment,
                "pool": row.pool,
                "target": row.value,
                "version": row.version,
                "changed_by": last.changed_by,
                "reason": last.reason,
                "at": last.at.isoformat(timespec="seconds"),
                "held_by": None if brake is None else brake.owner,
                "held_until": None if until is None else until.isoformat(timespec="seconds"),
            }
        )
    return rows


def hold_target(document: FleetDocument, brake: Brake, value: int) -> None:
    """Set a pool's target and hold it. Raises AppError."""
    pool = brake.scope
    limits = document.pool(pool)
    if not limits.min <= value <= limits.max:
        raise AppError(
            f"target {value} of pool {pool} is outside {limits.min} to {limits.max}; change the settings to widen it",
            ErrorCode.WRONG_USE,
        )
    _check_ledger_is_here(document)
    engine = open_engine(document)
    seen = next(row for row in operations.targets(engine, ledger_name(document)) if row.pool == pool)
    try:
        operations.hold_target(engine, ledger_name(document), seen, value, brake)
    except ConflictError as error:
        raise AppError(f"{error}; read the target again (`gpufleet target {pool}`)") from error


def to_drain(instance: str, documents: Sequence[FleetDocument], *, limited: bool) -> tuple[FleetDocument, Instance]:
    """The instance to drain and its fleet. `limited`: whether the user gave a deadline. Raises AppError."""
    document, known = owner_of(instance, documents)
    if known is None:
        raise AppError(
            f"{instance!r} is not an instance id: `gpufleet top --once` lists the instances", ErrorCode.WRONG_USE
        )
    if known.environment is None:
        # gpufleet must not send orders to the agent of an instance that no fleet owns
        raise AppError(f"{instance} belongs to no fleet, so it cannot be drained from here")
    if not limited and known.pool not in {pool.name for pool in document.pools}:
        raise AppError(
            f"{instance} belongs to no pool of {document.environment}: set --deadline", ErrorCode.WRONG_USE
        )
    return document, known


def drain(
    document: FleetDocument, instance: Instance, reason: str, deadline: timedelta, warn: Callable[[str], None]
) -> AgentStatus:
    """Ask an instance's node agent to drain. `warn` receives a message if a clock is wrong. Raises AppError."""
    try:
        return FleetAgents(agents_of(document, warn)).drain(instance, DrainOwner.PERSON, reason, deadline)
    except OSError as error:
        raise AppError(str(error)) from error


def set_brake(document: FleetDocument, brake: Brake) -> None:
    """Set a brake in a fleet's ledger. Raises AppError."""
    _check_ledger_is_here(document)
    operations.set_brake(open_engine(document), ledger_name(document), brake)


def _check_ledger_is_here(document: FleetDocument) -> None:
    """Raises AppError unless the ledger on this machine is the one that the watchdogs read.

    A ledger file that is created here would stop no watchdog: they run on another machine and read their own.
    """
    if (reason := not_here(document)) is not None:
        raise AppError(
            f"{reason}, so the watchdogs of {document.environment} would not see this change: run the"
            " command on the machine where they run (the control host)"
        )


def unused_ledger(document: FleetDocument) -> str | None:
    """A warning if no pass with --apply has used the fleet's ledger file yet, else None.

    A dry run creates a ledger, too: it stores the policies it has shown.
    """
    file = file_of(document.ledger_url)
    if file is None or decisions.has_decisions(open_engine(document), ledger_name(document)):
        return None
    return (
        f"no pass with --apply has used the ledger {file} yet: if the watchdogs of {document.environment} run on"
        " another machine, this does not affect them: run the command there"
    )


def owner_of(scope: str, documents: Sequence[FleetDocument]) -> tuple[FleetDocument, Instance | None]:
    """The fleet that a scope belongs to, and the instance if the scope is one. Raises AppError."""
    for document in documents:
        if scope in (pool.name for pool in document.pools) or scope in (rule.name for rule in document.orphans):
            return document, None
    if scope == "all":
        if len(documents) == 1:
            return documents[0], None
        raise AppError("`all` is ambiguous with several fleets: select one with --fleet", ErrorCode.WRONG_USE)
    for document in documents:
        try:
            found = inventory_of(document).instance(scope) if _may_be_instance(document, scope) else None
        except OSError as error:
            raise AppError(str(error)) from error
        # an instance without a fleet belongs to any fleet whose orphan rules may stop it
        is_unmanaged = found is not None and found.environment is None and bool(document.orphans)
        if found is not None and (found.environment == document.environment or is_unmanaged):
            return document, found
    names = ", ".join(pool.name for document in documents for pool in document.pools)
    raise AppError(
        f"{scope!r} is not a pool, an `orphans` rule or an instance of these fleets; pools: {names or 'none'}",
        ErrorCode.WRONG_USE,
    )


def _may_be_instance(document: FleetDocument, scope: str) -> bool:
    """Whether the scope may be an instance id.

    AWS rejects a lookup of text that is not an id. On Google Cloud the id is the instance's name, which may be any
    text.
    """
    return document.cloud is Cloud.GCP or scope.startswith("i-")
