"""Control hosts on the embedded clouds, for tests that boot, upgrade and replace them."""

import base64
import gzip
import hashlib
import json
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import httpx

from components.aws.control_host import DATA_DEVICE, device_of
from gpufleet.domain.model import Cloud
from gpufleet.settings import document
from gpufleet.settings.document import FleetDocument
from hosts.control import boot_data, bundle
from hosts.control.places import Places
from hosts.control.settings import ControlSettings
from localcloud.gcp.places import PROJECT
from localcloud.machines.spec import MachineSpec
from tests import signing
from tests.e2e.embedded_cloud import BUCKET, CLONE, ORDERS, EmbeddedCloud, fleet_document, pool_entry, wait_for
from tests.local_token import BEARER

KEY_NAME, ORDERS_NAME = "gpu-fleet-test-engine-key", "gpu-fleet-test-order-key"
"""Secrets of the environment on Google Cloud."""
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

    def make_volume(self) -> str:
        """An empty one; its id."""
        ...

    def device(self, volume: str) -> str:
        """Where a machine finds it."""
        ...

    def start(self, script: str, volume: str | None) -> str:
        """A machine with that boot script and volume; its id."""
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

    def make_volume(self) -> str:
        made = self.emulated.client("ec2").create_volume(AvailabilityZone="us-east-1a", Size=50, VolumeType="gp3")
        return str(made["VolumeId"])

    def device(self, volume: str) -> str:
        return device_of(volume)

    def start(self, script: str, volume: str | None) -> str:
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
        machine = str(made["Instances"][0]["InstanceId"])
        if volume is not None:
            wait_for("the machine's boot", lambda: self.emulated.state(machine) == "running", LIMIT_S)
            ec2.attach_volume(VolumeId=volume, InstanceId=machine, Device=DATA_DEVICE)
        return machine

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
    network: str
    cloud: Cloud = Cloud.GCP
    region: str = "us-central1"
    bucket: str = f"gs://{BUCKET}"
    secret: str = f"gcp-secret:projects/{PROJECT}/secrets/slack-token"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call, and the end of its operation."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        answer = httpx.request(method, f"{self.url}{path}", timeout=60, content=content, headers=BEARER)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        found = answer.json() if answer.content else {}
        while found.get("kind") == "compute#operation" and found["status"] != "DONE":
            place = found["selfLink"].partition("/compute/v1/")[2]
            found = httpx.post(f"{self.url}/compute/v1/{place}/wait", timeout=60, headers=BEARER).json()
        assert not found.get("error"), found
        return found

    def set_up(self) -> None:
        self.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": BUCKET})
        secrets = f"/v1/projects/{PROJECT}/secrets"
        values = {"slack-token": SLACK_VALUE, KEY_NAME: signing.ENGINE_KEY, ORDERS_NAME: signing.pem()}
        for name, value in values.items():
            self.call("POST", f"{secrets}?secretId={name}", {"replication": {"automatic": {}}})
            payload = {"payload": {"data": base64.b64encode(value.encode()).decode()}}
            self.call("POST", f"{secrets}/{name}:addVersion", payload)
        home = f"/compute/v1/projects/{PROJECT}"
        self.call("POST", f"{home}/global/networks", {"name": "net", "autoCreateSubnetworks": False})
        body = {"name": "net", "network": "global/networks/net", "ipCidrRange": f"{self.network}.64.0/18"}
        self.call("POST", f"{home}/regions/{self.region}/subnetworks", body)

    def put(self, key: str, body: bytes) -> None:
        self.call("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}", body)

    def make_volume(self) -> str:
        name = f"data-{uuid4().hex[:8]}"
        home = f"projects/{PROJECT}/zones/{ZONE}/disks"
        self.call("POST", f"/compute/v1/{home}", {"name": name, "sizeGb": "50"})
        return f"{home}/{name}"

    def device(self, volume: str) -> str:
        return "/dev/disk/by-id/google-data"

    def start(self, script: str, volume: str | None) -> str:
        name = f"control-{uuid4().hex[:8]}"
        image = "projects/debian-cloud/global/images/debian-12"
        body = {
            "name": name,
            "machineType": f"zones/{ZONE}/machineTypes/e2-standard-2",
            "disks": [
                {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}},
                *([{"source": volume, "deviceName": "data"}] if volume else []),
            ],
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
        secrets = f"gcp-secret:projects/{PROJECT}/secrets"
        place = {
            "cloud": "gcp",
            "region": self.region,
            "account": PROJECT,
            "bucket": self.bucket,
            "engine_key": f"{secrets}/{KEY_NAME}",
            "orders": {**ORDERS, "private_key": f"{secrets}/{ORDERS_NAME}"},
        }
        return fleet_document(prometheus_url, ledger_url, pool_entry("chat", [group]), **place)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    ground: Ground
    folder: Path

    @property
    def fleet_url(self) -> str:
        return f"{self.ground.bucket}/fleet/fleet.json"

    def put_bundle(self, name: str, more: str = "") -> str:
        """This clone as a bundle, with `more` at the end of the console's server; its digest."""
        made = bundle.build(CLONE, None, self.folder / f"{name}.tar.gz")
        body = _changed(made.path, more.encode()) if more else made.path.read_bytes()
        sha256 = hashlib.sha256(body).hexdigest()
        self.ground.put(bundle.key(sha256), body)
        return sha256

    def boot(self, sha256: str, volume: str | None = None) -> Machine:
        ground = self.ground
        settings = ControlSettings(
            fleet=self.fleet_url,
            bucket=ground.bucket,
            volume=None if volume is None else ground.device(volume),
            environment={"AWS_DEFAULT_REGION": ground.region} if ground.cloud is Cloud.AWS else {},
            secrets={"GPUFLEET_SLACK_TOKEN": ground.secret},
        )
        script = boot_data.render(settings, ground.cloud, ground.region, sha256)
        assert SLACK_VALUE not in script
        found = ground.start(script, volume)
        return Machine(id=found, places=Places(root=self.folder / "machines" / found))

    def describe(self, machine: Machine) -> FleetDocument:
        """Write the fleet document, as `pulumi up` does when everything is made."""
        prometheus = f"http://{self.ground.address(machine.id)}:9090"
        text = json.dumps(self.ground.document(prometheus, machine.ledger_url)).encode()
        self.ground.put("fleet/fleet.json", text)
        return document.parse(text, self.fleet_url)


def _changed(path: Path, more: bytes) -> bytes:
    """A bundle with more at the end of one of its files."""
    changed = BytesIO()
    with (
        tarfile.open(path) as old,
        gzip.GzipFile(fileobj=changed, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in old:
            file = old.extractfile(entry)
            assert file is not None, f"{entry.name} is no file"
            body = file.read() + (more if entry.name == "lib/gpufleet/console/server.py" else b"")
            entry.size = len(body)
            new.addfile(entry, BytesIO(body))
    return changed.getvalue()
