"""Writes the files that a fleet's Prometheus, Alertmanager and Grafana read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import AppError, ErrorCode
from gpufleet.domain.durations import parse as parse_duration
from gpufleet.domain.files import write_atomically
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.alerts import AlertSettings
from hosts.monitoring import alertmanager, alerts, dashboards, prometheus
from hosts.monitoring.rules import RuleSettings
from serving.engines import CONTRACTS

RULES: Final = "rules.yml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """HOST:PORT of each monitored service, as Prometheus reaches it."""

    console: str
    daemon: str
    alertmanager: str
    routers: Sequence[str]
    """Empty: the routers are separate machines, which are among the targets."""
    token_file: Path
    """The console's token, as a path on Alertmanager's machine."""
    targets_file: str = prometheus.TARGETS_FILE
    """A path on Prometheus' machine; a relative path is next to prometheus.yml."""


def write(document: FleetDocument, out: Path, addresses: Addresses, p99: Sequence[str] = ()) -> None:
    """Write prometheus.yml, rules.yml, alertmanager.yml and Grafana's files. Raises AppError."""
    for name, text in _files(document, out, addresses, p99).items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except OSError as error:
            raise AppError(f"{path}: cannot be written: {error.strerror or error}") from error


def _files(document: FleetDocument, out: Path, addresses: Addresses, p99: Sequence[str]) -> Mapping[str, str]:
    watched = prometheus.PrometheusSettings(
        cloud=document.cloud,
        environment=document.environment,
        targets_file=addresses.targets_file,
        haproxy=tuple(addresses.routers),
        watchdogs=(addresses.console, addresses.daemon),
        alertmanagers=(addresses.alertmanager,),
        rule_files=(RULES,),
        node_exporter=document.node_exporter,
        # of all kinds: after a change of a pool's engine, instances run the previous one until they are replaced
        engines=tuple(CONTRACTS),
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


def alert_settings(document: FleetDocument, p99: Sequence[str]) -> AlertSettings:
    """The environment's thresholds and the facts about its pools. `p99` of the command line takes precedence."""
    tokens = {pool.name: pool.objectives.tokens_per_second for pool in document.pools}
    return document.alerts.settings(
        _objectives(document, p99),
        {pool: value for pool, value in tokens.items() if value is not None},
        [pool.name for pool in document.pools if pool.groups_of(CapacityType.SPOT)],
    )


def _objectives(document: FleetDocument, given: Sequence[str]) -> Mapping[str, float]:
    pools = {pool.name for pool in document.pools}
    latencies = {pool.name: pool.objectives.latency_p99 for pool in document.pools}
    found = {pool: span.total_seconds() for pool, span in latencies.items() if span is not None}
    for text in given:
        pool, equals, span = text.partition("=")
        if not equals:
            raise AppError(f"--p99 {text}: expected POOL=TIME, for example chat=10s", ErrorCode.WRONG_USE)
        if pool not in pools:
            raise AppError(f"--p99 {text}: no pool {pool!r}; pools: {', '.join(sorted(pools))}", ErrorCode.WRONG_USE)
        try:
            found[pool] = parse_duration(span).total_seconds()
        except ValueError as error:
            raise AppError(f"--p99 {text}: {error}", ErrorCode.WRONG_USE) from error
        if found[pool] <= 0:
            raise AppError(f"--p99 {text}: expected a time above 0s", ErrorCode.WRONG_USE)
    return found
