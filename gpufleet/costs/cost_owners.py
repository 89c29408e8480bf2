"""Whose the time of an instance or of paid capacity is: the model and the owner that its pool was declared to have.

Rule: from the first declaration on that the ledger keeps, it has at every time what was declared of its pool then, so
a change splits its charges; before that it has what the look that first saw it wrote. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import TypeVar

from gpufleet.costs.pricing import PricingPeriod
from gpufleet.ledger.facts import Reservation, Run

_Thing = TypeVar("_Thing", Run, Reservation)


def held(
    thing: _Thing, eras: Sequence[PricingPeriod], start: datetime, end: datetime
) -> Iterator[tuple[_Thing, datetime, datetime]]:
    """It with the model and owner of each part of a span. Neighbours differ."""
    last: tuple[_Thing, datetime] | None = None
    for era in eras:
        begin = max(era.since, start)
        if begin >= min(era.until, end):
            continue
        own = _in(thing, era)
        if last is None:
            last = own, begin
        elif own != last[0]:
            yield *last, begin
            last = own, begin
    yield *(last or (thing, start)), end


def held_at(run: Run, eras: Sequence[PricingPeriod], moment: datetime) -> Run:
    """The run with its model and owner at that moment."""
    return next((_in(run, era) for era in eras if era.since <= moment < era.until), run)


def changes(eras: Sequence[PricingPeriod], since: datetime, until: datetime) -> list[datetime]:
    """When the model or owner of some pool changed within a span."""
    return [
        after.since
        for before, after in pairwise(eras)
        if since < after.since < until
        and (before.assumed, before.declared.models, before.declared.owners)
        != (after.assumed, after.declared.models, after.declared.owners)
    ]


def _in(thing: _Thing, era: PricingPeriod) -> _Thing:
    if era.assumed or thing.pool is None:
        return thing
    model, owner = era.declared.models.get(thing.pool, thing.model), era.declared.owners.get(thing.pool, thing.owner)
    return thing if (model, owner) == (thing.model, thing.owner) else replace(thing, model=model, owner=owner)
