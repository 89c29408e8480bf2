"""The report as one self-contained HTML file: no network, no script, dark and light, readable on a phone."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from gpufleet import extras
from gpufleet.costs import charts, digest, energy_render, render, slice_view, speed, token_origins
from gpufleet.costs.digest import Digest
from gpufleet.costs.document import METHOD, instant
from gpufleet.costs.figures import Figure
from gpufleet.costs.report import By, Report
from gpufleet.costs.series import DRAWN, Lane, TimeBucket
from gpufleet.domain import money

_STYLE: Final = """
:root{color-scheme:light dark;--text:#1c2024;--soft:#60646c;--line:#d9d9e0;--card:#f7f7f9;--page:#fff;--warn:#ad5700;
--link:#0b57d0}
@media(prefers-color-scheme:dark){:root{--text:#edeef0;--soft:#b0b4ba;--line:#3a3f45;--card:#1b1d20;--page:#111214;
--warn:#ffb224;--link:#8ab4f8}}
*{box-sizing:border-box}a{color:var(--link)}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--page);color:var(--text);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;
margin:2rem 0 .5rem}p,li{margin:.3rem 0}.soft{color:var(--soft);font-size:.9rem}.numbers{display:grid;gap:.6rem;
grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));margin:1rem 0}.numbers div{background:var(--card);
border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}.numbers b{display:block;font-size:1.1rem}
.scroll{overflow-x:auto;max-width:100%}table{border-collapse:collapse;font-size:.85rem;width:100%}th,td{padding:.3rem
.5rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}tr:last-child td{font-weight:600}figure{margin:.5rem 0;
overflow-x:auto}figure svg{width:100%;min-width:36rem;height:auto;
display:block;color:var(--text)}.warn{color:var(--warn)}.left td{text-align:left;
white-space:normal}details{margin:.5rem 0}summary{cursor:pointer}.key span{display:inline-block;width:.8em;
height:.8em;border-radius:.2em;margin:0 .3em 0 .8em;vertical-align:baseline}
"""


def page(found: Digest, buckets: Sequence[TimeBucket], lanes: Sequence[Lane], back: str = "") -> str:
    """The whole file. `back`: the address of the previous page; empty: no link back."""
    report = found.report
    title = f"Cost report: {report.scope.environment}"
    no_charts = extras.missing(charts.LIBRARY)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(render.title(report))}</p>',
        _numbers(found),
        _notes(report),
        _without_charts(no_charts) if no_charts else _over_time(report, buckets),
        "" if no_charts else _unit_costs(report),
        *(_table(report, by) for by in (By.POOL, By.MODEL, By.CAPACITY_TYPE, By.TEAM)),
        _table(report, By.ADAPTER) if report.adapters else "",
        _slices(report),
        _token_origins(report),
        _energy(report),
        _speeds(report),
        "" if no_charts else _timelines(report, lanes),
        _list("Waste by cause", digest.waste_lines(found.waste) or ["none"]),
        _list("Savings", digest.savings_lines(found.savings)),
        _coverage(report),
        _prices(report),
        _method(),
    ]
    body = "\n".join(part for part in parts if part)
    nav = f'<nav aria-label="Back"><a href="{escape(back)}">Back</a></nav>\n' if back else ""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{nav}<main>\n{body}\n</main>\n</body></html>\n"
    )


def _numbers(found: Digest) -> str:
    cells = "".join(
        f'<div><span class="soft">{escape(n.name)}</span><b>{escape(n.value)}</b>'
        f'<span class="soft">{escape(n.trend)}</span></div>'
        for n in digest.numbers(found)
    )
    return f'<div class="numbers">{cells}</div>'


def _notes(report: Report) -> str:
    if not report.notes:
        return ""
    few = "".join(f'<li class="warn">{escape(note)}</li>' for note in report.notes[:3])
    more = "".join(f"<li>{escape(note)}</li>" for note in report.notes[3:])
    rest = f"<details><summary>{len(report.notes) - 3} more notes</summary><ul>{more}</ul></details>" if more else ""
    return f"<ul>{few}</ul>{rest}"


def _without_charts(why: str) -> str:
    return f'<p class="soft">This page has no charts: {escape(why, quote=False)}</p>'


def _over_time(report: Report, buckets: Sequence[TimeBucket]) -> str:
    if not any(any(bucket.usd.values()) for bucket in buckets):
        return ""
    picture = charts.svg(charts.cost_over_time(buckets, report.scope.timezone), "cost over time by capacity type")
    return f"<h2>Cost over time</h2>{_figure(picture, 'Cost over time')}"


def _unit_costs(report: Report) -> str:
    values = {name: figure.unit_costs().blended for name, figure in report.groups[By.MODEL].items()}
    known = {name: value for name, value in values.items() if value is not None}
    idle = ""
    for reason in ("no traffic", "tokens unknown"):
        quiet = sorted(
            name
            for name, figure in report.groups[By.MODEL].items()
            if values[name] is None and render.without_tokens(figure) == reason
        )
        names = escape(", ".join(quiet[:20]))
        idle += f'<p class="soft">{reason.capitalize()}: {names}</p>' if quiet else ""
    if not known:
        return f"<h2>USD per million tokens</h2>{idle or '<p>no traffic</p>'}"
    most_expensive = dict(sorted(known.items(), key=lambda item: (-item[1], item[0]))[:20])
    picture = charts.svg(
        charts.unit_cost_bars(most_expensive, "USD per million tokens, blended"), "USD per million tokens"
    )
    return f"<h2>USD per million tokens, by model</h2>{_figure(picture, 'USD per million tokens')}{idle}"


def _table(report: Report, by: By, most: int = 200) -> str:
    rows = render.rows(report, by)
    shown = [*rows[:most], rows[-1]] if len(rows) > most + 1 else rows
    cut = f'<p class="soft">{len(rows) - len(shown)} more in the CSV file.</p>' if len(rows) > len(shown) else ""
    title = f"By {by.value.replace('-', ' ')}"
    return f"<h2>{title}</h2>{_grid(title, (by.value, *render.HEADINGS[1:]), shown)}{cut}"


def _grid(label: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls by itself, also with the keyboard."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"{_scrolled('div', label)}<table><tr>{head}</tr>{body}</table></div>"


def _figure(picture: str, label: str) -> str:
    return f"{_scrolled('figure', label)}{picture}</figure>"


def _scrolled(tag: str, label: str) -> str:
    return f'<{tag} class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'


def _slices(report: Report, most: int = 200) -> str:
    if not report.slices.rows:
        return ""
    notes = "".join(f'<p class="soft">{escape(line)}</p>' for line in slice_view.facts(report.slices))
    return f"<h2>By slice</h2>{_grid('By slice', slice_view.HEADINGS, slice_view.rows(report.slices, most))}{notes}"


def _token_origins(report: Report) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in token_origins.lines(report.token_origins))
    return f'<ul class="soft">{lines}</ul>' if lines else ""


def _speeds(report: Report, most: int = 200) -> str:
    if not report.speeds:
        return ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in render.references(report)[:most])
    title = "Tokens per second and GPU"
    cut = f'<p class="soft">{len(report.speeds) - most} more in the JSON file.</p>' if report.speeds[most:] else ""
    return (
        f"<h2>{title}</h2>{_grid(title, speed.HEADINGS, map(speed.as_text, report.speeds[:most]))}{cut}"
        f'<details><summary>Sources of the references</summary><ul class="soft">{lines}</ul></details>'
    )


def _energy(report: Report) -> str:
    """Energy and CO2e by pool and by model, per million tokens next to USD."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in energy_render.lines(report))
    tables = ""
    if report.total.energy.millijoules is not None:
        for by in (By.POOL, By.MODEL):
            headings = (by.value, *energy_render.HEADINGS[1:])
            tables += _grid(f"Energy by {by.value}", headings, energy_render.rows(report, by))
    return f'<h2>Energy and CO2e</h2>{tables}<ul class="soft">{lines}</ul>'


def _timelines(report: Report, lanes: Sequence[Lane], most: int = DRAWN) -> str:
    if not lanes:
        return ""
    window = (report.scope.since, report.scope.until)
    colours = {**charts.COLOURS, "idle": charts.IDLE}
    key = "".join(f'<span style="background:{colour}"></span>{kind}' for kind, colour in colours.items())
    pictures = "".join(
        f"<h3>{escape(lane.pool)}</h3>"
        + _figure(
            charts.svg(
                charts.timeline(lane, report.scope.timezone, window), f"instances of pool {escape(lane.pool)}"
            ),
            f"Instances of pool {lane.pool}",
        )
        for lane in lanes[:most]
    )
    more = f'<p class="soft">{len(lanes) - most} more pools are not drawn.</p>' if len(lanes) > most else ""
    legend = f'<p class="soft key">{key} &nbsp; × preempted &nbsp; | ended by a watchdog or user</p>'
    return f"<h2>Instances over time</h2>{legend}{pictures}{more}"


def _list(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line.strip())}</li>" for line in lines)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>"


def _coverage(report: Report, most: int = 100) -> str:
    rows = [
        (pool, _share(figure), str(figure.tokens.resets)) for pool, figure in sorted(report.groups[By.POOL].items())
    ]
    known = "never" if report.known_until is None else instant(report.known_until)
    zone = report.scope.timezone
    gaps = "".join(
        f"<li>not collected: {render.clock(start, zone)} to {render.clock(end, zone)}</li>"
        for start, end in report.uncollected[:most]
    )
    lines = "".join(f'<p class="warn">{escape(line)}</p>' for line in render.coverage(report))
    return (
        f'<h2>Coverage</h2><p class="soft">The ledger ends at {known}.</p>{lines}<ul>{gaps}</ul>'
        f"{_grid('Coverage', ('pool', 'measured', 'resets'), rows)}{_unknown(report)}"
    )


def _unknown(report: Report) -> str:
    lines = render.unknown_rows(report)
    if not lines:
        return ""
    return f"<h3>Unknown costs</h3>{_grid('Unknown costs', render.UNKNOWN_HEADINGS, lines)}"


def _share(figure: Figure) -> str:
    return "–" if figure.coverage is None else f"{figure.coverage:.1%}"


def _prices(report: Report, most: int = 100) -> str:
    rows = [
        (
            price.sku,
            price.zone or price.region,
            render.show(price.usd_per_hour),
            price.source,
            instant(price.as_of)[:16],
        )
        for price in report.prices[:most]
    ]
    more = (
        f'<p class="soft">{len(report.prices) - most} more in the JSON file.</p>' if len(report.prices) > most else ""
    )
    return f"<h2>Prices</h2>{_grid('Prices', ('sku', 'where', 'USD/h', 'source', 'as of'), rows)}{more}"


def _method() -> str:
    items = "".join(f"<li>{escape(name.replace('_', ' '))}: {escape(text)}</li>" for name, text in METHOD.items())
    month = f"Amounts are in USD; {money.HOURS_PER_MONTH} hours are a month."
    return f'<h2>Method</h2><ul class="soft">{items}</ul><p class="soft">{month}</p>'
