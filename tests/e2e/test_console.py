"""`gpufleet console`, `status` and `top` over two fleets: one with real agents and Prometheus, one without
instances."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.domain import tags
from gpufleet.settings.document import PATH_IN_BUCKET
from serving.accelerators.metrics import ACTIVE
from tests.fixtures.e2e.embedded_cloud import BUCKET, CLONE, EmbeddedCloud, started, status, wait_for
from tests.fixtures.e2e.slow_engine import SETTINGS
from tests.fixtures.e2e.watched import prometheus
from tests.fixtures.local_token import KEYS
from tests.fixtures.networks import free_address, free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]
NETWORK = free_network()
TOKEN = "a-token-of-the-console"  # noqa: S105 - of a test
MINE, OTHER = "aws/test/us-east-1", "aws/other/us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A fleet with one instance and an empty fleet, and the environment of commands that use them."""

    cloud: EmbeddedCloud
    documents: tuple[Path, Path]
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GPUFLEET_"))}
        return clean | {
            "AWS_ENDPOINT_URL": self.cloud.url,
            **KEYS,
            "AWS_EC2_METADATA_DISABLED": "true",
            "GPUFLEET_FLEET": " ".join(map(str, self.documents)),
            "TERM": "xterm-256color",
        }

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=CLONE,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stdout} {done.stderr}"
        return done.stdout

    @property
    def instance(self) -> str:
        return self.cloud.one_member("chat-spot")["InstanceId"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("console")
    with started(folder, NETWORK) as cloud, prometheus(folder, cloud) as url:
        cloud.make_group("chat-spot", cloud.user_data(replace(SETTINGS, environment="test")))
        paths: list[Path] = []
        for name in ("test", "other"):
            path = folder / f"{name}.json"
            path.write_text(json.dumps(_document(folder, url, name)), "utf-8")
            paths.append(path)
        # the process that writes Prometheus' targets reads the document there
        cloud.put_bytes(PATH_IN_BUCKET, paths[0].read_bytes())
        made = Live(cloud=cloud, documents=(paths[0], paths[1]), folder=folder)
        member = cloud.one_member("chat-spot")
        written = {tags.ENVIRONMENT: "test", tags.CAPACITY_TYPE: "spot", tags.OWNER: "tests"}
        cloud.client("ec2").create_tags(
            Resources=[member["InstanceId"]], Tags=[{"Key": key, "Value": value} for key, value in written.items()]
        )
        wait_for("a ready instance", lambda: status(member["PrivateIpAddress"])["ready"], 180)
        wait_for("a scrape of its GPU", lambda: _is_scraped(url))
        for _ in range(2):
            made.run("watch", "cost")
        yield made


def _is_scraped(url: str) -> bool:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": ACTIVE.name}, trust_env=False, timeout=60)
    return bool(answer.json()["data"]["result"])


def _document(folder: Path, url: str, environment: str) -> dict[str, Any]:
    group = {"type": "spot", "zone": "us-east-1a", "name": "chat-spot", "max": 3, "machine_types": ["g6.xlarge"]}
    pool = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "tests", "target": 1, "min": 0, "max": 4,
        "drain_deadline": "10s", "groups": [group], "watchdogs": {},
    }  # fmt: skip
    return {
        "version": 1,
        "environment": environment,
        "cloud": "aws",
        "region": "us-east-1",
        "account": "000000000000",
        "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T02:15:00Z"},
        "bucket": f"s3://{BUCKET}",
        "prometheus_url": url,
        "ledger_url": f"sqlite:///{folder / environment}.db",
        "router": {"url": "http://127.0.0.1:9"},
        "notify": {"slack_channel": "#gpu"},
        "pools": [pool],
    }


@contextmanager
def _console(live: Live) -> Iterator[httpx.Client]:
    address = "{}:{}".format(*free_address())
    (live.folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "cli.main", "console", "--listen", address]
    command += ["--token-file", str(live.folder / "token")]
    with (live.folder / "console.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=CLONE, env=live.environment, stdout=log, stderr=log)
    try:
        wait_for("the console", lambda: httpx.get(f"http://{address}/healthz", timeout=60).is_success)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"http://{address}", headers=bearer, timeout=60) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_page_of_running_fleets(live: Live) -> None:
    with _console(live) as client:
        page = client.get("/")
        assert page.status_code == 200, page.text
        assert page.text.index(MINE) < page.text.index(OTHER)
        assert "not known" not in page.text
        mine, other = client.get("/status.json").json()
        assert [one["id"] for one in mine["instances"]] == [live.instance]
        one = mine["instances"][0]
        assert (one["phase"], one["pool"], one["machine_type"]) == ("ready", "chat", "g6.xlarge")
        assert one["gpu_active"] is not None
        assert float(one["usd_per_hour"]) > 0
        since, until = (datetime.fromisoformat(mine["last_hour"][name]) for name in ("since", "known_until"))
        assert until - since == timedelta(hours=1), "not as the cost watchdog's last pass left it"
        assert (mine["problems"], other["problems"], other["instances"]) == ([], [], [])
        assert live.instance in client.get("/instances", params={"fleet": MINE}).text
        assert "Costs" in client.get("/costs").text
        for name, environment in ((MINE, "test"), (OTHER, "other")):
            report = client.get("/costs", params={"fleet": name})
            assert report.status_code == 200
            assert f"Cost report: {environment}" in report.text
            assert '<a href="/">Back</a>' in report.text
        metrics = client.get("/metrics").text
        assert 'gpufleet_target{environment="test",pool="chat"} 1' in metrics
        assert "gpufleet_ledger_known_until_seconds{" in metrics
        _history(live, client)
        _keep(live, client)


def _history(live: Live, client: httpx.Client) -> None:
    """The page shows costs of the pool. A pause holds until a person resumes the pool on the command line."""
    first = client.get("/history").text
    assert f"History: {MINE}" in first
    assert "Costs are known until" in first
    for by, name in (("pool", "chat"), ("model", "models/chat"), ("team", "tests")):
        page = client.get("/history", params={"fleet": MINE, "span": "7d", "by": by}).text
        assert f"Cost over time, by {by}" in page
        assert f">{name}<" in page
    assert "The ledger has no costs yet" not in client.get("/history", params={"fleet": OTHER}).text
    assert client.get("/history", params={"span": "1y"}).status_code == 404

    form = {"fleet": MINE, "pool": "chat", "stamp": _stamp(live, client)}
    assert "To end it earlier: gpufleet resume chat" in client.post("/pause", data=form).text
    assert _brakes(client) == [("pause", "chat")]
    live.run("resume", "chat")
    wait_for("the end of the pause", lambda: not _brakes(client))


def _stamp(live: Live, client: httpx.Client) -> str:
    """The proof of a form's origin, from a page with a form."""
    about = client.get(f"/instance/{live.instance}", params={"fleet": MINE}).text
    stamp = re.search(r'name="stamp" value="([0-9a-f]+)"', about)
    assert stamp
    return stamp[1]


def _brakes(client: httpx.Client) -> list[tuple[str, str]]:
    return [(one["kind"], one["scope"]) for one in client.get("/status.json").json()[0]["brakes"]]


def _keep(live: Live, client: httpx.Client) -> None:
    form = {"fleet": MINE, "instance": live.instance, "stamp": _stamp(live, client)}
    assert "is kept until" in client.post("/keep", data=form).text
    written = {tag["Key"]: tag["Value"] for tag in live.cloud.one_member("chat-spot")["Tags"]}
    assert tags.KEEP_UNTIL in written
    assert "kept until" in client.get(f"/instance/{live.instance}", params={"fleet": MINE}).text
    assert _brakes(client) == [("keep", live.instance)]


def test_status_and_top_of_several_fleets(live: Live) -> None:
    text = live.run("status")
    assert MINE in text
    assert OTHER in text
    assert max(map(len, text.splitlines())) <= 80
    assert [one["fleet"] for one in json.loads(live.run("status", "--json"))] == [MINE, OTHER]
    assert live.instance in live.run("top", "--once")


def test_top_reads_keys_and_restores_the_terminal(live: Live) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(CLONE)
        os.execve(sys.executable, [sys.executable, "-m", "cli.main", "top", "--every", "1s"], live.environment)  # noqa: S606
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    shown = _read(terminal, until=live.instance)
    assert "\x1b[?1049h" in shown, "a screen of its own"
    os.write(terminal, b"\r")
    _read(terminal, until=live.instance)
    os.write(terminal, b"\x1b")
    shown, end = "", time.monotonic() + 120
    while "\x1b[?1049l" not in shown:
        assert time.monotonic() < end, shown
        os.write(terminal, b"q")  # sent again, because `top` drops a key that arrives together with the previous one
        shown += _read(terminal, seconds=1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def _read(terminal: int, until: str = "", seconds: float = 0, limit_s: float = 120) -> str:
    """Read the terminal until a text appears or for some seconds."""
    found, end = "", time.monotonic() + (seconds or limit_s)
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                found += os.read(terminal, 65_536).decode(errors="replace")
            except OSError:
                return found
        if until and until in found:
            return found
    assert not until, f"not within {limit_s} s: {until}; shown: {found[-2000:]}"
    return found
