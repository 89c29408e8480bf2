"""Slack as a receiver of messages: a bot token (chat.postMessage, look-up by metadata) or an incoming webhook.

Secrets come only from the environment (`GPUFLEET_SLACK_TOKEN`, `GPUFLEET_SLACK_WEBHOOK`) and are never shown in full.
`GPUFLEET_SLACK_API_URL` selects another Web API (for example the embedded sink).
"""

import base64
import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any, Final, Protocol, cast

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.webhook import WebhookClient

from gpufleet.domain.loopback import on_loopback

EVENT: Final = "gpufleet_message"
FILES: Final = "/files"
"""Suffix of the keys of messages with files. They are found by their files' names, because they have no metadata."""
TIMEOUT_S: Final = 15
_PAGE: Final = 200

_TEMPORARY: Final = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "ratelimited", "rate_limited"}
)
"""Temporary errors of the Web API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """The message was accepted. `receipt` is its id: its `ts`, the id of its file, or `webhook`."""

    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TryLater:
    """The message was not accepted, and a later attempt may succeed."""

    error: str
    after: timedelta | None = None
    """The delay that the receiver requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """It is unknown whether the message was accepted."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The message will never be accepted in its present form."""

    error: str


class LookUpRefusedError(OSError):
    """The receiver refuses the search (a scope is missing, the bot is not a member). Another attempt
    does not help.
    """


Answer = Arrived | TryLater | Unknown | Refused


class Receiver(Protocol):
    """Receives messages."""

    can_look_up: bool

    def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer: ...

    def look_up(self, channel: str, key: str, since: datetime) -> str | None:
        """The receipt of the message with that key, posted since that time; None: it is not there.

        Raises OSError when the search fails, LookUpRefusedError when it will always fail.
        """
        ...


class SlackSettingsError(ValueError):
    """The environment variables do not configure a connection to Slack."""


def from_environment(environ: Mapping[str, str]) -> Receiver:
    """A bot if there is a token, else a webhook. Raises SlackSettingsError that names what to set."""
    token, webhook = environ.get("GPUFLEET_SLACK_TOKEN"), environ.get("GPUFLEET_SLACK_WEBHOOK")
    if token:
        return SlackBot(token, api_url(environ))
    if webhook:
        if not _private(webhook):
            raise SlackSettingsError(f"GPUFLEET_SLACK_WEBHOOK: expected an https:// address, got {masked(webhook)}")
        return SlackWebhook(webhook)
    raise SlackSettingsError(
        "Slack is not configured: set GPUFLEET_SLACK_TOKEN (a bot token) or GPUFLEET_SLACK_WEBHOOK (a webhook's URL)"
    )


def api_url(environ: Mapping[str, str]) -> str | None:
    """The URL of the Web API; None: Slack's own.

    Raises SlackSettingsError if the URL would send a token unencrypted.
    """
    url = environ.get("GPUFLEET_SLACK_API_URL") or None
    if url is not None and not _private(url):
        raise SlackSettingsError(f"GPUFLEET_SLACK_API_URL: expected an https:// address, got {masked(url)}")
    return url


def _private(url: str) -> bool:
    return url.startswith("https://") or (url.startswith("http://") and on_loopback(url))


def masked(secret: str) -> str:
    """The parts of a secret that identify it without revealing it."""
    head = "/".join(secret.split("/", 3)[:3]) if "://" in secret else secret[:5]
    return f"{head}…{secret[-2:]}" if len(secret) > 12 else "…"


def file_name(key: str, name: str) -> str:
    """A file's name that identifies its message."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:12]}-{name}"


class SlackBot:
    """Posts with a bot token. A message carries its key as metadata, so that it can be found again.

    Scopes: chat:write, channels:history and channels:read (for private channels groups:history, groups:read),
    files:write and files:read for the digest's chart and figures.
    """

    can_look_up = True

    def __init__(self, token: str, base_url: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        url = WebClient.BASE_URL if base_url is None else base_url.rstrip("/") + "/"
        # the SDK does not type its dictionaries, and types its timeout as whole seconds
        self._client: Any = cast(Any, WebClient)(token=token, base_url=url, timeout=timeout_s, retry_handlers=[])
        self._ids: dict[str, str] = {}

    def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer:
        """Post once, without retries."""
        if detail.get("files"):
            return self._upload(channel, key, text, detail["files"], thread)
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

    def _upload(
        self, channel: str, key: str, text: str, files: Sequence[Mapping[str, str]], thread: str | None
    ) -> Answer:
        """Post files as one message; nothing is visible before the last call. Scopes: files:write, files:read."""
        try:
            place = self._channel_id(channel)
            sent: list[dict[str, str]] = []
            for file in files:
                data = base64.b64decode(file["data"])
                name = file_name(key, file["name"])
                given = self._client.files_getUploadURLExternal(filename=name, length=len(data))
                request = urllib.request.Request(str(given["upload_url"]), data=data, method="POST")  # noqa: S310
                with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - Slack's own answer
                    sent.append({"id": str(given["file_id"]), "title": file.get("title", file["name"])})
        except SlackApiError as error:
            answer = _judged(error)
            return TryLater(error=answer.error) if isinstance(answer, Unknown) else answer
        except LookUpRefusedError as error:
            return Refused(error=str(error))
        except (SlackClientError, OSError, HTTPException) as error:
            return TryLater(error=f"{type(error).__name__}: nothing is posted yet")
        try:
            self._client.files_completeUploadExternal(
                files=sent, channel_id=place, initial_comment=text, **({"thread_ts": thread} if thread else {})
            )
        except SlackApiError as error:
            return _judged(error)
        except (SlackClientError, OSError, HTTPException) as error:
            return _lost(error)
        return Arrived(receipt=sent[0]["id"])

    def _file_of(self, channel: str, key: str, since: datetime) -> str | None:
        """The id of a file that was posted for that key."""
        answer = self._client.files_list(channel=self._channel_id(channel), ts_from=f"{since.timestamp():.6f}")
        for file in cast(list[dict[str, Any]], answer.get("files") or []):
            if str(file.get("name", "")).startswith(file_name(key, "")):
                return str(file["id"])
        return None

    def look_up(self, channel: str, key: str, since: datetime) -> str | None:
        """Search the channel for the key, newest messages first."""
        try:
            if key.endswith(FILES):
                return self._file_of(channel, key, since)
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
        except SlackApiError as error:
            failure = LookUpRefusedError if isinstance(_judged(error), Refused) else OSError
            raise failure(f"Slack could not be searched: {_code(error) or error}") from error
        except (SlackClientError, HTTPException) as error:
            raise OSError(f"Slack could not be searched: {error}") from error

    def _channel_id(self, channel: str) -> str:
        """The channel's id, which the history needs. A name is looked up once."""
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
                raise LookUpRefusedError(f"Slack lists no channel {channel} that this bot may see")


def _next_cursor(answer: Any) -> str:
    metadata = cast(dict[str, Any], answer.get("response_metadata") or {})
    return str(metadata.get("next_cursor") or "")


class SlackWebhook:
    """Posts to an incoming webhook: one channel, no threads, no look-up. A message with an unknown
    result may repeat.
    """

    can_look_up = False

    def __init__(self, url: str) -> None:
        self._client = WebhookClient(url, timeout=TIMEOUT_S, retry_handlers=[])

    def post(self, channel: str, key: str, text: str, detail: Mapping[str, Any], thread: str | None) -> Answer:
        """Post once, without retries."""
        try:
            answer = self._client.send(text=text, blocks=detail.get("blocks") or None)
        except (OSError, HTTPException) as error:
            return _lost(error)
        if answer.status_code == 200:
            return Arrived(receipt="webhook")
        after = answer.headers.get("Retry-After") or answer.headers.get("retry-after")
        return _by_status(answer.status_code, answer.body.strip()[:200], after)

    def look_up(self, channel: str, key: str, since: datetime) -> str | None:
        """Always raises OSError: a webhook cannot search."""
        raise OSError("a webhook cannot search its channel")


def _judged(error: SlackApiError) -> Answer:
    response = cast(Any, error.response)
    status, headers = int(response.status_code), cast(Mapping[str, str], response.headers)
    code = _code(error)
    if status == 200 and code not in _TEMPORARY:
        return Refused(error=code or "refused without a reason")
    if status == 200:
        return TryLater(error=code)
    return _by_status(status, code, headers.get("Retry-After") or headers.get("retry-after"))


def _code(error: SlackApiError) -> str:
    """Slack's own error code; empty if the answer was not from Slack."""
    response = cast(Any, error.response)
    return str(response.get("error") or "") if isinstance(response.data, dict) else ""


def _by_status(status: int, message: str, retry_after: str | None) -> Answer:
    error = f"{status} {message}".strip()
    if status == 429:
        seconds = float(retry_after) if retry_after and retry_after.replace(".", "", 1).isdigit() else 1.0
        return TryLater(error=error, after=timedelta(seconds=seconds))
    if status >= 500:
        # a gateway may answer for a server that has accepted the message
        return Unknown(error=error)
    return Refused(error=error)


def _lost(error: Exception) -> Answer:
    """Without an answer: a refused connection never reached Slack; in all other cases the message may
    have arrived.
    """
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ConnectionRefusedError):
        return TryLater(error="connection refused")
    return Unknown(error=type(error).__name__ + (f": {cause}" if isinstance(cause, OSError) else ""))
