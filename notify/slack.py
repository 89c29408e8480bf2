"""Slack as a receiver of messages: bot token (chat.postMessage, look-up by metadata) or plain incoming webhook.

Secrets come from the environment only (`GPUFLEET_SLACK_TOKEN`, `GPUFLEET_SLACK_WEBHOOK`) and are never shown in full.
`GPUFLEET_SLACK_API_URL` points the Web API elsewhere (the embedded sink, say).
"""

import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any, Final, Protocol, cast

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.webhook import WebhookClient

EVENT: Final = "gpufleet_message"
TIMEOUT_S: Final = 15
_PAGE: Final = 200

_PASSING: Final = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "ratelimited", "rate_limited"}
)
"""Errors of the Web API that another try may not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """It was accepted; `receipt` is the message's id (its `ts`; a webhook gives none)."""

    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TryLater:
    """It surely was not accepted; another try may be."""

    error: str
    after: timedelta | None = None
    """What the receiver asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody knows whether it was accepted."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """It will never be accepted as it is."""

    error: str


Answer = Arrived | TryLater | Unknown | Refused


class Receiver(Protocol):
    """Who takes messages."""

    can_look_up: bool

    def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer: ...

    def look_up(self, channel: str, key: str, since: datetime) -> str | None:
        """The receipt of the message of that key, posted since then; None: it is not there.

        Raises OSError when nobody can tell.
        """
        ...


class SlackSettingsError(ValueError):
    """The environment does not say how to reach Slack."""


def from_environment(environ: Mapping[str, str]) -> Receiver:
    """A bot where there is a token, else a webhook. Raises SlackSettingsError that names what to set."""
    token, webhook = environ.get("GPUFLEET_SLACK_TOKEN"), environ.get("GPUFLEET_SLACK_WEBHOOK")
    base = environ.get("GPUFLEET_SLACK_API_URL")
    if token:
        return SlackBot(token, base)
    if webhook:
        if not webhook.startswith(("https://", "http://127.")):
            raise SlackSettingsError(f"GPUFLEET_SLACK_WEBHOOK ({masked(webhook)}) is no https:// address")
        return SlackWebhook(webhook)
    raise SlackSettingsError(
        "no way to Slack: set GPUFLEET_SLACK_TOKEN (a bot token) or GPUFLEET_SLACK_WEBHOOK (an incoming webhook)"
    )


def masked(secret: str) -> str:
    """Enough of a secret to tell which one it is."""
    head = "/".join(secret.split("/", 3)[:3]) if "://" in secret else secret[:5]
    return f"{head}…{secret[-2:]}" if len(secret) > 12 else "…"


class SlackBot:
    """Posts with a bot token. A message carries its key as metadata, so that it can be found again.

    Scopes: chat:write, channels:history and channels:read (for private channels groups:history, groups:read).
    """

    can_look_up = True

    def __init__(self, token: str, base_url: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        url = WebClient.BASE_URL if base_url is None else base_url.rstrip("/") + "/"
        # the SDK leaves its dictionaries untyped, and types its timeout as whole seconds
        self._client: Any = cast(Any, WebClient)(token=token, base_url=url, timeout=timeout_s, retry_handlers=[])
        self._ids: dict[str, str] = {}

    def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer:
        """Post once; never tries again by itself."""
        try:
            answer = self._client.chat_postMessage(
                channel=channel,
                text=text,
                blocks=detail.get("blocks") or None,
                thread_ts=thread,
                metadata={"event_type": EVENT, "event_payload": {"key": key}},
                unfurl_links=False,
            )
        except SlackApiError as error:
            return _judged(error)
        except (SlackClientError, OSError, HTTPException) as error:
            return _lost(error)
        self._ids[channel] = str(answer.get("channel") or channel)
        return Arrived(receipt=str(answer.get("ts", "")))

    def look_up(self, channel: str, key: str, since: datetime) -> str | None:
        """Search the channel for the key, newest messages first."""
        try:
            channel_id, cursor = self._channel_id(channel), ""
            oldest = f"{since.timestamp():.6f}"
            while True:
                answer = self._client.conversations_history(
                    channel=channel_id,
                    limit=_PAGE,
                    oldest=oldest,
                    include_all_metadata=True,
                    **({"cursor": cursor} if cursor else {}),
                )
                for message in cast(list[dict[str, Any]], answer.get("messages") or []):
                    metadata = cast(dict[str, dict[str, Any]], message.get("metadata") or {})
                    if metadata.get("event_payload", {}).get("key") == key:
                        return str(message["ts"])
                cursor = _next_cursor(answer)
                if not cursor:
                    return None
        except (SlackClientError, HTTPException) as error:
            raise OSError(f"Slack could not be searched: {error}") from error

    def _channel_id(self, channel: str) -> str:
        """History knows channels by id; a name is looked up once."""
        if not channel.startswith("#") or channel in self._ids:
            return self._ids.get(channel, channel)
        cursor = ""
        while True:
            more = {"cursor": cursor} if cursor else {}
            answer = self._client.conversations_list(
                limit=_PAGE, exclude_archived=True, types="public_channel,private_channel", **more
            )
            for one in cast(list[dict[str, Any]], answer.get("channels") or []):
                if one.get("name") == channel.removeprefix("#"):
                    self._ids[channel] = str(one["id"])
                    return self._ids[channel]
            cursor = _next_cursor(answer)
            if not cursor:
                raise OSError(f"Slack lists no channel {channel} that this bot may see")


def _next_cursor(answer: Any) -> str:
    metadata = cast(dict[str, Any], answer.get("response_metadata") or {})
    return str(metadata.get("next_cursor") or "")


class SlackWebhook:
    """Posts to an incoming webhook: one channel, no threads, no look-up, so an unclear message may come twice."""

    can_look_up = False

    def __init__(self, url: str) -> None:
        self._client = WebhookClient(url, timeout=TIMEOUT_S, retry_handlers=[])

    def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer:
        """Post once; never tries again by itself."""
        try:
            answer = self._client.send(text=text, blocks=detail.get("blocks") or None)
        except (OSError, HTTPException) as error:
            return _lost(error)
        if answer.status_code == 200:
            return Arrived(receipt="webhook")
        after = answer.headers.get("Retry-After") or answer.headers.get("retry-after")
        return _by_status(answer.status_code, answer.body.strip()[:200], after)

    def look_up(self, channel: str, key: str, since: datetime) -> str | None:
        """A webhook cannot look."""
        raise OSError("a webhook cannot search its channel")


def _judged(error: SlackApiError) -> Answer:
    response = cast(Any, error.response)
    status, headers = int(response.status_code), cast(Mapping[str, str], response.headers)
    code = str(response.get("error") or "") if isinstance(response.data, dict) else ""
    if status == 200 and code not in _PASSING:
        return Refused(error=code or "refused without a reason")
    if status == 200:
        return TryLater(error=code)
    return _by_status(status, code, headers.get("Retry-After") or headers.get("retry-after"))


def _by_status(status: int, words: str, retry_after: str | None) -> Answer:
    said = f"{status} {words}".strip()
    if status == 429:
        seconds = float(retry_after) if retry_after and retry_after.replace(".", "", 1).isdigit() else 1.0
        return TryLater(error=said, after=timedelta(seconds=seconds))
    if status >= 500:
        # a gateway may answer for a server that has accepted
        return Unknown(error=said)
    return Refused(error=said)


def _lost(error: Exception) -> Answer:
    """No answer: refused connections never reached Slack, everything else may have."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ConnectionRefusedError):
        return TryLater(error="connection refused")
    return Unknown(error=type(error).__name__ + (f": {cause}" if isinstance(cause, OSError) else ""))
