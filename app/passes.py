"""One pass of a watchdog over one fleet. It prints nothing: its result is returned and logged."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from app import logs
from app.api_calls import Count
from app.errors import AppError, ErrorCode
from app.ledgers import ledger_name, not_here
from app.wiring import Wired, wire
from gpufleet.domain.decisions import OutcomeKind, Reason
from gpufleet.ledger import outbox
from gpufleet.ledger.schema import LedgerError, explained
from gpufleet.logs import Log, elapsed_s
from gpufleet.settings.document import FleetDocument
from watchdogs.execute import Pass, Watchdog, log_fields
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.observe.fleet import SharedLists
from watchdogs.orphans.decide import WATCHDOG as ORPHANS
from watchdogs.orphans.watchdog import OrphanScope, OrphanWatchdog
from watchdogs.policy import digests
from watchdogs.ports import CutShortError, Ports
from watchdogs.scale.decide import WATCHDOG as SCALE
from watchdogs.scale.watchdog import ScaleWatchdog
from watchdogs.spot.decide import WATCHDOG as SPOT
from watchdogs.spot.watchdog import SpotWatchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogKind:
    """A kind of watchdog."""

    name: str
    make: Callable[[FleetDocument, Ports], Watchdog]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a pass."""

    apply: bool = False
    accept: tuple[str, ...] = ()
    """Digests of policies that may act without a dry run."""
    holder: str | None = None
    """The holder of the lease; None: this process, under a name that lets other processes detect whether it is alive.
    """
    count: Count = lambda _: None
    note: Callable[[str], None] = lambda _: None
    """Receives further messages for people as soon as they are known. They are logged, too."""


@dataclass(slots=True, kw_only=True)
class PassResult:
    """The result of one pass over one fleet."""

    environment: str
    watchdog: str
    applied: bool
    done: Pass[Any] | None = None
    """None: the pass failed, or another watchdog of this kind holds the lease."""
    error: str | None = None
    """Why it failed."""
    remains: str = ""
    """The effect of the failure on what the pass had started."""
    skipped: str | None = None
    """The other holder of the lease."""
    unaccepted: dict[str, str] = field(default_factory=dict[str, str])
    """By pool (orphans: by rule): the digest of a policy that may not act yet, because no dry run of it was recorded.
    """
    api_calls: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def code(self) -> ErrorCode:
        if self.error is not None:
            return ErrorCode.FAILED
        if self.done is None:
            return ErrorCode.DONE
        if any(outcome.kind is OutcomeKind.FAILED for outcome in self.done.outcomes):
            return ErrorCode.FAILED
        return ErrorCode.FOUND if self.done.plan.acting and not self.applied else ErrorCode.DONE


class _Remembering:
    """Makes spot watchdogs that reuse what earlier passes of this process read, by fleet."""

    def __init__(self) -> None:
        self._lists: dict[str, SharedLists] = {}

    def __call__(self, document: FleetDocument, ports: Ports) -> SpotWatchdog:
        return SpotWatchdog(document, ports, self._lists.setdefault(ledger_name(document), SharedLists()))


def kinds() -> dict[str, WatchdogKind]:
    """Every kind of watchdog, by name. Reuse the result in later passes: the spot watchdog then reads less."""
    found = (
        WatchdogKind(name=IDLE, make=IdleWatchdog),
        WatchdogKind(name=SPOT, make=_Remembering()),
        WatchdogKind(name=SCALE, make=ScaleWatchdog),
        orphan_kind(OrphanScope()),
    )
    return {kind.name: kind for kind in found}


def orphan_kind(scope: OrphanScope) -> WatchdogKind:
    """The watchdog of instances that no pool owns."""
    return WatchdogKind(name=ORPHANS, make=lambda document, ports: OrphanWatchdog(document, ports, scope))


def is_watched(kind: WatchdogKind, document: FleetDocument) -> bool:
    """Whether the daemon runs the watchdog for that fleet: the orphan watchdog needs at least one rule."""
    return kind.name != ORPHANS or bool(document.orphans)


def run(kind: WatchdogKind, document: FleetDocument, options: Options, *, alone: bool) -> PassResult:
    """Run one pass; a failure is in the result.

    Raises AppError for wrong use. If the fleet is `alone`, it also raises AppError for an error that people must fix.
    """
    result = PassResult(environment=document.environment, watchdog=kind.name, applied=options.apply)
    with logs.of_pass(ledger_name(document), kind.name) as log:
        begun = time.monotonic()
        try:
            with explained("the ledger failed"):
                _over_fleet(kind, document, options, result, log)
        except (OSError, AppError, LedgerError) as error:
            log.error("pass", outcome="failed", error=error, duration_s=elapsed_s(begun))
            if isinstance(error, AppError) and (alone or error.code is ErrorCode.WRONG_USE):
                error.logged = logs.is_on()
                raise
            result.error, result.remains = str(error), _what_remains(error)
        else:
            _log_result(log, result, elapsed_s(begun))
    return result


def _log_result(log: Log, result: PassResult, duration_s: float) -> None:
    """Write one line for each pass. If the pass acts, the executor has logged each decision and outcome already."""
    calls = sum(result.api_calls.values())
    if result.done is None:
        log.info("pass", outcome="skipped", detail=result.skipped, api_calls=calls, duration_s=duration_s)
        return
    plan, outcomes = result.done.plan, Counter(outcome.kind.value for outcome in result.done.outcomes)
    if not result.applied:
        for decision in plan.acting:
            log.info("decision", **log_fields(decision), outcome="dry_run", detail=decision.detail or None)
    log.info(
        "pass",
        outcome="done" if plan.acting or outcomes else "nothing_to_do",
        decisions=len(plan.decisions),
        acting=len(plan.acting),
        outcomes=dict(outcomes) or None,
        unaccepted=sorted(result.unaccepted) or None,
        api_calls=calls,
        duration_s=duration_s,
    )


def _what_remains(error: Exception) -> str:
    if isinstance(error, LedgerError):
        return "The next pass continues"
    return "Completed actions are recorded" if isinstance(error, CutShortError) else "Nothing was changed"


def _over_fleet(kind: WatchdogKind, document: FleetDocument, options: Options, result: PassResult, log: Log) -> None:
    """Raises OSError when the fleet was not observed completely, and AppError for an error that people must fix."""
    if not options.apply and (elsewhere := not_here(document)) is not None:
        # the pass creates the ledger here, because it stores that a dry run was recorded
        why = (
            f"{elsewhere}: if the watchdogs run on another machine, their brakes and targets are unknown here, and"
            " this dry run does not count as accepted by them"
        )
        log.warning("ledger_elsewhere", detail=why)
        options.note(f"{document.environment}: {why}")
    wired = wire(document, kind.name, options.holder, log=log)
    try:
        _pass(kind, wired, options, result, log)
    finally:
        result.api_calls = wired.api_calls()
        options.count(result.api_calls)
        wired.engine.dispose()  # a daemon runs many passes


def _pass(kind: WatchdogKind, wired: Wired, options: Options, result: PassResult, log: Log) -> None:
    known = digests(wired.document, kind.name)
    _accept(wired, kind.name, {name: digest for name, digest in known.items() if digest in options.accept})
    watchdog = kind.make(wired.document, wired.ports)
    if not options.apply:
        result.done = watchdog.dry()
    else:
        result.skipped = wired.ledger.take_lease(wired.ports.clock.now())
        if result.skipped is not None:
            return
        try:
            result.done = watchdog.apply()
        finally:
            wired.ledger.release_lease()
        _deliver(wired, options, log)
    unaccepted = {d.pool for d in result.done.plan.decisions if d.reason is Reason.POLICY_UNSEEN}
    result.unaccepted = {name: digest for name, digest in known.items() if name in unaccepted}


def _deliver(wired: Wired, options: Options, log: Log) -> None:
    """Send the messages of the pass. Messages that cannot be sent stay in the outbox; they do not fail the pass."""
    if wired.document.notify is None or not outbox.open_channels(wired.engine):
        return
    from app import delivery  # Slack's client is slow to import, and most passes have no messages

    try:
        done = delivery.send(wired.engine, wait=timedelta(0))
        log.info("delivery", **delivery.log_fields(done))
        options.note(delivery.summary(done))
    except AppError as error:
        log.error("delivery", outcome="failed", error=error)
        options.note(f"{wired.document.environment}: messages wait in the ledger: {error}")


def check_accepted(kind: WatchdogKind, documents: Sequence[FleetDocument], accepted: Sequence[str]) -> None:
    """Raises AppError for a digest that no policy of these fleets has. The check runs before any action."""
    known = [policy for document in documents for policy in digests(document, kind.name).items()]
    for given in accepted:
        if given not in {digest for _, digest in known}:
            names = ", ".join(dict.fromkeys(f"{name} {digest}" for name, digest in known))
            raise AppError(
                f"--accept-policy {given}: no pool has that {kind.name} policy; policies: {names or 'none'}",
                ErrorCode.WRONG_USE,
            )


def _accept(wired: Wired, watchdog: str, accepted: Mapping[str, str]) -> None:
    """Allow policies to act without a recorded dry run. Pools with the same settings have the same digest."""
    for pool, digest in accepted.items():
        wired.ports.ledger.see_policy(watchdog, pool, digest, "accepted", wired.ports.clock.now())
