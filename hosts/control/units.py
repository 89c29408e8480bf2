"""The systemd units of a control host, as text. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosts.control.paths import LEDGER_GROUP, HostPaths, User
from hosts.control.settings import ControlSettings, Role

BOOT: Final = "gpufleet-boot.service"
BACKUP: Final = "gpufleet-backup"
BACKUP_EVERY: Final = "1h"
DIGEST: Final = "gpufleet-digest"
DIGEST_AT: Final = "*:07/15"
"""Four times an hour, so it runs soon after any `notify.digest_at`, and after the cost pass that closes the day."""
RECOVER: Final = "gpufleet-recover"
RECOVER_EVERY: Final = "2min"
RETENTION: Final = ("90d", "30GB")
"""Retention of Prometheus: time, and size within the volume's 50 GiB."""
PROGRAMS: Final = {
    Role.CONTROL: ("prometheus", "prometheus-alertmanager", "haproxy"),
    Role.ROUTER: ("haproxy",),
}
"""Programs that the machine image must contain, in addition to Python 3.11 or newer."""


_SHARING: Final = "0007"
"""The umask of services that write the ledger: their group can write its files too."""
METADATA_TIMEOUTS: Final = {"AWS_METADATA_SERVICE_TIMEOUT": "5", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "3"}
"""Timeout and attempts for the machine's credentials. AWS' default of one second is too short during a boot."""
METADATA: Final = ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254")
"""Addresses of the metadata services of both clouds. They give credentials to any process on the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The user and the permissions of a unit."""

    user: User
    writes: tuple[Path, ...]
    """Writable folders; the first one is the working directory. All other folders are read-only."""
    groups: tuple[str, ...] = ()
    cloud: bool = False
    """Whether it can reach instance metadata, and so has the machine's cloud role."""
    secrets: bool = False
    """Whether its environment contains its user's secrets."""
    variables: tuple[tuple[str, str], ...] = ()
    umask: str = "0077"
    haproxy: bool = False
    """Whether it starts HAProxy: PCRE compiles expressions (executable memory), and setpriv drops capabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUnit:
    """A unit that runs as long as the machine."""

    name: str
    what: str
    command: Sequence[str]
    rights: Rights
    healthy: str
    """URL that answers 2xx if the service is healthy; with `file:`, a file that it writes at least once a minute."""
    stop_s: int = 30
    memory: str = "2G"


def services(settings: ControlSettings, places: HostPaths, programs: Mapping[str, str]) -> tuple[ServiceUnit, ...]:
    """Return the services of this machine, in start order. `programs`: name of each of PROGRAMS -> path."""
    router = (_router(settings, places),) if settings.routes or settings.role is Role.ROUTER else ()
    if settings.role is Role.ROUTER:
        return router
    return (
        _feed(settings, places),
        _alertmanager(settings, places, programs),
        _prometheus(settings, places, programs),
        *router,
        _watch(settings, places),
        _console(settings, places),
    )


def render(settings: ControlSettings, places: HostPaths, programs: Mapping[str, str]) -> dict[str, str]:
    """Return all units: file name -> text."""
    made = {BOOT: _boot(places)}
    made |= {one.name: _unit(one, places) for one in services(settings, places, programs)}
    made |= {
        f"{RECOVER}.service": _recover(places),
        f"{RECOVER}.timer": _timer("completion of an interrupted upgrade", *_every(RECOVER_EVERY)),
    }
    if settings.role is Role.CONTROL:
        backup, digest = "backup of the ledger to the bucket", "daily cost digest"
        made |= {
            f"{BACKUP}.service": _task(places, settings, backup, "ledger backup"),
            f"{BACKUP}.timer": _timer(backup, *_every(BACKUP_EVERY)),
            f"{DIGEST}.service": _task(places, settings, digest, "report digest --daily --post --quiet"),
            f"{DIGEST}.timer": _timer(digest, f"OnCalendar={DIGEST_AT}"),
        }
    return made


def readers(variable: str) -> tuple[User, ...]:
    """Return the users whose services get a secret: for PostgreSQL those with the ledger, else only the watchdogs."""
    return (User.WATCH, User.CONSOLE) if variable.startswith("PG") else (User.WATCH,)


def timers(settings: ControlSettings) -> tuple[str, ...]:
    """Return the names of the timer units."""
    found = (RECOVER,) if settings.role is Role.ROUTER else (RECOVER, BACKUP, DIGEST)
    return tuple(f"{name}.timer" for name in found)


def _command(places: HostPaths) -> str:
    return str(places.current / "bin" / "gpufleet")


def _router(settings: ControlSettings, places: HostPaths) -> ServiceUnit:
    bind, metrics = f"{settings.address}:8080", f"{settings.address}:8404"
    state, alone = places.state(User.ROUTER), settings.role is Role.ROUTER
    command = (_command(places), "router", "run", "--state", str(state), "--bind", bind, "--metrics", metrics)
    return ServiceUnit(
        name="gpufleet-router.service",
        what="router (HAProxy and its controller)",
        # On a dedicated router machine, no other service reads the cloud for it.
        command=command if alone else (*command, "--feed", str(places.feed)),
        rights=Rights(
            user=User.ROUTER,
            writes=(state,),
            cloud=alone,
            variables=_of_cloud(settings) if alone else _of_feed(settings, places),
            haproxy=True,
        ),
        healthy=f"http://{near(settings)}:8404/metrics",
    )


def _feed(settings: ControlSettings, places: HostPaths) -> ServiceUnit:
    return ServiceUnit(
        name="gpufleet-feed.service",
        what="feed of cloud data for services without credentials",
        command=(_command(places), "host", "feed"),
        rights=Rights(
            user=User.WATCH, writes=(places.feed,), cloud=True, variables=_of_cloud(settings), umask="0022"
        ),
        healthy=f"file://{places.feed / 'instances.json'}",
    )


def _prometheus(settings: ControlSettings, places: HostPaths, programs: Mapping[str, str]) -> ServiceUnit:
    time, size = RETENTION
    return ServiceUnit(
        name="gpufleet-prometheus.service",
        what="Prometheus",
        command=(
            programs["prometheus"],
            f"--config.file={places.monitoring / 'prometheus.yml'}",
            f"--storage.tsdb.path={places.state(User.PROMETHEUS)}",
            f"--storage.tsdb.retention.time={time}",
            f"--storage.tsdb.retention.size={size}",
            # It has no authentication, and no other machine queries it.
            f"--web.listen-address={settings.inner}:9090",
        ),
        rights=Rights(user=User.PROMETHEUS, writes=(places.state(User.PROMETHEUS),)),
        healthy=f"http://{settings.inner}:9090/-/ready",
        stop_s=120,
        memory="75%",
    )


def _alertmanager(settings: ControlSettings, places: HostPaths, programs: Mapping[str, str]) -> ServiceUnit:
    return ServiceUnit(
        name="gpufleet-alertmanager.service",
        what="Alertmanager",
        command=(
            programs["prometheus-alertmanager"],
            f"--config.file={places.monitoring / 'alertmanager.yml'}",
            f"--storage.path={places.state(User.ALERTMANAGER)}",
            f"--web.listen-address={settings.inner}:9093",
            # At most one minute of silences is lost with a machine; the default is 15 minutes.
            "--data.maintenance-interval=1m",
            # A single Alertmanager needs no cluster.
            "--cluster.listen-address=",
        ),
        rights=Rights(user=User.ALERTMANAGER, writes=(places.state(User.ALERTMANAGER),)),
        healthy=f"http://{settings.inner}:9093/-/ready",
    )


def _watch(settings: ControlSettings, places: HostPaths) -> ServiceUnit:
    return ServiceUnit(
        name="gpufleet-watch.service",
        what="watchdogs, revisions and cost collection",
        command=(_command(places), "watch", "run", "--apply", "--listen", f"{settings.inner}:9470"),
        rights=_of_watchdogs(settings, places),
        healthy=f"http://{settings.inner}:9470/healthz",
        # Running passes may finish: --stop-limit is 150 s.
        stop_s=180,
    )


def _of_watchdogs(settings: ControlSettings, places: HostPaths) -> Rights:
    return Rights(
        user=User.WATCH,
        writes=(places.ledger.parent, places.state(User.WATCH)),
        groups=(LEDGER_GROUP,),
        umask=_SHARING,
        cloud=True,
        secrets=True,
        variables=_of_cloud(settings),
    )


def _console(settings: ControlSettings, places: HostPaths) -> ServiceUnit:
    listen = ("--listen", f"{settings.address}:9600", "--token-file", str(places.token_for(User.CONSOLE)))
    return ServiceUnit(
        name="gpufleet-console.service",
        what="console",
        command=(_command(places), "console", "--wait", "--feed", str(places.feed), *listen),
        rights=Rights(
            user=User.CONSOLE,
            # It writes messages and the effects of Keep to the ledger.
            writes=(places.ledger.parent, places.state(User.CONSOLE)),
            groups=(LEDGER_GROUP,),
            umask=_SHARING,
            secrets=True,
            variables=_of_feed(settings, places),
        ),
        healthy=f"http://{near(settings)}:9600/healthz",
    )


def _of_cloud(settings: ControlSettings) -> tuple[tuple[str, str], ...]:
    return tuple({"GPUFLEET_FLEET": settings.fleet, **METADATA_TIMEOUTS, **settings.environment}.items())


def _of_feed(settings: ControlSettings, places: HostPaths) -> tuple[tuple[str, str], ...]:
    own = {name: value for name, value in settings.environment.items() if name == "GPUFLEET_ENVIRONMENT"}
    return tuple({"GPUFLEET_FLEET": f"file://{places.feed / 'fleet.json'}", **own}.items())


def near(settings: ControlSettings) -> str:
    """Return the address at which this machine reaches services that listen on `address`."""
    return settings.inner if settings.address == "0.0.0.0" else settings.address  # noqa: S104 - compared, not bound


def _boot(places: HostPaths) -> str:
    # This unit starts the others: volume, ledger and configuration come first, also after a reboot.
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


def _unit(service: ServiceUnit, places: HostPaths) -> str:
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
{_confined(service.rights, places)}"""


def _task(places: HostPaths, settings: ControlSettings, what: str, arguments: str) -> str:
    """Return the unit of a one-shot command, for a timer."""
    return f"""\
# Written by gpufleet; changes made here are lost.
[Unit]
Description=gpu-fleet: {what}

[Service]
Type=oneshot
ExecStart={_command(places)} {arguments}
TimeoutStartSec=30min
{_confined(_of_watchdogs(settings, places), places)}"""


def _recover(places: HostPaths) -> str:
    # Runs as root because it stops and starts the other units. Usually there is nothing to do.
    return f"""\
# Written by gpufleet; changes made here are lost.
[Unit]
Description=gpu-fleet: complete an interrupted upgrade

[Service]
Type=oneshot
ExecStart={_command(places)} host recover
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


def _confined(rights: Rights, places: HostPaths) -> str:
    lines = [
        f"User={rights.user}",
        *((f"SupplementaryGroups={' '.join(rights.groups)}",) if rights.groups else ()),
        f"UMask={rights.umask}",
        *(f'Environment="{name}={value}"' for name, value in rights.variables),
        *((f"EnvironmentFile=-{places.secrets(rights.user)}",) if rights.secrets else ()),
        f"WorkingDirectory={rights.writes[0]}",
        f"ReadWritePaths={' '.join(map(str, rights.writes))}",
        f"InaccessiblePaths=-{places.host}",
        *(() if rights.cloud else (f"IPAddressDeny={' '.join(METADATA)}",)),
        # The watchdogs look up the holder of a lease in /proc, whichever user it runs as.
        *(() if rights.cloud else ("ProtectProc=invisible", "ProcSubset=pid")),
        *(() if rights.haproxy else ("MemoryDenyWriteExecute=yes",)),
    ]
    return "\n".join(lines) + _CONFINED + ("SystemCallFilter=capset\n" if rights.haproxy else "")


_CONFINED: Final = """
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
"""
