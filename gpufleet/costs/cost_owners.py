"""The model and the owner of an instance or of paid capacity at each time, as declared for its pool. Pure.

Rule: since the first declaration in the ledger, the declaration of each time applies, so a change splits the charges.
Before that, the model and owner apply that the first pass wrote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import TypeVar

from gpufleet.costs.pricing import PricingPeriod
from gpufleet.ledger.facts import Reservation, Run

_Owned = TypeVar("_Owned", Run, Reservation)


def parts_by_owner(
    owned: _Owned, periods: Sequence[PricingPeriod], start: datetime, end: datetime
) -> Iterator[tuple[_Owned, datetime, datetime]]:
    """Yield the parts of a span, each with the model and owner of that part. Adjacent parts differ."""
    last: tuple[_Owned, datetime] | None = None
    for period in periods:
        begin = max(period.since, start)
        if begin >= min(period.until, end):
            continue
        own = _in(owned, period)
        if last is None:
            last = own, begin
        elif own != last[0]:
            yield *last, begin
            last = own, begin
    yield *(last or (owned, start)), end


def with_owner_at(run: Run, periods: Sequence[PricingPeriod], moment: datetime) -> Run:
    """The run with its model and owner at that moment."""
    return next((_in(run, period) for period in periods if period.since <= moment < period.until), run)


def changes(periods: Sequence[PricingPeriod], since: datetime, until: datetime) -> list[datetime]:
    """When the model, engine or owner of some pool changed within a span."""
    return [
        after.since
        for before, after in pairwise(periods)
        if since < after.since < until
        and (before.assumed, before.declared.models, before.declared.engines, before.declared.owners)
        != (after.assumed, after.declared.models, after.declared.engines, after.declared.owners)
    ]


def _in(owned: _Owned, period: PricingPeriod) -> _Owned:
    if period.assumed or owned.pool is None:
        return owned
    model, owner = (
        period.declared.models.get(owned.pool, owned.model),
        period.declared.owners.get(owned.pool, owned.owner),
    )
    return owned if (model, owner) == (owned.model, owned.owner) else replace(owned, model=model, owner=owner)
