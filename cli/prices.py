"""`gpufleet prices`: the price book of a fleet, and how it is refreshed."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app import prices
from app.fleets import load
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from cli.windows import parse_moment
from costs.document import price_row
from costs.render import Row, table
from gpufleet.domain.prices import Price
from gpufleet.settings.document import FleetDocument
from prices.book import MissingPriceError, Sku, is_stale


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Prices: what is in force, who says so, and how old that is.", no_args_is_help=True)
    group.command("list")(list_prices)
    group.command("refresh")(refresh)
    app.add_typer(group, name="prices")


def list_prices(
    fleet: FleetOption = None,
    machine_type: Annotated[
        list[str] | None, typer.Option("--machine-type", help="Instead of the fleet's; repeatable.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="The price of that day or time. Default: now.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Every price that the fleet's pools need: in force, with source and age. Exit 3 when one is missing."""
    now = datetime.now(UTC)
    moment = now if at is None else parse_moment("--at", at, "UTC", now)
    rows: list[dict[str, Any]] = []
    for document in load(fleet):
        for sku, price in prices.in_force(document, machine_type or (), moment):
            rows.append(_row(document, sku, price, moment))
    if as_json:
        print_json(rows)
    else:
        _show(rows)
    if any(row["usd_per_hour"] is None for row in rows):
        raise typer.Exit(Exit.FOUND)


def refresh(fleet: FleetOption = None, as_json: JsonOption = False) -> None:
    """Ask the clouds for today's prices of the fleet's machine types and write them into the ledger."""
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


def _row(document: FleetDocument, sku: Sku, price: Price | MissingPriceError, moment: datetime) -> dict[str, Any]:
    head = {"environment": document.environment, "sku": sku.name, "region": sku.region, "zone": sku.zone}
    if isinstance(price, MissingPriceError):
        return head | {"usd_per_hour": None, "error": str(price)}
    known = {key: value for key, value in price_row(price, "").items() if key not in ("id", "zone")}
    return head | known | {"stale": is_stale(price, moment)}


def _show(rows: list[dict[str, Any]]) -> None:
    lines: list[Row] = [("sku", "zone", "USD/h", "as of", "source", "")]
    for row in rows:
        place = row["zone"] or row["region"]
        if row["usd_per_hour"] is None:
            lines.append((row["sku"], place, "?", "", "no price", "missing"))
            STDERR.print(f"! {row['error']}", soft_wrap=True, highlight=False)
            continue
        flags = [flag for flag in ("unverified", "stale") if row[flag]]
        said = ", ".join(flags) or row["note"]
        lines.append((row["sku"], place, row["usd_per_hour"], row["as_of"][:16], row["source"], said))
    STDOUT.print(table(lines, left={0, 1, 4, 5}), markup=False, highlight=False, soft_wrap=True)
