"""The control host's part of a rollout: compares agents with `served.json`, and changes them one at a time.

It reads which revision is served and cannot change it: no machine may write below `models/`. It stores no state, so a
pass after a crash resumes from the agents' statuses.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from app import logs
from app.errors import AppError
from app.ledgers import ledger_name
from app.stores import open_place
from gpufleet.domain.activity import CloudError
from gpufleet.domain.brakes import Brake
from gpufleet.domain.model import Instance
from gpufleet.logs import SILENT, Log, elapsed_s
from gpufleet.settings.document import FleetDocument, Pool
from serving.cache.manifest import ManifestError
from serving.cache.store import ObjectStore
from serving.cache.sync import read_served
from serving.revisions import PoolRollout, RevisionAgents, next_step, rolled_back
from watchdogs.brakes import paused_by

WATCHDOG: Final = "revisions"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionSources:
    """The sources of a pass."""

    instances: Callable[[], Sequence[Instance]]
    agents: RevisionAgents
    brakes: Callable[[], Sequence[Brake]]
    log: Log


def wanted(document: FleetDocument, store: ObjectStore) -> dict[str, str]:
    """The pools whose running instances must serve the digest in their model's `served.json`: pool to digest.

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


@dataclass(slots=True, kw_only=True)
class Looked:
    """The result of a pass."""

    well: bool = True
    """False: a pool's rollout failed, and the log has the error."""
    skipped: str | None = None
    """The other holder of the lease."""
    changes: int = 0
    """Instances that change, or would change without a dry run or a pause."""

    @property
    def outcome(self) -> str:
        """The outcome's name in the log."""
        if not self.well:
            return "failed"
        if self.skipped is not None:
            return "skipped"
        return "done" if self.changes else "nothing_to_do"


def run_once(pools: Sequence[Pool], digests: Mapping[str, str], sources: RevisionSources, *, apply: bool) -> Looked:
    """Change at most one instance of each pool. Raises OSError."""
    log, listed = sources.log, sources.instances()
    brakes = sources.brakes()
    done = Looked()
    for pool in pools:
        digest = digests[pool.name]
        members = {one.id: one for one in listed if one.pool == pool.name and one.alive}
        statuses = sources.agents.statuses(list(members.values()))
        if (failed := rolled_back(digest, statuses)) is not None:
            log.error("revision", pool=pool.name, digest=digest, outcome="stopped", error=failed)
            done.well = False
            continue
        # the limit is for a command that waits; this pass does not wait
        step = next_step(PoolRollout(pool=pool.name, floor=pool.min, limit=timedelta(0)), digest, members, statuses)
        if step.change is None:
            continue
        done.changes += 1
        about = {"pool": pool.name, "resource": step.change, "digest": digest}
        if (pause := paused_by(pool.name, brakes)) is not None:
            log.info("revision", **about, outcome="paused", detail=f"paused {pause}")
        elif not apply:
            log.info("revision", **about, outcome="dry_run")
        else:
            log.info("revision", **about, outcome="started", detail="the instance drains, then changes its revision")
            try:
                sources.agents.switch(members[step.change], digest)
            except CloudError as error:
                # the other pools continue
                log.error("revision", **about, outcome="failed", error=error)
                done.well = False
    return done


def run_locked(document: FleetDocument, *, apply: bool, people: Log = SILENT, holder: str | None = None) -> bool:
    """Run one pass over a fleet, under its own lease. False: the pass failed, and the log has the error.

    Without `holder`, this process holds the lease. `people` receives the lines of a process that does not log. Raises
    AppError, OSError.
    """
    with logs.of_pass(ledger_name(document), WATCHDOG) as own:
        begun, log = time.monotonic(), own if logs.is_on() else people
        try:
            done = _follow(document, log, apply=apply, holder=holder)
        except (AppError, OSError) as error:
            own.error("pass", outcome="failed", error=error, duration_s=elapsed_s(begun))
            if isinstance(error, AppError):
                error.logged = logs.is_on()
            raise
        log.info("pass", outcome=done.outcome, changes=done.changes, detail=done.skipped, duration_s=elapsed_s(begun))
        return done.well


def _follow(document: FleetDocument, log: Log, *, apply: bool, holder: str | None) -> Looked:
    """Raises AppError, OSError."""
    digests = wanted(document, open_place(document.bucket).store)
    pools = [pool for pool in document.pools if pool.name in digests]
    if not pools:
        return Looked()
    from app.wiring import agents_of, inventory_of, wire

    wired = wire(document, WATCHDOG, holder)
    try:
        now = wired.ports.clock.now()
        if apply and (other := wired.ledger.take_lease(now)) is not None:
            return Looked(skipped=other)
        sources = RevisionSources(
            instances=inventory_of(document).instances,
            agents=agents_of(document, lambda text: log.warning("clock", error=text)),
            brakes=lambda: wired.ledger.brakes(now),
            log=log,
        )
        try:
            return run_once(pools, digests, sources, apply=apply)
        except CloudError as error:
            raise AppError(str(error)) from error
        finally:
            if apply:
                wired.ledger.release_lease()
    finally:
        wired.engine.dispose()
