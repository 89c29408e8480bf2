"""Ranks machines that can serve a model's traffic, by cost at known prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from app.fleets import load_one
from app.measured_here import ServedHere
from app.price_inputs import book_of
from gpufleet.domain.catalogue import MachineType
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.prices.book import MissingPriceError, PriceBook
from gpufleet.prices.packaged import PackagedPrices
from serving.sizing.choice import (
    MachineSizing,
    Missing,
    Mix,
    Offer,
    Option,
    SizingDemand,
    UnrankedCode,
    ability,
    by_cost,
    cheapest_mix,
    option_of,
)
from serving.sizing.model import ModelShape, Weights
from serving.sizing.options import Effect, ServingOption, effects
from serving.sizing.peers import AicAnswer, MelangeAnswer, aiconfigurator, melange

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
class NotRanked:
    """A machine type that is not ranked: it cannot serve the demand, or a figure is unknown."""

    machine: MachineType
    capacity_type: CapacityType | None
    """None: all."""
    option: ServingOption | None
    missing: Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options that serve the demand, cheapest first."""

    options: Sequence[Option]
    mix: Mix | None
    """The cheapest combination of options with the same serving option."""
    not_ranked: Sequence[NotRanked]
    aiconfigurator: AicAnswer
    melange: MelangeAnswer
    effects: Sequence[Effect]
    """All published effects of the serving options that are compared."""


def choose(  # noqa: PLR0913 - what a choice depends on
    model: tuple[ModelShape, Weights],
    demand: SizingDemand,
    machines: Sequence[MachineType],
    kinds: Sequence[CapacityType],
    prices: OfferPrices,
    *,
    serving: Sequence[tuple[ServingOption, int]] = (),
    served: Mapping[str, ServedHere] = MappingProxyType({}),
) -> Choice:
    """Rank these machines, each bought with each of these capacity types, without and with each serving option.

    `serving`: options, each with the bytes of the weights of its second model. `served`: machine type to what it
    served here.
    """
    variants = [demand, *(replace(demand, option=option, draft_bytes=size) for option, size in serving)]
    offers: list[Offer] = []
    options: list[Option] = []
    not_ranked: list[NotRanked] = []
    unpriced: dict[tuple[MachineType, CapacityType], str] = {}
    for machine in machines:
        priced = {kind: prices.offer(machine, kind) for kind in kinds}
        offers += [offer for offer in priced.values() if isinstance(offer, Offer)]
        for variant in variants:
            found = _ability(model, machine, variant, served)
            if isinstance(found, Missing):
                not_ranked.append(
                    NotRanked(machine=machine, capacity_type=None, option=variant.option, missing=found)
                )
                continue
            for kind, offer in priced.items():
                if isinstance(offer, Offer):
                    options.append(option_of(offer, found, variant))
                else:
                    unpriced[machine, kind] = offer
    for (machine, kind), why in unpriced.items():
        missing = Missing(code=UnrankedCode.NO_PRICE, detail=why)
        not_ranked.append(NotRanked(machine=machine, capacity_type=kind, option=None, missing=missing))
    compared = {option for option, _ in serving}
    if demand.weights_fp8:
        compared.add(ServingOption.FP8)
    return Choice(
        options=sorted(options, key=by_cost),
        mix=cheapest_mix([option for option in options if option.able.option is None], demand),
        not_ranked=not_ranked,
        aiconfigurator=aiconfigurator(model[0], demand, offers),
        melange=melange(model[0], demand),
        effects=[effect for effect in effects() if effect.option in compared],
    )


def _ability(
    model: tuple[ModelShape, Weights], machine: MachineType, demand: SizingDemand, served: Mapping[str, ServedHere]
) -> MachineSizing | Missing:
    """The ability, with the speed that was measured here if there is one. The ledger has no latencies, so it decides
    only without a latency objective.
    """
    found = ability(*model, machine, demand)
    here = served.get(machine.name)
    if demand.option is not None or here is None or here.speed is None or not demand.traffic.allows(None, None):
        return found
    return MachineSizing(fit=found.fit if isinstance(found, MachineSizing) else None, speed=here.speed)
