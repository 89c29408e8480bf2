"""Thresholds of the alerts: settings and fleet document contain them, the alert rules use them."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import Field

from gpufleet.settings.document.fields import Duration, MoreThanZero, Share, Strict


class AlertsEntry(Strict):
    """Thresholds of the alerts. Shares are numbers from 0 to 1, durations are written as `15m`.

    `temperature_above` is in °C, `running_below` and `queue_from` are numbers of requests, and `burn_fast` and
    `burn_slow` are multiples of the budget's even rate.
    """

    gpu_active_below: Share = 0.30
    gpu_active_above: Share = 0.95
    gpu_active_for: Duration = timedelta(minutes=15)
    gpu_memory_above: Share = 0.90
    gpu_memory_growth: Share = 0.02
    """Growth within an hour, as a share of the memory. Engines allocate memory at start, so growth is unusual."""
    temperature_above: MoreThanZero = 83
    """°C."""
    tokens_drop: Share = 0.20
    running_below: MoreThanZero = 4
    queue_from: MoreThanZero = 10
    cold_start_above: Duration = timedelta(seconds=120)
    kv_cache_above: Share = 0.90
    errors_above: Share = 0.01
    preemptions_per_hour: MoreThanZero = 3
    fallback_share_above: Share = 0.30
    idle_share_above: Share = 0.30
    burn_fast: MoreThanZero = 2.0
    """Multiple of the budget's even rate, over an hour."""
    burn_slow: MoreThanZero = 1.2
    """Multiple of the budget's even rate, over a day."""
    watchdog_silent: Duration = timedelta(minutes=15)
    ledger_gap: Duration = timedelta(minutes=10)
    certificate_ends: Duration = timedelta(days=14)
    metrics_missing: Duration = timedelta(minutes=5)
    cache_retries_above: MoreThanZero = 50
    """Repeated range reads of a model within ten minutes."""
    quota_above: Share = 0.80
    """Used share of an account's quota."""

    def settings(self, latency_p99_s: Mapping[str, float], tokens_per_s: Mapping[str, float]) -> "AlertSettings":
        """Combine the thresholds with the objectives of the pools."""
        of_pools = {"latency_p99_s": latency_p99_s, "reference_tokens_per_s": tokens_per_s}
        given: dict[str, Any] = {**self.__dict__, **of_pools}
        return AlertSettings(**given)


class AlertSettings(AlertsEntry):
    """The thresholds of an environment and the objectives of its pools: the input of the alert rules."""

    latency_p99_s: Mapping[str, float] = Field(default_factory=dict[str, float])
    """Pool -> objective in seconds; a pool without an objective has no latency alert."""
    reference_tokens_per_s: Mapping[str, float] = Field(default_factory=dict[str, float])
    """Pool -> known output when busy; without it, the same hour of last week is the reference."""
