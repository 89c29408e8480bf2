"""The Prometheus queries of console and CLI: one query for all instances, never one per instance."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from gpufleet.domain.durations import render as render_duration
from serving import metrics, recorded
from serving.accelerators.queries import activity
from serving.engines.reading import EVIDENCE, NO_EVIDENCE

PHASE: Final = f"{metrics.NODE_PHASE} == 1"
"""Result labels: instance_id and phase."""
DRAINING: Final = metrics.NODE_DRAIN_DEADLINE.name
"""Result labels: instance_id and reason (the owner of the drain, and why)."""
ORDER_KEYS: Final = metrics.NODE_ORDER_KEY.name
"""Result labels: instance_id and key (the keys whose orders the agent accepts)."""
HELD: Final = f'sum by (pool) (gpufleet_held_requests{{job="{metrics.ROUTER_JOB}"}})'
FIRING: Final = 'count by (alertname, severity, pool, instance_id) (ALERTS{alertstate="firing"})'


def per_instance(environment: str, window: timedelta) -> Mapping[str, str]:
    """Return name -> query. Each query returns one value per instance_id. Rates use `window`."""
    here = f'environment="{environment}"'
    proving = f'{here},{EVIDENCE}!="{NO_EVIDENCE}"'
    rate = render_duration(window)
    return {
        "gpu_active": f"avg by (instance_id) ({activity('instance_id', here)})",
        "running": f"sum by (instance_id) ({metrics.REQUESTS_RUNNING}{{{proving}}} or {recorded.at_gate(here)})",
        "waiting": f"sum by (instance_id) ({metrics.REQUESTS_WAITING}{{{proving}}})",
        "kv_cache": f"max by (instance_id) ({metrics.KV_CACHE_USAGE}{{{here}}})",
        "tokens_per_second": f"sum by (instance_id) (rate({metrics.GENERATION_TOKENS}{{{here}}}[{rate}]))",
    }
