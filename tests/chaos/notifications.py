"""Checks which notifications people must and must not receive, from the billing log, the faults and Prometheus.

The outbox is not a source: the checks detect an outbox that loses a message or has it twice.
"""

import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import boto3

from tests.chaos.evidence import ENDED_BY_US, REGION, RunRecord, Span, Verdict, epoch, key, read
from tests.fixtures.local_token import KEYS

ASKED_BEFORE: Final = timedelta(minutes=6)
"""The longest time between a request for on-demand and its launch, without capacity and with the clock set back."""
ASKED_AFTER: Final = timedelta(minutes=1, seconds=30)
"""Messages name the minute of the request."""
TAKEN_BACK_S: Final = 15.0
"""A younger instance ends with a request that was withdrawn during the launch. The resize is reported, the end is
not."""
NOTIFIED_AFTER_S: Final = 20.0
"""An alert that fires this long requires a notification: ten times the group wait of Alertmanager here."""
APART_S: Final = 90.0
"""Two alerts of a group that are further apart need two notifications. The end of an alert is notified within
this time."""
MISSED_S: Final = 2.5
"""Rules are evaluated each second. In a longer gap an alert may have ended and fired again."""
LOSSES_MUST: Final = 4
LOSSES_MAY: Final = 3
"""Spot instances of a pool that the cloud interrupts within an hour: from LOSSES_MUST the alert must fire, below
this number it must not."""
MISSING_S: Final = 150.0
"""GPUs that are missing longer require a notification: the rule waits two minutes."""
NEVER: Final = frozenset(
    {
        "AllMetricsMissing", "BudgetBurnFast", "BudgetBurnSlow", "CertificateEnding", "GpuHot", "GpuMemoryGrowing",
        "KvCacheFull", "LatencyHigh", "QuotaNear", "TokensDropped",
    }
)  # fmt: skip
"""Alerts that no fault causes, however slow the machine is. Each of them is a false alarm."""
HUSHED: Final = {
    "MetricsMissing": "AllMetricsMissing",
    "QueueGrowing": "RequestsHeld",
    "BootFailing": "CacheSyncFailing",
}
"""While the second alert fires, it inhibits the first."""
_HEAD: Final = re.compile(r"(?P<end>Resolved: )?(?P<name>\w+)(?: \((?P<where>[^)]*)\))?")
_DRY: Final = re.compile(r"Pool chat: no spot capacity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """One uninterrupted period in which an alert fires, from the data of Prometheus."""

    name: str
    pool: str
    instance: str
    span: Span


def notified_events(billing_log: Iterable[Mapping[str, Any]], sink: Iterable[Mapping[str, Any]]) -> Verdict:
    """Every event that the cloud recorded was notified once, whether or not a message was queued.

    Events are each termination that was requested, the mark of each idle instance before its end, and each
    fallback launch.
    """
    keys = [key(one) for one in sink]
    asks = [datetime.strptime(f"{one[-13:]}+0000", "%Y%m%dt%H%M%z") for one in keys if ":fallback:chat-" in one]
    wrong: list[str] = []
    due = 0
    for stay in billing_log:
        name, launched = stay["instance"], datetime.fromtimestamp(epoch(stay["launched"]), UTC)
        wanted: dict[str, bool] = {}
        ends = sum(one.endswith(f"ended:{name}") for one in keys)
        if stay["why"] == ENDED_BY_US:
            if epoch(stay["ended"]) - epoch(stay["launched"]) > TAKEN_BACK_S:
                wanted["end"] = ends > 0
            if stay["pool"] == "batch":
                wanted["mark"] = any(f"marked:{name}:" in one for one in keys)
        if stay["pool"] == "chat" and stay["capacity_type"] == "on-demand":
            wanted["fallback"] = any(launched - ASKED_BEFORE <= at <= launched + ASKED_AFTER for at in asks)
        due += len(wanted)
        wrong += [f"no notification of the {what} of {name}" for what, found in wanted.items() if not found]
        wrong += [f"the end of {name} was notified {ends} times"] if ends > 1 else []
    wrong += [f"{one} was posted {count} times" for one, count in Counter(keys).items() if count > 1]
    return Verdict(what="notified events", seen=f"the billing log requires {due} messages", wrong=tuple(wrong))


# alerts


def fired(prometheus: str) -> list[Fired]:
    """Every alert that fired, from the data of Prometheus."""
    query = urllib.parse.urlencode({"query": 'ALERTS{alertstate="firing"}[6h]'})
    found: list[Fired] = []
    for series in read(f"{prometheus}/api/v1/query?{query}")["data"]["result"]:
        labels = series["metric"]
        found += [
            Fired(
                name=labels["alertname"],
                pool=labels.get("pool", ""),
                instance=labels.get("instance_id", ""),
                span=span,
            )
            for span in spans((float(at) for at, _ in series["values"]), MISSED_S)
        ]
    return found


def spans(moments: Iterable[float], apart_s: float) -> list[Span]:
    """Group moments into spans: consecutive ones at most `apart_s` apart form one span."""
    times = sorted(moments)
    if not times:
        return []
    breaks = [(before, after) for before, after in pairwise(times) if after - before > apart_s]
    return list(zip([times[0], *(b for _, b in breaks)], [*(a for a, _ in breaks), times[-1]], strict=True))


def alerts(seen: Sequence[Fired], sink: Iterable[Mapping[str, Any]], record: RunRecord) -> Verdict:
    """Exactly the alerts that the faults require fired. Each was notified once, and its end once."""
    received = [_Notification.of(one) for one in sink if "alert/" in key(one)]
    wrong = [*_due(seen, received, record), *_losses(seen, record), *_for_nothing(seen, received, record)]
    groups = sorted({(one.name, one.pool) for one in seen})
    for name, pool in groups:
        wrong += _of_group(name, pool, seen, received, record.blind)
    known = Counter(f"{one.name} of {one.pool}" for one in received if (one.name, one.pool) not in groups)
    wrong += [f"notification of {what}, which never fired" for what in known]
    names = Counter(one.name for one in received if not one.ends)
    notified = ", ".join(f"{name} {count}" for name, count in sorted(names.items())) or "none"
    return Verdict(what="alerts", seen=f"{len(groups)} groups fired; notified: {notified}", wrong=tuple(wrong))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notification:
    """One message about alerts, parsed from its text."""

    name: str
    pool: str
    ends: bool
    text: str

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "_Notification":
        text = json.dumps(message, ensure_ascii=False)
        head = _HEAD.match(str(message.get("text", "")))
        if head is None:
            return cls(name="", pool="", ends=False, text=text)
        where = dict(part.split(" ", 1) for part in (head["where"] or "").split(", ") if " " in part)
        return cls(name=head["name"], pool=where.get("pool", ""), ends=head["end"] is not None, text=text)


def _due(seen: Sequence[Fired], received: Sequence[_Notification], record: RunRecord) -> Iterator[str]:
    """Each broken GPU has its alert, and the message names the instance."""
    for gpu in record.broken:
        wanted = {"GpuErrors": gpu.error}
        if gpu.missing[1] - gpu.missing[0] > MISSING_S:
            wanted["GpuGone"] = gpu.missing
        for name, (began, ended) in wanted.items():
            if not any(
                one.name == name
                and one.instance == gpu.instance
                and one.span[0] <= ended + APART_S
                and one.span[1] >= began
                for one in seen
            ):
                yield f"{name} of {gpu.instance} did not fire"
            if not any(one.name == name and not one.ends and gpu.instance in one.text for one in received):
                yield f"no notification of {name} of {gpu.instance}"


def _losses(seen: Sequence[Fired], record: RunRecord) -> Iterator[str]:
    """Too many spot interruptions within an hour, whether or not the instances drained in time."""
    most = max((sum(at - 3600 <= other <= at for other in record.notices) for at in record.notices), default=0)
    has_fired = any(one.name == "SpotLossHigh" and one.pool == "chat" for one in seen)
    if most >= LOSSES_MUST and not has_fired:
        yield f"the cloud took {most} spot instances within an hour and SpotLossHigh did not fire"
    if most < LOSSES_MAY and has_fired:
        yield f"SpotLossHigh fired for {most} spot instances within an hour"


def _for_nothing(seen: Sequence[Fired], received: Sequence[_Notification], record: RunRecord) -> Iterator[str]:
    broken = {gpu.instance for gpu in record.broken}
    for one in seen:
        if one.name in ("GpuErrors", "GpuGone") and one.instance not in broken:
            yield f"{one.name} fired for {one.instance}, which no fault broke"
    names = {one.name for one in seen} | {one.name for one in received}
    yield from (f"{name} fired, and no fault causes it" for name in sorted(names & NEVER))


def _of_group(
    name: str, pool: str, seen: Sequence[Fired], received: Sequence[_Notification], blind: Sequence[Span]
) -> Iterator[str]:
    """At least one message for each separate alert, and at most one for each time that it started or ended."""
    own = [one.span for one in seen if (one.name, one.pool) == (name, pool)]
    separate = _joined(own, blind)
    long = [span for span in separate if span[1] - span[0] >= NOTIFIED_AFTER_S]
    until = max(one.span[1] for one in seen)
    hushed = HUSHED.get(name) in {one.name for one in seen}
    least = {False: 0 if hushed else len(long), True: 0 if hushed else sum(s[1] < until - APART_S for s in long)}
    for ends in (False, True):
        count = sum((one.name, one.pool, one.ends) == (name, pool, ends) for one in received)
        what = f"the end of {name} of {pool}" if ends else f"{name} of {pool}"
        if count < least[ends]:
            yield f"{what}: notified {count} times, expected at least {least[ends]}"
        if count > len(own):
            yield f"{what}: notified {count} times, it fired {len(own)} times"


def _joined(parts: Iterable[Span], blind: Sequence[Span]) -> list[Span]:
    """Merge spans that overlap or are near each other. Time without Prometheus does not separate them."""
    found: list[Span] = []
    for began, ended in sorted(parts):
        if found and began - found[-1][1] - _within(blind, found[-1][1], began) <= APART_S:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((began, ended))
    return found


def _within(blind: Iterable[Span], began: float, ended: float) -> float:
    return sum(max(0.0, min(ended, until) - max(began, since)) for since, until in blind)


# no spot in any zone


def refusals(cloud: str) -> Mapping[str, Sequence[float]]:
    """When each spot group of chat was refused an instance, from the scaling activities of the cloud."""
    session = boto3.Session(*KEYS.values(), region_name=REGION)
    scaling: Any = session.client("autoscaling", endpoint_url=cloud)
    groups = read(f"{cloud}/_localcloud/state")["groups"]
    names = [one["name"] for one in groups if (one["pool"], one["capacity_type"]) == ("chat", "spot")]
    pages = scaling.get_paginator("describe_scaling_activities")
    return {
        name: [
            activity["StartTime"].timestamp()
            for page in pages.paginate(AutoScalingGroupName=name)
            for activity in page["Activities"]
            if activity["StatusCode"] == "Failed"
        ]
        for name in names
    }


def dry(refused: Mapping[str, Sequence[float]], sink: Iterable[Mapping[str, Any]], record: RunRecord) -> Verdict:
    """A lack of spot in all zones is notified once a day if all groups were refused repeatedly, and never if a
    zone had capacity."""
    days = Counter(key(one)[-8:] for one in sink if _DRY.search(str(one.get("text", ""))))
    due = [
        (began, ended)
        for began, ended in record.dry
        if all(sum(began <= at <= ended for at in times) >= 2 for times in refused.values())  # noqa: PLR2004 - two refusals are a whole pass apart
    ]
    wrong = [f"notified {count} times on {day}" for day, count in days.items() if count > 1]
    if due and not days:
        wrong.append(f"no zone had spot capacity {len(due)} times, and no message was posted")
    if days and not record.dry:
        wrong.append(f"notified on {', '.join(days)}, although spot capacity was available")
    seen = (
        f"{len(record.dry)} times without spot, {len(due)} of them require a message; {sum(days.values())} messages"
    )
    return Verdict(what="no spot", seen=seen, wrong=tuple(wrong))
