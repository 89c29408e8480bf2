"""The admin API: preemption with notice, capacity that is removed and restored, faults, billing log."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.clouds.emulator import RunningCloud, make_group, make_template, metadata, wait_for


def _running(cloud: RunningCloud, name: str) -> list[dict[str, Any]]:
    return [one for one in cloud.instances(name) if one["State"]["Name"] == "running"]


def test_preemption_has_a_notice_and_can_remove_capacity(cloud: RunningCloud) -> None:
    template = make_template(cloud, "preempt")
    make_group(cloud, "preempt-a", template, size=1, spot=True, zones="a", pool="chat")
    make_group(cloud, "preempt-b", template, size=0, spot=True, zones="b", pool="chat")
    wait_for("the instance", lambda: cloud.in_service("preempt-a"))
    address = _running(cloud, "preempt-a")[0]["PrivateIpAddress"]
    status, answer = cloud.control("POST", "preempt", {"pool": "chat", "notice_s": 8, "capacity_lost": True})
    assert status == 200
    notice = json.loads(metadata(address, "meta-data/spot/instance-action")[1])
    assert notice["action"] == "terminate"
    assert (
        abs((datetime.fromisoformat(notice["time"]) - datetime.fromisoformat(answer["notice"])).total_seconds()) < 1
    )
    assert metadata(address, "meta-data/events/recommendations/rebalance")[0] == 200
    assert _running(cloud, "preempt-a"), "it runs until its notice is over"
    wait_for("its end", lambda: not _running(cloud, "preempt-a"))
    ended = next(one for one in cloud.instances("preempt-a") if one["InstanceId"] == answer["id"])
    assert ended["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName="preempt-b", DesiredCapacity=1)
    for name in ("preempt-a", "preempt-b"):
        wait_for(
            f"{name} to fail", lambda name=name: any(a["StatusCode"] == "Failed" for a in cloud.activities(name))
        )
        assert not _running(cloud, name), "no zone has spot capacity for the pool's machine types"
    assert cloud.control("GET", "state")[1]["capacity"]["spot_lost"] == ["g5.xlarge", "g6.xlarge"]
    cloud.control("POST", "restore", {})
    wait_for("spot in both zones", lambda: _running(cloud, "preempt-a") and _running(cloud, "preempt-b"))
    billed = {row["instance"]: row for row in cloud.control("GET", "billing-log")[1]}[answer["id"]]
    assert (billed["capacity_type"], billed["zone"], billed["machine_type"]) == ("spot", "us-east-1a", "g6.xlarge")
    assert billed["why"] == "Server.SpotInstanceTermination"
    assert datetime.fromisoformat(billed["ended"]) > datetime.fromisoformat(billed["launched"])


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        pytest.param("preempt", {}, 400, "names no instance", id="no selection"),
        pytest.param("preempt", {"pool": "nothing"}, 409, "no running spot instance", id="no such pool"),
        pytest.param("preempt", {"pool": "x", "notice_s": 9999}, 400, "from 0 to 600", id="a long notice"),
        pytest.param("fault", {"pool": "x", "what": "coffee"}, 400, "expected one of agent", id="unknown fault"),
        pytest.param("fault", {"pool": "x", "what": "xid"}, 400, "expected a number", id="fault without its number"),
        pytest.param(
            "fault", {"pool": "x", "what": "slices", "value": 3}, 400, "expected words", id="slices: number"
        ),
        pytest.param(
            "fault", {"pool": "x", "what": "gpu-active", "value": "../x"}, 400, "a number or words", id="a path"
        ),
        pytest.param("fault", {"pool": "x", "what": "exporter", "value": "on"}, 400, "expected none", id="a value"),
        pytest.param("capacity", {"kind": "spot"}, 400, 'expected {"zone"', id="half a limit"),
        pytest.param("capacity", {"kind": "free", "vcpus": 1}, 400, "spot or on-demand", id="unknown kind"),
        pytest.param("capacity", {"kind": "spot", "vcpus": -1}, 400, "whole number", id="negative"),
        pytest.param("capacity", {"refuse": "moon"}, 400, "null or one of block-devices", id="unknown refusal"),
        pytest.param("end", {"instance": "i-1", "how": "magic"}, 400, "expected one of account", id="unknown end"),
        pytest.param("end", {"instance": "i-1", "how": "person"}, 409, "no pending or running", id="end of nothing"),
        pytest.param("suspend", {"group": "none"}, 409, "no group none", id="suspend nothing"),
        pytest.param("nonsense", {}, 404, "use one of", id="unknown path"),
    ],
)
def test_invalid_request_is_refused_with_the_expected_values(
    cloud: RunningCloud, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    found, answer = cloud.control("POST", path, body)
    assert found == status
    assert message in answer["error"]


def test_fault_is_a_file_in_one_machine_and_can_be_cleared(cloud: RunningCloud) -> None:
    make_group(cloud, "faulty", make_template(cloud, "faulty"), size=2, pool="batch")
    wait_for("two machines", lambda: len(cloud.in_service("faulty")) == 2)
    _, one = cloud.control("POST", "fault", {"pool": "batch", "what": "exporter"})
    assert (cloud.machines / one["instance"] / "run/faults/exporter").exists()
    _, other = cloud.control("POST", "fault", {"pool": "batch", "what": "exporter"})
    assert other["instance"] != one["instance"], "the next fault takes the next machine"
    assert cloud.control("POST", "fault", {"pool": "batch", "what": "exporter"})[0] == 409
    cloud.control("POST", "fault", {"instance": one["instance"], "what": "xid", "value": 79})
    assert (cloud.machines / one["instance"] / "run/faults/xid").read_text("utf-8") == "79\n"
    cloud.control("POST", "fault", {"instance": one["instance"], "what": "slices", "value": "3g.40gb,2g.20gb"})
    assert (cloud.machines / one["instance"] / "run/faults/slices").read_text("utf-8") == "3g.40gb,2g.20gb\n"
    cloud.control("DELETE", "fault", {"instance": one["instance"]})
    assert cloud.control("GET", "fault")[1] == [{"instance": other["instance"], "what": "exporter"}]
    cloud.control("DELETE", "fault")
    assert cloud.control("GET", "fault")[1] == []


_STUBBORN = """#!/bin/sh
cat > "$GPUFLEET_ROOT/etc/systemd/system/gpufleet-node.service" <<UNIT
[Service]
ExecStart=sleep 1000
UNIT
systemctl start gpufleet-node.service
systemctl show gpufleet-node.service > "$GPUFLEET_ROOT/shown"
"""


def test_agent_can_be_suspended(cloud: RunningCloud) -> None:
    make_group(cloud, "frozen", make_template(cloud, "frozen", _STUBBORN), size=1)
    member = wait_for("the machine", lambda: cloud.in_service("frozen"))[0]
    root = cloud.machines / member["InstanceId"]
    wait_for("the agent", lambda: (root / "shown").exists() and "MainPID" in (root / "shown").read_text("utf-8"))

    def state() -> str:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    text = (entry / "cmdline").read_bytes()
                    environment = (entry / "environ").read_bytes()
                    if b"sleep\0" in text and str(root).encode() in environment:
                        return (entry / "stat").read_text("utf-8").rpartition(")")[2].split()[0]
                except OSError:
                    continue
        return ""

    wait_for("the agent to run", lambda: state() == "S")
    cloud.control("POST", "fault", {"instance": member["InstanceId"], "what": "agent"})
    wait_for("the agent to pause", lambda: state() == "T")
    cloud.control("DELETE", "fault", {"instance": member["InstanceId"]})
    wait_for("the agent to resume", lambda: state() == "S")


def test_spot_prices_are_listed_per_zone_and_below_the_list_price(cloud: RunningCloud) -> None:
    ec2 = cloud.client("ec2")
    found = ec2.describe_spot_price_history(
        InstanceTypes=["g6.xlarge"], ProductDescriptions=["Linux/UNIX"], StartTime=datetime.now().astimezone()
    )["SpotPriceHistory"]
    assert {row["AvailabilityZone"] for row in found} == {"us-east-1a", "us-east-1b", "us-east-1c"}
    assert all(0 < float(row["SpotPrice"]) < 0.8048 for row in found)
    assert not ec2.describe_spot_price_history(InstanceTypes=["x9.nothing"])["SpotPriceHistory"]


def test_public_parameter_names_an_existing_image(cloud: RunningCloud) -> None:
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    image = cloud.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    assert cloud.client("ec2").describe_images(ImageIds=[image])["Images"][0]["ImageId"] == image


def test_calls_are_counted_by_operation_and_caller(cloud: RunningCloud) -> None:
    def count() -> int:
        rows = cloud.control("GET", "calls")[1]
        wanted = ("s3", "ListBuckets", "local")
        return sum(row["count"] for row in rows if (row["service"], row["operation"], row["principal"]) == wanted)

    before = count()
    cloud.client("s3").list_buckets()
    assert count() == before + 1
