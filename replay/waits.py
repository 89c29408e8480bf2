"""Computes how many tokens of a FIFO queue wait longer than allowed.

The result is exact for tokens that arrive evenly within each part of time and are served evenly while the queue is
not empty. For tokens that arrive at the same moment, the computed wait is too short for the first and too long for
the last, by up to one part.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from replay.rows import Floats

ROUNDING: Final = 1e-11
"""Tolerance of sums of tokens, as a fraction of all tokens."""


def capacity(
    ready: Sequence[int], tick: float, per_second: float, boots: Sequence[float], max_wait: float
) -> tuple[Floats, Floats]:
    """Return times, and the number of tokens that could be served up to each. Values in between are linear.

    `ready` is the number of replicas by tick. `boots` are the times at which replicas that still boot at the end
    become ready: they help to serve the remaining queue.
    """
    end = len(ready) * tick
    over = [max(end, boot) for boot in boots]
    moments = np.concatenate((np.arange(len(ready) + 1) * tick, over, [max([end, *over]) + max_wait + tick]))
    rates = np.concatenate((np.asarray(ready, dtype=np.float64), ready[-1] + np.arange(len(over) + 1)))
    served: Floats = np.concatenate(([0.0], np.cumsum(rates * np.diff(moments) * per_second)))
    return moments, served


def late(pieces: Floats, piece: float, able: tuple[Floats, Floats], max_wait: float) -> float:
    """Return the number of tokens that wait longer than `max_wait`. `able` is the result of `capacity`."""
    edges, (moments, served) = np.arange(len(pieces) + 1) * piece, able
    # arrival times at which the slope of the capacity changes, shifted by the maximum wait
    bends = moments - max_wait
    knots = np.union1d(edges, bends[(bends > 0) & (bends < edges[-1])])
    came = np.interp(knots, edges, np.concatenate(([0.0], np.cumsum(pieces))))
    # unused capacity is lost: a token is served when the capacity exceeds its queue position plus the lost capacity
    lost = np.maximum.accumulate(np.interp(knots, moments, served) - came)
    due = np.interp(knots + max_wait, moments, served) + ROUNDING * max(1.0, float(came[-1]))
    first = came[:-1] + lost[:-1] - due[:-1]
    last = came[1:] + lost[:-1] - due[1:]
    whole = np.maximum(np.abs(first) + np.abs(last), np.finfo(np.float64).tiny)
    share = (np.maximum(0.0, first) + np.maximum(0.0, last)) / whole
    return float((share * np.diff(came)).sum())
