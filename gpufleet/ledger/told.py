"""Hours whose alerts were told, so that a pass that died after its facts and before its messages loses none."""

from datetime import datetime

from sqlalchemy import Connection, func, select

from gpufleet.ledger.facts import merge
from gpufleet.ledger.tables import TOLD


def add_told(connection: Connection, fleet: str, hour: datetime) -> None:
    """The alerts of that hour are in the outbox."""
    merge(connection, TOLD, [{"fleet": fleet, "hour": hour}])


def last_told(connection: Connection, fleet: str) -> datetime | None:
    """The newest hour whose alerts were told; None: there was none."""
    return connection.execute(select(func.max(TOLD.c.hour)).where(TOLD.c.fleet == fleet)).scalar_one_or_none()
