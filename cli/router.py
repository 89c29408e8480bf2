"""`gpufleet router`: one endpoint for a fleet's changing replicas."""

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from app import logs
from app.errors import AppError, ErrorCode
from app.feed import FedFleet
from app.fleets import one_url
from app.router_fleet import LiveFleet
from cli.options import FeedOption, FleetOption, JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from cli.signals import on_signals
from gpufleet.domain.durations import parse as parse_duration
from gpufleet.settings.document import FleetDocument, describe_problems
from serving.router import maps
from serving.router.controller import Controller, RouterBusyError, exclusive_state
from serving.router.policy import Canary, RouterPolicy
from serving.router.process import HaproxyError, check_config
from serving.router.render import render as render_config
from serving.router.settings import RouterPaths, RouterSettings
from serving.router.topology import from_document, replicas_of

app = typer.Typer(no_args_is_help=True, help="The router: one OpenAI-compatible endpoint for all models of a fleet.")

StateOption = Annotated[Path, typer.Option("--state", help="Folder of this router's files.")]
BindOption = Annotated[str, typer.Option("--bind", help="ADDRESS:PORT to serve clients on.")]
MetricsOption = Annotated[str, typer.Option("--metrics", help="ADDRESS:PORT to serve metrics on.")]
KeysOption = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        help="File of API keys, one a line: SHA256 NAME [class=] [per-10s=] [models=]. Requests "
        "without a key are refused only with require_key in router.json. Default: accept all clients.",
    ),
]
BufferOption = Annotated[
    int, typer.Option("--buffer", help="Bytes of a request body that are read to find the name of the model.")
]
CertificateOption = Annotated[
    str,
    typer.Option(
        "--certificate",
        help="PEM file with certificate and key, or `self` for a self-signed one. Default: plain HTTP.",
    ),
]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Number of HAProxy threads.")]

DEFAULT_STATE = Path(".local/control/router")


def register(parent: typer.Typer) -> None:
    """Add `router` to the command tree."""
    parent.add_typer(app, name="router")


@app.command()
def run(
    fleet: FleetOption = None,
    state: StateOption = DEFAULT_STATE,
    bind: BindOption = RouterSettings().bind,
    metrics: MetricsOption = RouterSettings().metrics_bind,
    keys: KeysOption = None,
    feed: FeedOption = None,
    certificate: CertificateOption = "",
    threads: ThreadsOption = 1,
    buffer: BufferOption = RouterSettings().buffer_bytes,
    every: Annotated[
        str,
        typer.Option(
            help="Longest time until HAProxy follows a change of the fleet. The fleet is read twice in this time."
        ),
    ] = "1s",
    grace: Annotated[
        str, typer.Option(help="Time for running requests after the router is asked to stop, for example 2s.")
    ] = "2s",
) -> None:
    """Run HAProxy, and update it when the fleet changes. It runs until SIGTERM or Ctrl-C.

    If the fleet document does not exist yet, the router waits for it.
    """
    logs.configure("router", service=True)
    paths = RouterPaths(state=state.resolve())
    settings = RouterSettings(
        bind=bind, metrics_bind=metrics, certificate=certificate, threads=threads, buffer_bytes=buffer
    )
    stop = on_signals()
    period_s, grace_s = _seconds(every) / 2, _seconds(grace)
    try:
        with exclusive_state(paths):
            url = one_url(fleet, "a router serves")
            sources = LiveFleet(url, keys, explains=False) if feed is None else FedFleet(url, feed, keys)
            controller = Controller(sources, settings, paths, logs.get())
            try:
                controller.start()
                while not stop.is_set():
                    began = time.monotonic()
                    controller.tick()
                    stop.wait(max(0.0, period_s - (time.monotonic() - began)))
            finally:
                controller.stop(grace_s)
                logs.get().info("process", outcome="stopped")
    except (RouterBusyError, OSError) as error:
        raise AppError(str(error)) from error


@app.command()
def render(
    fleet: FleetOption = None,
    bind: BindOption = RouterSettings().bind,
    metrics: MetricsOption = RouterSettings().metrics_bind,
    live: Annotated[bool, typer.Option(help="Read the running replicas from the cloud and include them.")] = False,
) -> None:
    """Print HAProxy's configuration for a fleet."""
    source = LiveFleet(one_url(fleet, "a router serves"))
    document, policy = _read(source)
    topology = from_document(document)
    instances = source.instances(document) if live else ()
    settings = RouterSettings(bind=bind, metrics_bind=metrics)
    sys.stdout.write(render_config(topology, policy, replicas_of(instances, topology), settings))


@app.command()
def check(fleet: FleetOption = None, state: StateOption = DEFAULT_STATE) -> None:
    """Render the configuration for a fleet and its router policy, and validate it with HAProxy."""
    source = LiveFleet(one_url(fleet, "a router serves"))
    document, policy = _read(source)
    topology = from_document(document)
    if unknown := policy.unknown_pools({pool.name for pool in topology.pools}):
        raise AppError(f"{source.policy_url}: names pools that the fleet does not have: {', '.join(unknown)}")
    paths = RouterPaths(state=(state / "check").resolve())
    (paths.state / maps.FOLDER).mkdir(parents=True, exist_ok=True)
    for name, entries in maps.build(topology, policy, (), maps.LiveValues()).items():
        (paths.state / name.file).write_text(maps.render_map(entries))
    paths.server_state.write_text("1\n")
    paths.config.write_text(render_config(topology, policy, (), RouterSettings()))
    try:
        check_config(paths.config)
    except HaproxyError as error:
        raise AppError(str(error)) from error
    STDERR.print(f"HAProxy accepts the configuration of {document.environment} ({len(topology.pools)} pools)")


@app.command()
def canary(
    model: Annotated[str, typer.Argument(help="Name of the model, as in clients' requests.")],
    percent: Annotated[
        float | None,
        typer.Argument(help="Share of the model's users in percent, 0 to 100. Default: show the current share."),
    ] = None,
    fleet: FleetOption = None,
    pool: Annotated[
        str | None, typer.Option(help="Pool of the canary. Required for a model without a canary.")
    ] = None,
    salt: Annotated[
        str | None, typer.Option(help="Any text; a different text selects different users. Default: keep it.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the change; all routers follow within seconds. Default: dry run.")
    ] = False,
) -> None:
    """Show or change the canary of a model: the share of its users that a second pool serves.

    When the share grows, users of the canary stay in it.
    """
    source = LiveFleet(one_url(fleet, "a router serves"))
    document, policy = _read(source)
    rules = policy.model(model)
    if percent is None:
        if salt is not None or pool is not None or apply:
            raise AppError("--salt, --pool and --apply need a percentage", ErrorCode.WRONG_USE)
        now = rules.canary
        STDOUT.print(
            f"{model}: {now.percent:g} % of users to {now.pool} (salt {now.salt})" if now else f"{model}: none"
        )
        return
    target = pool or (rules.canary.pool if rules.canary else None)
    if target is None:
        raise AppError(f"{model} does not have a canary yet: name its pool with --pool", ErrorCode.WRONG_USE)
    word = salt or (rules.canary.salt if rules.canary else f"{model.replace('/', '-')}-{datetime.now(UTC):%Y%m%d}")
    moved = _checked(policy, model, Canary, pool=target, percent=percent, salt=word)
    if unknown := moved.unknown_pools({entry.name for entry in document.pools}):
        names = ", ".join(entry.name for entry in document.pools)
        raise AppError(f"the fleet does not have the pool {', '.join(unknown)}; pools: {names}", ErrorCode.WRONG_USE)
    STDERR.print(f"{model}: {percent:g} % of users to {target}" + ("" if apply else " (dry run; --apply writes it)"))
    if not apply:
        raise typer.Exit(Exit.FOUND)
    try:
        source.write_policy(moved)
    except OSError as error:
        raise AppError(f"{source.policy_url}: {error}") from error


@app.command()
def status(
    state: StateOption = DEFAULT_STATE,
    as_json: JsonOption = False,
) -> None:
    """Show the pools, servers and problems of the running router. Exit code 3: it reports a problem."""
    path = RouterPaths(state=state.resolve()).status
    try:
        known: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise AppError(
            f"{path}: cannot read the status of the router ({error}); check that `gpufleet router run` is running"
        ) from error
    try:
        problems = list(known["problems"])
        if not as_json:
            _print_status(known)
    except (KeyError, TypeError, AttributeError) as error:
        raise AppError(f"{path}: is not the status of a router: delete it and start `gpufleet router run`") from error
    if as_json:
        print_json(known)
    raise typer.Exit(Exit.FOUND if problems else Exit.DONE)


def _checked(policy: RouterPolicy, model: str, kind: type[Canary], **values: Any) -> RouterPolicy:
    """The policy with another canary. Raises AppError for a value out of range."""
    try:
        models = policy.models | {model: policy.model(model).model_copy(update={"canary": kind(**values)})}
        return RouterPolicy.model_validate(
            policy.model_dump() | {"models": {k: v.model_dump() for k, v in models.items()}}
        )
    except ValidationError as error:
        raise AppError(
            f"the canary is not valid: {'; '.join(describe_problems(error, RouterPolicy))}", ErrorCode.WRONG_USE
        ) from error


def _read(source: LiveFleet) -> tuple[FleetDocument, RouterPolicy]:
    try:
        return source.document(), source.policy()
    except (OSError, ValueError) as error:
        raise AppError(str(error)) from error


def _seconds(text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error


def _print_status(known: dict[str, Any]) -> None:
    table = Table("pool", "model", "instance", "address", "status", "agent", "now", "requests", box=None)
    for pool in known["pools"]:
        servers: list[Mapping[str, object]] = pool["servers"] or [{}]
        for server in servers:
            cells = [server.get(k, "-") for k in ("instance", "address", "status", "agent", "sessions", "requests")]
            # routers of earlier releases list no adapters
            models = ", ".join([pool["model"], *pool.get("adapters", ())])
            table.add_row(pool["name"], models, *(str(cell) for cell in cells))
    STDOUT.print(f"{known['environment'] or 'no fleet yet'} at {known['bind']}, {known['at']}")
    STDOUT.print(table)
    for pool, number in known["held"].items():
        if number:
            STDOUT.print(f"{pool}: requests that wait for its first replica: {number}")
    for problem in known["problems"]:
        STDOUT.print(f"! {problem}", markup=False)
