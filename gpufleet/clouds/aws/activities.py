"""Translates scaling activities of Auto Scaling into activity kinds, by the text of their messages.

The texts are recorded, documented by AWS, or handled by other projects; a comment at each rule states the source. A
text that matches no rule is UNKNOWN: it is reported as it is, and never counts as missing capacity.
docs/cloud-answers.md has the table.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any, Final

from gpufleet.clouds.aws.reasons import kind_of_code
from gpufleet.domain.activity import Activity, ActivityKind

FINISHED: Final = frozenset({"Successful", "Failed", "Cancelled"})
"""Status codes of a finished activity. All other codes are steps of an activity in progress."""
_INSTANCE: Final = re.compile(r"\b(i-[0-9a-f]{8,17})\b")
_PREFIX: Final = re.compile(r"^Could not launch [\w -]+ Instances?\.\s*", re.IGNORECASE)
"""Prefix of the code and the message if the group has a mixed instances policy."""

Rule = tuple[re.Pattern[str], ActivityKind]


def _rules(*rules: tuple[ActivityKind, *tuple[str, ...]]) -> tuple[Rule, ...]:
    """Ordered rules; the first match counts. `^` matches the start of the message, also after an error code."""
    return tuple(
        (re.compile(pattern.replace("^", r"(?:^| - )"), re.IGNORECASE), kind)
        for kind, *patterns in rules
        for pattern in patterns
    )


_REFUSALS: Final = _rules(
    # API rate limits. Code: karpenter; message: assumed. Before quotas: RequestLimitExceeded ends in LimitExceeded.
    (
        ActivityKind.THROTTLED,
        r"RequestLimitExceeded|Throttl(ing|ed)",
        r"\b(request|rate)( limit)? exceeded|too many requests|\brate limit\b",
    ),
    # Before capacity, because EC2 uses the code InsufficientInstanceCapacity here too (karpenter).
    (ActivityKind.CONFIGURATION, r"\bspread placement group\b"),
    # Code: karpenter; message: user guide. Before capacity, because it gives no information about the zone.
    (
        ActivityKind.RESERVATION_FULL,
        r"ReservationCapacityExceeded",
        r"\breservations?\b.{0,60}\bnot have sufficient\b",
    ),
    # Recorded with and without a code, for spot and on-demand. Codes for hosts and volumes: EC2 API reference.
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
    # Messages: user guide; codes: EC2 spot request status codes.
    (
        ActivityKind.PRICE,
        r"SpotMaxPriceTooLow|price-too-low",
        r"\bprice\b.{0,60}\blower than\b.{0,60}\bprice\b",
    ),
    # Limits of other resources than instances. They are not account quotas.
    (ActivityKind.CONFIGURATION, r"(Tag|Attachment)LimitExceeded|RequestResourceCountExceeded"),
    # Recorded with and without a code: vCPUs, instances (before vCPU limits existed), spot, fleets, volumes.
    (
        ActivityKind.QUOTA,
        r"\w+LimitExceeded|Max(Spot\w*|Fleet)CountExceeded|QuotaExceeded",
        r"\bmore (vCPU capacity|(\S+ )?instances)\b.{0,40}\byour current\b.{0,30}\blimit\b",
        r"^Max (spot )?(instance|fleet) count exceeded",
        r"\breached (your|the)\b.{0,40}\b(quota|limit)\b|\bquota allows\b",
        r"^\d+ instance\(s\) are already running",
    ),
    # Recorded with three codes and without one: not available in this zone, or not for this account.
    (
        ActivityKind.UNSUPPORTED,
        r"\binstance type\b.{0,60}\bnot (currently )?(supported|eligible|offered)\b",
        r"\bconfiguration is (currently )?not supported\b|\bUnsupported\b",
        r"\bZone is (currently )?constrained\b|\bZone is no longer supported\b",
    ),
    # User guide (images, Capacity Blocks) and EC2 codes. Recorded: a role created a minute ago is not yet known.
    (
        ActivityKind.LATER,
        r"\bis pending, and cannot be run\b|\bnot active yet\b",
        r"PendingVerification|\bbeing (verified|validated)\b",
        r"^Authentication failure\b",
        r"ResourceContention|ScalingActivityInProgress",
        r"\b(InternalError|InternalFailure|ServiceUnavailable|Unavailable) - |\binternal (server )?error\b",
    ),
    # Missing role for the first spot instance of an account: karpenter. Blocked account: recorded. Others: EC2 codes.
    (
        ActivityKind.PERMISSION,
        r"UnauthorizedOperation|AuthFailure|AccessDenied|OptInRequired|\bBlocked - ",
        r"\baccess denied\b|\bnot authorized\b|\bnot have permission|\baccept terms and subscribe\b",
        r"\baccount is currently blocked\b",
    ),
    # EC2's data is not consistent yet: the configuration is correct.
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
    # Other messages about limits; never recorded.
    (
        ActivityKind.QUOTA,
        r"\bexceed\w*\b.{0,60}\b(quota|limit)\b",
        r"\b(quota|limit) (was |is |has been )?(exceeded|reached)\b|\bquota for\b.{0,60}\b(exceeded|reached)\b",
    ),
    # User guide; the snapshot message (snapshotId) is recorded.
    (
        ActivityKind.CONFIGURATION,
        r"\bdoes not (exist|match)\b|\bis (invalid|not valid)\b|^Invalid\b|^Cannot find\b",
        r"\bcan only be\b|\b(may|can) ?not be (used|specified)\b|\bnot supported\b",
        r"\bsmaller than snapshot\b|\bfully-formed launch template\b|\bKMS key\b",
    ),
)
"""Kinds of failed launches, by message."""

_BEFORE_SERVICE: Final = _rules(
    # User guide, complete activities: the launch hook was abandoned, or it timed out.
    (ActivityKind.FAILED_BOOT, r"\bLifecycle Action\b.*\babandoned\b"),
    # Recorded, followed by the instance's StateReason.
    (ActivityKind.FAILED_BOOT, r"\bbecame unhealthy while waiting\b.*\bInService\b"),
)
"""Messages of a launch whose instance terminated before it was in service."""
_TERMINATION: Final = re.compile(r"Termination Reason: ((?:Client|Server)\.[\w.]+)")
_PART_OF_BOOT: Final = frozenset({ActivityKind.ENDED_UNSTATED, ActivityKind.UNHEALTHY})
"""Reasons that count as a failed boot if the instance was not yet in service: it powered off, or EC2 failed."""

_AFTER_LAUNCH: Final = re.compile(r"in response to a launch failure", re.IGNORECASE)
_ENDS: Final = _rules(
    # Recorded in 2021: it follows a launch with the status Cancelled.
    (ActivityKind.FAILED_BOOT, _AFTER_LAUNCH.pattern),
    # Recorded from 2014 to 2026, for preempted spot instances and for instances that a person terminated or stopped:
    # the group does not distinguish them.
    (ActivityKind.ENDED_UNSTATED, r"\bhealth[ -]check\b.{0,40}\bterminated or stopped\b"),
    # Never recorded. With a rebalance recommendation, EC2 announces that it may soon reclaim the instance.
    (
        ActivityKind.PREEMPTED,
        r"\bspot\b.{0,30}\b(interrupt|reclaim)|\binstance interruption\b|Server\.Spot|\bpreempt",
        r"\brebalance recommendation\b",
    ),
    # Recorded: `user health-check` (SetInstanceHealth), ELB. User guide: status checks, a scheduled reboot.
    (ActivityKind.UNHEALTHY, r"\bhealth[ -]checks?\b|\bstatus checks?\b|\bunhealthy\b|\bEC2 scheduled \w+"),
    # Recorded: size changes by people, programs and alarms; instance refreshes.
    (
        ActivityKind.ENDED,
        r"\buser request\b|\bdifference between desired and actual\b|\bshrinking the capacity\b",
        r"\binstance refresh\b|balanc(?!er)|\bscheduled action\b|\bmonitor alarm\b|\blifetime\b",
        r"\bselected for termination\b|\bdetach|\bdelet\w+ .{0,20}\bgroup\b|\bgroup .{0,20}\bdelet",
    ),
)
"""Kinds of terminations, by cause."""


def read_activity(raw: Mapping[str, Any]) -> Activity | None:
    """Translate a scaling activity. None if it is not a launch or termination, or if a termination failed.

    The time of an activity is its start. Exception: a launch that was cancelled because its instance terminated has
    the time of the termination.
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


def follows_failed_launch(activity: Activity) -> bool:
    """Whether this termination only follows a failed launch. The launch states the cause; each boot counts once."""
    return activity.kind is ActivityKind.FAILED_BOOT and _AFTER_LAUNCH.search(activity.detail) is not None


def is_asking(activity: Activity) -> bool:
    """Whether a launch is in progress and EC2 has not assigned an instance yet."""
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
    stated = kind_of_code(match[1]) if match else None
    return ActivityKind.FAILED_BOOT if stated is None or stated in _PART_OF_BOOT else stated


def _end(cause: str) -> ActivityKind:
    if not cause:
        return ActivityKind.ENDED_UNSTATED
    return _first(_ENDS, cause) or ActivityKind.UNKNOWN


def _first(rules: Iterable[Rule], text: str) -> ActivityKind | None:
    text = _PREFIX.sub("", text)
    return next((kind for pattern, kind in rules if pattern.search(text)), None)


def _message(raw: Mapping[str, Any]) -> str:
    """Status message of an activity, else the reason in its description."""
    return _text(raw, "StatusMessage") or _text(raw, "Description").partition("Status Reason:")[2].strip()


def _text(raw: Mapping[str, Any], name: str) -> str:
    return raw.get(name) or ""
