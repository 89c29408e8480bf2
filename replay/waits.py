"""How many tokens wait longer than they may, in a line that is served in its order.

Exact for tokens that come evenly within each piece of time and are served evenly while any wait. Of those that come
at one moment the first ones seem to wait less, and the last ones longer, by up to a piece.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from replay.rows import Floats

ROUNDING: Final = 1e-11
"""Share of all tokens that sums of them may be off."""


def capacity(
    ready: Sequence[int], tick: float, per_second: float, boots: Sequence[float], max_wait: float
) -> tuple[Floats, Floats]:
    """Moments, and the tokens that could be served up to each: straight lines in between.

    `ready`: replicas by tick. `boots`: when those that still boot at the end would be ready: the line is served on.
    """
    end = len(ready) * tick
    over = [max(end, boot) for boot in boots]
    moments = np.concatenate((np.arange(len(ready) + 1) * tick, over, [max([end, *over]) + max_wait + tick]))
    rates = np.concatenate((np.asarray(ready, dtype=np.float64), ready[-1] + np.arange(len(over) + 1)))
    served: Floats = np.concatenate(([0.0], np.cumsum(rates * np.diff(moments) * per_second)))
    return moments, served


def late(pieces: Floats, piece: float, able: tuple[Floats, Floats], max_wait: float) -> float:
    """Tokens that are served later than `max_wait` after they came. `able`: `capacity`."""
    edges, (moments, served) = np.arange(len(pieces) + 1) * piece, able
    # where any of the straight lines bends, seen from the tokens that come then
    bends = moments - max_wait
    knots = np.union1d(edges, bends[(bends > 0) & (bends < edges[-1])])
    came = np.interp(knots, edges, np.concatenate(([0.0], np.cumsum(pieces))))
    # capacity that found nothing to serve is lost: a token is served when its place, and all of that, has passed
    lost = np.maximum.accumulate(np.interp(knots, moments, served) - came)
    due = np.interp(knots + max_wait, moments, served) + ROUNDING * max(1.0, float(came[-1]))
    first = came[:-1] + lost[:-1] - due[:-1]
    last = came[1:] + lost[:-1] - due[1:]
    whole = np.maximum(np.abs(first) + np.abs(last), np.finfo(np.float64).tiny)
    share = (np.maximum(0.0, first) + np.maximum(0.0, last)) / whole
    return float((share * np.diff(came)).sum())
