"""Instance histories on the embedded Compute Engine. Order, names and messages of operations match recordings,
and the adapters interpret them correctly."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from localcloud.gcp.groups import ManagedGroup
from localcloud.gcp.locations import PROJECT
from localcloud.gcp.operations import GROUPS, SYSTEM, USER
from localcloud.gcp.store import Key
from localcloud.time_scale import TimeScale

from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.domain.activity import Activity, ActivityKind
from tests.fixtures.clouds.google_answers import compute, recorded
from tests.fixtures.clouds.google_documents import REGION, document, entry
from tests.fixtures.localcloud.google_state import Emulated

K = ActivityKind
ZONE, OTHER = "us-central1-a", "us-central1-b"
MACHINE = "g2-standard-8"
SPOT = {
    "provisioningModel": "SPOT", "preemptible": True, "instanceTerminationAction": "DELETE",
    "automaticRestart": False, "onHostMaintenance": "TERMINATE",
}  # fmt: skip
PREEMPTED, REPAIRED = "compute.instances.preempted", "compute.instances.repair.recreateInstance"
FLEET = document(entry("spot"), entry("wide", "on-demand", None), entry("paid", "reserved"))
NAME = r"(operation|systemevent)-\d{13}-[0-9a-f]{13}-[0-9a-f]{8}-[0-9a-f]{8}"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    made = Emulated(tmp_path)
    with compute() as server:
        monkeypatch.setenv(ENDPOINT, server.url)
        server.answer = lambda path, query: made.call(_method(path), path, query=dict(query))
        yield made


def _method(path: str) -> str:
    return "POST" if path.endswith("/listManagedInstances") else "GET"


def properties(**more: Any) -> dict[str, Any]:
    return {
        "machineType": MACHINE,
        "labels": {"gpu-fleet-environment": "test", "gpu-fleet-pool": "chat"},
        "disks": [{"boot": True, "autoDelete": True}],
        "networkInterfaces": [{"network": "global/networks/net"}],
        **more,
    }


def spot(cloud: Emulated, size: int = 1) -> ManagedGroup:
    """A group of spot instances whose loop has not run yet."""
    healing = [{"healthCheck": "global/healthChecks/h", "initialDelaySec": 300}]
    return cloud.make_group("spot", size, f"zones/{ZONE}", properties(scheduling=SPOT), autoHealingPolicies=healing)


def limit(cloud: Emulated, count: int, zone: str = ZONE, kind: str = "spot") -> None:
    cloud.control("capacity", {"zone": zone, "type": MACHINE, "kind": kind, "count": count})


def history(cloud: Emulated, zone: str = ZONE) -> list[tuple[str, str, str]]:
    """Kind, user and error code of the operations of a zone, oldest first."""
    return [
        (row["operationType"], row["user"], next((e["code"] for e in row.get("error", {}).get("errors", [])), ""))
        for row in cloud.state.operations.list(f"zones/{zone}")
    ]


def activities_of(cloud: Emulated, name: str = "spot") -> list[Activity]:
    """The activities that the adapter reads from all operations."""
    groups = GoogleGroups(GoogleCalls(PROJECT), FLEET)
    return list(groups.activities([name], cloud.clock.now - timedelta(days=1)))


def kinds(cloud: Emulated, name: str = "spot") -> list[ActivityKind]:
    return [activity.kind for activity in activities_of(cloud, name)]


def member(group: ManagedGroup) -> str:
    (found,) = group.members
    return found.name


# Formats.


def test_operations_have_the_fields_and_name_format_of_recordings(cloud: Emulated) -> None:
    group = spot(cloud)
    cloud.run()
    _, pending = cloud.call("DELETE", f"zones/{ZONE}/instances/{member(group)}")
    before = recorded("operation_delete.json")
    assert pending.keys() == before.keys()
    assert {key: pending[key] for key in ("kind", "status", "progress", "operationType")} == {
        key: before[key] for key in ("kind", "status", "progress", "operationType")
    }
    cloud.run()
    for row in cloud.state.operations.list(f"zones/{ZONE}"):
        assert re.fullmatch(NAME, row["name"])
        own = row["user"] == SYSTEM
        assert row["name"].startswith("systemevent-" if own else "operation-")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}-0[78]:00", row["insertTime"])
        assert int(row["name"].split("-")[1]) == int(row["name"].split("-")[2], 16) // 1000
    assert re.fullmatch(NAME, before["name"]), "as it was recorded"


def test_not_found_response_matches_the_recording(cloud: Emulated) -> None:
    status, answer = cloud.call("GET", "global/instanceTemplates/instance-template-to-delete")
    before = recorded("instance_template_not_found.json")
    text = json.dumps(before).replace("projects/cloud-custodian", f"projects/{PROJECT}")
    assert (status, answer) == (404, json.loads(text))


def test_operations_are_ordered_or_filtered_but_not_both(cloud: Emulated) -> None:
    spot(cloud, 2)
    cloud.run()
    path = f"zones/{ZONE}/operations"
    _, newest = cloud.call("GET", path, query={"orderBy": "creationTimestamp desc"})
    times = [row["insertTime"] for row in newest["items"]]
    assert times == sorted(times, reverse=True)
    both = {"orderBy": "creationTimestamp desc", "filter": "operationType=insert"}
    assert cloud.call("GET", path, query=both)[0] == 400


def test_create_by_name_is_refused_for_a_group_with_proactive_replacement(cloud: Emulated) -> None:
    policy = {"type": "PROACTIVE", "replacementMethod": "SUBSTITUTE"}
    cloud.make_group("paid", 0, f"zones/{ZONE}", properties(), updatePolicy=policy)
    body = {"instances": [{"name": "one"}]}
    cloud.call("POST", f"zones/{ZONE}/instanceGroupManagers/paid/createInstances", body)
    cloud.run()
    (operation,) = cloud.state.operations.list(f"zones/{ZONE}")
    assert (operation["httpErrorStatusCode"], operation["httpErrorMessage"]) == (412, "PRECONDITION FAILED")
    assert operation["error"]["errors"][0]["code"] == "CONDITION_NOT_MET"


def test_groups_are_equal_in_a_list_and_alone(cloud: Emulated) -> None:
    spread = {"zones": [{"zone": f"zones/{ZONE}"}, {"zone": f"zones/{OTHER}"}]}
    spot(cloud, 2)
    cloud.make_group("wide", 2, f"regions/{REGION}", properties(), distributionPolicy=spread)
    paid = cloud.make_group("paid", 1, f"zones/{ZONE}", properties())
    cloud.run()
    names = ["spot", "wide", "paid"]
    groups = GoogleGroups(GoogleCalls(PROJECT), FLEET)

    def seen() -> list[int]:
        found = groups.groups(names)
        assert list(found) == [groups.groups([name])[0] for name in names]
        return [len(group.instance_ids) for group in found]

    assert seen() == [2, 2, 1]
    body = {"instances": [f"zones/{ZONE}/instances/{member(paid)}"]}
    cloud.call("POST", f"zones/{ZONE}/instanceGroupManagers/paid/deleteInstances", body)
    assert seen() == [2, 2, 0]
    cloud.control("unhealthy", {"pool": "chat"})
    limit(cloud, 0)
    cloud.run(20)
    assert seen()[1:] == [2, 0]


# Histories.


def test_spot_is_preempted_while_it_runs(cloud: Emulated) -> None:
    group = spot(cloud)
    cloud.run()
    name = member(group)
    cloud.control("preempt", {"instance": name})
    cloud.run(40)
    assert history(cloud) == [
        ("insert", GROUPS, ""),
        (PREEMPTED, SYSTEM, ""),
        (REPAIRED, SYSTEM, ""),
        ("delete", GROUPS, ""),
        ("insert", GROUPS, ""),
    ]
    assert kinds(cloud) == [K.LAUNCHED, K.PREEMPTED, K.LAUNCHED]
    lost = activities_of(cloud)[1]
    assert (lost.instance_id, lost.detail) == (name, "Instance was preempted.")


@pytest.mark.parametrize(("forced", "template"), [("NO", "spot"), ("YES", "new")])
def test_a_repaired_instance_keeps_its_template_unless_the_group_forces_updates(
    cloud: Emulated, forced: str, template: str
) -> None:
    """Compute Engine reference, `instanceLifecyclePolicy.forceUpdateOnRepair`; `NO` is the default."""
    policy = {"forceUpdateOnRepair": forced}
    group = cloud.make_group("spot", 1, f"zones/{ZONE}", properties(scheduling=SPOT), instanceLifecyclePolicy=policy)
    cloud.run()
    new = Key("global", "instanceTemplates", "new")
    cloud.state.store.add(new, {"properties": properties(scheduling=SPOT)}, cloud.clock.now)
    cloud.state.store.get(group.key)["versions"] = [{"instanceTemplate": cloud.state.store.url(new.path)}]
    cloud.control("preempt", {"instance": member(group)})
    cloud.run(40)
    assert kinds(cloud) == [K.LAUNCHED, K.PREEMPTED, K.LAUNCHED]
    assert group.members[0].version["instanceTemplate"].endswith(f"/{template}")


def test_instance_under_preemption_states_the_cause(cloud: Emulated) -> None:
    group = spot(cloud)
    cloud.run()
    cloud.control("preempt", {"instance": member(group), "notice_s": 0})
    cloud.hardware.end = lambda name: None  # type: ignore[method-assign]
    cloud.run(1)
    found = GoogleInventory(GoogleCalls(PROJECT), REGION, "test", now=cloud.clock).instances()
    assert [one.end_reason for one in found] == [K.PREEMPTED]


def test_spot_is_preempted_during_creation(cloud: Emulated) -> None:
    group = spot(cloud)
    cloud.run(0.25)
    cloud.control("preempt", {"instance": member(group), "notice_s": 0})
    cloud.run(10)
    first = history(cloud)[0]
    assert first == ("insert", GROUPS, "UNSUPPORTED_OPERATION")
    assert kinds(cloud)[0] is K.PREEMPTED
    assert K.LAUNCHED in kinds(cloud), "the group makes it again"


def test_zone_without_capacity_for_a_while(cloud: Emulated) -> None:
    limit(cloud, 0)
    limit(cloud, 0, "us-central1-f")
    group = spot(cloud)
    cloud.run(6)
    assert kinds(cloud) == [K.IN_PROGRESS], "a refusal takes seconds"
    cloud.run(4)
    (refused,) = activities_of(cloud)
    assert refused.kind is K.NO_CAPACITY
    assert refused.detail == (
        f"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: The zone 'projects/{PROJECT}/zones/{ZONE}' does not have enough"
        " resources available to fulfill the request.  '(resource type:compute)'."
    )
    assert refused.zones_available == (OTHER, "us-central1-c")
    (operation,) = cloud.state.operations.list(f"zones/{ZONE}")
    assert (operation["httpErrorStatusCode"], operation["httpErrorMessage"]) == (503, "SERVICE UNAVAILABLE")
    status, _ = cloud.call("GET", f"zones/{ZONE}/instances/{member(group)}")
    assert status == 404, "what could not be made is not there"
    cloud.run(60)
    assert len(history(cloud)) > 1, "the group asks again by itself"
    cloud.control("restore", {})
    cloud.run()
    assert kinds(cloud)[-1] is K.LAUNCHED


def test_capacity_error_of_a_machine_without_a_gpu_has_the_older_message(cloud: Emulated) -> None:
    cloud.control("capacity", {"zone": ZONE, "type": "e2-medium", "kind": "on-demand", "count": 0})
    body = {"name": "plain", **properties(machineType=f"zones/{ZONE}/machineTypes/e2-medium")}
    assert cloud.call("POST", f"zones/{ZONE}/instances", body)[0] == 200
    cloud.run()
    (operation,) = cloud.state.operations.list(f"zones/{ZONE}")
    (error,) = operation["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert error["message"].endswith("to fulfill the request.  Try a different zone, or try again later.")


@pytest.mark.parametrize(
    ("body", "message", "account_wide"),
    [
        pytest.param(
            {"kind": "spot", "gpus": 0},
            f"Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region {REGION}.",
            False,
            id="of the region",
        ),
        pytest.param(
            {"gpus_all_regions": 0},
            "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
            True,
            id="of all regions",
        ),
    ],
)
def test_reached_quota_refuses_a_launch(cloud: Emulated, body: Any, message: str, account_wide: bool) -> None:
    cloud.control("capacity", body)
    spot(cloud)
    cloud.run(10)
    (refused,) = activities_of(cloud)
    assert (refused.kind, refused.account_wide) == (K.QUOTA, account_wide)
    assert refused.detail == f"QUOTA_EXCEEDED: {message}"
    (operation,) = cloud.state.operations.list(f"zones/{ZONE}")
    assert operation["httpErrorStatusCode"] == 403


@pytest.mark.parametrize(
    ("count", "kind", "message"),
    [
        pytest.param(1, K.RESERVATION_FULL, "does not have available resources for the request.", id="full"),
        pytest.param(0, K.CONFIGURATION, "does not exist.", id="not there"),
    ],
)
def test_full_or_missing_reservation_refuses_a_launch(
    cloud: Emulated, count: int, kind: ActivityKind, message: str
) -> None:
    if count:
        row = {"specificReservation": {"count": str(count), "instanceProperties": {"machineType": MACHINE}}}
        cloud.state.store.add(Key(f"zones/{ZONE}", "reservations", "r"), row, cloud.clock.now)
    affinity = {
        "consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name",
        "values": ["r"],
    }  # fmt: skip
    cloud.make_group("paid", count + 1, f"zones/{ZONE}", properties(reservationAffinity=affinity))
    cloud.run(10)
    refused = [activity for activity in activities_of(cloud, "paid") if activity.kind is not K.LAUNCHED]
    assert [(one.kind, one.detail) for one in refused] == [
        (kind, f"CONDITION_NOT_MET: Specified reservation 'r' {message}")
    ]


def test_member_deleted_by_a_person(cloud: Emulated) -> None:
    group = spot(cloud)
    cloud.run()
    cloud.call("DELETE", f"zones/{ZONE}/instances/{member(group)}")
    cloud.run(5)
    assert history(cloud)[1] == ("delete", USER, "")
    assert kinds(cloud) == [K.LAUNCHED, K.ENDED_BY_PERSON, K.LAUNCHED]


def test_member_deleted_through_its_group(cloud: Emulated) -> None:
    group = spot(cloud)
    cloud.run()
    body = {"instances": [f"zones/{ZONE}/instances/{member(group)}"]}
    cloud.call("POST", f"zones/{ZONE}/instanceGroupManagers/spot/deleteInstances", body)
    cloud.run(5)
    assert kinds(cloud) == [K.LAUNCHED, K.ENDED]


def test_member_that_powers_itself_off(cloud: Emulated) -> None:
    group = spot(cloud)
    cloud.run()
    cloud.hardware.running.discard(member(group))
    cloud.run(5)
    assert kinds(cloud) == [K.LAUNCHED, K.ENDED_UNSTATED, K.LAUNCHED]
    assert activities_of(cloud)[1].detail == "Instance terminated by guest OS shutdown."


@pytest.mark.parametrize("reported_only", [False, True])
def test_member_that_fails_its_health_check(cloud: Emulated, reported_only: bool) -> None:
    group = spot(cloud)
    if reported_only:  # as the components declare it
        row = cloud.state.store.get(group.key)
        row["instanceLifecyclePolicy"] = {"onFailedHealthCheck": "DO_NOTHING", "defaultActionOnFailure": "REPAIR"}
    cloud.run()
    cloud.control("unhealthy", {"instance": member(group)})
    cloud.run(5)
    expected = [K.LAUNCHED] if reported_only else [K.LAUNCHED, K.UNHEALTHY, K.LAUNCHED]
    assert kinds(cloud) == expected
    if not reported_only:
        assert [what for what, _, _ in history(cloud)] == ["insert", REPAIRED, "delete", "insert"]


def test_regional_group_launches_and_replaces(cloud: Emulated) -> None:
    spread = {"zones": [{"zone": f"zones/{ZONE}"}, {"zone": f"zones/{OTHER}"}], "targetShape": "ANY"}
    group = cloud.make_group("wide", 1, f"regions/{REGION}", properties(), distributionPolicy=spread)
    limit(cloud, 0, kind="on-demand")
    cloud.run()
    assert [activity.kind for activity in activities_of(cloud, "wide")] == [K.LAUNCHED]
    cloud.call("DELETE", f"zones/{OTHER}/instances/{member(group)}")
    cloud.run(5)
    assert kinds(cloud, "wide") == [K.LAUNCHED, K.ENDED_BY_PERSON, K.LAUNCHED]


def test_time_scale_does_not_change_the_history(tmp_path: Path) -> None:
    found: list[Any] = []
    for factor in (1, 4):
        cloud = Emulated(tmp_path, TimeScale(factor))
        limit(cloud, 0)
        spot(cloud)
        cloud.run(60 / factor)
        found.append([(kind, user, code) for kind, user, code in history(cloud)])
    assert found[0] == found[1]
