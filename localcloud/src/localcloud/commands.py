"""`gpufleet local`: the embedded cloud on this machine."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from app.errors import AppError, ErrorCode
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from gpufleet.domain.durations import parse as parse_duration
from gpufleet.domain.model import Cloud
from gpufleet.settings.document.alerts import AlertSettings
from gpufleet.toolchain.folders import PULUMI_VERSION, Folders, find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi
from localcloud.lifecycle import cloud_client, parts, processes
from localcloud.lifecycle import down as take_down
from localcloud.lifecycle import up as bring_up
from localcloud.lifecycle.environment import enter, exports, local_environment
from localcloud.lifecycle.waiting import LocalError

T = TypeVar("T")
app = typer.Typer(
    no_args_is_help=True, help="The embedded cloud: AWS APIs, machines, Prometheus and HAProxy on loopback."
)

PoolOption = Annotated[str | None, typer.Option("--pool", help="Name of the pool.")]
InstanceOption = Annotated[str | None, typer.Option("--instance", help="Id of one instance.")]


def register(parent: typer.Typer) -> None:
    """Add `local` to the command tree."""
    parent.add_typer(app, name="local")


@app.command()
def up(
    cloud: Annotated[
        Cloud, typer.Option("--cloud", help="The cloud whose stack, router, Prometheus and console are set up.")
    ] = Cloud.AWS,
) -> None:
    """Start the embedded cloud with a model, the stack's provider, Prometheus, Alertmanager, router and console."""
    folders = find_folders(os.environ)
    pulumi = _pulumi(folders)
    environment = local_environment(folders, pulumi, os.environ, cloud)
    enter(environment)
    _guarded(
        lambda: bring_up.bring_up(
            folders,
            pulumi,
            environment,
            which=cloud,
            config=_config(folders, cloud),
            announce=lambda line: STDERR.print(f"  {line}", highlight=False, markup=False, soft_wrap=True),
        )
    )
    STDERR.print('ready. In a shell: eval "$(gpufleet local env)", then pulumi up, gpufleet watch …', highlight=False)


@app.command()
def down(as_json: JsonOption = False) -> None:
    """Stop all processes of this clone and print what was stopped and what is left."""
    folders = find_folders(os.environ)

    def end() -> take_down.Swept:
        with bring_up.only_one(folders):
            return take_down.clear_out(folders)

    swept = _guarded(end)
    counts = {
        "processes_ended": swept.processes,
        "processes_killed": swept.killed,
        "processes_left": swept.processes_left,
        "listeners_left": swept.listeners_left,
        "mounts_left": swept.mounts_left,
    }
    if as_json:
        print_json(counts)
    else:
        ended = f"{swept.processes} processes ended" + (f" ({swept.killed} had to be killed)" if swept.killed else "")
        STDOUT.print(
            f"{ended}; left: {swept.processes_left} processes, {swept.listeners_left} listening sockets, "
            f"{swept.mounts_left} mounts",
            highlight=False,
        )
    if not swept.clean:
        raise AppError(
            f"{folders.local} still has processes, listening sockets or mounts: check `ps -ef`, then run"
            " `gpufleet local down` again"
        )


@app.command()
def status(as_json: JsonOption = False) -> None:
    """Show the parts that run and the instances of the embedded cloud. Exit code 3 when a part is down."""
    folders = find_folders(os.environ)
    known = _guarded(lambda: [_part_status(part, folders) for part in _parts(folders)])
    running = known[0]["up"]
    state: dict[str, Any] = _guarded(lambda: cloud_client.ask("state")) if running else {}
    if as_json:
        print_json({"local": str(folders.local), "parts": known, "cloud": state})
    else:
        _print_status(known, state)
    raise typer.Exit(Exit.DONE if all(part["up"] for part in known) else Exit.FOUND)


@app.command()
def env() -> None:
    """Print the shell variables that select the embedded cloud: eval "$(gpufleet local env)"."""
    folders = find_folders(os.environ)
    sys.stdout.write(exports(folders, _pulumi(folders), os.environ))


@app.command()
def preempt(
    pool: PoolOption = None,
    instance: InstanceOption = None,
    notice: Annotated[str, typer.Option(help="Time from the notice to the end of the instance (AWS: 2m).")] = "10s",
    capacity: Annotated[
        bool,
        typer.Option("--keep-capacity/--take-capacity", help="Whether the pool can get spot again at once."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Preempt one spot instance as the cloud does: a notice, then the end. No spot capacity until `restore`."""
    seconds = _duration(notice).total_seconds()
    body: dict[str, Any] = {"notice_s": seconds, "capacity_lost": not capacity}
    taken = _guarded(lambda: cloud_client.ask("preempt", body | _selection(pool, instance)))
    _print(as_json, taken, f"{taken['id']} ({taken['type']}, {taken['zone']}) is preempted at {taken['notice']}")


@app.command()
def restore(as_json: JsonOption = False) -> None:
    """Restore spot capacity everywhere."""
    found = _guarded(lambda: cloud_client.ask("restore", {}))
    _print(as_json, found, "capacity restored")


@app.command()
def fault(
    what: Annotated[
        str, typer.Option("--what", help="exporter, engine-hang, engine-crash, agent or metadata.")
    ] = "exporter",
    pool: PoolOption = None,
    instance: InstanceOption = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all faults, or those of --instance.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a fault to one instance, or clear faults."""
    if clear:
        found = _guarded(lambda: cloud_client.ask("fault", {"instance": instance}, method="DELETE"))
        _print(as_json, found, "cleared")
        return
    added = _guarded(lambda: cloud_client.ask("fault", {"what": what} | _selection(pool, instance)))
    _print(
        as_json, added, f"{added['instance']}: fault {added['what']} is active until `gpufleet local fault --clear`"
    )


def _selection(pool: str | None, instance: str | None) -> dict[str, str]:
    if pool is None and instance is None:
        raise AppError("no instance selected: add --pool NAME or --instance ID", ErrorCode.WRONG_USE)
    return {name: value for name, value in (("pool", pool), ("instance", instance)) if value is not None}


def _print(as_json: bool, value: object, line: str) -> None:
    if as_json:
        print_json(value)
    else:
        STDOUT.print(line, highlight=False, markup=False, soft_wrap=True)


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise AppError(f"--notice: {error}", ErrorCode.WRONG_USE) from error


def _pulumi(folders: Folders) -> Path:
    found = find_pulumi(folders)
    if found is None:
        raise AppError(f"the Pulumi CLI {PULUMI_VERSION} is neither on PATH nor in {folders.cache}: run `make setup`")
    return found


def _config(folders: Folders, cloud: Cloud) -> dict[str, str]:
    from hosts.monitoring import alertmanager, alerts
    from hosts.monitoring.rules import RuleSettings

    webhook = alertmanager.AlertmanagerSettings(
        webhook=f"http://{parts.CONSOLE_ADDRESS}/alerts",
        token_file=str(parts.console_token(folders)),
        group_wait=timedelta(seconds=5),
        group_interval=timedelta(seconds=30),
    )
    return {
        "prometheus/prometheus.yml": _prometheus_config(cloud),
        f"prometheus/{parts.RULES}": alerts.render(AlertSettings(), RuleSettings()),
        "alertmanager/alertmanager.yml": alertmanager.render(webhook),
    }


def _prometheus_config(cloud: Cloud) -> str:
    from hosts.monitoring import prometheus
    from serving.engines import CONTRACTS

    return prometheus.render(
        prometheus.PrometheusSettings(
            cloud=cloud,
            environment="local",
            scrape_interval=timedelta(seconds=1),
            haproxy=(f"{parts.CONTROL_HOST}:8404",),
            watchdogs=(parts.CONSOLE_ADDRESS,),
            alertmanagers=(parts.ALERTMANAGER_ADDRESS,),
            rule_files=(parts.RULES,),
            engines=tuple(kind for kind, contract in CONTRACTS.items() if contract.launch is not None),
        )
    )


def _parts(folders: Folders) -> list[parts.Part]:
    return [parts.cloud(folders), *parts.control(folders)]


def _part_status(part: parts.Part, folders: Folders) -> dict[str, Any]:
    record = processes.load(folders.run, part.name)
    return {
        "name": part.name,
        "what": part.what,
        "up": parts.is_up(part, folders),
        "pid": record.pid if record is not None and record.alive else None,
        "listens": [f"{address}:{port}" for address, port in part.listens],
        "log": str(folders.logs / f"{part.name}.log"),
    }


def _print_status(known: list[dict[str, Any]], state: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("part", "up", "pid", "listens", box=None)
    for part in known:
        table.add_row(
            part["name"], "yes" if part["up"] else "no", str(part["pid"] or "-"), ", ".join(part["listens"])
        )
    STDOUT.print(table)
    if instances := state.get("instances"):
        table = Table(
            "instance", "pool", "bought as", "zone", "type", "address", "state", "notice", "faults", box=None
        )
        for instance in instances:
            values = [instance[k] for k in ("id", "pool", "kind", "zone", "type", "address", "state", "notice")]
            table.add_row(*(str(value or "-") for value in values), ", ".join(instance["faults"]) or "-")
        STDOUT.print(table)


def _guarded(do: Callable[[], T]) -> T:
    try:
        return do()
    except LocalError as error:
        raise AppError(str(error)) from error
