"""`gpufleet monitoring render`: what Prometheus, Alertmanager and Grafana of an environment read, as files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from app.errors import AppError, Code
from app.fleets import load
from cli.files import write_text
from cli.monitoring_check import check
from cli.options import FleetOption
from cli.output import STDERR
from gpufleet.domain.durations import parse as parse_duration
from gpufleet.domain.model import Cloud
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.alerts import AlertSettings
from monitoring import alertmanager, alerts, dashboards, prometheus
from monitoring.rules import RuleSettings

RULES: Final = "rules.yml"

ConsoleOption = Annotated[str, typer.Option("--console", help="HOST:PORT of `gpufleet console`.")]
DaemonOption = Annotated[str, typer.Option("--daemon", help="HOST:PORT of `gpufleet watch run`.")]
AlertmanagerOption = Annotated[str, typer.Option("--alertmanager", help="HOST:PORT of Alertmanager.")]
RouterOption = Annotated[
    list[str] | None,
    typer.Option("--router", help="HOST:PORT of a router's metrics; repeatable. Default: 127.0.0.1:8404."),
]
TokenOption = Annotated[
    Path, typer.Option("--token-file", help="File with the console's token, as Alertmanager's machine sees it.")
]
ObjectiveOption = Annotated[
    list[str] | None,
    typer.Option("--p99", metavar="POOL=SPAN", help="Latency objective of a pool, as in chat=10s; repeatable."),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Configuration of Prometheus, Alertmanager and Grafana.", no_args_is_help=True)
    group.callback()(_group)
    group.command("render")(render)
    group.command("check")(check)
    app.add_typer(group, name="monitoring")


def _group() -> None:
    """Keep `monitoring` a group."""


def render(
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    fleet: FleetOption = None,
    console: ConsoleOption = "127.0.0.1:9600",
    daemon: DaemonOption = "127.0.0.1:9470",
    manager: AlertmanagerOption = "127.0.0.1:9093",
    router: RouterOption = None,
    find_routers: Annotated[
        bool, typer.Option("--find-routers", help="Routers are machines of their own, found by their tag.")
    ] = False,
    token_file: TokenOption = Path("/etc/gpu-fleet/console.token"),
    p99: ObjectiveOption = None,
) -> None:
    """Write prometheus.yml, rules.yml, alertmanager.yml and Grafana's files for one fleet."""
    documents = load(fleet)
    if len(documents) != 1:
        raise AppError(
            f"a Prometheus watches one fleet, {len(documents)} are named: give one --fleet", Code.WRONG_USE
        )
    document = documents[0]
    if router and find_routers:
        raise AppError("--router and --find-routers are two ways: give one", Code.WRONG_USE)
    files = {
        "prometheus.yml": prometheus.render(
            prometheus.PrometheusSettings(
                discovery=_discovery(document),
                haproxy=() if find_routers else tuple(router or ("127.0.0.1:8404",)),
                watchdogs=(console, daemon),
                alertmanagers=(manager,),
                rule_files=(RULES,),
                node_exporter=document.node_exporter,
            )
        ),
        RULES: alerts.render(alert_settings(document, p99 or ()), RuleSettings()),
        "alertmanager.yml": alertmanager.render(
            alertmanager.AlertmanagerSettings(webhook=f"http://{console}/alerts", token_file=str(token_file))
        ),
    }
    grafana = dashboards.files(document.prometheus_url, str((out / "grafana" / "dashboards").resolve()))
    for name, text in (files | {f"grafana/{name}": text for name, text in grafana.items()}).items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AppError(f"{path.parent}: {error.strerror or error}") from error
        write_text(text, path)
    STDERR.print(f"{out}: Prometheus, Alertmanager and Grafana of {document.environment}", highlight=False)


def _discovery(document: FleetDocument) -> prometheus.Discovery:
    zones = sorted({*document.zones, *(group.zone for pool in document.pools for group in pool.groups if group.zone)})
    if document.cloud is Cloud.GCP and not zones:
        raise AppError("the fleet document names no zone: Prometheus asks Google Cloud zone by zone")
    return prometheus.Discovery(
        cloud=document.cloud,
        environment=document.environment,
        region=document.region,
        project=document.account if document.cloud is Cloud.GCP else None,
        zones=tuple(zones) if document.cloud is Cloud.GCP else (),
        # Prometheus' own discovery does not read the variables
        endpoint=os.environ.get("AWS_ENDPOINT_URL") if document.cloud is Cloud.AWS else _targets_of_embedded(),
    )


def _targets_of_embedded() -> str | None:
    """The list of targets that stands in for Compute Engine's discovery on the embedded cloud."""
    endpoint = os.environ.get("GPUFLEET_COMPUTE_ENDPOINT")
    return f"{endpoint}/_localcloud/targets" if endpoint else None


def alert_settings(document: FleetDocument, p99: Sequence[str]) -> AlertSettings:
    """The environment's thresholds and its pools' objectives; `p99` on the command line wins."""
    tokens = {pool.name: pool.objectives.tokens_per_second for pool in document.pools}
    return document.alerts.settings(
        _objectives(document, p99), {pool: value for pool, value in tokens.items() if value is not None}
    )


def _objectives(document: FleetDocument, given: Sequence[str]) -> Mapping[str, float]:
    pools = {pool.name for pool in document.pools}
    settled = {pool.name: pool.objectives.latency_p99 for pool in document.pools}
    found = {pool: span.total_seconds() for pool, span in settled.items() if span is not None}
    for text in given:
        pool, _, span = text.partition("=")
        if pool not in pools:
            raise AppError(
                f"--p99 {text}: the fleet has no pool {pool!r}: {', '.join(sorted(pools))}", Code.WRONG_USE
            )
        try:
            found[pool] = parse_duration(span).total_seconds()
        except ValueError as error:
            raise AppError(f"--p99 {text}: {error}", Code.WRONG_USE) from error
    return found
