"""The configuration of Prometheus: where targets come from and which labels they carry. Pure.

Every target of an instance carries the labels instance_id, pool, environment, capacity_type, zone, machine_type and
group, so that each rule and each watchdog can ask by them.
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
from serving.engine import INTERFACES, Interface, renamed
from serving.metrics import HOST_CPU_SECONDS, PORTS, Source

ROUTER_PORT: Final = 8404
"""Of a router's metrics."""


INSTANCE: Final = "instance"
"""What `targets` calls an instance of a pool; it calls a router by the value of its tag."""
_ROLE: Final = "__gpufleet_role"
"""A label that Prometheus drops when it has found its targets."""
TARGETS_FILE: Final = "targets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSettings:
    """One Prometheus."""

    cloud: Cloud
    environment: str
    targets_file: str = TARGETS_FILE
    """What `targets` lists, written by who may ask the cloud; without a whole path it lies beside prometheus.yml.

    Prometheus asks no cloud: its discovery would go by tags alone, which more may write than make members of a fleet.
    """
    scrape_interval: timedelta = timedelta(seconds=10)
    haproxy: tuple[str, ...] = ()
    """`address:port` of each router's metrics; none: those in the targets file."""
    watchdogs: tuple[str, ...] = ()
    """`address:port` of the exporters that read the ledger."""
    alertmanagers: tuple[str, ...] = ()
    rule_files: tuple[str, ...] = ()
    engines: tuple[Interface, ...] = tuple(INTERFACES.values())
    """Whose numbers get vLLM's names as they are read."""
    node_exporter: bool = False
    """Whether instances serve the numbers of their operating system too."""


def render(settings: PrometheusSettings) -> str:
    """prometheus.yml as text."""
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


_SPARED: Final = {
    "source_labels": ["__name__", "mode"],
    "regex": f"{HOST_CPU_SECONDS};(user|nice|system|irq|softirq|steal)|node_cpu_guest_seconds_total;.*",
    "action": "drop",
}
"""Ten series of each CPU would be 1,920 of a large machine: two are kept."""


def _renames(engines: Sequence[Interface]) -> list[dict[str, Any]]:
    return [
        {"source_labels": ["__name__"], "regex": theirs, "target_label": "__name__", "replacement": ours}
        for theirs, ours in renamed(engines).items()
    ]


def _of_instances(source: Source, settings: PrometheusSettings) -> dict[str, Any]:
    job = _found(source.value, PORTS[source], settings, INSTANCE)
    # a page that dates its samples by a clock of its own would hide what it said last, or make it look new
    job["honor_timestamps"] = False
    relabelled = {Source.ENGINE: _renames(settings.engines), Source.HOST: [_SPARED]}.get(source)
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
    """What the file of targets lists: every running member of a pool, and routers that are machines of their own.

    `routers`: their ids, which the fleet document names. None, for a document of before: whoever has the tag.
    """
    found: list[dict[str, Any]] = []
    for one in sorted(instances, key=lambda one: one.id):
        role = INSTANCE if one.pool is not None else one.tags.get(tags.ROLE) if one.is_of_the_house else None
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
