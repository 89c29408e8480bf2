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
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.orphans import orphan, orphan_fleet, ruled
from tests.fixtures.watchdogs.plain import START, document, instance
from tests.fixtures.watchdogs.scale import BUSY, Store, scaled
from tests.fixtures.watchdogs.spot import SETTINGS, spread_fleet
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.orphans.watchdog import OrphanWatchdog
from watchdogs.policy import digests
from watchdogs.ports import Ports
from watchdogs.scale.watchdog import ScaleWatchdog
from watchdogs.spot.watchdog import SpotWatchdog

pytestmark = pytest.mark.slow

IDS = sorted(instance(n).id for n in (1, 2))
SCALE = {"requests_per_replica": 10}


def idle(fleet: FleetDocument, ports: Ports) -> Any:
    return IdleWatchdog(fleet, ports).apply()


def spot(fleet: FleetDocument, ports: Ports) -> Any:
    return SpotWatchdog(fleet, ports).apply()


def scale(fleet: FleetDocument, ports: Ports) -> Any:
    """`Store` answers the scale watchdog's queries; what it says is the same whatever was done."""
    clock: Any = ports.clock
    store = Store(clock.fleet, LOADS[fleet.pools[0].target])
    return ScaleWatchdog(fleet, replace(ports, metrics=store)).apply()


def orphans(fleet: FleetDocument, ports: Ports) -> Any:
    return OrphanWatchdog(fleet, ports).apply()


LOADS = {0: {"held": 3.0}, 2: BUSY}
"""By the target that the pool starts with: requests wait for a pool at zero, another is overloaded."""


def loaded() -> FakeFleet:
    return scaled(BUSY)[0]


def asleep() -> FakeFleet:
    return FakeFleet(targets={"batch": Target(pool="batch", value=0, version=1)})


def due() -> FakeFleet:
    fake = idle_fleet(2)
    for number in (1, 2):
        mark(fake, number, START - timedelta(hours=1))
    return fake


def lost() -> FakeFleet:
    """One of two spot instances has ended, no zone has spot: on-demand must replace it."""
    fake = spread_fleet()
    fake.now += timedelta(hours=2)
    fake.lose(IDS[0])
    return fake


def surplus() -> FakeFleet:
    """Two spot instances and a target of one."""
    fake = spread_fleet()
    fake.targets["batch"] = fake.targets["batch"].__class__(pool="batch", value=1, version=1)
    return fake


def messages_of(scene: Scene, prefix: str) -> list[str]:
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
    fake = scene.fleet()
    assert sorted(fake.ended) == IDS
    assert fake.groups["batch-spot-a"].desired == 0
    assert outcomes(scene, "idle") == [(key, "end") for key in IDS]
    assert len(messages_of(scene, "ended:")) == 2
    engine = opened(scene)
    moves = operations.target_moves(engine, ledger_name(scene.document), "batch")
    engine.dispose()
    assert [move.value for move in moves] == [2, 1, 0], "once for each, whoever died in between"


def marked_both(scene: Scene) -> None:
    fake = scene.fleet()
    assert all(one.idle_since is not None for one in fake.instances.values())
    assert len(messages_of(scene, "marked:")) == 2
    engine = opened(scene)
    for key in IDS:
        known = [past.decision.action for past in decisions.history(engine, ledger_name(scene.document), key)]
        assert "mark" in known, "the ledger knows of every mark"
    engine.dispose()


def use_fallback(scene: Scene) -> None:
    fake = scene.fleet()
    assert {name: group.desired for name, group in fake.groups.items()} == {
        "batch-spot-a": 0,
        "batch-spot-b": 1,
        "batch-od": 1,
    }
    bought = [one for one in fake.instances.values() if one.capacity_type is CapacityType.ON_DEMAND]
    assert fake.launched == len(bought) == 1, "bought once"


def gave_one_back(scene: Scene) -> None:
    fake = scene.fleet()
    assert len(fake.ended) == 1
    assert sum(group.desired for group in fake.groups.values()) == 1
    assert [action for _, action in outcomes(scene, "spot") if action == "end"] == ["end"]
    assert len(messages_of(scene, "ended:")) == 1


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
    assert len(messages_of(scene, "scale:wake:")) == 1
    assert outcomes(scene, "scale") == [("batch", "retarget")]


@pytest.mark.parametrize(
    ("lease", "watch", "make", "check"),
    [
        pytest.param("idle", idle, due, ended_both, id="idle ends two"),
        pytest.param("idle", idle, lambda: idle_fleet(2), marked_both, id="idle marks two"),
        pytest.param("spot", spot, lost, use_fallback, id="on-demand replaces spot"),
        pytest.param("spot", spot, surplus, gave_one_back, id="spot gives one back"),
        pytest.param("scale", scale, loaded, raised_once, id="scale raises a target"),
        pytest.param("scale", scale, asleep, woke_once, id="scale wakes a pool"),
    ],
)
def test_after_a_kill_at_any_call_the_next_passes_continue(
    tmp_path: Path, lease: str, watch: Any, make: Callable[[], FakeFleet], check: Callable[[Scene], None]
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
    whole.recover()
    check(whole)
    for nth in range(1, calls + 1):
        killed = scene(f"killed before call {nth}")
        assert killed.run(kill_before=nth) == (None, nth)
        killed.recover()
        check(killed)


def test_after_a_kill_at_any_call_an_orphan_is_stopped_and_notified_once(tmp_path: Path) -> None:
    """It was marked two days ago by a whole pass; then each call in turn is the last of a pass."""
    fleet = ruled()
    fake = orphan_fleet()
    ledger = seeded(tmp_path / "first.db", fleet, fake, {})
    marked = Scene(folder=tmp_path / "marked", document=fleet, lease="orphans", watch=orphans)
    engine = open_ledger(f"sqlite:///{ledger}")
    rule = fleet.orphans[0].name
    seen = ("orphans", rule, digests(fleet, "orphans")[rule])
    operations.see_policy(engine, ledger_name(fleet), seen, "test", START)
    engine.dispose()
    marked.begin(fake, ledger)
    assert marked.run()[0] == 0
    # looking also closes it, and only then the file alone is the whole ledger
    assert outcomes(marked, "orphans") == [(orphan().id, "mark")]
    due = marked.fleet()
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
        killed.recover()
        assert killed.fleet().stopped == [orphan().id]
        assert killed.fleet().instances[orphan().id].idle_since is None
        assert outcomes(killed, "orphans") == [(orphan().id, "mark"), (orphan().id, "stop")]
        assert len(messages_of(killed, "stopped:")) == len(messages_of(killed, "marked:")) == 1


def test_a_live_neighbour_keeps_its_lease(tmp_path: Path) -> None:
    fleet = document(watchdogs=SETTINGS)
    scene = Scene(folder=tmp_path / "scene", document=fleet, lease="idle", watch=idle)
    scene.begin(due(), seeded(tmp_path / "first.db", fleet, due(), {}))
    engine = opened(scene)
    name = f"{ledger_name(fleet)}:idle"
    assert operations.acquire_lease(engine, name, "another-host/b/1/2", (START, timedelta(minutes=10))) is None
    assert scene.run() == (LEASE_HELD, 0)
    assert not scene.fleet().ended
    late = scene.fleet()
    late.now += timedelta(minutes=11)
    scene.save(late)
    assert scene.run()[0] == 0, "its term is over"
    engine.dispose()
