"""`gpufleet router`: one endpoint over replicas that come and go."""

import json
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.fleets import FleetOption, load, load_one
from cli.output import STDERR, Exit, UserError, print_json
from fleet import tags
from fleet.document import FleetDocument
from fleet.durations import parse as parse_duration
from fleet.model import CapacityType, Cloud, Instance, InstanceState
from serving.router.controller import BusyError, Controller, only_one
from serving.router.process import HaproxyError, check_config
from serving.router.render import render as render_config
from serving.router.render import render_models
from serving.router.settings import RouterPaths, RouterSettings
from serving.router.topology import from_document, replicas_of

app = typer.Typer(no_args_is_help=True, help="One OpenAI-compatible endpoint for all models of a fleet.")

StateOption = Annotated[Path, typer.Option("--state", help="Folder of this router's files.")]
BindOption = Annotated[str, typer.Option("--bind", help="Address and port for clients.")]
MetricsOption = Annotated[str, typer.Option("--metrics", help="Address and port of HAProxy's metrics.")]

DEFAULT_STATE = Path(".local/control/router")


def register(parent: typer.Typer) -> None:
    """Add `router` to the command tree."""
    parent.add_typer(app, name="router")


@app.command()
def run(
    fleet: FleetOption = None,
    state: StateOption = DEFAULT_STATE,
    bind: BindOption = "127.0.0.1:8080",
    metrics: MetricsOption = "127.0.0.1:8404",
    every: Annotated[str, typer.Option(help="Time between two looks at the inventory.")] = "1s",
    grace: Annotated[str, typer.Option(help="Time for running requests when it is stopped.")] = "2s",
) -> None:
    """Run HAProxy and keep it in line with the fleet. Waits for a fleet document that is not there yet."""
    paths = RouterPaths(state=state.resolve())
    settings = RouterSettings(bind=bind, metrics_bind=metrics)
    stop = threading.Event()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop_signal, lambda *_: stop.set())
    pause_s, grace_s = _seconds(every), _seconds(grace)
    try:
        with only_one(paths):
            controller = Controller(fleet=LiveFleet(_one_url(fleet)), settings=settings, paths=paths, say=_say)
            controller.start()
            try:
                while not stop.is_set():
                    controller.tick()
                    stop.wait(pause_s)
            finally:
                controller.stop(grace_s)
    except (BusyError, HaproxyError) as error:
        raise UserError(str(error)) from error


@app.command()
def render(
    fleet: FleetOption = None,
    state: StateOption = DEFAULT_STATE,
    bind: BindOption = "127.0.0.1:8080",
    metrics: MetricsOption = "127.0.0.1:8404",
    live: Annotated[bool, typer.Option(help="Ask the cloud for the replicas and write them, too.")] = False,
) -> None:
    """Print HAProxy's configuration for a fleet."""
    sys.stdout.write(_rendered(fleet, state, RouterSettings(bind=bind, metrics_bind=metrics), live))


@app.command()
def check(fleet: FleetOption = None, state: StateOption = DEFAULT_STATE) -> None:
    """Render the configuration of a fleet and let HAProxy judge it."""
    paths = RouterPaths(state=(state / "check").resolve())
    paths.state.mkdir(parents=True, exist_ok=True)
    document = _one(fleet)
    topology = from_document(document)
    paths.models_map.write_text(render_models(topology))
    paths.config.write_text(render_config(topology, (), RouterSettings(), paths))
    try:
        check_config(paths.config)
    except HaproxyError as error:
        raise UserError(str(error)) from error
    STDERR.print(f"HAProxy accepts the configuration of {document.environment} ({len(topology.pools)} pools)")


@app.command()
def status(
    state: StateOption = DEFAULT_STATE,
    as_json: Annotated[bool, typer.Option("--json", help="JSON to stdout.")] = False,
) -> None:
    """What the running router knows: pools, servers, problems."""
    path = RouterPaths(state=state.resolve()).status
    try:
        known: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no status of a router ({error}); is `gpufleet router run` running?") from error
    if as_json:
        print_json(known)
    else:
        _print_status(known)
    raise typer.Exit(Exit.FOUND if known["problems"] else Exit.DONE)


class LiveFleet:
    """The fleet document by its URL and the instances by the cloud's API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def document(self) -> FleetDocument:
        """Raises OSError when it cannot be read or used."""
        try:
            return load_one(self._url)
        except UserError as error:
            raise OSError(str(error)) from error

    def instances(self, document: FleetDocument) -> Sequence[Instance]:
        """Raises OSError when the inventory is not whole."""
        if document.cloud is not Cloud.AWS:
            raise OSError(f"the inventory of {document.cloud} is not there yet")
        return aws_instances(document)


def aws_instances(document: FleetDocument) -> tuple[Instance, ...]:
    """The environment's instances from EC2. Raises OSError with the cloud's words."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    filters = [{"Name": f"tag:{tags.ENVIRONMENT}", "Values": [document.environment]}]
    try:
        pages = boto3.client("ec2", region_name=document.region).get_paginator("describe_instances")
        found = [
            _instance(raw, document)
            for page in pages.paginate(Filters=filters)
            for reservation in page["Reservations"]
            for raw in reservation["Instances"]
        ]
    except (BotoCoreError, ClientError) as error:
        raise OSError(f"EC2 could not be asked: {error}") from error
    return tuple(found)


def _instance(raw: Any, document: FleetDocument) -> Instance:
    known = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", [])}
    states = {"pending": InstanceState.PENDING, "running": InstanceState.RUNNING, "stopped": InstanceState.STOPPED}
    return Instance(
        id=raw["InstanceId"],
        cloud=document.cloud,
        region=document.region,
        zone=raw["Placement"]["AvailabilityZone"],
        machine_type=raw["InstanceType"],
        capacity_type=CapacityType(known.get(tags.CAPACITY_TYPE, CapacityType.ON_DEMAND)),
        state=states.get(raw["State"]["Name"], InstanceState.STOPPING),
        launched_at=raw["LaunchTime"],
        environment=known.get(tags.ENVIRONMENT),
        pool=known.get(tags.POOL),
        private_address=raw.get("PrivateIpAddress"),
        tags=known,
    )


def _rendered(fleet: list[str] | None, state: Path, settings: RouterSettings, live: bool) -> str:
    document = _one(fleet)
    topology = from_document(document)
    instances = LiveFleet("").instances(document) if live else ()
    return render_config(topology, replicas_of(instances, topology), settings, RouterPaths(state=state.resolve()))


def _one_url(fleet: list[str] | None) -> str:
    import os

    urls = list(fleet or []) or os.environ.get("GPUFLEET_FLEET", "").split()
    if len(urls) != 1:
        raise UserError(
            f"a router serves one fleet, {len(urls)} are named: give --fleet URL or set GPUFLEET_FLEET",
            Exit.WRONG_USE,
        )
    return urls[0]


def _one(fleet: list[str] | None) -> FleetDocument:
    _one_url(fleet)
    return load(fleet)[0]


def _seconds(text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise UserError(str(error), Exit.WRONG_USE) from error


def _say(line: str) -> None:
    STDERR.print(f"{datetime.now(UTC):%H:%M:%S} router: {line}", highlight=False, markup=False, soft_wrap=True)


def _print_status(known: dict[str, Any]) -> None:
    from rich.table import Table

    from cli.output import STDOUT

    table = Table("pool", "model", "instance", "address", "status", "agent", "now", "requests", box=None)
    for pool in known["pools"]:
        for server in pool["servers"] or [{}]:
            cells = [server.get(k, "-") for k in ("instance", "address", "status", "agent", "sessions", "requests")]
            table.add_row(pool["name"], pool["model"], *(str(cell) for cell in cells))
    STDOUT.print(f"{known['environment'] or 'no fleet yet'} at {known['bind']}, {known['at']}")
    STDOUT.print(table)
    for problem in known["problems"]:
        STDOUT.print(f"! {problem}", markup=False)
