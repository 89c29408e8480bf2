"""`gpufleet scan`: a read-only look at AWS accounts and Google Cloud projects."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import JsonOption
from cli.output import STDERR, STDOUT, Exit, note, print_json
from gpufleet.domain.model import Cloud
from gpufleet.domain.parsed import is_list, is_map

WIDE: Final = 140
"""Columns of a terminal that shows all columns of the table."""

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from app.scan import ScanAccount
    from app.scan_evidence import PrometheusStore
    from gpufleet.costs.slice_use import SliceUse
    from gpufleet.notify.slack import Receiver
    from gpufleet.scan.advice import Advice
    from gpufleet.scan.model import Scan

    Hide = Callable[[str], str]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scan")(scan)


def scan(  # noqa: PLR0913, PLR0917 - options
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", help="AWS profile; repeatable. Default: the default credentials."),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="ARN of an AWS role to assume; repeatable.")
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "--project",
            help="Google Cloud project; repeatable. Default: the default credentials', if no AWS option is given.",
        ),
    ] = None,
    region: Annotated[
        list[str] | None, typer.Option("--region", help="Only this region; repeatable. Default: all enabled regions.")
    ] = None,
    prometheus: Annotated[
        list[str] | None,
        typer.Option(
            "--prometheus",
            metavar="URL",
            help="Prometheus with metrics of instances (jobs engine and accelerator, label instance_id); repeatable.",
        ),
    ] = None,
    window: Annotated[str, typer.Option("--window", help="Time for which waste is computed, at most 14d.")] = "7d",
    idle: Annotated[
        str, typer.Option("--idle", help="An instance counts as idle after this time without work.")
    ] = "24h",
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of instances to show.")] = 30,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.")] = None,
    slack: Annotated[
        str | None,
        typer.Option("--slack", metavar="CHANNEL", help="Also post the totals and what to do first, as #gpu-costs."),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Hide account ids, project names and addresses of stores.")
    ] = False,
    print_policy: Annotated[
        Cloud | None,
        typer.Option(
            "--print-policy", help="Print the IAM policy (aws) or the custom role (gcp) that a scan needs, and exit."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look at GPU instances, their use, their cost and unused reservations in all regions. It changes nothing.

    Ctrl-C shows what was read until then.

    Exit code 1: a region or an account could not be read; the rest is shown. Exit code 3: something is certainly idle
    or unused. Exit code 130: interrupted.
    """
    began = time.monotonic()
    if print_policy is not None:
        _print_policy(print_policy)
        return
    note("scanning; this only reads")  # before the imports, which take most of a second
    from app import scan as use_case
    from gpufleet.scan import advice as advice_of
    from gpufleet.scan import summary
    from gpufleet.scan.judge import ScanWindows

    windows = ScanWindows(
        now=datetime.now(UTC), whole=_duration("--window", window, timedelta(days=14)), idle=_duration("--idle", idle)
    )
    if html is not None:
        _check_page(html)
    receiver = None if slack is None else _receiver()
    stores = _stores(prometheus or ())
    accounts = _accounts(profile or (), role or (), project or (), region or ())
    found = use_case.scan(accounts, windows, _progress, regions=tuple(region or ()), stores=stores)
    advice = advice_of.advise(found, _profiles(accounts, found))
    names = [*(profile or ()), *(role or ()), *(one.name for one in stores)]
    hide = summary.redactor(found, names) if redact else str
    if html is not None:
        from cli.files import write_text
        from gpufleet.scan.page import page

        write_text(hide(page(found, advice)), html)
        note(f"wrote {html}")
    if as_json:
        print_json(_redacted(summary.document(found, advice, use_case.all_calls(found.results)), hide))
    else:
        _show(found, advice, rows, hide)
        note(f"{time.monotonic() - began:.1f} s, {sum(use_case.all_calls(found.results).values())} API calls")
    posted = receiver is None or _post(receiver, slack or "", hide(summary.message(found, advice)), found.at)
    if found.is_interrupted:
        raise SystemExit(Exit.INTERRUPTED)
    if found.all_failures or not posted:
        raise typer.Exit(Exit.FAILED)
    if any(one.idle_hours for one in found.instances) or any(one.unused for one in found.capacity):
        raise typer.Exit(Exit.FOUND)


def _progress(scope: str, text: str) -> None:
    note(f"{scope}: {text}")


def _duration(option: str, text: str, most: timedelta | None = None) -> timedelta:
    from app.errors import AppError, ErrorCode
    from gpufleet.domain import durations

    try:
        found = durations.parse(text)
    except ValueError as error:
        raise AppError(f"{option}: {error}", ErrorCode.WRONG_USE) from error
    if found < timedelta(hours=2) or (most is not None and found > most):
        limit = "" if most is None else f" and at most {durations.render(most)}"
        raise AppError(f"{option}: expected at least 2h{limit}, got {text}", ErrorCode.WRONG_USE)
    return found


def _check_page(path: Path) -> None:
    """Raise AppError before the scan if no file can be written there."""
    from app.errors import AppError, ErrorCode

    if not path.parent.is_dir():
        raise AppError(f"--html: {path}: folder {path.parent} does not exist; create it", ErrorCode.WRONG_USE)
    if path.is_dir():
        raise AppError(f"--html: {path} is a folder; name a file in it", ErrorCode.WRONG_USE)


def _accounts(
    profiles: "Sequence[str]", roles: "Sequence[str]", projects: "Sequence[str]", regions: "Sequence[str]"
) -> "Sequence[ScanAccount]":
    """The accounts to scan. Raises AppError if nothing names one and there are no default credentials."""
    from app.errors import AppError, ErrorCode

    found = _aws_accounts(profiles, roles, regions, use_default=not projects)
    if projects or not (profiles or roles):
        found += _google_projects(projects, regions)
    if not found:
        raise AppError(
            "no AWS or Google Cloud credentials found: log in (`aws sso login`, `aws configure`,"
            " `gcloud auth application-default login`) or name a --profile or a --project",
            ErrorCode.WRONG_USE,
        )
    return found


def _aws_accounts(
    profiles: "Sequence[str]", roles: "Sequence[str]", regions: "Sequence[str]", *, use_default: bool
) -> "list[ScanAccount]":
    if not (profiles or roles or use_default):
        return []
    from app.scan_aws import AwsScanAccount
    from gpufleet.clouds.aws.account import AwsAccount, has_default_credentials

    named = [AwsAccount(profile=name) for name in profiles] + [AwsAccount(role=arn) for arn in roles]
    if not named and has_default_credentials():
        named = [AwsAccount()]
    return [AwsScanAccount(one, regions) for one in named]


def _google_projects(projects: "Sequence[str]", regions: "Sequence[str]") -> "list[ScanAccount]":
    names = list(dict.fromkeys(projects))
    if not names:
        from gpufleet.clouds.gcp.login import default_project

        names = [name for name in [default_project()] if name]
    if not names:
        return []
    from app.scan_google import GoogleScanAccount

    return [GoogleScanAccount(name, regions) for name in names]


def _stores(urls: "Sequence[str]") -> "Sequence[PrometheusStore]":
    from app.errors import AppError, ErrorCode

    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise AppError(f"--prometheus: expected an http:// or https:// address, got {url!r}", ErrorCode.WRONG_USE)
    if not urls:
        return ()
    from app.scan_evidence import PrometheusStore

    return [PrometheusStore(url) for url in dict.fromkeys(urls)]


def _receiver() -> "Receiver":
    """Slack. Raises AppError before the scan if it is not configured."""
    from app.errors import AppError, ErrorCode
    from gpufleet.notify.slack import SlackSettingsError, from_environment

    try:
        return from_environment(os.environ)
    except SlackSettingsError as error:
        raise AppError(f"--slack: {error}", ErrorCode.WRONG_USE) from error


def _post(receiver: "Receiver", channel: str, text: str, at: datetime) -> bool:
    """Post once. Return whether the message was accepted."""
    from gpufleet.ledger.outbox import escape
    from gpufleet.notify.slack import Arrived

    answer = receiver.post(channel, f"scan/{at.isoformat()}", escape(text), {}, None)
    if isinstance(answer, Arrived):
        note(f"posted to {channel}")
        return True
    STDERR.print(f"gpufleet: --slack {channel}: not posted: {answer.error}", style="red", highlight=False)
    return False


def _profiles(accounts: "Sequence[ScanAccount]", found: "Scan") -> dict[str, str]:
    """AWS profile by account id, for the commands of an advice."""
    from app.scan_aws import AwsScanAccount

    read = [one for one in accounts if isinstance(one, AwsScanAccount) and one.name not in found.duplicates]
    return {one.id: one.profile for one in read if one.id and one.profile}


def _redacted(value: Any, hide: "Hide") -> Any:
    if isinstance(value, str):
        return hide(value)
    if is_map(value):
        return {key: _redacted(one, hide) for key, one in value.items()}
    return [_redacted(one, hide) for one in value] if is_list(value) else value


def _print_policy(cloud: Cloud) -> None:
    if cloud is Cloud.GCP:
        from app.scan_google import role

        print_json(role())
        return
    from app.scan_aws import ACTIONS

    statement = {"Sid": "GpuFleetScan", "Effect": "Allow", "Action": list(ACTIONS), "Resource": "*"}
    print_json({"Version": "2012-10-17", "Statement": [statement]})


def _show(found: "Scan", advice: "Sequence[Advice]", rows: int, hide: "Hide") -> None:
    from gpufleet.scan import summary

    def show(line: str) -> None:
        STDOUT.print(hide(line), highlight=False, soft_wrap=True)

    for line in summary.headline(found):
        show(line)
    if advice:
        show("\nDo first:")
    for number, one in enumerate(advice[: summary.FIRST], 1):
        show(f" {number}. {one.scope}: {one.text}; {summary.amount_of(one)}\n      {one.command}")
    every = found.instances
    if every:
        count = f"{rows} of {len(every)}" if len(every) > rows else str(len(every))
        show(f"\nInstances ({count}; most waste first):")
        shown = summary.NARROW if STDOUT.is_terminal and STDOUT.width < WIDE else summary.HEADINGS
        columns = [summary.HEADINGS.index(name) for name in shown]
        cells = [summary.row(one, found.at) for one in every[:rows]]
        _table(shown, [[row[column] for column in columns] for row in cells], hide)
    _show_slices(found.slices, rows, hide)
    if found.capacity:
        show("\nReservations:")
        _table(summary.CAPACITY_HEADINGS, [summary.capacity_row(one) for one in found.capacity[:rows]], hide)
    if found.all_failures:
        show("\nNot read:")
    for failure in found.all_failures:
        show(f" {failure.scope}: {failure.what}: {failure.code}: {failure.message}")
    series = sum(result.metered_series for result in found.results)
    if series:
        STDERR.print(f"CloudWatch charges {series} series: {series / 100_000:.4f} USD", highlight=False)


def _show_slices(found: "Sequence[SliceUse]", rows: int, hide: "Hide") -> None:
    """Print the use of each slice, if a store has metrics of any."""
    from gpufleet.costs import slice_use
    from gpufleet.scan import summary

    if not found:
        return
    count = f" ({rows} of {len(found)})" if len(found) > rows else ""
    STDOUT.print(f"\n{summary.SLICES}{count}:", highlight=False)
    _table(slice_use.HEADINGS, slice_use.rows(found[:rows]), hide)
    for line in slice_use.notes(found):
        STDOUT.print(line, highlight=False, soft_wrap=True)


def _table(headings: "Sequence[str]", rows: "Sequence[Sequence[str]]", hide: "Hide") -> None:
    from rich.table import Table

    shown = [[hide(cell) for cell in cells] for cells in rows]
    if not STDOUT.is_terminal:  # a pipe gets complete cells, whatever the width of a terminal is
        widths = [max(map(len, column)) for column in zip(headings, *shown, strict=True)]
        for cells in (headings, *shown):
            line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            STDOUT.print(line.rstrip(), highlight=False, soft_wrap=True)
        return
    table = Table(*headings, box=None, pad_edge=False)
    for cells in shown:
        table.add_row(*cells)
    STDOUT.print(table)
