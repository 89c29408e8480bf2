"""One pass of a watchdog over one fleet: what the command, the daemon, Lambda and Cloud Run share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from app.api_calls import Count
from app.errors import AppError, Code
from app.ledgers import not_here
from cli import plans
from cli.output import Exit, after_the_work
from cli.wiring import Wired, wire
from gpufleet.domain.decisions import Plan, Reason
from gpufleet.settings.document import FleetDocument
from ledger import outbox
from ledger.schema import LedgerError, explained
from watchdogs.execute import Watchdog
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.orphans.decide import WATCHDOG as ORPHANS
from watchdogs.orphans.watchdog import OrphanWatchdog, Scope
from watchdogs.policy import digests
from watchdogs.ports import CutShortError, Ports
from watchdogs.scale.decide import WATCHDOG as SCALE
from watchdogs.scale.watchdog import ScaleWatchdog
from watchdogs.spot.decide import WATCHDOG as SPOT
from watchdogs.spot.watchdog import SpotWatchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of watchdog."""

    name: str
    make: Callable[[FleetDocument, Ports], Watchdog]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a pass is run."""

    apply: bool = False
    accept: tuple[str, ...] = ()
    """Policies that may act unseen."""
    show: bool = True
    quiet: bool = False
    """Show nothing when nothing is to be done."""
    holder: str | None = None
    """Who holds the lease; None: this process, by the name at which its neighbours tell whether it lives."""
    count: Count = lambda _: None


def kinds() -> dict[str, Kind]:
    """Every kind of watchdog, by name."""
    found = (
        Kind(name=IDLE, make=IdleWatchdog),
        Kind(name=SPOT, make=SpotWatchdog),
        Kind(name=SCALE, make=ScaleWatchdog),
        orphan_kind(Scope()),
    )
    return {kind.name: kind for kind in found}


def orphan_kind(scope: Scope) -> Kind:
    """The watchdog of what no pool owns."""
    return Kind(name=ORPHANS, make=lambda document, ports: OrphanWatchdog(document, ports, scope))


def watches(kind: Kind, document: FleetDocument) -> bool:
    """Whether the daemon has anything to do there: orphans are looked for where a rule names some."""
    return kind.name != ORPHANS or bool(document.orphans)


def over_fleets(
    kind: Kind, documents: Sequence[FleetDocument], options: Options
) -> tuple[Exit, list[dict[str, Any]]]:
    """One pass over each fleet. The worst exit code wins; one fleet's failure does not stop the others."""
    check_accepted(kind, documents, options.accept)
    done = [one_of_several(kind, document, options, alone=len(documents) == 1) for document in documents]
    answers = [
        {"environment": document.environment, **answer} for document, (_, answer) in zip(documents, done, strict=True)
    ]
    return worst(code for code, _ in done), answers


def worst(codes: Iterable[Exit]) -> Exit:
    """What a command exits with whose fleets ended like this."""
    found = set(codes)
    return next((code for code in (Exit.FAILED, Exit.FOUND) if code in found), Exit.DONE)


def one_of_several(
    kind: Kind, document: FleetDocument, options: Options, *, alone: bool
) -> tuple[Exit, dict[str, Any]]:
    """One pass whose failure is said and stops no other fleet's. Raises AppError for wrong use, and where the fleet
    is alone for what people must mend.
    """
    try:
        with explained("the ledger failed"):
            return over_fleet(kind, document, options)
    except (OSError, AppError) as error:
        if isinstance(error, AppError) and (alone or error.code is Code.WRONG_USE):
            raise
        left = "What was done before is recorded" if isinstance(error, CutShortError) else "Nothing was done"
        plans.say(f"{document.environment}: {kind.name}: {error}. {left}.")
        return Exit.FAILED, {"watchdog": kind.name, "error": str(error)}
    except LedgerError as error:
        plans.say(f"{document.environment}: {kind.name}: {error}. The next pass goes on.")
        return Exit.FAILED, {"watchdog": kind.name, "error": str(error)}


def over_fleet(kind: Kind, document: FleetDocument, options: Options) -> tuple[Exit, dict[str, Any]]:
    """One pass. Raises OSError when the fleet could not be observed whole, AppError for what people must mend."""
    if not options.apply and (said := not_here(document)) is not None:
        # it is made here: that a dry run was seen is kept in it
        plans.say(
            f"{document.environment}: {said}: if its watchdogs run on another one, their brakes and targets are not"
            " known here, and this dry run does not count as seen by them"
        )
    wired = wire(document, kind.name, options.holder)
    try:
        return _pass(kind, wired, options)
    finally:
        options.count(wired.api_calls())
        wired.engine.dispose()  # a daemon makes many passes


def _pass(kind: Kind, wired: Wired, options: Options) -> tuple[Exit, dict[str, Any]]:
    document = wired.document
    _accept(kind, wired, options.accept)
    watchdog = kind.make(document, wired.ports)
    if not options.apply:
        done = watchdog.dry()
    else:
        other = wired.ledger.take_lease(wired.ports.clock.now())
        if other is not None:
            plans.say(
                f"{document.environment}: another {kind.name} watchdog is at work ({other}); nothing to do here"
            )
            return Exit.DONE, {"watchdog": kind.name, "skipped": other, "api_calls": wired.api_calls()}
        try:
            done = watchdog.apply()
        finally:
            wired.ledger.release_lease()
        _tell(wired)
    if options.show and not (options.quiet and not done.plan.acting and not done.outcomes):
        with after_the_work():
            plans.show_plan(done.plan, f"{document.environment}: {kind.name}, {plans.summary(done.plan)}")
            plans.show_outcomes(done.outcomes)
        _remarks(kind, document, done.plan, options.apply)
    answer = plans.plan_json(done.plan, done.outcomes) | {
        "applied": options.apply,
        "api_calls": wired.api_calls(),
    }
    return plans.exit_code(done.plan, done.outcomes, applied=options.apply), answer


def _tell(wired: Wired) -> None:
    """Send what the pass has to say. What cannot be sent now waits in the outbox; it fails no pass."""
    if wired.document.notify is None or not outbox.open_channels(wired.engine):
        return
    from cli import delivery  # slack's client is slow to import, and most passes have nothing to say

    try:
        delivery.send(wired.engine, wait=timedelta(0))
    except AppError as error:
        plans.say(f"{wired.document.environment}: messages wait in the ledger: {error}")


def _remarks(kind: Kind, document: FleetDocument, plan: Plan, apply: bool) -> None:
    if plan.acting and not apply:
        plans.say("This was a dry run: nothing was done. Run it again with --apply to act.")
    if (waste := plans.waste(plan)) is not None:
        unpriced = f", {waste['unpriced']} without a price" if waste["unpriced"] else ""
        names = ", ".join(waste["resources"])
        plans.say(f"waste: GPUs work without requests, {waste['usd_per_hour']} USD/h{unpriced}: {names}")
    for pool in sorted({d.pool for d in plan.decisions if d.reason is Reason.POLICY_UNSEEN and d.pool}):
        what = "Pool" if kind.name != ORPHANS else "Rule"
        plans.say(
            f"{what} {pool}: its {kind.name} policy is new. Read a dry run (`gpufleet watch {kind.name}`), or give"
            f" --accept-policy {digests(document, kind.name).get(pool)}."
        )


def check_accepted(kind: Kind, documents: Sequence[FleetDocument], accepted: Sequence[str]) -> None:
    """A hash that is no policy's of these fleets is a mistake, said before anything is done. Raises AppError."""
    known = [policy for document in documents for policy in digests(document, kind.name).items()]
    for given in accepted:
        if given not in {digest for _, digest in known}:
            names = ", ".join(dict.fromkeys(f"{name} {digest}" for name, digest in known))
            raise AppError(
                f"--accept-policy {given}: no pool has that {kind.name} policy; there is {names or 'none'}",
                Code.WRONG_USE,
            )


def _accept(kind: Kind, wired: Wired, accepted: Sequence[str]) -> None:
    """Let policies act whose dry run nobody has seen. Pools with the same settings have the same hash."""
    for pool, digest in digests(wired.document, kind.name).items():
        if digest in accepted:
            wired.ports.ledger.see_policy(kind.name, pool, digest, "accepted", wired.ports.clock.now())
