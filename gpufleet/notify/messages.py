"""Formats messages for Slack within its limits: 50 blocks, 3,000 characters per section, 13,200 in total."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from gpufleet.ledger.outbox import Message, escape

MAX_BLOCKS: Final = 50
LONGEST_SECTION: Final = 3_000
LONGEST_HEADER: Final = 150
LONGEST_FIELD: Final = 2_000
MAX_FIELDS: Final = 10
LONGEST_TOTAL: Final = 13_000
"""Below 13,200 characters, the measured limit at which Slack refuses a message (bolt-js issue 2509)."""


def header(text: str) -> Mapping[str, Any]:
    """A heading."""
    return {"type": "header", "text": {"type": "plain_text", "text": cut(text, LONGEST_HEADER)}}


def section(text: str) -> Mapping[str, Any]:
    """A paragraph in Slack's markup."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(text, LONGEST_SECTION)}}


def preformatted(text: str) -> list[Mapping[str, Any]]:
    """Text in columns, in as many sections as needed; split between lines."""
    blocks: list[Mapping[str, Any]] = []
    part: list[str] = []
    for line in text.split("\n"):
        line = cut(line, LONGEST_SECTION - 10)
        if sum(_weight(one) + 1 for one in part) + _weight(line) + 8 > LONGEST_SECTION:
            blocks.append(section("```\n" + "\n".join(part) + "\n```"))
            part = []
        part.append(line)
    blocks.append(section("```\n" + "\n".join(part) + "\n```"))
    return blocks


def within_limits(blocks: Sequence[Mapping[str, Any]], more: str) -> list[Mapping[str, Any]]:
    """As many blocks as Slack accepts; `more` names where the others are."""
    kept: list[Mapping[str, Any]] = []
    length = _weight(more)
    for block in blocks:
        length += _length(block)
        if len(kept) + 1 >= MAX_BLOCKS or length > LONGEST_TOTAL:
            return [*kept, section(more)]
        kept.append(block)
    return kept


def _length(value: Any) -> int:
    """Characters of every text in a block."""
    if isinstance(value, Mapping):
        inside = cast(Mapping[str, Any], value)
        return sum(_weight(v) if k == "text" and isinstance(v, str) else _length(v) for k, v in inside.items())
    if isinstance(value, list):
        return sum(_length(one) for one in cast(list[Any], value))
    return 0


def report_message(kind: str, title: str, body: str) -> Message:
    """A report in columns as a message. The sender sets its key and channel."""
    more = f"… the rest: `gpufleet report {kind}`"
    blocks = within_limits([header(f"{kind.capitalize()} report"), section(title), *preformatted(body)], more)
    return Message(key="", channel="", text=title, detail={"blocks": blocks})


def digest_message(
    title: str,
    numbers: Sequence[tuple[str, str, str]],
    waste: Sequence[str],
    text: str,
    notes: Sequence[str],
) -> Message:
    """The digest: header, numbers with their trend, top waste, table, notes about the numbers."""
    fields = [
        {"type": "mrkdwn", "text": cut(f"*{name}*\n{value} {trend}".rstrip(), LONGEST_FIELD)}
        for name, value, trend in numbers[:MAX_FIELDS]
    ]
    blocks: list[Mapping[str, Any]] = [header(title), {"type": "section", "fields": fields}]
    if waste:
        lines = "\n".join(f"• {line}" for line in waste)
        blocks.append(section(f"*Top waste*\n{lines}"))
    blocks += preformatted(text)
    if notes:
        shown = " · ".join(note for note in notes[:8])
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": cut(shown, LONGEST_SECTION)}]})
    first = f"{title}: {numbers[0][0]} {numbers[0][1]}" if numbers else title
    detail = {"blocks": within_limits(blocks, "… the rest: `gpufleet report digest`")}
    return Message(key="", channel="", text=first, detail=detail)


def files_message(parent: str, text: str, files: Sequence[tuple[str, str, bytes]]) -> Message:
    """Files (name, title, content) in the thread of another message, which its key identifies."""
    packed = [
        {"name": name, "title": title, "data": base64.b64encode(content).decode()} for name, title, content in files
    ]
    return Message(key=f"{parent}/files", channel="", text=text, detail={"thread": parent, "files": packed})


def cut(text: str, most: int) -> str:
    """At most `most` characters as Slack counts them, escaped. An ellipsis marks cut text."""
    if _weight(text) <= most:
        return text
    kept = text[: most - 1]
    while _weight(kept) > most - 1:
        # each character weighs at most five
        kept = kept[: -max(1, (_weight(kept) - most + 1) // 5)]
    return kept + "…"


def _weight(text: str) -> int:
    """The length of the text after the outbox has escaped it."""
    return len(escape(text))
