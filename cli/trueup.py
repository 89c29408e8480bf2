"""`gpufleet report trueup`: compares the cloud's bill with the ledger."""

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from app.fleets import load_only
from app.trueup import Reconciled, decimal_of, reconcile
from app.windows import Window
from cli.options import FleetOption, JsonOption
from cli.output import Exit, print_json, write
from cli.windows import parse_moment
from gpufleet.costs.bills import Bill, BillError, read_bill
from gpufleet.costs.document import instant
from gpufleet.costs.render import show, table
from gpufleet.costs.trueup import TrueUp, span_of
from gpufleet.domain import money as exact
from gpufleet.settings.document import FleetDocument

_MAX_ROWS = 50


def trueup(
    bill: Annotated[
        Path,
        typer.Option(
            "--bill",
            help="The bill: an AWS CUR, FOCUS or Google detailed billing export; a file, or a folder with its parts.",
        ),
    ],
    fleet: FleetOption = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Start of the comparison. Default: the time of the bill's first line."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="End of the comparison, exclusive. Default: the time of the bill's last line."),
    ] = None,
    tz: Annotated[
        str, typer.Option("--tz", help="Time zone of dates in options, for example Europe/Berlin.")
    ] = "UTC",
    as_json: JsonOption = False,
) -> None:
    """Compare a bill with the ledger, and close the span: later reports about it do not change any more.

    Exit code 3: the bill and the ledger differ.
    """
    document = load_only(fleet, "a bill is compared with one fleet: give one --fleet")
    now = datetime.now(UTC)
    try:
        found = read_bill(bill)
        first, last = span_of(found)
        begin = first if since is None else parse_moment("--since", since, tz, now)
        end = last if until is None else parse_moment("--until", until, tz, now)
        if begin >= end:
            raise AppError(f"--since ({instant(begin)}) is not before --until ({instant(end)})", ErrorCode.WRONG_USE)
        done = reconcile(document, found, Window(since=begin, until=end, now=now, timezone=tz))
    except BillError as error:
        raise AppError(str(error)) from error
    if as_json:
        print_json(_as_json(document, found, done))
    else:
        write(_as_text(document, found, done.compared))
        write("".join(f"! {line}\n" for line in _of_closed(done)))
    if done.is_refused:
        raise typer.Exit(Exit.FAILED)
    if done.compared.differences:
        raise typer.Exit(Exit.FOUND)


def _not_compared(bill: Bill, found: TrueUp) -> Decimal:
    return bill.others + decimal_of(found.not_compared) if found.not_compared else bill.others


def _cents(value: Fraction) -> str:
    return show(decimal_of(value).quantize(exact.CENT))


def _as_text(document: FleetDocument, bill: Bill, found: TrueUp) -> str:
    lines = [
        f"{document.environment}: {bill.form}, {instant(found.since)} to {instant(found.until)}",
        f"billed {_cents(found.billed)} USD, computed {'at least ' if found.unpriced else ''}"
        f"{_cents(found.computed)} USD,"
        f" difference {_cents(found.billed - found.computed)} USD; {found.same} resources agree",
        *(f"  {cause}: {_cents(usd)} USD" for cause, usd in found.by_cause.items() if usd),
    ]
    lines += [f"  no price for {name}" for name in found.unpriced]
    if left := _not_compared(bill, found):
        lines.append(
            f"not compared: {show(left.quantize(exact.CENT))} USD for traffic and for resources outside the fleet"
        )
    rows = [
        (
            one.resource,
            _cents(one.billed),
            _cents(one.computed),
            _cents(one.usd),
            ", ".join(c for c, u in one.parts.items() if u),
        )
        for one in found.differences[:_MAX_ROWS]
    ]
    if rows:
        lines += ["", table([("resource", "billed", "computed", "difference", "cause"), *rows], frozenset({0, 4}))]
    if len(found.differences) > _MAX_ROWS:
        lines.append(f"{len(found.differences) - _MAX_ROWS} more; --json prints all")
    return "\n".join(lines) + "\n"


def _of_closed(done: Reconciled) -> list[str]:
    """Messages for people if the span was already closed."""
    before = done.closed_by
    if before is None:
        return []
    cents = (before.billed_usd.quantize(exact.CENT), before.computed_usd.quantize(exact.CENT))
    by = "another" if done.is_refused else "this"
    closed = (
        f"closed on {instant(before.at)} by {by} bill ({before.form}, sha256 {before.digest[:12]}; billed"
        f" {show(cents[0])} USD, computed {show(cents[1])} USD): the ledger is not changed"
    )
    return [closed, *done.would_change]


def _as_json(document: FleetDocument, bill: Bill, done: Reconciled) -> dict[str, Any]:
    found, before = done.compared, done.closed_by

    def text(value: Fraction) -> str:
        return format(decimal_of(value), "f")

    return {
        "version": 1,
        "kind": "gpu-fleet true-up",
        "environment": document.environment,
        "bill": {
            "form": bill.form.value,
            "sha256": bill.digest,
            "not_compared_usd": format(_not_compared(bill, found), "f"),
        },
        "since": instant(found.since),
        "until": instant(found.until),
        "billed_usd": text(found.billed),
        "computed_usd": text(found.computed),
        "computed_at_least": bool(found.unpriced),
        "unpriced": list(found.unpriced),
        "resources_that_agree": found.same,
        "agreeing_usd": text(found.agreeing),
        "by_cause": {cause.value: text(usd) for cause, usd in found.by_cause.items()},
        "differences": [
            {
                "resource": one.resource,
                "billed_usd": text(one.billed),
                "computed_usd": text(one.computed),
                "parts": {cause.value: text(usd) for cause, usd in one.parts.items()},
            }
            for one in found.differences
        ],
        "refused": done.is_refused,
        "closed_by": None
        if before is None
        else {
            "sha256": before.digest,
            "form": before.form,
            "at": instant(before.at),
            "since": instant(before.since),
            "until": instant(before.until),
            "billed_usd": format(before.billed_usd, "f"),
            "computed_usd": format(before.computed_usd, "f"),
        },
        "would_change": list(done.would_change),
    }
