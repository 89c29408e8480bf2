"""`gpufleet console`: the web page of running fleets, with the ledger's metrics and Alertmanager's webhook."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from app import logs
from app.console_data import LiveConsoleData
from app.errors import AppError, ErrorCode
from app.fleets import load
from cli.addresses import host_and_port
from cli.options import FeedOption, FleetOption
from cli.signals import on_signals
from gpufleet.console import server
from gpufleet.console.access import Access
from gpufleet.logs import hide

TOKEN: Final = "GPUFLEET_CONSOLE_TOKEN"  # noqa: S105 - the variable's name
_SHORTEST: Final = 16
"""Minimum length of a secret, in characters."""


def register(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    fleet: FleetOption = None,
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT to serve the page on.")] = "127.0.0.1:9600",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help=f"File with the access token, at least {_SHORTEST} characters. Default: ${TOKEN}."
        ),
    ] = None,
    proxy_header: Annotated[
        str, typer.Option("--proxy-header", help="HTTP header in which a proxy sends the name of the signed-in user.")
    ] = "",
    proxy_secret_file: Annotated[
        Path | None,
        typer.Option(
            "--proxy-secret-file",
            help="File with the secret that the proxy sends as X-Gpufleet-Proxy-Secret. --proxy-header requires it.",
        ),
    ] = None,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct",
            help="For a console without a proxy: refuse requests from pages of other sites, and requests whose Host "
            "header differs from --listen.",
        ),
    ] = False,
    feed: FeedOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Start even if the fleet document cannot be read yet.")
    ] = False,
) -> None:
    """Serve a web page with status, costs and decisions. It is read-only, except for its buttons Keep and Pause.

    The same port serves /metrics for Prometheus and /alerts for Alertmanager's webhook.
    """
    host, port = host_and_port("--listen", listen, "127.0.0.1:9600")
    logs.configure("console", service=True)
    live = LiveConsoleData(lambda: load(fleet), logs.get(), feed)
    if not wait:
        live.documents(datetime.now(UTC))
    access = Access(
        token=_token(token_file), proxy_header=proxy_header, proxy_secret=_proxy(proxy_header, proxy_secret_file)
    )
    stop = on_signals()
    try:
        running = server.serve(
            server.Console(live, access, own=f"{host}:{port}" if direct else ""), host, port, logs.get()
        )
    except OSError as error:
        raise AppError(f"--listen {listen}: {error.strerror or error}") from error
    logs.get().info("process", outcome="started", listen=listen)
    stop.wait()
    logs.get().info("process", outcome="stopped")
    running.stop()


def _proxy(header: str, path: Path | None) -> str:
    """The secret of the proxy that identifies users; empty without a proxy."""
    if not header and path is None:
        return ""
    if not header or path is None:
        raise AppError(
            "--proxy-header and --proxy-secret-file: give both; any process on this machine can send the header, and "
            "only the proxy can send the secret (as X-Gpufleet-Proxy-Secret)",
            ErrorCode.WRONG_USE,
        )
    secret = _read(path)
    if len(secret) < _SHORTEST:
        raise AppError(
            f"{path}: expected a secret of at least {_SHORTEST} characters, got {len(secret)}; create one with"
            " `openssl rand -hex 24`",
            ErrorCode.WRONG_USE,
        )
    return secret


def _read(path: Path) -> str:
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AppError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    hide(secret)
    return secret


def _token(path: Path | None) -> str:
    token = _read(path) if path else os.environ.get(TOKEN, "")
    if len(token) < _SHORTEST:
        found = f"{path or TOKEN} has {len(token)}" if token else "found none"
        raise AppError(
            f"the console needs an access token of at least {_SHORTEST} characters, {found}: give --token-file or set"
            f" {TOKEN}; create one with `openssl rand -hex 24`",
            ErrorCode.WRONG_USE,
        )
    return token
