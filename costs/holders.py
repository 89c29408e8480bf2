"""Whose an instance's time is: the model and the owner that its pool was declared to have then. Pure.

Rule: from the first declaration on that the ledger keeps, an instance has at every time what was declared of its pool
then, so a change splits its charges; before that it has what the look that first saw it wrote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from costs.pricing import Era
from ledger.facts import Run


def held(run: Run, eras: Sequence[Era], start: datetime, end: datetime) -> Iterator[tuple[Run, datetime, datetime]]:
    """The run with the model and owner of each part of a span. Neighbours differ."""
    last: tuple[Run, datetime] | None = None
    for era in eras:
        begin = max(era.since, start)
        if begin >= min(era.until, end):
            continue
        own = _in(run, era)
        if last is None:
            last = own, begin
        elif own != last[0]:
            yield *last, begin
            last = own, begin
    yield *(last or (run, start)), end


def held_at(run: Run, eras: Sequence[Era], moment: datetime) -> Run:
    """The run with its model and owner at that moment."""
    return next((_in(run, era) for era in eras if era.since <= moment < era.until), run)


def changes(eras: Sequence[Era], since: datetime, until: datetime) -> list[datetime]:
    """When the model or owner of some pool changed within a span."""
    return [
        after.since
        for before, after in pairwise(eras)
        if since < after.since < until
        and (before.assumed, before.declared.models, before.declared.owners)
        != (after.assumed, after.declared.models, after.declared.owners)
    ]


def _in(run: Run, era: Era) -> Run:
    if era.assumed or run.pool is None:
        return run
    model, owner = era.declared.models.get(run.pool, run.model), era.declared.owners.get(run.pool, run.owner)
    return run if (model, owner) == (run.model, run.owner) else replace(run, model=model, owner=owner)
