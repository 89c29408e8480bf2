"""The messages of the Slack sink, and their HTML."""

import html
import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gpufleet.domain.parsed import is_list
from localcloud.documents import Document, is_document, items


class SlackError(Exception):
    """An error of Slack's Web API: the code is its `error`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True, kw_only=True)
class Message:
    """One message in a channel."""

    ts: str
    channel: str
    at: datetime
    content: dict[str, Any]
    """text, blocks, attachments, metadata as they were posted."""
    edited: int = 0
    via: str = "chat.postMessage"

    def as_json(self) -> dict[str, Any]:
        shown = {"type": "message", "ts": self.ts, "channel": self.channel, "via": self.via, **self.content}
        if self.edited:
            shown["edited"] = {"count": self.edited}
        return shown


_MAX_BLOCKS: Final = 50
_LONGEST_SECTION: Final = 3000
_LONGEST_TOTAL: Final = 13_200
"""Characters of all blocks; Slack does not document this limit; it was measured (bolt-js issue 2509)."""


@dataclass(slots=True)
class Channels:
    """All messages. Safe to use from many threads."""

    messages: list[Message] = field(default_factory=list[Message])
    throttle: list[float] = field(default_factory=list[float])
    """Answers of 429 that are to come, each with its Retry-After in seconds."""
    unsearchable: str = ""
    """The error of reads of a channel's history; empty: none."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def post(self, channel: str, content: Mapping[str, Any], now: datetime, via: str) -> Message:
        """Keep a message. Raises SlackError as Slack would."""
        check(content)
        with self._lock:
            ts = f"{int(now.timestamp())}.{next(self._numbers):06d}"
            made = Message(ts=ts, channel=channel, at=now, content=dict(content), via=via)
            self.messages.append(made)
            return made

    def update(self, channel: str, ts: str, content: Mapping[str, Any]) -> Message:
        """Replace the content of a message. Raises SlackError."""
        check(content)
        with self._lock:
            for message in self.messages:
                if message.ts == ts and message.channel == channel:
                    message.content = {**message.content, **content}
                    message.edited += 1
                    return message
        raise SlackError("message_not_found")

    def history(self, channel: str) -> list[Message]:
        """Messages of a channel, newest first. Raises SlackError if one was requested."""
        if self.unsearchable:
            raise SlackError(self.unsearchable)
        with self._lock:
            return [message for message in reversed(self.messages) if message.channel == channel]

    def take_throttle(self) -> float | None:
        """The Retry-After of the next response, if one was requested."""
        with self._lock:
            return self.throttle.pop(0) if self.throttle else None


def check(content: Mapping[str, Any]) -> None:
    """Slack's limits on a message. Raises SlackError with Slack's code."""
    blocks = items(content, "blocks")
    if not content.get("text") and not blocks and not content.get("attachments"):
        raise SlackError("no_text")
    if len(blocks) > _MAX_BLOCKS:
        raise SlackError("invalid_blocks")
    texts = [text for block in blocks for text in _texts(block)]
    if any(len(text) > _LONGEST_SECTION for text in texts):
        raise SlackError("invalid_blocks")
    if sum(len(text) for text in texts) > _LONGEST_TOTAL:
        raise SlackError("msg_blocks_too_long")


def _texts(block: object) -> list[str]:
    if not is_document(block):
        return []
    found: list[str] = []
    for key, value in block.items():
        if key == "text" and isinstance(value, str):
            found.append(value)
        elif is_document(value):
            found.extend(_texts(value))
        elif is_list(value):
            found.extend(text for item in value for text in _texts(item))
    return found


def page(messages: Sequence[Message]) -> str:
    """All messages as a page for people, newest first."""
    shown = "\n".join(_article(message) for message in reversed(messages))
    count = f"{len(messages)} message{'' if len(messages) == 1 else 's'}"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Slack sink</title>"
        "<style>body{font:15px/1.45 system-ui;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1d1c1d}"
        "article{border:1px solid #ddd;border-radius:8px;padding:.7rem 1rem;margin:1rem 0}"
        "h3{margin:.2rem 0}.meta,.context{color:#616061;font-size:13px}"
        "pre{background:#f6f6f6;font-size:13px;padding:.5rem;overflow-x:auto}"
        ".fields{display:grid;grid-template-columns:1fr 1fr;gap:.2rem 1rem}"
        "button{font:inherit;border:1px solid #bbb;border-radius:4px;background:#fff;padding:.1rem .6rem;"
        "margin-right:.4rem}</style>"
        f"<h1>Slack sink</h1><p class=meta>{count}; nothing here went to Slack.</p>{shown}</html>"
    )


def _article(message: Message) -> str:
    edited = f" · edited {message.edited}×" if message.edited else ""
    head = f"{html.escape(message.channel)} · {message.at:%Y-%m-%d %H:%M:%S} UTC · {message.via}{edited}"
    blocks: list[Document] = items(message.content, "blocks")
    body = (
        "".join(_block(block, message.ts) for block in blocks)
        or f"<p>{mrkdwn(message.content.get('text') or '')}</p>"
    )
    body += "".join(_file(file) for file in items(message.content, "files"))
    return f"<article><p class=meta>{head}</p>{body}</article>"


def _file(file: Mapping[str, Any]) -> str:
    place, title = f"/files/{file['id']}", html.escape(str(file["title"]))
    if str(file["name"]).endswith(".png"):
        return f'<p><img src="{place}" alt="{title}" style="max-width:100%"></p>'
    return f'<p><a href="{place}">{title}</a></p>'


def _block(block: Mapping[str, Any], ts: str) -> str:
    match block.get("type"):
        case "header":
            return f"<h3>{html.escape(_plain(block.get('text')))}</h3>"
        case "section":
            fields = "".join(f"<div>{mrkdwn(_plain(item))}</div>" for item in items(block, "fields"))
            text = f"<p>{mrkdwn(_plain(block.get('text')))}</p>" if block.get("text") else ""
            return text + (f"<div class=fields>{fields}</div>" if fields else "")
        case "context":
            parts = " · ".join(mrkdwn(_plain(item)) for item in items(block, "elements"))
            return f"<p class=context>{parts}</p>"
        case "divider":
            return "<hr>"
        case "markdown":
            return f"<pre>{html.escape(str(block.get('text', '')))}</pre>"
        case "actions":
            buttons = (
                f"<button name=action_id value={html.escape(str(item.get('action_id')), quote=True)!r}>"
                f"{html.escape(_plain(item.get('text')))}</button>"
                for item in items(block, "elements")
            )
            return f"<form method=post action=/click><input type=hidden name=ts value={ts}>{''.join(buttons)}</form>"
        case other:
            return f"<p class=context>[{html.escape(str(other))}]</p>"


def _plain(value: object) -> str:
    return str(value.get("text", "")) if is_document(value) else str(value or "")


_CODE_BLOCK: Final = re.compile(r"```(.*?)```", re.S)
_CODE: Final = re.compile(r"`([^`\n]+)`")
_BOLD: Final = re.compile(r"(?<![\w*])\*([^*\n]+)\*(?![\w*])")
_ITALIC: Final = re.compile(r"(?<![\w_])_([^_\n]+)_(?![\w_])")
_LINK: Final = re.compile(r"&lt;(https?://[^|&]+)\|([^&]+)&gt;")


def mrkdwn(text: str) -> str:
    """Slack's mark-up as HTML; everything else is escaped."""
    # Slack's own escapes come in as &amp; &lt; &gt;; show them as what they mean
    plain = text.replace("&lt;", "\0l").replace("&gt;", "\0g").replace("&amp;", "&")
    found = html.escape(plain, quote=False).replace("\0l", "&lt;").replace("\0g", "&gt;")
    found = _LINK.sub(r'<a href="\1">\2</a>', found)
    parts = _CODE_BLOCK.split(found)
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = f"<pre>{part.strip()}</pre>"
        else:
            part = _ITALIC.sub(r"<i>\1</i>", _BOLD.sub(r"<b>\1</b>", _CODE.sub(r"<code>\1</code>", part)))
            parts[index] = part.replace("\n", "<br>")
    return "".join(parts)
