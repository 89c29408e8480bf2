"""`python3 gpufleet-node.pyz boot` installs the agent's systemd unit and starts it. The unit executes `run`.

`verify` is a command for operators: it reads the models on this instance's disk again and checks them. `libtpu`
serves the metrics of TPUs: the agent installs a unit with it on instances that have any.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpufleet.domain.clocks import WallClock
from gpufleet.domain.model import Cloud, Phase, fleet_name
from gpufleet.domain.rsa import public_key
from gpufleet.logs import Log, from_environment, log_crashes
from hosts.node import engine_key, libtpu, server, stop_marker
from hosts.node.agent import QUIET_TIME, Agent
from hosts.node.boot import BootSequence, NodeServices
from hosts.node.disks import LocalDisks
from hosts.node.engine_client import EngineUrls, HttpEngine
from hosts.node.engine_process import EngineProcess
from hosts.node.log import timed
from hosts.node.orders import Nonces, Orders
from hosts.node.ports import CloudServices, StepError
from hosts.node.state import NodeState
from hosts.node.switch import FOLLOW, RevisionSwitch
from hosts.node.systemd import Systemd, run
from serving import engine_container
from serving.cache import sync
from serving.cache.disk import Cache, CacheError
from serving.engines import CONTRACTS
from serving.instance_settings import InstanceSettings, InstanceSettingsError, load
from serving.unit_files import quote

UNIT: Final = "gpufleet-node.service"
COMPONENT: Final = "node"
TICK_S: Final = 0.5
METADATA_WAIT_S: Final = 120.0
PASSED_ON: Final = (
    "AWS_ENDPOINT_URL",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_DEFAULT_REGION",
    "GCE_METADATA_HOST",
    "STORAGE_EMULATOR_HOST",
    "GPUFLEET_SECRETMANAGER_ENDPOINT",
    "GPUFLEET_ROOT",
    "NO_PROXY",
)
"""Environment variables that `boot` copies from user data into the agent's unit. None of them is a secret."""


def main(argv: list[str]) -> int:
    """Run a command of the agent. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 a model is corrupt."""
    root = Path(os.environ.get("GPUFLEET_ROOT") or "/")
    if len(argv) == len(("libtpu", "ADDRESS")) and argv[0] == "libtpu":
        return libtpu.serve(argv[1])
    commands: dict[str, Callable[[Path], int]] = {"boot": boot, "run": serve, "verify": verify}
    if len(argv) != 1 or argv[0] not in commands:
        _print_error(
            "usage: gpufleet-node COMMAND. Commands: `boot` (install the agent's unit and start it), "
            "`run` (run the agent), `verify` (check the models on this instance), `libtpu HOST:PORT` (serve the "
            "metrics of TPUs)"
        )
        return 2
    try:
        return commands[argv[0]](root)
    except (InstanceSettingsError, StepError, CacheError) as error:
        if argv[0] == "run":
            from_environment(COMPONENT).error("process", outcome="failed", error=error)
        else:
            _print_error(str(error))
        return 1


def boot(root: Path) -> int:
    """Install the agent's unit and start it. Idempotent."""
    load(root / "etc/gpu-fleet/instance.json")
    systemd = Systemd(root)
    systemd.install(UNIT, unit(_installable()))
    systemd.enable(UNIT)
    systemd.start(UNIT)
    return 0


def verify(root: Path) -> int:
    """Compare every byte of this instance's models with their manifests. Changes nothing."""
    cache = Cache(load(root / "etc/gpu-fleet/instance.json").cache_under(root))
    entries = cache.entries()
    if not entries:
        raise StepError(
            f"{cache.root}: contains no complete model; the agent's /status shows the progress of its download"
        )
    found = {entry: sync.verify(cache, entry.name, entry.digest) for entry in entries}
    for entry, wrong in found.items():
        print(f"{entry.name} {entry.digest[:12]}: {'; '.join(wrong) or 'correct'}")
    return 3 if any(found.values()) else 0


def _archive() -> Path | None:
    """Return the archive that this program runs from; None: it runs from its sources."""
    return next((parent for parent in Path(__file__).resolve().parents if parent.is_file()), None)


def _installable() -> Path:
    """Return the archive. Raises StepError when this program does not run from an archive."""
    found = _archive()
    if found is None:
        raise StepError("the agent can be installed only from its archive: build it with serving/agent_archive.py")
    return found


def unit(program: Path) -> str:
    """Return the text of the agent's own systemd unit."""
    given = [f"{name}={os.environ[name]}" for name in PASSED_ON if os.environ.get(name)]
    lines = [
        "[Unit]",
        "Description=gpu-fleet node agent",
        "Wants=network-online.target",
        "After=network-online.target",
        # The agent starts before the engine, so it stops after it: at shutdown it reports the drain to the end.
        f"Before={engine_container.UNIT}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        *(f"Environment={quote(pair)}" for pair in given),
        f"ExecStart={quote(sys.executable)} {quote(str(program))} run",
        "Restart=always",
        "RestartSec=2",
        "KillMode=mixed",
        "TimeoutStopSec=10",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def serve(root: Path) -> int:
    """Run the agent until the process is terminated."""
    settings = load(root / "etc/gpu-fleet/instance.json")
    cloud = _cloud(settings)
    fleet = fleet_name(settings.cloud, settings.environment, settings.region)
    log = from_environment(COMPONENT, fleet=fleet, pool=settings.pool, resource=cloud.instance_id)
    log_crashes(log)
    file = root / "var/lib/gpu-fleet/agent.json"
    state = NodeState(instance=cloud.instance_id, pool=settings.pool, file=file, now=WallClock().now, log=log)
    state.engine_stops = stop_marker.path_of(root)
    log.info("process", outcome="started", phase=state.phase)
    contract = CONTRACTS[settings.engine.kind]
    engine = HttpEngine(
        EngineUrls.of(contract, cloud.address, engine_container.PORT),
        settings.served_name,
        contract,
        lambda: engine_key.read_key(root),
        EngineProcess().times,
        settings.engine.version,
    )
    state.gate_requests = engine.gate_requests
    archive = _archive()
    services = NodeServices(
        units=Systemd(root),
        disks=LocalDisks(root),
        cloud=cloud,
        engine=engine,
        root=root,
        agent=(sys.executable, *(("-m", "hosts.node") if archive is None else (str(archive),))),
    )
    agent = Agent(settings=settings, services=services, state=state, power_off=lambda: _power_off(log))
    orders = Orders(
        instance=cloud.instance_id,
        keys=[public_key(text) for text in settings.order_keys],
        nonces=Nonces(root / "var/lib/gpu-fleet/orders.json", WallClock().now, state.warn),
        now=WallClock().now,
    )
    state.order_keys = orders.fingerprints
    start = BootSequence(settings=settings, services=services, state=state)
    change = RevisionSwitch(boot=start, quiet_time=QUIET_TIME)
    server.serve(state, address=cloud.address, checked=orders, ask=agent.ask_to_drain, switch=change.ask)
    if state.phase not in (Phase.DRAINED, Phase.FAILED):
        threading.Thread(target=_guarded(start.run, state), name="boot", daemon=True).start()
    threading.Thread(target=_follow, args=(change,), name="follow", daemon=True).start()
    while True:
        agent.tick()
        time.sleep(TICK_S)


def _guarded(work: Callable[[], object], state: NodeState) -> Callable[[], None]:
    """Wrap the boot: an unexpected exception sets the phase to `failed`; the thread would otherwise end unnoticed."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - any exception must set the phase
            state.enter(Phase.FAILED, f"an internal error of the agent: {error!r}")

    return run


def _follow(change: RevisionSwitch) -> None:
    while True:
        time.sleep(FOLLOW.total_seconds())
        change.state.warn("revision", change.follow())


def _cloud(settings: InstanceSettings) -> CloudServices:
    """Connect to the cloud; retry, because metadata may become available after the agent starts. Raises StepError."""
    until = time.monotonic() + METADATA_WAIT_S
    while True:
        try:
            return _connect(settings)
        except OSError as error:
            if time.monotonic() >= until:
                raise StepError(f"the instance's metadata cannot be read: {error}") from error
            time.sleep(1)


def _connect(settings: InstanceSettings) -> CloudServices:
    match settings.cloud:
        case Cloud.AWS:
            from gpufleet.clouds.aws.metadata import from_environment
            from hosts.node.aws import AwsServices

            return AwsServices(from_environment(), settings.region)
        case Cloud.GCP:
            from gpufleet.clouds.gcp.signed import GoogleMetadata
            from hosts.node.google import GoogleServices

            return GoogleServices(GoogleMetadata())


def _power_off(log: Log) -> None:
    """Power off an instance that has been failed for too long, so that it costs no more."""
    try:
        with timed(log, "power_off"):
            run(["poweroff"])
    except StepError:
        return


def _print_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
