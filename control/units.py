"""The systemd units of a control host, as text. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from control.places import USER, Places
from control.settings import ControlSettings, Role

BOOT: Final = "gpufleet-boot.service"
BACKUP: Final = "gpufleet-backup"
BACKUP_EVERY: Final = "1h"
DIGEST: Final = "gpufleet-digest"
DIGEST_AT: Final = "*:07/15"
"""Four times an hour, so soon after any `notify.digest_at`; behind the cost pass that ends the day."""
SETTLE: Final = "gpufleet-settle"
SETTLE_EVERY: Final = "2min"
RETENTION: Final = ("90d", "30GB")
"""Of Prometheus: time, and bytes within the volume's 50 GiB."""
PROGRAMS: Final = {
    Role.CONTROL: ("prometheus", "prometheus-alertmanager", "haproxy"),
    Role.ROUTER: ("haproxy",),
}
"""What the machine's image must bring, beside Python 3.11 or newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One unit that runs for as long as the machine does."""

    name: str
    what: str
    command: Sequence[str]
    healthy: str
    """URL that answers 2xx when it is well."""
    stop_s: int = 30
    memory: str = "2G"


def services(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> tuple[Service, ...]:
    """What this machine runs, in the order of their starts. `programs`: name to path of PROGRAMS."""
    router = (_router(settings, places),) if settings.routes or settings.role is Role.ROUTER else ()
    if settings.role is Role.ROUTER:
        return router
    return (
        _alertmanager(settings, places, programs),
        _prometheus(settings, places, programs),
        *router,
        _watch(settings, places),
        _console(settings, places),
    )


def render(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> dict[str, str]:
    """Every unit: file name and text."""
    made = {BOOT: _boot(places)}
    made |= {one.name: _unit(one, places, settings) for one in services(settings, places, programs)}
    made |= {
        f"{SETTLE}.service": _settle(places),
        f"{SETTLE}.timer": _timer("an upgrade that was cut off", *_every(SETTLE_EVERY)),
    }
    if settings.role is Role.CONTROL:
        backup, digest = "backup of the ledger to the bucket", "the morning's page, once a day"
        made |= {
            f"{BACKUP}.service": _task(places, settings, backup, "ledger backup"),
            f"{BACKUP}.timer": _timer(backup, *_every(BACKUP_EVERY)),
            f"{DIGEST}.service": _task(places, settings, digest, "report digest --daily --post --quiet"),
            f"{DIGEST}.timer": _timer(digest, f"OnCalendar={DIGEST_AT}"),
        }
    return made


def timers(settings: ControlSettings) -> tuple[str, ...]:
    """Units that start others from time to time."""
    found = (SETTLE,) if settings.role is Role.ROUTER else (SETTLE, BACKUP, DIGEST)
    return tuple(f"{name}.timer" for name in found)


def _command(places: Places) -> str:
    return str(places.current / "bin" / "gpufleet")


def _router(settings: ControlSettings, places: Places) -> Service:
    bind, metrics = f"{settings.address}:8080", f"{settings.address}:8404"
    command = (_command(places), "router", "run", "--state", str(places.data / "router"))
    return Service(
        name="gpufleet-router.service",
        what="router (HAProxy and its controller)",
        command=(*command, "--bind", bind, "--metrics", metrics),
        healthy=f"http://{near(settings)}:8404/metrics",
    )


def _prometheus(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> Service:
    time, size = RETENTION
    return Service(
        name="gpufleet-prometheus.service",
        what="Prometheus",
        command=(
            programs["prometheus"],
            f"--config.file={places.monitoring / 'prometheus.yml'}",
            f"--storage.tsdb.path={places.data / 'prometheus'}",
            f"--storage.tsdb.retention.time={time}",
            f"--storage.tsdb.retention.size={size}",
            f"--web.listen-address={settings.address}:9090",
        ),
        healthy=f"http://{near(settings)}:9090/-/ready",
        stop_s=120,
        memory="75%",
    )


def _alertmanager(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> Service:
    return Service(
        name="gpufleet-alertmanager.service",
        what="Alertmanager",
        command=(
            programs["prometheus-alertmanager"],
            f"--config.file={places.monitoring / 'alertmanager.yml'}",
            f"--storage.path={places.data / 'alertmanager'}",
            f"--web.listen-address={settings.inner}:9093",
            # a machine that is lost takes no more than a minute of silences along; the default is 15
            "--data.maintenance-interval=1m",
            # one alone: nobody to gossip with
            "--cluster.listen-address=",
        ),
        healthy=f"http://{settings.inner}:9093/-/ready",
    )


def _watch(settings: ControlSettings, places: Places) -> Service:
    return Service(
        name="gpufleet-watch.service",
        what="watchdogs (idle, spot, scale, cost)",
        command=(_command(places), "watch", "run", "--apply", "--listen", f"{settings.inner}:9470"),
        healthy=f"http://{settings.inner}:9470/healthz",
        # passes may finish: --stop-limit is 150 s
        stop_s=180,
    )


def _console(settings: ControlSettings, places: Places) -> Service:
    token = ("--token-file", str(places.token))
    return Service(
        name="gpufleet-console.service",
        what="console",
        command=(_command(places), "console", "--wait", "--listen", f"{settings.address}:9600", *token),
        healthy=f"http://{near(settings)}:9600/healthz",
    )


def near(settings: ControlSettings) -> str:
    """Where this machine finds what listens on `address`."""
    return settings.inner if settings.address == "0.0.0.0" else settings.address  # noqa: S104 - compared, not bound


def _boot(places: Places) -> str:
    # starts the others itself: volume, ledger and configuration come first, also after a reboot
    return f"""\
# Written by gpufleet; changes made here are lost.
[Unit]
Description=gpu-fleet: volume, ledger and configuration of the control host
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={_command(places)} host start
Restart=on-failure
RestartSec=10
# it waits for the volume, and for the fleet document of the first `pulumi up`
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
"""


def _unit(service: Service, places: Places, settings: ControlSettings) -> str:
    return f"""\
# Written by gpufleet; changes made here are lost.
[Unit]
Description=gpu-fleet: {service.what}
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(service.command)}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec={service.stop_s}
MemoryMax={service.memory}
{_confined(places, settings)}"""


def _task(places: Places, settings: ControlSettings, what: str, words: str) -> str:
    """A command that ends, for a timer."""
    return f"""\
# Written by gpufleet; changes made here are lost.
[Unit]
Description=gpu-fleet: {what}

[Service]
Type=oneshot
ExecStart={_command(places)} {words}
TimeoutStartSec=30min
{_confined(places, settings)}"""


def _settle(places: Places) -> str:
    # as root: it stops and starts the others. Nearly always there is nothing to do
    return f"""\
# Written by gpufleet; changes made here are lost.
[Unit]
Description=gpu-fleet: bring an upgrade that was cut off to an end

[Service]
Type=oneshot
ExecStart={_command(places)} host settle
TimeoutStartSec=30min
"""


def _every(span: str) -> tuple[str, str]:
    return "OnActiveSec=5min", f"OnUnitActiveSec={span}"


def _timer(what: str, *when: str) -> str:
    lines = "\n".join(when)
    return f"""\
# Written by gpufleet; changes made here are lost.
[Unit]
Description=gpu-fleet: {what}

[Timer]
{lines}
RandomizedDelaySec=30s

[Install]
WantedBy=timers.target
"""


def _confined(places: Places, settings: ControlSettings) -> str:
    variables = {"GPUFLEET_FLEET": settings.fleet, **settings.environment}
    lines = "\n".join(f'Environment="{name}={value}"' for name, value in variables.items())
    return f"""\
User={USER}
{lines}
# what the settings name as secrets, and what people write by hand, which wins
EnvironmentFile=-{places.secrets}
EnvironmentFile=-{places.data / "secrets.env"}
WorkingDirectory={places.data}
ReadWritePaths={places.data}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
LockPersonality=yes
CapabilityBoundingSet=
SystemCallArchitectures=native
"""
