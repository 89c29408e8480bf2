"""Every port call of every watchdog, broken in turn: a fault ends nothing, buys nothing, and is reported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.passes import Options, WatchdogKind
from cli.output import Exit
from cli.watch_pass import over_fleets
from gpufleet.domain.activity import CloudError
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason, Target
from gpufleet.domain.model import Instance, InstanceList
from gpufleet.ledger import decisions
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.plain import START, document, instance
from tests.fixtures.watchdogs.scale import BUSY, Store, scaled
from tests.fixtures.watchdogs.spot import SETTINGS, sizes, spread_fleet
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests
from watchdogs.ports import CutShortError, Inventory, Ports
from watchdogs.scale.watchdog import ScaleWatchdog
from watchdogs.spot.watchdog import SpotWatchdog

FLEET = document(watchdogs=SETTINGS | {"scale": {"requests_per_replica": 10}})


def due() -> FakeFleet:
    fake = idle_fleet(2)
    for number in (1, 2):
        mark(fake, number, START - timedelta(hours=1))
    return seen(fake)


def lost() -> FakeFleet:
    fake = spread_fleet()
    fake.lose(instance(1).id)
    return seen(fake)


def loaded() -> FakeFleet:
    return seen(scaled(BUSY)[0])


def asleep() -> FakeFleet:
    return seen(FakeFleet(targets={"batch": Target(pool="batch", value=0, version=1)}))


def seen(fake: FakeFleet) -> FakeFleet:
    fake.seen |= {
        ("idle", "batch", digests(FLEET, "idle")["batch"]),
        ("spot", "batch", digests(FLEET, "spot")["batch"]),
        ("scale", "batch", digests(FLEET, "scale")["batch"]),
    }
    return fake


def calls_of(make: Callable[[], FakeFleet], watch: Callable[[FakeFleet], Any]) -> list[str]:
    fake, made = make(), list[str]()
    fake.before = made.append
    watch(fake)
    return made


def idle(fake: FakeFleet) -> Any:
    return IdleWatchdog(FLEET, fake.ports()).apply()


def spot(fake: FakeFleet) -> Any:
    return SpotWatchdog(FLEET, fake.ports()).apply()


def scale(fake: FakeFleet) -> Any:
    return ScaleWatchdog(FLEET, replace(fake.ports(), metrics=Store(fake, BUSY))).apply()


def wake(fake: FakeFleet) -> Any:
    return ScaleWatchdog(FLEET, replace(fake.ports(), metrics=Store(fake, {"held": 3.0}))).apply()


@pytest.mark.parametrize(
    ("make", "watch"),
    [
        pytest.param(due, idle, id="idle"),
        pytest.param(lost, spot, id="spot"),
        pytest.param(loaded, scale, id="scale"),
        pytest.param(asleep, wake, id="scale, waking"),
    ],
)
@pytest.mark.parametrize("fault", [CloudError("throttled"), TimeoutError("no answer")], ids=["throttle", "timeout"])
def test_a_fault_of_any_call_is_reported_and_harmless(
    make: Callable[[], FakeFleet], watch: Callable[[FakeFleet], Any], fault: OSError
) -> None:
    names = calls_of(make, watch)
    assert len(names) > 10
    whole = make()
    watch(whole)
    for nth in range(len(names)):
        fake = make()
        left = [nth]

        def fail(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise fault

        fake.before = fail
        try:
            reported = any(outcome.kind is not OutcomeKind.DONE for outcome in watch(fake).outcomes)
        except OSError as error:
            resized = [row.outcome for row in fake.outcomes if row.outcome.decision.action is Action.RESIZE]
            reported = isinstance(error, CutShortError) or not resized
        # what could be asked again, or was known from a moment before, changes nothing that was done
        done = (fake.ended, fake.targets, {name: group.desired for name, group in fake.groups.items()})
        same = done == (whole.ended, whole.targets, {name: group.desired for name, group in whole.groups.items()})
        assert reported or same, f"call {nth} ({names[nth]}) failed and was not reported"
        assert set(fake.ended) <= set(whole.ended), "nothing else was ended"
        assert len(set(fake.ended)) == len(fake.ended)
        assert fake.launched <= whole.launched, "nothing more was bought"
        # when the fault is over, a later pass comes to the same end
        fake.before = lambda _: None
        for _ in range(3):
            fake.now += timedelta(minutes=1)
            watch(fake)
        assert sorted(fake.ended) == sorted(whole.ended)
        assert fake.targets == whole.targets
        assert fake.messages.keys() == whole.messages.keys() or watch in (idle, spot)


@pytest.mark.parametrize(
    ("calls", "output"),
    [
        pytest.param(0, "Nothing was changed.", id="the first look"),
        pytest.param(1, "Completed actions are recorded.", id="the second"),
    ],
)
def test_an_interrupted_pass_reports_whether_it_had_acted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: int, output: str
) -> None:
    fake, left = lost(), [calls]

    def fail(name: str) -> None:
        left[0] -= name == "instances"
        if left[0] < 0:
            raise CloudError("throttled")

    fake.before = fail
    kind = WatchdogKind(name="spot", make=lambda read, _: SpotWatchdog(read, fake.ports()))
    fleet = FLEET.model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db", "notify": None})
    code, [answer] = over_fleets(kind, [fleet], Options(apply=True))
    assert (code, answer["error"]) == (Exit.FAILED, "throttled")
    assert capsys.readouterr().err == f"test: spot: throttled. {output}\n"


@dataclass
class Lists:
    """An inventory with a wrong list but correct single instances."""

    inner: Inventory
    known: Sequence[Instance]

    def listed(self) -> InstanceList:
        return InstanceList(instances=self.known)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def with_list(fake: FakeFleet, listed: Sequence[Instance]) -> Ports:
    ports = fake.ports()
    return replace(ports, inventory=Lists(ports.inventory, listed))


@pytest.mark.parametrize("kept", [0, 1], ids=["empty list", "half a list"])
def test_a_list_that_is_not_whole_buys_and_ends_nothing(kept: int) -> None:
    fake = seen(spread_fleet())
    before = sizes(fake)
    ports = with_list(fake, list(fake.instances.values())[:kept])
    SpotWatchdog(FLEET, ports).apply()
    assert sizes(fake) == before and not fake.ended
    assert sum(key.startswith("spot:not_listed:") for key in fake.messages) == 2 - kept


def test_an_empty_list_ends_nothing() -> None:
    fake = due()
    IdleWatchdog(FLEET, with_list(fake, [])).apply()
    assert not fake.ended and not fake.drains


def test_stale_list_is_detected_before_an_end() -> None:
    fake = due()
    old = list(fake.instances.values())
    for key, one in fake.instances.items():
        fake.instances[key] = replace(one, tags={})
    done = IdleWatchdog(FLEET, with_list(fake, old)).apply()
    assert {outcome.kind for outcome in done.outcomes} == {OutcomeKind.NO_LONGER_TRUE}
    assert not fake.ended and not fake.drains


def test_a_new_instance_that_is_not_listed_yet_is_not_an_error() -> None:
    fake = seen(spread_fleet())
    fake.capacity["batch-spot-b"] = 1
    fake.lose(instance(1).id)
    late = [one for one in fake.instances.values() if one.alive]
    spot(fake)
    assert fake.launched == 1
    ports = with_list(fake, late)
    SpotWatchdog(FLEET, ports).dry()


@pytest.mark.parametrize(
    ("kind", "error", "open_after"),
    [
        (OutcomeKind.FAILED, "throttled", 1),
        (OutcomeKind.WAITING, None, 1),
        (OutcomeKind.DONE, None, 0),
        (OutcomeKind.NO_LONGER_TRUE, None, 0),
    ],
)
def test_begun_action_stays_unfinished_until_its_outcome(
    tmp_path: Path, kind: OutcomeKind, error: str | None, open_after: int
) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    row = Decision(resource="i-1", pool="batch", action=Action.END, reason=Reason.IDLE)
    decisions.intend(engine, "f", "idle", row, START)
    outcome = Outcome(decision=row, kind=kind, detail="", error=error)
    decisions.record_outcome(engine, "f", "idle", outcome, START)
    assert len(decisions.unfinished(engine, "f", "idle")) == open_after
    engine.dispose()
