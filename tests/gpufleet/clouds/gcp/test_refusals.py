"""The meaning of Google's error codes and messages."""

import json
from typing import Any

import pytest
from google.cloud import compute_v1

from gpufleet.clouds.gcp.refusals import is_account_wide, kind_of, zones_available
from gpufleet.domain.activity import ActivityKind
from tests.fixtures.clouds.google_answers import RECORDED

K = ActivityKind
SENTENCES: list[dict[str, str]] = [
    row for row in json.loads((RECORDED.parent / "sentences.json").read_text()) if row["cloud"] == "gcp"
]
BY_GROUP = "Instance 'chat-spot-x1y2' creation failed: {} (when acting as '123@cloudservices.gserviceaccount.com')"


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda row: f"{row['code']}: {row['message'][:40]}")
def test_a_recorded_error_is_classified(sentence: dict[str, str]) -> None:
    assert kind_of(sentence["code"], sentence["message"]) == ActivityKind(sentence["kind"])


@pytest.mark.parametrize("code", ["", "CONDITION_NOT_MET", "UNKNOWN"])
@pytest.mark.parametrize(
    "sentence", [row for row in SENTENCES if row["message"]], ids=lambda row: f"{row['message'][:40]}"
)
def test_a_recorded_message_is_classified_without_its_code(sentence: dict[str, str], code: str) -> None:
    expected = ActivityKind(sentence["kind"])
    assert kind_of(code, sentence["message"]) == expected
    assert kind_of(code, BY_GROUP.format(sentence["message"])) == expected


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "", K.NO_CAPACITY),
        ("REGION_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "", K.NO_CAPACITY),
        (
            "UNKNOWN",
            "A a3-highgpu-8g VM instance is currently unavailable in the us-central1-b zone. Consider trying your "
            "request in the us-central1-a zone(s), which currently has capacity to accommodate your request.",
            K.NO_CAPACITY,
        ),
        # all messages about reservations, with any code
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "Specified reservation 'r' does not have available resources for the request.",
            K.RESERVATION_FULL,
        ),
        ("CONDITION_NOT_MET", "Specified reservations [a, b] have no available capacity.", K.RESERVATION_FULL),
        ("QUOTA_EXCEEDED", "Insufficient capacity in reservation 'r'.", K.RESERVATION_FULL),
        (
            "CONDITION_NOT_MET",
            "Cannot insert instance to a reservation with status: DELETING, as it requires reservation to be in"
            " READY state.",
            K.LATER,
        ),
        ("", "Could not find the given reservation with the following name: r", K.CONFIGURATION),
        ("", "The reservation must exist in the same project as the instance.", K.CONFIGURATION),
        ("resourceNotReady", "The resource 'projects/p/zones/z/instances/i' is not ready", K.LATER),
        ("PREEMPTIBLE_QUOTA_EXCEEDED", "", K.QUOTA),
        (
            "",
            "Insufficient regional quota to satisfy request: resource \"NVIDIA_L4_GPUS\": request requires '1.0'",
            K.QUOTA,
        ),
        (
            "rateLimitExceeded",
            "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service"
            " 'compute.googleapis.com' for consumer 'project_number:1'.",
            K.THROTTLED,
        ),
        ("RATE_LIMIT_EXCEEDED", "Quota exceeded for quota metric 'Mutations'", K.THROTTLED),
        ("userRateLimitExceeded", "", K.THROTTLED),
        (
            "",
            "Operation rate exceeded for resource 'projects/p/zones/z/disks/d'. Too frequent operations from the"
            " source resource.",
            K.THROTTLED,
        ),
        ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "Quota 'CONCURRENT' exceeded.  Limit: 10.0", K.THROTTLED),
        ("IP_SPACE_EXHAUSTED", "IP space of 'projects/p/regions/r/subnetworks/s' is exhausted.", K.CONFIGURATION),
        (
            "CONDITION_NOT_MET",
            "Constraint constraints/compute.vmExternalIpAccess violated for project 123.",
            K.CONFIGURATION,
        ),
        ("INVALID_FIELD_VALUE", "Invalid value for field 'resource.disks[0]'", K.CONFIGURATION),
        ("RESOURCE_NOT_FOUND", "The resource 'projects/p/global/images/x' was not found", K.CONFIGURATION),
        (
            "RESOURCE_NOT_FOUND",
            "The resource 'projects/p/zones/z/machineTypes/a3-highgpu-8g' was not found",
            K.UNSUPPORTED,
        ),
        ("", "Machine type with name 'a2-highgpu-1g' does not exist in zone 'us-central1-c'.", K.UNSUPPORTED),
        ("UNSUPPORTED_OPERATION", "Accelerator type nvidia-l4 is not supported in zone z.", K.UNSUPPORTED),
        ("", "Required 'compute.images.useReadOnly' permission for 'projects/p/global/images/i'", K.PERMISSION),
        ("SERVICE_ACCOUNT_ACCESS_DENIED", "", K.PERMISSION),
        ("", "The user does not have access to service account 's'.  User: 'u'.", K.PERMISSION),
        (
            "accessNotConfigured",
            "Compute Engine API has not been used in project 1 before or it is disabled.",
            K.PERMISSION,
        ),
        # unknown errors never count as missing capacity
        ("CONDITION_NOT_MET", "The moon is in the wrong phase.", K.UNKNOWN),
        ("INTERNAL_ERROR", "Internal error. Please try again or contact Google Support. (Code: '-123')", K.UNKNOWN),
        ("SERVICE_UNAVAILABLE", "The service is currently unavailable.", K.UNKNOWN),
        ("RESOURCE_EXHAUSTED", "", K.UNKNOWN),
        ("", "", K.UNKNOWN),
    ],
)
def test_other_messages_are_classified(code: str, message: str, kind: ActivityKind) -> None:
    assert kind_of(code, message) is kind


@pytest.mark.parametrize(
    ("message", "account_wide"),
    [
        ("Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", True),
        ("Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-central1.", False),
        ("Quota 'CPUS_ALL_REGIONS' exceeded.", True),
    ],
)
def test_an_account_wide_quota_is_distinguished(message: str, account_wide: bool) -> None:
    assert is_account_wide(K.QUOTA, message) is account_wide
    assert not is_account_wide(K.NO_CAPACITY, message)


def error(**fields: Any) -> Any:
    return compute_v1.Errors(fields)


INFO = {
    "error_info": {
        "domain": "compute.googleapis.com",
        "reason": "resource_availability",
        "metadatas": {"zone": "us-central1-b", "zonesAvailable": "us-central1-a,us-central1-f"},
    }
}
LOCALIZED = {
    "localized_message": {
        "message": "A n1-standard-4 VM instance with 1 nvidia-tesla-t4 accelerator(s) is currently unavailable in"
        " the us-central1-b zone. Consider trying your request in the us-central1-a, us-central1-f zone(s), which"
        " currently has capacity to accommodate your request."
    }
}


@pytest.mark.parametrize(
    ("details", "zones"),
    [
        pytest.param([{"help_": {}}, LOCALIZED, INFO], ("us-central1-a", "us-central1-f"), id="both"),
        pytest.param([INFO], ("us-central1-a", "us-central1-f"), id="by its field"),
        pytest.param([LOCALIZED], ("us-central1-a", "us-central1-f"), id="by its text"),
        pytest.param([{"error_info": {"metadatas": {"zone": "us-central1-b"}}}], (), id="none named"),
        pytest.param([], (), id="no details"),
    ],
)
def test_zones_with_capacity_are_read(details: list[Any], zones: tuple[str, ...]) -> None:
    assert zones_available(error(code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", error_details=details)) == zones


def test_an_error_in_a_groups_list_has_no_details() -> None:
    listed = compute_v1.InstanceManagedByIgmErrorManagedInstanceError(code="X", message="no")
    assert zones_available(listed) == ()
