"""Pool membership on both clouds: the group that the cloud reports decides. A pool tag alone makes no member."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from google.cloud import compute_v1

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.instance_history import AwsInstanceHistory
from gpufleet.clouds.aws.inventory import GROUP_TAG, AwsInventory
from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.instance_history import GoogleInstanceHistory
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.clouds.gcp.members import (
    MAX_LIST_AGE_S,
    MEMBERSHIP_VALID_S,
    REFRESHED_AT_ONCE,
    REFRESHED_WITHIN_S,
    RETRY_AFTER_S,
    Members,
)
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import Instance
from gpufleet.domain.ownership import OwnedGroup
from serving.router.topology import PoolEntry, Topology, replicas_of
from tests.fixtures.clouds.recorded import calls

REGION, ZONE = "us-central1", "us-central1-a"
GROUPS = {"legal-a": OwnedGroup(pool="legal", zone=ZONE), "legal-any": OwnedGroup(pool="legal")}
TOPOLOGY = Topology(
    environment="prod", pools=(PoolEntry(name="legal", served_name="legal", groups=frozenset(GROUPS)),)
)
OURS = {tags.ENVIRONMENT: "prod", tags.POOL: "legal", tags.ROLE: tags.ROUTER}

CLAIMS = [
    pytest.param("legal-a", OURS, True, id="a member"),
    pytest.param("legal-any", {tags.ENVIRONMENT: "prod"}, True, id="a member that lost the tag of its pool"),
    pytest.param("legal-a", OURS | {tags.POOL: "other"}, True, id="a member with the tag of another pool"),
    pytest.param(None, OURS, False, id="tags alone"),
    pytest.param("dev-chat-spot-a", OURS, False, id="another environment's group"),
    pytest.param(None, {tags.POOL: "legal"}, False, id="no environment"),
]


def raw(group: str | None, written: Mapping[str, str], machine_type: str = "g6.xlarge") -> dict[str, Any]:
    of_group = {} if group is None else {GROUP_TAG: group}
    return {
        "InstanceId": "i-1",
        "InstanceType": machine_type,
        "Placement": {"AvailabilityZone": f"{ZONE}"},
        "State": {"Name": "running"},
        "LaunchTime": datetime(2026, 11, 21, 8, tzinfo=UTC),
        "PrivateIpAddress": "10.9.9.9",
        "Tags": [{"Key": key, "Value": value} for key, value in {**written, **of_group}.items()],
    }


def aws(group: str | None, written: Mapping[str, str], machine_type: str = "g6.xlarge") -> AwsCalls:
    return calls({"Reservations": [{"Instances": [raw(group, written, machine_type)]}]}, REGION)


def is_replica(instance: Instance) -> bool:
    return [replica.name for replica in replicas_of([instance], TOPOLOGY)] == [instance.id]


@pytest.mark.parametrize(("group", "written", "member"), CLAIMS)
def test_on_aws_the_group_tag_decides_membership(
    group: str | None, written: Mapping[str, str], *, member: bool
) -> None:
    (one,) = AwsInventory(aws(group, written), REGION, "prod", GROUPS).instances()
    (record,) = AwsInstanceHistory(aws(group, written), REGION, "prod", GROUPS).history().records
    assert one.pool == record.instance.pool == ("legal" if member else None)
    assert one.claimed_pool == (None if member else "legal")
    assert is_replica(one) is member
    assert not one.is_infrastructure, "who claims a pool is not hidden among routers and control host"


class Filtering(AwsCalls):
    """Calls with one instance as answer, if it has the tag of the filter."""

    def __init__(self, instance: Mapping[str, Any]) -> None:
        super().__init__(REGION)
        self.instance = instance
        self.written = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        (wanted,) = arguments["Filters"]
        listed = self.written.get(wanted["Name"].removeprefix("tag:")) in wanted["Values"]
        yield {"Instances": [self.instance] if listed else []}


@pytest.mark.parametrize(
    ("group", "written", "records"),
    [
        pytest.param("legal-a", {}, ["legal"], id="a member of an adopted group"),
        pytest.param("legal-a", OURS, ["legal"], id="a member with the tags"),
        pytest.param("legal-a", {tags.ENVIRONMENT: "dev"}, [], id="with the tag of another environment"),
        pytest.param("other", {}, [], id="a member of another group"),
    ],
)
def test_members_without_the_tag_of_an_environment_have_one_record(
    group: str, written: Mapping[str, str], records: list[str]
) -> None:
    calls = Filtering(raw(group, written))
    found = AwsInstanceHistory(calls, REGION, "prod", GROUPS).history().records
    assert [record.instance.pool for record in found] == records


@pytest.mark.parametrize(
    ("machine_type", "listed"),
    [
        *((name, True) for name in ("g6.xlarge", "g4ad.xlarge", "gr6.4xlarge", "p5.48xlarge", "p6e-gb200.36xlarge")),
        *((name, True) for name in ("inf1.xlarge", "inf2.xlarge", "trn1.2xlarge", "trn2.48xlarge", "dl1.24xlarge")),
        *((name, False) for name in ("m7i.large", "c7g.large", "i4i.large")),
    ],
)
def test_instances_with_any_accelerator_are_listed(machine_type: str, *, listed: bool) -> None:
    found = AwsInventory(aws(None, {}, machine_type), REGION, "prod").gpus().instances
    assert bool(found) is listed


def test_an_inventory_without_groups_reports_no_pool() -> None:
    (one,) = AwsInventory(aws("legal-a", OURS), REGION, "prod").gpus().instances
    assert one.pool is None


class Google(GoogleCalls):
    """One instance, and groups that list their members or fail."""

    def __init__(self, created_by: str | None, written: Mapping[str, str]) -> None:
        super().__init__("p")
        items = [] if created_by is None else [{"key": "created-by", "value": f"projects/1/{created_by}"}]
        self.machine = compute_v1.Instance(
            id=7,
            name="gpu-1",
            machine_type="g2-standard-8",
            status="RUNNING",
            creation_timestamp="2026-11-21T08:00:00Z",
            labels={tags.label(key): value for key, value in written.items()},
            metadata={"items": items},
            network_interfaces=[{"network_i_p": "10.9.9.9"}],
        )
        self.listed: dict[str, list[tuple[str, str, int]]] = {}
        self.refuses: set[str] = set()
        self.asked: list[str] = []

    def pages(self, service: str, operation: str, **request: Any) -> Iterator[Any]:
        if operation == "aggregated_list":
            yield f"zones/{ZONE}", compute_v1.InstancesScopedList(instances=[self.machine])
            return
        group = request["instance_group_manager"]
        self.asked.append(group)
        assert request.get("zone", REGION) == (GROUPS.get(group, GROUPS["legal-a"]).zone or REGION)
        if group in self.refuses:
            raise CloudError(f"{group}: 503")
        for zone, name, number in self.listed.get(group, ()):
            link = f"https://compute/projects/p/zones/{zone}/instances/{name}"
            yield compute_v1.ManagedInstance(instance=link, id=number)


def managed(group: str, place: str = f"zones/{ZONE}") -> str:
    return f"{place}/instanceGroupManagers/{group}"


@pytest.mark.parametrize(("group", "written", "member"), CLAIMS)
def test_on_google_the_list_of_the_group_decides_membership(
    group: str | None, written: Mapping[str, str], *, member: bool
) -> None:
    place = f"regions/{REGION}" if group == "legal-any" else f"zones/{ZONE}"
    google = Google(None if group is None else managed(group, place), written)
    google.listed = {"legal-a": [(ZONE, "gpu-1", 7)], "legal-any": [(ZONE, "gpu-1", 7)]} if member else {}
    (one,) = GoogleInventory(google, REGION, "prod", GROUPS).instances()
    (record,) = GoogleInstanceHistory(google, REGION, "prod", GROUPS).history().records
    assert one.pool == record.instance.pool == ("legal" if member else None)
    assert is_replica(one) is member


@pytest.mark.parametrize(
    ("created_by", "listed"),
    [
        pytest.param(managed("legal-a"), [], id="metadata that its maker wrote"),
        pytest.param(managed("legal-a"), [(ZONE, "gpu-1", 6)], id="a name that a member had before"),
        pytest.param(managed("legal-a"), [("us-central1-b", "gpu-1", 7)], id="the name of a member in another zone"),
        pytest.param(managed("legal-a"), [(ZONE, "gpu-1", 0)], id="one that is only being made"),
        pytest.param(managed("legal-a", "zones/us-central1-b"), [(ZONE, "gpu-1", 7)], id="such a group elsewhere"),
        pytest.param(managed("legal-any"), [(ZONE, "gpu-1", 7)], id="a zonal group with a regional one's name"),
        pytest.param("legal-a", [(ZONE, "gpu-1", 7)], id="no group's path"),
    ],
)
def test_metadata_alone_does_not_prove_membership(created_by: str, listed: list[tuple[str, str, int]]) -> None:
    google = Google(created_by, OURS)
    google.listed = {"legal-a": listed, "legal-any": listed}
    (one,) = GoogleInventory(google, REGION, "prod", GROUPS).instances()
    assert one.pool is None and one.group not in GROUPS
    assert not is_replica(one)


def test_a_failing_group_makes_its_instances_unreadable() -> None:
    google = Google(managed("legal-a"), OURS)
    google.refuses = {"legal-a"}
    found = GoogleInventory(google, REGION, "prod", GROUPS).listed()
    assert found.instances == () and "legal-a: 503" in found.errors["gpu-1"]
    with pytest.raises(CloudError, match="gpu-1 cannot be read: legal-a: 503"):
        GoogleInventory(google, REGION, "prod", GROUPS).instances()


def test_a_group_is_listed_for_new_instances_and_periodically() -> None:
    now, google = [0.0], Google(managed("legal-a"), OURS)
    members = Members(google, REGION, GROUPS, clock=lambda: now[0])

    def group_at(second: float) -> str | None:
        now[0] = second
        return members.group_and_pool(google.machine, ZONE)[0]

    assert group_at(0) is None and group_at(RETRY_AFTER_S - 1) is None and len(google.asked) == 1
    google.listed = {"legal-a": [(ZONE, "gpu-1", 7)]}
    assert group_at(RETRY_AFTER_S) == "legal-a"
    google.refuses = {"legal-a"}
    assert group_at(RETRY_AFTER_S + MEMBERSHIP_VALID_S - 1) == "legal-a" and len(google.asked) == 2
    for second in (RETRY_AFTER_S + MEMBERSHIP_VALID_S, RETRY_AFTER_S + MEMBERSHIP_VALID_S + 1):
        with pytest.raises(CloudError, match="503"):
            group_at(second)
    assert len(google.asked) == 3, "who does not answer is not asked for every instance"
    google.refuses, google.listed = set(), {}
    assert group_at(2 * RETRY_AFTER_S + MEMBERSHIP_VALID_S) is None, "it was abandoned"


@pytest.mark.parametrize(
    ("written", "claims"),
    [
        ({tags.POOL: "legal"}, True),
        ({tags.POOL: "legal", tags.ENVIRONMENT: "dev"}, False),
        ({tags.POOL: "legal", tags.ENVIRONMENT: "prod"}, False),
    ],
    ids=["no environment", "another environment, which reports it", "ours, which is listed"],
)
def test_instances_with_a_pool_but_no_environment_are_listed(written: Mapping[str, str], *, claims: bool) -> None:
    for inventory in (
        AwsInventory(aws(None, written), REGION, "prod", GROUPS),
        GoogleInventory(Google(None, written), REGION, "prod", GROUPS),
    ):
        found = inventory.claiming().instances
        assert [one.claimed_pool for one in found] == (["legal"] if claims else [])


def test_groups_due_together_are_listed_one_after_the_other() -> None:
    google = Google(managed("legal-a"), OURS)
    count, now = 3 * REFRESHED_AT_ONCE, [0.0]
    groups = {f"g-{n}": OwnedGroup(pool="legal", zone=ZONE) for n in range(count)}
    google.listed = {name: [(ZONE, "gpu-1", 7)] for name in groups}
    members = Members(google, REGION, groups, clock=lambda: now[0])

    def asked_at(second: float) -> int:
        now[0], before = second, len(google.asked)
        for name in groups:
            google.machine.metadata.items[0].value = f"projects/1/{managed(name)}"
            assert members.group_and_pool(google.machine, ZONE)[0] == name
        return len(google.asked) - before

    assert asked_at(0) == count
    due = MEMBERSHIP_VALID_S
    assert [asked_at(due + look * REFRESHED_WITHIN_S) for look in range(4)] == [*[REFRESHED_AT_ONCE] * 3, 0]
    assert asked_at(due + MAX_LIST_AGE_S + 4 * REFRESHED_WITHIN_S) == count, "no list is valid for ever"
