"""Converts Alertmanager's webhook to messages: one when a group fires, one more when it is resolved. Pure.

Alertmanager groups the alerts (500 failing instances are one group and one post). A message's key is its group and
its time. A repeated post, or a group that grows meanwhile, therefore stays one message.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, cast

MAX_BYTES: Final = 4 * 1024 * 1024
WAVE: Final = timedelta(hours=1)
"""Alerts that join a group within this time of its first alert do not create a message; later ones do."""
_MAX_NAMED: Final = 5


class WebhookError(ValueError):
    """The posted data is not Alertmanager's webhook (version 4). The message names the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessage:
    """One message."""

    key: str
    text: str
    firing: int
    resolved: int


def read(posted: object) -> AlertMessage | None:
    """The message of one post; None when it contains no alert. Raises WebhookError."""
    body = _mapping(posted, "the post")
    if body.get("version") != "4":
        raise WebhookError(f"`version`: expected '4' (Alertmanager's webhook), got {body.get('version')!r}")
    found = body.get("alerts")
    if not isinstance(found, list):
        raise WebhookError("`alerts`: expected a list")
    alerts = [_mapping(one, "an alert") for one in cast("list[object]", found)]
    if not alerts:
        return None
    firing = [alert for alert in alerts if alert.get("status") == "firing"]
    resolved = [alert for alert in alerts if alert.get("status") == "resolved"]
    if not firing and not resolved:
        raise WebhookError("`alerts`: expected at least one with the status firing or resolved")
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
    """A firing group has one key for each wave of starts, and one more when all its alerts are resolved."""
    moment = _wave(str(alert.get("startsAt", "")) for alert in firing or resolved)
    state = "firing" if firing else "resolved"
    return f"alert/{sha256(f'{group} {moment}'.encode()).hexdigest()[:24]}/{state}"


def _wave(starts: Iterable[str]) -> str:
    """The start of the last wave: a wave begins with the first start more than an hour after the
    previous wave began.
    """
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
        raise WebhookError(f"`startsAt`: expected a time, got {text!r}") from error
    if found.tzinfo is None:
        raise WebhookError(f"`startsAt`: expected a time with a time zone, got {text!r}")
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
    lines += [f"• {summary}" for summary in summaries[:_MAX_NAMED] if summary]
    if len(summaries) > _MAX_NAMED:
        lines.append(f"• and {len(summaries) - _MAX_NAMED} more")
    runbook = _mapping(firing[0].get("annotations", {}), "`annotations`").get("runbook")
    return "\n".join([*lines, *([f"What to do: {runbook}"] if runbook else [])])


def _summary(alert: Mapping[str, Any]) -> str:
    return str(_mapping(alert.get("annotations", {}), "`annotations`").get("summary", ""))


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WebhookError(f"{what}: expected an object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)
