"""The price of each part of a run's time, from the price book and from prepaid commitments. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from gpufleet.costs.commitments import Coverage, DeclaredCosts, PricePart
from gpufleet.domain.model import CapacityType
from gpufleet.ledger.facts import Reservation, Run
from gpufleet.prices.book import MissingPriceError, PriceBook, PricedInterval, Sku

EVER: Final = datetime.min.replace(tzinfo=UTC)
FOREVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingPeriod:
    """A time in which the declaration and the price book are the same. `until` is exclusive."""

    since: datetime
    until: datetime
    declared: DeclaredCosts
    coverage: Coverage
    book: PriceBook
    assumed: bool = False
    """Whether it is before the first declaration of the ledger, which then applies to it."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices from the book and from commitments. It caches prices: create one for each computation."""

    book: PriceBook
    allow_unpriced: bool
    coverage: Coverage | None = None
    _asked: dict[tuple[Sku, datetime, datetime], list[PricePart]] = field(
        default_factory=dict[tuple[Sku, datetime, datetime], list[PricePart]]
    )

    def of_run(self, run: Run, start: datetime, end: datetime) -> list[PricePart]:
        """The prices of a run, with prepaid parts at their committed rate."""
        block = self.coverage.block(run.reservation) if self.coverage is not None else None
        if block is not None and block.starts <= start and end <= block.ends:  # no other price is needed
            return [PricedInterval(block.price(run.machine_type, run.region), start, end)]
        sku = self.book.machine(run.cloud, run.machine_type, run.capacity_type, region=run.region, zone=run.zone)
        found = self.parts(sku, start, end)
        return found if self.coverage is None else list(self.coverage.parts(run, found))

    def of_reservation(self, paid: Reservation, start: datetime, end: datetime) -> list[PricePart]:
        """The prices of one instance of paid capacity."""
        if self.coverage is not None and (block := self.coverage.block(paid.reservation)) is not None:
            return [PricedInterval(block.price(paid.machine_type, paid.region), start, end)]
        kind = CapacityType.RESERVED
        sku = self.book.machine(paid.cloud, paid.machine_type, kind, region=paid.region, zone=paid.zone)
        return self.parts(sku, start, end)

    def parts(self, sku: Sku, start: datetime, end: datetime) -> list[PricePart]:
        """The prices in force; None where unknown. Raises MissingPriceError if unpriced rows are not allowed."""
        found = self._asked_once(sku, start, end)
        missing = next((begin for price, begin, _ in found if price is None), None)
        if missing is not None and not self.allow_unpriced:
            raise MissingPriceError(sku.name, sku.region, sku.zone, missing)
        return found

    def _asked_once(self, sku: Sku, start: datetime, end: datetime) -> list[PricePart]:
        """The book's prices, cached for machines of one kind that ran over the same time."""
        if (sku, start, end) not in self._asked:
            self._asked[sku, start, end] = self.book.parts(sku, start, end)
        return self._asked[sku, start, end]

    def on_demand(self, run: Run, start: datetime, end: datetime) -> list[PricePart]:
        """The on-demand prices of a spot run's time; None if unknown, or if it is not a spot run."""
        if run.capacity_type is not CapacityType.SPOT:
            return [PricedInterval(None, start, end)]
        sku = self.book.machine(run.cloud, run.machine_type, CapacityType.ON_DEMAND, region=run.region, zone=run.zone)
        return self._asked_once(sku, start, end)


class PricingOverTime:
    """As `Pricing`, with the book and commitments of each pricing period. Joins adjacent parts of equal price."""

    def __init__(self, periods: Sequence[PricingPeriod], allow_unpriced: bool, *, covered: bool = True) -> None:
        """`covered`: whether commitments apply."""
        self._periods = [
            (period.since, period.until, Pricing(period.book, allow_unpriced, period.coverage if covered else None))
            for period in periods
        ]

    def of_run(self, run: Run, start: datetime, end: datetime) -> Sequence[PricePart]:
        return self._over(start, end, lambda pricing, since, until: pricing.of_run(run, since, until))

    def of_reservation(self, paid: Reservation, start: datetime, end: datetime) -> Sequence[PricePart]:
        return self._over(start, end, lambda pricing, since, until: pricing.of_reservation(paid, since, until))

    def parts(self, sku: Sku, start: datetime, end: datetime) -> Sequence[PricePart]:
        return self._over(start, end, lambda pricing, since, until: pricing.parts(sku, since, until))

    def on_demand(self, run: Run, start: datetime, end: datetime) -> Sequence[PricePart]:
        return self._over(start, end, lambda pricing, since, until: pricing.on_demand(run, since, until))

    def _over(
        self, start: datetime, end: datetime, ask: Callable[[Pricing, datetime, datetime], Sequence[PricePart]]
    ) -> Sequence[PricePart]:
        touched = [period for period in self._periods if period[0] < end and start < period[1]]
        if len(touched) == 1:
            return ask(touched[0][2], start, end)
        asked = (ask(pricing, max(since, start), min(until, end)) for since, until, pricing in touched)
        return list(_joined(part for parts in asked for part in parts))


def _joined(parts: Iterable[PricePart]) -> Iterator[PricePart]:
    """Join adjacent parts of equal price."""
    last: PricePart | None = None
    for part in parts:
        if last is not None and last.price == part.price and last.end == part.start:
            last = PricedInterval(last.price, last.start, part.end)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
