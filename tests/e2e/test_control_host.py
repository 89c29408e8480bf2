"""A control host on the embedded clouds. It boots from its boot data with a bundle from the bucket, changes its
release, and rolls back. Another machine replaces it and takes over its volume, or restores the ledger from the
backup."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.ledgers import ledger_name
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.model import Cloud
from gpufleet.ledger import operations
from gpufleet.ledger.schema import open_ledger
from gpufleet.log_fields import EVENTS, FIELDS
from gpufleet.settings.document import FleetDocument
from hosts.control.paths import HostPaths, User
from tests.fixtures.e2e.control_hosts import LIMIT_S, SLACK, SLACK_VALUE, ControlHosts, Machine, OnAws, OnGoogle
from tests.fixtures.e2e.embedded_cloud import EmbeddedCloud, started, wait_for
from tests.fixtures.networks import free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("prometheus", "prometheus-alertmanager", "haproxy"))),
        reason="needs the Debian packages prometheus, prometheus-alertmanager and haproxy",
    ),
]
NETWORK = free_network()
BROKEN = """
import sys

if "console" in sys.argv:
    raise SystemExit("this release's console does not start")
"""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCloud]:
    with started(tmp_path_factory.mktemp("control"), NETWORK) as cloud:
        yield cloud


@pytest.fixture(
    params=[pytest.param(one, marks=() if one is Cloud.AWS else pytest.mark.long) for one in Cloud], scope="module"
)
def hosts(request: pytest.FixtureRequest, emulated: EmbeddedCloud) -> ControlHosts:
    if request.param is Cloud.GCP:
        google = OnGoogle(url=f"http://{NETWORK}.0.4:4567", network=NETWORK)
        google.set_up()
        return ControlHosts(platform=google, folder=emulated.folder)
    emulated.client("ssm").put_parameter(Name=SLACK, Value=SLACK_VALUE, Type="SecureString")
    return ControlHosts(platform=OnAws(emulated=emulated, subnet=emulated.subnet()), folder=emulated.folder)


def _brakes(machine: Machine, fleet: FleetDocument) -> list[str]:
    engine = open_ledger(machine.ledger_url)
    try:
        return sorted(brake.reason for brake in operations.brakes(engine, ledger_name(fleet), datetime.now(UTC)))
    finally:
        engine.dispose()


def _set_brake(machine: Machine, fleet: FleetDocument, reason: str) -> None:
    engine = open_ledger(machine.ledger_url)
    try:
        brake = Brake(
            kind=BrakeKind.PAUSE, scope="idle", owner="tests", reason=reason, since=datetime.now(UTC), until=None
        )
        operations.set_brake(engine, ledger_name(fleet), brake)
    finally:
        engine.dispose()


@pytest.mark.timeout(1200)
def test_a_control_host_is_upgraded_replaced_and_brought_back(hosts: ControlHosts) -> None:
    """All services are real: Prometheus, Alertmanager, the router, the daemon and the console."""
    name, volume = hosts.platform.cloud, hosts.platform.make_volume()
    one = hosts.put_bundle(f"one-{name}")
    two = hosts.put_bundle(f"two-{name}", more="\n# another release\n")
    machine = hosts.boot(one, volume)
    fleet = hosts.describe(machine)
    machine.wait_until_well()
    assert one in machine.run("upgrade")
    _slack_token_is_only_in_memory(machine)
    _services_write_documented_lines(machine)
    kept = _Kept.made_on(machine, fleet, hosts.platform.address(machine.id))
    machine.run("ledger", "backup", "--fleet", hosts.fleet_url)
    if name is Cloud.AWS:
        # a change of releases does not depend on the cloud
        _change_releases(machine, one, two, hosts.put_bundle("broken", more=BROKEN))
        kept.are_on(machine, fleet, hosts.platform.address(machine.id))

    hosts.platform.end(machine.id)
    assert not machine.places.ledger.exists(), "a machine that ended has no volume"
    successor = hosts.boot(two, volume)
    fleet = hosts.describe(successor)
    successor.wait_until_well()
    kept.are_on(successor, fleet, hosts.platform.address(successor.id))
    assert _release_of_the_daemon(successor) == one, "the volume knows what was chosen; the boot data named another"

    hosts.platform.end(successor.id)
    restored = hosts.boot(one)
    fleet = hosts.describe(restored)
    restored.wait_until_well()
    assert _brakes(restored, fleet) == [kept.brake], "without the volume, by the backup"
    assert "the ledger is consistent" in restored.run("ledger", "verify", "--fleet", hosts.fleet_url)


def _services_write_documented_lines(machine: Machine) -> None:
    """Under systemd each log line of gpu-fleet's services is JSON with the fields of docs/logs.md."""
    for name in ("boot", "feed", "watch", "console"):
        (path,) = machine.places.root.glob(f"var/log/**/gpufleet-{name}.service.log")
        written = path.read_text()
        lines = [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]
        assert lines, name
        assert not {field for line in lines for field in line} - {*FIELDS}
        assert {line["event"] for line in lines} <= {*EVENTS}


def _change_releases(machine: Machine, one: str, two: str, broken: str) -> None:
    """Upgrade from one to two and roll back. Before that, try a release whose console does not start."""
    output = machine.run("upgrade", "--to", broken, "--within", "15s", "--apply", code=1)
    assert "was rolled back" in output
    assert "gpufleet-console" in output
    assert _release_of_the_daemon(machine) == one
    machine.run("upgrade", "--to", two, "--apply")
    assert _release_of_the_daemon(machine) == two
    machine.run("upgrade", "--rollback", "--apply")
    assert _release_of_the_daemon(machine) == one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """State that must survive a change of release and of machine."""

    brake: str
    silence: str
    """Id of a silence of Alertmanager."""
    at: float
    """When Prometheus was asked for its targets."""
    targets: list[Any]
    """The labels of the targets with a sample."""

    @staticmethod
    def made_on(machine: Machine, fleet: FleetDocument, address: str) -> "_Kept":
        _set_brake(machine, fleet, "before the end")
        now = datetime.now(UTC)
        silence = {
            "matchers": [{"name": "alertname", "value": "Any", "isRegex": False}],
            "startsAt": now.isoformat(),
            "endsAt": (now + timedelta(days=1)).isoformat(),
            "createdBy": "tests",
            "comment": "known",
        }
        made = (
            httpx.post(f"http://{address}:9093/api/v2/silences", json=silence, timeout=60).raise_for_status().json()
        )
        found = wait_for("samples in Prometheus", lambda: _up(address, None), LIMIT_S)
        at = found[0]["value"][0]
        targets = [one["metric"] for one in found]
        return _Kept(brake="before the end", silence=made["silenceID"], at=at, targets=targets)

    def are_on(self, machine: Machine, fleet: FleetDocument, address: str) -> None:
        assert self.brake in _brakes(machine, fleet)
        silence = (
            httpx.get(f"http://{address}:9093/api/v2/silence/{self.silence}", timeout=60).raise_for_status().json()
        )
        assert (silence["status"]["state"], silence["comment"]) == ("active", "known")
        # values are not compared: a scrape in progress at that time may be written a little later
        then = [one["metric"] for one in _up(address, self.at)]
        assert self.targets
        assert all(target in then for target in self.targets)


def _up(address: str, at: float | None) -> list[Any]:
    """The `up` series of targets at a time. None: now."""
    when = {} if at is None else {"time": at}
    answer = httpx.get(f"http://{address}:9090/api/v1/query", params={"query": "up", **when}, timeout=60)
    return answer.raise_for_status().json()["data"]["result"]


def _release_of_the_daemon(machine: Machine) -> str:
    """Digest of the release whose code the running daemon uses."""
    variables = (_daemon_of(machine.places) / "environ").read_bytes().decode()
    found = re.search(r"PYTHONPATH=\S*/releases/([0-9a-f]{64})/lib", variables)
    assert found is not None, variables
    return found[1]


def _slack_token_is_only_in_memory(machine: Machine) -> None:
    """Only the units of the watchdogs have the token. No other file of the machine contains it."""
    places = machine.places
    secrets = places.secrets(User.WATCH)
    assert secrets.read_text() == f'GPUFLEET_SLACK_TOKEN="{SLACK_VALUE}"\n'
    assert secrets.stat().st_mode & 0o777 == 0o600
    others = [path for path in places.root.rglob("*") if path.is_file() and not path.is_symlink() and path != secrets]
    assert others
    assert not [path for path in others if SLACK_VALUE.encode() in path.read_bytes()]
    watch = _daemon_of(places)
    assert f"GPUFLEET_SLACK_TOKEN={SLACK_VALUE}".encode() in (watch / "environ").read_bytes().split(b"\0")


def _daemon_of(places: HostPaths) -> Path:
    """The folder in /proc of the machine's daemon."""
    found = next((pid for pid in Path("/proc").glob("[0-9]*") if _is_daemon_of(pid, places)), None)
    assert found is not None, "the daemon runs"
    return found


def _is_daemon_of(process: Path, places: HostPaths) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
        return (
            b"\0watch\0run\0" in command
            and f"GPUFLEET_ROOT={places.root}".encode() in (process / "environ").read_bytes()
        )
    except OSError:
        return False
