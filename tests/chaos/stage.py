"""What the faults play on: the embedded cloud with the demo's stack, Prometheus, the router, the daemon, clients."""

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

import httpx

from fleet.document import PATH_IN_BUCKET
from fleet.document.alerts import AlertSettings
from fleet.model import Cloud
from localcloud import tiny_model
from monitoring import alertmanager, alerts
from monitoring.prometheus import Discovery, PrometheusSettings, render
from monitoring.rules import RuleSettings
from tests.chaos.clients import PATIENCE_S, PatientTraffic
from tests.chaos.clock import Clock
from tests.chaos.evidence import BrokenGpu, Span
from tests.e2e.embedded_cloud import BUCKET, CLONE, EmbeddedCloud, started, wait_for
from tests.networks import end_process
from tests.stacks.engine import Engine, make_engine

STACK: Final = "aws-local"
FLEET: Final = f"s3://{BUCKET}/{PATH_IN_BUCKET}"
MARK: Final = "GPUFLEET_CHAOS"
"""Every process of a run carries it in its environment, with the run's folder: so what is left over is found."""
AGENTS_TOKEN: Final = "/gpu-fleet/local/agent-token"  # noqa: S105 - where this environment's commands look
COMMAND_LIMIT_S: Final = 600
START_LIMIT_S: Final = 180
END_LIMIT_S: Final = 180
"""A daemon that is asked to end lets its pass finish, for 150 s at most."""
EVERY: Final = ("--every", "idle=3s", "--every", "spot=2s", "--every", "scale=1m", "--every", "cost=6s")
PARTS: Final = ("alertmanager", "prometheus", "router", "console", "watchdogs")
CONSOLE_TOKEN: Final = "a token of the chaos"  # noqa: S105 - of this console alone
GROUP_WAIT: Final = timedelta(seconds=2)
GROUP_INTERVAL: Final = timedelta(seconds=10)
"""Alertmanager's patience; minutes elsewhere."""


class ChaosError(Exception):
    """The run itself cannot go on; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(slots=True, kw_only=True)
class Stage:
    """One fleet with everything applied, and handles to hurt it."""

    cloud: EmbeddedCloud
    engine: Engine
    traffic: PatientTraffic
    folder: Path
    say: Callable[[str], None]
    clock: Clock
    """Of the watchdogs."""
    kills: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """From when until when the router died, in seconds since 1970."""
    taken: set[str] = field(default_factory=set[str])
    """Instances that a fault took or broke."""
    notices: list[float] = field(default_factory=list[float])
    """When the cloud gave notice to a spot instance of chat."""
    broken: list[BrokenGpu] = field(default_factory=list[BrokenGpu])
    dry: list[Span] = field(default_factory=list[Span])
    """While no zone had spot."""
    _parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, subprocess.Popen[bytes]])

    # places

    @property
    def control_host(self) -> str:
        return f"{self.cloud.network}.0.10"

    @property
    def prometheus_url(self) -> str:
        return f"http://{self.control_host}:9090"

    @property
    def alertmanager_url(self) -> str:
        return f"http://{self.control_host}:9093"

    @property
    def slack_url(self) -> str:
        return f"http://{self.cloud.network}.0.3:8081"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger" / "ledger.db"

    @property
    def environment(self) -> dict[str, str]:
        return self.engine.environment | {
            MARK: str(self.folder),
            "GPUFLEET_FLEET": FLEET,
            "GPUFLEET_SLACK_API_URL": f"{self.slack_url}/api/",
            "GPUFLEET_SLACK_TOKEN": "xoxb-local",
        }

    # processes

    def start(self, part: str) -> None:
        """Start a part; those with an address are waited for."""
        self._parts[part] = self.spawn(part, self._command(part))
        ready = {
            "alertmanager": f"{self.alertmanager_url}/-/ready",
            "prometheus": f"{self.prometheus_url}/-/ready",
            "router": f"http://{self.control_host}:8404/metrics",
            "console": f"http://{self.control_host}:9600/healthz",
        }
        if (url := ready.get(part)) is not None:
            wait_for(part, lambda: httpx.get(url).is_success, START_LIMIT_S)

    def spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process whose output goes into a file of the run through a pipe: a limit on its files stops no words."""
        process = subprocess.Popen(
            list(command),
            cwd=CLONE,
            env=self.environment | (self.clock.environment if name.startswith("watchdogs") else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        log = self.folder / f"{name}.log"
        threading.Thread(target=_copy, args=(process.stdout, log), name=f"log {name}", daemon=True).start()
        return process

    def end(self, part: str) -> None:
        """Ask a part to end."""
        if (process := self._parts.pop(part, None)) is not None:
            end_process(process, END_LIMIT_S)

    def kill(self, part: str) -> None:
        """SIGKILL. HAProxy ends with its router, a moment later."""
        process = self._parts.pop(part)
        began = time.time()
        process.kill()
        process.wait(30)
        if part == "router":
            wait_for("HAProxy gone", self._nobody_listens)
            self.kills.append((began, time.time()))

    def _nobody_listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(2)
            return probe.connect_ex((self.control_host, 8080)) == errno.ECONNREFUSED

    def pid(self, part: str) -> int:
        return self._parts[part].pid

    def limit_files(self, part: str, size: int | None) -> None:
        """Let no file of a part grow beyond `size` bytes, as on a full disk; None: as before."""
        _, most = resource.prlimit(self.pid(part), resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid(part), resource.RLIMIT_FSIZE, (most if size is None else size, most))

    def _command(self, part: str) -> list[str]:
        gpufleet = [sys.executable, "-u", "-m", "cli.main"]
        match part:
            case "alertmanager":
                return [
                    "prometheus-alertmanager",
                    f"--config.file={self.folder / 'alertmanager.yml'}",
                    f"--storage.path={self.folder / 'alertmanager'}",
                    f"--web.listen-address={self.control_host}:9093",
                    "--cluster.listen-address=",  # one alone: nobody to gossip with
                    "--log.level=warn",
                ]
            case "prometheus":
                return [
                    "prometheus",
                    f"--config.file={self.folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self.folder / 'tsdb'}",
                    f"--web.listen-address={self.control_host}:9090",
                    "--rules.alert.resend-delay=5s",
                    "--log.level=warn",
                ]
            case "router":
                addresses = ["--bind", f"{self.control_host}:8080", "--metrics", f"{self.control_host}:8404"]
                return [*gpufleet, "router", "run", "--state", str(self.folder / "router"), *addresses]
            case "console":
                token = ["--token-file", str(self.folder / "console.token")]
                return [*gpufleet, "console", "--listen", f"{self.control_host}:9600", *token]
            case _:
                port = 9470 if part == "watchdogs" else 9471
                return [*gpufleet, "watch", "run", "--apply", *EVERY, "--listen", f"{self.control_host}:{port}"]

    # commands

    def gpufleet(self, *arguments: str, codes: Sequence[int] = (0,)) -> Done:
        """Run a command of the product. Raises ChaosError for another exit code."""
        return self._run([sys.executable, "-m", "cli.main", *arguments], codes)

    def _run(self, command: Sequence[str], codes: Sequence[int]) -> Done:
        done = subprocess.run(
            list(command),
            cwd=CLONE,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        if done.returncode not in codes:
            raise ChaosError(f"{' '.join(command[2:])}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return Done(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    # what is there

    def instances(self, pool: str) -> list[dict[str, Any]]:
        """Living instances of a pool, as the cloud sees them."""
        found = self.cloud.control("state")["instances"]
        return [one for one in found if one["pool"] == pool and one["state"] in ("pending", "running")]

    def servers_up(self) -> int:
        """Replicas of chat that HAProxy sends requests to."""
        known = json.loads((self.folder / "router" / "status.json").read_text())
        servers = [one for pool in known["pools"] if pool["name"] == "chat" for one in pool["servers"]]
        return sum(str(one.get("status", "")).upper().startswith("UP") for one in servers)

    def router_sees(self, since: float) -> bool:
        """Whether the router had an inventory after a moment, in seconds since 1970."""
        known = json.loads((self.folder / "router" / "status.json").read_text())
        return datetime.fromisoformat(known["at"]).timestamp() > since + 1 and not known["problems"]

    def is_whole(self) -> bool:
        """Whether chat is as its policy wants it: reserved 1, spot 2, nothing on demand, all serving."""
        kinds = sorted(one["kind"] for one in self.instances("chat") if one["notice"] is None)
        return kinds == ["reserved", "spot", "spot"] and self.servers_up() == 3

    def delete(self, path: str) -> None:
        """DELETE of the control API."""
        httpx.request("DELETE", f"{self.cloud.url}/_localcloud/{path}", json={}).raise_for_status()


def _copy(pipe: IO[bytes], log: Path) -> None:
    with log.open("ab", buffering=0) as file, pipe:
        for line in pipe:
            file.write(line)


def _settings(engine: Engine, network: str, folder: Path, disk_gib: int = 100) -> None:
    """The shipped settings of the demo at these addresses, with less patience, and one idle instance."""
    config = engine.settings(STACK)
    fleet: dict[str, Any] = config["config"]["gpu-fleet:fleet"]
    fleet["network"]["cidr"] = f"{network}.0.0/16"
    fleet["machines"]["disk_gib"] = disk_gib
    fleet["bucket"]["name"] = BUCKET
    fleet["agent_token"] = AGENTS_TOKEN
    fleet["models"][0]["source"] = f"s3://{BUCKET}/models/chat"
    fleet["prometheus_url"] = f"http://{network}.0.10:9090"
    fleet["router_url"] = f"http://{network}.0.10:8080"
    fleet["ledger_url"] = f"sqlite:///{folder / 'ledger' / 'ledger.db'}"
    for pool in fleet["pools"]:
        pool["engine"]["start_limit"] = "45s"
        pool["watchdogs"] = {
            "idle": {"window": "30s", "grace": "8s", "min_age": "25s"},
            "spot": {"fallback_after": "3s", "hold": "5s", "zone_backoff": "10s"},
        }
    fleet["pools"][1] |= {"target": 1, "max": 2}
    engine.settings(STACK, config)


def change_settings(stage: Stage, disk_gib: int) -> None:
    """Other settings for the next `pulumi up`: new launch templates for all groups."""
    _settings(stage.engine, stage.cloud.network, stage.folder, disk_gib)


@contextmanager
def set_up(folder: Path, network: str, say: Callable[[str], None]) -> Iterator[Stage]:
    """Everything applied and serving, with clients; afterwards every process is ended."""
    os.environ[MARK] = str(folder)  # for the children of the embedded cloud, too
    (folder / "pulumi").mkdir()
    (folder / "ledger").mkdir()
    try:
        with started(folder, network) as cloud:
            cloud.client("ssm").put_parameter(Name=AGENTS_TOKEN, Value="of a test", Type="SecureString")
            cloud.publish_model("chat", tiny_model.Shape())
            engine = make_engine(folder / "pulumi", network, ("aws",))
            _settings(engine, network, folder)
            traffic = PatientTraffic(
                host=f"{network}.0.10", port=8080, model="chat", clients=4, pause_s=0.2, timeout_s=PATIENCE_S
            )
            stage = Stage(cloud=cloud, engine=engine, traffic=traffic, folder=folder, say=say, clock=Clock(folder))
            try:
                _apply(stage)
                yield stage
            finally:
                traffic.stop()
                for part in reversed([*PARTS, "watchdogs-2"]):
                    stage.end(part)
    finally:
        os.environ.pop(MARK, None)


def _monitoring(stage: Stage) -> None:
    """What Prometheus and Alertmanager read: as shipped, with less patience."""
    discovery = Discovery(
        cloud=Cloud.AWS,
        environment="local",
        region="us-east-1",
        endpoint=stage.cloud.url,
        refresh=timedelta(seconds=2),
    )
    host = stage.control_host
    settings = PrometheusSettings(
        discovery=discovery,
        scrape_interval=timedelta(seconds=1),
        haproxy=(f"{host}:8404",),
        watchdogs=(f"{host}:9600", f"{host}:9470"),
        alertmanagers=(f"{host}:9093",),
        rule_files=("rules.yml",),
    )
    webhook = alertmanager.AlertmanagerSettings(
        webhook=f"http://{host}:9600/alerts",
        token_file=str(stage.folder / "console.token"),
        group_wait=GROUP_WAIT,
        group_interval=GROUP_INTERVAL,
    )
    (stage.folder / "prometheus.yml").write_text(render(settings))
    (stage.folder / "rules.yml").write_text(alerts.render(AlertSettings(), RuleSettings()))
    (stage.folder / "alertmanager.yml").write_text(alertmanager.render(webhook))
    (stage.folder / "console.token").write_text(CONSOLE_TOKEN)


def _apply(stage: Stage) -> None:
    _monitoring(stage)
    stage.say("pulumi up")
    stage.engine.run("stack", "init", STACK)
    stage.engine.run("up", "--yes", "--skip-preview", "--stack", STACK)
    for part in ("alertmanager", "prometheus", "router", "console"):
        stage.start(part)
    wait_for("chat whole and serving", stage.is_whole, 600)
    stage.traffic.start()
    # a policy acts only after somebody saw a dry run of it
    for kind in ("spot", "idle"):
        stage.gpufleet("watch", kind, "--quiet", codes=(0, 3))
    stage.start("watchdogs")
