"""The systemd units of a control host, as text. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosts.control.paths import LEDGER_GROUP, Places, User
from hosts.control.settings import ControlSettings, Role

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


_SHARING: Final = "0007"
"""Of those who write the ledger: its files are their group's too."""
PATIENCE: Final = {"AWS_METADATA_SERVICE_TIMEOUT": "5", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "3"}
"""How long a machine's credentials are waited for; AWS' own second is over while a machine that boots is busy."""
METADATA: Final = ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254")
"""Where both clouds give a machine's credentials to whoever asks from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """As whom a unit runs, and what it may."""

    user: User
    writes: tuple[Path, ...]
    """Folders; the first is where it works. All else is read-only."""
    groups: tuple[str, ...] = ()
    cloud: bool = False
    """Whether it reaches instance metadata, and so has the machine's role."""
    secrets: bool = False
    """Whether its user's secrets are among its variables."""
    variables: tuple[tuple[str, str], ...] = ()
    umask: str = "0077"
    haproxy: bool = False
    """Whether it starts HAProxy, whose expressions PCRE compiles, by setpriv, which gives capabilities up anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUnit:
    """One unit that runs for as long as the machine does."""

    name: str
    what: str
    command: Sequence[str]
    rights: Rights
    healthy: str
    """URL that answers 2xx when it is well; `file:`: of a file that it has written within a minute."""
    stop_s: int = 30
    memory: str = "2G"


def services(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> tuple[ServiceUnit, ...]:
    """What this machine runs, in the order of their starts. `programs`: name to path of PROGRAMS."""
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


def render(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> dict[str, str]:
    """Every unit: file name and text."""
    made = {BOOT: _boot(places)}
    made |= {one.name: _unit(one, places) for one in services(settings, places, programs)}
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


def readers(variable: str) -> tuple[User, ...]:
    """Whose services get a secret of that name: PostgreSQL's those that open the ledger, all else the watchdogs."""
    return (User.WATCH, User.CONSOLE) if variable.startswith("PG") else (User.WATCH,)


def timers(settings: ControlSettings) -> tuple[str, ...]:
    """Units that start others from time to time."""
    found = (SETTLE,) if settings.role is Role.ROUTER else (SETTLE, BACKUP, DIGEST)
    return tuple(f"{name}.timer" for name in found)


def _command(places: Places) -> str:
    return str(places.current / "bin" / "gpufleet")


def _router(settings: ControlSettings, places: Places) -> ServiceUnit:
    bind, metrics = f"{settings.address}:8080", f"{settings.address}:8404"
    state, alone = places.state(User.ROUTER), settings.role is Role.ROUTER
    command = (_command(places), "router", "run", "--state", str(state), "--bind", bind, "--metrics", metrics)
    return ServiceUnit(
        name="gpufleet-router.service",
        what="router (HAProxy and its controller)",
        # a machine of its own has nobody who reads the cloud for it
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


def _feed(settings: ControlSettings, places: Places) -> ServiceUnit:
    return ServiceUnit(
        name="gpufleet-feed.service",
        what="what the cloud says, for services without credentials",
        command=(_command(places), "host", "feed"),
        rights=Rights(
            user=User.WATCH, writes=(places.feed,), cloud=True, variables=_of_cloud(settings), umask="0022"
        ),
        healthy=f"file://{places.feed / 'instances.json'}",
    )


def _prometheus(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> ServiceUnit:
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
            # it has no login, and nothing outside of this machine asks it
            f"--web.listen-address={settings.inner}:9090",
        ),
        rights=Rights(user=User.PROMETHEUS, writes=(places.state(User.PROMETHEUS),)),
        healthy=f"http://{settings.inner}:9090/-/ready",
        stop_s=120,
        memory="75%",
    )


def _alertmanager(settings: ControlSettings, places: Places, programs: Mapping[str, str]) -> ServiceUnit:
    return ServiceUnit(
        name="gpufleet-alertmanager.service",
        what="Alertmanager",
        command=(
            programs["prometheus-alertmanager"],
            f"--config.file={places.monitoring / 'alertmanager.yml'}",
            f"--storage.path={places.state(User.ALERTMANAGER)}",
            f"--web.listen-address={settings.inner}:9093",
            # a machine that is lost takes no more than a minute of silences along; the default is 15
            "--data.maintenance-interval=1m",
            # one alone: nobody to gossip with
            "--cluster.listen-address=",
        ),
        rights=Rights(user=User.ALERTMANAGER, writes=(places.state(User.ALERTMANAGER),)),
        healthy=f"http://{settings.inner}:9093/-/ready",
    )


def _watch(settings: ControlSettings, places: Places) -> ServiceUnit:
    return ServiceUnit(
        name="gpufleet-watch.service",
        what="watchdogs (idle, spot, scale, cost)",
        command=(_command(places), "watch", "run", "--apply", "--listen", f"{settings.inner}:9470"),
        rights=_of_watchdogs(settings, places),
        healthy=f"http://{settings.inner}:9470/healthz",
        # passes may finish: --stop-limit is 150 s
        stop_s=180,
    )


def _of_watchdogs(settings: ControlSettings, places: Places) -> Rights:
    return Rights(
        user=User.WATCH,
        writes=(places.ledger.parent, places.state(User.WATCH)),
        groups=(LEDGER_GROUP,),
        umask=_SHARING,
        cloud=True,
        secrets=True,
        variables=_of_cloud(settings),
    )


def _console(settings: ControlSettings, places: Places) -> ServiceUnit:
    listen = ("--listen", f"{settings.address}:9600", "--token-file", str(places.token_for(User.CONSOLE)))
    return ServiceUnit(
        name="gpufleet-console.service",
        what="console",
        command=(_command(places), "console", "--wait", "--feed", str(places.feed), *listen),
        rights=Rights(
            user=User.CONSOLE,
            # it puts messages and Keep into the ledger
            writes=(places.ledger.parent, places.state(User.CONSOLE)),
            groups=(LEDGER_GROUP,),
            umask=_SHARING,
            secrets=True,
            variables=_of_feed(settings, places),
        ),
        healthy=f"http://{near(settings)}:9600/healthz",
    )


def _of_cloud(settings: ControlSettings) -> tuple[tuple[str, str], ...]:
    return tuple({"GPUFLEET_FLEET": settings.fleet, **PATIENCE, **settings.environment}.items())


def _of_feed(settings: ControlSettings, places: Places) -> tuple[tuple[str, str], ...]:
    own = {name: value for name, value in settings.environment.items() if name == "GPUFLEET_ENVIRONMENT"}
    return tuple({"GPUFLEET_FLEET": f"file://{places.feed / 'fleet.json'}", **own}.items())


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


def _unit(service: ServiceUnit, places: Places) -> str:
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
{_confined(_of_watchdogs(settings, places), places)}"""


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


def _confined(rights: Rights, places: Places) -> str:
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
        # a holder of a lease is looked up in /proc, whoever it belongs to
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
