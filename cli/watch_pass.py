"""Runs passes over fleets and prints them. The command, the daemon, Lambda and Cloud Run share this code."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from app import logs, passes
from app.errors import AppError
from app.passes import Options, PassResult, WatchdogKind
from cli import plans
from cli.output import Exit, after_the_work, exit_of, note, note_unlogged
from gpufleet.settings.document import FleetDocument


class Show(Enum):
    """Which passes are printed."""

    ALL = auto()
    CHANGES = auto()
    """Only passes with something to do."""
    PROBLEMS = auto()


def show_of(*, as_json: bool, quiet: bool) -> Show:
    """The mode that the command's options select."""
    if as_json:
        return Show.PROBLEMS
    return Show.CHANGES if quiet else Show.ALL


def readable(fleets: Iterable[FleetDocument | AppError]) -> tuple[list[FleetDocument], bool]:
    """The readable documents, and whether others could not be read. Reports each unreadable one."""
    documents: list[FleetDocument] = []
    unread = False
    for one in fleets:
        if isinstance(one, AppError):
            logs.get().error("fleet_document", outcome="unreadable", error=one)
            note_unlogged(str(one))
            unread = True
        else:
            documents.append(one)
    return documents, unread


def over_fleets(
    kind: WatchdogKind, documents: Sequence[FleetDocument], options: Options, show: Show = Show.ALL
) -> tuple[Exit, list[dict[str, Any]]]:
    """Run one pass over each fleet. The worst exit code wins. One fleet's failure does not stop the others."""
    passes.check_accepted(kind, documents, options.accept)
    done = [one_of_several(kind, document, options, show, alone=len(documents) == 1) for document in documents]
    answers = [{"environment": result.environment, **answer(result)} for result in done]
    return worst(exit_of(result.code) for result in done), answers


def worst(codes: Iterable[Exit]) -> Exit:
    """The exit code of a command whose fleets ended with these codes."""
    found = set(codes)
    return next((code for code in (Exit.FAILED, Exit.FOUND) if code in found), Exit.DONE)


def one_of_several(
    kind: WatchdogKind, document: FleetDocument, options: Options, show: Show, *, alone: bool
) -> PassResult:
    """Run one pass and print it. Raises AppError for wrong use; with `alone`, also for an error that
    people must fix.
    """
    result = passes.run(kind, document, replace(options, note=note_unlogged), alone=alone)
    if result.error is not None:
        note_unlogged(f"{result.environment}: {result.watchdog}: {result.error}. {result.remains}.")
    elif result.skipped is not None:
        running = f"another {result.watchdog} watchdog is running ({result.skipped})"
        note_unlogged(f"{result.environment}: {running}; this pass is skipped")
    elif show is Show.ALL or (show is Show.CHANGES and _changes(result)):
        _print(result)
    return result


def answer(result: PassResult) -> dict[str, Any]:
    """A pass as `--json` shows it."""
    if result.done is None:
        why = {"skipped": result.skipped, "api_calls": result.api_calls}
        return {"watchdog": result.watchdog, **(why if result.error is None else {"error": result.error})}
    more = {"applied": result.applied, "api_calls": result.api_calls}
    return plans.plan_json(result.done.plan, result.done.outcomes) | more


def _changes(result: PassResult) -> bool:
    return result.done is not None and bool(result.done.plan.acting or result.done.outcomes)


def _print(result: PassResult) -> None:
    if result.done is None:
        return
    plan = result.done.plan
    with after_the_work():
        plans.show_plan(plan, f"{result.environment}: {result.watchdog}, {plans.summary(plan)}")
        plans.show_outcomes(result.done.outcomes)
    if plan.acting and not result.applied:
        note("This was a dry run: nothing was done. Run it again with --apply to act.")
    if plan.spend is not None:
        limit = plan.spend.limit_usd_per_hour
        note(f"The fleet costs {plan.spend.sentence} USD/h at list prices; it stops growing at {limit}.")
    if (waste := plans.waste(plan)) is not None:
        unpriced = f", {waste['unpriced']} without a price" if waste["unpriced"] else ""
        names = ", ".join(waste["resources"])
        note(f"waste: GPUs work without requests, {waste['usd_per_hour']} USD/h{unpriced}: {names}")
    for name, digest in sorted(result.unaccepted.items()):
        what = "Rule" if result.watchdog == passes.ORPHANS else "Pool"
        remedy = f"Read a dry run (`gpufleet watch {result.watchdog}`), or give --accept-policy {digest}."
        note(f"{what} {name}: its {result.watchdog} policy is new and does not act yet. {remedy}")
