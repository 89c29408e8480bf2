"""`gpufleet watch orphans`: lists GPU instances that no pool owns, with their price; rules select those to act on."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from app.fleets import load
from app.passes import Options, check_accepted, orphan_kind
from app.unmanaged import slices_of, with_tag
from cli import plans
from cli.options import AcceptOption, FleetOption, JsonOption, QuietOption
from cli.output import STDOUT, Exit, after_the_work, exit_of, note, print_json
from cli.watch_pass import Show, answer, one_of_several, show_of, worst
from cli.watch_unmanaged import show_slices
from gpufleet.costs import slice_use
from gpufleet.costs.slice_use import SliceUse
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument
from watchdogs.execute import Pass
from watchdogs.orphans.watchdog import SHOWN, OrphanScope


def register(watch_app: typer.Typer) -> None:
    watch_app.command("orphans")(orphans)


def orphans(  # noqa: PLR0913 - the options of every pass
    fleet: FleetOption = None,
    tag: Annotated[
        str | None,
        typer.Option(
            "--tag", metavar="KEY=VALUE", help="List only instances with this tag or label. Not with --apply."
        ),
    ] = None,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Act by the `orphans` rules of the settings. Without it, only list instances."),
    ] = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
) -> None:
    """List running GPU instances that belong to no pool of the given fleets, with their price.

    The list covers the account and region of each fleet. Without --apply, it also shows which slices of divided or
    shared accelerators worked in the last 30 minutes. With --apply, the rules under `orphans` in the settings mark or
    stop the instances that they select; other instances are never changed. Exit code 3: instances were found.
    """
    if tag is not None and apply:
        raise AppError(
            "--tag filters only the list: with --apply, the `orphans` rules of the fleet select instances",
            ErrorCode.WRONG_USE,
        )
    only = None if tag is None else with_tag(tag)
    documents = load(fleet)
    options, show = Options(apply=apply, accept=tuple(accept_policy or ())), show_of(as_json=as_json, quiet=quiet)
    check_accepted(orphan_kind(OrphanScope()), documents, options.accept)
    found = [_run_one_region(document, documents, only, options, show) for document in _one_of_each(documents)]
    if as_json:
        print_json([answer for _, answer in found])
    raise typer.Exit(worst(code for code, _ in found))


def _run_one_region(
    document: FleetDocument,
    documents: Sequence[FleetDocument],
    only: Callable[[Instance], bool] | None,
    options: Options,
    show: Show,
) -> tuple[Exit, dict[str, Any]]:
    """One account and region: its exit code and its answer."""
    kind = orphan_kind(OrphanScope(known=documents, only=only, announce=note))
    result = one_of_several(kind, document, options, show, alone=len(documents) == 1)
    code, found = exit_of(result.code), answer(result) | {"cloud": document.cloud, "region": document.region}
    if result.done is None:
        return code, found
    decisions = result.done.plan.decisions
    total, unpriced = plans.total_of(decision.usd_per_hour for decision in decisions)
    found |= {"usd_per_hour": str(total), "unpriced": unpriced}
    if not options.apply and show is not Show.CHANGES:
        uses = _uses_of_slices(document, result.done)
        found["slices"] = None if uses is None else slice_use.document(uses)
        if show is Show.ALL and uses:
            with after_the_work():
                show_slices(uses)
    if show is Show.ALL:
        rate = f"{total.normalize():f} USD/h{f' and {unpriced} of unknown price' if unpriced else ''}"
        line = f"{document.cloud} {document.region}: {len(decisions)} instances outside every pool, {rate}"
        with after_the_work():
            STDOUT.print(line, highlight=False)
    if decisions and not options.apply:
        code = Exit.FOUND
    return code, found


def _uses_of_slices(document: FleetDocument, done: Pass[Any]) -> Sequence[SliceUse] | None:
    """The use of the slices of the listed instances; None: unknown, because the metrics cannot be read."""
    try:
        return slices_of(document.prometheus_url, done.observed, SHOWN, done.plan.at)
    except OSError as error:
        note(f"{document.cloud} {document.region}: the use of slices cannot be read: {error}")
        return None


def _one_of_each(documents: Sequence[FleetDocument]) -> list[FleetDocument]:
    """Every fleet with rules, and one fleet of each account and region without rules."""
    places = {(d.cloud, d.account, d.region): d for d in documents}
    ruled = [d for d in documents if d.orphans]
    covered = {(d.cloud, d.account, d.region) for d in ruled}
    return [*ruled, *(d for place, d in places.items() if place not in covered)]
