"""The *Keep* buttons below an idle mark, and Slack's payload when a user clicks one. Pure.

A button's value names the fleet, the instance and the message it belongs to. Slack returns the value unchanged.
Formats: Slack, "Interactivity: block_actions payloads".
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from gpufleet.notify.messages import section

SPANS: Final = {"gpufleet_keep_4h": timedelta(hours=4), "gpufleet_keep_24h": timedelta(hours=24)}
_LABELS: Final = {"gpufleet_keep_4h": "Keep 4 h", "gpufleet_keep_24h": "Keep 24 h"}


class ClickError(ValueError):
    """The data is not a valid click of a gpufleet button. The message names the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """A click of a *Keep* button."""

    user: str
    """Slack's id of the user."""
    fleet: str
    instance: str
    message_key: str
    """Outbox key of the message with the button."""
    span: timedelta
    at: datetime
    stamp: str
    """Slack's time of the click, which is the same in every delivery."""

    @property
    def until(self) -> datetime:
        """The end of the keep, counted from the click, so that a late or repeated delivery gives the same time."""
        return self.at + self.span

    @property
    def key(self) -> str:
        """Identifies the click permanently, independently of its number of deliveries."""
        parts = (self.user, self.fleet, self.instance, str(self.span), self.stamp)
        return f"press/{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:40]}"


def with_buttons(text: str, fleet: str, instance: str, message_key: str) -> list[Mapping[str, Any]]:
    """A message's blocks: its text, and one button per span."""
    value = json.dumps({"fleet": fleet, "instance": instance, "message": message_key})
    buttons = [
        {"type": "button", "action_id": name, "text": {"type": "plain_text", "text": label}, "value": value}
        for name, label in _LABELS.items()
    ]
    return [section(text), {"type": "actions", "block_id": "gpufleet_keep", "elements": buttons}]


def read_click(payload: object) -> Click:
    """The click in a payload of type block_actions. Raises ClickError."""
    body = _mapping(payload, "the payload")
    if body.get("type") != "block_actions":
        raise ClickError(f"`type`: expected 'block_actions', got {body.get('type')!r}")
    actions = body.get("actions")
    if not isinstance(actions, list) or not actions:
        raise ClickError("`actions`: expected a list with at least one action")
    action = _mapping(cast("list[object]", actions)[0], "the action")
    span = SPANS.get(str(action.get("action_id")))
    if span is None:
        raise ClickError(f"action {str(action.get('action_id'))[:40]!r} is not an action of gpufleet")
    try:
        value = _mapping(json.loads(str(action.get("value"))), "the button's value")
        stamp = str(action["action_ts"])
        at = datetime.fromtimestamp(float(stamp), UTC)
    except (KeyError, ValueError, OverflowError, OSError) as error:
        raise ClickError(f"the action cannot be read: {error}") from error
    return Click(
        user=_text(_mapping(body.get("user"), "`user`"), "id"),
        fleet=_text(value, "fleet"),
        instance=_text(value, "instance"),
        message_key=_text(value, "message"),
        span=span,
        at=at,
        stamp=stamp,
    )


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ClickError(f"{what}: expected an object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found or len(found) > 200:
        raise ClickError(f"`{name}`: expected text of 1 to 200 characters")
    return found
