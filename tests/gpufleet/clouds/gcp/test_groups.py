"""Managed instance groups of the embedded Compute Engine, with Google's client library."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1
from localcloud.addresses import Places

from tests.fixtures.clouds.emulator import start_cloud, stop_cloud, wait_for
from tests.fixtures.clouds.google import PROJECT, REGION, ZONE, Google
from tests.fixtures.local_token import BEARER

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    cloud = start_cloud(tmp_path_factory.mktemp("google"))
    try:
        google = Google(cloud=cloud)
        google.make_network()
        yield google
    finally:
        stop_cloud(cloud)


@pytest.fixture
def google(shared: Google) -> Iterator[Google]:
    """The embedded cloud with full capacity. Deletes the groups of the test at its end."""
    shared.control("POST", "restore", {})
    yield shared
    shared.control("POST", "restore", {})
    for group in shared.groups.list(project=PROJECT, zone=ZONE):
        shared.groups.delete_unary(project=PROJECT, zone=ZONE, instance_group_manager=group.name)
    wait_for("the end of the test's groups", lambda: not list(shared.groups.list(project=PROJECT, zone=ZONE)))


def _one(google: Google, name: str, script: str = "#!/bin/sh\n", **more: Any) -> Any:
    """Create a group with one running member and return the member."""
    google.make_group(name, google.make_template(name, script), 1, **more)
    return wait_for("the member", lambda: google.running(name))[0]


def test_a_group_creates_instances_that_run_their_startup_script(google: Google) -> None:
    script = "#!/bin/sh\ncurl -sS -H 'Metadata-Flavor: Google'"
    script += " http://$GCE_METADATA_HOST/computeMetadata/v1/instance/name >$GPUFLEET_ROOT/name\n"
    member = _one(google, "boots", script)
    name_file = google.cloud.machines / member.name / "name"
    wait_for("the startup script", lambda: name_file.is_file() and name_file.read_text())
    assert name_file.read_text() == member.name
    row = google.instance(member.name)
    assert row.network_interfaces[0].network_i_p.startswith(f"{google.cloud.places.network}.64.")
    made_by = {item.key: item.value for item in row.metadata.items}["created-by"]
    assert made_by.endswith(f"/zones/{ZONE}/instanceGroupManagers/boots")
    assert google.group("boots").status.is_stable


def test_resizes_and_deletions_change_the_size(google: Google) -> None:
    _one(google, "sized")
    google.finish(google.groups.resize_unary(project=PROJECT, zone=ZONE, instance_group_manager="sized", size=3))
    three = wait_for("three", lambda: len(found := google.running("sized")) == 3 and found)
    request = compute_v1.InstanceGroupManagersDeleteInstancesRequest(instances=[three[0].instance])
    google.finish(
        google.groups.delete_instances_unary(
            project=PROJECT,
            zone=ZONE,
            instance_group_manager="sized",
            instance_group_managers_delete_instances_request_resource=request,
        )
    )
    assert google.group("sized").target_size == 2
    two = wait_for("two", lambda: len(found := google.members("sized")) == 2 and found)
    assert {m.name for m in two} == {m.name for m in three[1:]}


def test_a_preempted_member_is_recreated_with_its_name(google: Google) -> None:
    member = _one(google, "spot")
    before = google.instance(member.name)
    status, shown = google.control("POST", "preempt", {"pool": "spot", "notice_s": 8})
    assert (status, shown["id"]) == (200, member.name)
    address = before.network_interfaces[0].network_i_p
    assert _metadata(address, "instance/preempted") == "TRUE"
    operations = google.client(compute_v1.ZoneOperationsClient).list(
        request={"project": PROJECT, "zone": ZONE, "filter": "operationType=compute.instances.preempted"}
    )
    assert member.name in {operation.target_link.rpartition("/")[2] for operation in operations}

    def again() -> Any:
        found = google.running("spot")
        return found[0] if found and found[0].id != before.id else None

    assert wait_for("the member made again", again).name == member.name
    assert google.group("spot").target_size == 1


def test_a_zone_without_capacity_is_a_group_error_until_restore(google: Google) -> None:
    limit = {"zone": ZONE, "type": "g2-standard-8", "kind": "spot", "count": 0}
    assert google.control("POST", "capacity", limit)[0] == 200
    google.make_group("short", google.make_template("short"), 1)
    errors = wait_for("an error", lambda: list(_errors(google, "short")))
    assert errors[0].error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert "does not have enough resources available" in errors[0].error.message
    member = google.members("short")[0]
    assert (member.current_action, member.instance_status) == ("CREATING", "")
    google.control("POST", "restore", {})
    wait_for("the member", lambda: google.running("short"))


def test_an_exceeded_quota_differs_from_missing_capacity(google: Google) -> None:
    assert google.control("POST", "capacity", {"kind": "spot", "gpus": 0})[0] == 200
    google.make_group("over", google.make_template("over"), 1)
    errors = wait_for("an error", lambda: list(_errors(google, "over")))
    assert errors[0].error.code == "QUOTA_EXCEEDED"
    assert "PREEMPTIBLE_NVIDIA_L4_GPUS" in errors[0].error.message


def _errors(google: Google, group: str) -> Any:
    return google.groups.list_errors(project=PROJECT, zone=ZONE, instance_group_manager=group)


def test_a_new_template_is_used_only_after_recreation(google: Google) -> None:
    member = _one(google, "rolls")
    second = google.make_template("rolls-2")
    body = compute_v1.InstanceGroupManager({"versions": [{"instance_template": second}]})
    google.finish(
        google.groups.patch_unary(
            project=PROJECT, zone=ZONE, instance_group_manager="rolls", instance_group_manager_resource=body
        )
    )
    group = google.group("rolls")
    assert group.status.is_stable
    assert not group.status.version_target.is_reached
    assert google.members("rolls")[0].id == member.id, "opportunistic: nothing is replaced by itself"
    request = compute_v1.InstanceGroupManagersRecreateInstancesRequest(instances=[member.instance])
    google.finish(
        google.groups.recreate_instances_unary(
            project=PROJECT,
            zone=ZONE,
            instance_group_manager="rolls",
            instance_group_managers_recreate_instances_request_resource=request,
        )
    )
    wait_for("the new version", lambda: google.group("rolls").status.version_target.is_reached)
    found = wait_for("the member", lambda: google.running("rolls"))[0]
    assert found.version.instance_template.endswith("/rolls-2")
    assert google.group("rolls").target_size == 1


def test_labels_are_written_only_with_the_current_fingerprint(google: Google) -> None:
    member = _one(google, "marked")
    row = google.instance(member.name)
    marks = {**row.labels, "gpu-fleet-idle-since": "20261121t0215z"}

    def write(fingerprint: str) -> None:
        body = compute_v1.InstancesSetLabelsRequest(labels=marks, label_fingerprint=fingerprint)
        google.finish(
            google.instances.set_labels_unary(
                project=PROJECT, zone=ZONE, instance=member.name, instances_set_labels_request_resource=body
            )
        )

    write(row.label_fingerprint)
    assert google.instance(member.name).labels == marks
    with pytest.raises(exceptions.PreconditionFailed):
        write(row.label_fingerprint)


def test_an_instance_deleted_outside_the_group_is_recreated(google: Google) -> None:
    member = _one(google, "stubborn")
    google.finish(google.instances.delete_unary(project=PROJECT, zone=ZONE, instance=member.name))

    def again() -> bool:
        found = google.running("stubborn")
        return bool(found) and found[0].id != member.id

    wait_for("the member made again", again)


def test_a_regional_group_with_any_shape_uses_a_zone_with_capacity(google: Google) -> None:
    limit = {"zone": ZONE, "type": "g2-standard-8", "kind": "spot", "count": 0}
    google.control("POST", "capacity", limit)
    client = google.client(compute_v1.RegionInstanceGroupManagersClient)
    body = compute_v1.InstanceGroupManager(
        {
            "name": "wide",
            "target_size": 1,
            "versions": [{"instance_template": google.make_template("wide")}],
            "distribution_policy": {
                "target_shape": "ANY",
                "zones": [{"zone": f"zones/{ZONE}"}, {"zone": "zones/us-central1-b"}],
            },
        }
    )
    google.finish(client.insert_unary(project=PROJECT, region=REGION, instance_group_manager_resource=body))

    def member() -> Any:
        found = client.list_managed_instances(project=PROJECT, region=REGION, instance_group_manager="wide")
        return next((m for m in found if m.instance_status == "RUNNING"), None)

    assert "/zones/us-central1-b/" in wait_for("the member", member).instance
    google.finish(client.delete_unary(project=PROJECT, region=REGION, instance_group_manager="wide"))
    assert not list(client.list(project=PROJECT, region=REGION))


def test_the_aggregated_list_filters_by_label(google: Google) -> None:
    member = _one(google, "listed")
    _one(google, "other")
    pages = google.instances.aggregated_list(
        request={"project": PROJECT, "filter": "labels.gpu-fleet-pool=listed", "max_results": 1}
    )
    found = {place: [row.name for row in scoped.instances] for place, scoped in pages if scoped.instances}
    assert found == {f"zones/{ZONE}": [member.name]}


def _metadata(address: str, path: str) -> str:
    request = urllib.request.Request(
        f"http://{address}:1338/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"colour": "red"}, "badRequest", "Unknown name \"colour\" at 'resource': Cannot find field."),
        ({"targetSize": "many"}, "badRequest", "Invalid value at 'resource.targetSize' (TYPE_INT32)"),
        ({"targetSize": None}, "required", "Required field 'resource.targetSize' not specified"),
        ({"name": "Upper"}, "invalid", "Must be a match of regex"),
        ({"updatePolicy": {"type": "LATER"}}, "invalid", "Must be one of: OPPORTUNISTIC, PROACTIVE"),
        ({"updatePolicy": {"typ": "PROACTIVE"}}, "badRequest", "Unknown name \"typ\" at 'resource.updatePolicy'"),
        (
            {"updatePolicy": {"maxSurge": {"fixed": 0}, "maxUnavailable": {"fixed": 0}}},
            "invalid",
            "At least one of them must be greater than 0.",
        ),
        ({"versions": None}, "required", "Required field 'resource.instanceTemplate' not specified"),
        ({"versions": [{"instanceTemplate": "global/instanceTemplates/nope"}]}, "notFound", "was not found"),
    ],
    ids=[
        "unknown",
        "wrong type",
        "missing",
        "name rule",
        "bad enum",
        "unknown inside",
        "conflict",
        "no template",
        "gone",
    ],
)
def test_invalid_groups_are_refused_as_by_google(
    google: Google, change: dict[str, Any], reason: str, message: str
) -> None:
    good = {"name": "good", "targetSize": 0, "versions": [{"instanceTemplate": "global/instanceTemplates/checked"}]}
    if not list(
        google.client(compute_v1.InstanceTemplatesClient).list(request={"project": PROJECT, "filter": "name=checked"})
    ):
        google.make_template("checked")
    body = {key: value for key, value in {**good, **change}.items() if value is not None}
    status, answer = _post(google.cloud.places, f"projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers", body)
    assert status == answer["error"]["code"]
    assert answer["error"]["errors"][0]["reason"] == reason
    assert message in answer["error"]["message"]


def _post(places: Places, path: str, body: Any) -> tuple[int, Any]:
    url = f"{places.google_url}/compute/v1/{path}"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=BEARER)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_processes_end_with_their_instance(google: Google) -> None:
    member = _one(google, "ends", "#!/bin/sh\nsleep 1003\n")
    address = google.instance(member.name).network_interfaces[0].network_i_p
    google.finish(google.groups.resize_unary(project=PROJECT, zone=ZONE, instance_group_manager="ends", size=0))
    wait_for("the end", lambda: not google.members("ends"))
    with pytest.raises(OSError, match="refused"):
        _metadata(address, "instance/name")
    wait_for("its folder to go", lambda: not (google.cloud.machines / member.name).exists())
