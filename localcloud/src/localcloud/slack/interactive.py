"""Buttons of the Slack sink: clicks over Socket Mode, or as a signed HTTP request. Formats: Slack's docs."""

import hashlib
import hmac
import itertools
import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from localcloud.slack.messages import Channels, Message, SlackError
from localcloud.slack.websocket import WebSocket

LISTENER_LIMIT_S: Final = 3.0
"""The time that an app has for its response."""


@dataclass(slots=True)
class SocketMode:
    """Open connections, and answers to what was sent over them."""

    tickets: set[str] = field(default_factory=set[str])
    _open: list[WebSocket] = field(default_factory=list[WebSocket])
    _answered: dict[str, threading.Event] = field(default_factory=dict[str, threading.Event])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def ticket(self) -> str:
        """Opens one connection."""
        made = secrets.token_urlsafe(16)
        self.tickets.add(made)
        return made

    def serve(self, socket: WebSocket) -> None:
        """One connection, until it ends."""
        with self._lock:
            self._open.append(socket)
        try:
            socket.send(json.dumps({"type": "hello", "num_connections": len(self._open)}))
            while (text := socket.receive()) is not None:
                answered = self._answered.get(str(json.loads(text).get("envelope_id")))
                if answered is not None:
                    answered.set()
        except (OSError, ValueError):
            pass  # disconnected, or a protocol error: the connection ends
        finally:
            with self._lock:
                self._open.remove(socket)

    @property
    def connections(self) -> int:
        return len(self._open)

    def hang_up(self) -> None:
        """Close every connection, as Slack does from time to time."""
        for socket in list(self._open):
            socket.close()

    def send(self, payload: Mapping[str, Any]) -> float | None:
        """Send it over the newest connection: seconds until the answer, None if there was none in time."""
        with self._lock:
            if not self._open:
                raise SlackError("no_listener")
            socket = self._open[-1]
        envelope = f"envelope-{next(self._numbers)}"
        answered = self._answered[envelope] = threading.Event()
        begun = time.monotonic()
        whole = {"envelope_id": envelope, "type": "interactive", "accepts_response_payload": True, "payload": payload}
        socket.send(json.dumps(whole))
        return time.monotonic() - begun if answered.wait(LISTENER_LIMIT_S) else None


def click(channels: Channels, wanted: Mapping[str, Any], modes: SocketMode) -> dict[str, Any]:
    """Click a button: `ts`, `action_id`, optionally `user`, `action_ts`, `times`; with `url` and `secret` by HTTP.

    Answers `answers`: seconds until each answer over Socket Mode, or the HTTP status.
    """
    message = next((m for m in channels.messages if m.ts == wanted.get("ts")), None)
    if message is None:
        raise SlackError("message_not_found")
    payload = payload_of(message, wanted)
    times = int(wanted.get("times", 1))
    if "url" in wanted:
        return {"answers": [_by_http(str(wanted["url"]), str(wanted["secret"]), payload) for _ in range(times)]}
    return {"answers": [modes.send(payload) for _ in range(times)]}


def payload_of(message: Message, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The payload that Slack sends for a click. Raises SlackError when the message has no such button."""
    blocks: list[dict[str, Any]] = message.content.get("blocks") or []
    buttons = [item for block in blocks if block["type"] == "actions" for item in block["elements"]]
    button = next((item for item in buttons if item["action_id"] == wanted.get("action_id")), None)
    if button is None:
        raise SlackError("no_such_button")
    user = str(wanted.get("user", "ULOCAL"))
    stamp = str(wanted.get("action_ts") or f"{time.time():.6f}")
    return {
        "type": "block_actions",
        "user": {"id": user, "username": user.lower(), "team_id": "TLOCAL"},
        "container": {"type": "message", "message_ts": message.ts, "channel_id": message.channel},
        "channel": {"id": message.channel, "name": message.channel.removeprefix("#")},
        "message": message.as_json(),
        "actions": [{**button, "block_id": "gpufleet_keep", "action_ts": stamp}],
    }


def sign(secret: str, stamp: str, body: bytes) -> str:
    """Slack's v0 signature."""
    return "v0=" + hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()


def _by_http(url: str, secret: str, payload: Mapping[str, Any]) -> int:
    body, stamp = urlencode({"payload": json.dumps(payload)}).encode(), str(int(time.time()))
    headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": sign(secret, stamp, body)}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - the caller's own
    try:
        with urllib.request.urlopen(request, timeout=LISTENER_LIMIT_S) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
