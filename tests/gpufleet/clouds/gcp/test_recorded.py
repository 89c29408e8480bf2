"""Reads recorded responses of Google Cloud with the adapters and the real clients."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.instance_history import GoogleInstanceHistory
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.clouds.gcp.operations import ENDS, LAUNCH, began, cause, instance_of, recent
from gpufleet.clouds.gcp.prices import GooglePrices
from gpufleet.domain.activity import ActivityKind, CloudError
from gpufleet.domain.model import CapacityType, InstanceState
from tests.fixtures.clouds.google_answers import RECORDED, Compute, compute, recorded
from tests.fixtures.clouds.google_documents import REGION, document, entry

S = InstanceState
ZONE = "us-central1-a"
RUNNING, STOPPED, STOPPING, PENDING = S.RUNNING, S.STOPPED, S.STOPPING, S.PENDING
PACIFIC_DAY, PACIFIC_NIGHT = timedelta(hours=7), timedelta(hours=8)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compute]:
    with compute() as fake:
        monkeypatch.setenv(ENDPOINT, fake.url)
        yield fake


INSTANCES = {
    "instance_get_running.json": ("c7n-jenkins", "us-central1-b", RUNNING),
    "instance_get_running_2023.json": ("pro-narwhal", ZONE, RUNNING),
    "instance_get_terminated.json": ("instance-1", ZONE, STOPPED),
    "instances_aggregated_2021_accelerators.json": ("test-ingwar", ZONE, STOPPED),
    "instances_aggregated_running.json": ("c7n-jenkins", "us-central1-b", RUNNING),
    "instances_aggregated_suspended.json": ("pro-narwhal", ZONE, STOPPED),
    "instances_aggregated_terminated.json": ("instance-1", ZONE, STOPPED),
    "instances_list_deleting.json": ("instance-1", "us-central1-c", STOPPING),
    "instances_list_provisioning.json": ("instance-1", "us-central1-c", PENDING),
    "instances_list_stopping.json": ("instance-1", "us-central1-c", STOPPING),
}


def over_all_zones(answer: Any) -> Any:
    """Convert a response about one zone or one instance to an aggregated list, which the adapters request."""
    items = answer.get("items", [answer])
    if isinstance(items, dict):
        return answer
    zones: dict[str, Any] = {}
    for item in items:
        zones.setdefault("zones/" + item["zone"].rpartition("/")[2], {"instances": []})["instances"].append(item)
    return {"kind": "compute#instanceAggregatedList", "items": zones}


@pytest.mark.parametrize("name", INSTANCES)
def test_recorded_instances_are_read(google: Compute, name: str) -> None:
    google.answer = lambda path, query: (200, over_all_zones(recorded(name)))
    instances = GoogleInventory(GoogleCalls("p"), REGION, "test").instances()
    wanted, zone, state = INSTANCES[name]
    (found,) = [one for one in instances if one.id == wanted]
    assert (found.zone, found.state, found.capacity_type) == (zone, state, CapacityType.ON_DEMAND)
    assert found.machine_type in ("n1-standard-1", "e2-medium")
    assert found.launched_at.tzinfo is UTC
    assert found.end_reason is None, "no group made it, and its description states nothing"


def test_the_stop_time_of_a_recorded_instance_is_in_utc(google: Compute) -> None:
    raw = recorded("instance_get_terminated.json")
    raw["metadata"]["items"] = [{"key": "created-by", "value": f"projects/1/zones/{ZONE}/instanceGroupManagers/g"}]
    google.answer = lambda path, query: (200, over_all_zones(raw) if "aggregated" in path else {})
    (record,) = GoogleInstanceHistory(GoogleCalls("p"), REGION, "test").history().records
    assert record.instance.launched_at == datetime(2023, 6, 28, 7, 1, 36, 536000, UTC) + PACIFIC_DAY
    assert record.ended_at == datetime(2023, 7, 7, 19, 8, 51, 836000, UTC) + PACIFIC_DAY
    assert not record.preempted, "it is not a spot instance"


OPERATIONS = {
    # file -> instance, type of the operation, and kind of activity if it ends the instance
    "autoscaler_patch_operation.json": (None, "compute.autoscalers.patch", None),
    "disk_delete_operation.json": (None, "delete", None),
    "instance_template_delete_operation.json": (None, "delete", None),
    "operation_delete.json": ("instance-1", "delete", ActivityKind.ENDED_BY_PERSON),
    "operation_resume.json": ("pro-narwhal", "resume", None),
    "operation_set_labels.json": ("test-ingwar", "setLabels", None),
    "operation_set_metadata.json": ("distinct-lab", "setMetadata", None),
    "operation_start.json": ("instance-1", "start", None),
    "operation_stop.json": ("instance-1", "stop", ActivityKind.ENDED_BY_PERSON),
    "operation_suspend.json": ("pro-narwhal", "suspend", None),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_recorded_operations_are_read(google: Compute, name: str) -> None:
    raw = recorded(name)
    google.answer = lambda path, query: (200, {"items": [raw]})
    (operation,) = GoogleCalls("p").pages("zone_operations", "list", zone=ZONE)
    instance, kind, ended = OPERATIONS[name]
    assert (instance_of(operation), operation.operation_type) == (instance, kind)
    offset = PACIFIC_NIGHT if raw["insertTime"].endswith("-08:00") else PACIFIC_DAY
    assert began(operation) == datetime.fromisoformat(raw["insertTime"][:23]).replace(tzinfo=UTC) + offset
    operations = recent(GoogleCalls("p"), ZONE, began(operation))
    assert list(operations) == ([(instance, int(raw["targetId"]))] if instance else [])
    assert (kind in ENDS and instance is not None) is (ended is not None)
    assert kind != LAUNCH
    if ended is not None:
        assert cause([operation]) == (ended, kind)


def _group(google: Compute) -> None:
    raw = recorded("instance_group_managers_us_central1_a.json")["items"][0]
    member = {
        "instance": f"{raw['zone']}/instances/instance-group-2-x1y2",
        "instanceStatus": "RUNNING",
        "currentAction": "VERIFYING",
    }
    google.answer = lambda path, query: (200, {"managedInstances": [member]} if "Managed" in path else raw)
    (group,) = GoogleGroups(GoogleCalls("p"), document(entry(raw["name"]))).groups([raw["name"]])
    assert (group.desired, group.instance_ids, group.leaving) == (1, ("instance-group-2-x1y2",), frozenset())


def _no_group(google: Compute) -> None:
    google.answer = lambda path, query: (200, recorded("instance_group_managers_empty.json"))
    calls = GoogleCalls("p")
    assert list(calls.pages("instance_group_managers", "list", zone="asia-east1-a")) == []


def _not_found(google: Compute) -> None:
    google.answer = lambda path, query: (404, recorded("instance_template_not_found.json"))
    with pytest.raises(CloudError, match="instanceTemplates/instance-template-to-delete' was not found") as refused:
        GoogleCalls("p").one("instance_templates", "get", instance_template="instance-template-to-delete")
    assert refused.value.code == "notFound"


def _disabled(google: Compute) -> None:
    google.answer = lambda path, query: (403, recorded("service_disabled_403.json"))
    with pytest.raises(CloudError, match="has not been used in project 123456789123 before or it is disabled") as no:
        GoogleCalls("p").one("regions", "get", region=REGION)
    assert no.value.code == "403"


class Catalog:
    """Replaces the service object of google-api-python-client; returns this page."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def services(self) -> "Catalog":
        return self

    def skus(self) -> "Catalog":
        return self

    def list(self, parent: str, pageSize: int) -> "Catalog":  # noqa: N803 - Google's name
        assert pageSize > 0
        return self

    def execute(self) -> Any:
        return self._page

    def list_next(self, request: object, page: object) -> None:
        """Return no next page."""


def _catalog(google: Compute) -> None:
    skus = recorded("billing_catalog_skus.json")
    prices, errors = GooglePrices(REGION, Catalog(skus)).refresh(["a2-highgpu-1g"], datetime.now(UTC))
    (price,) = prices
    assert (price.sku, price.usd_per_hour) == ("gcp:compute:a2-highgpu-1g:on-demand", Decimal("3.673385"))
    (error,) = errors
    assert "a2-highgpu-1g (spot)" in error, "the recording has no spot prices: one is missing, none is made up"


def _no_catalog(google: Compute) -> None:
    refused = recorded("billing_catalog_error.json")
    prices, errors = GooglePrices(REGION, Catalog(refused)).refresh(["a2-highgpu-1g"], datetime.now(UTC))
    assert prices == []
    assert ["a page contains no skus" in error for error in errors] == [True]


OTHERS: dict[str, Callable[[Compute], None]] = {
    "billing_catalog_error.json": _no_catalog,
    "billing_catalog_skus.json": _catalog,
    "instance_group_managers_empty.json": _no_group,
    "instance_group_managers_us_central1_a.json": _group,
    "instance_template_not_found.json": _not_found,
    "service_disabled_403.json": _disabled,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_recorded_responses_are_read(google: Compute, name: str) -> None:
    OTHERS[name](google)


def test_all_recorded_responses_have_a_test() -> None:
    there = {path.name for path in RECORDED.glob("*.json")}
    assert there == {*INSTANCES, *OPERATIONS, *OTHERS}


def test_recorded_responses_contain_no_real_accounts() -> None:
    for path in RECORDED.glob("*.json"):
        assert set(re.findall(r"[\w.+-]+@[\w-]+\.[\w.]+", path.read_text())) <= {"someone@example.com"}, path.name
