"""The watchdog commands, run as cron runs them, on the embedded cloud: real agents, Prometheus and ledger."""

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from components.aws import permissions
from gpufleet.clouds.aws import signed
from gpufleet.domain.decisions import Reason
from tests.fixtures.e2e.embedded_cloud import BUCKET, CLONE, CONTROL, ENGINE_KEY, ORDER_KEY, status, wait_for
from tests.fixtures.e2e.watched import GROUPS, Fleet, ready, watched
from tests.fixtures.networks import free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]
NETWORK = free_network()
IN_IAM = {"s3:HeadObject": "s3:GetObject", "s3:ListObjectsV2": "s3:ListBucket"}
"""Operations whose IAM action has another name."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with watched(tmp_path_factory.mktemp("watchdogs"), NETWORK) as made:
        yield made


def test_spot_loss_and_idle_instances(fleet: Fleet) -> None:
    """One scenario, because each part leaves the fleet in the state that the next one needs."""
    _dry_run_then_quiet(fleet)
    _no_spot_then_back(fleet)
    _silenced_is_kept_and_idle_is_terminated(fleet)
    for arguments in (("scale",), ("scale", "--apply"), ("cost",)):
        code, answer = fleet.run("watch", *arguments)
        assert code in (0, 3), answer
    _calls_stay_within_role_permissions(fleet)


def _calls_stay_within_role_permissions(fleet: Fleet) -> None:
    made: dict[str, set[str]] = {"control": set(), "instances": set()}
    for call in fleet.cloud.control("calls"):
        side = {CONTROL: "control", "gpu-instance": "instances"}.get(call["principal"].split("/")[0])
        if side is not None:
            name = f"{call['service']}:{call['operation']}"
            made[side].add(IN_IAM.get(name, name))
    place = {
        "bucket": BUCKET,
        "region": "us-east-1",
        "account": "000000000000",
        "environment": "test",
    }
    may = {
        "control": permissions.of_control(
            **place, notices="arn:aws:sqs:us-east-1:000000000000:notices", secrets=(ENGINE_KEY, ORDER_KEY)
        ),
        "instances": permissions.of_instances(**place, engine_key=ENGINE_KEY),
    }
    for side, statements in may.items():
        granted = {action for statement in statements for action in statement.actions}
        assert made[side] <= granted, f"{side}: {sorted(made[side] - granted)} are called and not allowed"
    assert made["instances"] <= signed.ACTIONS
    assert made["control"] >= {
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:SetDesiredCapacity",
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        "ec2:CreateTags",
        "ec2:DescribeInstances",
        "ec2:DescribeSpotPriceHistory",
        "s3:GetObject",
        "ssm:GetParameter",
    }, "the story needs them; else this test would look at nothing"


def _dry_run_then_quiet(fleet: Fleet) -> None:
    code, answer = fleet.run("watch", "spot")
    assert (code, answer["applied"]) == (0, False), answer
    code, answer = fleet.run("watch", "spot", "--apply")
    assert code == 0 and not answer["outcomes"], answer
    assert set(fleet.reasons(answer).values()) == {Reason.AS_WANTED}


def _no_spot_then_back(fleet: Fleet) -> None:
    fleet.cloud.control("preempt", {"pool": "batch", "notice_s": 25, "capacity_lost": True})
    (taken,) = wait_for("the notice to be seen", lambda: _draining(fleet), 20)
    code, answer = fleet.run("watch", "spot", "--apply")
    assert code == 0, answer
    assert fleet.cloud.desired()["batch-od"] == 1, answer
    wait_for("on-demand ready", lambda: ready(fleet.cloud, "batch-od"), 180)
    code, answer = fleet.run("watch", "spot", "--apply")
    assert fleet.cloud.desired()["batch-od"] == 1, answer

    # until its termination it counts in the size of its group, in addition to its replacement
    wait_for("the end of the preempted instance", lambda: fleet.cloud.is_terminated(taken), 120)
    # a group that detects the loss during a pass launches a replacement itself, in addition to the one that the
    # pass requests
    wait_for("its group to notice", lambda: taken not in _listed(fleet), 120)
    fleet.cloud.control("restore", {"pool": "batch", "zone": None})
    code, answer = fleet.run("watch", "spot", "--apply")
    assert sum(size for name, size in fleet.cloud.desired().items() if "spot" in name) == 2, answer
    spots = [name for name, size in fleet.cloud.desired().items() if "spot" in name and size]
    for name in spots:
        wait_for(f"{name} ready", lambda name=name: ready(fleet.cloud, name), 180)

    def given_back() -> Any:
        code, answer = fleet.run("watch", "spot", "--apply")
        assert code == 0, answer
        return answer if fleet.cloud.desired()["batch-od"] == 0 else None

    answer = wait_for("on-demand given back after the hold", given_back, 300)
    assert Reason.SPOT_IS_BACK in fleet.reasons(answer).values()


def _listed(fleet: Fleet) -> set[str]:
    names = [name for name, *_ in GROUPS]
    found = fleet.cloud.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=names)
    return {one["InstanceId"] for group in found["AutoScalingGroups"] for one in group["Instances"]}


def _draining(fleet: Fleet) -> list[str]:
    members = [one for name, *_ in GROUPS for one in fleet.cloud.members(name)]
    return [one["InstanceId"] for one in members if status(one["PrivateIpAddress"])["draining"]]


def _silenced_is_kept_and_idle_is_terminated(fleet: Fleet) -> None:
    members = [one for name, *_ in GROUPS for one in fleet.cloud.members(name)]
    silenced, idle = members[0]["InstanceId"], members[1]["InstanceId"]
    fleet.cloud.control("fault", {"pool": "batch", "instance": silenced, "what": "exporter"})
    judged = {silenced: Reason.METRICS_MISSING, idle: Reason.IDLE}

    def judged_dry() -> bool:
        """The instances are older than the window, and the fault covers the whole window."""
        code, answer = fleet.run("watch", "idle")
        return code == 3 and fleet.reasons(answer) == judged

    def ended() -> Any:
        """One pass marks it; passes after the grace period drain and terminate it."""
        code, answer = fleet.run("watch", "idle", "--apply")
        assert code == 0 and fleet.reasons(answer)[silenced] == Reason.METRICS_MISSING, answer
        return answer if [o for o in answer["outcomes"] if (o["action"], o["kind"]) == ("end", "done")] else None

    wait_for("one idle, one silenced", judged_dry, 300)
    ends = _calls(fleet, "TerminateInstanceInAutoScalingGroup")
    _host_dies_while_it_drains(fleet, members[1]["PrivateIpAddress"])
    answer = wait_for("the idle one ended by another host", ended, 300)
    assert _calls(fleet, "TerminateInstanceInAutoScalingGroup") == ends + 1
    messages = _messages_about(fleet, idle)
    assert len(messages) == len(set(messages)) == 2, messages
    assert [(o["resource"], o["kind"]) for o in answer["outcomes"]] == [(idle, "done")], answer
    assert fleet.reasons(answer)[silenced] == Reason.METRICS_MISSING
    assert sum(fleet.cloud.desired().values()) == 1
    wait_for("the end of the idle instance", lambda: fleet.cloud.is_terminated(idle), 120)
    _, targets = fleet.run("target")
    assert [(row["pool"], row["target"]) for row in targets] == [("batch", 1)]
    _, decisions = fleet.run("watch", "why", idle)
    assert [row["outcome"] for row in decisions if row["outcome"]][-2:] == ["done", "done"]
    code, answer = fleet.run("watch", "spot", "--apply")
    assert code == 0 and sum(fleet.cloud.desired().values()) == 1, answer


def _host_dies_while_it_drains(fleet: Fleet, address: str) -> None:
    """The control host is killed during its pass. Another host restores its ledger from the backup."""

    def marked() -> bool:
        code, answer = fleet.run("watch", "idle", "--apply")
        assert code == 0, answer
        return [o["action"] for o in answer["outcomes"]] == ["mark"]

    wait_for("the mark", marked, 300)
    command = [sys.executable, "-m", "cli.main", "watch", "idle", "--apply", "--json"]

    def draining() -> bool:
        """Run passes of the old host, and kill the last one as soon as the agent drains."""
        with subprocess.Popen(
            command, cwd=CLONE, env=fleet.cloud.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as host:
            try:
                while host.poll() is None and not status(address)["draining"]:
                    time.sleep(0.05)
            finally:
                host.kill()
        return status(address)["draining"]

    wait_for("a drain that has begun", draining, 300)
    backup = [sys.executable, "-m", "cli.main", "ledger"]
    for word, ledger in (("backup", "ledger.db"), ("restore", "another.db")):
        fleet.describe(ledger)
        subprocess.run([*backup, word], cwd=CLONE, env=fleet.cloud.environment(), check=True, timeout=300)


def _calls(fleet: Fleet, operation: str) -> int:
    made = [call for call in fleet.cloud.control("calls") if call["operation"] == operation]
    return sum(call["count"] for call in made)


def _messages_about(fleet: Fleet, instance: str) -> list[str]:
    """Messages that name an instance, in the restored ledger."""
    with closing(sqlite3.connect(fleet.folder / "another.db")) as ledger:
        rows = ledger.execute("select text, detail from outbox order by id")
        return [str(text) for text, detail in rows if instance in f"{text} {detail}"]
