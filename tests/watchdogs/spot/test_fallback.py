"""When fallback is bought: within `fallback_after`, whatever the number of zones and their answer times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.decisions import Target
from gpufleet.domain.model import CapacityType, Cloud, Group
from gpufleet.settings.document import FleetDocument
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import document
from watchdogs.policy import digests
from watchdogs.ports import Ports
from watchdogs.spot.watchdog import SpotWatchdog

OD = "batch-od"
FALLBACK_AFTER = timedelta(seconds=60)
LOOK = timedelta(seconds=30)
"""Between two passes."""
GIVES = "gives"


@dataclass
class SlowFakeFleet(FakeFleet):
    """Groups answer a while after they were asked. On-demand gives at once, and it is written down when."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """By zone: after so many seconds, and what."""
    due: list[tuple[datetime, str]] = field(default_factory=list[tuple[datetime, str]])
    bought: list[datetime] = field(default_factory=list[datetime])
    most: int = 0
    """Maximum sum of the targets of all groups at one time."""

    def reconcile(self, name: str) -> None:
        self.most = max(self.most, sum(group.desired for group in self.groups.values()))
        group = self.groups[name]
        if name == OD:
            self.capacity[OD] = 9
            launched = self.launched
            super().reconcile(name)
            self.bought += [self.now] * (self.launched - launched)
        elif group.desired > len(group.instance_ids) and name not in [asked for _, asked in self.due]:
            self.due.append((self.now + timedelta(seconds=self.answers[name][0]), name))

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for at, name in [one for one in self.due if one[0] <= self.now]:
            self.due.remove((at, name))
            answer = self.answers[name][1]
            if answer != GIVES:
                self.happened(name, ActivityKind(answer), None)
            elif self.groups[name].desired > len(self.groups[name].instance_ids):
                self.capacity[name] = 1
                super().reconcile(name)

    def ports(self) -> Ports:
        return replace(super().ports(), clock=SlowClock(self))


@dataclass
class SlowClock:
    fleet: SlowFakeFleet

    def now(self) -> datetime:
        return self.fleet.now

    def sleep(self, seconds: float) -> None:
        self.fleet.pass_time(seconds)


def dry(zones: int, answer_s: int, kind: str = "no_capacity") -> list[tuple[int, str]]:
    return [(answer_s, kind)] * zones


def a_pool(
    answers: Sequence[tuple[int, str]], cloud: Cloud = Cloud.AWS, **more: object
) -> tuple[SlowFakeFleet, SpotWatchdog]:
    """One that lacks its only replica."""
    named = {f"batch-spot-{n}": answer for n, answer in enumerate(answers)}
    fake = SlowFakeFleet(answers=named)
    zones = {name: f"us-east-1{chr(97 + n)}" for n, name in enumerate(named)}
    for name in (*named, OD):
        kind = CapacityType.ON_DEMAND if name == OD else CapacityType.SPOT
        fake.groups[name] = Group(
            name=name,
            pool="batch",
            capacity_type=kind,
            zone=zones.get(name),
            desired=0,
            min=0,
            max=4,
            instance_ids=(),
        )
    fake.targets["batch"] = Target(pool="batch", value=1, version=1)
    fleet = _document(zones, cloud, more)
    fake.seen.add(("spot", "batch", digests(fleet, "spot")["batch"]))
    return fake, SpotWatchdog(fleet, fake.ports())


def _document(zones: Mapping[str, str], cloud: Cloud, more: Mapping[str, object]) -> FleetDocument:
    types = ["g6.xlarge"]
    groups = [{"type": "spot", "zone": z, "name": n, "max": 4, "machine_types": types} for n, z in zones.items()]
    groups.append({"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": types})
    settings = {"idle": {}, "spot": {"fallback_after": "60s"}}
    fleet = document(**{"groups": groups, "target": 1, "watchdogs": settings, **more})
    return fleet.model_copy(update={"cloud": cloud})


def passes(fake: SlowFakeFleet, watchdog: SpotWatchdog, span: timedelta = timedelta(minutes=10)) -> None:
    """Until something was bought, or for that long."""
    began = fake.now
    while not fake.bought and fake.now - began < span:
        watchdog.apply()
        fake.pass_time(LOOK.total_seconds())


@pytest.mark.parametrize("cloud", Cloud)
@pytest.mark.parametrize(
    "most", [pytest.param(1, id="max at the target"), pytest.param(6, id="max above the target")]
)
@pytest.mark.parametrize("zones", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("answer_s", [1, 5, 30, 45, 59, 61, 300])
def test_on_demand_is_requested_within_fallback_after(cloud: Cloud, most: int, zones: int, answer_s: int) -> None:
    fake, watchdog = a_pool(dry(zones, answer_s), cloud, max=most)
    began = fake.now
    passes(fake, watchdog)
    assert fake.bought[0] - began <= FALLBACK_AFTER
    assert fake.bought[0] - began >= timedelta(seconds=min(answer_s, 60)), "the zones are asked before"


@pytest.mark.parametrize("kind", ["no_capacity", "quota", "throttled", "price", "unknown"])
def test_on_demand_is_requested_in_time_for_any_refusal(kind: str) -> None:
    fake, watchdog = a_pool(dry(6, 45, kind))
    began = fake.now
    passes(fake, watchdog)
    assert fake.bought[0] - began <= FALLBACK_AFTER


def test_asks_at_the_same_time_stay_within_the_ceiling_and_are_withdrawn() -> None:
    fake, watchdog = a_pool(dry(9, 300), max=1)
    watchdog.apply()
    assert fake.most <= 1 + 0 + 2
    assert len(fake.due) == 3, "no zone is asked that would have no time to answer"
    assert {name: group.desired for name, group in fake.groups.items() if group.desired} == {OD: 1}


def test_all_zones_are_requested_even_if_they_are_slow() -> None:
    fake, watchdog = a_pool(dry(9, 300), max=1)
    asked: set[str] = set()
    for _ in range(8):
        watchdog.apply()
        asked |= {name for _, name in fake.due}
        fake.pass_time(LOOK.total_seconds())
    assert len({*asked, OD}) == 10


@pytest.mark.parametrize("zones", [3, 6])
def test_zone_with_capacity_is_found_after_refusing_ones(zones: int) -> None:
    fake, watchdog = a_pool([*dry(zones - 1, 25), (5, GIVES)])
    watchdog.apply()
    assert fake.launched == 1 and not fake.bought
    assert sum(group.desired for group in fake.groups.values()) == 1, "what others were asked for is withdrawn"


def test_zones_with_capacity_get_one_request_only() -> None:
    fake, watchdog = a_pool([(5, GIVES)] * 6)
    watchdog.apply()
    assert (fake.launched, fake.most) == (1, 1)


def test_a_pool_whose_zones_are_silent_does_not_delay_another() -> None:
    fake, _ = a_pool([(5, "no_capacity"), (300, "no_capacity")])
    fleet = document()
    types = ["g6.xlarge"]
    entries = [
        {"type": "spot", "zone": f"us-east-1{'ab'[n]}", "name": f"batch-spot-{n}", "max": 4, "machine_types": types}
        for n in (0, 1)
    ]
    on_demand = {"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": types}
    settings = {"spot": {"fallback_after": "60s"}}
    quick = document(groups=[entries[0], on_demand], target=1, watchdogs=settings).pools[0]
    slow = document(name="slow", groups=[entries[1]], target=1, watchdogs=settings).pools[0]
    fleet = fleet.model_copy(update={"pools": (quick, slow)})
    fake.groups["batch-spot-1"] = replace(fake.groups["batch-spot-1"], pool="slow")
    fake.targets["slow"] = Target(pool="slow", value=1, version=1)
    fake.seen |= {("spot", name, digest) for name, digest in digests(fleet, "spot").items()}
    began = fake.now
    SpotWatchdog(fleet, fake.ports()).apply()
    assert fake.bought and fake.bought[0] - began < timedelta(seconds=10)
    assert fake.groups["batch-spot-1"].desired == 0, "its ask is withdrawn in its turn"
