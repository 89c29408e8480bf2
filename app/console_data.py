"""Provides the data and the actions of the console's page for real fleets."""

import hashlib
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app import reports
from app.brakes import set_brake
from app.cost_history import cost_history
from app.errors import AppError
from app.feed import FedInventory, fed_limits
from app.fleet_view import Watched
from app.ledgers import ledger_name
from app.quotas import QuotaMeter, limits
from app.windows import up_to
from app.wiring import AllInstances, inventory_of, open_engine
from gpufleet.console import exporter, ledger_data, server
from gpufleet.console.alerts import AlertMessage
from gpufleet.console.history import CostHistory, Period
from gpufleet.console.view import FleetView
from gpufleet.domain.activity import CloudError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.clocks import is_over
from gpufleet.domain.decisions import LedgerEntry
from gpufleet.ledger import history, operations, outbox
from gpufleet.ledger.database import writing
from gpufleet.logs import Log, log_change
from gpufleet.settings.document import FleetDocument

KEPT_FOR: Final = timedelta(hours=4)
LOOK_EVERY: Final = timedelta(seconds=5)
DOCUMENTS_EVERY: Final = timedelta(minutes=1)
"""`pulumi up` changes the fleet document, so it is read again at this interval."""
HISTORY_EVERY: Final = timedelta(minutes=1)
"""A history is computed at most this often: it reads the charges of up to 30 days."""
MEASURE_EVERY: Final = timedelta(seconds=30)
"""Metrics of the ledger are computed at most this often, however often they are scraped."""


@dataclass(slots=True)
class LiveConsoleData:
    """The console's data source for real fleets. All requests share the same fleet views."""

    load: Callable[[], Sequence[FleetDocument]]
    """Raises AppError."""
    log: Log
    feed: Path | None = None
    """Folder of a feed, if the console has no cloud credentials."""
    _documents: Sequence[FleetDocument] = ()
    _read: datetime | None = None
    _problem: str = ""
    """Why the documents could not be read again."""
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _watched: Sequence[Watched] = ()
    _quotas: Sequence[QuotaMeter] = ()
    _views: Sequence[FleetView] = ()
    _looked: datetime | None = None
    _measured: tuple[datetime, str] | None = None
    _histories: dict[tuple[str, Period], tuple[datetime, CostHistory]] = field(
        default_factory=dict[tuple[str, Period], tuple[datetime, CostHistory]]
    )
    _history_lock: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _measuring: threading.Lock = field(default_factory=threading.Lock)

    def documents(self, now: datetime) -> Sequence[FleetDocument]:
        """The fleet documents, read again at an interval. If reading fails, the last good ones are used. Raises
        AppError.
        """
        with self._reading:
            if self._documents and not is_over(self._read, DOCUMENTS_EVERY, now):
                return self._documents
            try:
                found = self.load()
            except AppError as error:
                if not self._documents:
                    raise
                found, problem = self._documents, str(error)
            else:
                problem = ""
            log_change(self.log, "fleet document", self._problem, problem)
            self._problem = problem
            self._read = now
            if found != self._documents:
                self._documents = found
                self._watched = [Watched(document, fed=self._fed()) for document in found]
                self._quotas = [
                    QuotaMeter(
                        document=document,
                        instances=self._inventory(document).instances,
                        log=self.log,
                        limits=limits if self.feed is None else fed_limits(self.feed),
                    )
                    for document in found
                ]
            return self._documents

    def views(self) -> Sequence[FleetView]:
        with self._lock:
            now = datetime.now(UTC)
            if is_over(self._looked, LOOK_EVERY, now):
                with _as_data_errors():
                    self.documents(now)
                    self._views = [watched.look() for watched in self._watched]
                self._looked = datetime.now(UTC)
            return self._views

    def about(self, view: FleetView, instance: str) -> Sequence[LedgerEntry]:
        document = view.read.document
        with _as_data_errors():
            return ledger_data.about(open_engine(document, reading=True), ledger_name(document), instance)

    def costs(self, view: FleetView) -> str:
        with _as_data_errors():
            return reports.html(view.read.document, up_to(datetime.now(UTC), timedelta(hours=24)), True, back="/")

    def history(self, view: FleetView, period: Period) -> CostHistory:
        key, now = (view.name, period), datetime.now(UTC)
        with self._history_lock, _as_data_errors():
            made = self._histories.get(key)
            if made is None or is_over(made[0], HISTORY_EVERY, now):
                made = now, cost_history(view.read.document, period, now)
                self._histories[key] = made
        return made[1]

    def keep(self, view: FleetView, instance: str, user: str) -> str:
        """Does what `gpufleet keep` does: sets a brake in the ledger, then the instance's tag if this process may
        write it.

        The brake alone stops every watchdog of the fleet.
        """
        document = view.read.document
        inventory = self._inventory(document)
        now = datetime.now(UTC)
        until = now + KEPT_FOR
        try:
            found = inventory.instance(instance)
            if found is None or found.environment != document.environment or not found.alive:
                raise server.ActionError(f"{instance} is no longer a running instance of {view.name}.")
            brake = Brake(
                kind=BrakeKind.KEEP, scope=instance, owner=f"console ({user})",
                reason="kept on the console's page", since=now, until=until,
            )  # fmt: skip
            operations.set_brake(open_engine(document), ledger_name(document), brake)
            written = found.keep_tags(until) if self.feed is None else {}
            failed = inventory.tag([instance] if written else [], written)
        except (OSError, AppError) as error:
            raise server.ActionError(str(error)) from error
        for error in failed.values():
            raise server.ActionError(f"The brake is set in the ledger, but the tag could not be written: {error}")
        self._looked = None
        return f"{instance} is kept until {until:%Y-%m-%d %H:%M} UTC."

    def pause(self, view: FleetView, pool: str, user: str) -> str:
        """Does what `gpufleet pause POOL --for 4h` does. It pauses no whole fleet, and nothing without an end."""
        document = view.read.document
        if pool not in {one.name for one in document.pools}:
            raise server.ActionError(f"{pool} is not a pool of {view.name}.")
        now = datetime.now(UTC)
        until = now + KEPT_FOR
        brake = Brake(
            kind=BrakeKind.PAUSE, scope=pool, owner=f"console ({user})",
            reason="paused on the console's page", since=now, until=until,
        )  # fmt: skip
        try:
            set_brake(document, brake)
        except (OSError, AppError, SQLAlchemyError) as error:
            raise server.ActionError(str(error)) from error
        self._looked = None
        return (
            f"The watchdogs of pool {pool} are paused until {until:%Y-%m-%d %H:%M} UTC."
            f" To end it earlier: gpufleet resume {pool}"
        )

    def _fed(self) -> AllInstances | None:
        return None if self.feed is None else FedInventory(self.feed)

    def _inventory(self, document: FleetDocument) -> AllInstances:
        return self._fed() or inventory_of(document)

    def metrics(self) -> str:
        with self._measuring:
            now = datetime.now(UTC)
            if self._measured is None or is_over(self._measured[0], MEASURE_EVERY, now):
                with _as_data_errors():
                    facts = [
                        replace(_measure(document, now), quotas=quotas.read(now))
                        for document, quotas in zip(self.documents(now), self._quotas, strict=True)
                    ]
                self._measured = (now, exporter.render(facts))
            return self._measured[1]

    def notify(self, notice: AlertMessage) -> None:
        with _as_data_errors():
            documents = self.documents(datetime.now(UTC))
        for document in documents:
            if document.notify is None:
                continue
            name = hashlib.sha256(ledger_name(document).encode()).hexdigest()[:8]
            message = outbox.Message(
                key=f"{notice.key}/{name}", channel=document.notify.slack_channel, text=notice.text
            )
            with _as_data_errors(), writing(open_engine(document)) as connection:
                outbox.enqueue(connection, message, datetime.now(UTC))


@contextmanager
def _as_data_errors() -> Generator[None]:
    """Converts errors of a ledger or a cloud to ConsoleDataError, which the page shows."""
    try:
        yield
    except (AppError, CloudError, SQLAlchemyError) as error:
        raise server.ConsoleDataError(str(error)) from error


def _measure(document: FleetDocument, now: datetime) -> exporter.FleetMetrics:
    engine, fleet = open_engine(document, reading=True), ledger_name(document)
    with engine.connect() as connection:
        begun, last = history.first_pass_at(connection, fleet), history.last_pass(connection, fleet)
    taken = ledger_data.preemptions(engine, fleet)
    spans = {"1h": timedelta(hours=1), "24h": timedelta(hours=24)}
    made = reports.costs(document, [up_to(now, span) for span in spans.values()], True)
    spends = [exporter.spend(report, name, begun) for name, report in zip(spans, made, strict=True)]
    return exporter.FleetMetrics(
        environment=document.environment,
        targets=ledger_data.targets(engine, fleet),
        known_until=None if last is None else last.at,
        budget_usd_per_month=None if document.budget is None else document.budget.usd_per_month,
        spends=spends,
        preemptions={pool.name: taken.get(pool.name, 0) for pool in document.pools},
        brakes=len(operations.brakes(engine, fleet, now)),
        messages={state.value: count for state, count in outbox.counts(engine).items()},
    )
