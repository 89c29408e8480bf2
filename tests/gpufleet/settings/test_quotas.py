"""The quotas that a fleet can need, calculated by hand, and the findings of `doctor --fleet`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from app import quotas as command
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.quotas import limits
from gpufleet.console import exporter
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.quotas import QuotaNeed, QuotaUsage, needs, uses
from tests.fixtures.logs import RecordedLog
from tests.fixtures.metrics_text import value
from tests.fixtures.watchdogs.plain import START, document, instance


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
            fleet("gcp", 4, group("spot", "a", 2, "a2-highgpu-1g"), group("flex-start", "f", 3, "a2-highgpu-1g")),
            [("PREEMPTIBLE_NVIDIA_A100_GPUS", 2 + 3)],
            id="flex-start is preemptible to Google's quotas",
        ),
        pytest.param(
            fleet("aws", 1, group("on-demand", "o", 1, "p6-b200.48xlarge")), [("L-417A185B", 192)], id="P6 on-demand"
        ),
        pytest.param(
            fleet("aws", 1, group("spot", "s", 1, "p6-b200.48xlarge")), [(None, 192)], id="P6 on spot is unknown"
        ),
    ],
)
def test_needs_are_sums_of_the_maxima(given: FleetDocument, expected: list[tuple[str | None, int]]) -> None:
    assert [(need.quota, need.most) for need in needs(given)] == expected


@pytest.mark.parametrize(
    ("limit", "ok", "text"),
    [(32.0, True, "up to 32 vCPUs wanted, 32 allowed"), (31.0, False, "up to 32 vCPUs wanted, 31 allowed")],
)
def test_a_limit_below_the_need_is_reported(limit: float, ok: bool, text: str) -> None:
    need = QuotaNeed(quota="L-1", unit="vCPUs", most=32, for_="g6.xlarge spot")
    found = command.compare("aws-prod", need, {"L-1": limit})
    assert (found.ok, found.found) == (ok, f"g6.xlarge spot: {text}")
    assert ("request 32 vCPUs" in found.remedy) is not ok


def test_an_unreadable_quota_is_reported() -> None:
    need = QuotaNeed(quota=None, unit="vCPUs", most=192, for_="p6-b200.48xlarge on-demand")
    found = command.compare("aws-prod", need, {})
    assert "cannot be read here" in found.found and found.remedy


def test_limits_are_read_by_code() -> None:
    class ServiceQuotas:
        def get_service_quota(self, **given: str) -> dict[str, Any]:
            assert given == {"ServiceCode": "ec2", "QuotaCode": "L-1"}
            return {"Quota": {"Value": 64.0}}

    assert limits(AwsCalls("us-east-1", lambda service: ServiceQuotas()), ["L-1"]) == {"L-1": 64.0}


SPOT, ON_DEMAND = "L-3819A6DF", "L-DB2E81BA"


@pytest.mark.parametrize(
    ("instances", "expected"),
    [
        pytest.param((), [], id="none"),
        pytest.param((("g6.xlarge", "spot"), ("g6.2xlarge", "spot")), [(SPOT, 4 + 8)], id="added up"),
        pytest.param((("g6.xlarge", "reserved"), ("g6.xlarge", "on-demand")), [(ON_DEMAND, 8)], id="one quota"),
        pytest.param((("m6i.large", "on-demand"),), [], id="a machine that is not in the catalogue"),
        pytest.param((("p6-b200.48xlarge", "spot"),), [], id="no quota known"),
        pytest.param((("inf2.8xlarge", "on-demand"),), [("L-1945791B", 32)], id="Inferentia"),
        pytest.param((("trn1.32xlarge", "spot"),), [("L-6B0D517C", 128)], id="Trainium on spot"),
    ],
)
def test_running_instances_are_counted(
    instances: tuple[tuple[str, str], ...], expected: list[tuple[str, int]]
) -> None:
    found = uses(Cloud.AWS, [machine(name, kind) for name, kind in instances])
    assert [(use.quota, use.used) for use in found] == expected


def test_tpu_chips_have_no_readable_quota() -> None:
    (need,) = needs(fleet("gcp", 2, group("on-demand", "o", 2, "ct6e-standard-4t")))
    assert (need.quota, need.unit, need.most) == (None, "TPU chips", 8)
    assert uses(Cloud.GCP, [machine("ct6e-standard-4t", "on-demand")]) == ()


def test_terminated_instances_are_not_counted() -> None:
    ended = machine("g6.xlarge", "spot", state=InstanceState.TERMINATED)
    assert uses(Cloud.AWS, [ended, machine("g6.xlarge", "spot")]) == (QuotaUsage(quota=SPOT, unit="vCPUs", used=4),)


def machine(name: str, kind: str, **changes: Any) -> Instance:
    return instance(machine_type=name, capacity_type=CapacityType(kind), **changes)


@dataclass
class Account:
    """A fake account: its answers and the number of queries."""

    limits: Mapping[str, float] | None
    instances: Sequence[Instance] | None
    asked: int = 0
    log: RecordedLog = field(default_factory=RecordedLog)

    def answer(self, document: FleetDocument, wanted: Sequence[QuotaNeed]) -> Mapping[str, float]:
        self.asked += 1
        if self.limits is None:
            raise CloudError("service-quotas:get_service_quota failed: AccessDenied")
        return self.limits

    def list(self) -> Sequence[Instance]:
        if self.instances is None:
            raise CloudError("ec2:describe_instances failed")
        return self.instances

    def meter(self) -> command.QuotaMeter:
        given = fleet("aws", 6, group("spot", "a", 4, "g6.xlarge"))
        return command.QuotaMeter(document=given, instances=self.list, log=self.log, limits=self.answer)


def test_use_and_limit_become_metrics() -> None:
    meter = Account({SPOT: 64.0}, [machine("g6.xlarge", "spot")]).meter()
    page = exporter.render([exporter.FleetMetrics(environment="prod", quotas=meter.read(START))])
    labels = {"environment": "prod", "quota": SPOT, "unit": "vCPUs"}
    assert value(page, "gpufleet_quota_used", **labels) == 4
    assert value(page, "gpufleet_quota_limit", **labels) == 64


@pytest.mark.parametrize(
    ("account", "text"),
    [
        pytest.param(Account(None, []), "limits cannot be read", id="limits"),
        pytest.param(Account({SPOT: 64.0}, None), "instances cannot be read", id="instances"),
    ],
)
def test_unreadable_quotas_have_no_figure_and_are_logged_once(account: Account, text: str) -> None:
    meter = account.meter()
    assert [meter.read(START + minutes * timedelta(minutes=1)) for minutes in range(3)] == [(), (), ()]
    (line,) = account.log.lines
    assert line["part"] == "quotas" and text in line["error"]


def test_a_quota_with_an_unknown_limit_has_no_figure() -> None:
    running = [machine("g6.xlarge", "spot"), machine("g6.xlarge", "on-demand")]
    assert [use.quota for use in Account({SPOT: 64.0}, running).meter().read(START)] == [SPOT]


def test_limits_are_queried_once_an_hour() -> None:
    account = Account({SPOT: 64.0}, [])
    meter = account.meter()
    for minutes in (0, 1, 59, 60, 61):
        meter.read(START + timedelta(minutes=minutes))
    assert account.asked == 2
