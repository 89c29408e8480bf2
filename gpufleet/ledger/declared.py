"""Cost declarations of a fleet's document over time, so that a report of a past month uses those of that month."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, select

from gpufleet.ledger.facts import merge
from gpufleet.ledger.tables import DECLARED


class Declaration(NamedTuple):
    """A declaration and the time from which it applies, until the next one."""

    at: datetime
    content: str
    """JSON; `gpufleet.costs.declarations` reads and writes it."""


def note_declared(connection: Connection, fleet: str, at: datetime, content: str) -> None:
    """Write the current declaration if it differs from the previous one. Call inside `writing`."""
    statement = (
        select(DECLARED.c.content)
        .where(DECLARED.c.fleet == fleet, DECLARED.c.at <= at)
        .order_by(DECLARED.c.at.desc())
        .limit(1)
    )
    if connection.execute(statement).scalar_one_or_none() != content:
        merge(connection, DECLARED, [{"fleet": fleet, "at": at, "content": content}])


def declarations(connection: Connection, fleet: str) -> list[Declaration]:
    """All declarations of a fleet, oldest first."""
    statement = select(DECLARED.c.at, DECLARED.c.content).where(DECLARED.c.fleet == fleet).order_by(DECLARED.c.at)
    return [Declaration(row.at, row.content) for row in connection.execute(statement)]
