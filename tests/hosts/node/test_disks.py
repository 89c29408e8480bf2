"""Commands for the output of `lsblk` on instances with 0, 1, 2 and 8 disks, new and rebooted."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.model import Cloud
from hosts.node.disks import ARRAY, LocalDisks, commands, local_disks, missing, read_lsblk
from hosts.node.ports import StepError
from tests.fixtures.node.fake_node import Machine

STORE = "Amazon EC2 NVMe Instance Storage"
EBS = {
    "path": "/dev/nvme0n1",
    "model": "Amazon Elastic Block Store",
    "type": "disk",
    "fstype": None,
    "mountpoints": [None],
    "children": [
        {"path": "/dev/nvme0n1p1", "model": None, "type": "part", "fstype": "xfs", "mountpoints": ["/"]},
    ],
}


def disk(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "path": f"/dev/nvme{number}n1",
        "model": f"{STORE}  ",
        "type": "disk",
        "fstype": None,
        "mountpoints": [None],
        **changes,
    }


def array(fstype: str | None, mounted: str | None) -> list[dict[str, Any]]:
    return [{"path": "/dev/md127", "model": None, "type": "raid0", "fstype": fstype, "mountpoints": [mounted]}]


def devices(*found: dict[str, Any]) -> str:
    return json.dumps({"blockdevices": [EBS, *found]})


MOUNT = ["mount", "-o", "noatime,nodiratime,discard"]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        pytest.param((), [], id="no local disk"),
        pytest.param(
            (disk(1),),
            [["mkfs.xfs", "-f", "-K", "/dev/nvme1n1"], [*MOUNT, "/dev/nvme1n1", "/mnt/nvme"]],
            id="one disk needs no array",
        ),
        pytest.param(
            (disk(1, fstype="xfs"),), [[*MOUNT, "/dev/nvme1n1", "/mnt/nvme"]], id="rebooted: mounted as it is"
        ),
        pytest.param((disk(1, fstype="xfs", mountpoints=["/mnt/nvme"]),), [], id="done already"),
        pytest.param(
            tuple(disk(n) for n in range(1, 9)),
            [
                ["mdadm", "--create", ARRAY, "--run", "--force", "--level=0", "--chunk=256", "--raid-devices=8"]
                + [f"/dev/nvme{n}n1" for n in range(1, 9)],
                ["mkfs.xfs", "-f", "-K", ARRAY],
                [*MOUNT, ARRAY, "/mnt/nvme"],
            ],
            id="eight disks",
        ),
        pytest.param(
            tuple(disk(n, fstype="linux_raid_member", children=array("xfs", None)) for n in (1, 2)),
            [[*MOUNT, "/dev/md127", "/mnt/nvme"]],
            id="rebooted: the array came up by itself",
        ),
        pytest.param(
            tuple(disk(n, fstype="linux_raid_member", children=array(None, None)) for n in (1, 2)),
            [["mkfs.xfs", "-f", "-K", "/dev/md127"], [*MOUNT, "/dev/md127", "/mnt/nvme"]],
            id="died between mdadm and mkfs",
        ),
        pytest.param(
            tuple(disk(n, fstype="linux_raid_member", children=array("xfs", "/mnt/nvme")) for n in (1, 2)),
            [],
            id="array mounted already",
        ),
        pytest.param(
            (disk(3, model="nvme_card"), disk(4, model="nvme_card-pd")),
            [["mkfs.xfs", "-f", "-K", "/dev/nvme3n1"], [*MOUNT, "/dev/nvme3n1", "/mnt/nvme"]],
            id="Google: the network disk is left alone",
        ),
    ],
)
def test_local_disks_are_striped_formatted_and_mounted_as_needed(
    found: tuple[dict[str, Any], ...], wanted: list[list[str]]
) -> None:
    assert commands(read_lsblk(devices(*found)), "/mnt/nvme") == wanted


def test_the_system_disk_is_never_touched() -> None:
    # EBS and instance store share the device numbering: nvme0 can become nvme1 at the next start.
    swapped = disk(0)
    system = {**EBS, "path": "/dev/nvme1n1"}
    found = read_lsblk(json.dumps({"blockdevices": [swapped, system]}))
    assert [device.path for device in local_disks(found)] == ["/dev/nvme0n1"]


def test_disks_mounted_elsewhere_are_left_alone() -> None:
    with pytest.raises(StepError, match="/scratch"):
        commands(read_lsblk(devices(disk(1, fstype="ext4", mountpoints=["/scratch"]))), "/mnt/nvme")


@pytest.mark.parametrize("text", ["", "[]", '{"blockdevices": [{}]}', "lsblk: command not found"])
def test_invalid_output_of_lsblk_is_an_error(text: str) -> None:
    with pytest.raises(StepError, match="lsblk"):
        read_lsblk(text)


def test_paths_are_below_the_machine_root(tmp_path: Path) -> None:
    ran: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str:
        ran.append(command)
        return devices(disk(1))

    found = LocalDisks(tmp_path, run).prepare("/mnt/nvme")
    assert ran[-1][-1] == str(tmp_path / "mnt/nvme")
    assert (tmp_path / "mnt/nvme").is_dir()
    assert found == 1


@pytest.mark.parametrize(
    ("cloud", "machine_type", "found", "expected"),
    [
        pytest.param(Cloud.AWS, "g6.xlarge", 1, None, id="all there"),
        pytest.param(
            Cloud.AWS, "g6.xlarge", 0, "0 of the 1 local NVMe disks of a g6.xlarge", id="none: the system's disk"
        ),
        pytest.param(Cloud.AWS, "p5.48xlarge", 7, "7 of the 8 local NVMe disks", id="one of eight is missing"),
        pytest.param(Cloud.GCP, "g2-standard-8", 0, None, id="a type where they are asked for"),
        pytest.param(Cloud.AWS, "m7i.large", 0, None, id="a type that the catalogue does not contain"),
    ],
)
def test_a_missing_disk_is_a_warning(cloud: Cloud, machine_type: str, found: int, expected: str | None) -> None:
    warning = missing(found, cloud, machine_type)
    assert (warning is None) is (expected is None)
    assert (expected or "") in (warning or "")


def test_an_instance_without_its_disk_serves_and_shows_a_warning(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.disks.count = 0
    assert machine.boot.run()
    assert "0 of the 1 local NVMe disks" in machine.state.status()["warnings"]["disks"]
