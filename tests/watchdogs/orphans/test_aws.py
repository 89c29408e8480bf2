"""Orphans on an emulated account, with real boto3: marked and stopped by a rule; a fleet that nobody provisioned."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from pydantic import TypeAdapter

from app.unmanaged import SearchScope
from app.wiring import wire
from cli.output import Exit
from cli.watch_unmanaged import show_idle
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.cloudwatch import NAMESPACE, POWER, UTILIZATION, CloudWatch
from gpufleet.domain import tags
from gpufleet.domain.decisions import Action, OutcomeKind, Reason
from gpufleet.domain.policies import OrphanPolicy
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.watchdogs import OrphanRule
from tests.fixtures.moto_account import empty, launched, moto_account
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.fake_ports import FakeClock, FakeMetrics
from tests.fixtures.watchdogs.orphans import LONG_QUIET
from tests.fixtures.watchdogs.plain import document
from watchdogs.orphans.watchdog import OrphanWatchdog

WINDOW = timedelta(minutes=30)
LATER = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=3)
"""By then everything that the tests launch is old enough."""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_account() as url:
        yield url


@pytest.fixture
def account(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty account; gives a function that makes clients."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    empty(server)
    return cache(lambda service: boto3.client(service))


def reported(account: Any, instance: str, metric: str, value: float, gpu: int = 0, every: int = 1) -> None:
    """As the CloudWatch agent does for half an hour until `LATER`."""
    moments = [LATER - timedelta(minutes=n) for n in range(1, 31, every)]
    dimensions = [
        {"Name": "InstanceId", "Value": instance},
        {"Name": "index", "Value": str(gpu)},
        {"Name": "host", "Value": "ip-10-0-0-1"},
    ]
    data = [{"MetricName": metric, "Dimensions": dimensions, "Timestamp": at, "Value": value} for at in moments]
    account("cloudwatch").put_metric_data(Namespace=NAMESPACE, MetricData=data)


def rule(**changes: Any) -> OrphanPolicy:
    conditions = {"name": "forgotten", "action": "stop", "tags": {"team": "research"}, "lose_local_disks": True}
    return TypeAdapter(OrphanRule).validate_python({**conditions, "min_age": "1h", "grace": "1h", **changes})


def fleet(folder: Path, *rules: OrphanPolicy) -> FleetDocument:
    return document(groups=[]).model_copy(
        update={"ledger_url": f"sqlite:///{folder}/ledger.db", "notify": None, "orphans": rules}
    )


def test_a_rule_marks_and_stops_a_forgotten_machine_and_no_other(account: Any, tmp_path: Path) -> None:
    forgotten = launched(account("ec2"), "g4dn.xlarge", Name="notebook", team="research")
    others = [
        launched(account("ec2"), "g4dn.xlarge", team="sales"),
        launched(account("ec2"), "g4dn.xlarge", team="research", **{tags.ENVIRONMENT: "other"}),
        launched(account("ec2"), "g4dn.xlarge", team="research", **{"karpenter.sh/nodepool": "gpu"}),
        launched(account("ec2"), "t3.micro", team="research"),
    ]
    wired = wire(fleet(tmp_path, rule()), "orphans")
    fake = FakeFleet(now=LATER, evidence=dict.fromkeys([forgotten, *others], LONG_QUIET))
    ports = replace(wired.ports, clock=FakeClock(fake), metrics=FakeMetrics(fake))
    watchdog = OrphanWatchdog(wired.document, ports)
    found = {d.resource: d for d in watchdog.dry().plan.decisions}
    assert set(found) == {forgotten, *others[:3]}
    assert {key for key, d in found.items() if d.action is Action.MARK} == {forgotten, others[2]}

    def states() -> dict[str, str]:
        listed = account("ec2").describe_instances()["Reservations"]
        return {i["InstanceId"]: i["State"]["Name"] for r in listed for i in r["Instances"]}

    assert wired.ledger.take_lease(fake.now) is None
    watchdog.apply()
    written = account("ec2").describe_tags(Filters=[{"Name": "key", "Values": [tags.IDLE_SINCE]}])["Tags"]
    assert {tag["ResourceId"]: tag["Value"] for tag in written} == dict.fromkeys(
        [forgotten, others[2]], tags.write_time(LATER)
    )
    assert set(states().values()) == {"running"}
    fake.now += timedelta(hours=2)
    assert wired.ledger.take_lease(fake.now) is None
    done = watchdog.apply()
    assert [(o.decision.resource, o.kind) for o in done.outcomes] == [(forgotten, OutcomeKind.DONE)]
    left = states()
    assert left.pop(forgotten) in ("stopping", "stopped")
    assert set(left.values()) == {"running"}
    reasons = {d.resource: d.reason for d in done.plan.decisions}
    assert reasons[others[2]] is Reason.NOT_STOPPABLE
    counts = wired.api_calls()
    assert counts["ec2:stop_instances"] == 1
    assert counts["ec2:create_tags"] == 1, "one call for all marks"
    wired.engine.dispose()


MACHINES: dict[Reason, list[tuple[str, list[float], int]]] = {
    # machine type, highest utilization of each GPU, minutes between its samples
    Reason.IDLE: [("g4dn.xlarge", [0.0], 1), ("g4dn.12xlarge", [0.0, 0.0, 0.0, 0.0], 1)],
    Reason.GPU_ACTIVE: [("g4dn.xlarge", [3.0], 1), ("g4dn.12xlarge", [0.0, 0.0, 0.0, 9.0], 1)],
    Reason.METRICS_MISSING: [("g4dn.xlarge", [0.0], 2), ("g4dn.xlarge", [], 1), ("g4dn.12xlarge", [0.0], 1)],
}


def test_an_unprovisioned_fleet_is_judged_by_cloudwatch(account: Any, capfd: pytest.CaptureFixture[str]) -> None:
    expected: dict[str, Reason] = {}
    for reason, machines in MACHINES.items():
        for machine_type, utilization, every in machines:
            one = launched(account("ec2"), machine_type, team="research")
            expected[one] = reason
            for gpu, value in enumerate(utilization):
                reported(account, one, UTILIZATION, value, gpu, every)
                reported(account, one, POWER, 20.0, gpu, every)
    other = launched(account("ec2"), "g5.xlarge", team="sales")
    code = show_idle(SearchScope(region="us-east-1", tag="team=research"), LATER, as_json=True)
    answer = json.loads(capfd.readouterr().out)
    assert {d["resource"]: d["reason_code"] for d in answer["decisions"]} == expected
    assert {d["action"] for d in answer["decisions"]} == {"keep"}
    assert (code, answer["idle"]) == (Exit.FOUND, 2)
    # it reads and never writes
    assert answer["api_calls"] == {
        "ec2:describe_instances": 1,
        "cloudwatch:list_metrics": 2,
        "cloudwatch:get_metric_data": 1,
    }
    assert show_idle(SearchScope(region="us-east-1"), LATER, as_json=True) is Exit.FOUND
    assert other in capfd.readouterr().out, "without a tag: all GPU machine types"


def test_cloudwatch_calls_request_up_to_500_series(account: Any) -> None:
    ids = [f"i-{number:017x}" for number in range(260)]
    data = [
        {
            "MetricName": metric,
            "Dimensions": [{"Name": "InstanceId", "Value": key}, {"Name": "index", "Value": "0"}],
            "Timestamp": LATER - timedelta(minutes=1),
            "Value": 5.0,
        }
        for key in ids
        for metric in (UTILIZATION, POWER)
    ]
    account("cloudwatch").put_metric_data(Namespace=NAMESPACE, MetricData=data)
    calls = AwsCalls("us-east-1")
    found = CloudWatch(calls).gpu_use(ids, WINDOW, LATER)
    assert {use.utilization_max for use in found.values()} == {5.0} and set(found) == set(ids)
    assert calls.counts["cloudwatch:get_metric_data"] == 2, "520 series"
