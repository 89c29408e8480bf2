"""Ranks machines that can serve a model's traffic, by cost at known prices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.fleets import load_one
from app.price_inputs import book_of
from gpufleet.domain.catalogue import MachineType
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.prices.book import MissingPriceError, PriceBook
from gpufleet.prices.packaged import PackagedPrices
from serving.sizing.choice import MachineSizing, Mix, Offer, Option, SizingDemand, ability, cheapest_mix, rank
from serving.sizing.model import ModelShape, Weights

_REGIONS = {Cloud.AWS: "us-east-1", Cloud.GCP: "us-central1"}


class OfferPrices:
    """Prices at one moment: of the given fleets, and of the packaged lists for each cloud without a given fleet."""

    def __init__(self, fleets: Sequence[str], region: str | None, now: datetime) -> None:
        """`fleets`: URLs of fleet documents. `region`: region of the packaged lists. Raises AppError."""
        self._now = now
        self._markets: list[tuple[Cloud, PriceBook, Sequence[str | None]]] = []
        for document in [load_one(url) for url in fleets]:
            zones = sorted({group.zone for pool in document.pools for group in pool.groups if group.zone})
            self._markets.append((document.cloud, book_of(document), (None, *zones)))
        for cloud in set(Cloud) - {cloud for cloud, _, _ in self._markets}:
            book = PriceBook(region=region or _REGIONS[cloud], packaged=PackagedPrices())
            self._markets.append((cloud, book, (None,)))

    def offer(self, machine: MachineType, kind: CapacityType) -> Offer | str:
        """The machine at its lowest price, or a message that names the missing price."""
        prices: list[Price] = []
        missing = "no price is known"
        for cloud, book, zones in self._markets:
            for zone in zones if cloud is machine.cloud else ():
                try:
                    sku = book.machine(cloud, machine.name, kind, region=book.region, zone=zone)
                    prices.append(book.at(sku, self._now))
                except MissingPriceError as error:
                    missing = str(error)
        if not prices:
            return missing
        best = min(prices, key=lambda price: price.usd_per_hour)
        return Offer(
            machine=machine,
            capacity_type=kind,
            usd_per_hour=best.usd_per_hour,
            price_source=f"{best.source}, {best.region}, as of {best.as_of:%Y-%m-%d}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options that serve the demand, cheapest first."""

    options: Sequence[Option]
    mix: Mix | None
    """The cheapest combination of options."""
    left_out: Sequence[tuple[str, str]]
    """What is excluded, and why: cloud, machine type and perhaps capacity type. It cannot serve the demand, or its
    price is unknown.
    """


def choose(
    model: tuple[ModelShape, Weights],
    demand: SizingDemand,
    machines: Iterable[MachineType],
    kinds: Sequence[CapacityType],
    prices: OfferPrices,
) -> Choice:
    """Rank these machines, each bought with each of these capacity types."""
    able: list[tuple[Offer, MachineSizing]] = []
    left_out: list[tuple[str, str]] = []
    for machine in machines:
        found = ability(*model, machine, demand)
        if isinstance(found, str):
            left_out.append((f"{machine.cloud} {machine.name}", found))
            continue
        for kind in kinds:
            offer = prices.offer(machine, kind)
            if isinstance(offer, Offer):
                able.append((offer, found))
            else:
                left_out.append((f"{machine.cloud} {machine.name} {kind}", offer))
    options = rank(able, demand)
    return Choice(options=options, mix=cheapest_mix(options, demand), left_out=left_out)
