"""Lifecycle hooks as the stack declares them, with a control host that completes them and without one."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.domain.model import DRAIN_HOOK, READY_HOOK, Group
from tests.fixtures.clouds.aws_clockwork import Clockwork, clockwork, hook

DRAIN_S = 90
"""Drain deadline of the pool in seconds. The hook's timeout is one minute longer."""
HOOKS = (
    hook("LAUNCHING") | {"LifecycleHookName": READY_HOOK},
    hook("TERMINATING", heartbeat_s=DRAIN_S + 60) | {"LifecycleHookName": DRAIN_HOOK},
)
HOUR_S = 3600
SLOWLY = timedelta(seconds=5)


@pytest.fixture(scope="module")
def module_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clockwork]:
    with clockwork(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture
def cloud(module_cloud: Clockwork) -> Iterator[Clockwork]:
    yield module_cloud
    module_cloud.clear()


def groups(cloud: Clockwork) -> AwsGroups:
    return AwsGroups(AwsCalls("us-east-1", cloud.client))


def read(cloud: Clockwork, name: str) -> Group:
    (found,) = groups(cloud).groups([name])
    return found


def test_confirmed_boots_and_drains_proceed(cloud: Clockwork) -> None:
    cloud.group("g", hooks=HOOKS)
    cloud.run(20)
    (first,) = read(cloud, "g").waiting_to_serve
    assert groups(cloud).complete_hooks("g", serving=[first], drained=[]) == {}
    cloud.run(5)
    assert cloud.members("g") == [(first, "InService")]
    cloud.scaling.terminate_instance_in_auto_scaling_group(InstanceId=first, ShouldDecrementDesiredCapacity=True)
    cloud.run(5)
    assert (read(cloud, "g").waiting_to_serve, read(cloud, "g").waiting_to_end) == (frozenset(), {first})
    assert groups(cloud).complete_hooks("g", serving=[], drained=[first]) == {}
    cloud.run(10)
    assert cloud.instance(first)["State"]["Name"] == "terminated"


def test_completing_a_hook_that_does_not_wait_is_ignored(cloud: Clockwork) -> None:
    """An agent of the previous release completes its own hook while its role still permits it."""
    cloud.group("g", size=2, hooks=HOOKS)
    cloud.run(20)
    first, second = sorted(read(cloud, "g").waiting_to_serve)
    for _ in range(2):
        assert groups(cloud).complete_hooks("g", serving=[first], drained=["i-00000000000000000"]) == {}
    cloud.run(5)
    assert dict(cloud.members("g")) == {first: "InService", second: "Pending:Wait"}, "the other one still waits"


def test_instances_boot_and_drain_without_a_control_host(cloud: Clockwork) -> None:
    """Hooks time out with CONTINUE, so groups proceed and do not terminate or replace instances because of it."""
    cloud.group("g", size=2, hooks=HOOKS)
    cloud.run(20)
    there = read(cloud, "g").waiting_to_serve
    assert len(there) == 2
    assert {cloud.instance(key)["State"]["Name"] for key in there} == {"running"}, "they boot and serve meanwhile"
    cloud.run(HOUR_S / 2, SLOWLY)
    assert dict(cloud.members("g")) == dict.fromkeys(there, "InService")
    leaving = min(there)
    cloud.scaling.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=True)
    cloud.run(DRAIN_S)
    assert cloud.instance(leaving)["State"]["Name"] == "running", "it has the whole time of its drain"
    cloud.run(70)
    assert cloud.instance(leaving)["State"]["Name"] == "terminated"
    cloud.run(HOUR_S / 2, SLOWLY)
    assert dict(cloud.members("g")) == dict.fromkeys(there - {leaving}, "InService")
