"""The configuration of Prometheus: where targets come from and which labels they carry. Pure.

Every target of an instance carries the labels instance_id, pool, environment, capacity_type, zone, machine_type and
group, so that each rule and each watchdog can ask by them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import yaml

from gpufleet.domain import tags
from gpufleet.domain.durations import render as render_duration
from gpufleet.domain.model import Cloud, Instance, InstanceState
from monitoring.limits import bounded
from serving.engine import INTERFACES, Interface, renamed
from serving.metrics import HOST_CPU_SECONDS, PORTS, Source

_EC2_LABELS: Final[Mapping[str, str]] = {
    "instance_id": "__meta_ec2_instance_id",
    "zone": "__meta_ec2_availability_zone",
    "machine_type": "__meta_ec2_instance_type",
    "group": "__meta_ec2_tag_aws_autoscaling_groupName",
    "environment": "__meta_ec2_tag_gpu_fleet_environment",
    "pool": "__meta_ec2_tag_gpu_fleet_pool",
    "capacity_type": "__meta_ec2_tag_gpu_fleet_capacity_type",
}
"""Label of ours, and where EC2 discovery puts it."""

_GCE_LABELS: Final[Mapping[str, str]] = {
    # a name is what the API, the groups and the agents call an instance by; the number is nowhere else
    "instance_id": "__meta_gce_instance_name",
    "environment": "__meta_gce_label_gpu_fleet_environment",
    "pool": "__meta_gce_label_gpu_fleet_pool",
    "capacity_type": "__meta_gce_label_gpu_fleet_capacity_type",
}
"""Zone and machine type come as URLs: see `_last_part`."""

HTTP_SD_LABELS: Final = ("instance_id", "zone", "machine_type", "group", "environment", "pool", "capacity_type")
"""What a list of targets served over HTTP has to give with each target (the embedded Google Cloud does)."""


ROUTER_PORT: Final = 8404
"""Of a router's metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which machines of the environment a job reads: those whose tag has that value."""

    tag: str
    """As Prometheus writes it behind `__meta_…_`."""
    value: str
    """A regular expression."""
    role: str
    """What `targets` calls them."""
    query: str = ""
    """What asks a list of targets over HTTP for them."""


_INSTANCES: Final = _Wanted(tag="gpu_fleet_pool", value=".+", role="instance")
_ROUTERS: Final = _Wanted(tag="gpu_fleet_role", value=tags.ROUTER, role=tags.ROUTER, query="&role=router")
_ROLE: Final = "__gpufleet_role"
"""A label that Prometheus drops when it has found its targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """How Prometheus finds the instances of one environment."""

    cloud: Cloud
    environment: str
    region: str
    project: str | None = None
    """Google Cloud project."""
    zones: tuple[str, ...] = ()
    """Google Cloud zones: its discovery asks one at a time."""
    endpoint: str | None = None
    """Of the embedded cloud: the EC2 API, or the list of targets that stands in for Compute Engine's."""
    refresh: timedelta = timedelta(seconds=30)
    targets_file: str | None = None
    """Of a feed: Prometheus has no credentials there, and asks no cloud. A path on Prometheus' machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSettings:
    """One Prometheus."""

    discovery: Discovery
    scrape_interval: timedelta = timedelta(seconds=10)
    haproxy: tuple[str, ...] = ()
    """`address:port` of each router's metrics; none: routers are machines of their own, found by their tag."""
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
            "external_labels": {"fleet": f"{settings.discovery.cloud}-{settings.discovery.environment}"},
        },
        "scrape_configs": [
            _of_instances(source, settings) for source in PORTS if source is not Source.HOST or settings.node_exporter
        ],
    }
    scraped, environment = document["scrape_configs"], settings.discovery.environment
    for job, path in (("haproxy", "/metrics"), ("router", "/router/metrics")):
        scraped.append(
            _static(job, settings.haproxy, path, environment)
            if settings.haproxy
            else {**_found(job, ROUTER_PORT, settings.discovery, _ROUTERS), "metrics_path": path}
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
    job = _found(source.value, PORTS[source], settings.discovery, _INSTANCES)
    # a page that dates its samples by a clock of its own would hide what it said last, or make it look new
    job["honor_timestamps"] = False
    relabelled = {Source.ENGINE: _renames(settings.engines), Source.HOST: [_SPARED]}.get(source)
    return {**job, "metric_relabel_configs": relabelled} if relabelled else job


def _static(job: str, targets: Sequence[str], path: str, environment: str) -> dict[str, Any]:
    static = {"targets": list(targets), "labels": {"environment": environment}}
    return {"job_name": job, "metrics_path": path, "static_configs": [static]}


def _found(job: str, port: int, discovery: Discovery, wanted: _Wanted) -> dict[str, Any]:
    if discovery.targets_file is not None:
        return {"job_name": job, **_file(port, discovery.targets_file, wanted)}
    match discovery.cloud:
        case Cloud.AWS:
            return {"job_name": job, **_ec2(port, discovery, wanted)}
        case Cloud.GCP if discovery.endpoint is not None:
            url = f"{discovery.endpoint}?port={port}{wanted.query}"
            source = {"url": url, "refresh_interval": render_duration(discovery.refresh)}
            return {"job_name": job, "http_sd_configs": [source]}
        case Cloud.GCP:
            return {"job_name": job, **_gce(port, discovery, wanted)}


def _file(port: int, path: str, wanted: _Wanted) -> dict[str, Any]:
    relabel = [
        {"source_labels": [_ROLE], "regex": wanted.role, "action": "keep"},
        {"source_labels": ["__address__"], "target_label": "__address__", "replacement": f"$1:{port}"},
    ]
    return {"file_sd_configs": [{"files": [path]}], "relabel_configs": relabel}


def targets(instances: Iterable[Instance], environment: str) -> list[dict[str, Any]]:
    """The file that `targets_file` names: every running machine of the fleet, and what it is for."""
    found: list[dict[str, Any]] = []
    for one in sorted(instances, key=lambda one: one.id):
        role = _INSTANCES.role if one.pool is not None else one.tags.get(tags.ROLE, "")
        if one.private_address is None or one.state is not InstanceState.RUNNING or not role:
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


def _ec2(port: int, discovery: Discovery, wanted: _Wanted) -> dict[str, Any]:
    source: dict[str, Any] = {
        "region": discovery.region,
        "port": port,
        "refresh_interval": render_duration(discovery.refresh),
        "filters": [
            {"name": f"tag:{tags.ENVIRONMENT}", "values": [discovery.environment]},
            {"name": "instance-state-name", "values": ["running"]},
        ],
    }
    if discovery.endpoint is not None:
        source["endpoint"] = discovery.endpoint
    relabel = [
        {"source_labels": ["__meta_ec2_instance_state"], "regex": "running", "action": "keep"},
        {"source_labels": [f"__meta_ec2_tag_{wanted.tag}"], "regex": wanted.value, "action": "keep"},
        *_copies(_EC2_LABELS),
    ]
    return {"ec2_sd_configs": [source], "relabel_configs": relabel}


def _gce(port: int, discovery: Discovery, wanted: _Wanted) -> dict[str, Any]:
    sources = [
        {
            "project": discovery.project,
            "zone": zone,
            "port": port,
            "refresh_interval": render_duration(discovery.refresh),
            "filter": f"labels.{tags.label(tags.ENVIRONMENT)}={discovery.environment}",
        }
        for zone in discovery.zones
    ]
    relabel = [
        {"source_labels": ["__meta_gce_instance_status"], "regex": "RUNNING", "action": "keep"},
        {"source_labels": [f"__meta_gce_label_{wanted.tag}"], "regex": wanted.value, "action": "keep"},
        *_copies(_GCE_LABELS),
        _last_part("__meta_gce_zone", "zone"),
        _last_part("__meta_gce_machine_type", "machine_type"),
        # created-by: projects/123/zones/z/instanceGroupManagers/NAME
        _last_part("__meta_gce_metadata_created_by", "group"),
    ]
    return {"gce_sd_configs": sources, "relabel_configs": relabel}


def _copies(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"source_labels": [source], "target_label": label} for label, source in labels.items()]


def _last_part(source: str, label: str) -> dict[str, Any]:
    return {"source_labels": [source], "regex": "(?:.*/)?([^/]+)", "target_label": label, "replacement": "$1"}
