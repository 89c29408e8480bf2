"""One pass of a watchdog over one fleet. It prints nothing: what became of it is in its result and in the log."""

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
from gpufleet.logs import Log, since
from gpufleet.settings.document import FleetDocument
from watchdogs.execute import Pass, Watchdog, log_fields
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.observe.fleet import Lists
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
    """How a pass is run."""

    apply: bool = False
    accept: tuple[str, ...] = ()
    """Policies that may act unseen."""
    holder: str | None = None
    """Who holds the lease; None: this process, by the name at which its neighbours tell whether it lives."""
    count: Count = lambda _: None
    note: Callable[[str], None] = lambda _: None
    """Receives what people are to know besides, as soon as it is known. The log has it, too."""


@dataclass(slots=True, kw_only=True)
class PassResult:
    """What became of one pass over one fleet."""

    environment: str
    watchdog: str
    applied: bool
    done: Pass[Any] | None = None
    """None: it failed, or another watchdog of this kind is at work."""
    error: str | None = None
    """Why it failed."""
    remains: str = ""
    """What that means for what was begun."""
    skipped: str | None = None
    """Who is at work instead."""
    unseen: dict[str, str] = field(default_factory=dict[str, str])
    """By pool (of orphans: by rule): the digest of a policy that may not act yet, as no dry run of it was seen."""
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
    """Makes spot watchdogs that know what earlier passes of this process read, by fleet."""

    def __init__(self) -> None:
        self._lists: dict[str, Lists] = {}

    def __call__(self, document: FleetDocument, ports: Ports) -> SpotWatchdog:
        return SpotWatchdog(document, ports, self._lists.setdefault(ledger_name(document), Lists()))


def kinds() -> dict[str, WatchdogKind]:
    """Every kind of watchdog, by name. Who runs many passes keeps them: the spot watchdog then reads less in each."""
    found = (
        WatchdogKind(name=IDLE, make=IdleWatchdog),
        WatchdogKind(name=SPOT, make=_Remembering()),
        WatchdogKind(name=SCALE, make=ScaleWatchdog),
        orphan_kind(OrphanScope()),
    )
    return {kind.name: kind for kind in found}


def orphan_kind(scope: OrphanScope) -> WatchdogKind:
    """The watchdog of what no pool owns."""
    return WatchdogKind(name=ORPHANS, make=lambda document, ports: OrphanWatchdog(document, ports, scope))


def watches(kind: WatchdogKind, document: FleetDocument) -> bool:
    """Whether the daemon has anything to do there: orphans are looked for where a rule names some."""
    return kind.name != ORPHANS or bool(document.orphans)


def run(kind: WatchdogKind, document: FleetDocument, options: Options, *, alone: bool) -> PassResult:
    """One pass; its failure is in the result. Raises AppError for wrong use, and for what people must fix where the
    fleet is `alone`.
    """
    result = PassResult(environment=document.environment, watchdog=kind.name, applied=options.apply)
    with logs.of_pass(ledger_name(document), kind.name) as log:
        begun = time.monotonic()
        try:
            with explained("the ledger failed"):
                _over_fleet(kind, document, options, result, log)
        except (OSError, AppError, LedgerError) as error:
            log.error("pass", outcome="failed", error=error, duration_s=since(begun))
            if isinstance(error, AppError) and (alone or error.code is ErrorCode.WRONG_USE):
                error.logged = logs.is_on()
                raise
            result.error, result.remains = str(error), _what_remains(error)
        else:
            _log_result(log, result, since(begun))
    return result


def _log_result(log: Log, result: PassResult, duration_s: float) -> None:
    """One line for each pass, whatever it did. The executor has logged each decision and outcome of one that acts."""
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
        unseen=sorted(result.unseen) or None,
        api_calls=calls,
        duration_s=duration_s,
    )


def _what_remains(error: Exception) -> str:
    if isinstance(error, LedgerError):
        return "The next pass goes on"
    return "What was done before is recorded" if isinstance(error, CutShortError) else "Nothing was done"


def _over_fleet(kind: WatchdogKind, document: FleetDocument, options: Options, result: PassResult, log: Log) -> None:
    """Raises OSError when the fleet could not be observed whole, AppError for what people must fix."""
    if not options.apply and (said := not_here(document)) is not None:
        # it is made here: that a dry run was seen is kept in it
        why = (
            f"{said}: if its watchdogs run on another one, their brakes and targets are not known here, and this"
            " dry run does not count as seen by them"
        )
        log.warning("ledger_elsewhere", detail=why)
        options.note(f"{document.environment}: {why}")
    wired = wire(document, kind.name, options.holder, log=log)
    try:
        _pass(kind, wired, options, result, log)
    finally:
        result.api_calls = wired.api_calls()
        options.count(result.api_calls)
        wired.engine.dispose()  # a daemon makes many passes


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
    unseen = {d.pool for d in result.done.plan.decisions if d.reason is Reason.POLICY_UNSEEN}
    result.unseen = {name: digest for name, digest in known.items() if name in unseen}


def _deliver(wired: Wired, options: Options, log: Log) -> None:
    """Send the messages of the pass. What cannot be sent now waits in the outbox; it fails no pass."""
    if wired.document.notify is None or not outbox.open_channels(wired.engine):
        return
    from app import delivery  # slack's client is slow to import, and most passes have nothing to say

    try:
        done = delivery.send(wired.engine, wait=timedelta(0))
        log.info("delivery", **delivery.log_fields(done))
        options.note(delivery.summary(done))
    except AppError as error:
        log.error("delivery", outcome="failed", error=error)
        options.note(f"{wired.document.environment}: messages wait in the ledger: {error}")


def check_accepted(kind: WatchdogKind, documents: Sequence[FleetDocument], accepted: Sequence[str]) -> None:
    """Raises AppError for a digest that no policy of these fleets has: a mistake, found before anything is done."""
    known = [policy for document in documents for policy in digests(document, kind.name).items()]
    for given in accepted:
        if given not in {digest for _, digest in known}:
            names = ", ".join(dict.fromkeys(f"{name} {digest}" for name, digest in known))
            raise AppError(
                f"--accept-policy {given}: no pool has that {kind.name} policy; there is {names or 'none'}",
                ErrorCode.WRONG_USE,
            )


def _accept(wired: Wired, watchdog: str, accepted: Mapping[str, str]) -> None:
    """Let policies act whose dry run nobody has seen. Pools with the same settings have the same digest."""
    for pool, digest in accepted.items():
        wired.ports.ledger.see_policy(watchdog, pool, digest, "accepted", wired.ports.clock.now())
