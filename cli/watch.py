"""`gpufleet watch`: one pass of a watchdog, for people and for cron."""

import importlib.util
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Protocol

import typer

from cli import plans
from cli.fleets import FleetOption, load
from cli.output import STDOUT, Exit, UserError, print_json
from cli.wiring import Wired, wire
from fleet.document import FleetDocument
from ledger import decisions, outbox
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.idle.watchdog import IdleWatchdog, policy_digest
from watchdogs.plan import Outcome, Plan, Reason
from watchdogs.ports import Ports
from watchdogs.spot.decide import WATCHDOG as SPOT
from watchdogs.spot.watchdog import SpotWatchdog
from watchdogs.spot.watchdog import policy_digest as spot_digest

ApplyOption = Annotated[bool, typer.Option("--apply", help="Act. Without it the plan is only printed.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option("--accept-policy", metavar="HASH", help="Let a changed policy act unseen; repeatable."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing when nothing is to be done.")]


class PassLike(Protocol):
    """What a watchdog's pass gives back."""

    @property
    def plan(self) -> Plan: ...

    @property
    def outcomes(self) -> tuple[Outcome, ...]: ...


class WatchdogLike(Protocol):
    """A watchdog of one fleet."""

    def dry(self) -> PassLike: ...

    def apply(self) -> PassLike: ...


Make = Callable[[FleetDocument, Ports], WatchdogLike]
Digest = Callable[[FleetDocument, str], str | None]


def register(app: typer.Typer) -> None:
    watch = typer.Typer(help="One pass of a watchdog. Dry unless --apply is given.", no_args_is_help=True)
    watch.command("idle")(idle)
    watch.command("spot")(spot)
    watch.command("why")(why)
    for extra in ("watch_cost",):
        if importlib.util.find_spec(f"cli.{extra}") is not None:
            importlib.import_module(f"cli.{extra}").register(watch)
    app.add_typer(watch, name="watch")


def idle(
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
) -> None:
    """Mark idle instances; drain and end those that stay idle for their grace."""
    raise typer.Exit(one_pass(IDLE, IdleWatchdog, policy_digest, load(fleet), apply, as_json, accept_policy, quiet))


def spot(
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
) -> None:
    """Split each pool's target over reserved, spot and on-demand, as the market gives."""
    raise typer.Exit(one_pass(SPOT, SpotWatchdog, spot_digest, load(fleet), apply, as_json, accept_policy, quiet))


def why(
    resource: Annotated[str, typer.Argument(help="Instance, group or pool.")],
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every decision about a resource, with its evidence, and what became of it."""
    from cli.ports import fleet_of
    from cli.wiring import open_engine

    found: list[dict[str, Any]] = []
    for document in load(fleet):
        for past in decisions.history(open_engine(document), fleet_of(document), resource):
            found.append(
                {
                    "at": past.at.isoformat(timespec="seconds"),
                    "watchdog": past.watchdog,
                    "action": past.decision.action,
                    "reason": past.decision.reason,
                    "detail": past.decision.detail,
                    "evidence": dict(past.decision.evidence),
                    "outcome": past.outcome.kind if past.outcome else None,
                    "outcome_detail": (past.outcome.error or past.outcome.detail) if past.outcome else None,
                }
            )
    if as_json:
        print_json(found)
        return
    if not found:
        raise UserError(f"nothing is recorded about {resource!r}: decisions are written by passes with --apply")
    for row in found:
        head = f"{row['at']}  {row['watchdog']}: {row['action']}, {row['reason']}"
        if row["outcome"] is not None:
            head = f"{row['at']}  {row['watchdog']}: {row['action']} → {row['outcome']}"
        words = row["outcome_detail"] or row["detail"]
        STDOUT.print(f"{head}{f' ({words})' if words else ''}", highlight=False, markup=False, soft_wrap=True)
        for name, value in row["evidence"].items():
            STDOUT.print(f"    {name} = {value}", style="dim", highlight=False, markup=False)


def one_pass(
    name: str,
    make: Make,
    digest: Digest,
    documents: Sequence[FleetDocument],
    apply: bool,
    as_json: bool,
    accept: Sequence[str] | None,
    quiet: bool,
) -> int:
    """One pass over each fleet. The worst exit code wins; one fleet's failure does not stop the others."""
    codes: list[Exit] = []
    answers: list[dict[str, Any]] = []
    for document in documents:
        try:
            code, answer = _fleet_pass(name, make, digest, document, apply, (as_json, quiet), accept)
        except OSError as error:
            plans.say(f"{document.environment}: {name}: {error}. Nothing was done.")
            code, answer = Exit.FAILED, {"watchdog": name, "error": str(error)}
        codes.append(code)
        answers.append({"environment": document.environment, **answer})
    if as_json:
        print_json(answers[0] if len(answers) == 1 else answers)
    return next((code for code in (Exit.FAILED, Exit.FOUND) if code in codes), Exit.DONE)


def _fleet_pass(
    name: str,
    make: Make,
    digest: Digest,
    document: FleetDocument,
    apply: bool,
    silent: tuple[bool, bool],
    accept: Sequence[str] | None,
) -> tuple[Exit, dict[str, Any]]:
    wired = wire(document, name)
    _accept(name, digest, wired, accept or ())
    watchdog = make(document, wired.ports)
    if not apply:
        done = watchdog.dry()
    else:
        other = wired.ledger.take_lease(wired.ports.clock.now())
        if other is not None:
            plans.say(f"{document.environment}: another {name} watchdog is at work ({other}); nothing to do here")
            return Exit.DONE, {"watchdog": name, "skipped": other}
        try:
            done = watchdog.apply()
        finally:
            wired.ledger.release_lease()
        _tell(wired)
    as_json, quiet = silent
    if not as_json and not (quiet and not done.plan.acting and not done.outcomes):
        plans.show_plan(done.plan, f"{document.environment}: {name}, {plans.summary(done.plan)}")
        plans.show_outcomes(done.outcomes)
        _remarks(name, digest, document, done.plan, apply)
    answer = plans.plan_json(done.plan, done.outcomes) | {"applied": apply, "api_calls": wired.api_calls()}
    return plans.exit_code(done.plan, done.outcomes, applied=apply), answer


def _tell(wired: Wired) -> None:
    """Send what the pass has to say. What cannot be sent now waits in the outbox; it fails no pass."""
    if wired.document.notify is None or not outbox.open_channels(wired.engine):
        return
    from cli import money  # slack's client is slow to import, and most passes have nothing to say

    try:
        money.send(wired.engine, wait=timedelta(0))
    except UserError as error:
        plans.say(f"{wired.document.environment}: messages wait in the ledger: {error}")


def _remarks(name: str, digest: Digest, document: FleetDocument, plan: Plan, apply: bool) -> None:
    if plan.acting and not apply:
        plans.say("This was a dry run: nothing was done. Run it again with --apply to act.")
    for pool in sorted({d.pool for d in plan.decisions if d.reason is Reason.POLICY_UNSEEN and d.pool}):
        plans.say(
            f"Pool {pool}: its {name} policy is new. Read a dry run (`gpufleet watch {name}`), or give"
            f" --accept-policy {digest(document, pool)}."
        )


def _accept(name: str, digest: Digest, wired: Wired, accepted: Sequence[str]) -> None:
    """Let policies act whose dry run nobody has seen. A hash that is no policy's is a mistake."""
    known = {digest(wired.document, pool.name): pool.name for pool in wired.document.pools}
    for given in accepted:
        pool = known.get(given)
        if pool is None:
            names = ", ".join(f"{pool} {key}" for key, pool in known.items() if key is not None)
            raise UserError(
                f"--accept-policy {given}: no pool has that {name} policy; there is {names}", Exit.WRONG_USE
            )
        wired.ports.ledger.see_policy(name, pool, given, "accepted", wired.ports.clock.now())
