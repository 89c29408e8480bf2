"""The units of a control host under a real systemd: each service runs as its own user with access to only what it
needs, and only the watchdogs' user reaches instance metadata. The cloud is a stub; the services are real.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from gpufleet.ledger.schema import open_ledger
from gpufleet.log_fields import EVENTS, FIELDS
from gpufleet.settings.document import render
from hosts.control.paths import SETTINGS as SETTINGS_FILE
from hosts.control.settings import ControlSettings
from tests.fixtures.control.machine_in_namespaces import METADATA, NAME, SHA256, Machine, machine, missing
from tests.fixtures.router.router import document

_WHY_NOT: Final = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "it can be made"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("prometheus", "prometheus-alertmanager", "haproxy"))),
        reason="needs the Debian packages prometheus, prometheus-alertmanager and haproxy",
    ),
]
CLOUD: Final = """\
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CREDENTIALS = {"Code": "Success", "AccessKeyId": "AKIA", "SecretAccessKey": "s", "Token": "t",
               "Expiration": "2100-01-01T00:00:00Z", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z"}

class Cloud(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body, kind="text/xml"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def do_PUT(self):
        self.answer(200, b"token", "text/plain")

    def do_GET(self):
        if self.path.startswith("/latest/meta-data/iam/security-credentials/"):
            named = self.path.rstrip("/").endswith("role")
            self.answer(200, json.dumps(CREDENTIALS).encode() if named else b"role", "text/plain")
        else:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if b"Action=DescribeInstances" in asked:
            space = b"http://ec2.amazonaws.com/doc/2016-11-15/"
            self.answer(200, b'<DescribeInstancesResponse xmlns="%s"><reservationSet/>'
                             b"</DescribeInstancesResponse>" % space)
        elif b"WithDecryption" in asked:
            self.answer(200, json.dumps({"Parameter": {"Value": "ab" * 32}}).encode(), "text/json")
        else:
            self.answer(400, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")

    def log_message(self, *words):
        pass

for address in sys.argv[1:]:
    host, port = address.split(":")
    server = ThreadingHTTPServer((host, int(port)), Cloud)
    threading.Thread(target=server.serve_forever).start()
"""
UNITS: Final = {
    **{
        f"gpufleet-{name}.service": f"gpufleet-{name}" for name in ("router", "prometheus", "alertmanager", "console")
    },
    **{f"gpufleet-{name}.service": "gpufleet-watch" for name in ("watch", "feed")},
}
DATA, RUN = "/var/lib/gpu-fleet", "/run/gpu-fleet"
READERS: Final = {
    f"{DATA}/host": (),
    f"{DATA}/host/console.token": (),
    f"{DATA}/host/release.json": (),
    f"{RUN}/secrets/watch.env": (),
    f"{DATA}/ledger/ledger.db": ("console", "watch"),
    f"{DATA}/ledger.db": ("console", "watch"),
    f"{RUN}/feed/router/engine-key": ("router", "watch"),
    f"{RUN}/console/console.token": ("console",),
    f"{RUN}/alertmanager/console.token": ("alertmanager",),
    f"{DATA}/monitoring/prometheus.yml": ("alertmanager", "console", "prometheus", "router", "watch"),
    f"{RUN}/feed/fleet.json": ("alertmanager", "console", "prometheus", "router", "watch"),
    f"{RUN}/feed/instances.json": ("alertmanager", "console", "prometheus", "router", "watch"),
    **{f"{DATA}/{name}": (name,) for name in ("alertmanager", "console", "prometheus", "router", "watch")},
}
WRITERS: Final = {
    f"{DATA}/ledger/ledger.db": ("console", "watch"),
    f"{DATA}/ledger": ("console", "watch"),
    f"{RUN}/feed": ("watch",),
    f"{RUN}/feed/router": ("watch",),
    **{f"{DATA}/{name}": (name,) for name in ("alertmanager", "console", "prometheus", "router", "watch")},
    **dict.fromkeys((DATA, f"{DATA}/host", f"{DATA}/monitoring", RUN, f"{RUN}/console", f"{RUN}/secrets"), ()),
    **dict.fromkeys(("/opt/gpu-fleet", "/etc/gpu-fleet", "/etc/systemd/system"), ()),
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A control host that booted with a volume of release 0.1; all services are healthy."""
    folder = tmp_path_factory.mktemp("machine")
    with machine(folder) as made:
        _put_volume(made)
        _put_settings(made)
        (folder / "opt" / "cloud.py").write_text(CLOUD)
        made.run("systemd-run", "--unit=cloud", sys_python(), "/opt/cloud.py", f"{METADATA}:80", "127.0.0.1:4566")
        made.run("/opt/gpu-fleet/current/bin/gpufleet", "host", "start", limit_s=300)
        gpufleet = ("/opt/gpu-fleet/current/bin/gpufleet", "host", "check", "--within", "3m", "--for", "5s")
        output = made.run(*gpufleet, code=None, limit_s=300)
        assert "6 services are healthy" in output, output + made.run(
            "journalctl", "-n", "200", "--no-pager", code=None
        )
        yield made


def sys_python() -> str:
    return shutil.which("python3", path="/usr/bin") or sys.executable


def _put_volume(made: Machine) -> None:
    made.run("useradd", "--system", "--user-group", "gpufleet")
    data = made.folder / "data"
    for name in ("router", "prometheus", "alertmanager"):
        (data / name).mkdir()
        (data / name / "kept").write_text(name)
    open_ledger(f"sqlite:///{data}/ledger.db").dispose()
    (data / "console.token").write_text("t" * 48)
    (data / "secrets.env").write_text("GPUFLEET_SLACK_TOKEN=xoxb-of-a-test\nPGPASSWORD=of-a-test\n")
    release = {"version": 1, "current": SHA256, "previous": None, "at": "2026-11-25T00:00:00+00:00"}
    (data / "release.json").write_text(json.dumps(release))
    made.run("chown", "-R", "gpufleet:gpufleet", DATA)


def _put_settings(made: Machine) -> None:
    places = {"prometheus_url": f"http://{NAME}:9090", "ledger_url": f"sqlite:///{DATA}/ledger.db"}
    places["engine_key"] = "ssm:/gpu-fleet/test/engine-key"
    fleet = document({"name": "chat", "model": "models/chat"}).model_copy(update=places)
    (made.folder / "opt" / "fleet.json").write_text(render(fleet))
    settings = ControlSettings(
        fleet="file:///opt/fleet.json",
        bucket="file:///opt/bucket",
        environment={"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:4566"},
    )
    path = made.folder / SETTINGS_FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(settings.to_json()))
    path.chmod(0o644)


def test_each_service_runs_as_its_own_user(host: Machine) -> None:
    for unit, user in UNITS.items():
        shown = host.run("systemctl", "show", "-p", "MainPID", "-p", "NRestarts", unit)
        pid = shown.split("MainPID=")[1].split()[0]
        assert host.run("ps", "-o", "user:32=", "-p", pid).strip() == user, unit
        assert "NRestarts=0" in shown, f"{unit}: {host.run('journalctl', '-u', unit, '-n', '50', '--no-pager')}"


@pytest.mark.parametrize("name", ["router", "console", "watch", "feed"])
def test_each_line_in_the_journal_is_json_without_secrets(host: Machine, name: str) -> None:
    written = host.run("journalctl", "-u", f"gpufleet-{name}", "-o", "cat", "_COMM=python3", "--no-pager")
    lines = [json.loads(line) for line in written.splitlines()]
    assert lines
    assert {line["component"] for line in lines} == {"daemon" if name == "watch" else name}
    assert {field for line in lines for field in line} <= {*FIELDS}
    assert {line["event"] for line in lines} <= {*EVENTS}
    assert not any(secret in written for secret in ("xoxb-of-a-test", "of-a-test", "ab" * 32, "t" * 48))


def test_only_the_watchdogs_user_reaches_instance_metadata(host: Machine) -> None:
    asked = (
        "curl",
        "-s",
        "-m",
        "3",
        "-o",
        "/dev/null",
        f"http://{METADATA}/latest/meta-data/iam/security-credentials/",
    )
    reached = {unit for unit, user in UNITS.items() if host.is_true(*host.as_unit(unit, user, *asked))}
    assert reached == {"gpufleet-watch.service", "gpufleet-feed.service"}


@pytest.mark.parametrize(("test", "table"), [("-r", READERS), ("-w", WRITERS)], ids=["reads", "writes"])
def test_each_user_can_access_only_what_it_needs(host: Machine, test: str, table: dict[str, tuple[str, ...]]) -> None:
    found: dict[str, tuple[str, ...]] = {}
    for path in table:
        assert host.is_true("test", "-e", path), path
        found[path] = tuple(
            user
            for user in ("alertmanager", "console", "prometheus", "router", "watch")
            if _may(host, user, test, path)
        )
    assert found == table


def _may(host: Machine, name: str, test: str, path: str) -> bool:
    user = f"gpufleet-{name}"
    groups = ",".join((user, *(("gpufleet-ledger",) if name in ("console", "watch") else ())))
    drop = ("setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={groups}")
    return host.is_true(*drop, "test", test, path)


def test_secrets_are_in_no_other_services_environment(host: Machine) -> None:
    slack: set[str] = set()
    password: set[str] = set()
    for unit in UNITS:
        pid = host.run("systemctl", "show", "-p", "MainPID", "--value", unit).strip()
        variables = host.run("cat", f"/proc/{pid}/environ").split("\0")
        slack |= {unit} if "GPUFLEET_SLACK_TOKEN=xoxb-of-a-test" in variables else set()
        password |= {unit} if "PGPASSWORD=of-a-test" in variables else set()
    assert slack == {"gpufleet-watch.service"}
    assert password == {"gpufleet-watch.service", "gpufleet-console.service"}


def test_operators_read_the_ledger_as_the_watchdogs_user(host: Machine) -> None:
    """Also while the console has it open: SQLite's side files can then belong to the console's user."""
    pause = ("/opt/gpu-fleet/current/bin/gpufleet", "pause", "chat", "--reason", "a test", "--for", "1h")
    as_people = ("setpriv", "--reuid=gpufleet-watch", "--regid=gpufleet-watch", "--init-groups")
    variables = ("env", "GPUFLEET_FLEET=file:///opt/fleet.json", "AWS_DEFAULT_REGION=us-east-1")
    host.run(*as_people, *variables, *pause)


def test_prometheus_is_reachable_only_on_loopback(host: Machine) -> None:
    listening = host.run("ss", "-Hltn")
    assert "127.0.0.1:9090" in listening and "0.0.0.0:9090" not in listening and "*:9090" not in listening
    assert host.is_true("curl", "-sf", "-m", "5", "-o", "/dev/null", f"http://{NAME}:9090/-/ready")


def test_a_new_boot_changes_nothing(host: Machine) -> None:
    def owners() -> list[str]:
        found = host.run("find", DATA, f"{DATA}/host", "-maxdepth", "1", "-printf", "%p %u %g %m\n")
        return sorted(found.splitlines())

    before = owners()
    assert f"{DATA} root root 755" in before and f"{DATA}/router gpufleet-router gpufleet-router 700" in before
    host.run("/opt/gpu-fleet/current/bin/gpufleet", "host", "start", limit_s=300)
    assert owners() == before


def test_a_compromised_service_cannot_control_root(host: Machine) -> None:
    """It writes files that release 0.1 trusted; root's timer runs and executes nothing from them."""
    program = 'printf "#!/bin/sh\\nid -u >/tmp/pwned\\n" >"$1/evil/bin/gpufleet" && chmod 755 "$1/evil/bin/gpufleet"'
    evil = f'mkdir -p "$1/evil/bin" && {program}'
    state = f"{DATA}/router"
    host.run(*host.as_unit("gpufleet-router.service", "gpufleet-router", "sh", "-c", evil, "sh", state))
    for name in ("change.json", "release.json", "host/change.json", "ledger/../change.json"):
        write = ("sh", "-c", f"echo {{}} >{DATA}/{name}")
        assert not host.is_true(*host.as_unit("gpufleet-router.service", "gpufleet-router", *write))
    change = {"version": 1, "before": SHA256, "to": f"../../../{state}/evil", "schema": None, "wrong": None}
    path = made_by_root(host, json.dumps(change))
    output = host.run("/opt/gpu-fleet/current/bin/gpufleet", "host", "recover", code=1)
    assert "is not a sha256" in output
    assert not host.is_true("test", "-e", "/tmp/pwned")
    host.run("rm", path)


def made_by_root(host: Machine, text: str) -> str:
    """Write the note as root: even then it has no effect, because it contains no digest."""
    path = f"{DATA}/host/change.json"
    host.run("sh", "-c", 'umask 077 && printf %s "$1" >"$2"', "sh", text, path)
    return path


ROOTS_LOOK: Final = """\
import io, sys
from pathlib import Path
from app.control_host import LiveMachine
from hosts.control.paths import HostPaths
from hosts.control.releases import ReleaseError
from hosts.control.settings import ControlSettings

machine = LiveMachine(places=HostPaths(), settings=ControlSettings(fleet="", bucket=""))
try:
    version = machine.schema()
    with Path("/run/copy").open("w+b") as copy:
        machine.save_ledger(copy)
        size = copy.seek(0, 2)
        copy.seek(0)
        machine.restore_ledger(copy) if sys.argv[1:] == ["put-back"] else None
    print(version, size)
except ReleaseError as error:
    print("refused:", error)
"""


def test_root_opens_the_ledger_as_the_watchdogs_user(host: Machine) -> None:
    """Also if a service replaced the ledger with a link to a file of root."""
    look = ("env", f"PYTHONPATH=/opt/gpu-fleet/releases/{SHA256}/lib:/opt/packages", sys_python(), "-c", ROOTS_LOOK)
    version, size = host.run(*look).split()
    assert version.isalnum() and int(size) > 4096
    names = [f"gpufleet-{name}.service" for name in ("watch", "console")]
    host.run("systemctl", "stop", *names)
    assert host.run(*look, "put-back").split() == [version, size]
    ledger, kept = f"{DATA}/ledger/ledger.db", f"{DATA}/ledger/kept.db"
    assert host.run("stat", "-c", "%U %G %a", ledger).split() == ["gpufleet-watch", "gpufleet-ledger", "660"]
    host.run("sh", "-c", f"cp /opt/fleet.json /run/roots && chmod 600 /run/roots && mv {ledger} {kept}")
    host.run(*host.as_unit("gpufleet-feed.service", "gpufleet-watch", "ln", "-s", "/run/roots", ledger))
    assert host.run(*look).startswith("refused:")
    host.run("sh", "-c", f"rm {ledger} && mv {kept} {ledger} && systemctl start {' '.join(names)}")
