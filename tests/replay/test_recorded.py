"""Compares results on generated histories with recorded results. The results are from before the replay ran tick by
tick.

A change of a decision changes them. Record them again in that case, and describe the improvement in the commit.
"""

import random
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.policies import IdlePolicy, ScalePolicy, SpotPolicy
from replay import idle, pools, spot
from replay.histories import load_activity
from tests.fixtures.replay.histories import history
from tests.fixtures.replay.recomputed import write_idle_history
from tests.fixtures.replay.shapes import SHAPES, made

MINUTE = timedelta(minutes=1)

SPOT = {
    "one zone, dry": (1.0, 2.341137, 2.341137, 4, 0, 0, 1.0),
    "one zone, on and off": (1.083779, 11.371237, 2.341137, 12, 28, 28, 0.72875),
    "nine zones, on and off": (0.651254, 11.371237, 2.341137, 9, 44, 39, 0.205815),
    "three zones, on and off, no spare": (0.968813, 16.38796, 2.341137, 10, 22, 21, 0.69518),
    "three zones, irregular": (1.002602, 2.341137, 0.334448, 5, 1, 1, 0.989925),
    "nine zones, dry": (0.941054, 2.341137, 2.341137, 4, 2, 1, 0.889344),
    "nine zones, expensive": (0.840385, 9.364548, 2.341137, 7, 6, 4, 0.620137),
    "nine zones, a target of 32": (0.87307, 9.395973, 4.697987, 33, 16, 5, 0.741149),
    "two zones, one wanted": (1.0, 13.043478, 13.043478, 1, 0, 0, 1.0),
    "five zones, slow ticks": (0.525418, 1.337793, 0.334448, 8, 9, 5, 0.281646),
}
"""Cost, percent of ticks below target and with none ready, on-demand and spot launches, losses, on-demand share."""
SKYSERVE = {
    "one zone, on and off": (0.905853, 21.070234, 9.698997, 27, 46, 46, 0.551615),
    "nine zones, on and off": (0.622575, 18.060201, 2.341137, 33, 43, 38, 0.175468),
    "nine zones, expensive": (1.003972, 4.682274, 2.341137, 9, 13, 9, 0.530679),
}


@pytest.mark.parametrize(
    ("rule", "name", "answer"),
    [("own", *case) for case in SPOT.items()] + [("skyserve", *case) for case in SKYSERVE.items()],
)
def test_spot_markets(rule: str, name: str, answer: tuple[float, ...]) -> None:
    shape = SHAPES[name]
    terms = spot.SpotTerms(target=shape.target, spare=shape.spare)
    score = spot.play(made(random.Random(1), shape), terms, spot.rule(rule, SpotPolicy()))
    assert tuple(score.answer().values())[3:] == answer


@pytest.mark.parametrize(
    ("seed", "answer"),
    [
        (1, (4.983333, 3, 2, 2.336449)),
        (2, (7.133333, 5, 5, 12.790698)),
        (4, (52.166667, 15, 15, 18.072289)),
        (5, (102.916667, 13, 11, 3.780069)),
        (7, (6.666667, 13, 13, 19.078947)),
    ],
)
def test_single_replicas(tmp_path: Path, seed: int, answer: tuple[float, ...]) -> None:
    policy = IdlePolicy(
        window=10 * MINUTE, grace=10 * MINUTE, min_age=20 * MINUTE, stop_price=10 * MINUTE, max_stops_per_day=9.5
    )
    found = load_activity(write_idle_history(random.Random(seed), tmp_path / "activity.csv"), 0.01)
    assert saved(idle.play(found, idle.rule("own", found, policy), 180)) == answer


@pytest.mark.parametrize(
    ("rule", "seed", "answer"),
    [
        ("own", 1, (1.248611, 1, 0, 9.6)),
        ("own", 5, (13.95, 7, 4, 0.0)),
        ("own", 7, (5.4, 35, 34, 1.798165)),
        ("own", 9, (32.516667, 15, 8, 0.0)),
        ("queue-threshold", 7, (10.383333, 15, 13, 2.715596)),
        ("queue-threshold", 9, (33.3, 10, 3, 4.203152)),
    ],
)
def test_replicas_of_pools(tmp_path: Path, rule: str, seed: int, answer: tuple[float, ...]) -> None:
    found, scale = history(random.Random(seed), tmp_path / "activity.csv", 300), ScalePolicy(down_after=5 * MINUTE)
    score = pools.play(found, lambda pool: pools.rule(rule, pool, IdlePolicy(), scale, 180), 180, 0.8)
    assert saved(score) == answer


def saved(score: idle.IdleScore) -> tuple[str | int | float, ...]:
    """Return GPU-hours saved, stops, wakes and percent unserved."""
    return tuple(score.answer()[name] for name in ("gpu_hours_saved", "stops", "wakes", "unserved_percent"))
