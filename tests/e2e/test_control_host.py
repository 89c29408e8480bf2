"""A control host on the embedded cloud: boots from its boot data with a bundle of the bucket, and is
replaced by another machine, which takes the ledger from its backup."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import httpx
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
from localcloud.gcp.places import PROJECT
from localcloud.machines.spec import MachineSpec
from tests.e2e.embedded_cloud import BUCKET, CLONE, EmbeddedCloud, fleet_document, pool_entry, started, wait_for
from tests.networks import free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("prometheus", "prometheus-alertmanager", "haproxy"))),
        reason="needs the Debian packages prometheus, prometheus-alertmanager and haproxy",
    ),
]
NETWORK = free_network()
ZONE = "us-central1-a"
SLACK = "/gpu-fleet/test/slack-token"
SLACK_VALUE = "xoxb-of-a-test-0123456789"
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


class Ground(Protocol):
    """A cloud on which a control host can be made."""

    @property
    def cloud(self) -> Cloud: ...

    @property
    def region(self) -> str: ...

    @property
    def bucket(self) -> str:
        """URL."""
        ...

    @property
    def secret(self) -> str:
        """Where Slack's token lies."""
        ...

    def put(self, key: str, body: bytes) -> None: ...

    def start(self, script: str) -> str:
        """A machine with that boot script; its id."""
        ...

    def address(self, machine: str) -> str: ...

    def end(self, machine: str) -> None:
        """End it and wait until it is gone."""
        ...

    def document(self, prometheus_url: str, ledger_url: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OnAws:
    emulated: EmbeddedCloud
    subnet: str
    cloud: Cloud = Cloud.AWS
    region: str = "us-east-1"
    bucket: str = f"s3://{BUCKET}"
    secret: str = f"ssm:{SLACK}"

    def put(self, key: str, body: bytes) -> None:
        self.emulated.put_bytes(key, body)

    def start(self, script: str) -> str:
        ec2 = self.emulated.client("ec2")
        image = ec2.describe_images(Owners=["self", "amazon"])["Images"][0]["ImageId"]
        made = ec2.run_instances(
            ImageId=image,
            InstanceType="m6i.large",
            MinCount=1,
            MaxCount=1,
            SubnetId=self.subnet,
            IamInstanceProfile={"Name": "gpu-instance"},
            UserData=script,
        )
        return str(made["Instances"][0]["InstanceId"])

    def address(self, machine: str) -> str:
        found = self.emulated.client("ec2").describe_instances(InstanceIds=[machine])
        return str(found["Reservations"][0]["Instances"][0]["PrivateIpAddress"])

    def end(self, machine: str) -> None:
        self.emulated.client("ec2").terminate_instances(InstanceIds=[machine])
        wait_for("the end of the machine", lambda: self.emulated.is_gone(machine), LIMIT_S)

    def document(self, prometheus_url: str, ledger_url: str) -> dict[str, Any]:
        group = {"type": "spot", "zone": "us-east-1a", "name": "chat", "max": 3, "machine_types": ["g6.xlarge"]}
        return fleet_document(prometheus_url, ledger_url, pool_entry("chat", [group]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnGoogle:
    """The embedded Google Cloud, by its own REST."""

    url: str
    cloud: Cloud = Cloud.GCP
    region: str = "us-central1"
    bucket: str = f"gs://{BUCKET}"
    secret: str = f"gcp-secret:projects/{PROJECT}/secrets/slack-token"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call, and the end of its operation."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        answer = httpx.request(method, f"{self.url}{path}", timeout=60, content=content)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        found = answer.json() if answer.content else {}
        while found.get("kind") == "compute#operation" and found["status"] != "DONE":
            place = found["selfLink"].partition("/compute/v1/")[2]
            found = httpx.post(f"{self.url}/compute/v1/{place}/wait", timeout=60).json()
        assert not found.get("error"), found
        return found

    def set_up(self) -> None:
        self.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": BUCKET})
        secrets = f"/v1/projects/{PROJECT}/secrets"
        self.call("POST", f"{secrets}?secretId=slack-token", {"replication": {"automatic": {}}})
        payload = {"payload": {"data": base64.b64encode(SLACK_VALUE.encode()).decode()}}
        self.call("POST", f"{secrets}/slack-token:addVersion", payload)
        home = f"/compute/v1/projects/{PROJECT}"
        self.call("POST", f"{home}/global/networks", {"name": "net", "autoCreateSubnetworks": False})
        body = {"name": "net", "network": "global/networks/net", "ipCidrRange": f"{NETWORK}.64.0/18"}
        self.call("POST", f"{home}/regions/{self.region}/subnetworks", body)

    def put(self, key: str, body: bytes) -> None:
        self.call("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}", body)

    def start(self, script: str) -> str:
        name = f"control-{uuid4().hex[:8]}"
        image = "projects/debian-cloud/global/images/debian-12"
        body = {
            "name": name,
            "machineType": f"zones/{ZONE}/machineTypes/e2-standard-2",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
            "networkInterfaces": [{"subnetwork": f"regions/{self.region}/subnetworks/net"}],
            "serviceAccounts": [
                {
                    "email": f"control@{PROJECT}.iam.gserviceaccount.com",
                    "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
                }
            ],
            "metadata": {"items": [{"key": "startup-script", "value": script}]},
        }
        self.call("POST", f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances", body)
        return name

    def address(self, machine: str) -> str:
        found = self.call("GET", f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{machine}")
        return str(found["networkInterfaces"][0]["networkIP"])

    def end(self, machine: str) -> None:
        self.call("DELETE", f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{machine}")

    def document(self, prometheus_url: str, ledger_url: str) -> dict[str, Any]:
        group = {"type": "spot", "zone": ZONE, "name": "chat", "max": 3, "machine_types": ["g2-standard-4"]}
        place = {"cloud": "gcp", "region": self.region, "account": PROJECT, "bucket": self.bucket}
        return fleet_document(prometheus_url, ledger_url, pool_entry("chat", [group]), **place)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    ground: Ground
    folder: Path

    @property
    def fleet_url(self) -> str:
        return f"{self.ground.bucket}/fleet/fleet.json"

    def put_bundle(self, name: str) -> str:
        """This clone as a bundle; its digest."""
        made = bundle.build(CLONE, None, self.folder / f"{name}.tar.gz")
        self.ground.put(bundle.key(made.sha256), made.path.read_bytes())
        return made.sha256

    def boot(self, sha256: str) -> Machine:
        ground = self.ground
        settings = ControlSettings(
            fleet=self.fleet_url,
            bucket=ground.bucket,
            environment={"AWS_DEFAULT_REGION": ground.region} if ground.cloud is Cloud.AWS else {},
            secrets={"GPUFLEET_SLACK_TOKEN": ground.secret},
        )
        script = boot_data.render(settings, ground.cloud, ground.region, sha256)
        assert SLACK_VALUE not in script
        found = ground.start(script)
        return Machine(id=found, places=Places(root=self.folder / "machines" / found))

    def describe(self, machine: Machine) -> FleetDocument:
        """Write the fleet document, as `pulumi up` does when everything is made."""
        prometheus = f"http://{self.ground.address(machine.id)}:9090"
        text = json.dumps(self.ground.document(prometheus, machine.ledger_url)).encode()
        self.ground.put("fleet/fleet.json", text)
        return document.parse(text, self.fleet_url)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCloud]:
    with started(tmp_path_factory.mktemp("control"), NETWORK) as cloud:
        yield cloud


@pytest.fixture(params=list(Cloud), scope="module")
def world(request: pytest.FixtureRequest, emulated: EmbeddedCloud) -> World:
    if request.param is Cloud.GCP:
        google = OnGoogle(url=f"http://{NETWORK}.0.4:4567")
        google.set_up()
        return World(ground=google, folder=emulated.folder)
    emulated.client("ssm").put_parameter(Name=SLACK, Value=SLACK_VALUE, Type="SecureString")
    return World(ground=OnAws(emulated=emulated, subnet=emulated.subnet()), folder=emulated.folder)


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
    sha256 = world.put_bundle(f"one-{world.ground.cloud}")
    machine = world.boot(sha256)
    fleet = world.describe(machine)
    machine.wait_until_well()
    assert sha256 in machine.run("upgrade")
    _slack_s_token_is_in_memory_alone(machine)
    _set_brake(machine, fleet, "before the end")
    machine.run("ledger", "backup", "--fleet", world.fleet_url)

    world.ground.end(machine.id)
    other = world.boot(sha256)
    fleet = world.describe(other)
    other.wait_until_well()
    assert _brakes(other, fleet) == ["before the end"]
    assert "the ledger is sound" in other.run("ledger", "verify", "--fleet", world.fleet_url)


def _slack_s_token_is_in_memory_alone(machine: Machine) -> None:
    """The units have it; no other file of the machine does."""
    places = machine.places
    assert places.secrets.read_text() == f'GPUFLEET_SLACK_TOKEN="{SLACK_VALUE}"\n'
    assert places.secrets.stat().st_mode & 0o777 == 0o600
    others = [
        path for path in places.root.rglob("*") if path.is_file() and not path.is_symlink() and path != places.secrets
    ]
    assert others
    assert not [path for path in others if SLACK_VALUE.encode() in path.read_bytes()]
    watch = next(iter(pid for pid in Path("/proc").glob("[0-9]*") if _is_daemon_of(pid, places)), None)
    assert watch is not None, "the daemon runs"
    assert f"GPUFLEET_SLACK_TOKEN={SLACK_VALUE}".encode() in (watch / "environ").read_bytes().split(b"\0")


def _is_daemon_of(process: Path, places: Places) -> bool:
    try:
        words = (process / "cmdline").read_bytes()
        return (
            b"\0watch\0run\0" in words
            and f"GPUFLEET_ROOT={places.root}".encode() in (process / "environ").read_bytes()
        )
    except OSError:
        return False
