"""The bill of one node, divided over its devices, slices, tenants, engines and models. Pure.

The rule, in each ten-second slot: a device costs the node's price divided by its number of devices. A slice costs its
compute parts of the device (of seven on most GPUs with MIG). Compute that no slice holds is *stranded*. A unit with
several users is divided equally between those whose engines worked in the slot, so over time by engine busy seconds;
if not all users have engine evidence of their own, they are *inseparable* and one part. Time without evidence is
unmeasured: it counts as used. The parts of a node add up to its bill exactly.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from math import lcm

from gpufleet.costs.slot_parts import (
    ALL,
    WHOLE,
    NodeShape,
    PartKey,
    PartState,
    SlotPart,
    UnitName,
    hour_parts,
)
from gpufleet.domain import money
from gpufleet.ledger.slots import HOUR_US, overlap
from gpufleet.ledger.tables import microseconds
from gpufleet.ledger.units import Sighting, UnitHour


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledSpan:
    """Time of a node with one price and one owner."""

    start: datetime
    end: datetime
    usd_per_hour: Decimal | None
    """None: unknown."""
    pool: str | None = None
    model: str | None = None
    owner: str | None = None
    is_starting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBill:
    """What a node cost."""

    instance_id: str
    shape: NodeShape
    spans: Sequence[BilledSpan]
    """In the order of time; they do not overlap."""
    fixed: Decimal = money.ZERO
    """Minimum charges and credits, in dollar-seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """A part of a node's bill."""

    instance_id: str
    pool: str | None
    owner: str | None
    model: str | None
    """Of the engine, or of the pool."""
    key: PartKey
    state: PartState
    time: timedelta
    """In which the part had this state. Users that worked at once divide the time of their unit."""
    amount: Decimal
    """In dollar-seconds, as far as prices are known."""
    unpriced: timedelta = timedelta(0)
    """The part of `time` without a known price."""


def allocate(
    nodes: Mapping[str, NodeBill],
    hours: Iterable[UnitHour],
    sightings: Mapping[str, Sequence[Sighting]] | None = None,
) -> list[NodePart]:
    """Divide the bills of nodes.

    `hours`: by hour and instance. `sightings`: by instance; a slice that is not reported between two of its sightings
    is unmeasured, not removed.
    """
    found = {name: _Allocation(node) for name, node in sorted(nodes.items())}
    for (hour, name), rows in groupby(hours, key=lambda one: (one.hour, one.instance_id)):
        if name in found:
            found[name].add_hour(hour, list(rows), (sightings or {}).get(name, ()))
    return [part for one in found.values() for part in one.parts()]


_Who = tuple[str | None, str | None, str | None]
"""Pool, model and owner."""
_Key = tuple[_Who, PartKey, PartState]
_Weighted = tuple[_Key, tuple[int, int], int]
"""A part, its share of the node, and how many parts divide its unit."""


@dataclass(slots=True)
class _Allocation:
    """The time of one node, by its parts, while its hours are added."""

    node: NodeBill
    times: dict[Decimal | None, dict[_Weighted, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    """By price, then by part and share: microseconds."""
    covered: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Number of a span to its microseconds in hours with rows."""

    def add_hour(self, hour: datetime, rows: Sequence[UnitHour], sightings: Sequence[Sighting]) -> None:
        """Add the parts of one hour."""
        first = microseconds(hour)
        parts: list[SlotPart] | None = None
        for number in self._overlapping(first):
            span = self.node.spans[number]
            begin = max(microseconds(span.start) - first, 0)
            stop = min(microseconds(span.end) - first, HOUR_US)
            if span.is_starting or begin >= stop:
                continue
            if parts is None:
                parts = hour_parts(self.node.shape, rows, _expected(hour, rows, sightings))
            for part in parts:
                self._add(span, part, overlap(part.slots, begin, stop))
            self.covered[number] += stop - begin

    def _overlapping(self, first: int) -> Iterator[int]:
        spans = self.node.spans
        at = max(bisect_right(spans, first, key=lambda span: microseconds(span.start)) - 1, 0)
        while at < len(spans) and microseconds(spans[at].start) < first + HOUR_US:
            yield at
            at += 1

    def _add(self, span: BilledSpan, part: SlotPart, time: int) -> None:
        if not time:
            return
        who = span.pool, part.key.model or span.model, span.owner
        share = part.share.as_integer_ratio()  # a fraction as a key would be slow
        self.times[span.usd_per_hour][(who, part.key, part.state), share, part.at_once] += time

    def parts(self) -> Iterator[NodePart]:
        """The parts of the node, which add up to its bill."""
        for number, span in enumerate(self.node.spans):
            length = microseconds(span.end) - microseconds(span.start)
            state = PartState.STARTING if span.is_starting else PartState.UNMEASURED
            self._add(span, SlotPart(0, PartKey(), state, WHOLE), length - self.covered[number])
        sums: dict[_Key, tuple[Decimal, Fraction | int, Fraction | int]] = {}
        for price, weighted in self.times.items():
            weights: dict[_Key, Fraction] = defaultdict(Fraction)
            times: dict[_Key, Fraction | int] = defaultdict(int)
            for (part, share, at_once), time in weighted.items():
                weights[part] += time * Fraction(*share)
                times[part] += time if at_once == 1 else Fraction(time, at_once)
            ordered = sorted(weights, key=_order)
            for part, amount in zip(ordered, _amounts(price, [weights[one] for one in ordered]), strict=True):
                usd, all_time, unpriced = sums.get(part, (money.ZERO, 0, 0))
                usd = usd if amount is None else money.EXACT.add(usd, amount)
                sums[part] = usd, all_time + times[part], unpriced + (times[part] if amount is None else 0)
        for part in sorted(sums, key=_order):
            yield self._part(part, *sums[part])
        if self.node.fixed:
            last = self.node.spans[-1] if self.node.spans else None
            who = (None, None, None) if last is None else (last.pool, last.model, last.owner)
            yield self._part((who, PartKey(), PartState.FIXED), self.node.fixed, 0, 0)

    def _part(self, part: _Key, amount: Decimal, time: Fraction | int, unpriced: Fraction | int) -> NodePart:
        (pool, model, owner), key, state = part
        return NodePart(
            instance_id=self.node.instance_id,
            pool=pool,
            owner=owner,
            model=model,
            key=key,
            state=state,
            time=timedelta(microseconds=round(time)),
            amount=amount,
            unpriced=timedelta(microseconds=round(unpriced)),
        )


def _order(part: _Key) -> tuple[object, ...]:
    who, key, state = part
    return key, state, tuple(name or "" for name in who)


def _amounts(price: Decimal | None, weights: Sequence[Fraction]) -> Sequence[Decimal | None]:
    """The cost of the time of one price, by weight; None: without a price."""
    if price is None:
        return [None] * len(weights)
    whole = timedelta(microseconds=int(sum(weights)))
    scale = lcm(*(weight.denominator for weight in weights))
    return money.split(money.dollar_seconds(price, whole), [Decimal(int(weight * scale)) for weight in weights])


def _expected(hour: datetime, rows: Sequence[UnitHour], sightings: Sequence[Sighting]) -> dict[UnitName, int]:
    """The slots of the hour that are between two sightings of each slice."""
    seen: dict[UnitName, int] = defaultdict(int)
    for row in rows:
        seen[row.device, row.slice, row.profile] |= row.seen
    found: dict[UnitName, int] = {}
    for one in sightings:
        unit = (one.device, one.slice, one.profile)
        if not one.slice or not one.first <= hour <= one.last:
            continue
        slots, bits = ALL, seen.get(unit, 0)
        if hour == one.first and bits:
            slots &= ~((bits & -bits) - 1)
        if hour == one.last and bits:
            slots &= (1 << bits.bit_length()) - 1
        found[unit] = slots
    return found
