"""Flex-start on the embedded Compute Engine, by a clock: what is refused, whose quota it takes, and how it ends."""

from datetime import timedelta
from typing import Any

import pytest
from localcloud.aws.capacity import Kind
from localcloud.gcp import groups
from localcloud.gcp.embedded import one_round
from localcloud.gcp.errors import ApiError
from localcloud.gcp.groups import ManagedGroup
from localcloud.gcp.instances import notice_of, preempt
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key
from localcloud.gcp.validation import check_properties

from tests.fixtures.localcloud import google_world
from tests.fixtures.localcloud.google_world import Clock

ZONE = "us-central1-a"
DAY_S = 86400
FLEX = {
    "provisioningModel": "FLEX_START",
    "maxRunDuration": {"seconds": str(DAY_S)},
    "instanceTerminationAction": "DELETE",
    "automaticRestart": False,
    "onHostMaintenance": "TERMINATE",
}


SPOT = {"provisioningModel": "SPOT", "preemptible": True, "maxRunDuration": None}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def world(clock: Clock) -> GoogleState:
    return google_world.world(clock)


def properties(**scheduling: Any) -> dict[str, Any]:
    given = {key: value for key, value in {**FLEX, **scheduling}.items() if value is not None}
    return {
        "machineType": "a2-highgpu-1g",
        "disks": [{"boot": True, "autoDelete": True}],
        "networkInterfaces": [{"network": "global/networks/net"}],
        "scheduling": given,
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    }


def started(world: GoogleState, size: int, **scheduling: Any) -> ManagedGroup:
    """A group of flex-start instances, as the components declare it, whose members run."""
    key = Key(f"zones/{ZONE}", "instanceGroupManagers", "flex")
    template = Key("global", "instanceTemplates", "flex")
    world.store.add(template, {"properties": properties(**scheduling)}, world.now())
    row = {
        "targetSize": size,
        "versions": [{"instanceTemplate": world.store.url(template.path)}],
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    world.store.add(key, row, world.now())
    group = ManagedGroup(key=key)
    world.groups[group.ident] = group
    for _ in range(4):
        one_round(world)
    return group


def statuses(world: GoogleState) -> list[str]:
    return sorted(machine.status for machine in world.machines.values())


def test_it_is_fit_as_the_components_declare_it(world: GoogleState) -> None:
    check_properties(world, properties(), "resource.properties")


@pytest.mark.parametrize(
    ("scheduling", "affinity", "words"),
    [
        pytest.param({"maxRunDuration": None}, "NO_RESERVATION", "maximum run duration is required", id="no limit"),
        pytest.param({"maxRunDuration": {"seconds": "29"}}, "NO_RESERVATION", "between 30 and 604800", id="short"),
        pytest.param({"maxRunDuration": {"seconds": "604801"}}, "NO_RESERVATION", "between 30 and 604800", id="long"),
        pytest.param({"instanceTerminationAction": None}, "NO_RESERVATION", "action is required", id="no action"),
        pytest.param({"automaticRestart": None}, "NO_RESERVATION", "Must be false", id="restarts by default"),
        pytest.param({"preemptible": True}, "NO_RESERVATION", "preemptible.*Must be false", id="and preemptible"),
        pytest.param({}, "ANY_RESERVATION", "Must be NO_RESERVATION", id="any reservation"),
        pytest.param({}, "SPECIFIC_RESERVATION", "Must be NO_RESERVATION", id="a reservation"),
    ],
)
def test_what_google_refuses_is_refused(world: GoogleState, scheduling: Any, affinity: str, words: str) -> None:
    wish = properties(**scheduling) | {"reservationAffinity": {"consumeReservationType": affinity}}
    with pytest.raises(ApiError, match=words):
        check_properties(world, wish, "resource.properties")


@pytest.mark.parametrize(
    ("scheduling", "words"),
    [
        pytest.param({"preemptionNoticeDuration": {"seconds": "120"}}, "Only Spot VMs", id="of flex-start"),
        pytest.param(SPOT | {"preemptionNoticeDuration": {"seconds": "60"}}, "Must be 0 or 120", id="of a minute"),
    ],
)
def test_a_notice_that_google_does_not_offer_is_refused(world: GoogleState, scheduling: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        check_properties(world, properties(**scheduling), "resource.properties")


@pytest.mark.parametrize(("asked_for", "lives_s"), [(None, 30), ({"seconds": "0"}, 30), ({"seconds": "120"}, 150)])
def test_a_preempted_instance_lives_through_its_notice(
    world: GoogleState, clock: Clock, asked_for: Any, lives_s: int
) -> None:
    started(world, 1, **SPOT, preemptionNoticeDuration=asked_for)
    (machine,) = world.machines.values()
    preempt(world, machine, notice_of(machine))
    clock.now += timedelta(seconds=lives_s - 1)
    one_round(world)
    assert statuses(world) == ["RUNNING"]
    clock.now += timedelta(seconds=1)
    one_round(world)
    assert statuses(world) != ["RUNNING"]


def test_an_instance_ends_at_its_time_and_its_group_wants_one_less(world: GoogleState, clock: Clock) -> None:
    began = clock.now
    started(world, 2)
    assert statuses(world) == ["RUNNING", "RUNNING"]
    (ends,) = {machine.ends_at for machine in world.machines.values() if machine.ends_at}
    assert ends == began + timedelta(days=1)
    clock.now = ends - timedelta(seconds=1)
    one_round(world)
    assert statuses(world) == ["RUNNING", "RUNNING"]
    clock.now = ends
    for _ in range(3):
        one_round(world)
    assert not world.machines
    row = world.store.get(Key(f"zones/{ZONE}", "instanceGroupManagers", "flex"))
    assert row["targetSize"] == 0
    told = [op for op in world.operations.list(f"zones/{ZONE}") if op["operationType"] == "delete"]
    assert {op["statusMessage"] for op in told} == {"The instance's maximum run duration is over."}
    assert [(stay.capacity_type, stay.why) for stay in world.books.stays] == [
        ("flex-start", "maximum run duration")
    ] * 2


def test_one_that_is_asked_for_again_runs_for_its_whole_time(world: GoogleState, clock: Clock) -> None:
    group = started(world, 1)
    clock.now += timedelta(days=1)
    for _ in range(3):
        one_round(world)
    groups.resize(world, group, 1)
    for _ in range(4):
        one_round(world)
    (machine,) = world.machines.values()
    assert (machine.status, machine.ends_at) == ("RUNNING", clock.now + timedelta(days=1))


def test_it_takes_of_the_preemptible_quota_and_not_of_spots_room(world: GoogleState, clock: Clock) -> None:
    world.capacity.limits[ZONE, "a2-highgpu-1g", Kind.SPOT] = 0
    world.capacity.quotas[Kind.SPOT] = 1
    world.capacity.quotas[Kind.ON_DEMAND] = 0
    group = started(world, 2)
    assert statuses(world) == ["RUNNING"]
    clock.now += timedelta(seconds=8)  # what a refusal takes
    one_round(world)
    assert "Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded" in group.errors[0]["error"]["message"]
