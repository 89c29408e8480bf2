"""`gpufleet slack`: receives clicks on *Keep* buttons over Socket Mode or at a signed endpoint; resends refused
messages.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from app import delivery, ledgers, logs
from app.errors import AppError
from app.fleets import load
from app.wiring import inventory_of, open_engine
from cli.addresses import host_and_port
from cli.options import FleetOption
from cli.output import STDOUT
from cli.signals import on_signals
from gpufleet.ledger.outbox import retry_refused
from gpufleet.notify.clicks import ClickHandler, FleetButtons
from gpufleet.settings.document import FleetDocument

APP_TOKEN: Final = "GPUFLEET_SLACK_APP_TOKEN"  # noqa: S105 - the variable's name
SECRET: Final = "GPUFLEET_SLACK_SIGNING_SECRET"  # noqa: S105 - the variable's name


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Slack: receive clicks on Keep buttons, and resend refused messages.", no_args_is_help=True
    )
    group.command("listen")(listen)
    group.command("retry")(retry)
    app.add_typer(group, name="slack")


def listen(
    fleet: FleetOption = None,
    http: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help=f"Listen here for POST /slack/actions, signed with ${SECRET}. Default: use Socket Mode.",
        ),
    ] = "",
) -> None:
    """Receive clicks on Slack's Keep buttons, until SIGTERM.

    Socket Mode opens no port. `gpufleet watch run` also receives clicks, if an app token is set.
    """
    logs.configure("slack", service=True)
    documents = load(fleet)
    stop = on_signals()
    close = _serve_http(documents, http, os.environ) if http else _open_socket(documents, os.environ)
    stop.wait()
    close()


def retry(fleet: FleetOption = None) -> None:
    """Queue again the messages that Slack refused; the next pass sends them.

    Fix the cause first: the channel, the token or its scope.
    """
    for document in load(fleet):
        with ledgers.ledger_errors(document):
            count = retry_refused(open_engine(document), datetime.now(UTC))
        what = f"{count} refused message{'s' * (count != 1)} queued again"
        STDOUT.print(f"{document.environment}: {what}", highlight=False, markup=False)


def listen_if_set(documents: Sequence[FleetDocument]) -> Callable[[], None]:
    """Start Socket Mode in the daemon if an app token is set. Returns a function that closes it.

    An error of Slack is logged and does not stop the daemon.
    """
    if not os.environ.get(APP_TOKEN):
        return lambda: None
    try:
        return _open_socket(documents, os.environ)
    except AppError as error:
        logs.get().error("click_listener", outcome="failed", error=error)
        return lambda: None


def click_handler_of(documents: Sequence[FleetDocument]) -> ClickHandler:
    """The handler of button clicks of these fleets."""
    fleets = {
        ledgers.ledger_name(document): FleetButtons(
            name=ledgers.ledger_name(document),
            environment=document.environment,
            channel=document.notify.slack_channel,
            users=frozenset(document.notify.keep_users),
            engine=open_engine(document),
            inventory=inventory_of(document),
        )
        for document in documents
        if document.notify is not None and document.notify.keep_users
    }
    if not fleets:
        raise AppError("no user may click Keep: list Slack user ids in the settings (notify.keep_users: [U0123ABCD])")
    return ClickHandler(fleets=fleets, now=lambda: datetime.now(UTC), deliver=_deliver, log=logs.get())


def _deliver(fleet: FleetButtons) -> None:
    try:
        done = delivery.send(fleet.engine, wait=timedelta(0))
        logs.get().info("delivery", fleet=fleet.name, **delivery.log_fields(done))
    except AppError as error:
        logs.get().error("delivery", fleet=fleet.name, outcome="failed", error=error)


def _open_socket(documents: Sequence[FleetDocument], environ: Mapping[str, str]) -> Callable[[], None]:
    from gpufleet.notify.endpoints import SocketModeListener  # Slack's client is slow to import
    from gpufleet.notify.slack import SlackSettingsError, api_url

    token = environ.get(APP_TOKEN, "")
    if not token.startswith("xapp-"):
        problem = "is not an app token (xapp-…): create one" if token else "is not set: create an app token"
        raise AppError(f"{APP_TOKEN} {problem} with the scope connections:write")
    clicks = click_handler_of(documents)
    try:
        listener = SocketModeListener(token, clicks, api_url(environ))
    except SlackSettingsError as error:
        raise AppError(str(error)) from error
    try:
        listener.open()
    except OSError as error:
        listener.close()
        raise AppError(str(error)) from error
    logs.get().info("click_listener", outcome="started", detail="clicks arrive over Socket Mode")

    def close() -> None:
        listener.close()
        clicks.close()

    return close


def _serve_http(documents: Sequence[FleetDocument], listen: str, environ: Mapping[str, str]) -> Callable[[], None]:
    from gpufleet.notify.endpoints import PATH, serve_http

    host, port = host_and_port("--http", listen, "127.0.0.1:9650")
    secret = environ.get(SECRET, "")
    if len(secret) < 16:
        raise AppError(f"{SECRET} is not set: it is the Signing Secret of the Slack app (Basic Information)")
    clicks = click_handler_of(documents)
    try:
        server = serve_http(host, port, secret, clicks, lambda: datetime.now(UTC))
    except OSError as error:
        raise AppError(f"--http {listen}: {error.strerror or error}") from error
    logs.get().info("click_listener", outcome="started", listen=f"{host}:{server.port}", path=PATH)

    def close() -> None:
        server.stop()
        clicks.close()

    return close
