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
from cli.options import AcceptOption, ApplyOption, FleetOption, JsonOption, QuietOption
from cli.output import STDOUT, Exit, note, print_json
from cli.watch_pass import over_fleets, readable, show_of
from gpufleet.domain.decisions import LedgerEntry
from gpufleet.ledger import decisions


def register(app: typer.Typer) -> None:
    about = "Watchdogs: run one pass, or run all of them as a daemon. Without --apply every pass is a dry run."
    watch = typer.Typer(help=about, no_args_is_help=True)
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
    """Mark idle instances; drain and terminate instances that stay idle for their grace period.

    With --region, check every GPU instance in a region, without a fleet. The command then only lists idle instances.
    Exit code 3: without --apply, actions are planned; with --region, idle instances were found.
    """
    if region is not None:
        if apply or accept_policy or fleet:
            raise AppError(
                "--region is read-only: leave out --apply, --accept-policy and --fleet", ErrorCode.WRONG_USE
            )
        place = SearchScope(region=region, project=project, tag=tag, prometheus=prometheus, window=window)
        raise typer.Exit(watch_unmanaged.show_idle(place, datetime.now(UTC), as_json=as_json))
    if project or tag or prometheus:
        raise AppError("--project, --tag and --prometheus require --region", ErrorCode.WRONG_USE)
    _run(IDLE, fleet, Options(apply=apply, accept=tuple(accept_policy or ())), as_json=as_json, quiet=quiet)


def spot(
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
) -> None:
    """Split each pool's target over reserved, spot and on-demand capacity, by what the market offers.

    Exit code 3: without --apply, actions are planned.
    """
    _run(SPOT, fleet, Options(apply=apply, accept=tuple(accept_policy or ())), as_json=as_json, quiet=quiet)


def scale(
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
    accept_policy: AcceptOption = None,
    quiet: QuietOption = False,
) -> None:
    """Set each pool's target from its load, its latency and its schedule.

    Exit code 3: without --apply, actions are planned.
    """
    _run(SCALE, fleet, Options(apply=apply, accept=tuple(accept_policy or ())), as_json=as_json, quiet=quiet)


def why(
    resource: Annotated[str, typer.Argument(help="Id of an instance, or name of an instance group or pool.")],
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every recorded decision about a resource, with its evidence and its outcome.

    For a pool, this includes its groups and instances, and at the end the reasons why the pool does not grow.
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
    without = f"no decision about {resource!r} is recorded: only passes with --apply record decisions"
    if not rows and not growths:
        raise AppError(without)
    if as_json:
        return
    if not rows:
        note(without)
    for row in rows:
        _print(row, resource)
    for growth in growths:  # at the end of a long output, where the user sees it first
        for line in growth.lines():
            STDOUT.print(line, highlight=False, markup=False, soft_wrap=True)


def _row(past: LedgerEntry) -> dict[str, Any]:
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
    detail = row["outcome_detail"] or row["detail"]
    STDOUT.print(f"{head}{f' ({detail})' if detail else ''}", highlight=False, markup=False, soft_wrap=True)
    for name, value in row["evidence"].items():
        STDOUT.print(f"    {name} = {value}", style="dim", highlight=False, markup=False)


def _run(name: str, fleet: list[str] | None, options: Options, *, as_json: bool, quiet: bool) -> None:
    documents, unread = readable(load_each(fleet))
    code, answers = over_fleets(kinds()[name], documents, options, show_of(as_json=as_json, quiet=quiet))
    code = Exit.FAILED if unread else code
    if as_json:
        print_json(answers[0] if len(answers) == 1 else answers)
    raise typer.Exit(code)
