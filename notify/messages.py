"""How messages look in Slack, within its limits: 50 blocks, 3,000 characters a section, 13,200 in all."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ledger.outbox import Message

MOST_BLOCKS: Final = 50
LONGEST_SECTION: Final = 3_000
LONGEST_HEADER: Final = 150
LONGEST_TOTAL: Final = 13_000
"""Below the 13,200 characters at which Slack was measured to refuse (bolt-js issue 2509)."""


def header(text: str) -> Mapping[str, Any]:
    """A line in large letters."""
    return {"type": "header", "text": {"type": "plain_text", "text": cut(text, LONGEST_HEADER)}}


def section(text: str) -> Mapping[str, Any]:
    """A paragraph of Slack's markup."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(text, LONGEST_SECTION)}}


def preformatted(text: str) -> list[Mapping[str, Any]]:
    """Text in columns, in as many sections as it needs; cut between lines."""
    blocks: list[Mapping[str, Any]] = []
    part: list[str] = []
    for line in escape(text).split("\n"):
        line = cut(line, LONGEST_SECTION - 10)
        if sum(len(one) + 1 for one in part) + len(line) + 8 > LONGEST_SECTION:
            blocks.append(section("```\n" + "\n".join(part) + "\n```"))
            part = []
        part.append(line)
    blocks.append(section("```\n" + "\n".join(part) + "\n```"))
    return blocks


def within_limits(blocks: Sequence[Mapping[str, Any]], more: str) -> list[Mapping[str, Any]]:
    """As many blocks as Slack takes; `more` says where the rest is."""
    kept: list[Mapping[str, Any]] = []
    length = len(more)
    for block in blocks:
        size = len(str(block.get("text", {}).get("text", ""))) if isinstance(block.get("text"), Mapping) else 0
        if len(kept) + 1 >= MOST_BLOCKS or length + size > LONGEST_TOTAL:
            return [*kept, section(more)]
        kept.append(block)
        length += size
    return kept


def cost_message(lines: tuple[str, str], key: str, channel: str) -> Message:
    """The cost report as a message."""
    title, body = lines
    blocks = within_limits(
        [header("Cost report"), section(escape(title)), *preformatted(body)], "… the rest: `gpufleet report cost`"
    )
    return Message(key=key, channel=channel, text=escape(title), detail={"blocks": blocks})


def escape(text: str) -> str:
    """The three characters that Slack's markup reserves."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cut(text: str, most: int) -> str:
    """At most that many characters; what is cut off is shown by an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"
