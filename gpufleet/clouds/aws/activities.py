"""Scaling activities in our codes: what each sentence of Auto Scaling means.

People recorded the sentences, AWS documents them, or other projects handle them; each rule names its origin. What no
rule matches is UNKNOWN: it is reported with its text and never counts as missing capacity. docs/cloud-answers.md has
the table.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any, Final

from gpufleet.clouds.aws.reasons import stated_by
from gpufleet.domain.activity import Activity, ActivityKind

FINISHED: Final = frozenset({"Successful", "Failed", "Cancelled"})
"""Status codes of an activity that is over; all others are steps of one that goes on."""
_INSTANCE: Final = re.compile(r"\b(i-[0-9a-f]{8,17})\b")
_PREFIX: Final = re.compile(r"^Could not launch [\w -]+ Instances?\.\s*", re.IGNORECASE)
"""What stands before code and words where the group has a mixed instances policy."""

Rule = tuple[re.Pattern[str], ActivityKind]


def _rules(*rules: tuple[ActivityKind, *tuple[str, ...]]) -> tuple[Rule, ...]:
    """Ordered rules, the first match counts. `^` stands for the start of the words, behind a code as well."""
    return tuple(
        (re.compile(pattern.replace("^", r"(?:^| - )"), re.IGNORECASE), kind)
        for kind, *patterns in rules
        for pattern in patterns
    )


_REFUSALS: Final = _rules(
    # Too many calls. Code: karpenter; words: assumed. Before quotas: RequestLimitExceeded ends in LimitExceeded.
    (
        ActivityKind.THROTTLED,
        r"RequestLimitExceeded|Throttl(ing|ed)",
        r"\b(request|rate)( limit)? exceeded|too many requests|\brate limit\b",
    ),
    # Before capacity, since EC2 gives it the code InsufficientInstanceCapacity (karpenter).
    (ActivityKind.CONFIGURATION, r"\bspread placement group\b"),
    # Code: karpenter; words: user guide. Before capacity, since it says nothing about the zone.
    (
        ActivityKind.RESERVATION_FULL,
        r"ReservationCapacityExceeded",
        r"\breservations?\b.{0,60}\bnot have sufficient\b",
    ),
    # Recorded with and without a code, for spot and on-demand; codes of hosts and volumes: EC2 API reference.
    (
        ActivityKind.NO_CAPACITY,
        r"Insufficient(Instance|Host|Volume)?Capacity|UnfulfillableCapacity",
        r"capacity-not-available|capacity-oversubscribed",
        r"\bnot have sufficient (\S+ )?capacity\b",
        r"\bno (spot|on-demand) capacity available\b",
        r"\bunable to fulfill capacity\b",
        r"\bnot enough capacity to fulfill your\b",
        r"^Insufficient capacity\b",
    ),
    # Words: user guide; codes: EC2's statuses of spot requests.
    (
        ActivityKind.PRICE,
        r"SpotMaxPriceTooLow|price-too-low",
        r"\bprice\b.{0,60}\blower than\b.{0,60}\bprice\b",
    ),
    # Limits of other things than machines, which are no quota of the account.
    (ActivityKind.CONFIGURATION, r"(Tag|Attachment)LimitExceeded|RequestResourceCountExceeded"),
    # Recorded: vCPUs, instances (before there were vCPU limits), spot, fleets, volumes; with and without a code.
    (
        ActivityKind.QUOTA,
        r"\w+LimitExceeded|Max(Spot\w*|Fleet)CountExceeded|QuotaExceeded",
        r"\bmore (vCPU capacity|(\S+ )?instances)\b.{0,40}\byour current\b.{0,30}\blimit\b",
        r"^Max (spot )?(instance|fleet) count exceeded",
        r"\breached (your|the)\b.{0,40}\b(quota|limit)\b|\bquota allows\b",
        r"^\d+ instance\(s\) are already running",
    ),
    # Recorded under three codes and without one: not in this zone, or not for this account.
    (
        ActivityKind.UNSUPPORTED,
        r"\binstance type\b.{0,60}\bnot (currently )?(supported|eligible|offered)\b",
        r"\bconfiguration is (currently )?not supported\b|\bUnsupported\b",
        r"\bZone is (currently )?constrained\b|\bZone is no longer supported\b",
    ),
    # User guide (images, Capacity Blocks); EC2's codes; recorded: a role of a minute ago that is unknown yet.
    (
        ActivityKind.LATER,
        r"\bis pending, and cannot be run\b|\bnot active yet\b",
        r"PendingVerification|\bbeing (verified|validated)\b",
        r"^Authentication failure\b",
        r"ResourceContention|ScalingActivityInProgress",
        r"\b(InternalError|InternalFailure|ServiceUnavailable|Unavailable) - |\binternal (server )?error\b",
    ),
    # The role for the first spot instance of an account: karpenter; a blocked account: recorded; others: EC2's codes.
    (
        ActivityKind.PERMISSION,
        r"UnauthorizedOperation|AuthFailure|AccessDenied|OptInRequired|\bBlocked - ",
        r"\baccess denied\b|\bnot authorized\b|\bnot have permission|\baccept terms and subscribe\b",
        r"\baccount is currently blocked\b",
    ),
    # A list of EC2 that lags behind: no setting is wrong.
    (
        ActivityKind.UNKNOWN,
        r"\bInvalid(InstanceID|NetworkInterfaceID|Volume)\b",
        r"\b(instance|volume) ID '?(i|vol)-",
    ),
    # Codes: EC2 API reference.
    (
        ActivityKind.CONFIGURATION,
        r"InsufficientFreeAddressesInSubnet|\bnot enough free addresses\b",
        r"(?-i:\b(Invalid|Missing|Unknown|Malformed)[A-Z]\w+)|UnsupportedOperation",
    ),
    # Limits in words that nobody has recorded.
    (
        ActivityKind.QUOTA,
        r"\bexceed\w*\b.{0,60}\b(quota|limit)\b",
        r"\b(quota|limit) (was |is |has been )?(exceeded|reached)\b|\bquota for\b.{0,60}\b(exceeded|reached)\b",
    ),
    # User guide, and a recorded event (snapshotId).
    (
        ActivityKind.CONFIGURATION,
        r"\bdoes not (exist|match)\b|\bis (invalid|not valid)\b|^Invalid\b|^Cannot find\b",
        r"\bcan only be\b|\b(may|can) ?not be (used|specified)\b|\bnot supported\b",
        r"\bsmaller than snapshot\b|\bfully-formed launch template\b|\bKMS key\b",
    ),
)
"""What a launch that failed means, by its message."""

_BEFORE_SERVICE: Final = _rules(
    # User guide, whole activities: somebody abandoned the launch hook, or its time was over.
    (ActivityKind.FAILED_BOOT, r"\bLifecycle Action\b.*\babandoned\b"),
    # Recorded, with the instance's StateReason behind it.
    (ActivityKind.FAILED_BOOT, r"\bbecame unhealthy while waiting\b.*\bInService\b"),
)
"""A launch whose instance ended before it was in service."""
_TERMINATION: Final = re.compile(r"Termination Reason: ((?:Client|Server)\.[\w.]+)")
_PART_OF_BOOT: Final = frozenset({ActivityKind.ENDED_UNSTATED, ActivityKind.UNHEALTHY})
"""Ends that are failed boots where the instance was not in service yet: it powered off, or EC2 failed."""

_AFTER_LAUNCH: Final = re.compile(r"in response to a launch failure", re.IGNORECASE)
_ENDS: Final = _rules(
    # Recorded in 2021: follows a launch that was Cancelled.
    (ActivityKind.FAILED_BOOT, _AFTER_LAUNCH.pattern),
    # Recorded from 2014 to 2026, of spot that was taken and of what a person ended or stopped: the group cannot tell.
    (ActivityKind.ENDED_UNSTATED, r"\bhealth[ -]check\b.{0,40}\bterminated or stopped\b"),
    # Never recorded. A rebalance recommendation is EC2's word that it may soon take the instance.
    (
        ActivityKind.PREEMPTED,
        r"\bspot\b.{0,30}\b(interrupt|reclaim)|\binstance interruption\b|Server\.Spot|\bpreempt",
        r"\brebalance recommendation\b",
    ),
    # Recorded: `user health-check` (SetInstanceHealth), ELB; user guide: status checks, a scheduled reboot.
    (ActivityKind.UNHEALTHY, r"\bhealth[ -]checks?\b|\bstatus checks?\b|\bunhealthy\b|\bEC2 scheduled \w+"),
    # Recorded: people, programs and alarms that change sizes, refreshes of instances.
    (
        ActivityKind.ENDED,
        r"\buser request\b|\bdifference between desired and actual\b|\bshrinking the capacity\b",
        r"\binstance refresh\b|balanc(?!er)|\bscheduled action\b|\bmonitor alarm\b|\blifetime\b",
        r"\bselected for termination\b|\bdetach|\bdelet\w+ .{0,20}\bgroup\b|\bgroup .{0,20}\bdelet",
    ),
)
"""What an end means, by its cause."""


def read_activity(raw: Mapping[str, Any]) -> Activity | None:
    """A scaling activity in our codes; None: neither a launch nor an end, or an end that failed.

    A launch that was cancelled because its instance ended has the time of that end; every other activity has the time
    at which it began.
    """
    kind = _kind(raw)
    if kind is None:
        return None
    match = _INSTANCE.search(_text(raw, "Description"))
    began, over = raw["StartTime"], raw.get("EndTime")
    cancelled = raw["StatusCode"] == "Cancelled" and match is not None and over is not None
    return Activity(
        id=raw["ActivityId"],
        group=raw["AutoScalingGroupName"],
        kind=kind,
        at=(max(began, over) if cancelled else began).astimezone(UTC),
        instance_id=match[1] if match else None,
        detail=_message(raw) or _text(raw, "Cause"),
    )


def is_echo(activity: Activity) -> bool:
    """Whether this end only follows a launch that failed: that launch says why, and one boot counts once."""
    return activity.kind is ActivityKind.FAILED_BOOT and _AFTER_LAUNCH.search(activity.detail) is not None


def is_asking(activity: Activity) -> bool:
    """Whether a launch goes on that EC2 has given no instance yet: nobody has answered."""
    return activity.kind is ActivityKind.IN_PROGRESS and activity.instance_id is None


def _kind(raw: Mapping[str, Any]) -> ActivityKind | None:
    what, status = _text(raw, "Description").lower(), raw["StatusCode"]
    if what.startswith(("launching", "placing spot")):
        return _launch(_message(raw), status)
    if not what.startswith(("terminating", "detaching")) or status in ("Failed", "Cancelled"):
        return None
    return _end(_text(raw, "Cause") or _message(raw))


def _launch(message: str, status: str) -> ActivityKind:
    if status not in FINISHED:
        return ActivityKind.IN_PROGRESS
    if status == "Successful":
        return ActivityKind.LAUNCHED
    if _first(_BEFORE_SERVICE, message) is None:
        return _first(_REFUSALS, message) or ActivityKind.UNKNOWN
    match = _TERMINATION.search(message)
    stated = stated_by(match[1]) if match else None
    return ActivityKind.FAILED_BOOT if stated is None or stated in _PART_OF_BOOT else stated


def _end(cause: str) -> ActivityKind:
    if not cause:
        return ActivityKind.ENDED_UNSTATED
    return _first(_ENDS, cause) or ActivityKind.UNKNOWN


def _first(rules: Iterable[Rule], text: str) -> ActivityKind | None:
    text = _PREFIX.sub("", text)
    return next((kind for pattern, kind in rules if pattern.search(text)), None)


def _message(raw: Mapping[str, Any]) -> str:
    """What a failed activity says; it stands in the description, too."""
    return _text(raw, "StatusMessage") or _text(raw, "Description").partition("Status Reason:")[2].strip()


def _text(raw: Mapping[str, Any], name: str) -> str:
    return raw.get(name) or ""
