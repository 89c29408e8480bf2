"""Hours whose alerts were queued, so that no alert is lost if a pass dies between facts and messages."""

from datetime import datetime

from sqlalchemy import Connection, func, select

from gpufleet.ledger.facts import merge
from gpufleet.ledger.tables import NOTIFIED_HOURS


def add_notified_hour(connection: Connection, fleet: str, hour: datetime) -> None:
    """Record that the alerts of an hour are in the outbox."""
    merge(connection, NOTIFIED_HOURS, [{"fleet": fleet, "hour": hour}])


def last_notified_hour(connection: Connection, fleet: str) -> datetime | None:
    """The newest hour whose alerts were queued; None: there was none."""
    return connection.execute(
        select(func.max(NOTIFIED_HOURS.c.hour)).where(NOTIFIED_HOURS.c.fleet == fleet)
    ).scalar_one_or_none()
