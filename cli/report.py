"""`gpufleet report`: what the fleet cost, served, wasted and saved."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app import delivery, ledgers, reports
from app.errors import AppError, ErrorCode
from app.fleets import load
from app.windows import Window, last_day
from cli.files import write_json, write_text
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, Exit, note, print_json
from cli.trueup import trueup
from cli.windows import parse_window
from gpufleet import extras
from gpufleet.costs import charts, focus, token_origins
from gpufleet.costs import digest as digests
from gpufleet.costs.allocation import LedgerFacts
from gpufleet.costs.document import document as as_document
from gpufleet.costs.render import as_text, title
from gpufleet.costs.report import By, Report
from gpufleet.ledger.database import writing
from gpufleet.ledger.outbox import Message, enqueue, holds
from gpufleet.notify import messages
from gpufleet.notify.slack import SlackBot
from gpufleet.prices.book import PriceBook
from gpufleet.settings.document import FleetDocument

DIGEST: Final = "digest"


class Format(StrEnum):
    """Output format of a report."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    HTML = "html"
    FOCUS = "focus"
    SLICES = "slices"


SinceOption = Annotated[
    str,
    typer.Option(
        "--since", help="Start of the window: a duration before now (1h, 7d), or a date or ISO time in --tz."
    ),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", help="End of the window, exclusive, in the same forms. Default: now.")
]
ZoneOption = Annotated[
    str, typer.Option("--tz", help="Time zone of the dates in options and output, for example Europe/Berlin.")
]
PostOption = Annotated[bool, typer.Option("--post", help="Also post the report to the fleet's Slack channel.")]
DailyOption = Annotated[
    bool,
    typer.Option(
        "--daily",
        help="Report the last complete day, which ends at notify.digest_at of the settings, and ignore --since, "
        "--until and --tz. With --post, each day is posted only once.",
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Skip fleets without `notify` in their settings and windows that were posted before. If none remains, "
        "print nothing.",
    ),
]
UnpricedOption = Annotated[
    bool,
    typer.Option(
        "--allow-unpriced", help="Show costs without a price as unknown, and totals as lower bounds. Default: fail."
    ),
]


FormatOption = Annotated[
    Format, typer.Option("--format", help="Format of the output. slices: CSV with the cost by accelerator slice.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="File to write. Default: stdout.")]
ByOption = Annotated[
    list[By] | None,
    typer.Option(
        "--by",
        help="Columns to group by; repeatable. Default: pool, model, capacity type, and adapter if there are any.",
    ),
]


def register(app: typer.Typer) -> None:
    report = typer.Typer(help="Reports of cost, waste and savings from the ledger.", no_args_is_help=True)
    for name, command in (
        ("cost", cost),
        ("waste", waste),
        ("savings", savings),
        (DIGEST, digest),
        ("trueup", trueup),
    ):
        report.command(name)(command)
    app.add_typer(report, name="report")


def cost(
    fleet: FleetOption = None,
    since: SinceOption = "24h",
    until: UntilOption = None,
    by: ByOption = None,
    tz: ZoneOption = "UTC",
    form: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    out: OutOption = None,
    post: PostOption = False,
    allow_unpriced: UnpricedOption = False,
) -> None:
    """Report the cost of a window and USD per million tokens, by pool, model and capacity type."""
    window = parse_window(since, until, tz, datetime.now(UTC))
    documents = _with_ledger(fleet)
    form = Format.JSON if as_json else form
    if form is Format.TABLE:
        text = "\n\n".join(as_text(_cost(d, window, allow_unpriced), by) for d in documents)
        write_text(text + "\n", out)
    elif form is Format.JSON:
        found = [as_document(_cost(d, window, allow_unpriced)) for d in documents]
        write_json(found[0] if len(found) == 1 else found, out)
    else:
        write_text(_rendered(form, documents, window, allow_unpriced), out)
    if post:
        _all_sent(
            _post(document, window, "cost", lambda d: as_text(reports.cost(d, window, allow_unpriced)))
            for document in documents
        )


def _cost(document: FleetDocument, window: Window, allow_unpriced: bool) -> Report:
    """The report. It also prints what would have changed in it if the window were not closed."""
    found = reports.cost(document, window, allow_unpriced)
    for line in found.would_change:
        STDERR.print(f"{document.environment}: {line}")
    return found


def waste(
    fleet: FleetOption = None,
    since: SinceOption = "24h",
    until: UntilOption = None,
    tz: ZoneOption = "UTC",
    as_json: JsonOption = False,
    post: PostOption = False,
    allow_unpriced: UnpricedOption = False,
) -> None:
    """Report money that was spent without serving requests, with a remedy for each cause."""

    def lines(found: digests.Digest) -> list[str]:
        without = "no cost is recorded" if found.report.total.allocation == 0 else "nothing was wasted"
        return digests.waste_lines(found.waste, most=1_000) or [without]

    _lines("waste", (fleet, since, until, tz, as_json, post, allow_unpriced), lines)


def savings(
    fleet: FleetOption = None,
    since: SinceOption = "24h",
    until: UntilOption = None,
    tz: ZoneOption = "UTC",
    as_json: JsonOption = False,
    post: PostOption = False,
    allow_unpriced: UnpricedOption = False,
) -> None:
    """Report savings: from spot instead of on-demand, and from terminated idle instances."""

    def lines(found: digests.Digest) -> list[str]:
        return digests.savings_lines(found.savings)

    _lines("savings", (fleet, since, until, tz, as_json, post, allow_unpriced), lines)


def digest(
    fleet: FleetOption = None,
    since: SinceOption = "24h",
    until: UntilOption = None,
    tz: ZoneOption = "UTC",
    as_json: JsonOption = False,
    post: PostOption = False,
    daily: DailyOption = False,
    quiet: QuietOption = False,
    allow_unpriced: UnpricedOption = False,
) -> None:
    """Report a day on one page: cost with its trend, largest waste, savings, forecast and budget."""
    now = datetime.now(UTC)
    window = parse_window(since, until, tz, now)
    documents = [document for document in load(fleet) if not quiet or document.notify is not None]
    windows = [(document, _day_of(document, now) if daily else window) for document in documents]
    _check_ledgers(documents)
    if quiet:
        windows = [(document, span) for document, span in windows if not _was_posted(document, span)]
        if not windows:
            return
    whole = [(document, span, *reports.with_facts(document, span, allow_unpriced)) for document, span in windows]
    if as_json:
        print_json([reports.digest_json(one) for _, _, one, _, _ in whole])
    else:
        write_text("\n\n".join(digests.as_text(one) for _, _, one, _, _ in whole) + "\n", None)
    if post:
        _all_sent(_post_digest(*one) for one in whole)


def _post_digest(
    document: FleetDocument, span: Window, one: digests.Digest, facts: LedgerFacts, book: PriceBook
) -> bool:
    message = messages.digest_message(
        title=f"GPU cost, {document.environment}",
        numbers=[(n.name, n.value, n.trend) for n in digests.numbers(one)],
        waste=digests.all_waste_lines(one),
        text=digests.pool_table(one),
        notes=[*token_origins.lines(one.report.token_origins), *one.report.notes],
    )
    key = reports.key(document, span, DIGEST)
    if not isinstance(delivery.receiver(), SlackBot):  # a webhook accepts no files
        return _send(document, key, message)
    _note_missing_charts()
    files = messages.files_message(key, "the figures of the report", reports.attachments(one, facts, book))
    return _send(document, key, message, replace(files, key=f"{key}/files"))


def _with_ledger(fleet: list[str] | None) -> list[FleetDocument]:
    documents = load(fleet)
    _check_ledgers(documents)
    return documents


def _check_ledgers(documents: Iterable[FleetDocument]) -> None:
    """Raise AppError for a fleet whose ledger is not on this machine: its costs are unknown, not 0."""
    for document in documents:
        ledgers.check_present(document)


def _day_of(document: FleetDocument, now: datetime) -> Window:
    if document.notify is None:
        raise AppError(
            f"--daily: `notify` is not set in the settings of {document.environment}; notify.digest_at defines when"
            " a day ends"
        )
    return last_day(time.fromisoformat(document.notify.digest_at), document.notify.timezone, now)


def _was_posted(document: FleetDocument, span: Window) -> bool:
    engine = ledgers.read_ledger_of(document)
    with ledgers.ledger_errors(document):
        return holds(engine, reports.key(document, span, DIGEST))


def _lines(name: str, options: tuple[Any, ...], lines: Callable[[digests.Digest], list[str]]) -> None:
    fleet, since, until, tz, as_json, post, allow_unpriced = options
    window = parse_window(since, until, tz, datetime.now(UTC))
    documents = _with_ledger(fleet)
    found = [(document, reports.digest(document, window, allow_unpriced)) for document in documents]
    if as_json:
        print_json([reports.digest_json(one) for _, one in found])
    else:
        for _, one in found:
            warnings = [f"! {text}" for text in one.report.notes]
            write_text("\n".join([title(one.report), "", *lines(one), *warnings]) + "\n", None)
    if post:
        _all_sent(_post(document, window, name, lambda _, one=one: "\n".join(lines(one))) for document, one in found)


def _rendered(form: Format, documents: list[FleetDocument], window: Window, allow_unpriced: bool) -> str:
    if form is Format.CSV:
        return reports.as_csv((d.environment, _cost(d, window, allow_unpriced)) for d in documents)
    if form is Format.SLICES:
        return reports.slices_csv((d.environment, _cost(d, window, allow_unpriced)) for d in documents)
    if form is Format.FOCUS:
        try:
            return focus.write_csv(row for document in documents for row in reports.focus_rows(document, window))
        except focus.UnpricedError as error:
            raise AppError(str(error)) from error
    if len(documents) != 1:
        raise AppError("an HTML file shows one fleet: give one --fleet", ErrorCode.WRONG_USE)
    _note_missing_charts()
    return reports.html(documents[0], window, allow_unpriced)


def _note_missing_charts() -> None:
    if (why := extras.missing(charts.LIBRARY)) is not None:
        note(f"without charts: {why}")


def _all_sent(posts: Iterable[bool]) -> None:
    """Post for every fleet. If a message waits or is refused, the command fails after all were tried."""
    if not all([*posts]):
        raise typer.Exit(Exit.FAILED)


def _post(document: FleetDocument, window: Window, name: str, text: Callable[[FleetDocument], str]) -> bool:
    head, _, body = text(document).partition("\n")
    message = messages.report_message(name, head, body.strip("\n") or head)
    return _send(document, reports.key(document, window, name), message)


def _send(document: FleetDocument, key: str, message: Message, *more: Message) -> bool:
    """Whether all waiting messages were delivered. Raises AppError when there is no channel or no connection to
    Slack.
    """
    if document.notify is None:
        raise AppError(f"{document.environment}: notify.slack_channel is not set in the settings; name a channel")
    delivery.receiver()  # fails immediately if no connection to Slack is configured
    engine = ledgers.open_ledger_of(document)
    ready = replace(message, key=key, channel=document.notify.slack_channel)
    with ledgers.ledger_errors(document), writing(engine) as connection:
        if not enqueue(connection, ready, datetime.now(UTC)):
            STDERR.print(f"Slack: this report of {document.environment} was posted before and is not posted again")
        for one in more:
            enqueue(connection, replace(one, channel=document.notify.slack_channel), datetime.now(UTC))
    with ledgers.ledger_errors(document):
        done = delivery.send(engine)
    STDERR.print(delivery.summary(done))
    return not done.later and not done.refused
