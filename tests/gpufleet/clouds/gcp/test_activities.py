"""Activities of groups, from the operations of their zones. Test data has the form of recorded operations."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.domain.activity import ActivityKind, CloudError, ConflictError
from gpufleet.domain.model import InstanceState
from tests.fixtures.clouds.google_answers import Answer, Compute, Query, compute
from tests.fixtures.clouds.google_documents import REGION, document, entry

K = ActivityKind
NOW = datetime(2026, 11, 24, 20, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ZONE, OTHER = "us-central1-a", "us-central1-b"
AGENT = "123456789@cloudservices.gserviceaccount.com"
PACIFIC = ZoneInfo("America/Los_Angeles")
STOCKOUT: dict[str, Any] = {
    "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "message": f"The zone 'projects/p/zones/{ZONE}' does not have enough resources available to fulfill the request."
    "  '(resource type:compute)'.",
    "errorDetails": [
        {"help": {"links": [{"description": "Troubleshooting documentation", "url": "https://cloud.google.com/"}]}},
        {
            "errorInfo": {
                "reason": "resource_availability",
                "domain": "compute.googleapis.com",
                "metadatas": {"zone": ZONE, "vmType": "g2-standard-8", "zonesAvailable": f"{OTHER},us-central1-f"},
            }
        },
    ],
}
GLOBAL_QUOTA = {"code": "QUOTA_EXCEEDED", "message": "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."}


PLACES = {"spot-b": f"zones/{OTHER}", "wide": f"regions/{REGION}"}


def stamp(at: datetime) -> str:
    return at.astimezone(PACIFIC).isoformat(timespec="milliseconds")


class Project:
    """A project with groups, instances, and operations."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        self.members: dict[str, list[dict[str, Any]]] = {}
        self.errors: dict[str, list[dict[str, Any]]] = {}
        self.operations: dict[str, list[dict[str, Any]]] = {}
        self.instances: dict[str, list[dict[str, Any]]] = {}
        self.page = 500

    def answer(self, path: str, query: Query) -> Answer:
        parts = path.split("/")
        if parts[-1] == "operations":
            assert "filter" not in query, "Google refuses a filter together with an order"
            assert query["orderBy"] == "creationTimestamp desc"
            return 200, self._page(self.operations.get(parts[1], []), query)
        if path == "aggregated/instances":
            zones = {f"zones/{zone}": {"instances": rows} for zone, rows in self.instances.items()}
            return 200, {"items": zones}
        if path == "aggregated/instanceGroupManagers":
            places: dict[str, Any] = {"global": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}
            for name, row in self.groups.items():
                place = PLACES.get(name, f"zones/{ZONE}")
                places.setdefault(place, {"instanceGroupManagers": []})["instanceGroupManagers"].append(row)
            return 200, {"items": places}
        if parts[-1] == "listManagedInstances":
            return 200, {"managedInstances": self.members.get(parts[-2], [])}
        if parts[-1] == "listErrors":
            return 200, {"items": self.errors.get(parts[-2], [])}
        return 200, self.groups[parts[-1]]

    def _page(self, rows: list[dict[str, Any]], query: Mapping[str, str]) -> Any:
        newest = sorted(rows, key=lambda row: row["insertTime"], reverse=True)
        start = int(query.get("pageToken", "0"))
        rest = {"nextPageToken": str(start + self.page)} if start + self.page < len(newest) else {}
        return {"items": newest[start : start + self.page], **rest}

    def group(self, name: str, zones: tuple[str, ...] = ()) -> None:
        row: dict[str, Any] = {"name": name, "baseInstanceName": f"test-{name}", "targetSize": 1}
        if zones:
            row["distributionPolicy"] = {"zones": [{"zone": f"zones/{zone}"} for zone in zones]}
        self.groups[name] = row

    def operation(
        self, kind: str, instance: str, at: datetime = NOW, *, zone: str = ZONE, number: int = 7, **more: Any
    ) -> None:
        """Add an operation with the status DONE, unless `more` contains another status."""
        rows = self.operations.setdefault(zone, [])
        prefix = "systemevent" if kind.startswith("compute.instances.") else "operation"
        name = f"{prefix}-{int(at.timestamp() * 1000)}-{int(at.timestamp() * 1e6):x}-{len(rows):08x}-a282995b"
        rows.append(
            {
                "kind": "compute#operation",
                "name": name,
                "zone": f"https://www.googleapis.com/compute/v1/projects/p/zones/{zone}",
                "insertTime": stamp(at),
                "startTime": stamp(at),
                "endTime": stamp(at + timedelta(seconds=7)),
                "targetId": str(number),
                "targetLink": f"https://www.googleapis.com/compute/v1/projects/p/zones/{zone}/instances/{instance}",
                "operationType": kind,
                "status": "DONE",
                "progress": 100,
                "user": "system" if prefix == "systemevent" else AGENT,
                **more,
            }
        )


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compute]:
    with compute() as fake:
        monkeypatch.setenv(ENDPOINT, fake.url)
        yield fake


@pytest.fixture
def project(google: Compute) -> Project:
    made = Project()
    google.answer = made.answer
    made.group("spot-a")
    made.group("spot-b")
    made.group("wide", (ZONE, OTHER))
    return made


FLEET = document(entry("spot-a"), entry("spot-b", zone=OTHER), entry("wide", "on-demand", None))
NAMES = ("spot-a", "spot-b", "wide")


def observed(since: datetime = NOW - 5 * MINUTE) -> list[tuple[str, ActivityKind, str | None]]:
    found = GoogleGroups(GoogleCalls("p"), FLEET).activities(NAMES, since)
    return [(one.group, one.kind, one.instance_id) for one in found]


def test_launches_are_reported_when_they_finish(project: Project) -> None:
    project.operation("insert", "test-spot-a-x1y2")
    project.operation("insert", "test-spot-b-z3z4", zone=OTHER, status="RUNNING", progress=0, endTime="")
    project.operation("insert", "other-project-x1y2")
    project.operation("setLabels", "test-spot-a-x1y2")
    assert observed() == [
        ("spot-b", K.IN_PROGRESS, "test-spot-b-z3z4"),
        ("spot-a", K.LAUNCHED, "test-spot-a-x1y2"),
    ]
    (_, launched) = GoogleGroups(GoogleCalls("p"), FLEET).activities(NAMES, NOW)
    assert launched.at == NOW + timedelta(seconds=7), "in universal time, when it was over"


def test_launches_and_losses_of_a_regional_group_are_reported(project: Project) -> None:
    project.operation("insert", "test-wide-x1y2", zone=OTHER)
    project.operation("compute.instances.guestTerminate", "test-wide-x1y2", NOW + MINUTE, zone=OTHER)
    assert observed() == [("wide", K.LAUNCHED, "test-wide-x1y2"), ("wide", K.ENDED_UNSTATED, "test-wide-x1y2")]


def test_a_refusal_has_its_cause_and_zones_with_capacity(project: Project) -> None:
    failed: dict[str, Any] = {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"}
    project.operation("insert", "test-spot-a-x1y2", error={"errors": [STOCKOUT]}, **failed)
    (found,) = GoogleGroups(GoogleCalls("p"), FLEET).activities(NAMES, NOW)
    assert (found.kind, found.instance_id) == (K.NO_CAPACITY, "test-spot-a-x1y2")
    assert found.zones_available == (OTHER, "us-central1-f")
    assert found.detail == f"{STOCKOUT['code']}: {STOCKOUT['message']}"
    assert not found.account_wide


def test_an_account_wide_quota_is_distinguished(project: Project) -> None:
    project.operation("insert", "test-wide-x1y2", error={"errors": [GLOBAL_QUOTA]})
    (found,) = GoogleGroups(GoogleCalls("p"), FLEET).activities(NAMES, NOW)
    assert (found.kind, found.account_wide) == (K.QUOTA, True)


def test_only_spot_is_preempted_during_creation(project: Project) -> None:
    odd = {"errors": [{"code": "UNSUPPORTED_OPERATION", "message": ""}]}
    project.operation("insert", "test-spot-a-x1y2", error=odd)
    project.operation("insert", "test-wide-x1y2", error=odd)
    assert observed() == [("spot-a", K.PREEMPTED, "test-spot-a-x1y2"), ("wide", K.UNKNOWN, "test-wide-x1y2")]


LOSSES = [
    pytest.param(
        [("compute.instances.preempted", {}), ("delete", {}), ("compute.instances.repair.recreateInstance", {})],
        K.PREEMPTED,
        id="preempted",
    ),
    pytest.param([("delete", {"user": "person@example.com"})], K.ENDED_BY_PERSON, id="deleted by a person"),
    pytest.param([("stop", {"user": "person@example.com"}), ("delete", {})], K.ENDED_BY_PERSON, id="stopped"),
    pytest.param(
        [
            ("delete", {"user": "person@example.com"}),
            ("compute.instances.repair.recreateInstance", {"targetId": "0", "statusMessage": "status is DELETED"}),
        ],
        K.ENDED_BY_PERSON,
        id="deleted by a person and repaired",
    ),
    pytest.param([("delete", {})], K.ENDED, id="through its group"),
    pytest.param([("delete", {"user": "system"})], K.ENDED, id="its time to run is over"),
    pytest.param(
        [("compute.instances.guestTerminate", {}), ("compute.instances.repair.recreateInstance", {}), ("delete", {})],
        K.ENDED_UNSTATED,
        id="powered itself off",
    ),
    pytest.param(
        [
            (
                "compute.instances.repair.recreateInstance",
                {
                    "statusMessage": "Instance Group Manager 'spot-a' initiated recreateInstance on instance 'x'."
                    " Reason: Instance eligible for autohealing: instance unhealthy."
                },
            ),
            ("delete", {}),
        ],
        K.UNHEALTHY,
        id="failed its health check",
    ),
]


@pytest.mark.parametrize(("operations", "kind"), LOSSES)
def test_each_end_has_one_cause(project: Project, operations: list[Any], kind: ActivityKind) -> None:
    project.operation("insert", "test-spot-a-x1y2", NOW - 2 * MINUTE)
    for index, (what, more) in enumerate(operations):
        project.operation(what, "test-spot-a-x1y2", NOW + index * timedelta(seconds=20), **more)
    project.operation("insert", "test-spot-a-x1y2", NOW + 2 * MINUTE, number=8)
    assert [one[1] for one in observed()] == [K.LAUNCHED, kind, K.LAUNCHED]


def test_the_repair_of_an_earlier_loss_is_not_a_second_loss(project: Project) -> None:
    project.operation("compute.instances.preempted", "test-spot-a-x1y2", NOW - MINUTE)
    project.operation("compute.instances.repair.recreateInstance", "test-spot-a-x1y2", NOW + MINUTE)
    assert observed(since=NOW) == [], "the previous read reported it"


def test_only_recent_operations_are_read_with_one_list_per_zone(project: Project, google: Compute) -> None:
    project.page = 10
    for index in range(100):
        project.operation("insert", "other-project-x1y2", NOW - index * 10 * MINUTE)
    groups = GoogleGroups(GoogleCalls("p"), FLEET)
    groups.groups(NAMES)
    google.asked.clear()
    groups.activities(NAMES, NOW - 5 * MINUTE)
    assert [path for path, _ in google.asked] == [f"zones/{ZONE}/operations", f"zones/{OTHER}/operations"]


def test_consecutive_requests_share_the_lists(project: Project, google: Compute) -> None:
    seconds = [0.0]
    groups = GoogleGroups(GoogleCalls("p"), FLEET, lambda: seconds[0])
    groups.groups(NAMES)
    google.asked.clear()
    for name in ("spot-a", "wide"):
        groups.activities([name], NOW - 5 * MINUTE)
    assert [path for path, _ in google.asked] == [f"zones/{ZONE}/operations", f"zones/{OTHER}/operations"]
    seconds[0] += 1.5
    groups.activities(["wide"], NOW - 5 * MINUTE)
    assert len(google.asked) == 4, "a later look reads them again"


def at_rest(project: Project, name: str, **more: Any) -> str:
    """Make a group stable, with one member. Returns the member's name."""
    project.groups[name] |= {"currentActions": {"none": 1}, **more}
    member = f"test-{name}-x1y2"
    path = f"projects/1/{PLACES.get(name, f'zones/{ZONE}')}/instanceGroupManagers/{name}"
    row = machine("RUNNING", name=member, metadata={"items": [{"key": "created-by", "value": path}]})
    project.instances.setdefault(ZONE, []).append(row)
    return member


LISTS = ["aggregated/instanceGroupManagers", "aggregated/instances"]


def test_stable_groups_need_two_lists_in_total(project: Project, google: Compute) -> None:
    names = [f"group-{number}" for number in range(30)]
    for name in names:
        project.group(name)
        at_rest(project, name)
    groups = GoogleGroups(GoogleCalls("p"), document(*(entry(name) for name in names)))
    found = groups.groups(names)
    assert [(one.name, one.desired, one.instance_ids) for one in found] == [
        (name, 1, (f"test-{name}-x1y2",)) for name in names
    ]
    assert [path for path, _ in google.asked] == LISTS
    google.asked.clear()
    groups.activities(names, NOW)
    assert [path for path, _ in google.asked] == [f"zones/{ZONE}/operations"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"currentActions": {"none": 1, "deleting": 1}}, id="it deletes one"),
        pytest.param({"currentActions": {"none": 1}, "targetSize": 2}, id="it has not begun to make one"),
        pytest.param({"currentActions": {"creating": 1}}, id="what it has is none that it makes"),
        pytest.param({"currentActions": {"none": 2}, "targetSize": 2}, id="an instance is not listed"),
        pytest.param({"currentActions": {"none": 1}, "targetSize": 0}, id="it was resized just now"),
    ],
)
def test_members_of_a_changing_group_are_listed(project: Project, google: Compute, more: dict[str, Any]) -> None:
    for name in NAMES:
        at_rest(project, name)
    project.groups["spot-a"] |= more
    project.members["spot-a"] = [
        {"instance": "zones/z/instances/one", "instanceStatus": "RUNNING", "currentAction": "NONE"},
        {"instance": "zones/z/instances/two", "instanceStatus": "STOPPING", "currentAction": "DELETING"},
    ]
    first, *others = GoogleGroups(GoogleCalls("p"), FLEET).groups(NAMES)
    assert (first.instance_ids, first.leaving) == (("one",), frozenset({"two"}))
    assert [one.instance_ids for one in others] == [("test-spot-b-x1y2",), ("test-wide-x1y2",)]
    asked = [path for path, _ in google.asked]
    assert asked == [*LISTS, f"zones/{ZONE}/instanceGroupManagers/spot-a/listManagedInstances"]


def test_members_in_verification_count_as_stable(project: Project, google: Compute) -> None:
    for name in NAMES:
        at_rest(project, name, currentActions={"verifying": 1})
    found = GoogleGroups(GoogleCalls("p"), FLEET).groups(NAMES)
    assert [len(one.instance_ids) for one in found] == [1, 1, 1]
    assert [path for path, _ in google.asked] == LISTS


@pytest.mark.parametrize(("status", "count"), [("", 1), ("STAGING", 2)])
def test_a_group_that_creates_an_instance_needs_no_separate_call(
    project: Project, google: Compute, status: str, count: int
) -> None:
    for name in NAMES:
        at_rest(project, name)
    project.groups["spot-a"] |= {"currentActions": {"none": 1, "creating": 1}, "targetSize": 2}
    if status:
        path = f"projects/1/zones/{ZONE}/instanceGroupManagers/spot-a"
        metadata = {"items": [{"key": "created-by", "value": path}]}
        project.instances[ZONE].append(machine(status, name="test-spot-a-z3z4", metadata=metadata))
    first, *_ = GoogleGroups(GoogleCalls("p"), FLEET).groups(NAMES)
    assert (first.desired, len(first.instance_ids)) == (2, count)
    assert [path for path, _ in google.asked] == LISTS


def resized(project: Project, google: Compute, **operation: Any) -> GoogleGroups:
    """Groups, after a resize of one of them from 1 to 2 that its manager does not show yet."""
    for name in NAMES:
        at_rest(project, name)
    project.operation("compute.instanceGroupManagers.resize", "none", NOW, **operation)
    (row,) = project.operations[ZONE]
    begun = {**row, "status": "RUNNING", "error": {}}

    def answer(path: str, query: Query) -> Answer:
        return (200, begun) if path.endswith("/resize") else project.answer(path, query)

    google.answer = answer
    groups = GoogleGroups(GoogleCalls("p"), FLEET, lambda: 0.0)
    seen, *_ = groups.groups(NAMES)
    google.asked.clear()
    groups.resize(seen, 2)
    return groups


def test_a_resize_is_one_call_without_waiting(project: Project, google: Compute) -> None:
    groups = resized(project, google, status="RUNNING")
    assert [path for path, _ in google.asked] == [f"zones/{ZONE}/instanceGroupManagers/spot-a/resize"]
    assert groups.groups(NAMES)[0].desired == 2, "it is under way, though the cloud states it later"


def test_a_resize_that_fails_later_is_reported_once(project: Project, google: Compute) -> None:
    groups = resized(project, google, error={"errors": [GLOBAL_QUOTA]})
    found = groups.readable(NAMES)
    assert list(found.errors) == ["spot-a"]
    assert "the resize of spot-a to 2 failed: QUOTA_EXCEEDED" in found.errors["spot-a"]
    assert groups.readable(NAMES).groups["spot-a"].desired == 1, "nothing was changed"


def test_a_size_that_changed_meanwhile_is_a_conflict(project: Project, google: Compute) -> None:
    for name in NAMES:
        at_rest(project, name)
    seconds = [0.0]
    groups = GoogleGroups(GoogleCalls("p"), FLEET, lambda: seconds[0])
    seen, *_ = groups.groups(NAMES)
    project.groups["spot-a"] |= {"targetSize": 3}
    seconds[0] += 11
    with pytest.raises(ConflictError, match="was 1 when it was read, and is 3"):
        groups.resize(seen, 2)


def test_a_missing_group_is_named(project: Project) -> None:
    del project.groups["wide"]
    with pytest.raises(CloudError, match="the cloud has no group wide"):
        GoogleGroups(GoogleCalls("p"), FLEET).groups(NAMES)


def test_errors_of_a_group_are_listed_while_it_creates_instances(project: Project, google: Compute) -> None:
    refused = {
        "error": {"code": "INVALID", "message": "Required 'compute.images.useReadOnly' permission for 'image'"},
        "instanceActionDetails": {"instance": "zones/z/instances/test-spot-a-x1y2", "action": "CREATING"},
        "timestamp": stamp(NOW),
    }
    project.errors["spot-a"] = [refused, {**refused, "timestamp": stamp(NOW - timedelta(days=1))}]
    project.members["spot-a"] = [{"instance": "zones/z/instances/test-spot-a-x1y2", "currentAction": "CREATING"}]
    groups = GoogleGroups(GoogleCalls("p"), FLEET)
    groups.groups(NAMES)
    google.asked.clear()
    (found,) = groups.activities(NAMES, NOW - MINUTE)
    assert (found.group, found.kind, found.at) == ("spot-a", K.PERMISSION, NOW)
    assert [path for path, _ in google.asked if "listErrors" in path] == [
        f"zones/{ZONE}/instanceGroupManagers/spot-a/listErrors"
    ]


def test_no_errors_are_listed_if_operations_explain_all(project: Project, google: Compute) -> None:
    project.operation("insert", "test-spot-a-x1y2", error={"errors": [STOCKOUT]})
    project.members["spot-a"] = [{"instance": "zones/z/instances/test-spot-a-x1y2", "currentAction": "CREATING"}]
    groups = GoogleGroups(GoogleCalls("p"), FLEET)
    groups.groups(["spot-a"])
    google.asked.clear()
    (found,) = groups.activities(["spot-a"], NOW)
    assert found.kind is K.NO_CAPACITY
    assert [path for path, _ in google.asked] == [f"zones/{ZONE}/operations"]


def test_a_refusal_reported_twice_counts_once(project: Project) -> None:
    project.operation("insert", "test-spot-a-x1y2", error={"errors": [STOCKOUT]})
    project.errors["spot-a"] = [
        {
            "error": {"code": STOCKOUT["code"], "message": STOCKOUT["message"]},
            "instanceActionDetails": {"instance": "zones/z/instances/test-spot-a-x1y2", "action": "CREATING"},
            "timestamp": stamp(NOW + timedelta(seconds=8)),
        }
    ]
    (found,) = GoogleGroups(GoogleCalls("p"), FLEET).activities(NAMES, NOW)
    assert found.zones_available, "the operation's, which has details"


@pytest.mark.parametrize(
    ("action", "status", "counts"),
    [
        ("NONE", "RUNNING", True),
        ("CREATING", "PROVISIONING", True),
        ("CREATING_WITHOUT_RETRIES", "STAGING", True),
        ("VERIFYING", "RUNNING", True),
        ("REFRESHING", "RUNNING", True),
        ("RESTARTING", "STOPPING", True),
        ("STARTING", "STAGING", True),
        ("RESUMING", "SUSPENDED", True),
        ("RECREATING", "RUNNING", False),
        ("RECREATING", "STOPPING", False),
        ("RECREATING", "PROVISIONING", True),
        ("ABANDONING", "RUNNING", False),
        ("DELETING", "STOPPING", False),
        ("STOPPING", "RUNNING", False),
        ("SUSPENDING", "RUNNING", False),
    ],
)
def test_which_members_count(project: Project, action: str, status: str, counts: bool) -> None:
    member = {"instance": "zones/z/instances/test-spot-a-x1y2", "currentAction": action, "instanceStatus": status}
    project.members["spot-a"] = [member]
    (group,) = GoogleGroups(GoogleCalls("p"), FLEET).groups(["spot-a"])
    assert ("test-spot-a-x1y2" in group.instance_ids) is counts
    assert ("test-spot-a-x1y2" in group.leaving) is not counts


def machine(status: str = "TERMINATED", model: str = "SPOT", **more: Any) -> dict[str, Any]:
    return {
        "name": "test-spot-a-x1y2",
        "machineType": f"projects/p/zones/{ZONE}/machineTypes/g2-standard-8",
        "status": status,
        "creationTimestamp": stamp(NOW - 60 * MINUTE),
        "lastStopTimestamp": stamp(NOW - MINUTE),
        "scheduling": {"provisioningModel": model},
        "metadata": {"items": [{"key": "created-by", "value": f"projects/1/zones/{ZONE}/instanceGroupManagers/x"}]},
        **more,
    }


@pytest.mark.parametrize(
    ("row", "operations", "reason"),
    [
        pytest.param(machine("RUNNING"), [], None, id="it lives"),
        pytest.param(machine(), [], K.PREEMPTED, id="spot, stopped, and no operation states why"),
        pytest.param(machine(), [("compute.instances.preempted", {})], K.PREEMPTED, id="preempted"),
        pytest.param(machine("STOPPING"), [("compute.instances.preempted", {})], K.PREEMPTED, id="being preempted"),
        pytest.param(
            machine(),
            [("compute.instances.repair.recreateInstance", {"statusMessage": "Reason: status is TERMINATED."})],
            K.PREEMPTED,
            id="its group only found it stopped",
        ),
        pytest.param(
            machine(), [("compute.instances.guestTerminate", {})], K.ENDED_UNSTATED, id="spot that powered itself off"
        ),
        pytest.param(machine("STOPPING"), [], None, id="stopping, and no operation states why"),
        pytest.param(machine(), [("stop", {"user": "a@example.com"})], K.ENDED_BY_PERSON, id="stopped by a person"),
        pytest.param(machine("STOPPING"), [("delete", {})], K.ENDED, id="ended through its group"),
        pytest.param(machine(model="STANDARD"), [], None, id="on demand, and no operation states why"),
        pytest.param(machine(metadata={}), [], None, id="of no group"),
    ],
)
def test_why_an_instance_ended(
    project: Project, row: dict[str, Any], operations: list[Any], reason: ActivityKind | None
) -> None:
    project.instances[ZONE] = [row]
    for what, more in operations:
        project.operation(what, row["name"], NOW - 2 * MINUTE, **more)
    inventory = GoogleInventory(GoogleCalls("p"), REGION, "test", now=lambda: NOW)
    assert [one.end_reason for one in inventory.instances()] == [reason]


def test_only_listed_stopped_instances_are_ended(project: Project) -> None:
    project.instances[ZONE] = [machine(), machine("RUNNING", name="again")]
    inventory = GoogleInventory(GoogleCalls("p"), REGION, "test", now=lambda: NOW)
    found = inventory.ended(["test-spot-a-x1y2", "again", "gone"])
    assert [(one.id, one.end_reason) for one in found] == [("test-spot-a-x1y2", K.PREEMPTED)]


def test_instances_that_ended_long_ago_need_no_operations(project: Project, google: Compute) -> None:
    project.instances[ZONE] = [machine(lastStopTimestamp=stamp(NOW - timedelta(days=3)))]
    (found,) = GoogleInventory(GoogleCalls("p"), REGION, "test", now=lambda: NOW).instances()
    assert (found.state, found.end_reason) == (InstanceState.STOPPED, K.PREEMPTED)
    assert [path for path, _ in google.asked] == ["aggregated/instances"]


def test_instances_are_readable_without_operations(project: Project, google: Compute) -> None:
    project.instances[ZONE] = [machine("STOPPING")]
    google.answer = lambda path, query: (403, {}) if "operations" in path else project.answer(path, query)
    (found,) = GoogleInventory(GoogleCalls("p"), REGION, "test", now=lambda: NOW).instances()
    assert found.end_reason is None


def test_an_operation_without_valid_times_is_omitted(project: Project) -> None:
    project.operation("insert", "test-spot-a-x1y2", NOW)
    project.operation("compute.instances.preempted", "test-spot-a-z3z4", NOW, insertTime="")
    project.operation("compute.instances.preempted", "test-spot-a-z5z6", NOW, endTime="soon")
    assert observed() == [("spot-a", K.LAUNCHED, "test-spot-a-x1y2")]


def test_a_group_error_without_a_time_affects_only_that_group(project: Project) -> None:
    project.errors["spot-a"] = [{"timestamp": "", "error": STOCKOUT}]
    groups = GoogleGroups(GoogleCalls("p"), FLEET)
    with pytest.raises(CloudError, match="an error of spot-a has an unreadable time"):
        groups.activities(["spot-a"], NOW - 5 * MINUTE)
    assert groups.activities(["spot-b"], NOW - 5 * MINUTE) == ()


UNREACHABLE = {"warning": {"code": "UNREACHABLE", "message": "it does not answer"}}


@pytest.mark.parametrize(
    ("place", "is_ours"),
    [
        ("zones/asia-south1-a", False),
        ("regions/asia-south1", False),
        ("zones/us-central10-a", False),
        ("zones/us-central1-f", True),
        ("regions/us-central1", True),
    ],
)
def test_failures_in_other_regions_are_ignored(project: Project, google: Compute, place: str, is_ours: bool) -> None:
    def answer(path: str, query: Query) -> Answer:
        status, body = project.answer(path, query)
        if path.startswith("aggregated/"):
            body = {"items": {**body["items"], place: UNREACHABLE}}
        return status, body

    google.answer = answer
    groups, inventory = GoogleGroups(GoogleCalls("p"), FLEET), GoogleInventory(GoogleCalls("p"), REGION, "test")
    if is_ours:
        for read in (lambda: groups.groups(NAMES), inventory.listed):
            with pytest.raises(CloudError, match=f"{place} could not be listed"):
                read()
    else:
        assert [group.name for group in groups.groups(NAMES)] == list(NAMES)
        assert inventory.listed().instances == ()
