"""For whose answer a pass of the spot watchdog waits before it looks again, and for whose it does not."""

from dataclasses import replace
from datetime import timedelta

from fleet.activity import CloudError
from tests.watchdogs.plain import instance
from tests.watchdogs.test_spot_watchdog import OD, A, B, sizes, spread_world, watchdog
from tests.watchdogs.worlds import World
from watchdogs.plan import OutcomeKind

WAIT = timedelta(seconds=20)
"""`fallback_after` of these pools."""


def silent(world: World, *names: str) -> None:
    """Those groups neither launch nor refuse."""
    loud = world.reconcile
    world.reconcile = lambda name: None if name in names else loud(name)  # type: ignore[method-assign]


def failing(world: World, call: int) -> None:
    """One of the size writes is lost."""
    calls = iter(range(1, 1000))

    def before(name: str) -> None:
        if name == "resize" and next(calls) == call:
            raise CloudError("RequestLimitExceeded")

    world.before = before


def test_nobody_waits_for_what_stands_in() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    silent(world, OD)
    before = world.now
    watchdog(world).apply()
    assert sizes(world) == (0, 1, 1)
    assert world.now == before


def test_a_silent_zone_is_waited_for_once() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    silent(world, A, B)
    before = world.now
    watchdog(world).apply()
    assert sizes(world)[2] == 1
    assert WAIT <= world.now - before < 2 * WAIT


def test_an_ask_that_got_lost_is_not_waited_for() -> None:
    world = spread_world()
    world.lose(instance(1).id)
    world.capacity[B] = 1
    failing(world, call=2)  # the first one gives up the place in zone A
    before = world.now
    watchdog(world).apply()
    assert (B, OutcomeKind.FAILED) in world.kinds()
    assert (world.now, sizes(world)) == (before, (0, 2, 0))


def test_after_a_lost_ask_the_others_answers_are_still_acted_on() -> None:
    """Both zones are asked for one; the ask of zone A is lost, and zone B has none."""
    world = spread_world()
    world.targets["batch"] = replace(world.targets["batch"], value=4)
    world.capacity[A] = 2
    failing(world, call=1)
    watchdog(world).apply()
    assert (A, OutcomeKind.FAILED) in world.kinds()
    assert sizes(world) == (3, 1, 0)
