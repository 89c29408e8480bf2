"""The prices that a fleet needs: reads those in force, and stores current ones of the clouds in the ledger."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from app import ledgers
from app.cost_sources import market_of
from app.errors import AppError, ErrorCode
from app.price_inputs import book_of
from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import CapacityType
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts, operations
from gpufleet.ledger.database import writing
from gpufleet.prices.book import MissingPriceError, Sku, machine_sku
from gpufleet.settings.document import FleetDocument

REFRESH_EVERY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """Prices that were written to the ledger."""

    prices: int
    machine_types: int
    errors: Sequence[str]
    """Errors for prices that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The known data about a price that a fleet needs."""

    sku: Sku
    sources: Sequence[Price]
    """The price of each source, in order of precedence: the first one is in force. Empty: the price is missing."""
    error: str | None = None
    """Names the missing price and the remedy."""


def quotes(
    document: FleetDocument, machine_types: Sequence[str], moment: datetime, unreadable: list[str] | None = None
) -> Iterator[Quote]:
    """Every price that the pools need, or the prices of the given machine types instead. Raises AppError.

    Each row of the ledger without a valid price is appended to `unreadable`.
    """
    book = book_of(document, unreadable)
    for sku in _wanted(document, machine_types):
        known = book.sources(sku, moment)
        missing = None if known else str(MissingPriceError(sku.name, sku.region, sku.zone, moment))
        yield Quote(sku=sku, sources=known, error=missing)


def refresh(document: FleetDocument, now: datetime) -> Refreshed:
    """Read today's prices of the fleet's machine types from the cloud and store them. Raises AppError."""
    return _refresh(document, ledgers.open_ledger_of(document), now)


def refresh_daily(document: FleetDocument, engine: Engine, now: datetime) -> Refreshed | None:
    """Refresh the prices at most once a day. None: a process did that today already, even if it failed. Raises
    AppError.

    List prices change rarely, so a failure can wait until tomorrow: a known price stays fresh for weeks.
    """
    with ledgers.ledger_errors(document):
        turn = f"{ledgers.ledger_name(document)}/prices"
        # a new holder for each attempt, so that no process can renew the lease of the day
        taken = operations.acquire_lease(engine, turn, f"refresh of {now.isoformat()}", (now, REFRESH_EVERY))
    return _refresh(document, engine, now) if taken is None else None


def _refresh(document: FleetDocument, engine: Engine, now: datetime) -> Refreshed:
    types = sorted({sku.name.split(":")[2] for sku in _wanted(document, ())})
    prices, errors = market_of(document).refresh(types, now)
    with ledgers.ledger_errors(document), writing(engine) as connection:
        facts.add_prices(connection, prices)
    return Refreshed(prices=len(prices), machine_types=len(types), errors=errors)


def _wanted(document: FleetDocument, machine_types: Sequence[str]) -> Iterable[Sku]:
    """The SKUs by which the pools' groups may be billed, with a separate spot SKU per zone."""
    cloud, region = document.cloud, document.region
    try:
        for name in machine_types:
            machine(cloud, name)
    except UnknownMachineError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error

    def sku(name: str, kind: CapacityType, zone: str | None = None) -> Sku:
        return Sku(name=machine_sku(cloud, name, kind), region=region, zone=zone)

    groups = [group for pool in document.pools for group in pool.groups]
    zones = sorted({group.zone for group in groups if group.zone and group.type is CapacityType.SPOT})
    wanted: list[Sku] = []
    for name in machine_types or sorted({name for group in groups for name in group.machine_types}):
        wanted += [sku(name, CapacityType.ON_DEMAND), *(sku(name, CapacityType.SPOT, zone) for zone in zones)]
    flex = [group for group in groups if group.type is CapacityType.FLEX_START]
    return dict.fromkeys([*wanted, *(sku(name, group.type) for group in flex for name in group.machine_types)])
