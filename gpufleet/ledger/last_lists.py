"""The lists that all pools share, as a pass read them last: a new process may need them when it cannot read them."""

from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine, select

from gpufleet.domain.last_lists import LastLists
from gpufleet.ledger.database import insert_into, writing
from gpufleet.ledger.tables import LAST_LISTS

_LISTS: Final[TypeAdapter[LastLists]] = TypeAdapter(LastLists)


def note_last_lists(engine: Engine, fleet: str, lists: LastLists, at: datetime) -> None:
    """Write them in place of those before, unless a pass that began later (`at`) wrote first."""
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
    """Those that were written last; empty where none were, or another release wrote what this one cannot read."""
    with engine.connect() as connection:
        found = connection.execute(select(LAST_LISTS.c.lists).where(LAST_LISTS.c.fleet == fleet)).scalar()
    if found is None:
        return LastLists()
    try:
        return _LISTS.validate_json(found)
    except ValidationError:
        return LastLists()
