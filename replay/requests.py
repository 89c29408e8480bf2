"""Replays recorded requests against a rule that sizes a pool. Tokens queue in order of arrival, and replicas serve
them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from replay import waits
from replay.histories import Arrivals
from replay.rows import Floats
from replay.sizers import Queue, Sizer, needed

RATE_SPAN: Final = 60.0
"""Demand is the mean over this many seconds."""
MAX_REPLICAS: Final = 1_000_000
"""Maximum number of replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """The capacity of replicas and the latency objective."""

    tokens_per_second: float
    """Per replica, input and output tokens together."""
    cold_start: float = 180.0
    max_wait: float = 10.0
    """In seconds. Tokens that wait longer miss the objective, including tokens served after the end of the history
    (see `waits`).
    """


@dataclass(slots=True)
class RequestScore:
    """The result of a replay."""

    rule: str
    replica_hours: float = 0.0
    peak_replicas: int = 0
    late: float = 0.0
    tokens: float = 0.0
    moves: int = 0
    fixed_hours: float = 0.0

    def answer(self) -> dict[str, str | int | float]:
        """Return the fields that the command prints."""
        return {
            "rule": self.rule,
            "replica_hours": round(self.replica_hours, 6),
            "peak_replicas": self.peak_replicas,
            "slo_missed_percent": round(100 * self.late / self.tokens, 6) if self.tokens else 0.0,
            "moves": self.moves,
            "cost_ratio": round(self.replica_hours / self.fixed_hours, 6) if self.fixed_hours else 0.0,
        }


def play(arrivals: Arrivals, terms: RequestTerms, sizer: Sizer, name: str) -> RequestScore:
    """Replay the whole history. In each tick, booted replicas become ready, the rule decides, and tokens are served
    in order.
    """
    score = RequestScore(rule=name, tokens=float(arrivals.tokens.sum()))
    tick, per_tick = arrivals.tick, terms.tokens_per_second * arrivals.tick
    span = max(1, round(RATE_SPAN / tick))
    recent: deque[float] = deque(maxlen=span)
    ready = min(MAX_REPLICAS, max(1, needed(float(arrivals.tokens[:span].mean()) / per_tick)))
    booting: deque[float] = deque()
    line, served_by = _Line(), list[int]()
    per_request = np.broadcast_to(arrivals.tokens_per_request, len(arrivals.tokens)).tolist()
    for number, (arrived, each) in enumerate(zip(arrivals.tokens.tolist(), per_request, strict=True)):
        at = number * tick
        ready += _booted(booting, at)
        recent.append(arrived)
        demand = sum(recent) / len(recent) / per_tick
        running = ready + len(booting)
        waiting = Queue(requests=line.backlog / each, replica_s=line.backlog / terms.tokens_per_second)
        target = min(MAX_REPLICAS, max(0, sizer.target(at, demand, ready, running, waiting)))
        score.moves += target != running
        while ready + len(booting) < target:
            booting.append(at + terms.cold_start)
        ready += _booted(booting, at)  # without a cold start
        while ready + len(booting) > target:
            if booting:
                booting.pop()
            else:
                ready -= 1
        running = ready + len(booting)
        score.replica_hours += running * tick / 3600
        score.peak_replicas = max(score.peak_replicas, running)
        line.serve(arrived, ready * per_tick)
        served_by.append(ready)
    able = waits.capacity(served_by, tick, terms.tokens_per_second, booting, terms.max_wait)
    score.late = waits.late(*_pieces(arrivals), able, terms.max_wait)
    score.fixed_hours = fixed_peak(arrivals, terms) * len(arrivals.tokens) * tick / 3600
    return score


def _booted(booting: deque[float], at: float) -> int:
    """Return how many replicas became ready, and remove them from `booting`."""
    before = len(booting)
    while booting and booting[0] <= at:
        booting.popleft()
    return before - len(booting)


def fixed_peak(arrivals: Arrivals, terms: RequestTerms) -> int:
    """Return the smallest constant number of replicas with which no token waits too long."""
    pieces, piece = _pieces(arrivals)
    ticks = len(arrivals.tokens)
    over = ticks * arrivals.tick + terms.max_wait + arrivals.tick

    def enough(replicas: int) -> bool:
        able = np.array([0.0, over]), np.array([0.0, over * replicas * terms.tokens_per_second])
        return waits.late(pieces, piece, able, terms.max_wait) == 0

    return _least(enough, 1, max(1, ceil(float(pieces.max()) / (terms.tokens_per_second * piece))))


def _pieces(arrivals: Arrivals) -> tuple[Floats, float]:
    """Return the arrivals in the finest known resolution, and the length of a part in seconds."""
    pieces = arrivals.tokens if arrivals.pieces is None else arrivals.pieces
    return pieces, arrivals.tick * len(arrivals.tokens) / len(pieces)


def _least(enough: Callable[[int], bool], low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


class _Line:
    """The queue of tokens, in whole ticks: tokens can be served in the tick in which they arrive."""

    def __init__(self) -> None:
        self._arrived = self._served = 0.0

    @property
    def backlog(self) -> float:
        left = self._arrived - self._served
        return left if left > waits.ROUNDING * self._arrived else 0.0

    def serve(self, arrived: float, capacity: float) -> None:
        self._arrived += arrived
        self._served = min(self._arrived, self._served + capacity)
