"""The Prometheus configuration: the source of targets and their labels. No I/O.

All targets of an instance have the labels instance_id, pool, environment, capacity_type, zone, machine_type and
group, so that rules and watchdogs can select by them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import yaml

from gpufleet.domain import tags
from gpufleet.domain.durations import render as render_duration
from gpufleet.domain.model import Cloud, Instance, InstanceState
from hosts.monitoring.limits import bounded
from serving.accelerators import CONTRACTS as ACCELERATORS
from serving.accelerators import relabelling as accelerators
from serving.engines import CONTRACTS, DEFAULT
from serving.engines.reading import relabelling
from serving.metrics import HOST_CPU_SECONDS, PORTS, Source

ROUTER_PORT: Final = 8404
"""Port of a router's metrics."""


INSTANCE: Final = "instance"
"""Role of a pool's instance in the targets file. The role of a router is the value of its tag."""
_ROLE: Final = "__gpufleet_role"
"""Label of the role. Prometheus drops it after target discovery."""
TARGETS_FILE: Final = "targets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSettings:
    """The settings of one Prometheus."""

    cloud: Cloud
    environment: str
    targets_file: str = TARGETS_FILE
    """Path of the targets file; a relative path is relative to prometheus.yml.

    A service with cloud credentials writes it with `targets`. Prometheus does not query the cloud: its own discovery
    selects by tags alone, and more users may write tags than create instances of a fleet.
    """
    scrape_interval: timedelta = timedelta(seconds=10)
    haproxy: tuple[str, ...] = ()
    """`address:port` of each router's metrics. Empty: use the routers in the targets file."""
    watchdogs: tuple[str, ...] = ()
    """`address:port` of the exporters that read the ledger."""
    alertmanagers: tuple[str, ...] = ()
    rule_files: tuple[str, ...] = ()
    engines: tuple[str, ...] = (DEFAULT,)
    """Engines that instances run. Their metrics get canonical names at the scrape."""
    node_exporter: bool = False
    """Whether instances also run the node exporter (metrics of the operating system)."""


def render(settings: PrometheusSettings) -> str:
    """Return the text of prometheus.yml."""
    interval = render_duration(settings.scrape_interval)
    document: dict[str, Any] = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
            "external_labels": {"fleet": f"{settings.cloud}-{settings.environment}"},
        },
        "scrape_configs": [
            _of_instances(source, settings) for source in PORTS if source is not Source.HOST or settings.node_exporter
        ],
    }
    scraped, environment = document["scrape_configs"], settings.environment
    for job, path in (("haproxy", "/metrics"), ("router", "/router/metrics")):
        scraped.append(
            _static(job, settings.haproxy, path, environment)
            if settings.haproxy
            else {**_found(job, ROUTER_PORT, settings, tags.ROUTER), "metrics_path": path}
        )
    if settings.watchdogs:
        scraped.append(_static("watchdogs", settings.watchdogs, "/metrics", environment))
    document["scrape_configs"] = [bounded(job) for job in scraped]
    if settings.rule_files:
        document["rule_files"] = list(settings.rule_files)
    if settings.alertmanagers:
        document["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(settings.alertmanagers)}]}]}
    return "# Written by gpufleet; changes made here are lost.\n" + yaml.safe_dump(
        document, sort_keys=False, width=110
    )


_DROP_CPU_MODES: Final = {
    "source_labels": ["__name__", "mode"],
    "regex": f"{HOST_CPU_SECONDS};(user|nice|system|irq|softirq|steal)|node_cpu_guest_seconds_total;.*",
    "action": "drop",
}
"""Drops eight of ten series per CPU, of which a large machine has 1,920."""


def _of_instances(source: Source, settings: PrometheusSettings) -> dict[str, Any]:
    job = _found(source.value, PORTS[source], settings, INSTANCE)
    # A page with its own timestamps could hide its last values, or make old values look new.
    job["honor_timestamps"] = False
    relabelled = {
        Source.ENGINE: relabelling(CONTRACTS[kind] for kind in settings.engines),
        # a pool may have machines of any kind
        Source.ACCELERATOR: accelerators.relabelling(ACCELERATORS.values()),
        Source.HOST: [_DROP_CPU_MODES],
    }.get(source)
    return {**job, "metric_relabel_configs": relabelled} if relabelled else job


def _static(job: str, targets: Sequence[str], path: str, environment: str) -> dict[str, Any]:
    static = {"targets": list(targets), "labels": {"environment": environment}}
    return {"job_name": job, "metrics_path": path, "static_configs": [static]}


def _found(job: str, port: int, settings: PrometheusSettings, role: str) -> dict[str, Any]:
    relabel = [
        {"source_labels": [_ROLE], "regex": role, "action": "keep"},
        {"source_labels": ["__address__"], "target_label": "__address__", "replacement": f"$1:{port}"},
    ]
    found = [{"files": [settings.targets_file]}]
    return {"job_name": job, "file_sd_configs": found, "relabel_configs": relabel}


def targets(
    instances: Iterable[Instance], environment: str, routers: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return the content of the targets file: all running pool members, and routers on dedicated machines.

    `routers`: instance ids of the routers in the fleet document. None for an older document without them: every
    instance with the router's tag counts.
    """
    found: list[dict[str, Any]] = []
    for one in sorted(instances, key=lambda one: one.id):
        role = INSTANCE if one.pool is not None else one.tags.get(tags.ROLE) if one.is_infrastructure else None
        if role == tags.ROUTER and routers is not None and one.id not in routers:
            continue
        if one.private_address is None or one.state is not InstanceState.RUNNING or role is None:
            continue
        labels = {
            "instance_id": one.id,
            "zone": one.zone,
            "machine_type": one.machine_type,
            "group": one.group,
            "environment": environment,
            "pool": one.pool,
            "capacity_type": None if one.pool is None else one.capacity_type.value,
        }
        shown = {name: value for name, value in labels.items() if value is not None}
        found.append({"targets": [one.private_address], "labels": {_ROLE: role} | shown})
    return found
