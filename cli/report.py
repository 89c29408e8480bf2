"""`gpufleet report`: what the fleet cost, served, wasted and saved."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from cli import money
from cli.fleets import FleetOption, load
from cli.output import STDOUT, Exit, UserError, print_json
from cli.windows import Window, parse_window
from costs.document import document as as_document
from costs.render import as_text
from costs.report import Report, Scope
from costs.report import load as load_report
from fleet.document import FleetDocument
from ledger.database import writing
from ledger.outbox import enqueue
from notify.messages import cost_message
from prices.book import MissingPriceError
from prices.packaged import PackagedPrices

SinceOption = Annotated[
    str, typer.Option("--since", help="Start: a duration ago (1h, 7d), a date or an ISO time in --tz.")
]
UntilOption = Annotated[str | None, typer.Option("--until", help="End, exclusive; as --since. Default: now.")]
ZoneOption = Annotated[str, typer.Option("--tz", help="Time zone of dates and of what is shown.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
PostOption = Annotated[bool, typer.Option("--post", help="Send it to the fleet's Slack channel, too.")]
UnpricedOption = Annotated[
    bool, typer.Option("--allow-unpriced", help="Show what has no price as unknown, and totals as at least.")
]


def register(app: typer.Typer) -> None:
    report = typer.Typer(help="Reports from the ledger.", no_args_is_help=True)
    report.command("cost")(cost)
    app.add_typer(report, name="report")


def cost(
    fleet: FleetOption = None,
    since: SinceOption = "24h",
    until: UntilOption = None,
    tz: ZoneOption = "UTC",
    as_json: JsonOption = False,
    post: PostOption = False,
    allow_unpriced: UnpricedOption = False,
) -> None:
    """Cost and USD per million tokens of a window, by pool, model and capacity type."""
    window = parse_window(since, until, tz, datetime.now(UTC))
    reports = [(document, read_report(document, window, allow_unpriced)) for document in load(fleet)]
    if as_json:
        documents = [as_document(report) for _, report in reports]
        print_json(documents[0] if len(documents) == 1 else documents)
    else:
        for _, report in reports:
            STDOUT.print(as_text(report), markup=False, highlight=False, soft_wrap=True)
    if post:
        for document, report in reports:
            _post(document, report)


def read_report(document: FleetDocument, window: Window, allow_unpriced: bool) -> Report:
    """The report of one fleet. Raises UserError for a missing price."""
    engine = money.open_ledger_of(document)
    scope = Scope(
        fleet=money.ledger_name(document),
        environment=document.environment,
        cloud=document.cloud,
        region=document.region,
        since=window.since,
        until=window.until,
        now=window.now,
        timezone=window.timezone,
        allow_unpriced=allow_unpriced,
    )
    try:
        return load_report(engine, scope, money.overrides_of(document), PackagedPrices())
    except MissingPriceError as error:
        raise UserError(f"{document.environment}: {error}; or show it as unknown with --allow-unpriced") from error


def _post(document: FleetDocument, report: Report) -> None:
    if document.notify is None:
        raise UserError(f"{document.environment}: its settings name no Slack channel (notify.slack_channel)")
    engine = money.open_ledger_of(document)
    with writing(engine) as connection:
        enqueue(
            connection,
            cost_message(report_lines(report), report_key(report), document.notify.slack_channel),
            report.scope.now,
        )
    done = money.send(engine)
    if done.later or done.refused:
        raise typer.Exit(Exit.FAILED)


def report_key(report: Report) -> str:
    """Names a posted report: the same window is posted once."""
    scope = report.scope
    return f"{scope.fleet}/report/cost/{scope.since.isoformat()}/{scope.until.isoformat()}"


def report_lines(report: Report) -> tuple[str, str]:
    """Title and body of the message."""
    title, _, body = as_text(report).partition("\n")
    return title, body.strip("\n")
