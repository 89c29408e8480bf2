"""`gpufleet monitoring render`: writes the files that Prometheus, Alertmanager and Grafana of an environment read."""

from pathlib import Path
from typing import Annotated

import typer

from app import logs, monitoring_files, targets
from app.errors import AppError, ErrorCode
from app.fleets import load, one_url
from app.monitoring_files import Addresses
from cli.addresses import host_and_port
from cli.monitoring_check import check
from cli.options import FleetOption
from cli.output import STDERR
from cli.signals import on_signals
from gpufleet.domain import durations
from hosts.monitoring.prometheus import TARGETS_FILE

ConsoleOption = Annotated[str, typer.Option("--console", help="HOST:PORT where `gpufleet console` listens.")]
DaemonOption = Annotated[str, typer.Option("--daemon", help="HOST:PORT where `gpufleet watch run` listens.")]
AlertmanagerOption = Annotated[str, typer.Option("--alertmanager", help="HOST:PORT where Alertmanager listens.")]
RouterOption = Annotated[
    list[str] | None,
    typer.Option("--router", help="HOST:PORT of a router's metrics; repeatable. Default: 127.0.0.1:8404."),
]
TokenOption = Annotated[
    Path,
    typer.Option("--token-file", help="Path of the file with the console's access token on Alertmanager's machine."),
]
ObjectiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--p99",
        metavar="POOL=SPAN",
        help="Objective for the 99th percentile of a pool's latency, for example chat=10s; repeatable.",
    ),
]


TargetsOption = Annotated[
    str,
    typer.Option(
        "--targets-file",
        help="File that `gpufleet monitoring targets` writes: a path, or a name in the folder of prometheus.yml.",
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Configuration of Prometheus, Alertmanager and Grafana.", no_args_is_help=True)
    group.callback()(_group)
    group.command("render")(render)
    group.command("targets")(write_targets)
    group.command("check")(check)
    app.add_typer(group, name="monitoring")


def _group() -> None:
    """Keep `monitoring` a group."""


def render(
    out: Annotated[Path, typer.Option("--out", help="Folder to write the files to.")],
    fleet: FleetOption = None,
    console: ConsoleOption = "127.0.0.1:9600",
    daemon: DaemonOption = "127.0.0.1:9470",
    manager: AlertmanagerOption = "127.0.0.1:9093",
    router: RouterOption = None,
    find_routers: Annotated[
        bool,
        typer.Option("--find-routers", help="Routers run on separate machines: find them in the targets file."),
    ] = False,
    token_file: TokenOption = Path("/etc/gpu-fleet/console.token"),
    targets_file: TargetsOption = TARGETS_FILE,
    p99: ObjectiveOption = None,
) -> None:
    """Write prometheus.yml, rules.yml, alertmanager.yml and Grafana's files for one fleet."""
    documents = load(fleet)
    if len(documents) != 1:
        raise AppError(
            f"a Prometheus monitors one fleet: expected one --fleet, got {len(documents)}", ErrorCode.WRONG_USE
        )
    if router and find_routers:
        raise AppError("--router and --find-routers: give one of them", ErrorCode.WRONG_USE)
    for option, text in (("--console", console), ("--daemon", daemon), ("--alertmanager", manager)):
        host_and_port(option, text, "127.0.0.1:9090")
    for text in router or ():
        host_and_port("--router", text, "127.0.0.1:8404")
    addresses = Addresses(
        console=console,
        daemon=daemon,
        alertmanager=manager,
        routers=() if find_routers else router or ("127.0.0.1:8404",),
        token_file=token_file,
        targets_file=targets_file,
    )
    monitoring_files.write(documents[0], out, addresses, p99 or ())
    STDERR.print(f"{out}: Prometheus, Alertmanager and Grafana of {documents[0].environment}", highlight=False)


def write_targets(
    out: Annotated[
        Path, typer.Option("--out", help="File to write: `targets.json` in the folder of prometheus.yml.")
    ],
    fleet: FleetOption = None,
    every: Annotated[str, typer.Option(help="Interval between two reads of the cloud.")] = "5s",
) -> None:
    """Keep the file with Prometheus's targets up to date, for a Prometheus that you run. It runs until SIGTERM.

    On a control host a systemd unit does the same.
    """
    try:
        every_s = durations.parse(every).total_seconds()
    except ValueError as error:
        raise AppError(f"--every: {error}", ErrorCode.WRONG_USE) from error
    logs.configure("targets", service=True)
    targets.keep_written(one_url(fleet, "a Prometheus watches"), out, every_s, on_signals(), logs.get())
