"""Files of the Slack sink: getUploadURLExternal, the upload, completeUploadExternal, files.list."""

import itertools
import json
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localcloud.slack.messages import Channels, SlackError
from localcloud.time_scale import utc_now


@dataclass(slots=True)
class Files:
    """Uploaded files; only completed ones are listed."""

    base_url: str
    channels: Channels
    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _promised: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    _tickets: dict[str, str] = field(default_factory=dict[str, str])
    """The secret part of each upload's address, and its file."""
    _listed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def promise(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """An address for one file."""
        if not given.get("filename") or not str(given.get("length", "")).isdigit():
            raise SlackError("invalid_arguments")
        ticket = secrets.token_urlsafe(16)
        with self._lock:
            name = f"F{next(self._numbers):08d}"
            self._promised[name] = (str(given["filename"]), int(given["length"]))
            self._tickets[ticket] = name
        return {"upload_url": f"{self.base_url}/upload/{ticket}", "file_id": name}

    def take(self, ticket: str, body: bytes) -> bool:
        """Store the content. False: the upload was not announced, or its length differs from the announced one."""
        name = self._tickets.get(ticket)
        if name is None or self._promised[name][1] != len(body):
            return False
        self.contents[name] = body
        return True

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Post what was uploaded, as one message."""
        raw = given.get("files")
        wanted: list[dict[str, str]] = json.loads(raw) if isinstance(raw, str) else list(raw or [])
        if not wanted or any(one["id"] not in self.contents for one in wanted):
            raise SlackError("file_not_found")
        channel = str(given.get("channel_id") or "")
        made = [
            {"id": one["id"], "name": self._promised[one["id"]][0], "title": one.get("title", ""),
             "channel": channel, "size": len(self.contents[one["id"]])}
            for one in wanted
        ]  # fmt: skip
        content: dict[str, Any] = {"text": str(given.get("initial_comment") or "files"), "files": made}
        if given.get("thread_ts"):
            content["thread_ts"] = given["thread_ts"]
        self.channels.post(channel, content, utc_now(), "files.completeUploadExternal")
        with self._lock:
            self._listed += made
        return {"files": made}

    def listed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Files of a channel, newest first."""
        return {"files": [one for one in reversed(self._listed) if given.get("channel") in (None, one["channel"])]}
