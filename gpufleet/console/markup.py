"""The parts of which the pages of the console are made, as HTML. Pure. Names of a fleet are escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

from gpufleet.console.style import CSS
from gpufleet.console.view import FleetView, InstanceView

MAX_ENTRIES: Final = 20
"""Maximum number of entries in a list; the others are counted."""
_TEXT_COLUMNS: Final = frozenset(
    {
        "pool", "engine", "type", "zone", "phase", "watchdog", "what", "outcome", "why", "kept until", "interval",
        "cause", "action", "reason code", "resource", "what to do", "model", "team",
    }
)  # fmt: skip
"""Columns that contain text instead of numbers."""


def page(title: str, body: str, *, nav: bool = True, refresh_s: int | None = None) -> str:
    """A whole page. `refresh_s`: the page loads itself again after this many seconds."""
    again = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    menu = (
        '<a class="skip" href="#main">To the content</a><nav aria-label="Pages"><b>gpu-fleet</b>'
        '<a href="/">Status</a><a href="/history">History</a>'
        '<a href="/costs">Costs</a><a href="/status.json">JSON</a>'
        '<form class="in" method="post" action="/sign-out"><button>Sign out</button></form></nav>'
        if nav
        else ""
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">{again}'
        f'<title>{escape(title)} · gpu-fleet</title><link rel="icon" href="data:,"><style>{CSS}</style></head>\n'
        f'<body>{menu}<main id="main">{body}</main></body></html>\n'
    )


def button(path: str, text: str, about: str, fields: Mapping[str, str]) -> str:
    """A form with one button. `about`: what it acts on, for screen readers."""
    hidden = "".join(f'<input type="hidden" name="{name}" value="{escape(value)}">' for name, value in fields.items())
    return (
        f'<form class="in" method="post" action="{path}">{hidden}'
        f'<button aria-label="{escape(f"{text}: {about}")}">{escape(text)}</button></form>'
    )


def keep_button(view: FleetView, one: InstanceView, csrf_token: str) -> str:
    """Keeps an instance."""
    return button("/keep", "Keep 4 h", one.id, {"fleet": view.name, "instance": one.id, "stamp": csrf_token})


def instance_link(view: FleetView, one: InstanceView) -> str:
    """A link to the instance's page."""
    url = f"/instance/{quote(one.id, safe='')}?{urlencode({'fleet': view.name})}"
    return f'<a href="{escape(url)}">{escape(one.id)}</a>'


def more(count: int) -> str:
    """The number of entries that a list does not show."""
    return f'<p class="soft">and {count - MAX_ENTRIES} more</p>' if count > MAX_ENTRIES else ""


def table(names: Sequence[str], rows: str, *, cards: bool = True) -> str:
    """A table. `cards`: on a narrow screen each row becomes a card."""
    head = "".join(f'<th scope="col"{_side(name)}>{escape(name)}</th>' for name in names)
    kind = ' class="stack"' if cards else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def row(names: Sequence[str], cells: Sequence[str], long: Iterable[str] = ()) -> str:
    """A table row. The cells are HTML already."""
    wide = set(long)
    inner = "".join(
        f'<td data-name="{escape(name)}"{" class=long" if name in wide else _side(name)}>{cell}</td>'
        for name, cell in zip(names, cells, strict=True)
    )
    return f"<tr>{inner}</tr>"


def _side(name: str) -> str:
    """Text columns are left-aligned, number columns right-aligned."""
    return " class=left" if name in _TEXT_COLUMNS else ""
