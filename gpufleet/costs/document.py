"""The report as JSON (schema version 1) and how to recompute it: see docs/cost-report.md.

Amounts are USD as text with nine decimals, computed from exact dollar-seconds; times are ISO 8601 in UTC.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from itertools import groupby
from typing import Any, Final

from gpufleet.costs import energy_render, slice_view
from gpufleet.costs.allocation import Charge, ChargeKind, UseState
from gpufleet.costs.csv_cells import cell
from gpufleet.costs.energy_render import energy_json, instance_rows
from gpufleet.costs.figures import Basis, Figure, UnitCosts
from gpufleet.costs.report import By, Report
from gpufleet.costs.speed import MeasuredSpeed
from gpufleet.costs.teams import Part, UseShare, shown_usd
from gpufleet.costs.token_origins import TokenOrigin, sources_of
from gpufleet.costs.tokens import EngineTokens
from gpufleet.costs.uncertainty import UnknownSpan
from gpufleet.domain import money
from gpufleet.domain.prices import Price
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.facts import Reservation, Run, TokenReading

VERSION: Final = 1

METHOD: Final[Mapping[str, str]] = {
    "cost_basis": "list cost: seconds x USD per hour / 3600, prices in force per interval; no taxes, no discounts"
    " but those stated as overrides",
    "cost": "used + idle + starting + unused_reservation + shared",
    "used": "measured busy time, and unmeasured time (only time that is known to be idle counts as idle)",
    "starting": "launch to the first reading of the instance's engine",
    "tokens": "differences of raw counter readings; a difference counts at its later reading; resets count from zero",
    "blended": "cost / (prompt + generation) x 1,000,000; the total leaves out the tokens of engines without a"
    " machine_type, because their instances are not in the ledger",
    "input": "input share of cost / (prompt - cached) x 1,000,000",
    "output": "output share of cost / generation x 1,000,000",
    "adapters": "pool's cost by engine seconds per requested model name; tokens that only the engines counted are"
    " not recorded, at the engine seconds per token of the others (output tokens weighted 4:1)",
    "tokens_per_second_per_gpu": "(prompt - cached + generation) / (used seconds x GPUs of the machine); the"
    " reference is the highest rate measured for that model on the same number of those GPUs at full use",
    "energy": "accelerators only, without hosts, network and cooling: differences of raw counter readings; a"
    " difference counts at its later reading, and is split over busy, idle and unknown time; resets, gaps over"
    " 15 minutes and implausible powers are unknown",
    "co2e": "energy x grid factor that the settings state (x PUE if stated)",
    "joules_per_million_tokens": "energy / tokens x 1,000,000, of instances with known tokens whose energy was"
    " measured for at least 90% of their device time",
    "slices": slice_view.METHOD,
    "spot_saving": "what the same spot seconds cost on demand, minus what they cost",
}


def document(report: Report) -> dict[str, Any]:
    """The whole report."""
    scope = report.scope
    prices = {price: f"p{number}" for number, price in enumerate(report.prices, 1)}
    return {
        "version": VERSION,
        "kind": "gpu-fleet cost report",
        "environment": scope.environment,
        "cloud": scope.cloud,
        "region": scope.region,
        "since": instant(scope.since),
        "until": instant(scope.until),
        "timezone": scope.timezone,
        "made_at": instant(scope.now),
        "known_until": None if report.known_until is None else instant(report.known_until),
        "state": report.confirmation.value,
        "currency": "USD",
        "method": dict(METHOD),
        "notes": list(report.notes),
        "total": figure(report.total),
        "by": {by.value: {key: figure(f) for key, f in sorted(group.items())} for by, group in report.groups.items()},
        "teams": list(_share_rows(report.teams, team_row)),
        "adapters": list(_share_rows(report.adapters, adapter_row)),
        "slices": slice_view.document(report.slices),
        "speeds": [speed_row(speed) for speed in report.speeds],
        "token_sources": [token_source_row(one) for one in report.token_origins],
        "not_frozen": [{"since": instant(since), "until": instant(until)} for since, until in report.not_frozen],
        "reservations": [reservation_row(one) for one in report.reservations],
        "collected": {
            "share": round(report.collected, 6),
            "not_looked_at": [{"start": instant(start), "end": instant(end)} for start, end in report.uncollected],
        },
        "unknown": [unknown_row(span) for span in report.unknown],
        "charges": [charge_row(charge, prices) for charge in report.charges],
        "engines": [engine_row(engine, run) for engine, run in zip(report.engines, report.served_by, strict=True)],
        "energy": [row | {name: instant(row[name]) for name in ("since", "until")} for row in instance_rows(report)],
        "prices": [price_row(price, name) for price, name in prices.items()],
    }


def figure(value: Figure) -> dict[str, Any]:
    """The figures of one part."""
    amounts = value.amounts
    return {
        "usd": text(money.usd(value.allocation)),
        "usd_used": text(money.usd(value.used)),
        "usd_used_unmeasured": text(money.usd(amounts[UseState.UNMEASURED])),
        "usd_idle": text(money.usd(amounts[UseState.IDLE])),
        "usd_starting": text(money.usd(amounts[UseState.STARTING])),
        "usd_unused_reservation": text(money.usd(amounts[UseState.UNUSED])),
        "usd_shared": text(money.usd(amounts[UseState.SHARED])),
        "usd_adjustments": {kind.value: text(money.usd(usd)) for kind, usd in sorted(value.adjustments.items())},
        "at_least": value.unpriced > 0,
        "usd_at_least": text(money.usd(value.least)),
        "usd_at_most": None if value.most is None else text(money.usd(value.most)),
        "seconds": {state.value: text(money.seconds(time)) for state, time in sorted(value.times.items())},
        "instances": len(value.instances),
        "coverage": None if value.coverage is None else round(value.coverage, 6),
        "tokens": tokens(value.served),
        "usd_per_million_tokens": unit_costs(value.unit_costs()),
        "usd_per_million_tokens_usage": unit_costs(value.unit_costs(Basis.USAGE)),
        "energy": energy_json(value.energy),
        "spot_saving_usd": text(money.usd(value.spot_saving)),
        "on_demand_usd": text(money.usd(value.on_demand)),
    }


def unit_costs(value: UnitCosts) -> dict[str, Any]:
    """USD per million tokens with basis and method."""
    return {
        "basis": value.basis.value,
        "method": value.method.value,
        "input": None if value.input is None else text(value.input),
        "output": None if value.output is None else text(value.output),
        "blended": None if value.blended is None else text(value.blended),
    }


def tokens(value: Tokens) -> dict[str, Any]:
    """Token counts; null: not known."""
    return {
        "prompt": value.prompt,
        "cached": value.cached,
        "generation": value.generation,
        "prefill_ms": value.prefill_ms,
        "decode_ms": value.decode_ms,
        "resets": value.resets,
    }


def reservation_row(one: Reservation) -> dict[str, Any]:
    """Paid capacity in an interval without a change."""
    return {
        "reservation": one.reservation,
        "pool": one.pool,
        "machine_type": one.machine_type,
        "zone": one.zone,
        "since": instant(one.started_at),
        "until": instant(one.last_seen_at),
        "instances": one.instances,
        "declared": one.instances if one.seats is None else min(one.seats, one.instances),
        "used_elsewhere": one.elsewhere,
        "used_elsewhere_by": [{"account": name, "instances": count} for name, count in _accounts(one)],
    }


def _accounts(one: Reservation) -> list[tuple[str | None, int]]:
    """Accounts and their instances; None: other fleets or accounts, which the cloud does not name."""
    if one.accounts is None:
        return [(None, one.elsewhere)] if one.elsewhere else []
    return sorted(one.accounts.items())


def charge_row(charge: Charge, prices: Mapping[Price, str]) -> dict[str, Any]:
    """One line: duration x price = amount."""
    return {
        "kind": charge.kind.value,
        "state": charge.state.value,
        "resource": charge.resource,
        "pool": charge.pool,
        "model": charge.model,
        "team": charge.owner,
        "cloud": charge.cloud.value,
        "region": charge.region,
        "zone": charge.zone,
        "machine_type": charge.machine_type,
        "capacity_type": charge.capacity_type.value,
        "reservation": charge.reservation,
        "start": instant(charge.start),
        "end": instant(charge.end),
        "seconds": text(money.seconds(charge.duration)),
        "price": None if charge.price is None else prices[charge.price],
        "usd_per_hour": None if charge.price is None else text(charge.price.usd_per_hour),
        "usd": None if charge.amount is None else text(money.usd(charge.amount)),
        "on_demand_usd": None if charge.on_demand is None else text(money.usd(charge.on_demand)),
    }


def _share_rows(
    shares: Sequence[UseShare], row: Callable[[UseShare, Decimal], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The parts of pools. The amounts of each pool's rows add up to the pool's."""
    for _, parts in groupby(shares, lambda share: share.pool):
        of_pool = list(parts)
        yield from map(row, of_pool, shown_usd(of_pool))


def team_row(share: UseShare, usd: Decimal) -> dict[str, Any]:
    """One team's part of a pool that is split by engine seconds."""
    return {"pool": share.pool, "team": share.name, **_share(share, usd)}


def adapter_row(share: UseShare, usd: Decimal) -> dict[str, Any]:
    """The part of one model name in a pool with LoRA adapters; null: requests that the router did not record."""
    name = None if share.part is Part.NOT_RECORDED else share.name
    return {"pool": share.pool, "part": share.part.value, "name": name, **_share(share, usd)}


def _share(share: UseShare, usd: Decimal) -> dict[str, Any]:
    return {
        "engine_seconds": text(Decimal(share.engine_ms).scaleb(-3)),
        "usd": text(usd),
        "tokens": tokens(share.figure.tokens),
        "tokens_are": share.counted.value,
        "usd_per_million_tokens": unit_costs(share.figure.unit_costs()),
    }


def unknown_row(span: UnknownSpan) -> dict[str, Any]:
    """The possible cost of a resource since a time, and the part that is charged; null: unknown."""
    like = span.like
    return {
        "why": span.why.as_text,
        "why_code": span.why.value,
        "resource": like.resource,
        "pool": like.pool,
        "model": like.model,
        "team": like.owner,
        "zone": like.zone,
        "machine_type": like.machine_type,
        "capacity_type": ChargeKind.SHARED.value if like.kind is ChargeKind.SHARED else like.capacity_type.value,
        "start": instant(span.start),
        "end": instant(span.end),
        "usd": text(money.usd(span.charged)),
        "usd_at_least": text(money.usd(span.least)),
        "usd_at_most": None if span.most is None else text(money.usd(span.most)),
    }


def speed_row(speed: MeasuredSpeed) -> dict[str, Any]:
    """Tokens per second and GPU of one model on one machine type; null: unknown."""
    rates = {
        "gpu_seconds": speed.gpu_seconds,
        "tokens_per_second_per_gpu": speed.tokens_per_second_per_gpu,
        "reference_tokens_per_second_per_gpu": speed.reference.tokens_per_second_per_gpu,
        "share_of_reference": speed.share_of_reference,
    }
    return {
        "model": speed.model,
        "machine_type": speed.machine_type,
        "gpu": speed.gpu,
        "gpus": None if speed.gpus is None else str(speed.gpus),
        "tokens_computed": speed.tokens,
        **{name: None if value is None else text(value) for name, value in rates.items()},
        "reference": speed.reference.basis,
    }


def token_source_row(one: TokenOrigin) -> dict[str, Any]:
    """Where the tokens of one pool come from while it had one engine, and their known error."""
    return {
        "pool": one.of.pool,
        "engine": one.of.engine,
        "engine_name": one.method.title,
        "since": instant(one.of.since),
        "until": instant(one.of.until),
        "tokens": one.state.value,
        "source": one.method.source,
        "source_text": one.method.source_text,
        "errors": list(one.method.errors),
        "error_text": one.method.error_text,
    }


def engine_row(engine: EngineTokens, run: Run | None) -> dict[str, Any]:
    """The tokens of one engine, with its first and last reading, pool, model and owner."""
    return {
        "instance": engine.instance_id,
        "pool": None if run is None else run.pool,
        "model": None if run is None else run.model,
        "team": None if run is None else run.owner,
        "zone": None if run is None else run.zone,
        "machine_type": None if run is None else run.machine_type,
        "capacity_type": None if run is None else run.capacity_type.value,
        "engine": engine.engine,
        "model_name": engine.model,
        "base": None if engine.base is None else reading(engine.base),
        "last": reading(engine.last),
        "tokens": tokens(engine.tokens),
    }


def reading(value: TokenReading) -> dict[str, Any]:
    """Raw counters at a time."""
    return {
        "at": instant(value.at),
        "prompt": value.prompt,
        "cached": value.cached,
        "generation": value.generation,
    }


def price_row(price: Price, name: str) -> dict[str, Any]:
    """A price with its provenance."""
    return {
        "id": name,
        "sku": price.sku,
        "region": price.region,
        "zone": price.zone,
        "usd_per_hour": text(price.usd_per_hour),
        "currency": price.currency,
        "unit": price.unit,
        "source": price.source,
        "as_of": instant(price.as_of),
        "valid_from": instant(price.valid_from),
        "unverified": price.unverified,
        "note": price.note,
    }


def text(value: Decimal) -> str:
    """A decimal without an exponent."""
    return format(value, "f")


def instant(value: datetime) -> str:
    """A time in UTC, `2026-11-21T08:00:00Z`, with microseconds where there are any."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


CSV_COLUMNS: Final = (
    "environment",
    "cloud",
    "region",
    "zone",
    "pool",
    "model",
    "team",
    "resource",
    "machine_type",
    "capacity_type",
    "kind",
    "state",
    "start",
    "end",
    "seconds",
    "usd_per_hour",
    "usd",
    "on_demand_usd",
    "price_source",
    "price_as_of",
    "usd_at_least",
    "usd_at_most",
    *energy_render.CSV_COLUMNS,
)


def report_csv(environment: str, report: Report) -> Iterator[tuple[str, ...]]:
    """Every charge as a row of CSV_COLUMNS, then unknown costs. An unknown value is an empty field.

    Rows of kind `energy` have the energy of an instance, and no cost. Rows of kind `unknown` have the bounds of a
    resource's cost since `start`. Rows of kind `not collected` are the times without a pass.
    """
    for charge in report.charges:
        price = charge.price
        row: dict[str, Any] = charge_row(charge, {price: ""} if price is not None else {})
        row["price_source"] = None if price is None else price.source
        row["price_as_of"] = None if price is None else instant(price.as_of)
        yield _csv_row(environment, row)
    scope = report.scope
    for row in energy_render.csv_rows(report):
        times = {name: instant(row[name]) for name in ("start", "end")}
        yield _csv_row(environment, {"cloud": scope.cloud, "region": scope.region, **row, **times})
    place = {"cloud": scope.cloud, "region": scope.region, "state": "unknown"}
    for span in report.unknown:
        length = text(money.seconds(span.end - span.start))
        bounds = {key: value for key, value in unknown_row(span).items() if key != "usd"}
        yield _csv_row(environment, {**place, **bounds, "kind": "unknown", "seconds": length})
    for start, end in report.uncollected:
        times = {"start": instant(start), "end": instant(end), "seconds": text(money.seconds(end - start))}
        yield _csv_row(environment, {**place, **times, "kind": "not collected"})


def _csv_row(environment: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    cells = {**row, "environment": environment}
    return tuple(cell(None if cells.get(name) is None else str(cells[name])) for name in CSV_COLUMNS)


FIGURE_COLUMNS: Final = (
    "grouping", "name", "usd", "usd_used", "usd_idle", "usd_starting", "usd_unused_reservation", "usd_shared",
    "prompt", "cached", "generation", "usd_per_million_tokens_blended", "usd_at_least", "usd_at_most", "collected",
    "token_source", *energy_render.FIGURE_COLUMNS,
)  # fmt: skip


def figures_csv(report: Report) -> str:
    """Every figure of every grouping as CSV; unknown is an empty field."""
    body = StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(FIGURE_COLUMNS)
    for grouping, names in (
        ("total", {"": report.total}),
        *((by.value, group) for by, group in report.groups.items()),
    ):
        for name, value in sorted(names.items()):
            row = figure(value)
            flat = {
                **row,
                **row["tokens"],
                **energy_render.figure_columns(row["energy"]),
                "usd_per_million_tokens_blended": row["usd_per_million_tokens"]["blended"],
                "collected": round(report.collected, 6),
                "token_source": _token_source(report, grouping, name),
            }
            writer.writerow([grouping, cell(name), *(cell(flat[column]) for column in FIGURE_COLUMNS[2:])])
    return body.getvalue()


def _token_source(report: Report, grouping: str, name: str) -> str | None:
    """Codes of the sources of tokens, of rows whose engines are known."""
    if grouping == "total":
        return sources_of(report.token_origins)
    return sources_of(report.token_origins, name) if grouping == By.POOL.value else None


def summed(charges: Iterable[Charge]) -> Decimal:
    """The exact sum of the known charges in dollar-seconds."""
    return money.total(charge.amount for charge in charges if charge.amount is not None)
