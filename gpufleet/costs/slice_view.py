"""The cost by slice for people and machines: table, JSON and CSV. Amounts of all rows add up to the nodes' bills."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from io import StringIO
from typing import Any, Final

from gpufleet.costs.csv_cells import cell
from gpufleet.costs.energy import joules
from gpufleet.costs.slice_bills import SliceCost, SliceFigure, SliceReport
from gpufleet.costs.slot_parts import PartState, Stranded
from gpufleet.domain import money

Row = tuple[str, ...]

HEADINGS: Final[Row] = ("slice", "user", "pool", "USD", "used", "idle", "stranded", "other", "USD/h")
_COLUMNS: Final[Sequence[tuple[PartState, ...]]] = (
    (PartState.USED, PartState.UNMEASURED),
    (PartState.IDLE,),
    (PartState.STRANDED,),
    (PartState.STARTING, PartState.FIXED),
)
_SHORT: Final = 12
"""Characters of a device's name in a table: its UUID has 40."""
NO_USER: Final = "(no user named)"
METHOD: Final = (
    "a device costs its node's price / devices; a slice its compute parts of the device (MIG: of 7, or of 4); compute"
    " without a slice is stranded; users of a shared unit by engine busy seconds, or inseparable; time without"
    " evidence is unmeasured and counts as used"
)


def rows(found: SliceReport, most: int | None = None) -> list[Row]:
    """One row per slice and user, then the total. Each money column adds up to the cent, down and across.

    `most`: rows to show; the others are one row.
    """
    if not found.rows:
        return []
    step = money.CENT if abs(money.usd(found.total.amount)) >= 10 else Decimal("0.0001")
    table = _rounded(found, _COLUMNS, step)
    shown, others = (table, []) if most is None or len(table) <= most else (table[:most], table[most:])
    lines = [
        (*names(row), *_cells(amounts), _rate(row.figure))
        for row, amounts in zip(found.rows[: len(shown)], shown, strict=True)
    ]
    if others:
        left = [sum(column, money.ZERO) for column in zip(*others, strict=True)]
        lines.append((f"{len(others)} more rows", "", "", *_cells(left), ""))
    whole = [sum(column, money.ZERO) for column in zip(*table, strict=True)]
    return [*lines, ("total", "", "", *_cells(whole), "")]


def _rounded(
    found: SliceReport, columns: Sequence[tuple[PartState, ...]], step: Decimal
) -> list[tuple[Decimal, ...]]:
    """USD of each row in each column, rounded so that each column and the whole add up."""

    def usd(figure: SliceFigure, states: Iterable[PartState]) -> Decimal:
        return money.usd(money.total(figure.amounts[state] for state in states), Decimal("1e-30"))

    whole = [usd(found.total, states) for states in columns]
    sums = money.rounded_parts(whole, money.usd(found.total.amount), step)
    shared = [
        money.rounded_parts([usd(row.figure, states) for row in found.rows], total, step)
        for states, total in zip(columns, sums, strict=True)
    ]
    return list(zip(*shared, strict=True))


def _cells(amounts: Sequence[Decimal]) -> list[str]:
    return [_show(sum(amounts, money.ZERO)), *(_show(amount) for amount in amounts)]


def _show(value: Decimal) -> str:
    return f"{value + 0:,}" if value else f"{abs(value):,}"


def _rate(figure: SliceFigure) -> str:
    return rate(figure.usd_per_hour)


def rate(usd_per_hour: Decimal | None) -> str:
    """A price per hour for people."""
    return "?" if usd_per_hour is None else f"{usd_per_hour.quantize(Decimal('0.0001')):,}"


def names(row: SliceCost) -> Row:
    """Slice, user and pool for people."""
    where = place(row.instance_id, row.key.device, row.key.slice, row.key.profile)
    return where, user(row), row.pool or "(none)"


def place(instance_id: str, device: str, part: str, profile: str) -> str:
    """A slice, a device or an instance for people."""
    short = device if len(device) <= _SHORT else device[:_SHORT] + "…"
    return " ".join(name for name in (instance_id, short, part, profile) if name)


_PARTS: Final[Mapping[PartState, str]] = {
    PartState.STARTING: "(starting)",
    PartState.FIXED: "(minimum charges, credits)",
}
_STRANDED: Final[Mapping[str, str]] = {
    Stranded.FITS.value: "another slice may fit",
    Stranded.FULL.value: "no slice fits",
    Stranded.UNKNOWN.value: "unknown whether a slice fits",
}


def user(row: SliceCost) -> str:
    """Who has the slice, or why a part has no user."""
    if row.kind is PartState.STRANDED:
        return f"(stranded {row.key.size} of a GPU: {_STRANDED[row.key.stranded]})"
    if row.kind in _PARTS:
        return _PARTS[row.kind]
    if not row.is_reported:
        return "(not reported)"
    if len(row.key.users) > 1:
        return ", ".join(row.key.users) + " (inseparable)"
    named = " ".join(part for part in (*row.key.users, row.key.model) if part)
    return named or NO_USER


def facts(found: SliceReport) -> list[str]:
    """Notes below the table."""
    if not found.rows:
        return []
    usd = {state: money.usd(found.total.amounts[state], money.CENT) for state in PartState}
    return [
        f"by slice: {found.nodes} nodes with slices or shared devices; idle {usd[PartState.IDLE]:,} USD, stranded"
        f" {usd[PartState.STRANDED]:,} USD, unmeasured {usd[PartState.UNMEASURED]:,} USD (counts as used)",
        _energy_fact(found),
    ]


def _energy_fact(found: SliceReport) -> str:
    known = [row.allocated_mj for row in found.rows if row.allocated_mj is not None]
    if not known:
        return "energy by slice: unknown, because no energy of these nodes was measured or their price is unknown"
    return (
        f"energy by slice: {joules(sum(known)):,.0f} J of {len({row.instance_id for row in found.rows})} nodes are"
        " allocated like their cost (`joules_allocated` in JSON and CSV): devices have energy counters, slices none"
    )


def idle_lines(found: SliceReport) -> list[str]:
    """One line about idle slices, with the most expensive one; none if no slice was idle."""
    idle = [row for row in found.rows if row.figure.amounts[PartState.IDLE] > 0]
    if not idle:
        return []
    worst = max(idle, key=lambda row: row.figure.amounts[PartState.IDLE])
    where, name, pool = names(worst)
    total, most, stranded = (
        money.usd(amount, money.CENT)
        for amount in (
            found.total.amounts[PartState.IDLE],
            worst.figure.amounts[PartState.IDLE],
            found.total.amounts[PartState.STRANDED],
        )
    )
    least = "at least " if found.total.unpriced else ""
    return [
        f"{least}{total:,} USD  idle in {len(idle)} slices or shared accelerators, most in {where} of {pool}, {name}:"
        f" {most:,} USD; {stranded:,} USD stranded; a part of an instance cannot be ended: move its work or divide"
        " the accelerator in another way"
    ]


def document(found: SliceReport) -> dict[str, Any]:
    """The rows as JSON; amounts in USD with nine decimals add up to the total."""
    order = [(state,) for state in PartState]
    table = _rounded(found, order, money.NANO)
    whole = [sum(column, money.ZERO) for column in zip(*table, strict=True)] if table else [money.ZERO] * len(order)
    return {
        "nodes": found.nodes,
        "total": _amounts(whole, found.total),
        "rows": [
            {
                "instance": row.instance_id,
                "pool": row.pool,
                "team": row.owner,
                "model": row.model,
                "part": part_name(row),
                "device": row.key.device or None,
                "slice": row.key.slice or None,
                "profile": row.key.profile or None,
                "share_of_device": row.key.size,
                "users": list(row.key.users),
                "inseparable": len(row.key.users) > 1,
                "engine": row.key.engine or None,
                "stranded": row.key.stranded or None,
                **_amounts(amounts, row.figure),
                "usd_per_hour": None if row.figure.usd_per_hour is None else format(row.figure.usd_per_hour, "f"),
                "joules_allocated": None if row.allocated_mj is None else format(joules(row.allocated_mj), "f"),
            }
            for row, amounts in zip(found.rows, table, strict=True)
        ],
    }


def part_name(row: SliceCost) -> str:
    """A stable code: what a row is."""
    if row.kind is not PartState.USED:
        return row.kind.value
    if not row.is_reported:
        return "not_reported"
    return "slice" if row.key.slice else "device"


def _amounts(amounts: Sequence[Decimal], figure: SliceFigure) -> dict[str, Any]:
    """USD and seconds by state. `usd_used` contains unmeasured time, as everywhere."""
    by = dict(zip(PartState, amounts, strict=True))
    usd = {f"usd_{state.value}": by[state] for state in PartState}
    usd["usd_used"] = by[PartState.USED] + by[PartState.UNMEASURED]
    usd["usd_used_unmeasured"] = usd.pop("usd_unmeasured")
    return {
        "usd": format(sum(amounts, money.ZERO), "f"),
        **{name: format(value, "f") for name, value in usd.items()},
        "seconds": {
            state.value: format(money.seconds(figure.times[state]), "f") for state in PartState if figure.times[state]
        },
        "at_least": bool(figure.unpriced),
    }


CSV_COLUMNS: Final = (
    "environment", "instance", "device", "slice", "profile", "share_of_device", "part", "stranded", "users",
    "inseparable", "engine", "model", "pool", "team", "usd", "usd_used", "usd_used_unmeasured", "usd_idle",
    "usd_stranded", "usd_starting", "usd_fixed", "usd_per_hour", "at_least",
    "joules_allocated",
)  # fmt: skip


def as_csv(found: Iterable[tuple[str, SliceReport]]) -> str:
    """Environment and report to one CSV file with a header; unknown is an empty field."""
    body = StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for environment, report in found:
        for row in document(report)["rows"]:
            flat = {**row, "environment": environment, "users": " ".join(row["users"])}
            writer.writerow([cell(None if flat[name] is None else str(flat[name])) for name in CSV_COLUMNS])
    return body.getvalue()
