"""A control host on the embedded cloud: boots from its boot data with a bundle of the bucket, and is
replaced by another machine, which takes the ledger from its backup."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.money import ledger_name
from control import boot_data, bundle
from control.places import Places
from control.settings import ControlSettings
from fleet import document
from fleet.document import FleetDocument
from fleet.model import Cloud
from ledger import operations
from ledger.operations import BrakeRow
from ledger.schema import open_ledger
from localcloud.machines.spec import MachineSpec
from tests.e2e.embedded_cloud import BUCKET, CLONE, EmbeddedCloud, started, wait_for
from tests.networks import free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("prometheus", "prometheus-alertmanager", "haproxy"))),
        reason="needs the Debian packages prometheus, prometheus-alertmanager and haproxy",
    ),
]
NETWORK = free_network()
FLEET = f"s3://{BUCKET}/fleet/fleet.json"
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One control host and its folder."""

    id: str
    places: Places

    def run(self, *words: str, code: int = 0) -> str:
        """A command of its current release, as a person on the machine gives it."""
        root = self.places.root
        environment = MachineSpec.load(root).environment(root)
        done = subprocess.run(
            [self.places.current / "bin" / "gpufleet", *words],
            cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT_S * 2, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode} {done.stdout} {done.stderr} {self.logs()}"
        return done.stdout + done.stderr

    def logs(self) -> str:
        """For messages of failed tests."""
        found = sorted((self.places.root / "var/log").rglob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in found)

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.places.ledger}"

    def wait_until_well(self) -> None:
        def well() -> bool:
            if not self.places.token.is_file():
                return False
            root = self.places.root
            environment = MachineSpec.load(root).environment(root)
            command = [self.places.current / "bin" / "gpufleet", "host", "check"]
            return subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S).returncode == 0

        try:
            wait_for("all services", well, LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error} {self.logs()}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    cloud: EmbeddedCloud
    folder: Path
    subnet: str

    def put_bundle(self, name: str) -> str:
        """This clone as a bundle; its digest."""
        made = bundle.build(CLONE, None, self.folder / f"{name}.tar.gz")
        self.cloud.put_file(bundle.key(made.sha256), made.path)
        return made.sha256

    def boot(self, sha256: str) -> Machine:
        settings = ControlSettings(fleet=FLEET, bucket=f"s3://{BUCKET}")
        ec2 = self.cloud.client("ec2")
        image = ec2.describe_images(Owners=["self", "amazon"])["Images"][0]["ImageId"]
        made = ec2.run_instances(
            ImageId=image,
            InstanceType="m6i.large",
            MinCount=1,
            MaxCount=1,
            SubnetId=self.subnet,
            IamInstanceProfile={"Name": "gpu-instance"},
            UserData=boot_data.render(settings, Cloud.AWS, "us-east-1", sha256),
        )
        found = made["Instances"][0]["InstanceId"]
        return Machine(id=found, places=Places(root=self.folder / "machines" / found))

    def describe(self, machine: Machine) -> FleetDocument:
        """Write the fleet document, as `pulumi up` does when everything is made."""
        address = self.address(machine)
        text = json.dumps(_document(f"http://{address}:9090", machine.ledger_url))
        self.cloud.put_bytes("fleet/fleet.json", text.encode())
        return document.parse(text.encode(), FLEET)

    def address(self, machine: Machine) -> str:
        found = self.cloud.client("ec2").describe_instances(InstanceIds=[machine.id])
        return str(found["Reservations"][0]["Instances"][0]["PrivateIpAddress"])


def _document(prometheus_url: str, ledger_url: str) -> dict[str, Any]:
    group = {"type": "spot", "zone": "us-east-1a", "name": "chat-spot", "max": 3, "machine_types": ["g6.xlarge"]}
    pool = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "tests", "target": 0, "min": 0, "max": 4,
        "drain_deadline": "10s", "groups": [group], "watchdogs": {},
    }  # fmt: skip
    return {
        "version": 1,
        "environment": "test",
        "cloud": "aws",
        "region": "us-east-1",
        "account": "000000000000",
        "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T02:15:00Z"},
        "bucket": f"s3://{BUCKET}",
        "prometheus_url": prometheus_url,
        "ledger_url": ledger_url,
        "router": {"url": "http://127.0.0.1:9"},
        "notify": {"slack_channel": "#gpu"},
        "pools": [pool],
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("control")
    with started(folder, NETWORK) as cloud:
        ec2 = cloud.client("ec2")
        vpc = ec2.create_vpc(CidrBlock=f"{NETWORK}.0.0/16")["Vpc"]["VpcId"]
        made = ec2.create_subnet(VpcId=vpc, CidrBlock=f"{NETWORK}.1.0/24", AvailabilityZone="us-east-1a")
        yield World(cloud=cloud, folder=folder, subnet=made["Subnet"]["SubnetId"])


def _brakes(machine: Machine, fleet: FleetDocument) -> list[str]:
    engine = open_ledger(machine.ledger_url)
    try:
        return sorted(brake.reason for brake in operations.brakes(engine, ledger_name(fleet), datetime.now(UTC)))
    finally:
        engine.dispose()


def _set_brake(machine: Machine, fleet: FleetDocument, reason: str) -> None:
    engine = open_ledger(machine.ledger_url)
    try:
        brake = BrakeRow(
            id=0, kind="pause", scope="idle", owner="tests", reason=reason, since=datetime.now(UTC), until=None
        )
        operations.set_brake(engine, ledger_name(fleet), brake)
    finally:
        engine.dispose()


def test_another_machine_goes_on_with_the_ledger(world: World) -> None:
    sha256 = world.put_bundle("one")
    machine = world.boot(sha256)
    fleet = world.describe(machine)
    machine.wait_until_well()
    assert sha256 in machine.run("upgrade")
    _set_brake(machine, fleet, "before the end")
    machine.run("ledger", "backup", "--fleet", FLEET)

    world.cloud.client("ec2").terminate_instances(InstanceIds=[machine.id])
    wait_for("the end of the machine", lambda: world.cloud.is_gone(machine.id), LIMIT_S)
    other = world.boot(sha256)
    fleet = world.describe(other)
    other.wait_until_well()
    assert _brakes(other, fleet) == ["before the end"]
    assert "the ledger is sound" in other.run("ledger", "verify", "--fleet", FLEET)
