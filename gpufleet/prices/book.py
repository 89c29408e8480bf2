"""The price book: which price was in force when, and its source.

Sources in order: overrides of the fleet document → prices that a cloud reported (ledger) → packaged history. At each
time, the first source that has a price applies. A missing price is an error that names the sku and the remedy.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price, Rank
from gpufleet.settings.document.money import PriceOverride

STALE_AFTER: Final = {
    CapacityType.SPOT: timedelta(hours=2),
    CapacityType.ON_DEMAND: timedelta(days=45),
    CapacityType.FLEX_START: timedelta(days=45),
    CapacityType.RESERVED: timedelta(days=45),
}
"""The age of `as_of` from which a report flags the price, and watchdogs treat it as unknown. AWS changes spot prices
by the hour, Google by the month."""

GCP_SPOT_STALE_AFTER: Final = timedelta(days=30)
"""Google changes a spot price at most once in 30 days (its documentation)."""


class MissingPriceError(LookupError):
    """No source has the price. The message names the sku, region, time and remedy."""

    def __init__(self, sku: str, region: str, zone: str | None, at: datetime) -> None:
        self.sku, self.region, self.zone, self.at = sku, region, zone, at
        where = f"{region} ({zone})" if zone else region
        super().__init__(
            f"no price for {sku} in {where} at {at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}: add it"
            " under `prices` of the settings, with source and as_of; for a running fleet,"
            " run `gpufleet prices refresh`"
        )


P = TypeVar("P", bound=Price | None, covariant=True)


class PricedInterval(NamedTuple, Generic[P]):
    """A part of a time span and the price in force. `end` is exclusive; price None: no source has one."""

    price: P
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """A priced item in a region or zone."""

    name: str
    region: str
    zone: str | None = None


class Packaged(Protocol):
    """Packaged price history, read at its first use."""

    def prices(self, sku: str, region: str) -> Sequence[Price]: ...


def machine_sku(cloud: Cloud, machine_type: str, capacity_type: CapacityType) -> str:
    """The sku of a machine type, such as `aws:ec2:g6.xlarge:spot`."""
    match cloud:
        case Cloud.AWS:
            return f"aws:ec2:{machine_type}:{capacity_type}"
        case Cloud.GCP:
            return f"gcp:compute:{machine_type}:{capacity_type}"


def parse_as_of(text: str) -> datetime:
    """`2026-06-01` or an ISO time; a time without a zone is UTC. Raises ValueError that names the text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"as_of: expected a date such as 2026-06-01, got {text!r}") from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def stated_price(override: PriceOverride, region: str) -> Price:
    """A price of the settings: of a contract, or of an item without a packaged price.

    Its sku is as `machine_sku`, followed by `:ZONE` if it applies to one zone only. Raises ValueError.
    """
    name, zone = override.sku, None
    if name.count(":") > 3:
        name, zone = name.rsplit(":", 1)
    as_of = parse_as_of(override.as_of)
    return Price(
        sku=name,
        region=region,
        zone=zone,
        usd_per_hour=override.usd_per_hour,
        source=override.source,
        as_of=as_of,
        valid_from=as_of,
        rank=Rank.OVERRIDE,
        unverified=override.unverified,
    )


class PriceBook:
    """Finds the price in force at a time. Built once per command; only the packaged tables need I/O."""

    def __init__(
        self,
        *,
        region: str,
        overrides: Iterable[Price] = (),
        observed: Iterable[Price] = (),
        packaged: Packaged | None = None,
    ) -> None:
        self.region = region
        self._packaged = packaged
        self._stated: dict[str, list[Price]] = {}
        self._later: dict[str, list[Price]] = {}
        for price in overrides:
            self._stated.setdefault(_stated_key(price), []).append(price)
        self._observed: dict[Sku, list[Price]] = {}
        for price in observed:
            key = Sku(name=price.sku, region=price.region, zone=price.zone)
            self._observed.setdefault(key, []).append(price)
        self._lines: dict[Sku, _Line | _ClosedLine] = {}

    def with_overrides(self, overrides: Iterable[Price], later: Iterable[Price] = ()) -> "PriceBook":
        """A copy with other stated prices. `later` prices were stated afterwards: they apply if there is no other."""
        made = PriceBook(region=self.region, overrides=overrides, packaged=self._packaged)
        made._observed = self._observed  # noqa: SLF001
        for price in later:
            made._later.setdefault(_stated_key(price), []).append(price)  # noqa: SLF001
        return made

    def with_closed_prices(self, lines: Mapping[Sku, Sequence[PricedInterval[Price | None]]]) -> "PriceBook":
        """A copy for a closed span with fixed prices. Skus that were not requested at the closing have the prices of
        this book.
        """
        made = PriceBook(region=self.region, packaged=self._packaged)
        made._stated, made._later, made._observed = self._stated, self._later, self._observed  # noqa: SLF001
        made._lines = {sku: _ClosedLine(parts) for sku, parts in lines.items()}  # noqa: SLF001
        return made

    def requested_skus(self) -> tuple[Sku, ...]:
        """The skus that were requested so far."""
        return tuple(self._lines)

    def at(self, sku: Sku, moment: datetime) -> Price:
        """The price in force at that moment. Raises MissingPriceError."""
        found = self._line(sku).at(moment)
        if found is None:
            raise MissingPriceError(sku.name, sku.region, sku.zone, moment)
        return found

    def sources(self, sku: Sku, moment: datetime) -> list[Price]:
        """The price of each source at that moment, in their order: the first one is in force."""
        return self._line(sku).known(moment)

    def over(self, sku: Sku, start: datetime, end: datetime) -> tuple[PricedInterval[Price], ...]:
        """The prices in force from `start` to `end` (exclusive), without a gap. Raises MissingPriceError."""
        parts: list[PricedInterval[Price]] = []
        for price, begin, finish in self.parts(sku, start, end):
            if price is None:
                raise MissingPriceError(sku.name, sku.region, sku.zone, begin)
            parts.append(PricedInterval(price, begin, finish))
        return tuple(parts)

    def parts(self, sku: Sku, start: datetime, end: datetime) -> list[PricedInterval[Price | None]]:
        """The span in parts, one per price; None: no source has a price."""
        line = self._line(sku)
        cuts = [start, *(cut for cut in line.changes if start < cut < end), end]
        found: list[PricedInterval[Price | None]] = []
        for begin, finish in pairwise(cuts):
            price = line.at(begin)
            if found and found[-1].price == price:
                found[-1] = PricedInterval(price, found[-1].start, finish)
            elif begin < finish:
                found.append(PricedInterval(price, begin, finish))
        return found

    def machine(
        self, cloud: Cloud, machine_type: str, capacity_type: CapacityType, *, region: str, zone: str | None
    ) -> Sku:
        """The sku of a machine. Reserved capacity has its own price if one is stated, else the on-demand price."""
        name = machine_sku(cloud, machine_type, capacity_type)
        if capacity_type is CapacityType.RESERVED:
            own = Sku(name=name, region=region, zone=zone)
            if self._line(own).changes:
                return own
            name = machine_sku(cloud, machine_type, CapacityType.ON_DEMAND)
        return Sku(name=name, region=region, zone=zone)

    def usd_per_hour(  # noqa: PLR0913 - what identifies a price
        self,
        cloud: Cloud,
        machine_type: str,
        capacity_type: CapacityType,
        *,
        region: str,
        zone: str | None,
        at: datetime,
    ) -> Decimal | None:
        """The price of a machine in force at that moment; None: no source has one."""
        sku = self.machine(cloud, machine_type, capacity_type, region=region, zone=zone)
        try:
            return self.at(sku, at).usd_per_hour
        except MissingPriceError:
            return None

    def _line(self, sku: Sku) -> "_Line | _ClosedLine":
        if sku not in self._lines:
            self._lines[sku] = _Line(self._known(sku))
        return self._lines[sku]

    def _known(self, sku: Sku) -> list[Price]:
        """All prices of a sku. In each source, prices of its zone take precedence over prices of its region."""
        found: list[Price] = []
        here = sku.region == self.region
        stated = _stated_of(self._stated, sku) if here else []
        later = _stated_of(self._later, sku) if here else []
        found += stated
        if first := min(stated or later, key=lambda price: price.valid_from, default=None):
            found.append(
                replace(
                    first,
                    valid_from=_EVER,
                    rank=Rank.OVERRIDE_BEFORE_ITS_DATE,
                    note=f"stated from {first.as_of:%Y-%m-%d}, used before that because no other price is known",
                )
            )
        found += self._observed.get(sku, []) or self._observed.get(replace(sku, zone=None), [])
        if self._packaged is not None:
            found += self._packaged.prices(sku.name, sku.region)
        return found


def _stated_key(price: Price) -> str:
    return f"{price.sku}:{price.zone}" if price.zone else price.sku


def _stated_of(stated: Mapping[str, list[Price]], sku: Sku) -> list[Price]:
    """The prices stated for its zone, else for all zones."""
    return stated.get(f"{sku.name}:{sku.zone}", []) or stated.get(sku.name, [])


_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Line:
    """The prices of one sku over time. Of the ranks that have begun, the lowest applies."""

    def __init__(self, prices: Iterable[Price]) -> None:
        by_rank: dict[Rank, list[Price]] = {}
        for price in prices:
            by_rank.setdefault(price.rank, []).append(price)
        self._ranks = [
            sorted(by_rank[rank], key=lambda p: (p.valid_from, p.as_of, p.usd_per_hour)) for rank in sorted(by_rank)
        ]
        self._begins = [[price.valid_from for price in line] for line in self._ranks]
        self.changes = sorted({begin for line in self._begins for begin in line})

    def at(self, moment: datetime) -> Price | None:
        for line, begins in zip(self._ranks, self._begins, strict=True):
            index = bisect_right(begins, moment)
            if index:
                return line[index - 1]
        return None

    def known(self, moment: datetime) -> list[Price]:
        """The price of each rank that has begun."""
        indices = (bisect_right(begins, moment) for begins in self._begins)
        return [line[index - 1] for line, index in zip(self._ranks, indices, strict=True) if index]


class _ClosedLine:
    """The prices of one sku in a span that was closed."""

    def __init__(self, parts: Sequence[PricedInterval[Price | None]]) -> None:
        known = [part for part in parts if part.price is not None]
        self._parts = sorted(known, key=lambda part: part.start)
        self.changes = sorted({at for part in known for at in (part.start, part.end)})

    def at(self, moment: datetime) -> Price | None:
        return next((part.price for part in reversed(self._parts) if part.start <= moment < part.end), None)

    def known(self, moment: datetime) -> list[Price]:
        """The price of the span."""
        price = self.at(moment)
        return [] if price is None else [price]


def stale_after(price: Price) -> timedelta | None:
    """The maximum age of a price's `as_of`; None: it does not age."""
    if price.rank in (Rank.OVERRIDE, Rank.OVERRIDE_BEFORE_ITS_DATE):
        return None  # a contract does not age; `unverified` is reported separately
    cloud = Cloud.GCP if price.sku.startswith("gcp:") else Cloud.AWS
    return _stale_after(cloud, _capacity(price.sku.rsplit(":", 1)[-1]))


def is_stale(price: Price, now: datetime) -> bool:
    """Whether the price's source last confirmed it longer ago than its kind allows."""
    limit = stale_after(price)
    return limit is not None and now - price.as_of > limit


def is_usable_by_watchdogs(price: Price, now: datetime) -> bool:
    """Whether watchdogs use the price: all prices except stale ones from a cloud. Reports flag those as stale."""
    return price.rank is not Rank.LIVE or not is_stale(price, now)


def fresh_since(cloud: Cloud, now: datetime) -> dict[CapacityType, datetime]:
    """By capacity type: the time since which a price must have been confirmed so that it is not stale."""
    return {kind: now - _stale_after(cloud, kind) for kind in CapacityType}


def _stale_after(cloud: Cloud, kind: CapacityType) -> timedelta:
    return GCP_SPOT_STALE_AFTER if (cloud, kind) == (Cloud.GCP, CapacityType.SPOT) else STALE_AFTER[kind]


def _capacity(word: str) -> CapacityType:
    return CapacityType(word) if word in set(CapacityType) else CapacityType.ON_DEMAND
