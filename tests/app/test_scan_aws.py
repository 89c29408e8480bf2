"""A scan of AWS accounts on loopback: power that contradicts the utilization, and capacity that is prepaid."""

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.scan import scan
from app.scan_aws import AwsScanAccount
from gpufleet.clouds.aws.account import AwsAccount
from gpufleet.clouds.call_pace import CallPace
from gpufleet.scan import summary
from gpufleet.scan.advice import AdviceCode, advise
from gpufleet.scan.judge import ScanWindows
from gpufleet.scan.model import CapacityKind, Scan, Verdict, VerdictReason
from tests.fixtures.scan.aws_accounts import AwsCloud, AwsInstance, AwsRegion, aws_cloud, hours

OLD = datetime.now(UTC) - timedelta(days=30)
PROFILES = """
[profile first]
aws_access_key_id = AKIDFIRST
aws_secret_access_key = secret

[profile second]
aws_access_key_id = AKIDSECOND
aws_secret_access_key = secret
"""


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[AwsCloud]:
    config = tmp_path / "config"
    config.write_text(PROFILES)
    with aws_cloud() as made:
        for name, value in made.environment().items():
            if "KEY" not in name:
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        yield made


def scanned(*profiles: str) -> Scan:
    windows = ScanWindows(now=datetime.now(UTC))
    accounts = [AwsScanAccount(AwsAccount(profile=name, pace=CallPace(rate=1000))) for name in profiles or ("first",)]
    found = scan(accounts, windows, lambda *_: None)
    assert not found.all_failures
    return found


def test_gpus_that_draw_power_at_a_utilization_of_0_are_not_idle(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"] = AwsRegion(
        instances=[
            AwsInstance(id="i-rest", type="p5.4xlarge", launched=OLD, gpus=[hours(0)], watts=[hours(110)]),
            AwsInstance(id="i-work", type="p5.4xlarge", launched=OLD, gpus=[hours(0)], watts=[hours(690)]),
        ]
    )
    found = scanned()
    assert {one.instance.id: (one.verdict, one.reason) for one in found.instances} == {
        "i-rest": (Verdict.IDLE, VerdictReason.GPU_IDLE),
        "i-work": (Verdict.UNKNOWN, VerdictReason.METRICS_CONTRADICT),
    }
    assert [one.code for one in advise(found)] == [AdviceCode.STOP_IDLE], "a GPU metric is not missing"


def test_an_instance_of_a_few_hours_is_not_advised_to_be_stopped(cloud: AwsCloud) -> None:
    young = datetime.now(UTC) - timedelta(hours=3, minutes=10)
    instance = AwsInstance(id="i-new", type="p5.48xlarge", launched=young, gpus=[hours(0)] * 8)
    cloud.regions["us-east-1"] = AwsRegion(instances=[instance])
    found = scanned()
    assert [(one.verdict, one.reason) for one in found.instances] == [(Verdict.UNKNOWN, VerdictReason.TOO_YOUNG)]
    assert not advise(found) and summary.totals(found).waste == 0


def test_gpus_that_report_garbage_are_not_at_rest(cloud: AwsCloud) -> None:
    instance = AwsInstance(id="i-bad", type="g6.12xlarge", launched=OLD, gpus=[*[hours(-1)] * 3, hours(0)])
    cloud.regions["us-east-1"] = AwsRegion(instances=[instance])
    (one,) = scanned().instances
    assert (one.verdict, one.reason, one.idle_hours) == (Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE, 0)


def test_idle_instances_in_prepaid_capacity_are_not_advised_to_be_stopped(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"] = AwsRegion(
        instances=[
            AwsInstance(id="i-held", launched=OLD, gpus=[hours(0)], reservation="cr-1"),
            AwsInstance(
                id="i-block", type="p5.4xlarge", launched=OLD, gpus=[hours(0)], reservation="cr-2", is_block=True
            ),
        ],
        reservations=[("cr-1", "g6.xlarge", 1, 0), ("cr-2", "p5.4xlarge", 1, 0)],
        blocks={"cr-2"},
    )
    found = scanned()
    assert [(one.verdict, one.idle_hours, one.waste) for one in found.instances] == [(Verdict.IDLE, 168, 0)] * 2
    assert not advise(found)
    (line,) = (line for line in summary.headline(found) if "prepaid" in line)
    assert line.endswith("in idle hours of 2 instances; stopping them saves nothing")


def test_an_unused_capacity_block_is_shown_and_not_cancelled(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"] = AwsRegion(
        reservations=[("cr-1", "p5.48xlarge", 4, 4), ("cr-2", "g6.xlarge", 1, 1)], blocks={"cr-1"}
    )
    found = scanned()
    assert {one.id: (one.kind, one.unused) for one in found.capacity} == {
        "cr-1": (CapacityKind.CAPACITY_BLOCK, 4),
        "cr-2": (CapacityKind.CAPACITY_RESERVATION, 1),
    }
    (advice,) = advise(found)
    assert "cr-2" in advice.command


def test_a_shared_reservation_counts_in_the_account_that_owns_it(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"] = AwsRegion(
        reservations=[("cr-shared", "p4d.24xlarge", 2, 2)], owners={"cr-shared": "111122223333"}
    )
    found = scanned("first", "second")
    assert [(one.scope.account, one.id) for one in found.capacity] == [("111122223333", "cr-shared")]
    assert len(advise(found)) == 1 and not scanned("second").capacity


@pytest.mark.parametrize(
    ("instance", "unused"),
    [
        pytest.param(AwsInstance(id="i-1", launched=OLD), 0, id="on-demand"),
        pytest.param(AwsInstance(id="i-1", launched=OLD, reservation="cr-1"), 0, id="in a capacity reservation"),
        pytest.param(
            AwsInstance(id="i-1", launched=OLD, reservation="cr-2", is_block=True), 1, id="in a Capacity Block"
        ),
        pytest.param(
            AwsInstance(id="i-1", launched=OLD, reservation="cr-3", is_block=True), 1, id="in a shared Capacity Block"
        ),
        pytest.param(AwsInstance(id="i-1", launched=OLD, spot=True), 1, id="spot"),
    ],
)
def test_reserved_instances_pay_for_instances_in_capacity_reservations(
    cloud: AwsCloud, instance: AwsInstance, unused: int
) -> None:
    cloud.regions["us-east-1"] = AwsRegion(
        instances=[instance],
        reservations=[(name, "g6.xlarge", 1, 0) for name in ("cr-1", "cr-2", "cr-3")],
        blocks={"cr-2", "cr-3"},
        owners={"cr-3": "999988887777"},
        reserved=[("ri-1", "g6.xlarge", 1)],
    )
    (reserved,) = (one for one in scanned().capacity if one.kind is CapacityKind.RESERVED_INSTANCES)
    assert reserved.unused == unused
