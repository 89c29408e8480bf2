"""`gpufleet prices`: shows and refreshes the price book of a fleet."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from app import prices
from app.fleets import load
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from cli.windows import parse_moment
from gpufleet.costs.document import price_row, text
from gpufleet.costs.render import Row, table
from gpufleet.domain.prices import Price, Rank
from gpufleet.prices.book import is_stale, is_usable_by_watchdogs, stale_after
from gpufleet.settings.document import FleetDocument


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Prices: list those in force with their source and age, and refresh.", no_args_is_help=True
    )
    group.command("list")(list_prices)
    group.command("refresh")(refresh)
    app.add_typer(group, name="prices")


def list_prices(
    fleet: FleetOption = None,
    machine_type: Annotated[
        list[str] | None,
        typer.Option("--machine-type", help="Show prices of this machine type, not of the fleet's; repeatable."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="Show the prices at that day or time (UTC), for example 2026-11-01. Default: now."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List every price that the fleet's pools need, with its source, its age, and the age at which it is stale.

    For each price, sources are in order of precedence: the first one is in force. Exit code 3: a price is missing.
    """
    now = datetime.now(UTC)
    moment = now if at is None else parse_moment("--at", at, "UTC", now)
    rows: list[dict[str, Any]] = []
    for document in load(fleet):
        unreadable: list[str] = []
        found = prices.quotes(document, machine_type or (), moment, unreadable)
        rows += [_row(document, quote, moment) for quote in found]
        for row in unreadable:
            warning = f"! {document.environment}: a price in the ledger cannot be read and is ignored: {row}"
            STDERR.print(warning, soft_wrap=True, markup=False, highlight=False)
    if as_json:
        print_json(rows)
    else:
        _show(rows)
    if any(row["usd_per_hour"] is None for row in rows):
        raise typer.Exit(Exit.FOUND)


def refresh(fleet: FleetOption = None, as_json: JsonOption = False) -> None:
    """Read today's prices of the fleet's machine types from the cloud, and store them in the ledger."""
    done: list[dict[str, Any]] = []
    failed = False
    for document in load(fleet):
        read = prices.refresh(document, datetime.now(UTC))
        for error in read.errors:
            STDERR.print(f"! {document.environment}: {error}", soft_wrap=True, highlight=False)
        failed = failed or bool(read.errors)
        done.append({"environment": document.environment, "prices": read.prices, "errors": read.errors})
        if not as_json:
            line = f"{document.environment}: {read.prices} prices of {read.machine_types} machine types"
            STDERR.print(line, highlight=False)
    if as_json:
        print_json(done)
    if failed:
        raise typer.Exit(Exit.FAILED)


SOURCES: Final = {
    Rank.OVERRIDE: ("settings", "prices in the settings"),
    Rank.LIVE: ("cloud", "prices read from the cloud (`watch cost`, `prices refresh`)"),
    Rank.PACKAGED: ("packaged", "packaged price lists"),
    Rank.OVERRIDE_BEFORE_ITS_DATE: ("settings_before_date", "the first price in the settings, before its date"),
}
"""Code and name of each kind of source, in order of precedence."""


def _row(document: FleetDocument, quote: prices.Quote, moment: datetime) -> dict[str, Any]:
    sku = quote.sku
    head = {"environment": document.environment, "sku": sku.name, "region": sku.region, "zone": sku.zone}
    sources = [_source(price, moment) for price in quote.sources]
    watched = next((price for price in quote.sources if is_usable_by_watchdogs(price, moment)), None)
    more = {
        "watchdogs_usd_per_hour": None if watched is None else text(watched.usd_per_hour),
        "sources": sources,
    }
    if not sources:
        return head | {"usd_per_hour": None, "error": quote.error} | more
    return head | sources[0] | more


def _source(price: Price, moment: datetime) -> dict[str, Any]:
    limit = stale_after(price)
    return {
        key: value for key, value in price_row(price, "").items() if key not in ("id", "sku", "region", "zone")
    } | {
        "source_kind": SOURCES[price.rank][0],
        "age_seconds": int((moment - price.as_of).total_seconds()),
        "stale_after_seconds": None if limit is None else int(limit.total_seconds()),
        "stale": is_stale(price, moment),
    }


def _show(rows: list[dict[str, Any]]) -> None:
    lines: list[Row] = [("sku", "zone", "order", "USD/h", "as of", "age", "stale after", "source", "")]
    for row in rows:
        place = row["zone"] or row["region"]
        if not row["sources"]:
            lines.append((row["sku"], place, "", "?", "", "", "", "no price", "missing"))
            STDERR.print(f"! {row['error']}", soft_wrap=True, highlight=False)
        for number, one in enumerate(row["sources"], 1):
            limit = one["stale_after_seconds"]
            lines.append(
                (
                    row["sku"] if number == 1 else "",
                    place if number == 1 else "",
                    str(number),
                    one["usd_per_hour"],
                    one["as_of"][:16],
                    _length(one["age_seconds"]),
                    "never" if limit is None else _length(limit),
                    one["source"],
                    _state(one, number),
                )
            )
    STDOUT.print(table(lines, left={0, 1, 7, 8}), markup=False, highlight=False, soft_wrap=True)
    names = "; ".join(f"{number} {name}" for number, (_, name) in enumerate(SOURCES.values(), 1))
    STDOUT.print(f"sources in order: {names}", markup=False, highlight=False, soft_wrap=True)


def _state(one: dict[str, Any], number: int) -> str:
    """The remarks about a price."""
    remarks = [flag for flag in ("unverified", "stale") if one[flag]]
    if one["stale"] and one["source_kind"] == SOURCES[Rank.LIVE][0]:
        remarks.append("watchdogs do not use it")
    return ", ".join(remarks) or one["note"] or ("in force" if number == 1 else "")


def _length(seconds: int) -> str:
    """A length of time in hours or days: days from 48 hours."""
    hours = seconds / 3600
    return f"{hours:.1f} h" if abs(hours) < 48 else f"{hours / 24:.0f} d"
