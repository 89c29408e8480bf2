"""Contract test of the ports `Inventory`, `Account` and `Groups`: AWS, Google Cloud, and the fake fleet.

The real adapters run against the embedded cloud.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

import pytest
from google.cloud import compute_v1

from app.wiring import AllInstances
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.domain import tags
from gpufleet.domain.activity import ActivityKind, CloudError, ConflictError
from gpufleet.domain.model import Group, Instance, InstanceState
from gpufleet.domain.ownership import OwnedGroup
from tests.fixtures.clouds.emulator import (
    QUICK,
    REGION,
    RunningCloud,
    make_group,
    make_network,
    make_template,
    start_cloud,
    stop_cloud,
    wait_for,
)
from tests.fixtures.clouds.google import PROJECT, ZONE, Google
from tests.fixtures.clouds.google import REGION as GOOGLE_REGION
from tests.fixtures.clouds.google_document import document as google_document
from tests.fixtures.clouds.google_token import google_clients_have_the_token as google_clients_have_the_token
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.fake_ports import FakeAccount, FakeGroups, FakeInventory
from tests.fixtures.watchdogs.plain import START, instance
from watchdogs.ports import Account, Groups, Inventory

UNKNOWN: Final = "i-0123456789abcdef0"
"""An instance id that both clouds accept and neither knows."""
MARK: Final = "20261121t0215z"
_NAMES = (f"contract{number}" for number in count(1))


@dataclass(kw_only=True)
class FleetOnCloud:
    """A fleet with one group of two running instances, and one instance outside of groups."""

    inventory: Inventory
    account: Account
    groups: Groups
    name: str
    lone: str
    start: datetime
    """The group had no activity before."""
    wait: Callable[[str, Callable[[], Any]], Any]
    """Repeats a check until its result is true."""
    detects_conflicts: bool = True
    """Whether `resize` raises ConflictError for a size that was read too long ago."""

    def group(self) -> Group:
        (found,) = self.groups.groups([self.name])
        return found

    def member(self) -> str:
        return self.group().instance_ids[0]

    def read(self, instance_id: str) -> Instance:
        found = self.inventory.instance(instance_id)
        assert found is not None
        return found


@pytest.fixture(
    params=["fake", pytest.param("aws", marks=pytest.mark.slow), pytest.param("gcp", marks=pytest.mark.slow)]
)
def fleet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetOnCloud]:
    if request.param == "fake":
        yield _fake()
        return
    cloud: RunningCloud = request.getfixturevalue("embedded")
    name = next(_NAMES)
    if request.param == "aws":
        made = _aws(cloud, name)
        yield made
        cloud.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
        cloud.client("ec2").terminate_instances(InstanceIds=[made.lone])
        return
    monkeypatch.setenv(ENDPOINT, cloud.places.google_url)
    google = Google(cloud=cloud)
    made = _google(google, name)
    yield made
    google.groups.delete_unary(project=PROJECT, zone=ZONE, instance_group_manager=name)
    google.instances.delete_unary(project=PROJECT, zone=ZONE, instance=made.lone)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    cloud = start_cloud(tmp_path_factory.mktemp("cloud"), waits=QUICK)
    try:
        cloud.network = make_network(cloud)
        Google(cloud=cloud).make_network()
        yield cloud
    finally:
        stop_cloud(cloud)


def _fake() -> FleetOnCloud:
    fleet = idle_fleet(2)
    lone = instance(9, group=None, pool=None, environment=None)
    fleet.instances[lone.id] = lone
    fleet.capacity["batch-spot-a"] = 1
    for key in fleet.groups["batch-spot-a"].instance_ids:
        fleet.happened("batch-spot-a", ActivityKind.LAUNCHED, key)
    return FleetOnCloud(
        inventory=FakeInventory(fleet),
        account=FakeAccount(fleet),
        groups=FakeGroups(fleet),
        name="batch-spot-a",
        lone=lone.id,
        start=START,
        wait=lambda what, check: check() or pytest.fail(what),
    )


def _aws(cloud: RunningCloud, name: str) -> FleetOnCloud:
    start = datetime.now(UTC) - timedelta(seconds=1)
    pairs = {tags.POOL: name, tags.ENVIRONMENT: name, tags.CAPACITY_TYPE: "on-demand"}
    written = [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in pairs.items()]
    template = make_template(cloud, name)
    make_group(cloud, name, template, size=2, Tags=written)
    wait_for("the members", lambda: len(cloud.in_service(name)) == 2)
    assert cloud.network is not None
    made = cloud.client("ec2").run_instances(
        LaunchTemplate={"LaunchTemplateId": template}, MinCount=1, MaxCount=1, SubnetId=cloud.network.subnets["a"]
    )
    lone = made["Instances"][0]["InstanceId"]
    calls = AwsCalls(REGION, cloud.client)
    inventory = AwsInventory(calls, REGION, name, {name: OwnedGroup(pool=name)})
    wait_for("the lone instance", lambda: _runs(inventory, lone))
    return FleetOnCloud(
        inventory=inventory,
        account=inventory,
        groups=AwsGroups(calls),
        name=name,
        lone=lone,
        start=start,
        wait=wait_for,
        detects_conflicts=False,
    )


def _google(google: Google, name: str) -> FleetOnCloud:
    start = datetime.now(UTC) - timedelta(seconds=1)
    google.make_group(name, google.make_template(name), 2)
    wait_for("the members", lambda: len(google.running(name)) == 2)
    parts = google.template(name)["properties"]
    body: dict[str, Any] = {
        **parts,
        "name": f"lone-{name}",
        "machine_type": f"zones/{ZONE}/machineTypes/g2-standard-8",
        "labels": {},
        "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": True},
        "disks": [{**disk, "initialize_params": _in_zone(disk["initialize_params"])} for disk in parts["disks"]],
    }
    google.finish(
        google.instances.insert_unary(project=PROJECT, zone=ZONE, instance_resource=compute_v1.Instance(body))
    )
    calls = GoogleCalls(PROJECT)
    inventory = GoogleInventory(calls, GOOGLE_REGION, "test", {name: OwnedGroup(pool=name, zone=ZONE)})
    wait_for("the lone instance", lambda: _runs(inventory, f"lone-{name}"))
    return FleetOnCloud(
        inventory=inventory,
        account=inventory,
        groups=GoogleGroups(calls, google_document(name)),
        name=name,
        lone=f"lone-{name}",
        start=start,
        wait=wait_for,
    )


def _in_zone(parameters: dict[str, Any]) -> dict[str, Any]:
    kind = parameters.get("disk_type")
    return parameters if kind is None else {**parameters, "disk_type": f"zones/{ZONE}/diskTypes/{kind}"}


def _runs(inventory: AllInstances, instance_id: str) -> bool:
    found = inventory.instance(instance_id)
    return found is not None and found.state is InstanceState.RUNNING


# Inventory


def test_instances_have_their_group_and_pool(fleet: FleetOnCloud) -> None:
    listed = fleet.inventory.listed()
    assert not listed.errors
    found = {one.id: one for one in listed.instances if one.group == fleet.name}
    assert found.keys() == set(fleet.group().instance_ids) and len(found) == 2
    for one in found.values():
        assert (one.state, one.pool) == (InstanceState.RUNNING, fleet.group().pool)
        assert one.launched_at.utcoffset() == timedelta(), "times are in UTC"
        assert fleet.inventory.instance(one.id) == one


def test_an_instance_that_the_cloud_does_not_know_is_none(fleet: FleetOnCloud) -> None:
    assert fleet.inventory.instance(UNKNOWN) is None
    assert list(fleet.inventory.ended([UNKNOWN])) == []


def test_tags_are_added_and_removed_and_other_tags_stay(fleet: FleetOnCloud) -> None:
    member = fleet.member()
    before = dict(fleet.read(member).tags)
    for value in ("old", MARK):
        assert fleet.inventory.tag([member], {tags.IDLE_SINCE: value}) == {}
    assert fleet.read(member).tags == {**before, tags.IDLE_SINCE: MARK}
    for _ in range(2):
        assert fleet.inventory.untag([member], [tags.IDLE_SINCE]) == {}, "removal is idempotent"
    assert fleet.read(member).tags == before


def test_tags_of_an_unknown_instance_do_not_prevent_those_of_others(fleet: FleetOnCloud) -> None:
    member = fleet.member()
    assert fleet.inventory.tag([UNKNOWN, member], {tags.IDLE_SINCE: MARK}).keys() == {UNKNOWN}
    assert fleet.read(member).tags[tags.IDLE_SINCE] == MARK
    assert fleet.inventory.untag([UNKNOWN, member], [tags.IDLE_SINCE]).keys() <= {UNKNOWN}
    assert tags.IDLE_SINCE not in fleet.read(member).tags


def test_no_instances_need_no_call(fleet: FleetOnCloud) -> None:
    assert fleet.inventory.tag([], {tags.IDLE_SINCE: MARK}) == fleet.inventory.untag([], [tags.IDLE_SINCE]) == {}
    assert list(fleet.inventory.ended([])) == []


def test_ended_instances_exclude_those_that_run(fleet: FleetOnCloud) -> None:
    member, other = fleet.group().instance_ids
    fleet.groups.end(member, fleet.name, lower_desired=True)
    fleet.wait("the end", lambda: (found := fleet.inventory.instance(member)) is None or not found.alive)
    ended = fleet.inventory.ended([member, other])
    assert {one.id for one in ended} <= {member}, "a cloud may forget an ended instance at once"


# Account


def test_gpu_instances_of_all_owners_are_listed(fleet: FleetOnCloud) -> None:
    found = {one.id: one for one in fleet.account.gpus().instances}
    assert {*fleet.group().instance_ids, fleet.lone} <= found.keys()
    assert found[fleet.lone].pool is None and found[fleet.lone].group is None
    assert fleet.lone not in {one.id for one in fleet.inventory.listed().instances}, "it has no environment"


def test_a_stop_is_idempotent(fleet: FleetOnCloud) -> None:
    fleet.account.stop(fleet.lone)
    fleet.wait("the stop", lambda: not fleet.read(fleet.lone).alive)
    fleet.account.stop(fleet.lone)
    assert fleet.read(fleet.lone).state in (InstanceState.STOPPING, InstanceState.STOPPED)


def test_a_stop_of_an_unknown_instance_raises(fleet: FleetOnCloud) -> None:
    with pytest.raises(OSError, match=UNKNOWN):
        fleet.account.stop(UNKNOWN)


# Groups


def test_a_missing_group_is_an_error_and_not_an_empty_group(fleet: FleetOnCloud) -> None:
    with pytest.raises(OSError, match="missing-group"):
        fleet.groups.groups([fleet.name, "missing-group"])
    found = fleet.groups.readable(["missing-group", fleet.name])
    assert (found.groups.keys(), found.errors.keys()) == ({fleet.name}, {"missing-group"})
    assert found.groups[fleet.name] == fleet.group()
    assert "missing-group" in found.errors["missing-group"]


def test_no_names_give_no_groups(fleet: FleetOnCloud) -> None:
    assert list(fleet.groups.groups([])) == []
    assert fleet.groups.readable([]).groups == {}


def test_a_larger_size_is_read_at_once_and_launches_an_instance(fleet: FleetOnCloud) -> None:
    seen = fleet.group()
    fleet.groups.resize(seen, 3)
    assert fleet.group().desired == 3
    fleet.wait("the launch", lambda: len(fleet.group().instance_ids) == 3)
    if fleet.detects_conflicts:
        with pytest.raises(ConflictError):
            fleet.groups.resize(seen, 2)
        assert fleet.group().desired == 3


def test_a_size_of_a_missing_group_raises(fleet: FleetOnCloud) -> None:
    with pytest.raises(CloudError):
        fleet.groups.resize(replace(fleet.group(), name="missing-group"), 3)


@pytest.mark.parametrize(("lower", "desired"), [(True, 1), (False, 2)])
def test_an_ended_instance_no_longer_counts(fleet: FleetOnCloud, lower: bool, desired: int) -> None:
    before = fleet.read(fleet.member())
    fleet.groups.end(before.id, fleet.name, lower_desired=lower)
    assert fleet.group().desired == desired

    def has_ended() -> bool:
        # a replacement on Google Cloud has the same name
        now = fleet.inventory.instance(before.id)
        return now is None or not now.alive or now.launched_at > before.launched_at

    fleet.wait("the end", has_ended)


def test_an_end_is_idempotent(fleet: FleetOnCloud) -> None:
    member = fleet.member()
    fleet.groups.end(member, fleet.name, lower_desired=True)
    fleet.wait("the end", lambda: (found := fleet.inventory.instance(member)) is None or not found.alive)
    fleet.groups.end(member, fleet.name, lower_desired=True)
    fleet.groups.end(UNKNOWN, fleet.name, lower_desired=True)
    assert fleet.group().desired == 1, "the size is lowered once"


def test_activities_are_oldest_first_and_not_before_the_time(fleet: FleetOnCloud) -> None:
    fleet.groups.end(fleet.member(), fleet.name, lower_desired=True)
    found = fleet.wait("the launches", lambda: fleet.groups.activities([fleet.name], fleet.start))
    assert list(found) == sorted(found, key=lambda activity: (activity.at, activity.id))
    launched = [one for one in found if one.kind is ActivityKind.LAUNCHED]
    assert len({one.instance_id for one in launched} - {None}) == 2
    assert all(one.group == fleet.name and one.at >= fleet.start for one in found)
    later = max(one.at for one in found) + timedelta(minutes=1)
    assert list(fleet.groups.activities([fleet.name], later)) == []
    assert list(fleet.groups.activities([], fleet.start)) == []


def test_activities_of_a_missing_group_raise(fleet: FleetOnCloud) -> None:
    with pytest.raises(CloudError):
        fleet.groups.activities(["missing-group"], fleet.start)


def test_completed_hooks_of_instances_that_do_not_wait_cause_no_error(fleet: FleetOnCloud) -> None:
    serving, drained = fleet.group().instance_ids
    for _ in range(2):
        assert fleet.groups.complete_hooks(fleet.name, serving=[serving], drained=[drained]) == {}
    assert set(fleet.group().instance_ids) == {serving, drained}, "nothing ends"


def test_processes_that_are_not_suspended_can_be_resumed(fleet: FleetOnCloud) -> None:
    fleet.groups.resume_processes(fleet.name, ["Launch"])
    assert fleet.group().suspended == ()


def test_a_group_without_a_refresh_is_in_no_rollout(fleet: FleetOnCloud) -> None:
    assert fleet.groups.in_rollout([fleet.name], [fleet.name]) == fleet.groups.in_rollout([]) == frozenset()
