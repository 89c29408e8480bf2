"""Notifies people of instances that are kept for more than a day because their use cannot be observed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import Engine

from app.ledgers import ledger_errors, ledger_name
from app.reports import query_of
from gpufleet.costs.waste import UNOBSERVED_LEAST
from gpufleet.domain import money
from gpufleet.domain.decisions import KeptUnobserved
from gpufleet.ledger import decisions, history
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import Run
from gpufleet.ledger.outbox import Message, enqueue
from gpufleet.notify.messages import section
from gpufleet.prices.book import PriceBook
from gpufleet.settings.document import FleetDocument

ALIVE: Final = timedelta(hours=1)
"""An instance that was not seen for this long is treated as terminated."""
MAX_NAMED: Final = 10
"""Maximum number of instances that one message names."""


def enqueue_all(document: FleetDocument, engine: Engine, now: datetime) -> int:
    """Add one message about each pool with such instances to the outbox. Returns the number of new messages.

    One failing store hides a whole pool, so one message names all of its instances. A pool gets at most one message a
    day, when the first instance of that day has been kept for a day. The cost report lists all of them.
    """
    if document.notify is None:
        return 0
    fleet = ledger_name(document)
    with ledger_errors(document), engine.connect() as connection:
        kept = [
            one
            for one in decisions.kept_unobserved(connection, fleet, now)
            if one.until is None and now - one.since > UNOBSERVED_LEAST
        ]
        if not kept:
            return 0
        found = history.runs(connection, fleet, now - ALIVE, now)
    runs = {run.instance_id: run for run in found if run.ended_at is None}
    book = query_of(document, engine).book
    by_pool: dict[str, list[KeptUnobserved]] = {}
    for one in kept:
        if one.instance_id in runs:
            by_pool.setdefault(one.pool or "", []).append(one)
    texts = {
        f"{fleet}/unobserved/{pool}/{max(one.since for one in own) + UNOBSERVED_LEAST:%Y%m%d}": _text(
            document, pool, [(one, runs[one.instance_id]) for one in own], book, now
        )
        for pool, own in by_pool.items()
    }
    with ledger_errors(document), writing(engine) as connection:
        return sum(
            enqueue(
                connection,
                Message(
                    key=key,
                    channel=document.notify.slack_channel,
                    text=text,
                    detail={"blocks": [section(text)]},
                ),
                now,
            )
            for key, text in texts.items()
        )


def _text(
    document: FleetDocument, pool: str, kept: Sequence[tuple[KeptUnobserved, Run]], book: PriceBook, now: datetime
) -> str:
    shown = [_line(one, run, book, now) for one, run in sorted(kept, key=lambda pair: pair[0].since)[:MAX_NAMED]]
    if len(kept) > MAX_NAMED:
        shown.append(f"and {len(kept) - MAX_NAMED} others")
    return (
        f"{document.environment}: {len(kept)} instances of pool {pool} are kept because it is unknown whether they"
        f" are in use: {'; '.join(shown)}. Check whether Prometheus reaches their engines and GPU exporters"
        f" (`gpufleet watch why {kept[0][0].instance_id}`), or drain them by hand."
    )


def _line(kept: KeptUnobserved, run: Run, book: PriceBook, now: datetime) -> str:
    usd = _usd_per_hour(run, book, now)
    cost = "at an unknown price"
    if usd is not None:
        so_far = money.usd(money.dollar_seconds(usd, now - max(kept.since, run.started_at)), money.CENT)
        cost = f"at {usd.normalize():f} USD/h, {so_far} USD so far"
    return (
        f"{kept.instance_id} ({run.machine_type}, {run.capacity_type}) since {kept.since:%Y-%m-%d %H:%M} UTC,"
        f" {kept.reason.sentence}, {cost}"
    )


def _usd_per_hour(run: Run, book: PriceBook, now: datetime) -> Decimal | None:
    return book.usd_per_hour(run.cloud, run.machine_type, run.capacity_type, region=run.region, zone=run.zone, at=now)
