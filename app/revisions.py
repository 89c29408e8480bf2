"""The control host's part of a rollout: compares agents with `served.json`, and changes them one at a time.

It reads which revision is served and cannot change it: no machine may write below `models/`. It keeps nothing; a look
after a crash goes on from what the agents say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from app.errors import AppError
from app.stores import open_place
from gpufleet.domain.activity import CloudError
from gpufleet.domain.brakes import Brake
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument, Pool
from serving.cache.manifest import ManifestError
from serving.cache.store import ObjectStore
from serving.cache.sync import read_served
from serving.revisions import PoolRollout, RevisionAgents, next_step, rolled_back
from watchdogs.brakes import paused_by


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionSources:
    """What a look works with."""

    instances: Callable[[], Sequence[Instance]]
    agents: RevisionAgents
    brakes: Callable[[], Sequence[Brake]]
    say: Callable[[str], None]


def wanted(document: FleetDocument, store: ObjectStore) -> dict[str, str]:
    """The pools whose running instances are to serve what their model's `served.json` names: pool to digest.

    Raises AppError.
    """
    found: dict[str, str] = {}
    for model in sorted({pool.model for pool in document.pools}):
        try:
            served = read_served(store, model)
        except FileNotFoundError:
            continue
        except (ManifestError, OSError, ValueError) as error:
            raise AppError(f"{document.bucket}: {model}: {error}") from error
        if served.changes_running:
            found |= {pool.name: served.digest for pool in document.pools if pool.model == model}
    return found


def look(pools: Sequence[Pool], digests: Mapping[str, str], sources: RevisionSources, *, apply: bool) -> bool:
    """Change at most one instance of each pool. False: a pool's rollout has failed. Raises OSError."""
    listed = sources.instances()
    brakes = sources.brakes()
    well = True
    for pool in pools:
        digest = digests[pool.name]
        members = {one.id: one for one in listed if one.pool == pool.name and one.alive}
        statuses = sources.agents.statuses(list(members.values()))
        if (failed := rolled_back(digest, statuses)) is not None:
            sources.say(f"{pool.name}: the rollout of {digest[:12]} stopped: {failed}")
            well = False
            continue
        # its limit is for who waits; a look waits for nobody
        step = next_step(PoolRollout(pool=pool.name, floor=pool.min, limit=timedelta(0)), digest, members, statuses)
        if step.change is None:
            continue
        if (pause := paused_by(pool.name, brakes)) is not None:
            sources.say(f"{pool.name}: {step.change} keeps its revision: paused {pause}")
        elif not apply:
            sources.say(f"{pool.name}: {step.change} would change to {digest[:12]} (dry)")
        else:
            sources.say(f"{pool.name}: {step.change} drains and changes to {digest[:12]}")
            try:
                sources.agents.switch(members[step.change], digest)
            except CloudError as error:
                # the other pools go on
                sources.say(f"{pool.name}: {error}")
                well = False
    return well


def follow(document: FleetDocument, *, apply: bool, say: Callable[[str], None], holder: str | None = None) -> bool:
    """One look at a fleet, under a lease of its own. False: it failed, and said so. No holder: this process.

    Raises AppError, OSError.
    """
    digests = wanted(document, open_place(document.bucket).store)
    pools = [pool for pool in document.pools if pool.name in digests]
    if not pools:
        return True
    from app.wiring import agents_of, inventory_of, wire

    wired = wire(document, "revisions", holder)
    try:
        now = wired.ports.clock.now()
        if apply and (other := wired.ledger.take_lease(now)) is not None:
            say(f"{document.environment}: revisions: {other}")
            return True
        sources = RevisionSources(
            instances=inventory_of(document).instances,
            agents=agents_of(document, say),
            brakes=lambda: wired.ledger.brakes(now),
            say=say,
        )
        try:
            return look(pools, digests, sources, apply=apply)
        except CloudError as error:
            raise AppError(str(error)) from error
        finally:
            if apply:
                wired.ledger.release_lease()
    finally:
        wired.engine.dispose()
