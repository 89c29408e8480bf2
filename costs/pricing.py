"""Which price each part of a run's time has: from the book, and from what is prepaid. Pure."""

from dataclasses import dataclass, field
from datetime import datetime

from costs.commitments import Coverage, PricePart
from gpufleet.domain.model import CapacityType
from ledger.facts import Run
from prices.book import MissingPriceError, Part, PriceBook, Sku


@dataclass(frozen=True, slots=True)
class Pricing:
    """The book, and what is prepaid. Built for one computation, since it remembers what it was asked."""

    book: PriceBook
    allow_unpriced: bool
    coverage: Coverage | None = None
    _asked: dict[tuple[Sku, datetime, datetime], list[PricePart]] = field(
        default_factory=dict[tuple[Sku, datetime, datetime], list[PricePart]]
    )

    def of_run(self, run: Run, start: datetime, end: datetime) -> list[PricePart]:
        """What a run costs, with what is prepaid at its own rate."""
        block = self.coverage.block(run.reservation) if self.coverage is not None else None
        if block is not None and block.starts <= start and end <= block.ends:  # no other price is needed
            return [Part(block.price(run.machine_type, run.region), start, end)]
        sku = self.book.machine(run.cloud, run.machine_type, run.capacity_type, region=run.region, zone=run.zone)
        found = self.parts(sku, start, end)
        return found if self.coverage is None else list(self.coverage.parts(run, found))

    def parts(self, sku: Sku, start: datetime, end: datetime) -> list[PricePart]:
        """The prices in force; None where one may be unknown, and is. Raises MissingPriceError."""
        found = self._asked_once(sku, start, end)
        missing = next((begin for price, begin, _ in found if price is None), None)
        if missing is not None and not self.allow_unpriced:
            raise MissingPriceError(sku.name, sku.region, sku.zone, missing)
        return found

    def _asked_once(self, sku: Sku, start: datetime, end: datetime) -> list[PricePart]:
        """What the book says; machines of one kind that ran over the same time share the answer."""
        if (sku, start, end) not in self._asked:
            self._asked[sku, start, end] = self.book.parts(sku, start, end)
        return self._asked[sku, start, end]

    def on_demand(self, run: Run, start: datetime, end: datetime) -> list[PricePart]:
        """What the time would have cost on demand; None where that is unknown or moot."""
        if run.capacity_type is not CapacityType.SPOT:
            return [Part(None, start, end)]
        sku = self.book.machine(run.cloud, run.machine_type, CapacityType.ON_DEMAND, region=run.region, zone=run.zone)
        return self._asked_once(sku, start, end)
