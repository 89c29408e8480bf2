"""Random markets of many shapes: dry ones, ones on and off, dear ones."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.histories import Market


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a market, and of the pool that is played on it."""

    zones: int
    ticks: int = 300
    changes: float = 0.02
    """Chance that a zone changes at a tick."""
    up: float = 0.1
    """Chance that it has room then."""
    room: int = 3
    steps: Sequence[float] = (60.0,)
    priced: bool = False
    target: int = 4
    spare: int = 1


SHAPES = {
    "one zone, dry": Shape(zones=1),
    "one zone, on and off": Shape(zones=1, changes=0.1, up=0.6, room=8),
    "nine zones, on and off": Shape(zones=9, changes=0.05, up=0.5),
    "three zones, on and off, no spare": Shape(zones=3, changes=0.05, up=0.5, spare=0),
    "three zones, irregular": Shape(zones=3, steps=(60.0, 61.5, 20.3, 400.0), spare=2),
    "nine zones, dry": Shape(zones=9, changes=0.005, up=0.05),
    "nine zones, dear": Shape(zones=9, priced=True),
    "nine zones, a target of 32": Shape(zones=9, target=32, up=0.6, room=4, ticks=150),
    "two zones, one wanted": Shape(zones=2, target=1, spare=0, steps=(10.0,)),
    "five zones, slow ticks": Shape(zones=5, steps=(900.0,), up=0.3),
}


def made(chance: random.Random, shape: Shape) -> Market:
    """A market of that shape."""
    zones = [f"us-{side}-{n}a" for n in range(shape.zones) for side in ("east", "west")][: shape.zones]
    room, price, times = dict.fromkeys(zones, 0), dict.fromkeys(zones, 0.3), [chance.choice([0.0, 1.7e9, 0.1])]
    rooms, prices = list[list[float]](), list[list[float]]()
    for _ in range(shape.ticks):
        for zone in zones:
            if chance.random() < shape.changes:
                room[zone] = chance.randrange(1, shape.room + 1) if chance.random() < shape.up else 0
            price[zone] = chance.choice([0.2, 0.3, 0.9, 0.95]) if chance.random() < 0.01 else price[zone]
        times.append(times[-1] + chance.choice(shape.steps))
        rooms.append([*room.values()])
        prices.append([*price.values()])
    priced = np.array(prices) if shape.priced else None
    return Market(zones=zones, times=np.array(times[:-1]), available=np.array(rooms), prices=priced)
