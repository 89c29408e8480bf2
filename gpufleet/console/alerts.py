"""What Alertmanager posts, as messages: one for a group, one more when it is over. Pure.

Alertmanager has grouped already (five hundred instances failing are one group of one post); the key of a message is
its group and its moment, so that a repeated post is one message, and so is a storm that grows while it is told.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, cast

MOST_BYTES: Final = 4 * 1024 * 1024
WAVE: Final = timedelta(hours=1)
"""Alerts that join a group within this long of its first are no news; later ones are another message."""
_MOST_NAMED: Final = 5


class WebhookError(ValueError):
    """What was posted is not Alertmanager's webhook (version 4). Says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessage:
    """One message."""

    key: str
    text: str
    firing: int
    resolved: int


def read(posted: object) -> AlertMessage | None:
    """The message of one post; None when it holds no alert. Raises WebhookError."""
    body = _mapping(posted, "the post")
    if body.get("version") != "4":
        raise WebhookError(f"version {body.get('version')!r} is not Alertmanager's webhook 4")
    found = body.get("alerts")
    if not isinstance(found, list):
        raise WebhookError("`alerts` is no list")
    alerts = [_mapping(one, "an alert") for one in cast("list[object]", found)]
    if not alerts:
        return None
    firing = [alert for alert in alerts if alert.get("status") == "firing"]
    resolved = [alert for alert in alerts if alert.get("status") == "resolved"]
    if not firing and not resolved:
        raise WebhookError("no alert is firing or resolved")
    labels = _mapping(body.get("groupLabels", {}), "`groupLabels`")
    name = str(labels.get("alertname", "alert"))
    cut = body.get("truncatedAlerts", 0)
    more = cut if firing and isinstance(cut, int) else 0
    return AlertMessage(
        key=_key(str(body.get("groupKey", name)), firing, resolved),
        text=_text(name, labels, firing, resolved, more),
        firing=len(firing) + more,
        resolved=len(resolved),
    )


def _key(group: str, firing: Sequence[Mapping[str, Any]], resolved: Sequence[Mapping[str, Any]]) -> str:
    """A group that fires is one message for each wave of starts, and one more when all of it is over."""
    moment = _wave(str(alert.get("startsAt", "")) for alert in firing or resolved)
    state = "firing" if firing else "resolved"
    return f"alert/{sha256(f'{group} {moment}'.encode()).hexdigest()[:24]}/{state}"


def _wave(starts: Iterable[str]) -> str:
    """When the last wave began: the first start that is more than an hour after the wave before it began."""
    times = sorted(_time(start) for start in starts)
    began = times[0]
    for moment in times:
        if moment - began > WAVE:
            began = moment
    return began.isoformat()


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise WebhookError(f"`startsAt` is {text!r}, which is no time") from error
    if found.tzinfo is None:
        raise WebhookError(f"`startsAt` is {text!r}, which has no time zone")
    return found


def _text(
    name: str,
    labels: Mapping[str, Any],
    firing: Sequence[Mapping[str, Any]],
    resolved: Sequence[Mapping[str, Any]],
    more: int,
) -> str:
    where = ", ".join(f"{key} {value}" for key, value in sorted(labels.items()) if key != "alertname" and value)
    head = f"{name}{f' ({where})' if where else ''}"
    if not firing:
        return f"Resolved: {head}" + (f", {len(resolved)} alerts" if len(resolved) > 1 else "")
    count = len(firing) + more
    lines = [f"{head}: {count} firing" if count > 1 else head]
    summaries = list(dict.fromkeys(_summary(alert) for alert in firing))
    lines += [f"• {summary}" for summary in summaries[:_MOST_NAMED] if summary]
    if len(summaries) > _MOST_NAMED:
        lines.append(f"• and {len(summaries) - _MOST_NAMED} more")
    runbook = _mapping(firing[0].get("annotations", {}), "`annotations`").get("runbook")
    return "\n".join([*lines, *([f"What to do: {runbook}"] if runbook else [])])


def _summary(alert: Mapping[str, Any]) -> str:
    return str(_mapping(alert.get("annotations", {}), "`annotations`").get("summary", ""))


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WebhookError(f"{what} is no object")
    return cast("dict[str, Any]", value)
