"""Notifies people of instances that are kept for more than a day because nobody can say whether they work."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import Engine

from app.ledgers import ledger_errors, ledger_name
from app.reports import query_of
from costs.waste import UNSEEN_LEAST
from gpufleet.domain import money
from gpufleet.domain.decisions import KeptUnseen
from gpufleet.settings.document import FleetDocument
from ledger import decisions, history
from ledger.database import writing
from ledger.facts import Run
from ledger.outbox import Message, enqueue
from notify.messages import section
from prices.book import MissingPriceError, PriceBook

ALIVE: Final = timedelta(hours=1)
"""Who was not seen for so long is not there any more."""


def enqueue_all(document: FleetDocument, engine: Engine, now: datetime) -> int:
    """Put one message about each such instance into the outbox, once in its life. Gives how many were new."""
    if document.notify is None:
        return 0
    fleet = ledger_name(document)
    with ledger_errors(document), engine.connect() as connection:
        kept = [
            one
            for one in decisions.kept_unseen(connection, fleet, now)
            if one.until is None and now - one.since > UNSEEN_LEAST
        ]
        if not kept:
            return 0
        found = history.runs(connection, fleet, now - ALIVE, now)
    runs = {run.instance_id: run for run in found if run.ended_at is None}
    book = query_of(document, engine).book
    texts = {
        one.instance_id: _text(document, one, runs[one.instance_id], book, now)
        for one in kept
        if one.instance_id in runs
    }
    with ledger_errors(document), writing(engine) as connection:
        return sum(
            enqueue(
                connection,
                Message(
                    key=f"{fleet}/unseen/{instance_id}",
                    channel=document.notify.slack_channel,
                    text=text,
                    detail={"blocks": [section(text)]},
                ),
                now,
            )
            for instance_id, text in texts.items()
        )


def _text(document: FleetDocument, kept: KeptUnseen, run: Run, book: PriceBook, now: datetime) -> str:
    usd = _usd_per_hour(run, book, now)
    cost = "at an unknown price"
    if usd is not None:
        so_far = money.usd(money.dollar_seconds(usd, now - max(kept.since, run.started_at)), money.CENT)
        cost = f"at {usd.normalize():f} USD/h, {so_far} USD so far"
    return (
        f"{document.environment}: {kept.instance_id} of pool {kept.pool} ({run.machine_type}, {run.capacity_type})"
        f" is kept since {kept.since:%Y-%m-%d %H:%M} UTC because nobody can say whether it works:"
        f" {kept.reason.sentence}; {cost}. Look whether Prometheus reaches its engine and its GPU exporter"
        f" (`gpufleet watch why {kept.instance_id}`), or drain it by hand."
    )


def _usd_per_hour(run: Run, book: PriceBook, now: datetime) -> Decimal | None:
    sku = book.machine(run.cloud, run.machine_type, run.capacity_type, region=run.region, zone=run.zone)
    try:
        return book.at(sku, now).usd_per_hour
    except MissingPriceError:
        return None
