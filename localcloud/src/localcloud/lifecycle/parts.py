"""The processes of the embedded environment, and their addresses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from gpufleet.toolchain.tools import ALERTMANAGER, PROMETHEUS, Tool, find_tool
from localcloud import addresses
from localcloud.lifecycle import processes
from localcloud.lifecycle.environment import is_ours, marked
from localcloud.lifecycle.processes import Process
from localcloud.lifecycle.selected_cloud import FLEET_URLS, chosen
from localcloud.lifecycle.sockets import can_listen, find_listener
from localcloud.lifecycle.waiting import LocalError, answers, wait_for

CLOUD: Final = addresses.Places()
CONTROL_HOST: Final = f"{CLOUD.network}.0.10"
PROMETHEUS_URL: Final = f"http://{CONTROL_HOST}:9090"
ALERTMANAGER_ADDRESS: Final = f"{CONTROL_HOST}:9093"
CONSOLE_ADDRESS: Final = f"{CONTROL_HOST}:9600"
RULES: Final = "rules.yml"
TARGETS_FILE: Final = "targets.json"
"""In the folder of prometheus.yml, which refers to it."""
START_LIMIT_S: Final = 60.0
END_LIMITS_S: Final = {
    **{"router": 10.0, "console": 15.0, "targets": 10.0, "prometheus": 15.0, "alertmanager": 10.0, "cloud": 20.0}
}
"""Time limits for the end of each part, in the order in which they are stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process that `local up` starts."""

    name: str
    what: str
    command: tuple[str, ...]
    listens: tuple[tuple[str, int], ...]
    health_url: str = ""
    """The URL that answers 2xx when the part is ready; empty: it has no listener, and is ready when it runs."""


def cloud(folders: Folders) -> Part:
    return Part(
        name="cloud",
        what="the embedded cloud (AWS and Google APIs, instance metadata, machines, Slack sink)",
        command=(str(folders.python), "-u", "-m", "localcloud.cloud", "--state", str(folders.cloud)),
        listens=(
            (CLOUD.api_host, CLOUD.api_port),
            (CLOUD.google_host, CLOUD.google_port),
            (CLOUD.slack_host, CLOUD.slack_port),
        ),
        health_url=f"{CLOUD.api_url}/_localcloud/health",
    )


def prometheus(folders: Folders) -> Part:
    data = folders.control / "prometheus"
    return Part(
        name="prometheus",
        what="Prometheus",
        command=(
            _program(PROMETHEUS),
            f"--config.file={data / 'prometheus.yml'}",
            f"--storage.tsdb.path={data / 'data'}",
            f"--web.listen-address={CONTROL_HOST}:9090",
            "--storage.tsdb.retention.time=1d",
            "--log.level=warn",
        ),
        listens=((CONTROL_HOST, 9090),),
        health_url=f"{PROMETHEUS_URL}/-/ready",
    )


def targets(folders: Folders) -> Part:
    command = (str(folders.python), "-u", "-m", "cli.main", "monitoring", "targets", "--every", "2s")
    out = folders.control / "prometheus" / TARGETS_FILE
    return Part(
        name="targets",
        what="the process that writes Prometheus' targets",
        command=(*command, "--fleet", FLEET_URLS[chosen(folders)], "--out", str(out)),
        listens=(),
    )


def alertmanager(folders: Folders) -> Part:
    data = folders.control / "alertmanager"
    return Part(
        name="alertmanager",
        what="Alertmanager",
        command=(
            _program(ALERTMANAGER),
            f"--config.file={data / 'alertmanager.yml'}",
            f"--storage.path={data / 'data'}",
            f"--web.listen-address={ALERTMANAGER_ADDRESS}",
            "--data.maintenance-interval=1m",
            # a single instance, without a cluster
            "--cluster.listen-address=",
            "--log.level=warn",
        ),
        listens=((CONTROL_HOST, 9093),),
        health_url=f"http://{ALERTMANAGER_ADDRESS}/-/ready",
    )


def console(folders: Folders) -> Part:
    command = (str(folders.python), "-u", "-m", "cli.main", "console", "--fleet", FLEET_URLS[chosen(folders)])
    return Part(
        name="console",
        what="the console",
        # the first `pulumi up` writes the fleet document
        command=(
            *(*command, "--wait", "--direct", "--listen", CONSOLE_ADDRESS),
            *("--token-file", str(console_token(folders))),
        ),
        listens=((CONTROL_HOST, 9600),),
        health_url=f"http://{CONSOLE_ADDRESS}/healthz",
    )


def console_token(folders: Folders) -> Path:
    """The file with the console's token, for users and Alertmanager."""
    return folders.control / "console.token"


def control(folders: Folders) -> tuple[Part, ...]:
    """The parts of the control host, in start order. Raises LocalError when a program is missing."""
    return (alertmanager(folders), prometheus(folders), targets(folders), router(folders), console(folders))


def _program(tool: Tool) -> str:
    found = find_tool(tool)
    if found is None:
        raise LocalError(f"{tool.name} {'.'.join(map(str, tool.at_least))} or newer is missing: run `make setup`")
    return str(found.path)


def router(folders: Folders) -> Part:
    command = (str(folders.python), "-u", "-m", "cli.main", "router", "run", "--fleet", FLEET_URLS[chosen(folders)])
    # the embedded cloud shares this machine's cores
    places_of_it = ("--state", str(folders.control / "router"), "--bind", f"{CONTROL_HOST}:8080", "--every", "2s")
    return Part(
        name="router",
        what="the router (HAProxy and its controller)",
        command=(*command, *places_of_it, "--metrics", f"{CONTROL_HOST}:8404"),
        listens=((CONTROL_HOST, 8080), (CONTROL_HOST, 8404)),
        health_url=f"http://{CONTROL_HOST}:8404/metrics",
    )


def is_up(part: Part, folders: Folders) -> bool:
    """Whether this clone's process runs and answers."""
    record = processes.load(folders.run, part.name)
    return record is not None and record.alive and _is_ready(part)


def start(part: Part, folders: Folders, environment: Mapping[str, str]) -> Process:
    """Start a part and wait until it answers. Raises LocalError with its log, or the owner of its address."""
    check_addresses(part, folders)
    log = folders.logs / f"{part.name}.log"
    log.unlink(missing_ok=True)
    process = processes.start(
        part.name, part.command, environment=marked(environment, folders), cwd=folders.root, log=log
    )
    process.save(folders.run)
    wait_for(
        part.what,
        lambda: process.alive and _is_ready(part),
        limit_s=START_LIMIT_S,
        gave_up=lambda: None if process.alive else f"ended right after its start:\n{_tail(log)}\n",
        remedy=f"see {log}",
    )
    return process


def _is_ready(part: Part) -> bool:
    return not part.health_url or answers(part.health_url)


def check_addresses(part: Part, folders: Folders) -> None:
    """Raises LocalError when another process uses an address of the part."""
    for address, port in part.listens:
        listener = find_listener(address, port)
        if listener is None and can_listen(address, port):
            continue
        raise LocalError(f"{address}:{port} is in use by {_holder(listener.pid if listener else None, folders)}")


def _holder(pid: int | None, folders: Folders) -> str:
    if pid is None:
        return f"a process of another user (`ss -ltnp` as root names it): end it, since {_why_there()}"
    holding = processes.environment_of(pid)
    named = f"process {pid} ({processes.command_of(pid)})"
    if is_ours(holding, folders):
        return f"{named} of this clone: run `gpufleet local down`, then again"
    if clone := holding.get("GPUFLEET_LOCAL"):
        home = Path(clone).parent
        return f"another clone's embedded cloud, {home}, {named}: run `gpufleet local down` there, then again here"
    return f"{named}: end it, since {_why_there()}"


def _why_there() -> str:
    return f"the embedded cloud always uses {CLOUD.network}.0.0/16"


def _tail(log: Path, lines: int = 12) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
