"""A Capacity Block until its end: its instances are replaced and drained before AWS would terminate them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import PATH_IN_BUCKET
from tests.fixtures.e2e.embedded_cloud import (
    CLONE,
    EmbeddedCloud,
    fleet_document,
    instance_settings,
    pool_entry,
    started,
    status,
    wait_for,
)
from tests.fixtures.networks import free_network

pytestmark = pytest.mark.slow
NETWORK = free_network()
MACHINE = "p5.48xlarge"
EARLY = timedelta(minutes=30)
"""AWS terminates the instances of a block this long before the end of the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet with one pool: a block, and on-demand for the time after it."""

    cloud: EmbeddedCloud
    folder: Path
    reservation: str

    def block_ends(self, ahead: timedelta) -> None:
        """Change the end of the block in the cloud and in the fleet document, as a new `pulumi up` would."""
        now = datetime.now(UTC)
        opens, ends = now - timedelta(days=1), now + ahead
        self.cloud.control("block", {"reservation": self.reservation, "starts": str(opens), "ends": str(ends)})
        term = {"opens": opens.isoformat(), "closes": (ends - EARLY).isoformat()}
        groups = [
            {
                "type": "reserved",
                "zone": "us-east-1a",
                "name": "chat-block",
                "max": 1,
                "machine_types": [MACHINE],
                **term,
            },
            {"type": "on-demand", "zone": None, "name": "chat-od", "max": 1, "machine_types": ["g6.xlarge"]},
        ]
        pool = pool_entry("chat", groups, target=1, min=1, watchdogs={"spot": {"fallback_after": "20s"}})
        text = fleet_document("http://127.0.0.1:9", f"sqlite:///{self.folder / 'ledger.db'}", pool)
        self.cloud.put_bytes(PATH_IN_BUCKET, json.dumps(text).encode())

    def spot_pass(self, *, apply: bool = True) -> None:
        """Run `gpufleet watch spot`."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", "watch", "spot", *["--apply"][:apply]],
            cwd=CLONE,
            env=self.cloud.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        sys.stdout.write(f"{done.returncode} {done.stdout} {done.stderr}\n")  # shown on failure
        assert done.returncode in (0, 3), done.stderr

    def ready(self, group: str) -> dict[str, Any]:
        member = self.cloud.one_member(group)
        wait_for(f"{group} ready", lambda: status(member["PrivateIpAddress"])["ready"], 180)
        return member


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with started(tmp_path, NETWORK) as cloud:
        ec2 = cloud.client("ec2")
        offers = ec2.describe_capacity_block_offerings(
            InstanceType=MACHINE, InstanceCount=1, CapacityDurationHours=24
        )["CapacityBlockOfferings"]
        offer = next(one for one in offers if one["AvailabilityZone"] == "us-east-1a")
        block = ec2.purchase_capacity_block(
            CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
        )["CapacityReservation"]
        made = Fleet(cloud=cloud, folder=tmp_path, reservation=block["CapacityReservationId"])
        made.block_ends(timedelta(days=1))
        target = {"CapacityReservationTarget": {"CapacityReservationId": made.reservation}}
        in_block = {
            "InstanceType": MACHINE,
            "CapacityReservationSpecification": target,
            "InstanceMarketOptions": {"MarketType": "capacity-block"},
        }
        _make_group(cloud, "chat-block", CapacityType.RESERVED, in_block)
        _make_group(cloud, "chat-od", CapacityType.ON_DEMAND, {})
        yield made


def _make_group(cloud: EmbeddedCloud, name: str, kind: CapacityType, launched: dict[str, Any]) -> None:
    cloud.make_template(name, cloud.user_data(instance_settings("chat", kind)), **launched)
    written = {tags.ENVIRONMENT: "test", tags.POOL: "chat", tags.CAPACITY_TYPE: kind.value, tags.OWNER: "tests"}
    cloud.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=1,
        DesiredCapacity=0,
        VPCZoneIdentifier=cloud.subnet(),
        LaunchTemplate={"LaunchTemplateName": name, "Version": "$Latest"},
        Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in written.items()],
    )


def test_block_is_used_until_its_instances_are_replaced_and_drained_in_time(fleet: Fleet) -> None:
    fleet.spot_pass(apply=False)
    fleet.spot_pass()
    assert fleet.cloud.desired() == {"chat-block": 1, "chat-od": 0}, "paid for, so used"
    member = fleet.ready("chat-block")

    # ten minutes before AWS terminates the instances: a replacement is requested, and the block still serves
    fleet.block_ends(EARLY + timedelta(minutes=10))
    fleet.spot_pass()
    assert fleet.cloud.desired() == {"chat-block": 1, "chat-od": 1}
    fleet.ready("chat-od")
    assert status(member["PrivateIpAddress"])["ready"]

    fleet.block_ends(EARLY + timedelta(minutes=4))

    def left() -> bool:
        fleet.spot_pass()
        return fleet.cloud.desired() == {"chat-block": 0, "chat-od": 1} and fleet.cloud.is_terminated(
            member["InstanceId"]
        )

    wait_for("the block left, drained", left, 300)
    found = fleet.cloud.client("ec2").describe_instances(InstanceIds=[member["InstanceId"]])
    reason = found["Reservations"][0]["Instances"][0].get("StateReason", {})
    assert "Capacity Block" not in str(reason), "it was ended by us, drained, before AWS came to it"

    fleet.block_ends(EARLY - timedelta(seconds=1))
    fleet.spot_pass()
    assert fleet.cloud.desired() == {"chat-block": 0, "chat-od": 1}
