"""The embedded Compute Engine without machines: filters, discovery document, timed operations, metadata."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from localcloud.gcp import discovery
from localcloud.gcp.calls import patched
from localcloud.gcp.errors import ApiError
from localcloud.gcp.filters import matches
from localcloud.gcp.metadata import as_text, look_up
from localcloud.gcp.operations import OperationFailure, Operations
from localcloud.gcp.store import Key, Store

ROW: dict[str, Any] = {
    "name": "chat-1",
    "status": "RUNNING",
    "labels": {"gpu-fleet-pool": "chat"},
    "scheduling": {"preemptible": True},
    "targetSize": 3,
}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("name=chat-1", True),
        ('name = "chat-1"', True),
        ("name=chat", False),
        ("name=chat-*", True),
        ("name!=chat-1", False),
        ("name eq chat-.*", True),
        ("name ne chat-.*", False),
        ("labels.gpu-fleet-pool=chat", True),
        ("labels.none:*", False),
        ("labels.gpu-fleet-pool:*", True),
        ("scheduling.preemptible=true", True),
        ("targetSize>2", True),
        ("targetSize >= 4", False),
        ("(name=chat-1) (status=RUNNING)", True),
        ("name=chat-1 AND status=TERMINATED", False),
        ("name=x OR status=RUNNING", True),
        ("NOT status=RUNNING", False),
        ("-(status=RUNNING)", False),
    ],
)
def test_filter_selects_rows(text: str, passes: bool) -> None:
    assert matches(text, ROW) is passes


@pytest.mark.parametrize("text", ["name", "(name=x", "=", "AND"])
def test_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="Invalid list filter expression"):
        matches(text, ROW)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "projects/p/zones/z/instances/i", "instances.get"),
        ("GET", "projects/p/zones/z/instances", "instances.list"),
        ("GET", "projects/p/aggregated/instances", "instances.aggregatedList"),
        ("POST", "projects/p/zones/z/instances/i/stop", "instances.stop"),
        ("POST", "projects/p/regions/r/instanceGroupManagers/g/resize", "regionInstanceGroupManagers.resize"),
        ("POST", "projects/p/zones/z/operations/o/wait", "zoneOperations.wait"),
        ("GET", "projects/p/global/images/family/f", "images.getFromFamily"),
    ],
)
def test_path_is_mapped_to_a_method_of_the_discovery_document(method: str, path: str, found: str) -> None:
    match = discovery.compute().match(method, path)
    assert match is not None
    assert match.route.method_id == found


def test_output_only_fields_are_ignored() -> None:
    match = discovery.compute().match("POST", "projects/p/global/networks")
    assert match is not None
    body = {"name": "net", "id": "5", "selfLink": "x", "autoCreateSubnetworks": False}
    assert discovery.compute().clean(match.route, body) == {"name": "net", "autoCreateSubnetworks": False}


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ({"a": {"y": 2}}, {"a": {"x": 1, "y": 2}, "b": [1]}),
        ({"a": {"x": None}}, {"a": {}, "b": [1]}),
        ({"b": [2]}, {"a": {"x": 1}, "b": [2]}),
        ({"b": None}, {"a": {"x": 1}}),
        ({"c": {"z": None, "w": 3}}, {"a": {"x": 1}, "b": [1], "c": {"w": 3}}),
    ],
    ids=["merges maps", "null in a map", "replaces lists", "null removes", "new map"],
)
def test_patch_merges_maps_and_removes_nulls(change: dict[str, Any], after: dict[str, Any]) -> None:
    assert patched({"a": {"x": 1}, "b": [1]}, change) == after


def test_null_is_kept_in_a_patch_and_dropped_elsewhere() -> None:
    document = discovery.compute()
    body = {"description": None, "priority": 5}
    for method, path, cleaned in (
        ("PATCH", "projects/p/global/firewalls/f", body | {"name": "f"}),
        ("PUT", "projects/p/global/firewalls/f", {"priority": 5, "name": "f"}),
    ):
        match = document.match(method, path)
        assert match is not None
        assert document.clean(match.route, body | {"name": "f"}) == cleaned


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def test_operation_proceeds_from_pending_to_done_with_time() -> None:
    clock = Clock()
    ready = [False]
    operations = Operations(store=Store(base_url="http://127.0.0.1"), now=clock)
    made = operations.start("zones/z", "insert", "projects/p/x", "1", progress=lambda: ready[0])
    seen: list[str] = []
    for _ in range(4):
        found = operations.find("zones/z", made["name"])
        assert found is not None
        seen.append(found["status"])
        clock.now += timedelta(milliseconds=250)
    ready[0] = True
    found = operations.find("zones/z", made["name"])
    assert found is not None
    assert [*seen, found["status"]] == ["PENDING", "RUNNING", "RUNNING", "RUNNING", "DONE"]
    assert found["progress"] == 100


def test_failed_operation_has_code_message_and_status() -> None:
    clock = Clock()
    operations = Operations(store=Store(base_url="http://127.0.0.1"), now=clock)
    failure = OperationFailure(
        code="QUOTA_EXCEEDED", message="Quota 'X' exceeded.", status=403, status_message="FORBIDDEN"
    )
    made = operations.start("global", "insert", "projects/p/x", "1", progress=lambda: failure)
    clock.now += timedelta(seconds=1)
    found = operations.find("global", made["id"])
    assert found is not None
    assert found["error"] == {"errors": [{"code": "QUOTA_EXCEEDED", "message": "Quota 'X' exceeded."}]}
    assert (found["httpErrorStatusCode"], found["httpErrorMessage"]) == (403, "FORBIDDEN")


def test_resource_is_in_use_only_by_references_to_its_full_name() -> None:
    store = Store(base_url="http://127.0.0.1")
    now = datetime(2026, 11, 21, tzinfo=UTC)
    short = store.add(Key("global", "instanceTemplates", "chat"), {}, now)
    long = store.add(Key("global", "instanceTemplates", "chat-2"), {}, now)
    store.add(Key("zones/z", "instanceGroupManagers", "g"), {"instanceTemplate": long["selfLink"]}, now)
    assert not list(store.users(short["selfLink"], ("instanceGroupManagers",)))
    assert [key.name for key, _ in store.users(long["selfLink"], ("instanceGroupManagers",))] == ["g"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/instance/machine-type", "projects/1/machineTypes/g2"),
        ("/instance/attributes/startup-script", "#!/bin/sh"),
        ("/instance/network-interfaces/0/ip", "127.1.64.2"),
        ("/instance/network-interfaces/", "0/\n"),
        ("/instance/attributes/", "startup-script\n"),
        ("/instance/", "attributes/\nmachine-type\nnetwork-interfaces/\n"),
    ],
)
def test_metadata_paths_use_dashes(path: str, text: str) -> None:
    tree = {
        "instance": {
            "machineType": "projects/1/machineTypes/g2",
            "attributes": {"startup-script": "#!/bin/sh"},
            "networkInterfaces": [{"ip": "127.1.64.2"}],
        }
    }
    assert as_text(look_up(tree, path), path) == text


@pytest.mark.parametrize("path", ["/instance/none", "/instance/machineType", "/instance/network-interfaces/4"])
def test_missing_metadata_is_none(path: str) -> None:
    assert look_up({"instance": {"machineType": "x", "networkInterfaces": []}}, path) is None
