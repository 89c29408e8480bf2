"""Flex-start on the embedded Compute Engine with a test clock: validation, quota and end of instances."""

from datetime import timedelta
from typing import Any

import pytest
from localcloud.capacity_kind import Kind
from localcloud.gcp import groups
from localcloud.gcp.embedded import one_round
from localcloud.gcp.errors import ApiError
from localcloud.gcp.groups import ManagedGroup
from localcloud.gcp.instances import notice_of, preempt
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key
from localcloud.gcp.validation import check_properties

from tests.fixtures.localcloud import google_state
from tests.fixtures.localcloud.google_state import Clock

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
def state(clock: Clock) -> GoogleState:
    return google_state.google_state(clock)


def properties(**scheduling: Any) -> dict[str, Any]:
    given = {key: value for key, value in {**FLEX, **scheduling}.items() if value is not None}
    return {
        "machineType": "a2-highgpu-1g",
        "disks": [{"boot": True, "autoDelete": True}],
        "networkInterfaces": [{"network": "global/networks/net"}],
        "scheduling": given,
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    }


def started(state: GoogleState, size: int, **scheduling: Any) -> ManagedGroup:
    """A group of running flex-start instances, as the components declare it."""
    key = Key(f"zones/{ZONE}", "instanceGroupManagers", "flex")
    template = Key("global", "instanceTemplates", "flex")
    state.store.add(template, {"properties": properties(**scheduling)}, state.now())
    row = {
        "targetSize": size,
        "versions": [{"instanceTemplate": state.store.url(template.path)}],
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    state.store.add(key, row, state.now())
    group = ManagedGroup(key=key)
    state.groups[group.ident] = group
    for _ in range(4):
        one_round(state)
    return group


def statuses(state: GoogleState) -> list[str]:
    return sorted(machine.status for machine in state.machines.values())


def test_template_of_the_components_is_valid(state: GoogleState) -> None:
    check_properties(state, properties(), "resource.properties")


@pytest.mark.parametrize(
    ("scheduling", "affinity", "message"),
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
def test_scheduling_that_google_refuses_is_refused(
    state: GoogleState, scheduling: Any, affinity: str, message: str
) -> None:
    template = properties(**scheduling) | {"reservationAffinity": {"consumeReservationType": affinity}}
    with pytest.raises(ApiError, match=message):
        check_properties(state, template, "resource.properties")


@pytest.mark.parametrize(
    ("scheduling", "message"),
    [
        pytest.param({"preemptionNoticeDuration": {"seconds": "120"}}, "Only Spot VMs", id="of flex-start"),
        pytest.param(SPOT | {"preemptionNoticeDuration": {"seconds": "60"}}, "Must be 0 or 120", id="of a minute"),
    ],
)
def test_unsupported_notice_duration_is_refused(state: GoogleState, scheduling: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        check_properties(state, properties(**scheduling), "resource.properties")


@pytest.mark.parametrize(("asked_for", "runs_s"), [(None, 30), ({"seconds": "0"}, 30), ({"seconds": "120"}, 150)])
def test_preempted_instance_runs_until_its_notice_ends(
    state: GoogleState, clock: Clock, asked_for: Any, runs_s: int
) -> None:
    started(state, 1, **SPOT, preemptionNoticeDuration=asked_for)
    (machine,) = state.machines.values()
    preempt(state, machine, notice_of(machine))
    clock.now += timedelta(seconds=runs_s - 1)
    one_round(state)
    assert statuses(state) == ["RUNNING"]
    clock.now += timedelta(seconds=1)
    one_round(state)
    assert statuses(state) != ["RUNNING"]


def test_instance_ends_at_its_time_and_reduces_the_size_of_its_group(state: GoogleState, clock: Clock) -> None:
    began = clock.now
    started(state, 2)
    assert statuses(state) == ["RUNNING", "RUNNING"]
    (ends,) = {machine.ends_at for machine in state.machines.values() if machine.ends_at}
    assert ends == began + timedelta(days=1)
    clock.now = ends - timedelta(seconds=1)
    one_round(state)
    assert statuses(state) == ["RUNNING", "RUNNING"]
    clock.now = ends
    for _ in range(3):
        one_round(state)
    assert not state.machines
    row = state.store.get(Key(f"zones/{ZONE}", "instanceGroupManagers", "flex"))
    assert row["targetSize"] == 0
    deletions = [op for op in state.operations.list(f"zones/{ZONE}") if op["operationType"] == "delete"]
    assert {op["statusMessage"] for op in deletions} == {"The instance's maximum run duration is over."}
    assert [(stay.capacity_type, stay.why) for stay in state.billing_log.stays] == [
        ("flex-start", "maximum run duration")
    ] * 2


def test_instance_requested_again_runs_for_its_whole_time(state: GoogleState, clock: Clock) -> None:
    group = started(state, 1)
    clock.now += timedelta(days=1)
    for _ in range(3):
        one_round(state)
    groups.resize(state, group, 1)
    for _ in range(4):
        one_round(state)
    (machine,) = state.machines.values()
    assert (machine.status, machine.ends_at) == ("RUNNING", clock.now + timedelta(days=1))


def test_flex_start_uses_the_preemptible_quota_and_not_the_spot_capacity(state: GoogleState, clock: Clock) -> None:
    state.capacity.limits[ZONE, "a2-highgpu-1g", Kind.SPOT] = 0
    state.capacity.quotas[Kind.SPOT] = 1
    state.capacity.quotas[Kind.ON_DEMAND] = 0
    group = started(state, 2)
    assert statuses(state) == ["RUNNING"]
    clock.now += timedelta(seconds=8)  # duration of a refusal
    one_round(state)
    assert "Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded" in group.errors[0]["error"]["message"]
