"""`gpufleet watch`: one pass of a watchdog, for people and for cron. `watch run` is the daemon."""

import importlib
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from app.fleets import load, load_each
from app.passes import IDLE, SCALE, SPOT, Options, kinds
from app.unmanaged import SearchScope
from cli import watch_unmanaged
from cli.options import FleetOption, JsonOption
from cli.output import STDOUT, Exit, print_json
from cli.watch_pass import over_fleets, readable, show_of
from gpufleet.domain.decisions import Past
from gpufleet.ledger import decisions

ApplyOption = Annotated[bool, typer.Option("--apply", help="Act. Without it the plan is only printed.")]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option("--accept-policy", metavar="HASH", help="Let a changed policy act unseen; repeatable."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing when nothing is to be done.")]


def register(app: typer.Typer) -> None:
    words = "Watchdogs: one pass, or all of them for ever. Dry unless --apply is given."
    watch = typer.Typer(help=words, no_args_is_help=True)
    watch.command("idle")(idle)
    watch.command("spot")(spot)
    watch.command("scale")(scale)
    watch.command("why")(why)
    for extra in ("watch_cost", "watch_orphans", "watch_revisions", "watch_run"):
        importlib.import_module(f"cli.{extra}").register(watch)
    app.add_typer(watch, name="watch")


def idle(  # noqa: PLR0913 - two ways to say which instances
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
    region: watch_unmanaged.RegionOption = None,
    project: watch_unmanaged.ProjectOption = None,
    tag: watch_unmanaged.TagOption = None,
    prometheus: watch_unmanaged.PrometheusOption = None,
    window: watch_unmanaged.WindowOption = "30m",
) -> None:
    """Mark idle instances; drain and end those that stay idle for their grace.

    With --region instead of a fleet: judge every GPU instance there, whoever made it, and only say what is found.
    """
    if region is not None:
        if apply or accept_policy or fleet:
            raise AppError("--region only looks: leave out --apply, --accept-policy and --fleet", ErrorCode.WRONG_USE)
        place = SearchScope(region=region, project=project, tag=tag, prometheus=prometheus, window=window)
        raise typer.Exit(watch_unmanaged.look(place, datetime.now(UTC), as_json=as_json))
    if project or tag or prometheus:
        raise AppError("--project, --tag and --prometheus belong to --region", ErrorCode.WRONG_USE)
    _run(IDLE, fleet, Options(apply=apply, accept=tuple(accept_policy or ())), as_json=as_json, quiet=quiet)


def spot(
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
) -> None:
    """Split each pool's target over reserved, spot and on-demand, as the market gives."""
    _run(SPOT, fleet, Options(apply=apply, accept=tuple(accept_policy or ())), as_json=as_json, quiet=quiet)


def scale(
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
) -> None:
    """Set each pool's target from its load, its latency and its schedule."""
    _run(SCALE, fleet, Options(apply=apply, accept=tuple(accept_policy or ())), as_json=as_json, quiet=quiet)


def why(
    resource: Annotated[str, typer.Argument(help="Instance, group or pool.")],
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every decision about a resource, with its evidence, and what became of it.

    Of a pool: about all that it has, and at the end why it does not grow.
    """
    from app.ledgers import ledger_name
    from app.why import Growth, growth_of
    from app.wiring import open_engine

    rows: list[dict[str, Any]] = []
    growths: list[Growth] = []
    for document in load(fleet):
        engine = open_engine(document, reading=True)
        past = decisions.history(engine, ledger_name(document), resource)
        rows += [_row(one) for one in past]
        if any(pool.name == resource for pool in document.pools):
            growths.append(growth_of(document, engine, resource, past, datetime.now(UTC)))
    if as_json:
        print_json({"growth": [one.as_json() for one in growths], "decisions": rows} if growths else rows)
    if not rows:
        raise AppError(f"nothing is recorded about {resource!r}: decisions are written by passes with --apply")
    if as_json:
        return
    for row in rows:
        _print(row, resource)
    for growth in growths:  # at the end of a long output, where the user sees it first
        for line in growth.lines():
            STDOUT.print(line, highlight=False, markup=False, soft_wrap=True)


def _row(past: Past) -> dict[str, Any]:
    decision, outcome = past.decision, past.outcome
    return {
        "at": past.at.isoformat(timespec="seconds"),
        "watchdog": past.watchdog,
        "resource": decision.resource,
        "action": decision.action.sentence,
        "reason": decision.reason.sentence,
        "reason_code": decision.reason.value,
        "detail": decision.detail,
        "evidence": dict(decision.evidence),
        "outcome": outcome.kind.sentence if outcome else None,
        "outcome_code": outcome.kind.value if outcome else None,
        "outcome_detail": past.detail if outcome else None,
    }


def _print(row: dict[str, Any], resource: str) -> None:
    whose = "" if row["resource"] == resource else f" {row['resource']}"
    head = f"{row['at']}  {row['watchdog']}:{whose} {row['action']}, {row['reason']}"
    if row["outcome"] is not None:
        head = f"{row['at']}  {row['watchdog']}:{whose} {row['action']} → {row['outcome']}"
    words = row["outcome_detail"] or row["detail"]
    STDOUT.print(f"{head}{f' ({words})' if words else ''}", highlight=False, markup=False, soft_wrap=True)
    for name, value in row["evidence"].items():
        STDOUT.print(f"    {name} = {value}", style="dim", highlight=False, markup=False)


def _run(name: str, fleet: list[str] | None, options: Options, *, as_json: bool, quiet: bool) -> None:
    documents, unread = readable(load_each(fleet))
    code, answers = over_fleets(kinds()[name], documents, options, show_of(as_json=as_json, quiet=quiet))
    code = Exit.FAILED if unread else code
    if as_json:
        print_json(answers[0] if len(answers) == 1 else answers)
    raise typer.Exit(code)
