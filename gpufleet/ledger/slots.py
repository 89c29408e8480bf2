"""Slots of ten seconds: the unit in which the ledger stores whether an instance was busy or idle."""

from typing import Final

SLOT_US: Final = 10_000_000
HOUR_US: Final = 3_600_000_000
SLOTS: Final = HOUR_US // SLOT_US


def overlap(bits: int, begin: int, stop: int) -> int:
    """Return the microseconds of set slots between two times of the hour (`begin` < `stop`, in microseconds)."""
    if not bits:
        return 0
    first, last = begin // SLOT_US, (stop - 1) // SLOT_US
    inside = (bits >> first) & ((1 << (last - first + 1)) - 1)
    length = inside.bit_count() * SLOT_US
    if inside & 1:
        length -= begin - first * SLOT_US
    if inside >> (last - first) & 1:
        length -= (last + 1) * SLOT_US - stop
    return length
