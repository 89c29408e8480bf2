"""What a scan says in total, as text lines, table rows and a JSON document. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from gpufleet.costs import slice_use
from gpufleet.domain import money
from gpufleet.domain.durations import render as render_duration
from gpufleet.domain.model import Cloud
from gpufleet.scan.advice import Advice
from gpufleet.scan.model import SLICE_WINDOW, Scan, ScannedCapacity, ScannedInstance, Verdict

FIRST: Final = 3
"""Number of things to do first."""
HEADINGS: Final = (
    *("instance", "type", "USD/h", "use", "idle h", "waste USD"),
    *("account", "region", "owner", "age", "capacity", "spot USD/h"),
)
LONGEST_CELL: Final = 40
"""Maximum number of characters of an owner in a table. JSON has the whole text."""
LONGEST_COMMAND: Final = 700
"""Maximum number of characters of a command in a message: Slack accepts 40,000 in all, and cuts longer lines."""
NARROW: Final = ("instance", "use", "USD/h", "waste USD", "type", "region", "owner")
"""Headings for a narrow terminal, the most important first."""
NARROW_CAPACITY: Final = ("id", "unused", "USD/h unused", "type", "total", "place")
SLICES: Final = "Slices and shared accelerators, use in the last hour"
"""Title of their table."""
CAPACITY_HEADINGS: Final = ("account", "place", "id", "kind", "type", "total", "unused", "USD/h unused")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTotals:
    """Totals of a scan. Amounts are USD; instances without a price are counted in `unpriced`."""

    instances: int
    running: int
    unpriced: int
    usd_per_hour: Decimal
    by_verdict: Mapping[Verdict, tuple[int, Decimal]]
    """Number and USD per hour."""
    waste: Decimal
    """Of the whole window; certain only, and without prepaid capacity."""
    prepaid: int
    """Instances in prepaid capacity with idle hours. Stopping them saves nothing."""
    unused_prepaid: Decimal
    """Of their idle hours."""
    unused_capacity_usd_per_hour: Decimal


def totals(scan: Scan) -> ScanTotals:
    """Add up a scan."""
    every = scan.instances
    running = [one for one in every if one.verdict is not Verdict.STOPPED]
    by_verdict = {
        verdict: (len(found), _sum(one.usd_per_hour for one in found))
        for verdict in Verdict
        if (found := [one for one in every if one.verdict is verdict])
    }
    return ScanTotals(
        instances=len(every),
        running=len(running),
        unpriced=sum(one.usd_per_hour is None for one in running),
        usd_per_hour=_sum(one.usd_per_hour for one in running),
        by_verdict=by_verdict,
        waste=_sum(one.waste for one in every),
        prepaid=sum(one.is_prepaid and one.idle_hours > 0 for one in every),
        unused_prepaid=_sum(one.unused_prepaid for one in every),
        unused_capacity_usd_per_hour=_sum(one.usd_per_hour for one in scan.capacity),
    )


def _sum(amounts: Iterable[Decimal | None]) -> Decimal:
    return sum((amount for amount in amounts if amount is not None), Decimal(0))


def dollars(amount: Decimal) -> str:
    """Return an amount in USD with cents."""
    return f"{amount.quantize(money.CENT):,f}"


def headline(scan: Scan) -> list[str]:
    """Return the totals as sentences."""
    found = totals(scan)
    unpriced = f" and {found.unpriced} of unknown price" if found.unpriced else ""
    failed = f"{_some(len(scan.all_failures), 'part')} could not be read"
    if scan.all_failures and not any(result.is_read for result in scan.results):
        # totals of 0 would look like an account without GPUs
        why = "interrupted" if scan.is_interrupted else failed
        return [f"no instances could be listed: {why}"]
    lines = [
        f"{_places(scan)}: {found.running} running"
        f" GPU instance{'s' * (found.running != 1)}, {dollars(found.usd_per_hour)} USD/h{unpriced}"
    ]
    parts = [
        f"{count} {verdict}" + (f": {dollars(usd)} USD/h" if usd else "")
        for verdict, (count, usd) in found.by_verdict.items()
        if verdict is not Verdict.STOPPED
    ]
    if Verdict.STOPPED in found.by_verdict:
        parts.append(f"{found.by_verdict[Verdict.STOPPED][0]} stopped")
    if parts:
        lines.append("; ".join(parts))
    window = render_duration(scan.window)
    lines.append(f"waste of the last {window}: {dollars(found.waste)} USD in hours that are certainly idle")
    if found.prepaid:
        lines.append(
            f"unused prepaid capacity of the last {window}: {dollars(found.unused_prepaid)} USD at on-demand"
            f" prices in idle hours of {_some(found.prepaid, 'instance')}; stopping them saves nothing"
        )
    if found.unused_capacity_usd_per_hour:
        lines.append(f"unused reservations: {dollars(found.unused_capacity_usd_per_hour)} USD/h at on-demand prices")
    for name, other in scan.duplicates.items():
        lines.append(f"{name} is the same account as {other}: counted once")
    if scan.is_interrupted:
        lines.append("interrupted: the scan is incomplete")
    if scan.all_failures:
        lines.append(f"not complete: {failed}")
    return lines


def _places(scan: Scan) -> str:
    accounts = {result.scope.account for result in scan.results if result.scope.cloud == Cloud.AWS}
    projects = sum(result.scope.cloud == Cloud.GCP for result in scan.results)
    regions = len(scan.results) - projects
    parts = [f"{_some(len(accounts), 'account')}, {_some(regions, 'region')}"] if accounts or not projects else []
    return " and ".join([*parts, *([_some(projects, "project")] if projects else [])])


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def amount_of(advice: Advice) -> str:
    """Return what an advice is worth."""
    if not advice.usd_per_month:
        return "of unknown price"
    usd = dollars(advice.usd_per_month)
    more = f", without {_some(advice.unpriced, 'instance')} of unknown price" if advice.unpriced else ""
    return f"{'saves up to' if advice.is_saving else 'they cost'} {usd} USD a month{more}"


def row(one: ScannedInstance, now: datetime, hide: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return the cells under HEADINGS. `hide`: replaces what must not be shown, before a text is shortened."""
    instance = one.instance
    spot = "" if one.spot_usd_per_hour is None else _spot(one)
    return (
        _short(instance.id, hide),
        instance.machine_type,
        "-" if one.usd_per_hour is None else rate(one.usd_per_hour),
        _use(one),
        f"{one.idle_hours} of {one.measured_hours}" if one.measured_hours else "-",
        dollars(one.waste) if one.idle_hours and one.usd_per_hour is not None and not one.is_prepaid else "-",
        one.account,
        instance.region,
        _short(one.owner or "-", hide),
        age(now - instance.launched_at),
        instance.capacity_type.value,
        spot,
    )


def _use(one: ScannedInstance) -> str:
    if one.verdict is Verdict.UNKNOWN:
        return f"unknown: {one.reason.value}"
    is_unused = one.is_prepaid and one.verdict in (Verdict.IDLE, Verdict.LIKELY_IDLE)
    return f"{one.verdict} (prepaid)" if is_unused else one.verdict.value


def rate(usd: Decimal) -> str:
    """Return a price per hour with at most four decimals. JSON has all of them."""
    return f"{usd.quantize(Decimal('0.0001')).normalize():f}"


def _spot(one: ScannedInstance) -> str:
    assert one.spot_usd_per_hour is not None
    share = "" if not one.usd_per_hour else f" ({(one.spot_usd_per_hour / one.usd_per_hour - 1) * 100:+.0f} %)"
    return f"{rate(one.spot_usd_per_hour)}{share}"


def _short(text: str, hide: Callable[[str], str]) -> str:
    """A text of a user as one short line."""
    return shortened(hide(" ".join(text.split())), LONGEST_CELL)


def capacity_row(one: ScannedCapacity) -> tuple[str, ...]:
    """Return the cells under CAPACITY_HEADINGS."""
    return (
        one.scope.account,
        one.place,
        one.id,
        one.kind.value,
        one.machine_type,
        str(one.total),
        "unknown" if one.unused is None else str(one.unused),
        "-" if one.usd_per_hour is None else dollars(one.usd_per_hour),
    )


def age(span: timedelta) -> str:
    """Return an age in days, hours or minutes."""
    if span >= timedelta(days=1):
        return f"{span.days}d"
    hours = int(span.total_seconds() // 3600)
    return f"{hours}h" if hours else f"{max(0, int(span.total_seconds() // 60))}m"


def document(scan: Scan, advice: Sequence[Advice], api_calls: Mapping[str, int]) -> dict[str, Any]:
    """Return the scan as a JSON document. Amounts are decimal strings in USD; null: unknown."""
    found = totals(scan)
    return {
        "at": scan.at.isoformat(),
        "window_s": int(scan.window.total_seconds()),
        "idle_window_s": int(scan.idle_window.total_seconds()),
        "slice_window_s": int(SLICE_WINDOW.total_seconds()),
        "totals": {
            "instances": found.instances,
            "running": found.running,
            "unpriced": found.unpriced,
            "usd_per_hour": str(found.usd_per_hour),
            "waste_usd": str(found.waste),
            "unused_prepaid_usd": str(found.unused_prepaid),
            "unused_capacity_usd_per_hour": str(found.unused_capacity_usd_per_hour),
            "by_verdict": {
                verdict.value: {"instances": count, "usd_per_hour": str(usd)}
                for verdict, (count, usd) in found.by_verdict.items()
            },
        },
        "do_first": [_advice(one) for one in advice[:FIRST]],
        "advice": [_advice(one) for one in advice],
        "instances": [_instance(one) for one in scan.instances],
        "capacity": [
            {
                **_scope(one.scope.cloud, one.scope.account, one.region),
                "id": one.id,
                "kind": one.kind.value,
                "place": one.place,
                "machine_type": one.machine_type,
                "total": one.total,
                "unused": one.unused,
                "unused_usd_per_hour": _text(one.usd_per_hour),
            }
            for one in scan.capacity
        ],
        "failures": [
            {
                **_scope(one.scope.cloud, one.scope.account, one.scope.region),
                "code": one.code.value,
                "missing": one.what,
                "message": one.message,
            }
            for one in scan.all_failures
        ],
        "duplicates": dict(scan.duplicates),
        "interrupted": scan.is_interrupted,
        "api_calls": dict(api_calls),
        "metered_series": sum(result.metered_series for result in scan.results),
    }


def _scope(cloud: str, account: str, region: str) -> dict[str, str]:
    return {"cloud": str(cloud), "account": account, "region": region}


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)


def _advice(one: Advice) -> dict[str, Any]:
    return {
        **_scope(one.scope.cloud, one.scope.account, one.scope.region),
        "code": one.code.value,
        "text": one.text,
        "command": one.command,
        "usd_per_month": str(one.usd_per_month),
        "unpriced_instances": one.unpriced,
        "is_saving": one.is_saving,
    }


def _instance(one: ScannedInstance) -> dict[str, Any]:
    instance = one.instance
    return {
        **_scope(instance.cloud, one.account, instance.region),
        "id": instance.id,
        "zone": instance.zone,
        "machine_type": instance.machine_type,
        "capacity_type": instance.capacity_type.value,
        "state": instance.state.value,
        "launched_at": instance.launched_at.isoformat(),
        "owner": one.owner,
        "environment": instance.environment,
        "group": instance.group,
        "usd_per_hour": _text(one.usd_per_hour),
        "spot_usd_per_hour": _text(one.spot_usd_per_hour),
        "use": one.verdict.value,
        "reason_code": one.reason.value,
        "idle_hours": one.idle_hours,
        "measured_hours": one.measured_hours,
        "waste_usd": str(one.waste) if one.usd_per_hour is not None else None,
        "unused_prepaid_usd": str(one.unused_prepaid) if one.usd_per_hour is not None else None,
        "slices": slice_use.document(one.slices),
    }


def message(scan: Scan, advice: Sequence[Advice], hide: Callable[[str], str] = str) -> str:
    """Return the totals and the things to do first as a message of a chat. It is not escaped.

    `hide`: replaces what must not be shown, before a command is shortened.
    """
    first = [
        f"{number}. {one.scope}: {one.text}; {amount_of(one)}\n```{shortened(hide(one.command), LONGEST_COMMAND)}```"
        for number, one in enumerate(advice[:FIRST], 1)
    ]
    return hide("\n".join(["*gpufleet scan*", *headline(scan), *first]))


def shortened(text: str, most: int) -> str:
    """At most `most` characters. An ellipsis marks cut text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
