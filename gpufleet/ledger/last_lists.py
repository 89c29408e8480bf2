"""The last lists that passes read for all pools. A new process uses them while it cannot read them itself."""

from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine, select

from gpufleet.domain.last_lists import LastLists
from gpufleet.ledger.database import insert_into, writing
from gpufleet.ledger.tables import LAST_LISTS

_LISTS: Final[TypeAdapter[LastLists]] = TypeAdapter(LastLists)


def note_last_lists(engine: Engine, fleet: str, lists: LastLists, at: datetime) -> None:
    """Replace the previous lists, unless a pass that began later (`at`) has written already."""
    row: dict[str, Any] = {"fleet": fleet, "at": at, "lists": _LISTS.dump_json(lists).decode()}
    with writing(engine) as connection:
        statement = insert_into(connection, LAST_LISTS)
        new = statement.excluded
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["fleet"],
                set_={"at": new["at"], "lists": new["lists"]},
                where=LAST_LISTS.c.at <= new["at"],
            ),
            row,
        )


def last_lists(engine: Engine, fleet: str) -> LastLists:
    """The lists that were written last; empty if there are none, or if this release cannot read them."""
    with engine.connect() as connection:
        found = connection.execute(select(LAST_LISTS.c.lists).where(LAST_LISTS.c.fleet == fleet)).scalar()
    if found is None:
        return LastLists()
    try:
        return _LISTS.validate_json(found)
    except ValidationError:
        return LastLists()
