"""`gpufleet watch orphans`: lists GPU instances that no pool owns, with their price; rules select those to act on."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from app.fleets import load
from app.passes import Options, check_accepted, orphan_kind
from app.unmanaged import with_tag
from cli import plans
from cli.options import FleetOption, JsonOption
from cli.output import STDOUT, Exit, after_the_work, exit_of, note, print_json
from cli.watch_pass import Show, answer, one_of_several, show_of, worst
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument
from watchdogs.orphans.watchdog import OrphanScope


def register(watch_app: typer.Typer) -> None:
    watch_app.command("orphans")(orphans)


def orphans(  # noqa: PLR0913 - the options of every pass
    fleet: FleetOption = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="KEY=VALUE", help="Show only those with this tag (dry only).")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Act as the fleet's rules say. Without it: a list.")] = False,
    as_json: JsonOption = False,
    accept_policy: Annotated[
        list[str] | None,
        typer.Option("--accept-policy", metavar="HASH", help="Let a changed rule act unseen; repeatable."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing when nothing is to be done.")] = False,
) -> None:
    """List running GPU instances outside every pool of the fleets named, whoever made them. Exit code 3: found some.

    Those of each fleet's region and account, by machine type. With --apply the rules under `orphans` of the settings
    mark or stop those that they name; others are never touched.
    """
    if tag is not None and apply:
        raise AppError(
            "--tag only filters a list; whom --apply acts on is said by the fleet's rules", ErrorCode.WRONG_USE
        )
    only = None if tag is None else with_tag(tag)
    documents = load(fleet)
    options, show = Options(apply=apply, accept=tuple(accept_policy or ())), show_of(as_json=as_json, quiet=quiet)
    check_accepted(orphan_kind(OrphanScope()), documents, options.accept)
    found = [_one(document, documents, only, options, show) for document in _one_of_each(documents)]
    if as_json:
        print_json([answer for _, answer in found])
    raise typer.Exit(worst(code for code, _ in found))


def _one(
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
    if show is Show.ALL:
        words = f"{total.normalize():f} USD/h{f' and {unpriced} of unknown price' if unpriced else ''}"
        said = f"{document.cloud} {document.region}: {len(decisions)} outside every pool, {words}"
        with after_the_work():
            STDOUT.print(said, highlight=False)
    if decisions and not options.apply:
        code = Exit.FOUND
    return code, found


def _one_of_each(documents: Sequence[FleetDocument]) -> list[FleetDocument]:
    """Every fleet with rules, and one fleet of each account and region without rules."""
    places = {(d.cloud, d.account, d.region): d for d in documents}
    ruled = [d for d in documents if d.orphans]
    covered = {(d.cloud, d.account, d.region) for d in ruled}
    return [*ruled, *(d for place, d in places.items() if place not in covered)]
