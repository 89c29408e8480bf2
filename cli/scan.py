"""`gpufleet scan`: a read-only look at AWS accounts and Google Cloud projects."""

import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from cli.options import JsonOption
from cli.output import STDERR, STDOUT, Exit, note, print_json
from gpufleet.domain.model import Cloud
from gpufleet.domain.parsed import is_list, is_map

MIN_COLUMNS: Final = 3
"""Columns of a table that the narrowest terminal shows."""
_PROFILES: Final = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from app.scan import ScanAccount
    from app.scan_evidence import PrometheusStore
    from gpufleet.costs.slice_use import SliceUse
    from gpufleet.notify.slack import Receiver
    from gpufleet.scan.advice import Advice
    from gpufleet.scan.model import Scan
    from gpufleet.scan.redaction import Hide


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scan")(scan)


def scan(  # noqa: PLR0913, PLR0917 - options
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="AWS profile; repeatable. Default: the default credentials."),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="ARN", help="ARN of an AWS role to assume; repeatable.")
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "--project",
            metavar="PROJECT",
            help="Google Cloud project; repeatable. Default: the default credentials', if no AWS option is given.",
        ),
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", metavar="REGION", help="Only this region; repeatable. Default: all enabled regions."
        ),
    ] = None,
    prometheus: Annotated[
        list[str] | None,
        typer.Option(
            "--prometheus",
            metavar="URL",
            help="Prometheus with metrics of instances (jobs engine and accelerator, label instance_id); repeatable.",
        ),
    ] = None,
    window: Annotated[
        str, typer.Option("--window", metavar="DURATION", help="Time for which waste is computed, at most 14d.")
    ] = "7d",
    idle: Annotated[
        str | None,
        typer.Option(
            "--idle",
            metavar="DURATION",
            help="An instance counts as idle after this time without work. Default: 24h, at most the --window.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of instances to show.")] = 30,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page to this file.")
    ] = None,
    slack: Annotated[
        str | None,
        typer.Option("--slack", metavar="CHANNEL", help="Also post the totals and what to do first, as #gpu-costs."),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Hide account ids, profiles, roles, projects and addresses of stores."),
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

    Exit code 1: a region or an account could not be read; the others are shown. Exit code 3: hours that were
    certainly idle, or unused capacity. Exit code 130: interrupted.
    """
    began = time.monotonic()
    if print_policy is not None:
        _print_policy(print_policy)
        return
    note("scanning; this only reads")  # before the imports, which take most of a second
    from app import scan as use_case
    from app.errors import AppError
    from gpufleet.scan import advice as advice_of
    from gpufleet.scan import redaction, summary
    from gpufleet.scan.judge import ScanWindows

    whole = _duration("--window", window, timedelta(days=14))
    idle_for = min(timedelta(hours=24), whole) if idle is None else _duration("--idle", idle, whole)
    windows = ScanWindows(now=datetime.now(UTC), whole=whole, idle=idle_for)
    _check_names(profile or (), role or (), project or (), region or ())
    if html is not None:
        _check_page(html)
    receiver = None if slack is None else _receiver()
    stores = _stores(prometheus or ())
    accounts = _accounts(profile or (), role or (), project or (), region or ())
    named = _private_names(profile or (), role or (), stores)
    projects = [one.name for one in accounts if one.cloud is Cloud.GCP]
    progress = _progress(redaction.anonymous([*named, *(one.name for one in accounts)], projects) if redact else str)
    found = use_case.scan(accounts, windows, progress, regions=tuple(region or ()), stores=stores)
    advice = advice_of.advise(found, _profiles(accounts, found))
    hide = redaction.redactor(found, named) if redact else str
    is_complete = not found.all_failures
    if html is not None:
        from cli.files import write_text
        from gpufleet.scan.page import page

        try:
            write_text(page(found, advice, hide), html)
            note(f"wrote {html}")
        except AppError as error:  # the result of minutes is shown nevertheless
            STDERR.print(f"gpufleet: --html {error}", style="red", highlight=False, soft_wrap=True)
            is_complete = False
    if as_json:
        answer = _redacted(summary.document(found, advice, use_case.all_calls(found.results)), hide)
        print_json(answer | {"duplicates": {hide(name): hide(other) for name, other in found.duplicates.items()}})
    else:
        _show(found, advice, rows, hide)
        note(f"{time.monotonic() - began:.1f} s, {sum(use_case.all_calls(found.results).values())} API calls")
    if receiver is not None:
        is_complete &= _post(receiver, slack or "", summary.message(found, advice, hide), found.at)
    if found.is_interrupted:
        raise SystemExit(Exit.INTERRUPTED)
    if not is_complete:
        raise typer.Exit(Exit.FAILED)
    if any(one.idle_hours for one in found.instances) or any(one.unused for one in found.capacity):
        raise typer.Exit(Exit.FOUND)


def _private_names(
    profiles: "Sequence[str]", roles: "Sequence[str]", stores: "Sequence[PrometheusStore]"
) -> list[str]:
    """What --redact hides besides the accounts: profiles, also of the environment, roles, and addresses of stores."""
    found = [*profiles, *roles, *(arn.rpartition("/")[2] for arn in roles)]
    found += [name for variable in _PROFILES if (name := os.environ.get(variable)) and name != "default"]
    return [name for name in [*found, *(name for one in stores for name in one.names)] if name]


def _progress(hide: "Hide") -> "Callable[[str, str], None]":
    return lambda scope, text: note(hide(f"{scope}: {text}"))


def _duration(option: str, text: str, most: timedelta) -> timedelta:
    from app.errors import AppError, ErrorCode
    from gpufleet.domain import durations

    try:
        found = durations.parse(text)
    except ValueError as error:
        raise AppError(f"{option}: {error}", ErrorCode.WRONG_USE) from error
    if not timedelta(hours=2) <= found <= most:
        limit = durations.render(most) + (", the --window" if option == "--idle" else "")
        raise AppError(f"{option}: expected at least 2h and at most {limit}; got {text}", ErrorCode.WRONG_USE)
    return found


def _regions_by_cloud(names: "Sequence[str]", clouds: "Sequence[Cloud]") -> "dict[Cloud, list[str]]":
    """The regions of each cloud. Raises AppError for one that no cloud has: there, nothing would seem to be idle."""
    from app.errors import AppError, ErrorCode
    from gpufleet.domain import regions

    found = {cloud: [name for name in names if name in regions.REGIONS[cloud]] for cloud in clouds}
    for name in names:
        if not any(name in known for known in found.values()):
            # AWS's end in a hyphen and a digit
            cloud = Cloud.AWS if name[-2:-1] == "-" and Cloud.AWS in clouds else clouds[-1]
            hint = regions.hint(cloud, name)
            raise AppError(f"--region: {name!r} is not a known region of {cloud}; {hint}", ErrorCode.WRONG_USE)
    return found


def _check_names(
    profiles: "Sequence[str]", arns: "Sequence[str]", projects: "Sequence[str]", regions: "Sequence[str]"
) -> None:
    """Raise AppError for names that cannot exist. `_regions_by_cloud` checks whether a region exists."""
    from app.errors import AppError, ErrorCode
    from app.stated_names import check_project

    for option, names in (("--profile", profiles), ("--region", regions)):
        if not all(names):
            raise AppError(f"{option}: expected a name, got ''", ErrorCode.WRONG_USE)
    for arn in arns:
        if not (arn.startswith("arn:") and ":role/" in arn):
            raise AppError(
                f"--role: expected an ARN as arn:aws:iam::111122223333:role/NAME, got {arn!r}", ErrorCode.WRONG_USE
            )
    for name in projects:
        check_project(name)


def _check_page(path: Path) -> None:
    """Raise AppError before the scan if no file can be written there."""
    from app.errors import AppError, ErrorCode

    if not path.parent.is_dir():
        raise AppError(f"--html: {path}: folder {path.parent} does not exist; create it", ErrorCode.WRONG_USE)
    if path.is_dir():
        raise AppError(f"--html: {path} is a folder; name a file in it", ErrorCode.WRONG_USE)
    # a file is replaced, a device is written
    if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise AppError(f"--html: {path}: no permission to write there; name another file", ErrorCode.WRONG_USE)


def _accounts(
    profiles: "Sequence[str]", roles: "Sequence[str]", projects: "Sequence[str]", regions: "Sequence[str]"
) -> "Sequence[ScanAccount]":
    """The accounts to scan. Raises AppError if nothing names one and there are no default credentials."""
    from app.errors import AppError, ErrorCode

    is_aws, is_google = bool(profiles or roles or not projects), bool(projects or not (profiles or roles))
    own = _regions_by_cloud(regions, [Cloud.AWS] * is_aws + [Cloud.GCP] * is_google)
    found: list[ScanAccount] = []
    missing: list[str] = []
    for cloud, names in own.items():
        if regions and not names:
            continue  # another cloud has them
        accounts = _aws_accounts(profiles, roles, names) if cloud is Cloud.AWS else _google_projects(projects, names)
        found += accounts
        if not accounts:
            where = f"--region {names[0]} is a region of {cloud}: " if names else ""
            missing.append(where + (_no_aws() if cloud is Cloud.AWS else _no_google()))
    # a region that the user names must not seem to be empty
    if missing and (regions or not found):
        raise AppError("; ".join(missing), ErrorCode.WRONG_USE)
    return found


def _no_aws() -> str:
    return "no AWS credentials: log in (`aws sso login`, `aws configure`) or name a --profile"


def _no_google() -> str:
    from gpufleet.clouds.gcp.login import has_login

    if has_login():
        return "the Google Cloud credentials name no project: name one with --project"
    return "no Google Cloud credentials: run `gcloud auth application-default login`, and name a --project"


def _aws_accounts(profiles: "Sequence[str]", roles: "Sequence[str]", regions: "Sequence[str]") -> "list[ScanAccount]":
    """Those that are named, else that of the default credentials."""
    from app.scan_aws import AwsScanAccount
    from gpufleet.clouds.aws.account import AwsAccount, has_default_credentials

    named = [AwsAccount(profile=name) for name in profiles] + [AwsAccount(role=arn) for arn in roles]
    if not named and has_default_credentials():
        named = [AwsAccount()]
    for one in named:
        one.log_in()
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
        shown = re.sub("//[^/]*@", "//", url)  # without a password
        try:
            place = urlsplit(url)
            is_address = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
        except ValueError as error:
            raise AppError(f"--prometheus: {shown!r} is not an address: {error}", ErrorCode.WRONG_USE) from error
        if not is_address:
            raise AppError(
                f"--prometheus: expected an http:// or https:// address, got {shown!r}", ErrorCode.WRONG_USE
            )
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
        _table(summary.HEADINGS, [summary.row(one, found.at, hide) for one in every[:rows]], hide, summary.NARROW)
    _show_slices(found.slices, rows, hide)
    if found.capacity:
        show("\nReservations:")
        cells = [summary.capacity_row(one) for one in found.capacity[:rows]]
        _table(summary.CAPACITY_HEADINGS, cells, hide, summary.NARROW_CAPACITY)
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
        STDOUT.print(hide(line), highlight=False, soft_wrap=True)


def _table(
    headings: "Sequence[str]", rows: "Sequence[Sequence[str]]", hide: "Hide", narrow: "Sequence[str]" = ()
) -> None:
    """`narrow`: columns for a terminal that has no place for all, the most important first."""
    from rich.table import Table

    shown = [[hide(cell) for cell in cells] for cells in rows]
    if narrow and STDOUT.is_terminal and _width(headings, shown) > STDOUT.width:
        while len(narrow) > MIN_COLUMNS and _width(*_only(narrow, headings, shown)) > STDOUT.width:
            narrow = narrow[:-1]
        headings, shown = _only(narrow, headings, shown)
    if not STDOUT.is_terminal:  # a pipe gets complete cells, whatever the width of a terminal is
        widths = [max(map(len, column)) for column in zip(headings, *shown, strict=True)]
        for cells in (headings, *shown):
            line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            STDOUT.print(line.rstrip(), highlight=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(headings):
        table.add_column(name, no_wrap=number == 0, overflow="fold")  # whole names: people copy them
    for cells in shown:
        table.add_row(*cells)
    STDOUT.print(table)


def _only(
    wanted: "Sequence[str]", headings: "Sequence[str]", rows: "Sequence[Sequence[str]]"
) -> "tuple[Sequence[str], list[list[str]]]":
    """The columns with these headings."""
    columns = [headings.index(name) for name in wanted]
    return wanted, [[row[column] for column in columns] for row in rows]


def _width(headings: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> int:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)
