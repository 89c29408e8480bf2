"""`gpufleet prices`: the price book of a fleet, and how it is refreshed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app import ledgers
from app.cost_sources import market_of
from app.declared import book_of
from app.errors import AppError, Code
from app.fleets import load
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, Exit, print_json
from cli.windows import parse_moment
from costs.document import price_row
from costs.render import Row, table
from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import CapacityType
from gpufleet.domain.prices import Price
from gpufleet.settings.document import FleetDocument
from ledger import facts
from ledger.database import writing
from prices.book import MissingPriceError, PriceBook, Sku, is_stale, machine_sku

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]


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
        book = book_of(document)
        for sku in _wanted(document, machine_type):
            rows.append(_row(document, book, sku, moment))
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
        now = datetime.now(UTC)
        types = sorted({sku.name.split(":")[2] for sku in _wanted(document, None)})
        told, errors = market_of(document).refresh(types, now)
        engine = ledgers.open_ledger_of(document)
        with ledgers.ledger_errors(document), writing(engine) as connection:
            facts.add_prices(connection, told)
        for error in errors:
            STDERR.print(f"! {document.environment}: {error}", soft_wrap=True, highlight=False)
        failed = failed or bool(errors)
        done.append({"environment": document.environment, "prices": len(told), "errors": errors})
        if not as_json:
            STDERR.print(f"{document.environment}: {len(told)} prices of {len(types)} machine types", highlight=False)
    if as_json:
        print_json(done)
    if failed:
        raise typer.Exit(Exit.FAILED)


def _wanted(document: FleetDocument, machine_types: list[str] | None) -> Iterator[Sku]:
    """The skus that the pools' groups may be billed by, each zone's spot apart."""
    wanted: dict[Sku, None] = {}
    for name in machine_types or ():
        try:
            machine(document.cloud, name)
        except UnknownMachineError as error:
            raise AppError(str(error), Code.WRONG_USE) from error
    groups = [group for pool in document.pools for group in pool.groups]
    every = sorted({name for group in groups for name in group.machine_types})
    zones = sorted({group.zone for group in groups if group.zone and group.type is CapacityType.SPOT})
    for name in machine_types or every:
        on_demand = machine_sku(document.cloud, name, CapacityType.ON_DEMAND)
        wanted[Sku(name=on_demand, region=document.region)] = None
        for zone in zones:
            spot = machine_sku(document.cloud, name, CapacityType.SPOT)
            wanted[Sku(name=spot, region=document.region, zone=zone)] = None
    for group in groups:
        for name in group.machine_types if group.type is CapacityType.FLEX_START else ():
            wanted[Sku(name=machine_sku(document.cloud, name, group.type), region=document.region)] = None
    return iter(wanted)


def _row(document: FleetDocument, book: PriceBook, sku: Sku, moment: datetime) -> dict[str, Any]:
    head = {"environment": document.environment, "sku": sku.name, "region": sku.region, "zone": sku.zone}
    try:
        price = book.at(sku, moment)
    except MissingPriceError as error:
        return head | {"usd_per_hour": None, "error": str(error)}
    return (
        head
        | {key: value for key, value in price_row(price, "").items() if key not in ("id", "zone")}
        | _age(price, moment)
    )


def _age(price: Price, moment: datetime) -> dict[str, Any]:
    return {"stale": is_stale(price, moment)}


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
