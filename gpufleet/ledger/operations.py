"""Targets, leases, brakes and accepted policies, which watchdogs and people set.

`fleet` names one environment on one cloud and region (`domain.model.fleet_name`), so that several share a database.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    or_,
    select,
    update,
)

from gpufleet.domain.activity import ConflictError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Target
from gpufleet.ledger.database import insert_into, writing
from gpufleet.ledger.tables import BRAKES, LEASES, POLICIES, TARGET_MOVES, TARGETS


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChange:
    """Who changes a target, why and when."""

    by: str
    reason: str
    at: datetime
    because: str | None = None
    """Identifies a change that must happen only once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMove:
    """One change of a target."""

    pool: str
    version: int
    value: int
    changed_by: str
    reason: str
    at: datetime


# targets


def seed_target(engine: Engine, fleet: str, pool: str, value: int, at: datetime) -> Target:
    """The pool's target. If the ledger has none yet, the settings' value is written first."""
    with writing(engine) as connection:
        found = _target(connection, fleet, pool)
        if found is not None:
            return found
        first = TargetChange(by="settings", reason="first value", at=at)
        return _move(connection, fleet, Target(pool=pool, value=value, version=0), first)


def targets(engine: Engine, fleet: str) -> tuple[Target, ...]:
    """All targets of a fleet, by pool."""
    with engine.connect() as connection:
        rows = connection.execute(select(TARGETS).where(TARGETS.c.fleet == fleet).order_by(TARGETS.c.pool))
        return tuple(Target(pool=row.pool, value=row.value, version=row.version) for row in rows)


def set_target(engine: Engine, fleet: str, seen: Target, value: int, change: TargetChange) -> Target:
    """Compare-and-set. Raises ConflictError if the version has changed."""
    with writing(engine) as connection:
        return _compare_and_set(connection, fleet, seen, value, change)


def hold_target(engine: Engine, fleet: str, seen: Target, value: int, brake: Brake) -> Target:
    """Compare-and-set by a person, with the brake that holds the target. It replaces the pool's earlier brake.

    The version increases even if the value stays, so that no pass writes what it decided before the brake.
    Raises ConflictError if the version has changed.
    """
    change = TargetChange(by=brake.owner, reason=brake.reason, at=brake.since)
    with writing(engine) as connection:
        held = _compare_and_set(connection, fleet, seen, value, change)
        _release(connection, fleet, brake.kind, brake.scope, (brake.owner, brake.since))
        add_brake(connection, fleet, brake)
        return held


def lower_target(engine: Engine, fleet: str, pool: str, floor: int, change: TargetChange) -> Target:
    """Lower the target by one, once per `because` of the change. It stays unchanged at the floor and while held.

    Raises ConflictError when the pool has no target.
    """
    with writing(engine) as connection:
        found = _target(connection, fleet, pool)
        if found is None:
            raise ConflictError(f"pool {pool} has no target in the ledger")
        done = connection.execute(
            select(TARGET_MOVES.c.version).where(
                TARGET_MOVES.c.fleet == fleet, TARGET_MOVES.c.pool == pool, TARGET_MOVES.c.because == change.because
            )
        ).first()
        if done is not None or found.value - 1 < floor or _is_held(connection, fleet, pool, change.at):
            return found
        lowered = Target(pool=pool, value=found.value - 1, version=found.version)
        return _move(connection, fleet, lowered, change)


def target_moves(engine: Engine, fleet: str, pool: str) -> tuple[TargetMove, ...]:
    """The changes of a pool's target, oldest first."""
    with engine.connect() as connection:
        rows = connection.execute(
            select(TARGET_MOVES)
            .where(TARGET_MOVES.c.fleet == fleet, TARGET_MOVES.c.pool == pool)
            .order_by(TARGET_MOVES.c.version)
        )
        return tuple(
            TargetMove(
                pool=row.pool,
                version=row.version,
                value=row.value,
                changed_by=row.changed_by,
                reason=row.reason,
                at=row.at,
            )
            for row in rows
        )


def _is_held(connection: Connection, fleet: str, pool: str, now: datetime) -> bool:
    """Whether a person holds a pool's target."""
    held = _open_brakes(fleet, now).where(_counts_as(BrakeKind.TARGET), BRAKES.c.scope == pool)
    return connection.execute(held).first() is not None


def _target(connection: Connection, fleet: str, pool: str) -> Target | None:
    statement = select(TARGETS).where(TARGETS.c.fleet == fleet, TARGETS.c.pool == pool)
    if connection.dialect.name == "postgresql":
        statement = statement.with_for_update()
    row = connection.execute(statement).one_or_none()
    return None if row is None else Target(pool=row.pool, value=row.value, version=row.version)


def _compare_and_set(connection: Connection, fleet: str, seen: Target, value: int, change: TargetChange) -> Target:
    found = _target(connection, fleet, seen.pool)
    if found is None or found.version != seen.version:
        now_is = "missing" if found is None else f"version {found.version} ({found.value})"
        raise ConflictError(f"target of pool {seen.pool}: expected version {seen.version}, but it is {now_is} now")
    return _move(connection, fleet, Target(pool=seen.pool, value=value, version=found.version), change)


def _move(connection: Connection, fleet: str, wanted: Target, change: TargetChange) -> Target:
    """Write the value of `wanted` as the next version."""
    version = wanted.version + 1
    if wanted.version == 0:
        connection.execute(
            TARGETS.insert().values(fleet=fleet, pool=wanted.pool, value=wanted.value, version=version)
        )
    else:
        connection.execute(
            update(TARGETS)
            .where(TARGETS.c.fleet == fleet, TARGETS.c.pool == wanted.pool)
            .values(value=wanted.value, version=version)
        )
    connection.execute(
        TARGET_MOVES.insert().values(
            fleet=fleet,
            pool=wanted.pool,
            version=version,
            value=wanted.value,
            changed_by=change.by,
            reason=change.reason,
            because=change.because,
            at=change.at,
        )
    )
    return Target(pool=wanted.pool, value=wanted.value, version=version)


# leases


def acquire_lease(
    engine: Engine,
    name: str,
    holder: str,
    span: tuple[datetime, timedelta],
    is_dead: Callable[[str], bool] = lambda holder: False,
) -> str | None:
    """Take or renew a lease from `span`'s time, for its term. Returns None if we hold it, else its holder.

    `is_dead`: whether a holder is known to have stopped, so that a killed run on the same machine blocks no other.
    """
    now, term = span
    with writing(engine) as connection:
        done = connection.execute(
            insert_into(connection, LEASES)
            .values(name=name, holder=holder, until=now + term)
            .on_conflict_do_nothing(index_elements=["name"])
        )
        if done.rowcount > 0:
            return None
        statement = select(LEASES).where(LEASES.c.name == name)
        if connection.dialect.name == "postgresql":
            statement = statement.with_for_update()
        row = connection.execute(statement).one()
        if row.holder != holder and row.until > now and not is_dead(row.holder):
            return f"{row.holder} until {row.until:%Y-%m-%d %H:%M:%S} UTC"
        connection.execute(update(LEASES).where(LEASES.c.name == name).values(holder=holder, until=now + term))
        return None


def renew_lease(engine: Engine, name: str, holder: str, span: tuple[datetime, timedelta]) -> bool:
    """Renew a lease from `span`'s time, for its term. False: we no longer hold it, or its term is over.

    A lease that expired, or that another process has held in the meantime, cannot be renewed: our view of the fleet
    is older than that.
    """
    now, term = span
    with writing(engine) as connection:
        done = connection.execute(
            update(LEASES)
            .where(LEASES.c.name == name, LEASES.c.holder == holder, LEASES.c.until > now)
            .values(until=now + term)
        )
        return done.rowcount == 1


def release_lease(engine: Engine, name: str, holder: str) -> None:
    """Release a lease, if we hold it."""
    with writing(engine) as connection:
        connection.execute(LEASES.delete().where(LEASES.c.name == name, LEASES.c.holder == holder))


# brakes


def set_brake(engine: Engine, fleet: str, brake: Brake) -> int:
    """Set a brake. Returns the `id` that the ledger assigns."""
    with writing(engine) as connection:
        return add_brake(connection, fleet, brake)


def add_brake(connection: Connection, fleet: str, brake: Brake) -> int:
    """Set a brake in the caller's transaction. Returns its id."""
    done = connection.execute(
        BRAKES.insert().values(
            fleet=fleet,
            kind=brake.kind.value,
            scope=brake.scope,
            owner=brake.owner,
            reason=brake.reason,
            since=brake.since,
            until=brake.until,
        )
    )
    key = done.inserted_primary_key
    return int(key[0]) if key is not None else 0


def release_brakes(engine: Engine, fleet: str, kind: BrakeKind, scope: str, by: tuple[str, datetime]) -> int:
    """Release the brakes of a kind and scope. `by` is the user and the time. Returns the number of brakes."""
    with writing(engine) as connection:
        return _release(connection, fleet, kind, scope, by)


def _release(connection: Connection, fleet: str, kind: BrakeKind, scope: str, by: tuple[str, datetime]) -> int:
    done = connection.execute(
        update(BRAKES)
        .where(
            BRAKES.c.fleet == fleet,
            BRAKES.c.kind == kind.value,
            BRAKES.c.scope == scope,
            BRAKES.c.released_at.is_(None),
        )
        .values(released_by=by[0], released_at=by[1])
    )
    return done.rowcount


def brakes(engine: Engine, fleet: str, now: datetime) -> Sequence[Brake]:
    """The brakes that are in effect now."""
    with engine.connect() as connection:
        rows = connection.execute(_open_brakes(fleet, now).order_by(BRAKES.c.id))
        return tuple(
            Brake(
                id=row.id,
                kind=BrakeKind(row.kind),
                scope=row.scope,
                owner=row.owner,
                reason=row.reason,
                since=row.since,
                until=row.until,
            )
            for row in rows
        )


def _counts_as(kind: BrakeKind) -> ColumnElement[bool]:
    """The same condition as `Brake.counts_as`."""
    return or_(BRAKES.c.kind == kind, BRAKES.c.kind.not_in(BrakeKind))


def _open_brakes(fleet: str, now: datetime) -> Select[Any]:
    return select(BRAKES).where(
        BRAKES.c.fleet == fleet,
        BRAKES.c.released_at.is_(None),
        BRAKES.c.until.is_(None) | (BRAKES.c.until > now),
    )


# policies


def policy_seen(engine: Engine, fleet: str, watchdog: str, pool: str, digest: str) -> bool:
    """Whether a dry run of this policy was printed, or a user accepted it."""
    with engine.connect() as connection:
        return (
            connection.execute(
                select(POLICIES.c.at).where(
                    POLICIES.c.fleet == fleet,
                    POLICIES.c.watchdog == watchdog,
                    POLICIES.c.pool == pool,
                    POLICIES.c.digest == digest,
                )
            ).first()
            is not None
        )


def see_policy(engine: Engine, fleet: str, policy: tuple[str, str, str], by: str, at: datetime) -> None:
    """Record that a policy (watchdog, pool, digest) was accepted. Repeating it changes nothing."""
    watchdog, pool, digest = policy
    with writing(engine) as connection:
        connection.execute(
            insert_into(connection, POLICIES)
            .values(fleet=fleet, watchdog=watchdog, pool=pool, digest=digest, seen_by=by, at=at)
            .on_conflict_do_nothing()
        )
