"""SIGKILL between any two steps, then a restart: nothing is done twice, nothing is lost, marks and ledger agree."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.ledgers import ledger_name
from gpufleet.domain.decisions import Target
from gpufleet.domain.model import CapacityType
from gpufleet.ledger import decisions, operations
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import OUTBOX, OUTCOMES
from gpufleet.settings.document import FleetDocument
from tests.fixtures.watchdogs.crashing import LEASE_HELD, Scene, opened, seeded
from tests.fixtures.watchdogs.plain import START, document, instance
from tests.fixtures.watchdogs.worlds import World, idle_world, mark
from tests.watchdogs.orphans.test_rules import orphan
from tests.watchdogs.orphans.test_watchdog import ruled, worlds
from tests.watchdogs.scale.test_scaling import BUSY, Store, scaled
from tests.watchdogs.spot.test_watchdog import SETTINGS, spread_world
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.orphans.watchdog import OrphanWatchdog
from watchdogs.policy import digests
from watchdogs.ports import Ports
from watchdogs.scale.watchdog import ScaleWatchdog
from watchdogs.spot.watchdog import SpotWatchdog

pytestmark = pytest.mark.slow

IDS = sorted(instance(n).id for n in (1, 2))
RESTARTS = 6
SCALE = {"requests_per_replica": 10}
PASS_EVERY = timedelta(minutes=1)


def idle(fleet: FleetDocument, ports: Ports) -> Any:
    return IdleWatchdog(fleet, ports).apply()


def spot(fleet: FleetDocument, ports: Ports) -> Any:
    return SpotWatchdog(fleet, ports).apply()


def scale(fleet: FleetDocument, ports: Ports) -> Any:
    """`Store` answers the scale watchdog's queries; what it says is the same whatever was done."""
    clock: Any = ports.clock
    store = Store(clock.world, LOADS[fleet.pools[0].target])
    return ScaleWatchdog(fleet, replace(ports, metrics=store)).apply()


def orphans(fleet: FleetDocument, ports: Ports) -> Any:
    return OrphanWatchdog(fleet, ports).apply()


LOADS = {0: {"held": 3.0}, 2: BUSY}
"""By the target that the pool starts with: requests wait for a pool at zero, another is overloaded."""


def loaded() -> World:
    return scaled(BUSY)[0]


def asleep() -> World:
    return World(targets={"batch": Target(pool="batch", value=0, version=1)})


def due() -> World:
    world = idle_world(2)
    for number in (1, 2):
        mark(world, number, START - timedelta(hours=1))
    return world


def lost() -> World:
    """One of two spot instances is gone, no zone has spot: on-demand must stand in."""
    world = spread_world()
    world.now += timedelta(hours=2)
    world.lose(IDS[0])
    return world


def surplus() -> World:
    """Two spot instances and a target of one."""
    world = spread_world()
    world.targets["batch"] = world.targets["batch"].__class__(pool="batch", value=1, version=1)
    return world


def told(scene: Scene, prefix: str) -> list[str]:
    engine = opened(scene)
    with engine.connect() as connection:
        found = [key for (key,) in connection.execute(select(OUTBOX.c.key)) if prefix in key]
    engine.dispose()
    return found


def outcomes(scene: Scene, watchdog: str, kind: str = "done") -> list[tuple[str, str]]:
    engine = opened(scene)
    table = OUTCOMES
    with engine.connect() as connection:
        rows = connection.execute(
            select(table.c.resource, table.c.action).where(table.c.watchdog == watchdog, table.c.kind == kind)
        ).all()
    assert decisions.unfinished(engine, ledger_name(scene.document), watchdog) == ()
    engine.dispose()
    return sorted((row.resource, row.action) for row in rows)


def ended_both(scene: Scene) -> None:
    world = scene.world()
    assert sorted(world.ended) == IDS
    assert world.groups["batch-spot-a"].desired == 0
    assert outcomes(scene, "idle") == [(key, "end") for key in IDS]
    assert len(told(scene, "ended:")) == 2
    engine = opened(scene)
    moves = operations.target_moves(engine, ledger_name(scene.document), "batch")
    engine.dispose()
    assert [move.value for move in moves] == [2, 1, 0], "once for each, whoever died in between"


def marked_both(scene: Scene) -> None:
    world = scene.world()
    assert all(one.idle_since is not None for one in world.instances.values())
    assert len(told(scene, "marked:")) == 2
    engine = opened(scene)
    for key in IDS:
        known = [past.decision.action for past in decisions.history(engine, ledger_name(scene.document), key)]
        assert "mark" in known, "the ledger knows of every mark"
    engine.dispose()


def stood_in(scene: Scene) -> None:
    world = scene.world()
    assert {name: group.desired for name, group in world.groups.items()} == {
        "batch-spot-a": 0,
        "batch-spot-b": 1,
        "batch-od": 1,
    }
    bought = [one for one in world.instances.values() if one.capacity_type is CapacityType.ON_DEMAND]
    assert world.launched == len(bought) == 1, "bought once"


def gave_one_back(scene: Scene) -> None:
    world = scene.world()
    assert len(world.ended) == 1
    assert sum(group.desired for group in world.groups.values()) == 1
    assert [action for _, action in outcomes(scene, "spot") if action == "end"] == ["end"]
    assert len(told(scene, "ended:")) == 1


def moves(scene: Scene) -> list[tuple[int, str]]:
    engine = opened(scene)
    found = operations.target_moves(engine, ledger_name(scene.document), "batch")
    engine.dispose()
    return [(move.value, move.changed_by) for move in found]


def raised_once(scene: Scene) -> None:
    assert moves(scene) == [(2, "settings"), (4, "scale")]
    assert outcomes(scene, "scale") == [("batch", "retarget")]


def woke_once(scene: Scene) -> None:
    assert moves(scene) == [(0, "settings"), (1, "scale")]
    assert len(told(scene, "scale:wake:")) == 1
    assert outcomes(scene, "scale") == [("batch", "retarget")]


@pytest.mark.parametrize(
    ("lease", "watch", "make", "check"),
    [
        pytest.param("idle", idle, due, ended_both, id="idle ends two"),
        pytest.param("idle", idle, lambda: idle_world(2), marked_both, id="idle marks two"),
        pytest.param("spot", spot, lost, stood_in, id="on-demand stands in"),
        pytest.param("spot", spot, surplus, gave_one_back, id="spot gives one back"),
        pytest.param("scale", scale, loaded, raised_once, id="scale raises a target"),
        pytest.param("scale", scale, asleep, woke_once, id="scale wakes a pool"),
    ],
)
def test_killed_before_any_call_the_next_passes_go_on(
    tmp_path: Path, lease: str, watch: Any, make: Callable[[], World], check: Callable[[Scene], None]
) -> None:
    fleet = document(watchdogs=SETTINGS | {"scale": SCALE}, target=make().targets["batch"].value)
    policies = {
        "idle": digests(fleet, "idle")["batch"],
        "spot": digests(fleet, "spot")["batch"],
        "scale": digests(fleet, "scale")["batch"],
    }
    ledger = seeded(tmp_path / "first.db", fleet, make(), policies)

    def scene(name: str) -> Scene:
        made = Scene(folder=tmp_path / name, document=fleet, lease=lease, watch=watch)
        made.begin(make(), ledger)
        return made

    whole = scene("whole")
    code, calls = whole.run()
    assert code == 0
    assert calls > 10
    settle(whole)
    check(whole)
    for nth in range(1, calls + 1):
        killed = scene(f"killed before call {nth}")
        assert killed.run(kill_before=nth) == (None, nth)
        settle(killed)
        check(killed)


def test_killed_before_any_call_an_orphan_is_stopped_once_and_told_of_once(tmp_path: Path) -> None:
    """It was marked two days ago by a whole pass; then each call in turn is the last of a pass."""
    fleet = ruled()
    world = worlds()
    ledger = seeded(tmp_path / "first.db", fleet, world, {})
    marked = Scene(folder=tmp_path / "marked", document=fleet, lease="orphans", watch=orphans)
    engine = open_ledger(f"sqlite:///{ledger}")
    rule = fleet.orphans[0].name
    seen = ("orphans", rule, digests(fleet, "orphans")[rule])
    operations.see_policy(engine, ledger_name(fleet), seen, "test", START)
    engine.dispose()
    marked.begin(world, ledger)
    assert marked.run()[0] == 0
    # looking also closes it, and only then the file alone is the whole ledger
    assert outcomes(marked, "orphans") == [(orphan().id, "mark")]
    due = marked.world()
    due.now += timedelta(days=2)

    def scene(name: str) -> Scene:
        made = Scene(folder=tmp_path / name, document=fleet, lease="orphans", watch=orphans)
        made.begin(due, marked.folder / "ledger.db")
        return made

    whole = scene("whole")
    code, calls = whole.run()
    assert code == 0
    assert calls > 10
    for nth in range(1, calls + 1):
        killed = scene(f"killed before call {nth}")
        assert killed.run(kill_before=nth) == (None, nth)
        settle(killed)
        assert killed.world().stopped == [orphan().id]
        assert killed.world().instances[orphan().id].idle_since is None
        assert outcomes(killed, "orphans") == [(orphan().id, "mark"), (orphan().id, "stop")]
        assert len(told(killed, "stopped:")) == len(told(killed, "marked:")) == 1


def settle(scene: Scene) -> None:
    """Passes at their usual pace until the world has been still for one."""
    before = None
    for _ in range(RESTARTS):
        world = scene.world()
        now = (dict(world.instances), dict(world.groups), dict(world.agents))
        if now == before:
            return
        before = now
        world.now += PASS_EVERY
        scene.save(world)
        assert scene.run()[0] == 0, "a killed run on this machine blocks nobody"


def test_a_live_neighbour_keeps_its_lease(tmp_path: Path) -> None:
    fleet = document(watchdogs=SETTINGS)
    scene = Scene(folder=tmp_path / "scene", document=fleet, lease="idle", watch=idle)
    scene.begin(due(), seeded(tmp_path / "first.db", fleet, due(), {}))
    (scene.folder / "calls").write_text("0")
    engine = opened(scene)
    name = f"{ledger_name(fleet)}:idle"
    assert operations.acquire_lease(engine, name, "another-host/b/1/2", (START, timedelta(minutes=10))) is None
    assert scene.run() == (LEASE_HELD, 0)
    assert not scene.world().ended
    late = scene.world()
    late.now += timedelta(minutes=11)
    scene.save(late)
    assert scene.run()[0] == 0, "its term is over"
    engine.dispose()
