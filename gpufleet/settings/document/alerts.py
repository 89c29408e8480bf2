"""Thresholds of the alerts: settings and fleet document contain them, the alert rules use them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic import Field

from gpufleet.settings.document.fields import Duration, MoreThanZero, Share, Strict


class AlertsEntry(Strict):
    """Thresholds of the alerts. Shares are numbers from 0 to 1, durations are written as `15m`."""

    gpu_active_below: Share = 0.30
    """GpuWasted: mean `gpu_active` of a pool."""
    gpu_active_above: Share = 0.95
    """GpuSaturated: mean `gpu_active` of a pool."""
    gpu_active_for: Duration = timedelta(minutes=15)
    """How long both must hold."""
    gpu_memory_above: Share = 0.90
    """GpuMemoryGrowing: used share of the memory, together with `gpu_memory_growth`."""
    gpu_memory_growth: Share = 0.02
    """Growth within an hour, as a share of the memory. Engines allocate memory at start, so growth is unusual."""
    temperature_above: MoreThanZero = 83
    """GpuHot: °C."""
    tokens_drop: Share = 0.20
    """TokensDropped: how far the output of a busy pool may fall below its reference, as a share of the reference."""
    running_below: MoreThanZero = 4
    """BatchesTooSmall: mean number of running requests of an instance while others of its pool wait."""
    queue_from: MoreThanZero = 10
    """QueueGrowing: number of waiting requests of a pool."""
    cold_start_above: Duration = timedelta(seconds=120)
    """ColdStartSlow: time to load the model, start the engine and warm it up."""
    kv_cache_above: Share = 0.90
    """KvCacheFull: used share of the KV cache of an instance."""
    errors_above: Share = 0.01
    """ErrorsHigh: share of the requests to a pool that fail."""
    preemptions_per_hour: MoreThanZero = 3
    """SpotLossHigh: number of preempted instances of a pool."""
    fallback_share_above: Share = 0.30
    """FallbackExpensive: share of on-demand in the cost of a pool that has spot."""
    idle_share_above: Share = 0.30
    """IdleSpend: share of idle time in the cost of a pool."""
    burn_fast: MoreThanZero = 2.0
    """BudgetBurnFast: multiple of the budget's even rate, over an hour."""
    burn_slow: MoreThanZero = 1.2
    """BudgetBurnSlow: multiple of the budget's even rate, over a day."""
    watchdog_silent: Duration = timedelta(minutes=15)
    """WatchdogSilent: time since the last successful pass of a watchdog."""
    ledger_gap: Duration = timedelta(minutes=10)
    """LedgerGap: age of the newest costs in the ledger."""
    certificate_ends: Duration = timedelta(days=14)
    """CertificateEnding: time until a certificate expires."""
    metrics_missing: Duration = timedelta(minutes=5)
    """MetricsMissing and AllMetricsMissing: how long an instance, or all, may give no metrics."""
    cache_retries_above: MoreThanZero = 50
    """CacheSyncFailing: number of repeated range reads of a model within ten minutes."""
    quota_above: Share = 0.80
    """QuotaNear: used share of an account's quota."""

    def settings(
        self, latency_p99_s: Mapping[str, float], tokens_per_s: Mapping[str, float], spot_pools: Sequence[str]
    ) -> "AlertSettings":
        """Combine the thresholds with the objectives of the pools and the names of those that have spot."""
        of_pools = {
            "latency_p99_s": latency_p99_s,
            "reference_tokens_per_s": tokens_per_s,
            "spot_pools": tuple(spot_pools),
        }
        given: dict[str, Any] = {**self.__dict__, **of_pools}
        return AlertSettings(**given)


class AlertSettings(AlertsEntry):
    """The thresholds of an environment and the facts about its pools: the input of the alert rules."""

    latency_p99_s: Mapping[str, float] = Field(default_factory=dict[str, float])
    """Pool -> objective in seconds; a pool without an objective has no latency alert."""
    reference_tokens_per_s: Mapping[str, float] = Field(default_factory=dict[str, float])
    """Pool -> known output when busy; without it, the same hour of last week is the reference."""
    spot_pools: tuple[str, ...] = ()
    """Pools that have spot capacity: only for them is on-demand a fallback."""
