"""Assembles the components that the watchdogs of one fleet need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import Engine

from app import api_calls
from app.adapters import (
    FleetAgents,
    FleetMessages,
    FleetPrices,
    FleetUtilization,
    is_dead_holder,
    lease_holder_name,
)
from app.ledgers import ledger_errors, ledger_name, open_ledger_of, read_ledger_of
from app.price_inputs import overrides_of
from gpufleet.clouds.agents import NodeAgents, Signer
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.cloudwatch import CloudWatch
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.clocks import WallClock
from gpufleet.domain.model import Cloud, Instance
from gpufleet.ledger import history, operations
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.logs import SILENT, Log
from gpufleet.prices.book import PriceBook, fresh_since
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.settings.document import FleetDocument
from watchdogs.ports import Account, Groups, Inventory, Ports


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    """One fleet's ports, and the objects that the command itself needs."""

    document: FleetDocument
    ports: Ports
    ledger: FleetLedger
    engine: Engine
    calls: api_calls.Calls
    prometheus: Prometheus

    def api_calls(self) -> dict[str, int]:
        """Calls by operation, for `--json` and the benchmark."""
        return api_calls.by_operation(self.calls, self.prometheus)


class AllInstances(Inventory, Account, Protocol):
    """A fleet's instances, and those of the whole account."""

    def instances(self) -> Sequence[Instance]:
        """The fleet's instances. Raises CloudError when one of them cannot be read."""
        ...


def open_engine(document: FleetDocument, *, reading: bool = False) -> Engine:
    """The ledger of a fleet, with every pool's target in it. `reading`: do not create one (see `read_ledger_of`).

    Raises AppError.
    """
    engine = read_ledger_of(document) if reading else open_ledger_of(document)
    with ledger_errors(document):
        now, fleet = WallClock().now(), ledger_name(document)
        known = {row.pool for row in operations.targets(engine, fleet)}
        for pool in document.pools:
            if pool.name not in known:
                operations.seed_target(engine, fleet, pool.name, pool.target, now)
    return engine


def wire(
    document: FleetDocument, lease: str, holder: str | None = None, *, reading: bool = False, log: Log = SILENT
) -> Wired:
    """Create everything that a watchdog of this fleet needs. Makes no call to a cloud yet.

    Without `holder`, this process holds the lease.
    """
    engine = open_engine(document, reading=reading)
    clock = WallClock()
    calls, inventory, groups = _cloud(document)
    ledger = FleetLedger(engine, ledger_name(document), lease, holder or lease_holder_name(), is_dead_holder)
    prometheus = Prometheus(document.prometheus_url)
    ports = Ports(
        inventory=inventory,
        groups=groups,
        metrics=prometheus,
        agents=FleetAgents(agents_of(document, lambda text: log.warning("clock", error=text))),
        prices=prices_of(engine, document, clock.now()),
        messages=FleetMessages(engine, document, clock),
        ledger=ledger,
        clock=clock,
        account=inventory,
        utilization=FleetUtilization(CloudWatch(calls)) if isinstance(calls, AwsCalls) else None,
        log=log,
    )
    return Wired(document=document, ports=ports, ledger=ledger, engine=engine, calls=calls, prometheus=prometheus)


def inventory_of(document: FleetDocument) -> AllInstances:
    """The instances of a fleet. Makes no call yet."""
    return _cloud(document)[1]


def agents_of(document: FleetDocument, warn: Callable[[str], None] = lambda _: None) -> NodeAgents:
    """The node agents of a fleet. `warn` receives a message for each wrong clock. Reads no key yet."""

    def key() -> Signer:
        # imports a library that only a process which gives orders needs
        from gpufleet.clouds import order_key

        place = None if document.orders is None else document.orders.private_key
        return order_key.reader(place, document.region)()

    return NodeAgents(key, warn=warn)


def _cloud(document: FleetDocument) -> tuple[api_calls.Calls, AllInstances, Groups]:
    """The clients of a fleet's cloud. Google's libraries are large, so they are imported only for a fleet on Google
    Cloud.
    """
    match document.cloud:
        case Cloud.AWS:
            calls = AwsCalls(document.region)
            aws = AwsInventory(calls, document.region, document.environment, document.owned_groups())
            return calls, aws, AwsGroups(calls)
        case Cloud.GCP:
            from gpufleet.clouds.gcp.calls import GoogleCalls
            from gpufleet.clouds.gcp.groups import GoogleGroups
            from gpufleet.clouds.gcp.inventory import GoogleInventory

            google = GoogleCalls(document.account)
            inventory = GoogleInventory(google, document.region, document.environment, document.owned_groups())
            return google, inventory, GoogleGroups(google, document)


def prices_of(engine: Engine, document: FleetDocument, now: datetime) -> FleetPrices:
    """Current prices of a fleet's instances, without stale observed prices.

    A long-running process must call this again, because spot prices change. Raises AppError.
    """
    with engine.connect() as connection:
        observed = history.prices(connection, document.region, fresh_since(document.cloud, now))
    book = PriceBook(
        region=document.region, overrides=overrides_of(document), observed=observed, packaged=PackagedPrices()
    )
    return FleetPrices(book, document.cloud, document.region, now)
