"""The fleet that faults act on: the embedded cloud with the demo's stack, Prometheus, the router, the daemon,
clients."""

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

import httpx

from gpufleet.settings.document import PATH_IN_BUCKET
from tests.chaos.clients import PatientTraffic
from tests.chaos.evidence import BrokenGpu, Span
from tests.chaos.names import url
from tests.chaos.preload import Preload
from tests.chaos.preload import environment as loading
from tests.fixtures import local_token
from tests.fixtures.e2e.embedded_cloud import BUCKET, CLONE, EmbeddedCloud, wait_for
from tests.fixtures.networks import end_process
from tests.fixtures.stacks.engine import Engine

STACK: Final = "aws-local"
FLEET: Final = f"s3://{BUCKET}/{PATH_IN_BUCKET}"
MARK: Final = "GPUFLEET_CHAOS"
"""Every process of a run has it in its environment, with the folder of the run, so that leftover processes are
found."""
ENGINE_KEY: Final = "/gpu-fleet/local/engine-key"
ORDER_KEY: Final = "/gpu-fleet/local/order-key"
COMMAND_LIMIT_S: Final = 600
START_LIMIT_S: Final = 600
END_LIMIT_S: Final = 600
"""A daemon that is asked to end finishes its pass within 150 s; a loaded machine needs more."""
EVERY: Final = ("--every", "idle=3s", "--every", "spot=2s", "--every", "scale=1m", "--every", "cost=6s")
RESTART_S: Final = 2.0
"""`RestartSec` of the parts. Their units have 10 s; here it is as short as the other times of this fleet."""
PARTS: Final = ("alertmanager", "prometheus", "targets", "router", "console", "watchdogs")
CONSOLE_TOKEN: Final = "a token of the chaos"  # noqa: S105 - of this console alone
GROUP_WAIT: Final = timedelta(seconds=2)
GROUP_INTERVAL: Final = timedelta(seconds=10)
"""Alertmanager's group interval, which is minutes elsewhere."""


class ChaosError(Exception):
    """The run cannot continue. The message names the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The result of a command."""

    code: int
    stdout: str
    stderr: str


@dataclass(slots=True, kw_only=True)
class ChaosTestbed:
    """One fleet with everything applied, and methods to inject faults."""

    cloud: EmbeddedCloud
    engine: Engine
    traffic: PatientTraffic
    folder: Path
    announce: Callable[[str], None]
    clock: Preload
    """The clock of the watchdogs."""
    names: Preload
    """The name resolution of every part of the control host, and of commands."""
    kills: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Start and end of each kill of the router, in seconds since 1970."""
    taken: set[str] = field(default_factory=set[str])
    """Instances that a fault interrupted or broke."""
    notices: list[float] = field(default_factory=list[float])
    """When the cloud gave notice to a spot instance of chat."""
    broken: list[BrokenGpu] = field(default_factory=list[BrokenGpu])
    dry: list[Span] = field(default_factory=list[Span])
    """While no zone had spot capacity."""
    blind: list[Span] = field(default_factory=list[Span])
    """While Prometheus was down."""
    _blind_since: float = 0.0
    _parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, subprocess.Popen[bytes]])

    # addresses and paths

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
        network = self.cloud.network
        cloud = url(self.names, "cloud", f"{network}.0.2", 4566)
        return (
            self.engine.environment
            | loading([self.names])
            | {
                MARK: str(self.folder),
                # not S3: the emulator reads the first label of a host name as the bucket
                **{f"AWS_ENDPOINT_URL_{service}": cloud for service in ("EC2", "AUTO_SCALING", "SERVICE_QUOTAS")},
                "GPUFLEET_FLEET": FLEET,
                "GPUFLEET_SLACK_API_URL": f"{self.slack_url}/api/",  # clear text: loopback only
                "GPUFLEET_SLACK_TOKEN": local_token.BOT,
            }
        )

    # processes

    def start(self, part: str) -> None:
        """Start a part, and wait until it listens if it has an address."""
        self._run_as_unit(part)
        ready = {
            "alertmanager": f"{self.alertmanager_url}/-/ready",
            "prometheus": f"{self.prometheus_url}/-/ready",
            "router": f"http://{self.control_host}:8404/metrics",
            "console": f"http://{self.control_host}:9600/healthz",
        }
        if (url := ready.get(part)) is not None:
            wait_for(part, lambda: httpx.get(url, timeout=60).is_success, START_LIMIT_S)
        if part == "prometheus" and self._blind_since:
            self.blind.append((self._blind_since, time.time()))

    def _run_as_unit(self, part: str) -> None:
        """Start its process, and restart it whenever it ends by itself, as `Restart=always` does."""
        process = self._parts[part] = self.spawn(part, self._command(part))

        def keep() -> None:
            code = process.wait()
            if self._parts.get(part) is process:
                self.announce(f"{part} ended unexpectedly with exit code {code}: restarting it")
                time.sleep(RESTART_S)
            if self._parts.get(part) is process:
                self._run_as_unit(part)

        threading.Thread(target=keep, name=f"unit {part}", daemon=True).start()

    def spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process whose output reaches a file of the run through a pipe, so that a limit on its file
        sizes does not affect the log."""
        libraries = [self.names, self.clock] if name.startswith("watchdogs") else [self.names]
        process = subprocess.Popen(
            list(command),
            cwd=CLONE,
            env=self.environment | loading(libraries),
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
            self._note_blind(part)
            end_process(process, END_LIMIT_S)

    def kill(self, part: str) -> None:
        """Send SIGKILL. HAProxy ends a moment after its router."""
        process = self._parts.pop(part)
        self._note_blind(part)
        began = time.time()
        process.kill()
        process.wait(30)
        if part == "router":
            wait_for("the end of HAProxy", self._refuses_connections)
            self.kills.append((began, time.time()))

    def _note_blind(self, part: str) -> None:
        if part == "prometheus":
            self._blind_since = time.time()

    def freeze(self, part: str) -> None:
        """Send SIGSTOP: the ports are open, but the process does not respond."""
        os.kill(self.pid(part), signal.SIGSTOP)

    def thaw(self, part: str) -> None:
        os.kill(self.pid(part), signal.SIGCONT)

    def _refuses_connections(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(2)
            return probe.connect_ex((self.control_host, 8080)) == errno.ECONNREFUSED

    def pid(self, part: str) -> int:
        return self._parts[part].pid

    def limit_files(self, part: str, size: int | None) -> None:
        """Limit the size of files that a part writes to `size` bytes, as a full disk does. None: no limit."""
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
                    "--data.maintenance-interval=1m",
                    "--cluster.listen-address=",  # a single instance without peers
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
            case "targets":
                return [
                    *gpufleet,
                    "monitoring",
                    "targets",
                    "--every",
                    "2s",
                    "--out",
                    str(self.folder / "targets.json"),
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

    def gpufleet(self, *arguments: str, codes: Sequence[int] = (0,)) -> CommandResult:
        """Run a command of the product. Raises ChaosError for another exit code."""
        return self._run([sys.executable, "-m", "cli.main", *arguments], codes)

    def _run(self, command: Sequence[str], codes: Sequence[int]) -> CommandResult:
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
        return CommandResult(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    # state

    def instances(self, pool: str) -> list[dict[str, Any]]:
        """Instances of a pool that are not terminated, as the cloud sees them."""
        found = self.cloud.control("state")["instances"]
        return [one for one in found if one["pool"] == pool and one["state"] in ("pending", "running")]

    def servers_up(self) -> int:
        """Number of chat replicas to which HAProxy sends requests."""
        known = json.loads((self.folder / "router" / "status.json").read_text())
        servers = [one for pool in known["pools"] if pool["name"] == "chat" for one in pool["servers"]]
        return sum(str(one.get("status", "")).upper().startswith("UP") for one in servers)

    def router_sees(self, since: float) -> bool:
        """Whether the router has read an inventory since this time, in seconds since 1970."""
        known = json.loads((self.folder / "router" / "status.json").read_text())
        return datetime.fromisoformat(known["at"]).timestamp() > since + 1 and not known["problems"]

    def is_whole(self) -> bool:
        """Whether chat has the sizes of its policy (one reserved, two spot, no on-demand) and all of them serve."""
        kinds = sorted(one["kind"] for one in self.instances("chat") if one["notice"] is None)
        return kinds == ["reserved", "spot", "spot"] and self.servers_up() == 3

    def delete(self, path: str) -> None:
        """Send DELETE to the admin API."""
        httpx.request(
            "DELETE", f"{self.cloud.url}/_localcloud/{path}", json={}, headers=local_token.BEARER, timeout=60
        ).raise_for_status()


def _copy(pipe: IO[bytes], log: Path) -> None:
    with log.open("ab", buffering=0) as file, pipe:
        for line in pipe:
            file.write(line)
