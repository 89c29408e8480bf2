"""Builds pricing periods from the ledger's declarations and the prices of closed spans. Pure.

Rules: the first declaration also applies to all time before it; each later one applies since the pass that read it. A
price that is stated later applies only if no other price is known. A closed span keeps the prices of its closing.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise

from pydantic import TypeAdapter

from gpufleet.costs.commitments import Coverage, DeclaredCosts
from gpufleet.costs.pricing import EVER, FOREVER, PricingPeriod
from gpufleet.domain.prices import Price
from gpufleet.ledger.closed_periods import BillConfirmation
from gpufleet.ledger.declared import Declaration
from gpufleet.ledger.facts import Run
from gpufleet.prices.book import PriceBook, PricedInterval, Sku


@dataclass(frozen=True, slots=True)
class StoredDeclaration:
    """A declaration and the time since when it applies."""

    at: datetime
    declared: DeclaredCosts


def content_of(declared: DeclaredCosts) -> str:
    """The JSON text that the ledger stores; equal for equal declarations."""
    plain = _declared().dump_python(declared, mode="json", warnings=False)
    plain["split_by_team"] = sorted(declared.split_by_team)
    if not declared.adapters:
        del plain["adapters"]  # as earlier releases wrote it: no new declaration
    if declared.carbon is None:
        del plain["carbon"]
    return json.dumps(plain, sort_keys=True)


def read(rows: Iterable[Declaration]) -> list[StoredDeclaration]:
    """The declarations of a ledger, oldest first. Raises ValueError for malformed content."""
    return [StoredDeclaration(at, _declared().validate_json(content)) for at, content in rows]


def closing_prices(known: Iterable[PricingPeriod], since: datetime, until: datetime) -> str:
    """The prices that a computation over the span used, as JSON."""
    lines: dict[Sku, list[PricedInterval[Price | None]]] = {}
    for period in known:
        start, end = max(period.since, since), min(period.until, until)
        if start < end:
            for sku in period.book.requested_skus():
                lines.setdefault(sku, []).extend(period.book.parts(sku, start, end))
    return json.dumps(_lines().dump_python(list(lines.items()), mode="json"))


class Declarations:
    """The declarations of a ledger, with the price book of each."""

    def __init__(
        self, kept: Sequence[StoredDeclaration], closed: Sequence[BillConfirmation], book: PriceBook
    ) -> None:
        """`closed`: bills in the order of their arrival. `book`: prices other than the stated ones."""
        self._kept, self._book = kept, book
        self._closed = [one for one in closed if one.prices is not None]
        self._open_prices: dict[int, PriceBook] = {}
        self._closed_prices: dict[tuple[int, BillConfirmation], PriceBook] = {}

    def periods(self, runs: Sequence[Run], since: datetime, until: datetime) -> list[PricingPeriod]:
        """Pricing periods that cover all of time, cut at changed declarations and at closed spans.

        They are cut only where it affects the window or its runs. Empty without declarations.
        """
        if not self._kept:
            return []
        first = min([since, *(run.started_at for run in runs)])
        cuts = {one.at for one in self._kept} | {at for one in self._closed for at in (one.since, one.until)}
        edges = [EVER, *sorted(at for at in cuts if first < at < until), FOREVER]
        coverages: dict[int, Coverage] = {}
        found: list[PricingPeriod] = []
        for start, end in pairwise(edges):
            inside = max(start, first)
            index = max((n for n, one in enumerate(self._kept) if one.at <= inside), default=0)
            if index not in coverages:
                coverages[index] = Coverage(self._kept[index].declared, runs)
            declared, book = self._kept[index].declared, self._book_at(index, inside)
            found.append(
                PricingPeriod(
                    since=start,
                    until=end,
                    declared=declared,
                    coverage=coverages[index],
                    book=book,
                    assumed=inside < self._kept[0].at,
                )
            )
        return found

    def _book_at(self, index: int, at: datetime) -> PriceBook:
        # the first bill closes a span: it does not change afterwards
        final = next((one for one in self._closed if one.since <= at < one.until), None)
        if final is None:
            return self._open_book(index)
        if (index, final) not in self._closed_prices:
            lines = dict(_lines().validate_json(final.prices or "[]"))
            self._closed_prices[index, final] = self._open_book(index).with_closed_prices(lines)
        return self._closed_prices[index, final]

    def _open_book(self, index: int) -> PriceBook:
        if index not in self._open_prices:
            own = self._kept[index].declared.prices
            self._open_prices[index] = self._book.with_overrides(own, _later(self._kept[index + 1 :]))
        return self._open_prices[index]


def _later(kept: Iterable[StoredDeclaration]) -> list[Price]:
    """The first stated price of each sku."""
    found: list[Price] = []
    for one in kept:
        known = {price.sku for price in found}
        found += [price for price in one.declared.prices if price.sku not in known]
    return found


@cache
def _declared() -> TypeAdapter[DeclaredCosts]:
    return TypeAdapter(DeclaredCosts)


@cache
def _lines() -> TypeAdapter[list[tuple[Sku, list[PricedInterval[Price | None]]]]]:
    return TypeAdapter(list[tuple[Sku, list[PricedInterval[Price | None]]]])
