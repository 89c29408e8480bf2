"""Answers of generated histories, recorded before the replay played tick by tick: they stay the same.

A change of a decision changes them: record them again then, and say in the commit what became better.
"""

import random

import pytest

from gpufleet.domain.policies import SpotPolicy
from replay import spot
from tests.replay.shapes import SHAPES, made

SPOT = {
    "one zone, dry": (1.0, 2.341137, 2.341137, 4, 0, 0, 1.0),
    "one zone, on and off": (1.083779, 11.371237, 2.341137, 12, 28, 28, 0.72875),
    "nine zones, on and off": (0.651254, 11.371237, 2.341137, 9, 44, 39, 0.205815),
    "three zones, on and off, no spare": (0.968813, 16.38796, 2.341137, 10, 22, 21, 0.69518),
    "three zones, irregular": (1.002602, 2.341137, 0.334448, 5, 1, 1, 0.989925),
    "nine zones, dry": (0.941054, 2.341137, 2.341137, 4, 2, 1, 0.889344),
    "nine zones, dear": (0.840385, 9.364548, 2.341137, 7, 6, 4, 0.620137),
    "nine zones, a target of 32": (0.87307, 9.395973, 4.697987, 33, 16, 5, 0.741149),
    "two zones, one wanted": (1.0, 13.043478, 13.043478, 1, 0, 0, 1.0),
    "five zones, slow ticks": (0.525418, 1.337793, 0.334448, 8, 9, 5, 0.281646),
}
"""Cost, percent of ticks below target and with none ready, on-demand and spot launches, losses, on-demand share."""
SKYSERVE = {
    "one zone, on and off": (0.905853, 21.070234, 9.698997, 27, 46, 46, 0.551615),
    "nine zones, on and off": (0.622575, 18.060201, 2.341137, 33, 43, 38, 0.175468),
    "nine zones, dear": (1.003972, 4.682274, 2.341137, 9, 13, 9, 0.530679),
}


@pytest.mark.parametrize(
    ("rule", "name", "answer"),
    [("own", *case) for case in SPOT.items()] + [("skyserve", *case) for case in SKYSERVE.items()],
)
def test_spot_markets(rule: str, name: str, answer: tuple[float, ...]) -> None:
    shape = SHAPES[name]
    terms = spot.Terms(target=shape.target, spare=shape.spare)
    score = spot.play(made(random.Random(1), shape), terms, spot.rule(rule, SpotPolicy()))
    assert tuple(score.answer().values())[3:] == answer
