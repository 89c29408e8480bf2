"""The web page as HTML, read-only except for Keep and Pause. Pure.

It has no script and no external request. All untrusted text is escaped.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Final
from urllib.parse import urlencode

from gpufleet.console import markup, text
from gpufleet.console.view import FleetView, InstanceView, PoolStatus, sum_of_known
from gpufleet.domain.decisions import LedgerEntry
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import CapacityType

REFRESH_S: Final = 30
PER_PAGE: Final = 200
"""Maximum number of instances in one table: 5,000 would be megabytes."""


def sign_in(wrong: bool) -> str:
    """The form for the access token."""
    error = '<p class="bad" role="alert">This is not the access token of this console.</p>' if wrong else ""
    body = (
        '<form class="sign" method="post" action="/sign-in"><h1>gpu-fleet</h1>'
        f'{error}<label for="token">Access token</label>'
        '<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>'
        "<button>Sign in</button></form>"
    )
    return markup.page("Sign in", body, nav=False)


def overview(views: Sequence[FleetView], now: datetime, csrf_token: str, *, updates: bool = False) -> str:
    """The page of all fleets. `csrf_token` proves that a form came from this page.

    `updates`: it loads itself again every `REFRESH_S`, only on demand, because that interrupts a screen reader.
    """
    other = '<a href="/">Stop updating</a>' if updates else f'<a href="/?updates=on">Update every {REFRESH_S} s</a>'
    parts = [f'<p class="soft">{other}</p>']
    parts += [_fleets(views)] if len(views) > 1 else []
    parts += [_fleet(view, now, csrf_token, number) for number, view in enumerate(views)]
    title = ", ".join(view.name for view in views)
    return markup.page(title or "no fleets", "\n".join(parts), refresh_s=REFRESH_S if updates else None)


def instances(view: FleetView, pool: str | None, start: int) -> str:
    """The instances of one pool or of a fleet, in pages."""
    found = [i for i in view.instances if pool is None or i.pool == pool]
    shown = found[start : start + PER_PAGE]
    rows = "".join(_instance_row(view, instance) for instance in shown)
    names = ("instance", "pool", "type", "zone", "phase", "GPU", "running", "wait", "KV", "tok/s", "USD/h", "idle")
    steps = _steps(view, pool, start, len(found))
    body = (
        f"<h1>{escape(pool or view.name)}</h1><p class='soft'>{len(found)} instances, "
        f"{view.at:%Y-%m-%d %H:%M:%S} UTC</p>{steps}{markup.table(names, rows)}{steps}"
    )
    return markup.page(f"{pool or 'instances'}: {view.name}", body)


def instance(view: FleetView, found: InstanceView, acts: Sequence[LedgerEntry], csrf_token: str) -> str:
    """One instance and every decision about it."""
    signals = found.signals
    numbers = _numbers(
        (
            ("phase", signals.phase or text.NOTHING),
            ("GPU active", text.percent(signals.gpu_active)),
            ("running", text.number(signals.running)),
            ("waiting", text.number(signals.waiting)),
            ("KV cache", text.percent(signals.kv_cache)),
            ("USD/h", text.NOTHING if found.usd_per_hour is None else f"{found.usd_per_hour:.4f}"),
        )
    )
    kept = f", kept until {found.keep_until:%Y-%m-%d %H:%M} UTC" if found.keep_until else ""
    body = (
        f"<h1>{escape(found.id)}</h1><p>{escape(found.machine_type)}, {escape(found.capacity_type)}, "
        f"{escape(found.zone)}, pool {escape(found.pool or 'none (orphan)')}{kept}</p>{numbers}"
        f"{markup.keep_button(view, found, csrf_token)}<h2>Decisions</h2>"
        f"{_acts(acts, view.at, 'No decision is recorded yet.')}"
    )
    return markup.page(found.id, body)


def costs(views: Sequence[FleetView]) -> str:
    """The costs of each fleet, with links to the reports."""
    names = ("fleet", "USD/h now", "USD last hour", "of it idle", "USD today", "USD/Mtok, last hour")
    rows = "".join(_cost_row(names, view) for view in views)
    note = "<p class='soft'>A fleet's name links to its report of 24 hours.</p>"
    body = f"<h1>Costs</h1>{note}{markup.table(names, rows)}"
    return markup.page("costs", body)


def _cost_row(names: Sequence[str], view: FleetView) -> str:
    hour, today = view.read.hour, view.read.today
    unit = None if hour is None else hour.unit.blended
    url = f"/costs?{urlencode({'fleet': view.name})}"
    cells = (
        f'<a href="{escape(url)}">{escape(view.name)}</a>',
        text.money(view.usd_per_hour, view.unpriced),
        text.NOTHING if hour is None else text.money(hour.usd, hour.unpriced),
        text.NOTHING if hour is None else text.money(hour.idle_usd, 0),
        text.NOTHING if today is None else text.money(today.usd, today.unpriced),
        text.NOTHING if unit is None else f"{unit:.3f}",
    )
    return markup.row(names, cells)


def message(title: str, sentence: str) -> str:
    """A page with one sentence and a link back."""
    return markup.page(title, f'<h1>{escape(title)}</h1><p>{escape(sentence)}</p><p><a href="/">Back</a></p>')


def _fleets(views: Sequence[FleetView]) -> str:
    """A table of all fleets; each row links to the fleet's section below."""
    names = ("fleet", "alerts", "problems", "pools below target", "instances", "USD/h")
    rows = "".join(
        markup.row(
            names,
            (
                f'<a href="#fleet-{number}">{escape(view.name)}</a>',
                text.NOTHING if view.read.alerts is None else str(len(view.read.alerts)),
                str(len(view.read.problems)),
                text.NOTHING if view.read.instances is None else str(sum(pool.below_target for pool in view.pools)),
                text.NOTHING if view.read.instances is None else str(len(view.instances)),
                text.money(view.usd_per_hour, view.unpriced),
            ),
        )
        for number, view in enumerate(views)
    )
    return f"<h1>{len(views)} fleets</h1>{markup.table(names, rows)}"


def _fleet(view: FleetView, now: datetime, csrf_token: str, number: int) -> str:
    read = view.read
    old = (now - view.at).total_seconds()
    stale = f'<span class="warn">{approximate(now - view.at)} old</span>' if old > 2 * REFRESH_S else ""
    problems = "".join(f'<li class="bad">{escape(problem)}</li>' for problem in read.problems)
    marked = [i for i in view.instances if i.idle_since is not None]
    draining = [i for i in view.instances if i.draining]
    none = "No action in the last hour." if read.ledger_read else "Unknown: the ledger was not read."
    parts = [
        f'<h1 id="fleet-{number}">{escape(view.name)}</h1>',
        f'<p class="soft">{view.at:%Y-%m-%d %H:%M:%S} UTC {stale}</p>',
        f'<p class="soft">{escape(text.as_of(read.hour, view.at))}</p>' if read.hour is not None else "",
        f"<ul>{problems}</ul>" if problems else "",
        f"<h2>Alerts</h2>{_alerts(view)}",
        _numbers(_headline(view)),
        f"<h2>Pools</h2>{_pools(view)}",
        f"<h2>Marked as idle</h2>{_marked(view, marked, csrf_token)}" if marked else "",
        f"<h2>Draining</h2>{_draining(view, draining)}" if draining else "",
        _lines(
            "Hand brakes",
            (text.brake(b) for b in read.brakes),
        ),
        _lines("Orphans", (f"{i.id} ({i.machine_type}, {i.zone})" for i in view.orphans)),
        f"<h2>Recent actions</h2>{_acts(read.acts, view.at, none)}",
        _lines(
            "Spot market",
            (text.market(m.zone, m.machine_type, m.spot, m.on_demand) for m in read.market if m.spot is not None),
        ),
        _lines(
            "Watchdogs", (f"{name}: {approximate(view.at - at)} ago" for name, at in sorted(read.last_seen.items()))
        ),
    ]
    return f"<section>{''.join(parts)}</section>"


def _headline(view: FleetView) -> Iterable[tuple[str, str]]:
    read = view.read
    yield "USD per hour", text.money(view.usd_per_hour, view.unpriced)
    yield "USD today", text.NOTHING if read.today is None else text.money(read.today.usd, read.today.unpriced)
    unit = None if read.hour is None else read.hour.unit.blended
    yield "USD per Mtok, last hour", text.NOTHING if unit is None else f"{unit:.3f}"
    yield "ready replicas", text.number(sum_of_known(pool.ready for pool in view.pools))
    yield "instances", text.NOTHING if read.instances is None else str(len(view.instances))


def _numbers(cells: Iterable[tuple[str, str]]) -> str:
    inner = "".join(f'<div><span class="soft">{escape(n)}</span><b>{escape(v)}</b></div>' for n, v in cells)
    return f'<div class="numbers">{inner}</div>'


_POOL_NAMES: Final = (
    "pool", "engine", "target", "ready", "reserved", "spot", "on-demand", "draining", "marked", "waiting", "tok/s",
    "USD/h", "USD/Mtok",
)  # fmt: skip


def _pools(view: FleetView) -> str:
    return markup.table(_POOL_NAMES, "".join(_pool_row(view, pool) for pool in view.pools))


def _pool_row(view: FleetView, pool: PoolStatus) -> str:
    link = f"/instances?{urlencode({'fleet': view.name, 'pool': pool.name})}"
    ready = f'<span class="warn">{pool.ready}</span>' if pool.below_target else text.number(pool.ready)
    cells = (
        f'<a href="{escape(link)}">{escape(pool.name)}</a>',
        escape(pool.engine),
        text.NOTHING if pool.target is None else str(pool.target),
        ready,
        *(
            text.counted(pool, kind, " of ")
            for kind in (CapacityType.RESERVED, CapacityType.SPOT, pool.fallback_type)
        ),
        str(pool.draining or text.NOTHING),
        str(pool.marked or text.NOTHING),
        text.number(pool.queued),
        text.number(pool.tokens_per_second),
        text.money(pool.usd_per_hour, pool.unpriced),
        text.dollars(pool.usd_per_million_tokens),
    )
    return markup.row(_POOL_NAMES, cells)


def _alerts(view: FleetView) -> str:
    if view.read.alerts is None:
        return '<p class="warn">Unknown: Prometheus did not answer.</p>'
    if not view.read.alerts:
        return '<p class="good">None.</p>'
    first = text.paging_first(view.read.alerts)
    items = "".join(
        f'<li class="{"bad" if a.severity == text.PAGE else "warn"}">{escape(a.name)} {escape(a.pool or "")} '
        f"{escape(a.instance_id or '')}{f' x{a.count}' if a.count > 1 else ''} ({escape(a.severity)})</li>"
        for a in first[: markup.MAX_ENTRIES]
    )
    return f"<ul>{items}</ul>{markup.more(len(view.read.alerts))}"


def _marked(view: FleetView, marked: Sequence[InstanceView], csrf_token: str) -> str:
    names = ("instance", "pool", "idle for", "why", "kept until", "action")
    rows = "".join(
        markup.row(
            names,
            (
                markup.instance_link(view, one),
                escape(one.pool or text.NOTHING),
                approximate(view.at - (one.idle_since or view.at)),
                escape(one.why or text.NOTHING),
                f"{one.keep_until:%Y-%m-%d %H:%M}" if one.keep_until else text.NOTHING,
                markup.keep_button(view, one, csrf_token),
            ),
        )
        for one in marked[: markup.MAX_ENTRIES]
    )
    return markup.table(names, rows) + markup.more(len(marked))


def _draining(view: FleetView, draining: Sequence[InstanceView]) -> str:
    names = ("instance", "pool", "type", "running", "why")
    rows = "".join(
        markup.row(
            names,
            (
                markup.instance_link(view, one),
                escape(one.pool or text.NOTHING),
                escape(one.capacity_type),
                text.number(one.signals.running),
                escape(one.why or text.NOTHING),
            ),
            long={"why"},
        )
        for one in draining[: markup.MAX_ENTRIES]
    )
    return markup.table(names, rows) + markup.more(len(draining))


def _instance_row(view: FleetView, one: InstanceView) -> str:
    signals = one.signals
    names = ("instance", "pool", "type", "zone", "phase", "GPU", "running", "wait", "KV", "tok/s", "USD/h", "idle")
    cells = (
        markup.instance_link(view, one),
        escape(one.pool or text.NOTHING),
        escape(one.capacity_type),
        escape(one.zone),
        escape(signals.phase or text.NOTHING),
        text.percent(signals.gpu_active),
        text.number(signals.running),
        text.number(signals.waiting),
        text.percent(signals.kv_cache),
        text.number(signals.tokens_per_second),
        text.NOTHING if one.usd_per_hour is None else f"{one.usd_per_hour:.4f}",
        text.NOTHING if one.idle_since is None else approximate(view.at - one.idle_since),
    )
    return markup.row(names, cells)


def _steps(view: FleetView, pool: str | None, start: int, total: int) -> str:
    if total <= PER_PAGE:
        return ""
    links: list[str] = []
    for label, there in (("Previous", start - PER_PAGE), ("Next", start + PER_PAGE)):
        if 0 <= there < total:
            asked = {"fleet": view.name, "start": str(there)} | ({"pool": pool} if pool else {})
            links.append(f'<a href="{escape("/instances?" + urlencode(asked))}">{label}</a>')
    return f"<p>{start + 1} to {min(start + PER_PAGE, total)} of {total} {' '.join(links)}</p>"


def _acts(acts: Sequence[LedgerEntry], now: datetime, none: str) -> str:
    if not acts:
        return f'<p class="soft">{none}</p>'
    names = ("when", "watchdog", "what", "outcome", "why")
    rows = "".join(
        markup.row(
            names,
            (
                f"{approximate(now - act.at)} ago",
                escape(act.watchdog),
                f"{escape(act.decision.action.sentence)} {escape(act.decision.resource)}",
                escape(text.NOTHING if act.outcome is None else act.outcome.kind.sentence),
                escape(act.decision.reason.sentence + (f": {act.detail}" if act.detail else "")),
            ),
            long={"what", "why"},
        )
        for act in acts[:PER_PAGE]
    )
    return markup.table(names, rows)


def _lines(title: str, lines: Iterable[str]) -> str:
    found = list(lines)
    if not found:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in found[: markup.MAX_ENTRIES])
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>{markup.more(len(found))}"
