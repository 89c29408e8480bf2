"""What Prometheus, Alertmanager and Grafana of a fleet read, as files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import AppError, Code
from gpufleet.domain.durations import parse as parse_duration
from gpufleet.domain.files import write_whole
from gpufleet.domain.model import Cloud
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.alerts import AlertSettings
from monitoring import alertmanager, alerts, dashboards, prometheus
from monitoring.rules import RuleSettings

RULES: Final = "rules.yml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """HOST:PORT of what is watched, as Prometheus finds it."""

    console: str
    daemon: str
    alertmanager: str
    routers: Sequence[str]
    """Empty: routers are machines of their own, found by their tag."""
    token_file: Path
    """The console's token, as Alertmanager's machine sees it."""
    targets_file: Path | None = None
    """Targets of a feed, as Prometheus' machine sees it; None: Prometheus asks the cloud."""


def write(document: FleetDocument, out: Path, addresses: Addresses, p99: Sequence[str] = ()) -> None:
    """Write prometheus.yml, rules.yml, alertmanager.yml and Grafana's files. Raises AppError."""
    for name, text in _files(document, out, addresses, p99).items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        except OSError as error:
            raise AppError(f"{path}: cannot be written: {error.strerror or error}") from error


def _files(document: FleetDocument, out: Path, addresses: Addresses, p99: Sequence[str]) -> Mapping[str, str]:
    watched = prometheus.PrometheusSettings(
        discovery=_discovery(document, addresses.targets_file),
        haproxy=tuple(addresses.routers),
        watchdogs=(addresses.console, addresses.daemon),
        alertmanagers=(addresses.alertmanager,),
        rule_files=(RULES,),
        node_exporter=document.node_exporter,
    )
    webhook = alertmanager.AlertmanagerSettings(
        webhook=f"http://{addresses.console}/alerts", token_file=str(addresses.token_file)
    )
    grafana = dashboards.files(document.prometheus_url, str((out / "grafana" / "dashboards").resolve()))
    return {
        "prometheus.yml": prometheus.render(watched),
        RULES: alerts.render(alert_settings(document, p99), RuleSettings()),
        "alertmanager.yml": alertmanager.render(webhook),
        **{f"grafana/{name}": text for name, text in grafana.items()},
    }


def _discovery(document: FleetDocument, targets_file: Path | None) -> prometheus.Discovery:
    zones = sorted({*document.zones, *(group.zone for pool in document.pools for group in pool.groups if group.zone)})
    if document.cloud is Cloud.GCP and not zones:
        raise AppError("the fleet document names no zone: Prometheus asks Google Cloud zone by zone")
    return prometheus.Discovery(
        cloud=document.cloud,
        environment=document.environment,
        region=document.region,
        project=document.account if document.cloud is Cloud.GCP else None,
        zones=tuple(zones) if document.cloud is Cloud.GCP else (),
        targets_file=None if targets_file is None else str(targets_file),
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
