"""Grafana dashboards as code: fleet, pool, instance, cost. Returns provisioning files as text. No I/O."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from serving import metrics, recorded
from serving.accelerators import metrics as accelerators
from serving.accelerators.queries import DEVICE_LABEL, scaled

FOLDER: Final = "gpu-fleet"
SOURCE: Final = "gpufleet"
"""UID of the data source."""
_HERE: Final = 'environment="$environment"'
_POOL: Final = f'{_HERE},pool="$pool"'
_INSTANCE: Final = f'{_HERE},instance_id="$instance"'
_MIN_WATTS, _MAX_WATTS = accelerators.RANGES[accelerators.POWER]
_POWER: Final = (
    f"max by (instance_id, {DEVICE_LABEL})"
    f" ({scaled(accelerators.POWER, _INSTANCE)} >= {_MIN_WATTS:g} <= {_MAX_WATTS:g})"
)
_WIDE: Final = 24
BUDGET: Final = "gpufleet_budget_usd_per_month"
"""Missing in a fleet without a budget; panels that query it are empty then."""
HOST_NAMES: Final = tuple(name for name, metric in metrics.ALL.items() if metric.source is metrics.Source.HOST)
"""Metrics of the node exporter. Missing in a fleet whose instances run no node exporter."""
_RARE: Final = "Empty without `machines.node_exporter_image`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query for one series, or for several that `legend` distinguishes."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel. `unit` is the name of a Grafana unit."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard. `variables`: name -> query of the values."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: Mapping[str, str]


_ENVIRONMENTS: Final = {"environment": f"label_values({recorded.POOL_INSTANCES}, environment)"}
_POOLS: Final = _ENVIRONMENTS | {
    "pool": f'label_values({recorded.POOL_INSTANCES}{{environment="$environment"}}, pool)'
}
_INSTANCES: Final = _POOLS | {"instance": f"label_values({recorded.GPU_ACTIVE}{{{_POOL}}}, instance_id)"}


def dashboards() -> tuple[Dashboard, ...]:
    """Return all dashboards."""
    return (
        Dashboard(uid="gpufleet-fleet", title="Fleet", panels=_fleet(), variables=_ENVIRONMENTS),
        Dashboard(uid="gpufleet-pool", title="Pool", panels=_pool(), variables=_POOLS),
        Dashboard(uid="gpufleet-instance", title="Instance", panels=_instance(), variables=_INSTANCES),
        Dashboard(uid="gpufleet-cost", title="Cost", panels=_cost(), variables=_ENVIRONMENTS),
    )


def files(prometheus_url: str, dashboards_folder: str) -> Mapping[str, str]:
    """Return the files that Grafana reads at startup: path -> text.

    A path begins with `provisioning/`, relative to Grafana's provisioning folder, or with `dashboards/`.
    """
    source = {"name": "Prometheus", "uid": SOURCE, "type": "prometheus", "url": prometheus_url, "isDefault": True}
    provider = {"name": FOLDER, "folder": FOLDER, "type": "file", "options": {"path": dashboards_folder}}
    found = {
        "provisioning/datasources/gpufleet.yml": yaml.safe_dump({"apiVersion": 1, "datasources": [source]}),
        "provisioning/dashboards/gpufleet.yml": yaml.safe_dump({"apiVersion": 1, "providers": [provider]}),
    }
    return found | {f"dashboards/{one.uid}.json": render(one) for one in dashboards()}


def render(dashboard: Dashboard) -> str:
    """Return the JSON of a dashboard."""
    document: dict[str, Any] = {
        "uid": dashboard.uid,
        "title": f"gpu-fleet: {dashboard.title}",
        "tags": ["gpu-fleet"],
        "editable": False,
        "schemaVersion": 39,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_variable(name, query) for name, query in dashboard.variables.items()]},
        "panels": [_panel(number, panel, place) for number, panel, place in _placed(dashboard.panels)],
    }
    return json.dumps(document, indent=2) + "\n"


def of_all(expression: str, environment: str) -> str:
    """Replace the dashboard variables in a query so that it selects all pools and instances of the environment."""
    chosen = expression.replace("$environment", environment)
    return chosen.replace('="$pool"', '=~".+"').replace('="$instance"', '=~".+"')


def _line(expression: str, legend: str) -> Query:
    return Query(expression=expression, legend=legend)


def _panel_of(title: str, description: str, unit: str, *queries: Query, **more: Any) -> Panel:
    return Panel(title=title, description=description, unit=unit, queries=queries, **more)


def _fleet() -> tuple[Panel, ...]:
    return (
        _panel_of(
            "Instances by capacity type", "Instances whose agent responds.", "short",
            _line(f"sum by (capacity_type) ({recorded.POOL_INSTANCES}{{{_HERE}}})", "{{capacity_type}}"),
        ),
        _panel_of(
            "Spend", "Cost of the last hour, for the part that the ledger covers.", "currencyUSD",
            _line(f'gpufleet_spend_rate_usd_per_hour{{{_HERE},window="1h"}}', "USD per hour"),
        ),
        _panel_of(
            "GPU activity by pool", "Share of time in which the pool's GPUs computed.", "percentunit",
            _line(f"{recorded.POOL_GPU_ACTIVE}{{{_HERE}}}", "{{pool}}"),
        ),
        _panel_of(
            "Output tokens", "Tokens that the engines generated.", "short",
            _line(f"{recorded.POOL_TOKENS_OUT}{{{_HERE}}}", "{{pool}}"),
        ),
        _panel_of(
            "Requests that wait", "Queued in engines, and held for a pool's first replica.", "short",
            _line(f"{recorded.POOL_WAITING}{{{_HERE}}}", "{{pool}}"),
            _line(f'sum by (pool) (gpufleet_held_requests{{{_HERE},job="{metrics.ROUTER_JOB}"}})', "{{pool}} held"),
        ),
        _panel_of(
            "Failed requests", "Share of requests that failed with 5xx or were interrupted.", "percentunit",
            _line(f"{recorded.POOL_ERRORS}{{{_HERE}}}", "{{pool}}"),
        ),
        _panel_of(
            "Preemptions", "Spot instances that the cloud preempted within an hour.", "short",
            _line(f"sum by (pool) (increase(gpufleet_preemptions_total{{{_HERE}}}[1h]))", "{{pool}}"),
        ),
        _panel_of(
            "Ledger behind", "How far the ledger is behind: later costs are not known yet.", "s",
            _line(f"time() - gpufleet_ledger_known_until_seconds{{{_HERE}}}", "behind"),
        ),
    )  # fmt: skip


def _pool() -> tuple[Panel, ...]:
    kind = "capacity_type"
    return (
        _panel_of(
            "Target and instances", "Desired ready replicas, and instances whose agent responds.", "short",
            _line(f"gpufleet_target{{{_POOL}}}", "target"),
            _line(f"sum by ({kind}) ({recorded.POOL_INSTANCES}{{{_POOL}}})", "{{capacity_type}}"),
        ),
        _panel_of(
            "Answer time", "99th percentile, arrival to last token, in the engine.", "s",
            _line(f"{recorded.POOL_P99}{{{_POOL}}}", "p99"),
        ),
        _panel_of(
            "First token", "95th percentile, arrival to first token, in the engine.", "s",
            _line(f"{recorded.POOL_TTFT_P95}{{{_POOL}}}", "p95"),
        ),
        _panel_of(
            "Running and waiting", "Requests in the engines.", "short",
            _line(f"{recorded.POOL_RUNNING}{{{_POOL}}}", "running"),
            _line(f"{recorded.POOL_WAITING}{{{_POOL}}}", "waiting"),
        ),
        _panel_of(
            "Tokens", "Input and output tokens.", "short",
            _line(f"{recorded.POOL_TOKENS_IN}{{{_POOL}}}", "input"),
            _line(f"{recorded.POOL_TOKENS_OUT}{{{_POOL}}}", "output"),
        ),
        _panel_of(
            "GPU activity by instance", "Share of time in which an instance's GPUs computed.", "percentunit",
            _line(f"{recorded.GPU_ACTIVE}{{{_POOL}}}", "{{instance_id}}"),
        ),
        _panel_of(
            "KV cache", "Used blocks of the KV cache.", "percentunit",
            _line(f"{recorded.KV_CACHE}{{{_POOL}}}", "{{instance_id}}"),
        ),
        _panel_of(
            "Routed requests", "Requests that the router answered for this pool.", "reqps",
            _line(f"{recorded.POOL_REQUESTS}{{{_POOL}}}", "requests"),
        ),
    )  # fmt: skip


def _instance() -> tuple[Panel, ...]:
    return (
        _panel_of(
            "GPU activity", "Share of time in which the GPUs computed.", "percentunit",
            _line(f"{recorded.GPU_ACTIVE}{{{_INSTANCE}}}", "active"),
        ),
        _panel_of(
            "GPU memory", "Share in use. Engines allocate memory at the start, so watch for growth.", "percentunit",
            _line(f"{recorded.GPU_MEMORY}{{{_INSTANCE}}}", "used"),
        ),
        _panel_of(
            "Temperature",
            "The hottest GPU.",
            "celsius",
            _line(f"{recorded.GPU_TEMPERATURE}{{{_INSTANCE}}}", "hottest"),
        ),
        _panel_of(
            "Power", "Power of each GPU.", "watt",
            _line(_POWER, f"GPU {{{{{DEVICE_LABEL}}}}}"),
        ),
        _panel_of(
            "Requests", "Requests in the engine.", "short",
            _line(f"{recorded.RUNNING}{{{_INSTANCE}}}", "running"),
            _line(f"{recorded.WAITING}{{{_INSTANCE}}}", "waiting"),
        ),
        _panel_of(
            "Output tokens", "Tokens that the engine generated.", "short",
            _line(f"{recorded.TOKENS_OUT}{{{_INSTANCE}}}", "tokens per second"),
        ),
        _panel_of(
            "Phase", "1 for the phase that the instance is in.", "short",
            _line(f"{metrics.NODE_PHASE}{{{_INSTANCE}}} == 1", "{{phase}}"),
            kind="state-timeline",
        ),
        _panel_of(
            "Boot", "Duration of each boot step.", "s",
            _line(f"{metrics.NODE_BOOT_SECONDS}{{{_INSTANCE}}}", "{{step}}"),
        ),
        *_host(),
    )  # fmt: skip


def _host() -> tuple[Panel, ...]:
    waits = f'{metrics.HOST_CPU_SECONDS}{{{_INSTANCE},mode=~"idle|iowait"}}'
    disks = f'{{{_INSTANCE},mountpoint=~"/|/mnt/nvme"}}'
    return (
        _panel_of(
            "CPU", f"Share of the machine's CPU time in use. {_RARE}", "percentunit",
            _line(f"1 - avg by (instance_id) (sum by (instance_id, cpu) (rate({waits}[5m])))", "busy"),
        ),
        _panel_of(
            "Memory left", f"Share of the machine's own memory that is available to programs. {_RARE}", "percentunit",
            _line(f"{metrics.HOST_MEMORY_AVAILABLE}{{{_INSTANCE}}} / {metrics.HOST_MEMORY_TOTAL}", "available"),
        ),
        _panel_of(
            "Disk left", f"Free share of the root disk and of the disk of the model cache. {_RARE}", "percentunit",
            _line(f"{metrics.HOST_DISK_FREE}{disks} / {metrics.HOST_DISK_SIZE}", "{{mountpoint}}"),
        ),
    )  # fmt: skip


def _cost() -> tuple[Panel, ...]:
    spend = f"gpufleet_spend_usd_per_hour{{{_HERE}}}"
    tokens = f"sum by (pool) (avg_over_time({recorded.POOL_TOKENS_OUT}{{{_HERE}}}[1h]))"
    rate = f"gpufleet_spend_rate_usd_per_hour{{{_HERE},window="
    budget = f"{BUDGET}{{{_HERE}}}"
    return (
        _panel_of(
            "Spend by capacity type", "Cost of the last hour.", "currencyUSD",
            _line(f"sum by (capacity_type) ({spend})", "{{capacity_type}}"),
        ),
        _panel_of(
            "Spend by pool", "Cost of the last hour.", "currencyUSD", _line(f"sum by (pool) ({spend})", "{{pool}}")
        ),
        _panel_of(
            "Spend by use", "Cost by use: used, idle, starting, unused reservations.", "currencyUSD",
            _line(f"sum by (state) ({spend})", "{{state}}"),
        ),
        _panel_of(
            "USD per million output tokens",
            "Cost of the last hour over output tokens of the last hour; empty without traffic.", "currencyUSD",
            _line(f"sum by (pool) ({spend}) / (3600 * ({tokens} > 0) / 1e6)", "{{pool}}"),
        ),
        _panel_of(
            "Burn rate", "Spend over the budget's even rate: 1 uses the month's budget exactly.", "short",
            *(
                _line(f'{rate}"{window}"}} / on (environment) ({budget} / 730)', window)
                for window in ("1h", "24h")
            ),
        ),
        _panel_of(
            "Messages", "Messages of the outbox; `waiting` and `refused` should be none.", "short",
            _line(f"gpufleet_messages{{{_HERE}}}", "{{state}}"),
        ),
    )  # fmt: skip


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": SOURCE},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def _placed(panels: Sequence[Panel]) -> list[tuple[int, Panel, dict[str, int]]]:
    """Place the panels in rows, from left to right."""
    found: list[tuple[int, Panel, dict[str, int]]] = []
    x, y = 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _WIDE:
            x, y = 0, y + 8
        found.append((number, panel, {"x": x, "y": y, "w": panel.width, "h": 8}))
        x += panel.width
    return found


def _panel(number: int, panel: Panel, place: Mapping[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": SOURCE}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": q.expression, "legendFormat": q.legend, "datasource": source}
            for i, q in enumerate(panel.queries)
        ],
    }
