"""Machines of the embedded cloud: user data, units, image commands, metadata, and isolation."""

import contextlib
import json
import shlex
import urllib.error
import urllib.request
from pathlib import Path

import boto3
import pytest

from gpufleet.toolchain.folders import ROOT
from tests.fixtures.clouds.emulator import RunningCloud, make_group, make_template, metadata, wait_for

_SERVER = """#!/bin/sh
set -eu
aws s3 cp s3://machine-tests/hello "$GPUFLEET_ROOT/srv/hello"
cat > "$GPUFLEET_ROOT/etc/systemd/system/web.service" <<UNIT
[Service]
ExecStart=python3 -m http.server 8000 --bind $GPUFLEET_LOCAL_ADDRESS
WorkingDirectory=/srv
Restart=on-failure
KillMode=mixed
TimeoutStopSec=2
[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable --now web.service
systemctl is-active web.service > "$GPUFLEET_ROOT/srv/state"
"""


def _put_object(cloud: RunningCloud) -> None:
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="machine-tests")
    s3.put_object(Bucket="machine-tests", Key="hello", Body=b"hello from the bucket")


def _one(cloud: RunningCloud, name: str, script: str) -> tuple[Path, str]:
    """Start one machine with this user data. Returns its root and its address."""
    make_group(cloud, name, make_template(cloud, name, script), size=1, zones="c")
    wait_for("the machine", lambda: cloud.in_service(name))
    found = next(one for one in cloud.instances(name) if one["State"]["Name"] == "running")
    return cloud.machines / found["InstanceId"], found["PrivateIpAddress"]


def _done(root: Path) -> str:
    """The output of the user data, as soon as it has ended."""
    machine_log = root / "var/log/machine.log"
    wait_for("user data", lambda: machine_log.exists() and "user data ended" in machine_log.read_text("utf-8"))
    output = (root / "var/log/cloud-init-output.log").read_text("utf-8")
    assert "user data ended with 0" in machine_log.read_text("utf-8"), output
    return output


def _fetch(url: str) -> bytes | None:
    """The body of a response. None: nothing listens yet."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return None


def test_user_data_fetches_an_object_and_starts_a_unit(cloud: RunningCloud) -> None:
    _put_object(cloud)
    root, address = _one(cloud, "web", _SERVER)
    _done(root)
    assert (root / "srv/state").read_text("utf-8") == "active\n"
    # systemd reports a simple service as active as soon as its process exists; the port opens later
    assert wait_for("the web server", lambda: _fetch(f"http://{address}:8000/hello")) == b"hello from the bucket"
    callers = {
        row["principal"]
        for row in cloud.control("GET", "calls")[1]
        if row["service"] == "s3" and row["operation"] == "GetObject"
    }
    assert f"node/{root.name}" in callers, "the machine called with the role of its instance"


def test_terminated_machine_leaves_no_process_and_no_port(cloud: RunningCloud) -> None:
    _put_object(cloud)
    root, address = _one(cloud, "ends", _SERVER)
    _done(root)
    cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName="ends", DesiredCapacity=0)
    wait_for("the end", lambda: not cloud.group("ends")["Instances"])
    assert not _processes_of(root)
    for port in (8000, 1338):
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://{address}:{port}/", timeout=60)


_ORDERED = """#!/bin/sh
mkdir "$GPUFLEET_ROOT/srv"
for unit in agent engine; do
  cat > "$GPUFLEET_ROOT/etc/systemd/system/$unit.service" <<UNIT
[Unit]
$([ $unit = agent ] && echo Before=engine.service)
[Service]
ExecStart=sh -c "trap 'echo $unit >> $GPUFLEET_ROOT/srv/ended; sleep 1; exit 0' TERM; while true; do sleep 0.1; done"
ExecStop=sleep 0.5
UNIT
done
systemctl daemon-reload
systemctl start agent.service engine.service
"""


def test_units_stop_in_reverse_start_order_when_the_machine_ends(cloud: RunningCloud) -> None:
    root, _ = _one(cloud, "ordered", _ORDERED)
    _done(root)
    ended = root / "srv/ended"
    cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName="ordered", DesiredCapacity=0)
    order: list[str] = []

    def both() -> bool:
        with contextlib.suppress(FileNotFoundError):  # before the first end, and after the machine's
            order[:] = ended.read_text("utf-8").split()
        return len(order) == 2

    wait_for("both units to end", both)
    assert order == ["engine", "agent"]


def _processes_of(root: Path) -> list[str]:
    """Processes that have the machine's root in their environment or command line."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(root).encode() in text:
                found.append(entry.name)
    return found


_ESCAPES = """#!/bin/sh
for target in {targets}; do
  if ( echo changed > "$target" ) 2>/dev/null; then echo "wrote $target"; else echo "refused $target"; fi
done
echo kept > "$GPUFLEET_ROOT/mine"
env > "$GPUFLEET_ROOT/env"
"""


def test_machine_cannot_write_outside_its_root(cloud: RunningCloud, tmp_path: Path) -> None:
    repository = ROOT
    outside = [tmp_path / "outside", repository / "outside-of-a-machine", Path.home() / "outside-of-a-machine"]
    root, _ = _one(cloud, "escape", _ESCAPES.format(targets=shlex.join(map(str, outside))))
    output = _done(root)
    if "wrote" in output:
        for path in outside:
            path.unlink(missing_ok=True)
        pytest.skip("this kernel allows no namespaces: machines live in plain folders")
    assert output.splitlines() == [f"refused {path}" for path in outside]
    assert not any(path.exists() for path in outside)
    assert (root / "mine").read_text("utf-8") == "kept\n"


def test_machine_has_no_credentials_of_the_user_who_started_the_cloud(cloud: RunningCloud) -> None:
    root, _ = _one(cloud, "secrets", _ESCAPES.format(targets=""))
    _done(root)
    environment = (root / "env").read_text("utf-8")
    assert "a-real" not in environment, "the cloud was started with a real account's variables"
    assert "AWS_SECRET" not in environment
    assert f"AWS_ENDPOINT_URL={cloud.places.api_url}" in environment


_DISKS = """#!/bin/sh
set -eu
cd "$GPUFLEET_ROOT"
lsblk --json --output PATH,MODEL,FSTYPE,MOUNTPOINTS > before
mkfs.xfs -f /dev/nvme1n1
mount -o noatime /dev/nvme1n1 /mnt/nvme
mountpoint -q /mnt/nvme
mkfs.xfs /dev/nvme1n1 2> refused || true
echo data > mnt/nvme/file
lsblk --json --output PATH,MODEL,FSTYPE,MOUNTPOINTS > after
aws ssm get-parameter --name /machine/secret --with-decryption --query Parameter.Value --output text > secret
aws s3api get-object --bucket machine-tests --key hello --range bytes=0-4 part > /dev/null
"""


def test_image_commands_support_disks_secrets_and_ranges(cloud: RunningCloud) -> None:
    _put_object(cloud)
    cloud.client("ssm").put_parameter(Name="/machine/secret", Value="hush", Type="SecureString", Overwrite=True)
    root, _ = _one(cloud, "disks", _DISKS)
    _done(root)
    before = json.loads((root / "before").read_text("utf-8"))["blockdevices"]
    assert [disk["model"] for disk in before] == ["Amazon Elastic Block Store", "Amazon EC2 NVMe Instance Storage"]
    assert before[1]["fstype"] is None
    after = json.loads((root / "after").read_text("utf-8"))["blockdevices"]
    assert (after[1]["fstype"], after[1]["mountpoints"]) == ("xfs", ["/mnt/nvme"])
    assert "appears to contain an existing filesystem" in (root / "refused").read_text("utf-8")
    assert (root / "secret").read_text("utf-8") == "hush\n"
    assert (root / "part").read_bytes() == b"hello"


def test_machine_that_powers_itself_off_is_replaced(cloud: RunningCloud) -> None:
    script = '#!/bin/sh\n[ -e "$GPUFLEET_ROOT/../done" ] || sleep 1\npoweroff\n'
    make_group(cloud, "poweroff", make_template(cloud, "poweroff", script), size=1, zones="c")
    wait_for("two lives", lambda: len(cloud.instances("poweroff")) >= 2)
    first = min(cloud.instances("poweroff"), key=lambda one: one["LaunchTime"])
    wait_for(
        "the end of the first",
        lambda: (
            {one["InstanceId"]: one for one in cloud.instances("poweroff")}[first["InstanceId"]]["State"]["Name"]
            == "terminated"
        ),
    )


def test_metadata_needs_a_token_and_describes_the_instance(cloud: RunningCloud) -> None:
    root, address = _one(cloud, "metadata", "#!/bin/sh\n")
    assert metadata(address, "meta-data/instance-id", token="wrong")[0] == 401
    assert metadata(address, "meta-data/instance-id") == (200, root.name)
    assert metadata(address, "meta-data/placement/availability-zone") == (200, "us-east-1c")
    assert metadata(address, "meta-data/autoscaling/target-lifecycle-state") == (200, "InService")
    assert metadata(address, "meta-data/tags/instance/gpu-fleet:pool") == (200, "metadata")
    assert metadata(address, "meta-data/spot/instance-action")[0] == 404
    document = json.loads(metadata(address, "dynamic/instance-identity/document")[1])
    assert (document["instanceId"], document["region"]) == (root.name, "us-east-1")
    assert metadata(address, "meta-data/iam/security-credentials/") == (200, "node")


def test_botocore_reads_credentials_from_the_metadata_service(
    cloud: RunningCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = _one(cloud, "role", "#!/bin/sh\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}:1338")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    found = boto3.Session().get_credentials()
    assert found is not None
    assert found.method == "iam-role"
