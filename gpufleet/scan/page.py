"""A scan as one HTML file: no network, no script, dark and light, readable on a phone."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from html import escape
from typing import Final

from gpufleet.costs import slice_use
from gpufleet.scan import summary
from gpufleet.scan.advice import Advice
from gpufleet.scan.judge import ScanWindows
from gpufleet.scan.model import Scan, Verdict

MAX_ROWS: Final = 500
_LONG: Final = ' class="long"'
_LONGEST_LINE: Final = 24
"""Maximum number of characters of a cell in one line: ids and names fit, messages and owners wrap."""
COLOURS: Final = {
    Verdict.IN_USE: "#228833",
    Verdict.IDLE: "#cc3311",
    Verdict.LIKELY_IDLE: "#ee7733",
    Verdict.UNKNOWN: "#888888",
}
"""Distinguishable with any colour vision (from Paul Tol's vibrant scheme)."""
_STYLE: Final = """
:root{color-scheme:light dark;--text:#1c2024;--soft:#60646c;--line:#d9d9e0;--card:#f7f7f9;--page:#fff}
@media(prefers-color-scheme:dark){:root{--text:#edeef0;--soft:#b0b4ba;--line:#3a3f45;--card:#1b1d20;--page:#111214}}
*{box-sizing:border-box}body{margin:0 auto;max-width:96rem;padding:1rem;background:var(--page);color:var(--text);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;
margin:2rem 0 .5rem}.soft{color:var(--soft);font-size:.9rem}ol>li{margin:.6rem 0}
code{display:block;background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.4rem .6rem;
margin:.3rem 0;font-size:.85rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;width:100%}th,td{padding:.3rem .5rem;
border-bottom:1px solid var(--line);text-align:left;white-space:nowrap;font-variant-numeric:tabular-nums}
td.long{white-space:normal;min-width:12rem}
.bars{display:grid;grid-template-columns:max-content 1fr;gap:.4rem 1rem;align-items:center}
.bar{display:flex;align-items:center;gap:.5rem;font-variant-numeric:tabular-nums}.bar i{display:block;height:1.4rem}
.bar>span{display:flex;flex:none}@media(max-width:40rem){.bars{grid-template-columns:1fr;gap:0}.bar{margin-bottom:.6rem}}
:focus-visible{outline:2px solid #4477aa;outline-offset:2px}
.key span{display:inline-block;width:.8em;height:.8em;border-radius:.2em;margin:0 .3em 0 .8em}
"""
_Shown = Callable[[str], str]
"""Returns a text as HTML, without what must not be shown."""
_LONGEST: Final = 75
"""Length of the longest bar in percent: its amount is next to it."""


def page(scan: Scan, advice: Sequence[Advice], hide: Callable[[str], str] = str) -> str:
    """Return the whole file. `hide`: replaces what must not be shown in a text."""

    def shown(text: str) -> str:
        return escape(hide(text))

    title = "GPU scan"
    first, *rest = summary.headline(scan)
    slices = scan.slices
    body = [
        f'<h1>{title}</h1><p class="soft">{scan.at:%Y-%m-%d %H:%M} UTC</p><p><b>{shown(first)}</b></p>',
        "<ul>" + "".join(f"<li>{shown(line)}</li>" for line in rest) + "</ul>",
        _first(advice, shown),
        _picture(scan, shown),
        _table("Instances", summary.HEADINGS, [summary.row(one, scan.at, hide) for one in scan.instances], shown),
        _table(summary.SLICES, slice_use.HEADINGS, slice_use.rows(slices), shown),
        *(f'<p class="soft">{shown(line)}</p>' for line in slice_use.notes(slices)),
        _table(
            "Reservations", summary.CAPACITY_HEADINGS, [summary.capacity_row(one) for one in scan.capacity], shown
        ),
        _table(
            "Not read",
            ("scope", "missing", "code", "message"),
            [(str(one.scope), one.what, one.code.value, one.message) for one in scan.all_failures],
            shown,
        ),
        _method(scan),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{title}</title><style>{_STYLE}</style></head>\n'
        f"<body><main>\n{chr(10).join(part for part in body if part)}\n</main></body></html>\n"
    )


def _first(advice: Sequence[Advice], shown: _Shown) -> str:
    if not advice:
        return ""
    items = "".join(
        f"<li>{shown(str(one.scope))}: {shown(one.text)}; <b>{shown(summary.amount_of(one))}</b>"
        f"<code>{shown(one.command)}</code></li>"
        for one in advice[: summary.FIRST]
    )
    return f"<h2>Do first</h2><ol>{items}</ol>"


def _picture(scan: Scan, shown: _Shown) -> str:
    """USD per hour by region and use, as bars."""
    bars: dict[str, dict[Verdict, Decimal]] = {}
    for one in scan.instances:
        if one.usd_per_hour is not None and one.verdict in COLOURS:
            bar = bars.setdefault(f"{one.account} {one.instance.region}", dict.fromkeys(COLOURS, Decimal(0)))
            bar[one.verdict] += one.usd_per_hour
    highest = sorted(bars.items(), key=lambda item: -sum(item[1].values()))[:20]
    if not highest:
        return ""
    longest = max(sum(bar.values(), Decimal(0)) for _, bar in highest) or Decimal(1)
    key = "".join(f'<span style="background:{colour}"></span>{verdict.value}' for verdict, colour in COLOURS.items())
    amounts = "; ".join(f"{name} {summary.dollars(sum(bar.values(), Decimal(0)))}" for name, bar in highest)
    label = shown(f"USD per hour by region and use: {amounts}")
    return (
        f'<h2>USD per hour by region and use</h2><p class="key soft">{key}</p>'
        f'<div class="bars" role="img" aria-label="{label}">{"".join(_bars(highest, longest, shown))}</div>'
    )


def _bars(highest: Sequence[tuple[str, dict[Verdict, Decimal]]], longest: Decimal, shown: _Shown) -> Iterable[str]:
    for name, bar in highest:
        total = sum(bar.values(), Decimal(0))
        parts = "".join(
            f'<i style="width:{float(usd / total) * 100:.2f}%;background:{COLOURS[verdict]}"'
            f' title="{verdict.value}: {summary.dollars(usd)} USD/h"></i>'
            for verdict, usd in bar.items()
            if usd
        )
        width = float(total / longest) * _LONGEST
        yield (
            f'<div>{shown(name)}</div><div class="bar"><span style="width:{width:.2f}%">{parts}</span>'
            f"{summary.dollars(total)}</div>"
        )


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], shown: _Shown) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td{_LONG * (len(cell) > _LONGEST_LINE)}>{shown(cell)}</td>" for cell in cells) + "</tr>"
        for cells in rows[:MAX_ROWS]
    )
    cut = f'<p class="soft">{len(rows) - MAX_ROWS} more: use --json.</p>' if len(rows) > MAX_ROWS else ""
    return (
        f'<h2>{title}</h2><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{cut}"
    )


def _method(scan: Scan) -> str:
    hours = ScanWindows(now=scan.at, idle=scan.idle_window).min_hours
    return (
        f'<h2>Method</h2><p class="soft">Idle: a GPU metric covers each of the last {hours} hours and all GPUs, and'
        " no GPU worked. Likely idle: power or the engine's own metrics show no work. CPU and network prove nothing"
        " about a GPU. Waste: certainly idle hours at the current price, without those in prepaid capacity, which"
        " costs the same when its instances are stopped. Prices: spot as the cloud reports it now, otherwise list"
        " prices; discounts and commitments are not known.</p>"
    )
