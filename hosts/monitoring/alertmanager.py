"""The configuration of Alertmanager: which alerts are one message, and which say nothing new. Pure.

Its only receiver is the console's webhook (`POST /alerts`), which puts each group into the ledger's outbox.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import yaml

from gpufleet.domain.durations import render as render_duration

RECEIVER: Final = "console"
GROUP_BY: Final = ("alertname", "fleet", "environment", "pool")
"""Five hundred instances of a pool that fail alike are one group, and so one message."""
QUIET: Final = (
    ("AllMetricsMissing", "MetricsMissing", ("fleet",)),
    ("BudgetBurnFast", "BudgetBurnSlow", ("fleet", "environment")),
    ("RequestsHeld", "QueueGrowing", ("fleet", "pool")),
    ("CacheSyncFailing", "BootFailing", ("fleet", "instance_id")),
)
"""While the first fires, the second of the same labels says nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerSettings:
    """One Alertmanager, beside its Prometheus."""

    webhook: str
    """URL of the console's `/alerts`."""
    token_file: str
    """The console's access token; a path on the machine that runs Alertmanager."""
    group_wait: timedelta = timedelta(seconds=30)
    """How long the first alert of a group waits for others."""
    group_interval: timedelta = timedelta(minutes=5)
    """Between two posts about one group that changed; its end is told after at most this."""
    repeat_interval: timedelta = timedelta(hours=12)
    """The outbox knows a post that it had before: this only mends one that was lost."""
    most_alerts: int = 5_000
    """Of one post; the number of the others is in it."""


def render(settings: AlertmanagerSettings) -> str:
    """alertmanager.yml as text."""
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
                        "max_alerts": settings.most_alerts,
                        "http_config": {"authorization": {"credentials_file": settings.token_file}},
                    }
                ],
            }
        ],
    }
    return "# Written by gpufleet; changes made here are lost.\n" + yaml.safe_dump(
        document, sort_keys=False, width=110
    )
