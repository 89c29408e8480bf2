"""The things to do first after a scan."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.scan import summary
from gpufleet.scan.advice import AdviceCode, advise
from gpufleet.scan.model import (
    CapacityKind,
    Scan,
    ScannedCapacity,
    ScannedInstance,
    ScanScope,
    ScopeResult,
    Verdict,
    VerdictReason,
)

AWS = ScanScope(Cloud.AWS, "111122223333", "us-east-1")
PLAIN = Instance(
    id="i-1",
    cloud=Cloud.AWS,
    region="us-east-1",
    zone="us-east-1a",
    machine_type="g6.xlarge",
    capacity_type=CapacityType.ON_DEMAND,
    state=InstanceState.RUNNING,
    launched_at=datetime(2026, 11, 1, tzinfo=UTC),
)
IDLE = ScannedInstance(
    instance=PLAIN,
    account=AWS.account,
    owner=None,
    usd_per_hour=Decimal("0.8"),
    verdict=Verdict.IDLE,
    reason=VerdictReason.GPU_IDLE,
)
HELD = ScannedCapacity(
    kind=CapacityKind.CAPACITY_RESERVATION,
    scope=AWS,
    id="cr-1",
    place="us-east-1a",
    machine_type="g6.xlarge",
    total=2,
    unused=2,
    usd_per_hour=Decimal("1.6"),
)


def scan(*instances: ScannedInstance, capacity: tuple[ScannedCapacity, ...] = ()) -> Scan:
    return Scan(
        at=datetime(2026, 11, 26, tzinfo=UTC),
        window=timedelta(days=7),
        idle_window=timedelta(days=1),
        results=[ScopeResult(scope=AWS, instances=instances, capacity=capacity)],
        failures=[],
    )


@pytest.mark.parametrize(
    ("instance", "command"),
    [
        pytest.param(PLAIN, "aws ec2 stop-instances --region us-east-1 --instance-ids i-1", id="on-demand"),
        pytest.param(
            replace(PLAIN, capacity_type=CapacityType.SPOT),
            "aws ec2 terminate-instances --region us-east-1 --instance-ids i-1",
            id="spot cannot stop",
        ),
        pytest.param(
            replace(PLAIN, group="workers"),
            "for id in i-1; do aws autoscaling terminate-instance-in-auto-scaling-group --region us-east-1"
            " --instance-id $id --should-decrement-desired-capacity; done",
            id="a group would replace it",
        ),
        pytest.param(
            replace(PLAIN, environment="prod"),
            "gpufleet watch idle --apply  # with --fleet or GPUFLEET_FLEET of prod",
            id="of gpu-fleet",
        ),
        pytest.param(
            replace(PLAIN, id="i-1; rm -rf /"),
            "aws ec2 stop-instances --region us-east-1 --instance-ids 'i-1; rm -rf /'",
            id="a hostile id is quoted",
        ),
    ],
)
def test_idle_instances_are_stopped_in_the_way_of_their_owner(instance: Instance, command: str) -> None:
    (advice,) = advise(scan(replace(IDLE, instance=instance)))
    assert (advice.code, advice.command) == (AdviceCode.STOP_IDLE, command)
    assert advice.usd_per_month == Decimal("0.8") * 730


@pytest.mark.parametrize(
    ("prices", "amount"),
    [
        pytest.param(["0.8", "0.2"], "saves up to 730.00 USD a month", id="known"),
        pytest.param(
            ["1.0", None], "saves up to 730.00 USD a month, without 1 instance of unknown price", id="one unknown"
        ),
        pytest.param([None, None], "of unknown price", id="all unknown"),
    ],
)
def test_an_unknown_price_does_not_count_as_zero(prices: list[str | None], amount: str) -> None:
    idle = [
        replace(
            IDLE,
            instance=replace(PLAIN, id=f"i-{number}"),
            usd_per_hour=None if price is None else Decimal(price),
        )
        for number, price in enumerate(prices)
    ]
    (advice,) = advise(scan(*idle))
    assert summary.amount_of(advice) == amount
    assert advice.unpriced == prices.count(None)


@pytest.mark.parametrize(
    ("unused", "command"),
    [
        pytest.param(2, "cancel-capacity-reservation --region us-east-1 --capacity-reservation-id cr-1", id="all"),
        pytest.param(
            1,
            "modify-capacity-reservation --region us-east-1 --capacity-reservation-id cr-1 --instance-count 1",
            id="a part",
        ),
    ],
)
def test_unused_reservations_are_released(unused: int, command: str) -> None:
    (advice,) = advise(scan(capacity=(replace(HELD, unused=unused),)))
    assert advice.command == f"aws ec2 {command}"


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(replace(HELD, unused=0), id="used"),
        pytest.param(replace(HELD, unused=None), id="unknown"),
        pytest.param(replace(HELD, usd_per_hour=None), id="without a price"),
        pytest.param(replace(HELD, kind=CapacityKind.RESERVED_INSTANCES), id="cannot be cancelled"),
        pytest.param(replace(HELD, kind=CapacityKind.CAPACITY_BLOCK), id="a Capacity Block, paid in advance"),
    ],
)
def test_no_advice_about_capacity_without_a_known_saving(held: ScannedCapacity) -> None:
    assert advise(scan(capacity=(held,))) == []


BLIND = replace(IDLE, verdict=Verdict.UNKNOWN, reason=VerdictReason.NO_METRIC)


def test_a_missing_metric_on_aws_needs_the_agent_and_its_configuration() -> None:
    found = advise(scan(*(replace(BLIND, instance=replace(PLAIN, id=f"i-{number}")) for number in range(60))))
    assert [one.text.split(" (")[0] for one in found] == [
        "Add a GPU metric to 50 instances", "Add a GPU metric to 10 instances"
    ]  # fmt: skip
    assert "then add `nvidia_gpu` to its configuration" in found[0].text
    assert found[1].command.endswith(f"Values={','.join(f'i-{number}' for number in range(50, 60))}")


def test_a_missing_metric_on_google_cloud_needs_the_ops_agent_on_each_machine() -> None:
    scope = ScanScope(Cloud.GCP, "research-7")
    machines = [
        replace(BLIND, instance=replace(PLAIN, cloud=Cloud.GCP, id=name, zone=zone))
        for name, zone in (("a", "us-central1-a"), ("b", "us-central1-b"), ("c", "us-central1-a"))
    ]
    result = ScopeResult(scope=scope, instances=machines)
    found = advise(replace(scan(), results=[result]))
    commands = [one.command.partition(" --command ")[0] for one in found]
    assert commands == [
        "for vm in a c; do gcloud compute ssh $vm --zone us-central1-a --project research-7",
        "for vm in b; do gcloud compute ssh $vm --zone us-central1-b --project research-7",
    ]
    assert "add-google-cloud-ops-agent-repo.sh --also-install" in found[0].command


def test_a_command_that_stops_a_part_states_how_many_there_are() -> None:
    found = advise(scan(*(replace(IDLE, instance=replace(PLAIN, id=f"i-{number}")) for number in range(1_100))))
    assert found[0].text.startswith(
        "Stop 100 instances (g6.xlarge) of 1,100 that are idle: no GPU worked in the idle window"
    )


LOST = "; data on local disks, and on disks that are deleted with the instance, is lost"


@pytest.mark.parametrize(
    ("instance", "verb", "loss"),
    [
        pytest.param(PLAIN, "Stop", "; data on local disks is lost", id="stop with NVMe"),
        pytest.param(replace(PLAIN, machine_type="p3.2xlarge"), "Stop", "", id="stop without local disks"),
        pytest.param(
            replace(PLAIN, machine_type="g99.xlarge"), "Stop", "; data on local disks, if any, is lost", id="unknown"
        ),
        pytest.param(replace(PLAIN, capacity_type=CapacityType.SPOT), "Terminate", LOST, id="spot"),
        pytest.param(replace(PLAIN, group="workers"), "Terminate", LOST, id="group on AWS"),
        pytest.param(replace(PLAIN, environment="prod"), "End", LOST, id="of gpu-fleet"),
        pytest.param(
            replace(PLAIN, cloud=Cloud.GCP, machine_type="g2-standard-8", group="zones/us-central1-a/workers"),
            "Delete",
            LOST,
            id="group on Google Cloud",
        ),
        pytest.param(
            replace(PLAIN, cloud=Cloud.GCP, machine_type="g2-standard-8"),
            "Stop",
            "; data on local disks, if any, is lost",
            id="optional disks on Google Cloud",
        ),
    ],
)
def test_the_text_has_the_verb_of_the_command_and_the_data_that_is_lost(
    instance: Instance, verb: str, loss: str
) -> None:
    scope = ScanScope(Cloud.GCP, "research-7") if instance.cloud == Cloud.GCP else AWS
    likely = replace(IDLE, verdict=Verdict.LIKELY_IDLE, reason=VerdictReason.POWER_IDLE)
    found = [replace(one, instance=instance) for one in (IDLE, likely)]
    end, ask = advise(replace(scan(), results=[ScopeResult(scope=scope, instances=found)]))
    count = f"1 instance ({instance.machine_type})"
    assert end.text == f"{verb} {count}: no GPU worked in the idle window{loss}"
    assert ask.text == (
        f"Ask the owners of {count}, then {verb.lower()} them: no sign of work, but a GPU metric is missing{loss}"
    )


@pytest.mark.parametrize("verdict", [Verdict.IDLE, Verdict.LIKELY_IDLE])
def test_prepaid_instances_are_not_advised_to_be_stopped(verdict: Verdict) -> None:
    prepaid = replace(PLAIN, capacity_type=CapacityType.RESERVED, reservation="cr-1")
    assert advise(scan(replace(IDLE, instance=prepaid, verdict=verdict))) == []


def test_idle_hours_of_prepaid_instances_are_unused_capacity_and_no_waste() -> None:
    prepaid = replace(
        IDLE,
        instance=replace(PLAIN, id="i-2", capacity_type=CapacityType.RESERVED),
        idle_hours=168,
        measured_hours=168,
    )
    charged = replace(IDLE, idle_hours=100, measured_hours=168)
    found = scan(charged, prepaid)
    assert (charged.waste, charged.unused_prepaid) == (80, 0)
    assert (prepaid.waste, prepaid.unused_prepaid) == (0, 168 * Decimal("0.8"))
    totals = summary.totals(found)
    assert (totals.waste, totals.prepaid, totals.unused_prepaid) == (80, 1, 168 * Decimal("0.8"))
    assert (
        "unused prepaid capacity of the last 7d: 134.40 USD at on-demand prices in idle hours of 1 instance; stopping"
        " them saves nothing" in summary.headline(found)
    )
    cells = dict(zip(summary.HEADINGS, summary.row(prepaid, found.at), strict=True))
    assert (cells["use"], cells["waste USD"]) == ("idle (prepaid)", "-")
    document = summary.document(found, [], {})
    assert [(one["id"], one["waste_usd"], one["unused_prepaid_usd"]) for one in document["instances"]] == [
        ("i-1", "80.0", "0"), ("i-2", "0", "134.4")
    ]  # fmt: skip
    assert (document["totals"]["waste_usd"], document["totals"]["unused_prepaid_usd"]) == ("80.0", "134.4")
    assert not any("prepaid" in line for line in summary.headline(scan(charged)))


def test_certain_savings_come_first() -> None:
    blind = replace(IDLE, verdict=Verdict.UNKNOWN, reason=VerdictReason.NO_METRIC, usd_per_hour=Decimal(98))
    likely = replace(IDLE, verdict=Verdict.LIKELY_IDLE, reason=VerdictReason.POWER_IDLE, usd_per_hour=Decimal(50))
    found = advise(scan(blind, likely, IDLE, capacity=(HELD,)))
    assert [(one.code, one.is_saving) for one in found] == [
        (AdviceCode.RELEASE_CAPACITY, True),
        (AdviceCode.STOP_IDLE, True),
        (AdviceCode.MEASURE, False),
        (AdviceCode.CHECK_LIKELY_IDLE, False),
    ]


def test_commands_name_the_profile_of_the_account() -> None:
    (advice,) = advise(scan(IDLE), {AWS.account: "prod team"})
    assert advice.command == "aws ec2 stop-instances --profile 'prod team' --region us-east-1 --instance-ids i-1"


def test_instances_in_use_give_no_advice() -> None:
    assert advise(scan(replace(IDLE, verdict=Verdict.IN_USE, reason=VerdictReason.GPU_WORKED))) == []


WORKING = replace(IDLE, verdict=Verdict.IN_USE, reason=VerdictReason.GPU_WORKED, spot_usd_per_hour=Decimal("0.3"))


def test_spot_is_advised_with_its_saving_its_risk_and_a_command_that_drafts_settings() -> None:
    (advice,) = advise(scan(WORKING, replace(WORKING, instance=replace(PLAIN, id="i-2"))))
    assert (advice.code, advice.is_saving) == (AdviceCode.USE_SPOT, True)
    assert advice.usd_per_month == (Decimal("1.6") - Decimal("0.6")) * 730
    assert advice.text.startswith(
        "Consider spot for 2 on-demand g6.xlarge in us-east-1: 0.60 instead of 1.60 USD/h (-62 %);"
        " the cloud may interrupt spot at any time"
    )
    assert advice.command == (
        "gpufleet init --cloud aws --account 111122223333 --region us-east-1 --machine-type g6.xlarge"
    )


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param(replace(WORKING, spot_usd_per_hour=None), id="no spot price"),
        pytest.param(replace(WORKING, spot_usd_per_hour=Decimal("0.8")), id="spot costs as much"),
        pytest.param(replace(WORKING, usd_per_hour=None), id="no on-demand price"),
        pytest.param(replace(WORKING, instance=replace(PLAIN, environment="prod")), id="of gpu-fleet"),
    ],
)
def test_spot_is_not_advised_without_a_known_saving(instance: ScannedInstance) -> None:
    assert advise(scan(instance)) == []


@pytest.mark.parametrize(("total", "unused", "left"), [(1, 0, 1), (3, 1, 0), (2, None, 0)])
def test_instances_that_a_commitment_pays_for_are_not_advised_as_spot(
    total: int, unused: int | None, left: int
) -> None:
    paid = replace(HELD, kind=CapacityKind.RESERVED_INSTANCES, total=total, unused=unused)
    found = advise(scan(WORKING, WORKING, capacity=(paid,)))
    assert [one.text.split(" on-demand")[0] for one in found] == [f"Consider spot for {left}"] * bool(left)


def test_savings_are_ranked_by_amount_and_come_before_questions() -> None:
    likely = replace(IDLE, verdict=Verdict.LIKELY_IDLE, reason=VerdictReason.POWER_IDLE, usd_per_hour=Decimal(90))
    found = advise(scan(IDLE, replace(WORKING, usd_per_hour=Decimal(2)), likely))
    assert [one.code for one in found] == [
        AdviceCode.USE_SPOT, AdviceCode.STOP_IDLE, AdviceCode.CHECK_LIKELY_IDLE
    ]  # fmt: skip
