"""The query for accelerators of all instances of a selector, by canonical metrics, whichever kind they are."""

import json
from datetime import timedelta
from typing import Final

from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.contract import Scope
from serving.accelerators.queries import (
    DEVICE_LABEL,
    DOUBT_LABEL,
    KIND_LABEL,
    SCOPE_LABEL,
    SLICE_LABEL,
    TENANT_LABEL,
    VETO,
    misnamed_shares,
    scaled,
)
from serving.engines.reading import EVIDENCE
from serving.metrics import Metric, MetricKind
from watchdogs.promql import SeriesSelector, intervals_of, milliseconds, recent, seconds, sum_of, together, union

_KNOWN: Final = timedelta(minutes=30)
"""For how long the kind of a machine is known that reports no accelerator, since its programs have ended."""
_BLANK_BYTES: Final = 1 << 50
"""At least as many bytes are a value for "no measurement"."""
_BLANK_WATTS: Final = (0, 2**16 - 1, 2**32 - 1, *range(2**31 - 16, 2**31 - 12))
"""Values for "no measurement": AMD's exporter writes 0 or all bits, DCGM one of its blanks."""
_MEASURED_WATTS: Final = f"{' '.join(f'!= {value}' for value in _BLANK_WATTS)} < {2**47}"
_EMPTY: Final = '""'
_KIND: Final = f"instance_id, {KIND_LABEL}"
_DEVICE: Final = f"{_KIND}, {DEVICE_LABEL}"
_UNIT: Final = f"{_DEVICE}, {SLICE_LABEL}"


def _of_rules(*named: str) -> tuple[Metric, ...]:
    """The metrics of all contracts' evidence rules, each once."""
    found: dict[Metric, None] = {}
    for contract in CONTRACTS.values():
        for name in named:
            value: Metric | tuple[Metric, ...] | None = getattr(contract.evidence, name)
            found |= dict.fromkeys(value if isinstance(value, tuple) else () if value is None else (value,))
    return tuple(found)


_IDLE: Final = _of_rules("idle")
_PULSES: Final = _of_rules("pulse")
CLOCKS: Final = _of_rules("clock")
_CLOCK_STEP: Final = max(one.evidence.window for one in CONTRACTS.values() if one.evidence.clock is not None)
"""Within this time a clock may stand still: exporters do not update it with every scrape."""
COUNTERS: Final = tuple(metric for metric in _of_rules("work") if metric.kind is MetricKind.COUNTER)
_CORES: Final = tuple(
    contract.identity.cores for contract in CONTRACTS.values() if contract.identity.cores is not None
)
_DEVICE_LABELS: Final = tuple(
    dict.fromkeys(label for contract in CONTRACTS.values() for label in contract.identity.device)
)


def accelerator_query(series: SeriesSelector, window: timedelta, interval: timedelta) -> str:
    """All signals of accelerators, in one expression."""
    chosen = f'job="{series.gpu_job}",{series.labels}'
    return union(
        {
            **_activity(chosen, window),
            **_completeness(chosen, window, interval),
            **_units(chosen, window),
            **_pulses(chosen, window, interval),
            **_power(chosen, window, interval),
            **_memory(chosen),
        }
    )


def _proving(chosen: str) -> str:
    return f'{chosen},{EVIDENCE}!="{VETO}"'


def _activity(chosen: str, window: timedelta) -> dict[str, str]:
    proving, coarse = _proving(chosen), f'{chosen},{EVIDENCE}="{VETO}"'

    def over(function: str, matchers: str) -> str:
        return scaled(metrics.ACTIVE, matchers, (function, window))

    found = {
        "active": f"max by (instance_id) {over('max_over_time', proving)}",
        "lowest": f"min by (instance_id) {over('min_over_time', proving)}",
        "util": f"max by (instance_id) {over('max_over_time', coarse)}",
        "misnamed": f"max by (instance_id) {misnamed_shares(proving, ('max_over_time', window))}",
    }
    for metric in COUNTERS:
        changes = f"changes({metric}{{{chosen}}}[{seconds(window)}])"
        found[f"work:{metric}"] = f"sum by (instance_id) ({changes})"
    for metric in CLOCKS:
        found[f"clock:{metric}"] = f"min by (instance_id) {scaled(metric, chosen, ('last_over_time', window))}"
        # the time since a unit last computed only falls when it computes
        found[f"work:{metric}"] = f"sum by (instance_id) (resets({metric}{{{chosen}}}[{seconds(window)}]))"
        rate = scaled(metric, chosen, ("deriv", window))
        found |= {f"{bound}_rate:{metric}": f"{bound} by (instance_id) {rate}" for bound in ("min", "max")}
    return found


def _completeness(chosen: str, window: timedelta, interval: timedelta) -> dict[str, str]:
    whole, proving = seconds(window), _proving(chosen)
    active = f"{metrics.ACTIVE}{{{proving}}}"
    needed = dict.fromkeys((*_IDLE, *_PULSES, *CLOCKS))
    counts = [f"count_over_time({metric}{{{proving}}}[{whole}])" for metric in needed]
    answered = f"sum_over_time(up{{{chosen}}}[{whole}])"
    coarse = f'count_over_time({metrics.ACTIVE}{{{chosen},{EVIDENCE}="{VETO}"}}[{whole}])'
    pages = together(*counts, answered, coarse)
    highest, lowest = (f"{bound} by (instance_id, instance)" for bound in ("max", "min"))
    numbers = [f"{metric}{{{chosen}}}" for metric in needed]
    return {
        "sum": sum_of(whole, *numbers),
        "count": f"min by (instance_id) ({together(*counts, answered)})",
        # a page without a series of a unit proves nothing about it: each page is compared with itself
        "missed": f"max by (instance_id) ({highest} ({pages}) - {lowest} ({together(*counts)}))",
        "intervals": f"min by (instance_id) ({intervals_of(active, window, interval)})",
        "newest": f"min by (instance_id) (timestamp({active}))",
        "answers": f"min by (instance_id) (up{{{chosen}}})",
    }


def _units(chosen: str, window: timedelta) -> dict[str, str]:
    whole, proving = seconds(window), _proving(chosen)

    def every(matchers: str, span: str = whole) -> str:
        # it keeps names: without them, several metrics of a device can have the same labels, which is an error
        return f'last_over_time({{__name__=~"{metrics.PREFIX}.+",{chosen}{matchers}}}[{span}])'

    owned = f',{SCOPE_LABEL}!="{Scope.HOST}",{SLICE_LABEL}'
    measured = f"count_over_time({metrics.ACTIVE}{{{proving}}}[{whole}])"
    # numbers of a device that is divided are of no unit: its slices are enough
    devices = f"group by ({_DEVICE}) ({every(f'{owned}={_EMPTY}')}) unless group by ({_DEVICE}) ({measured})"
    slices = f"group by ({_UNIT}) ({every(f'{owned}!={_EMPTY}')}) unless group by ({_UNIT}) ({measured})"
    tenants = f"group by ({_UNIT}, {TENANT_LABEL}) ({every(f',{TENANT_LABEL}!={_EMPTY}')})"
    found = {
        "kind": f"count by ({_KIND}) ({every('')})",
        **({"known": f"count by ({_KIND}) ({every('', seconds(_KNOWN))})"} if window < _KNOWN else {}),
        "unproved_devices": f"count by ({_KIND}) ({devices})",
        "unproved_slices": f"count by ({_KIND}) ({slices})",
        "shared": f"count by ({_KIND}) (count by ({_UNIT}) ({tenants}) > 1)",
        "doubt": f"count by (instance_id, {DOUBT_LABEL}) ({every(f',{DOUBT_LABEL}!={_EMPTY}')})",
        "units": f"count by ({_KIND}) (group by ({_UNIT}) ({metrics.ACTIVE}{{{proving}}}))",
        "gpus": _devices(metrics.ACTIVE, proving),
    }
    for metric in _IDLE:
        found[f"proof:{metric}"] = f"count by ({_KIND}) (count_over_time({metric}{{{proving}}}[{whole}]))"
    for rule in _CORES:
        where = "".join(f",{label}=~{json.dumps(value)}" for label, value in sorted(rule.where.items()))
        found[f"cores:{rule.label}"] = f"count by (instance_id, {rule.label}) ({rule.series}{{{chosen}{where}}})"
    return found


def _devices(metric: Metric, matchers: str) -> str:
    """Number of devices. One with two names counts once, and so do two with one name."""
    names = (
        f'count by ({_KIND}) (count by ({_KIND}, {label}) ({metric}{{{matchers},{label}!=""}}))'
        for label in _DEVICE_LABELS
    )
    return f"min by ({_KIND}) ({together(*names)})"


def _pulses(chosen: str, window: timedelta, interval: timedelta) -> dict[str, str]:
    whole, late = seconds(window), seconds(recent(window, interval))
    found: dict[str, str] = {}
    for metric in CLOCKS:
        part = max(recent(window, interval), _CLOCK_STEP)
        found[f"changes:{metric}"] = f"min by ({_KIND}) ({_least_changes(metric, chosen, window, part, interval)})"
    for metric in _PULSES:
        least = _least_changes(metric, chosen, window, recent(window, interval), interval)
        found[f"changes:{metric}"] = f"min by ({_KIND}) ({least})"
        found[f"pulse:{metric}"] = f"min by ({_KIND}) (changes({metric}{{{chosen}}}[{late}]))"
        found[f"top:{metric}"] = f"max by ({_KIND}) (max_over_time({metric}{{{chosen}}}[{whole}]))"
        found[f"metered:{metric}"] = _devices(metric, chosen)
    return found


def _least_changes(metric: Metric, chosen: str, window: timedelta, part: timedelta, interval: timedelta) -> str:
    """The fewest changes of a number in any part of the window: an exporter can freeze and resume."""
    series = f"{metric}{{{chosen}}}[{seconds(min(part, window))}]"
    if part >= window:
        return f"changes({series})"
    # a part with few samples, next to a gap, shows nothing
    enough = f"count_over_time({series}) >= {max(2, part // interval / 2):g}"
    rest, step = milliseconds(window - part), milliseconds(part / 2)
    return f"min_over_time((changes({series}) and {enough})[{rest}:{step}])"


def _power(chosen: str, window: timedelta, interval: timedelta) -> dict[str, str]:
    drawn = f"max by (instance_id, {DEVICE_LABEL}) {scaled(metrics.ENERGY, chosen, ('rate', window))}"

    def power(bound: str, labels: str = "instance_id") -> str:
        measured = f"{scaled(metrics.POWER, chosen, (f'{bound}_over_time', window))} {_MEASURED_WATTS}"
        return f"{bound} by ({labels}) ({measured})"

    device = f"instance_id, {DEVICE_LABEL}"
    return {
        "watts": f"max by (instance_id) ({_peak(chosen, window, interval)})",
        "drawn_min": f"min by (instance_id) ({drawn})",
        "power_max": power("max"),
        "power_min": power("min"),
        "above_power": f"max by (instance_id) ({drawn} / {power('max', device)})",
        "below_power": f"min by (instance_id) ({drawn} / {power('min', device)})",
    }


def _peak(chosen: str, window: timedelta, interval: timedelta) -> str:
    """Highest mean power of each device over a fifth of the window: a mean over the window hides short peaks."""
    span = max(window / 5, 8 * interval)
    if span >= window:
        return scaled(metrics.ENERGY, chosen, ("rate", window))
    # a gap that coverage allows is half as long: one of the steps covers both its ends
    rest, step = milliseconds(window - span), milliseconds(span / 4)
    return f"max_over_time({scaled(metrics.ENERGY, chosen, ('rate', span))}[{rest}:{step}])"


def _memory(chosen: str) -> dict[str, str]:
    used, free, total = (
        f"max by ({_UNIT}) ({scaled(metric, chosen)} < {_BLANK_BYTES})"
        for metric in (metrics.MEMORY_USED, metrics.MEMORY_FREE, metrics.MEMORY_TOTAL)
    )
    whole = f"({total} or {used} + {free})"
    return {
        "memory_max": f"max by (instance_id) ({whole} or {used})",
        "memory_min": f"min by (instance_id) {whole}",
    }


def highest_active(labels: str, window: timedelta) -> str:
    """Query for the highest `gpu_active` by instance, 0 to 1, from any job."""
    return f"max by (instance_id) {scaled(metrics.ACTIVE, _proving(labels), ('max_over_time', window))}"
