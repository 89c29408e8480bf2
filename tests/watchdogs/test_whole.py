"""What a list of instances lacks is found one by one; what is new, gone or somebody else's may be absent."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.domain.activity import CloudError
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Instance, InstanceState
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet
from tests.fixtures.watchdogs.fake_ports import FakeInventory
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, QUIET_GPU, START, instance
from watchdogs.observe.completeness import LISTING_DELAY, MAX_ASKED, InstanceReader, reporting_unlisted, unlisted

ONE, OTHER = instance(1), instance(2)
OLD = timedelta(minutes=10)


def fleet_with(other: Instance | None) -> FakeFleet:
    fleet = idle_fleet(2)
    del fleet.instances[OTHER.id]
    if other is not None:
        fleet.instances[OTHER.id] = other
    return fleet


LACKING = [
    pytest.param(OTHER, True, id="lives"),
    pytest.param(replace(OTHER, launched_at=START - LISTING_DELAY), False, id="just launched"),
    pytest.param(
        replace(OTHER, launched_at=START - LISTING_DELAY - timedelta(seconds=1)), True, id="after the delay"
    ),
    pytest.param(replace(OTHER, state=InstanceState.TERMINATED), False, id="ended"),
    pytest.param(None, False, id="unknown"),
]


@pytest.mark.parametrize(("other", "running"), LACKING)
def test_members_missing_in_the_list_are_read(other: Instance | None, running: bool) -> None:
    fleet = fleet_with(other)
    found = unlisted(InstanceReader(FakeInventory(fleet)), fleet.groups.values(), {ONE.id: ONE}, START)
    assert list(found.living) == ([OTHER.id] if running else []) and not found.unknown


def test_untagged_member_belongs_to_the_group_that_lists_it() -> None:
    fleet = fleet_with(replace(OTHER, pool=None, environment=None, group=None))
    found = unlisted(InstanceReader(FakeInventory(fleet)), fleet.groups.values(), {ONE.id: ONE}, START)
    assert found.living[OTHER.id].group == "batch-spot-a"


def test_unreadable_member_may_be_running() -> None:
    fleet = fleet_with(OTHER)
    fleet.before = broken
    found = unlisted(InstanceReader(FakeInventory(fleet)), fleet.groups.values(), {ONE.id: ONE}, START)
    assert not found.living and found.unknown == {OTHER.id: ("batch-spot-a", "no answer")}


def test_a_list_that_lacks_more_than_can_be_read_is_not_whole() -> None:
    fleet = idle_fleet(MAX_ASKED + 1)
    with pytest.raises(CloudError, match="the list of instances is incomplete"):
        unlisted(InstanceReader(FakeInventory(fleet)), fleet.groups.values(), (), START)
    for key, one in fleet.instances.items():
        fleet.instances[key] = replace(one, state=InstanceState.TERMINATED)
    assert not unlisted(InstanceReader(FakeInventory(fleet)), fleet.groups.values(), (), START).living


def test_empty_list_causes_at_most_twenty_single_reads() -> None:
    fleet, calls = idle_fleet(100), list[str]()
    fleet.before = calls.append
    with pytest.raises(CloudError, match="the list of instances is incomplete"):
        unlisted(InstanceReader(FakeInventory(fleet)), fleet.groups.values(), (), START)
    with pytest.raises(CloudError, match="the list of instances is incomplete"):
        reporting_unlisted(InstanceReader(FakeInventory(fleet)), "test", fleet.evidence, (), START)
    assert calls == ["instance"] * 40


def test_each_instance_is_read_once_per_pass() -> None:
    fleet, calls = idle_fleet(2), list[str]()
    fleet.before = calls.append
    reader = InstanceReader(FakeInventory(fleet))
    for _ in range(3):
        unlisted(reader, fleet.groups.values(), {ONE.id: ONE}, START)
    assert calls == ["instance"]


def test_a_whole_list_asks_for_nothing_more() -> None:
    fleet, calls = idle_fleet(2), list[str]()
    fleet.before = calls.append
    reader = InstanceReader(FakeInventory(fleet))
    unlisted(reader, fleet.groups.values(), fleet.instances, START)
    reporting_unlisted(reader, "test", fleet.evidence, fleet.instances, START)
    assert not calls


@pytest.mark.parametrize(
    ("other", "running"),
    [*LACKING, pytest.param(replace(OTHER, environment="other"), False, id="of another environment")],
)
def test_reporting_instances_missing_in_the_list_are_read(other: Instance | None, running: bool) -> None:
    fleet = fleet_with(other)
    found = reporting_unlisted(InstanceReader(FakeInventory(fleet)), "test", fleet.evidence, [ONE.id], START)
    assert [one.id for one in found] == ([OTHER.id] if running else [])


@pytest.mark.parametrize(
    ("evidence", "counts"),
    [
        pytest.param(replace(QUIET, gpu=None), True, id="its engine alone"),
        pytest.param(replace(QUIET, engine=None), True, id="its GPUs alone"),
        pytest.param(replace(QUIET, engine=replace(QUIET_ENGINE, newest_age=OLD)), True, id="its engine no more"),
        pytest.param(replace(QUIET, gpu=replace(QUIET_GPU, newest_age=OLD)), True, id="its GPUs no more"),
        pytest.param(
            replace(QUIET, engine=None, gpu=replace(QUIET_GPU, newest_age=OLD)), False, id="neither any more"
        ),
    ],
)
def test_either_source_reports_for_its_instance(evidence: Evidence, counts: bool) -> None:
    reader = InstanceReader(FakeInventory(idle_fleet(2)))
    assert bool(reporting_unlisted(reader, "test", {OTHER.id: evidence}, [ONE.id], START)) is counts


def broken(name: str) -> None:
    if name == "instance":
        raise CloudError("no answer")
