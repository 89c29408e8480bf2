"""What a fleet may need of an account's quotas, counted by hand; and what `doctor --fleet` makes of it."""

from typing import Any

import pytest

from cli import quotas as command
from clouds.aws.calls import AwsCalls
from clouds.aws.quotas import limits
from fleet.document import FleetDocument
from fleet.model import Cloud
from fleet.quotas import Need, needs
from tests.watchdogs.worlds import document


def group(kind: str, name: str, most: int, *types: str, zone: str | None = "us-east-1a") -> dict[str, Any]:
    return {"type": kind, "zone": zone, "name": name, "max": most, "machine_types": list(types)}


def fleet(cloud: str, most: int, *groups: dict[str, Any]) -> FleetDocument:
    made = document(groups=list(groups), max=most, target=0)
    return made.model_copy(update={"cloud": Cloud(cloud)})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(
            fleet("aws", 6, group("spot", "a", 4, "g6.xlarge", "g6.2xlarge"), group("spot", "b", 4, "g6.xlarge")),
            [("L-3819A6DF", 4 * 8 + 2 * 4)],
            id="zones share the pool's max, the largest type counts",
        ),
        pytest.param(
            fleet("aws", 6, group("spot", "a", 2, "p5.48xlarge"), group("on-demand", "o", 9, "p4d.24xlarge")),
            [("L-417A185B", 6 * 96), ("L-C4BD4855", 2 * 192)],
            id="P5 on spot has a quota of its own, on-demand not",
        ),
        pytest.param(
            fleet("aws", 3, group("reserved", "r", 1, "g6.xlarge"), group("on-demand", "o", 2, "g6.xlarge")),
            [("L-DB2E81BA", 3 * 4)],
            id="reserved instances run on on-demand's quota",
        ),
        pytest.param(
            fleet("gcp", 4, group("spot", "a", 4, "g2-standard-24"), group("on-demand", "o", 1, "a2-highgpu-1g")),
            [("NVIDIA_A100_GPUS", 1), ("PREEMPTIBLE_NVIDIA_L4_GPUS", 4 * 2)],
            id="Google counts GPUs",
        ),
        pytest.param(
            fleet("aws", 1, group("on-demand", "o", 1, "p6-b200.48xlarge")), [(None, 192)], id="no quota known"
        ),
    ],
)
def test_needs_are_the_maxima(given: FleetDocument, expected: list[tuple[str | None, int]]) -> None:
    assert [(need.quota, need.most) for need in needs(given)] == expected


@pytest.mark.parametrize(
    ("limit", "ok", "words"),
    [(32.0, True, "up to 32 vCPUs wanted, 32 allowed"), (31.0, False, "up to 32 vCPUs wanted, 31 allowed")],
)
def test_a_limit_below_the_need_is_found(limit: float, ok: bool, words: str) -> None:
    need = Need(quota="L-1", unit="vCPUs", most=32, for_="g6.xlarge spot")
    found = command.compare("aws-prod", need, {"L-1": limit})
    assert (found.ok, found.found) == (ok, f"g6.xlarge spot: {words}")
    assert ("ask for 32 vCPUs" in found.remedy) is not ok


def test_a_quota_that_cannot_be_read_is_no_yes() -> None:
    need = Need(quota=None, unit="vCPUs", most=192, for_="p6-b200.48xlarge on-demand")
    found = command.compare("aws-prod", need, {})
    assert "cannot be read here" in found.found and found.remedy


def test_limits_are_read_by_code() -> None:
    class ServiceQuotas:
        def get_service_quota(self, **given: str) -> dict[str, Any]:
            assert given == {"ServiceCode": "ec2", "QuotaCode": "L-1"}
            return {"Quota": {"Value": 64.0}}

    assert limits(AwsCalls("us-east-1", lambda service: ServiceQuotas()), ["L-1"]) == {"L-1": 64.0}
