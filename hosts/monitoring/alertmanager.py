"""The Alertmanager configuration: which alerts form one message, and which alerts are inhibited. No I/O.

Its only receiver is the console's webhook (`POST /alerts`), which puts each group into the ledger's outbox.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import yaml

from gpufleet.domain.durations import render as render_duration

RECEIVER: Final = "console"
GROUP_BY: Final = ("alertname", "fleet", "environment", "pool")
"""Labels of a group. 500 instances of a pool with the same failure are one group, so one message."""
QUIET: Final = (
    ("AllMetricsMissing", "MetricsMissing", ("fleet",)),
    ("BudgetBurnFast", "BudgetBurnSlow", ("fleet", "environment")),
    ("RequestsHeld", "QueueGrowing", ("fleet", "pool")),
    ("CacheSyncFailing", "BootFailing", ("fleet", "instance_id")),
)
"""Inhibitions: while the first alert fires, the second one with the same values of these labels is suppressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerSettings:
    """The settings of one Alertmanager; it runs on the same machine as its Prometheus."""

    webhook: str
    """URL of the console's `/alerts`."""
    token_file: str
    """Path of the console's access token, on the machine that runs Alertmanager."""
    group_wait: timedelta = timedelta(seconds=30)
    """How long the first alert of a group waits for others."""
    group_interval: timedelta = timedelta(minutes=5)
    """Minimum time between two posts about a changed group. A resolved group is posted after at most this time."""
    repeat_interval: timedelta = timedelta(hours=12)
    """Time until an unchanged group is posted again. The outbox drops duplicates: this only replaces a lost post."""
    max_alerts: int = 5_000
    """Maximum number of alerts in one post. The post contains the number of the omitted ones."""


def render(settings: AlertmanagerSettings) -> str:
    """Return the text of alertmanager.yml."""
    document: dict[str, Any] = {
        "route": {
            "receiver": RECEIVER,
            "group_by": list(GROUP_BY),
            "group_wait": render_duration(settings.group_wait),
            "group_interval": render_duration(settings.group_interval),
            "repeat_interval": render_duration(settings.repeat_interval),
        },
        "inhibit_rules": [
            {
                "source_matchers": [f'alertname="{loud}"'],
                "target_matchers": [f'alertname="{quiet}"'],
                "equal": list(same),
            }
            for loud, quiet, same in QUIET
        ],
        "receivers": [
            {
                "name": RECEIVER,
                "webhook_configs": [
                    {
                        "url": settings.webhook,
                        "send_resolved": True,
                        "max_alerts": settings.max_alerts,
                        "http_config": {"authorization": {"credentials_file": settings.token_file}},
                    }
                ],
            }
        ],
    }
    return "# Written by gpufleet; changes made here are lost.\n" + yaml.safe_dump(
        document, sort_keys=False, width=110
    )
