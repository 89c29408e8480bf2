"""What histories are recorded as, and how they are read: `replay.rows` reads the columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from replay import rows
from replay.rows import Column, Floats, TraceError

MOST_AVAILABLE: Final = 1e9
"""Instances that a zone may give; whoever writes more means: as many as you like."""

_MARKET: Final = (
    Column(name="time_s", at_least=None),
    Column(name="zone", text=True),
    Column(name="available"),
    Column(name="spot_price", optional=True, empty=True, at_most=1e6),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """A history of how many instances each zone would give."""

    zones: Sequence[str]
    times: Floats
    available: Floats
    """By tick and zone."""
    prices: Floats | None
    """By tick and zone, in the unit of the on-demand price; None: not recorded."""


def load_market(path: Path) -> Market:
    """Raises TraceError: what is wrong, with the line."""
    table = rows.read(path, _MARKET)
    times, codes, zones = table.numbers["time_s"], table.codes["zone"], table.names["zone"]
    starts = rows.ticks(table, times)
    if len(starts) < 3:
        raise TraceError(f"{path}: one moment only; a history has at least two")
    tick = rows.tick_of_row(starts)
    rows.no_doubles(table, "zone", tick, codes, len(zones))

    def by_tick(values: Floats, missing: float) -> Floats:
        found = np.full((len(starts) - 1, len(zones)), missing)
        rows.put(found, tick, codes, values)
        return found

    prices = table.numbers.get("spot_price")
    return Market(
        zones=zones,
        times=times[starts[:-1]],
        # a zone without a row gives nothing at that tick: nobody saw an instance there
        available=by_tick(np.minimum(table.numbers["available"], MOST_AVAILABLE), missing=0.0),
        prices=None if prices is None else by_tick(prices, missing=float("nan")),
    )
