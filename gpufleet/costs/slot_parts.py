"""The parts of an instance in the ten-second slots of one hour: the rule of `gpufleet.costs.slices`. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from gpufleet.domain.slices import SliceSize, another_fits, size_of
from gpufleet.ledger.slots import SLOTS
from gpufleet.ledger.units import UnitHour

ALL: Final = (1 << SLOTS) - 1
"""Every slot of an hour."""
WHOLE: Final = Fraction(1)
NOTHING: Final = Fraction(0)


class PartState(StrEnum):
    """The use of a part of an instance."""

    USED = "used"
    UNMEASURED = "unmeasured"
    """Nothing is known about its use, or about what the device was divided into. It counts as used."""
    IDLE = "idle"
    STRANDED = "stranded"
    """Compute of a device that no slice holds."""
    STARTING = "starting"
    FIXED = "fixed"
    """Minimum charges and credits: they belong to the whole instance."""


class Stranded(StrEnum):
    """Whether another slice could hold stranded compute."""

    FITS = "another_slice_may_fit"
    FULL = "no_slice_fits"
    """Too little compute is left, or the memory that belongs to it is in other slices."""
    UNKNOWN = "unknown"


class PartKey(NamedTuple):
    """What a part is of. Empty fields: all of it, or not known."""

    device: str = ""
    slice: str = ""
    profile: str = ""
    users: tuple[str, ...] = ()
    """One tenant or engine; several: they are inseparable, or the time in which none of them worked."""
    engine: str = ""
    model: str = ""
    size: str = "1"
    """Share of the device, as `3/7`; without a device, of the instance."""
    stranded: str = ""
    """A code of `Stranded`; empty: the part is not stranded."""


class SlotPart(NamedTuple):
    """A share of a node in some slots of an hour."""

    slots: int
    key: PartKey
    state: PartState
    share: Fraction
    """Of the node."""
    at_once: int = 1
    """How many parts divide the unit in these slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """The devices of a machine type."""

    devices: int | None
    """None: unknown; the devices that its exporter reports."""
    gpu: str | None = None
    """The device's name in the catalogue."""
    units_per_device: int = 1


UnitName = tuple[str, str, str]
"""Device, slice, profile."""
_NO_UNIT: Final[UnitName] = ("", "", "")


def hour_parts(
    shape: NodeShape, rows: Sequence[UnitHour], expected: Mapping[tuple[str, str, str], int] | None = None
) -> list[SlotPart]:
    """The parts of an instance in one hour. In each slot their shares add up to 1.

    `expected`: device, slice and profile to the slots in which the slice existed, though it may not be reported.
    """
    units: dict[UnitName, list[UnitHour]] = {}
    for row in sorted(rows, key=lambda one: one.key[3:]):
        units.setdefault((row.device, row.slice, row.profile), []).append(row)
    seen = {unit: _any(row.seen for row in own) for unit, own in units.items()}
    found: list[SlotPart] = []
    for slots in _alike((*seen.values(), *(expected or {}).values())):
        there = {unit: own for unit, own in units.items() if seen[unit] & slots}
        absent = [unit for unit, bits in (expected or {}).items() if bits & slots and unit not in there]
        found += _constant_parts(shape, slots, there, absent)
    return found


def _any(bits: Iterable[int]) -> int:
    found = 0
    for one in bits:
        found |= one
    return found


def _alike(sets: Iterable[int], whole: int = ALL) -> list[int]:
    """The whole, divided so that each part is inside or outside each of the sets."""
    found = [whole] if whole else []
    for bits in set(sets):
        found = [part for old in found for part in (old & bits, old & ~bits) if part]
    return found


class _Share(NamedTuple):
    """A part of a node while its units do not change: a unit, or a part without one that has a state."""

    unit: UnitName
    size: str
    share: Fraction
    state: PartState | None = None
    """None: the unit's evidence shows it."""
    stranded: str = ""


def _constant_parts(
    shape: NodeShape, slots: int, there: Mapping[UnitName, Sequence[UnitHour]], absent: Sequence[UnitName]
) -> Iterator[SlotPart]:
    """The parts of slots in which the same units are reported."""
    for one in _layout(shape, tuple(there), tuple(absent)):
        if one.state is None:
            yield from _of_users(slots, one.unit, there[one.unit], one.size, one.share)
        else:
            key = PartKey(*one.unit, size=one.size, stranded=one.stranded)
            yield SlotPart(slots, key, one.state, one.share)


@lru_cache(maxsize=4_096)
def _layout(
    shape: NodeShape, there: tuple[UnitName, ...], absent: tuple[UnitName, ...]
) -> tuple[_Share, ...]:  # fmt: skip
    """The shares of a node with these units. Cached: nodes are rarely divided in another way."""
    devices: dict[str, list[UnitName]] = defaultdict(list)
    for unit in there:
        devices[unit[0]].append(unit)
    # cores that are numbered through the whole host have no device: they are all devices together
    through = set(devices) == {""} and shape.devices is not None
    count = 1 if through else max(shape.devices or 0, len(devices), 1)
    missing = Fraction(count - len(devices), count)
    found = [_Share(_NO_UNIT, str(missing), missing, PartState.UNMEASURED)] if missing else []
    for device, units in devices.items():
        divided = [unit for unit in units if unit[1]]
        if divided:
            removed = [unit for unit in absent if unit[0] == device]
            found += _divided(shape, divided, removed, Fraction(1, count), through)
        else:
            found += [_Share(unit, "1", Fraction(1, count) / len(units)) for unit in units]
    return tuple(found)


def _divided(
    shape: NodeShape, units: Sequence[UnitName], absent: Sequence[UnitName], share: Fraction, through: bool
) -> Iterator[_Share]:
    """The shares of one device with slices."""
    whole = (units[0][0], "", "")
    sizes = {unit: _size(shape, unit[2], through) for unit in (*units, *absent)}
    known = {unit: size for unit, size in sizes.items() if size is not None}
    if any(unit not in known for unit in units):
        yield _Share(whole, "1", share, PartState.UNMEASURED)
        return
    parts = {unit: Fraction(size.compute, size.of) for unit, size in known.items()}
    held = sum((parts[unit] for unit in units), NOTHING)
    scale = share / max(held, WHOLE)
    for unit in units:
        yield _Share(unit, str(parts[unit]), parts[unit] * scale)
    rest = WHOLE - held
    lost = sum((parts.get(unit, WHOLE) for unit in absent), NOTHING)
    # slices that no longer fit were removed: the device was divided in another way meanwhile
    hidden = list(absent) if NOTHING < lost <= rest else []
    for unit in hidden:
        yield _Share(unit, str(parts[unit]), parts[unit] * share, PartState.UNMEASURED)
        rest -= parts[unit]
    if rest > NOTHING:
        there = [known[unit] for unit in (*units, *hidden)]
        state, code = _remainder(shape, there)
        yield _Share(whole, str(rest), rest * share, state, code)


def _size(shape: NodeShape, profile: str, through: bool) -> SliceSize | None:
    units = shape.units_per_device * ((shape.devices or 1) if through else 1)
    return size_of(profile, shape.gpu, units)


def _remainder(shape: NodeShape, sizes: Sequence[SliceSize]) -> tuple[PartState, str]:
    """The state of what no slice holds, and why."""
    if not all(size.is_mig for size in sizes):
        # the device is always divided completely: its other parts are not reported
        return PartState.UNMEASURED, ""
    fits = another_fits(shape.gpu, sizes)
    code = Stranded.UNKNOWN if fits is None else Stranded.FITS if fits else Stranded.FULL
    return PartState.STRANDED, code.value


def _of_users(slots: int, unit: UnitName, rows: Sequence[UnitHour], size: str, share: Fraction) -> Iterator[SlotPart]:
    """The parts of one unit, by its users."""
    busy, idle = _any(row.busy for row in rows), _any(row.idle for row in rows)
    for alike in _alike((row.seen for row in rows), slots):
        users = _users([row for row in rows if row.seen & alike])
        if len(users) == 1:
            yield from _of_one(alike, users[0], (busy, idle), size, share)
            continue
        together = PartKey(*unit, users=tuple(sorted({_name(row) for row in users})), size=size)
        known = alike
        for row in users:
            known &= row.engine_busy | row.engine_idle
        for part in _alike((row.engine_busy for row in users), known):
            working = [row for row in users if row.engine_busy & part]
            for row in working:
                yield SlotPart(part, _key(row, size), PartState.USED, share / len(working), len(working))
            if not working:
                yield from _by_state(together, share, part, 0, part & ~busy)
        works = busy | _any(row.engine_busy for row in users)
        yield from _by_state(together, share, alike & ~known, works, idle)


def _users(rows: Sequence[UnitHour]) -> list[UnitHour]:
    """The users at one time. A row without a tenant or engine repeats what is known of another one."""
    engines = {row.tenant for row in rows if row.engine}
    named = [row for row in rows if row.engine or row.tenant not in engines]
    return [row for row in named if row.tenant or row.engine] or named[:1]


def _of_one(slots: int, row: UnitHour, of_unit: tuple[int, int], size: str, share: Fraction) -> Iterator[SlotPart]:
    busy, idle = of_unit
    idle &= row.engine_idle if row.engine else ALL
    yield from _by_state(_key(row, size), share, slots, busy | row.engine_busy, idle)


def _by_state(key: PartKey, share: Fraction, slots: int, busy: int, idle: int) -> Iterator[SlotPart]:
    works = slots & busy
    inactive = slots & idle & ~busy
    for state, part in (
        (PartState.USED, works),
        (PartState.IDLE, inactive),
        (PartState.UNMEASURED, slots & ~works & ~inactive),
    ):
        if part:
            yield SlotPart(part, key, state, share)


def _name(row: UnitHour) -> str:
    return row.tenant or row.engine


def _key(row: UnitHour, size: str) -> PartKey:
    users = (_name(row),) if _name(row) else ()
    return PartKey(row.device, row.slice, row.profile, users, row.engine, row.model, size)
