"""Generates synthetic replica activity of thirteen kinds, which model users, jobs and programs on inference GPUs.

No kind is fitted to a recorded history. Together they cover what is published about real GPUs: a GPU works
between a twentieth and a third of its time, most idle periods last minutes, and a few long ones contain most of the
idle time.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Active = npt.NDArray[np.float32]
"""`gpu_active` by tick and replica."""
STEP: Final = 60.0
DAY: Final = 1440
"""Number of ticks per day."""


def _sun(ticks: int, low: float) -> npt.NDArray[np.float64]:
    """Return a daily cycle from `low` at night to 1 in the early afternoon."""
    hours = (np.arange(ticks) * STEP / 3600) % 24
    return low + (1 - low) * (0.5 + 0.5 * np.cos((hours - 14) / 24 * 2 * np.pi))


def _spell(  # noqa: PLR0913 - what a spell is, in one place
    random: np.random.Generator, column: npt.NDArray[np.float32], at: int, median: float, spread: float, level: float
) -> int:
    """Add a busy period that starts at a tick. Return the first tick after it."""
    length = max(1, round(random.lognormal(np.log(median), spread)))
    count = len(column[at : at + length])
    column[at : at + length] = np.clip(level * random.lognormal(0, 0.5, count), 0.02, 1)
    return at + length


def dense(replicas: int, days: float, seed: int) -> Active:
    """Short idle periods with few long ones; a third of the time is work."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    sun = _sun(len(found), 0.5)
    for column in found.T:
        rest, spread = np.exp(random.normal(0.75, 0.8)), random.uniform(0.9, 1.6)
        busy, level, at = np.exp(random.normal(0.4, 0.9)), random.beta(1.5, 5), int(random.integers(0, 30))
        while at < len(column):
            at = _spell(random, column, at, busy, 1.1, level)
            length = random.lognormal(np.log(rest), spread)
            length += 30 * random.pareto(1.4) if random.random() < 0.012 else 0
            at += max(1, round(length / sun[min(at, len(column) - 1)]))
    return found


def sessions(replicas: int, days: float, seed: int) -> Active:
    """User sessions: short idle periods within a session, long ones between sessions."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    sun = _sun(len(found), 0.25)
    for column in found.T:
        every, last = np.exp(random.normal(np.log(80), 0.7)), np.exp(random.normal(np.log(60), 0.6))
        rest, busy = np.exp(random.normal(np.log(2.5), 0.6)), np.exp(random.normal(np.log(3), 0.5))
        level, at = random.beta(1.5, 5), int(random.exponential(every))
        while at < len(column):
            end = at + random.lognormal(np.log(last), 0.8)
            while at < min(end, len(column)):
                at = _spell(random, column, at, busy, 0.8, level)
                at += max(1, round(random.lognormal(np.log(rest), 1.0)))
            at += round(random.lognormal(np.log(every), 1.0) / sun[min(at, len(column) - 1)])
    return found


def office(replicas: int, days: float, seed: int) -> Active:
    """Work during the day, almost none at night."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    for column in found.T:
        start, end = random.normal(8.5, 1), random.normal(18, 1.5)
        rest, level, at = np.exp(random.normal(1.5, 0.7)), random.beta(2, 4), 0
        while at < len(column):
            open_now = start <= (at * STEP / 3600) % 24 < end
            at = _spell(random, column, at, np.e, 0.8, level)
            at += max(1, round(random.lognormal(np.log(rest * (1 if open_now else 15)), 1.0)))
    return found


def batch(replicas: int, days: float, seed: int) -> Active:
    """A job at regular intervals."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    for column in found.T:
        period, level = random.choice([30, 60, 90, 120, 180, 360, 720]), random.beta(2, 3)
        busy, at = period * random.uniform(0.1, 0.5), int(random.integers(0, period))
        while at < len(column):
            over = _spell(random, column, at, busy, 0.2, level)
            at = max(over + 1, round(at + period + random.normal(0, 3)))
    return found


def bursty(replicas: int, days: float, seed: int) -> Active:
    """Idle periods with a Pareto distribution, up to two days."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    for column in found.T:
        tail, rest = random.uniform(0.8, 1.8), np.exp(random.normal(0.8, 0.8))
        busy, level, at = np.exp(random.normal(0.7, 0.7)), random.beta(1.5, 5), 0
        while at < len(column):
            at = _spell(random, column, at, busy, 1.0, level)
            at += max(1, round(min(rest * (1 + random.pareto(tail)), 2 * DAY)))
    return found


def busy(replicas: int, days: float, seed: int) -> Active:
    """Almost no idle time."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    for column in found.T:
        rest, busy, level, at = np.exp(random.normal(0.2, 0.5)), np.exp(random.normal(2, 0.7)), random.beta(3, 4), 0
        while at < len(column):
            at = _spell(random, column, at, busy, 1.0, level)
            at += max(1, round(random.lognormal(np.log(rest), 1.2)))
    return found


def visits(replicas: int, days: float, seed: int) -> Active:
    """Independent requests to replicas whose popularity differs by a factor of one hundred."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    sun = _sun(len(found), 0.3)
    for column in found.T:
        rate = np.exp(random.normal(np.log(1 / 12), 1.3))
        busy, level = np.exp(random.normal(0.5, 0.7)), random.beta(1.5, 4)
        for at in np.flatnonzero(random.random(len(column)) < 1 - np.exp(-rate * sun)).tolist():
            _spell(random, column, at, busy, 0.8, level)
    return found


def regimes(replicas: int, days: float, seed: int) -> Active:
    """Alternating hours of use and disuse, with an occasional request during disuse."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    for column in found.T:
        used, unused = np.exp(random.normal(np.log(120), 0.6)), np.exp(random.normal(np.log(200), 0.7))
        rest, stray = np.exp(random.normal(1.2, 0.7)), np.exp(random.normal(np.log(150), 0.6))
        on, level, at = random.random() < 0.5, random.beta(1.5, 4), 0
        while at < len(column):
            end = at + max(5, round(random.lognormal(np.log(used if on else unused), 1.0)))
            while at < min(end, len(column)):
                at = _spell(random, column, at, 2.0 if on else 1.0, 0.9, level)
                at += max(1, round(random.exponential(rest if on else stray)))
            on = not on
    return found


def cron(replicas: int, days: float, seed: int) -> Active:
    """Jobs on the hour, from hourly to daily. Half of the replicas also have users."""
    random = np.random.default_rng(seed)
    found = np.zeros((int(days * DAY), replicas), dtype=np.float32)
    for column in found.T:
        period, level = int(random.choice([60, 120, 240, 480, 1440])), random.beta(2, 3)
        busy = max(2.0, period * random.uniform(0.05, 0.3))
        for at in range(int(random.integers(0, period)), len(column), period):
            _spell(random, column, at, busy, 0.2, level)
        if random.random() < 0.5:
            for at in np.flatnonzero(random.random(len(column)) < 1 / random.choice([60, 150, 400])).tolist():
                _spell(random, column, at, 3.0, 0.8, level)
    return found


def dead(replicas: int, days: float, seed: int) -> Active:
    """Like `dense`, but a tenth of the replicas never works, and another tenth stops working permanently at some
    time.
    """
    random = np.random.default_rng(seed)
    found = dense(replicas, days, seed)
    for number in random.permutation(replicas)[: replicas // 5].tolist():
        first = 0 if number % 2 else int(random.integers(0, len(found)))
        found[first:, number] = 0
    return found


def _drifting(random: np.random.Generator, ticks: int, count: int, hours: float) -> npt.NDArray[np.float64]:
    """Return autocorrelated noise by tick and column, with mean 0 and variance 1. The correlation decays to 1/e after
    `hours`.
    """
    keeps = np.exp(-STEP / 3600 / hours)
    found = random.normal(size=(ticks, count))
    found[1:] *= np.sqrt(1 - keeps**2)
    for tick in range(1, ticks):
        found[tick] += keeps * found[tick - 1]
    return found


def _visited(
    random: np.random.Generator, rate: npt.NDArray[np.float64], median: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """Return random visits with rates by tick and replica. Each visit is a short busy period."""
    found = np.zeros(rate.shape, dtype=np.float32)
    for replica, column in enumerate(found.T):
        level = random.beta(1.5, 4)
        for at in np.flatnonzero(random.random(len(column)) < 1 - np.exp(-rate[:, replica])).tolist():
            _spell(random, column, at, median[replica], 0.8, level)
    return found


def drift(replicas: int, days: float, seed: int) -> Active:
    """Random visits to replicas whose popularity differs by a factor of thirty and drifts over hours.

    Of all kinds, this one is closest to 94 recorded GPUs of GenTD26: a third of the time is work, with
    117 idle periods per day and replica, of which 34 exceed 5 minutes, 13 exceed 15, 6 exceed 30 and 2 exceed an
    hour.
    """
    random = np.random.default_rng(seed)
    ticks = int(days * DAY)
    popular = random.normal(np.log(0.26), 1.75, replicas)
    moods = 1.45 * _drifting(random, ticks, replicas, 4) + 0.95 * _drifting(random, ticks, replicas, 0.3)
    rate = np.exp(popular + moods) * _sun(ticks, 0.4)[:, None]
    return _visited(random, rate, np.exp(random.normal(np.log(0.8), 0.4, replicas)))


def services(replicas: int, days: float, seed: int) -> Active:
    """Like `drift`, for services with one to many replicas. Visits reach the replicas of a service in turn, so they
    are used together.
    """
    random = np.random.default_rng(seed)
    ticks = int(days * DAY)
    service = np.repeat(np.arange(replicas), np.maximum(1, 1.4 * random.pareto(1.1, replicas)).astype(int))[:replicas]
    count = int(service[-1]) + 1
    popular = random.normal(np.log(0.17), 1.7, count)
    moods = 0.75 * (_drifting(random, ticks, count, 14) + _drifting(random, ticks, count, 1.2))
    rate = np.exp(popular + moods)[:, service] * np.exp(random.normal(0, 0.5, replicas))
    return _visited(random, rate, np.exp(random.normal(np.log(0.85), 0.35, replicas)))


def uneven(replicas: int, days: float, seed: int) -> Active:
    """Like `drift`, but replicas share part of the variation, and the utilisation of each varies from low to full.

    As one pool with a few shared bursts (`together`), known rules get results close to those on
    94 recorded GPUs of GenTD26: the hour's peak saves 82 to 84 percent with 0.4 to 0.7 unserved, and that peak x 1.25
    + 1 saves 76 to 79.
    """
    random = np.random.default_rng(seed)
    ticks = int(days * DAY)
    popular = random.normal(np.log(0.26), 1.75, replicas)
    moods = 1.45 * _drifting(random, ticks, replicas, 4) + 0.95 * _drifting(random, ticks, replicas, 0.3)
    shared = 0.2 * _drifting(random, ticks, 1, 2) + 0.5 * _drifting(random, ticks, 1, 0.2)
    rate = np.exp(popular + moods + shared) * _sun(ticks, 0.25)[:, None]
    at_work = _visited(random, rate, np.exp(random.normal(np.log(0.8), 0.4, replicas))) > 0
    level = random.beta(0.3, 1.6, replicas) * np.exp(1.2 * random.normal(size=rate.shape))
    return np.where(at_work, np.clip(level, 0.02, 1), 0).astype(np.float32)


KINDS: Final[Mapping[str, Callable[[int, float, int], Active]]] = {
    "dense": dense,
    "sessions": sessions,
    "office": office,
    "batch": batch,
    "bursty": bursty,
    "busy": busy,
    "visits": visits,
    "regimes": regimes,
    "cron": cron,
    "dead": dead,
    "drift": drift,
    "services": services,
    "uneven": uneven,
}


def together(active: Active, bursts: int, seed: int) -> Active:
    """Add bursts of several minutes, each shared by a twentieth to a fifth of the replicas."""
    random = np.random.default_rng(seed)
    found = active.copy()
    for _ in range(bursts):
        at, length = int(random.integers(0, len(found))), int(random.lognormal(np.log(8), 0.8)) + 1
        who = random.random(found.shape[1]) < random.uniform(0.05, 0.2)
        found[at : at + length, who] = np.maximum(found[at : at + length, who], random.beta(3, 3))
    return found


def write(path: Path, active: np.ndarray, pool: str | None = None) -> None:
    """Write a file that `gpufleet replay idle` reads."""
    tokens = np.cumsum(active * 1000, axis=0)
    with path.open("w", encoding="utf-8") as file:
        end = "" if pool is None else f",{pool}"
        header = "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total"
        file.write(f"{header}{',pool' if pool else ''}\n")
        for tick, row in enumerate(active):
            file.writelines(
                f"{tick * STEP:.0f},r{replica:03},{value:.4f},{int(value > 0)},0,{tokens[tick, replica]:.0f}{end}\n"
                for replica, value in enumerate(row.tolist())
            )
