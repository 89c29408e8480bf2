"""Computes a cost report again from its own JSON, with nothing but arithmetic: it imports nothing of gpu-fleet.

`python tests/unit/report_arithmetic.py REPORT.json` lists what does not add up.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any, Final

Rows = list[dict[str, Any]]

GROUPINGS: Final = {
    "pool": "pool",
    "model": "model",
    "capacity-type": "capacity_type",
    "team": "team",
    "zone": "zone",
    "machine-type": "machine_type",
}
STATES: Final = {
    "usd_used": ("used", "unmeasured"),
    "usd_used_unmeasured": ("unmeasured",),
    "usd_idle": ("idle",),
    "usd_starting": ("starting",),
    "usd_unused_reservation": ("unused",),
    "usd_shared": ("shared",),
}
LASTING: Final = ("time", "reserved, not used", "shared", "committed, not used")
"""Kinds of charges that took time; the others stand at the end of a run."""
NANO: Final = Decimal("1e-9")


def faults(report: Mapping[str, Any]) -> list[str]:
    """What of the report is not what its lines make of it."""
    with localcontext() as context:
        context.prec = 60
        return [
            *_of_charges(report),
            *_of_groups(report),
            *_of_teams(report),
            *_of_engines(report),
            *_of_reservations(report),
            *_of_time(report),
        ]


def _usd(value: Any) -> Decimal:
    return Decimal(0) if value is None else Decimal(value)


def _near(found: Any, expected: Decimal, roundings: int) -> bool:
    return abs(Decimal(found) - expected) <= NANO * (roundings + 1)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _of_charges(report: Mapping[str, Any]) -> Iterator[str]:
    prices = {price["id"]: price for price in report["prices"]}
    since, until = _time(report["since"]), _time(report["until"])
    for row in report["charges"]:
        name = f"charge of {row['resource']} at {row['start']}"
        if not since <= _time(row["start"]) <= _time(row["end"]) <= until:
            yield f"{name}: lies outside of the window"
        if row["price"] is None:
            if row["usd"] is not None or row["usd_per_hour"] is not None:
                yield f"{name}: has a cost and no price"
            continue
        if Decimal(prices[row["price"]]["usd_per_hour"]) != Decimal(row["usd_per_hour"]):
            yield f"{name}: its price is another one"
        usd = Decimal(row["seconds"]) * Decimal(row["usd_per_hour"]) / 3600
        sign = -1 if row["kind"] == "interrupted by the cloud" else 1
        if not _near(row["usd"], sign * usd, 0):
            yield f"{name}: {row['seconds']} s at {row['usd_per_hour']} USD/h are not {row['usd']} USD"


def _group_of(row: Mapping[str, Any], grouping: str) -> str:
    if grouping == "capacity-type" and row.get("kind") == "shared":
        return "shared"
    value = row[GROUPINGS[grouping]]
    return value if value or grouping == "machine-type" else "(none)"


def _of_groups(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_figure("total", report["total"], report["charges"], report["unknown"])
    split = {share["pool"] for share in report["teams"]}
    for grouping, figures in report["by"].items():
        for key in ("usd", "usd_at_least", *STATES, "spot_saving_usd", "on_demand_usd"):
            whole = sum((Decimal(figure[key]) for figure in figures.values()), Decimal(0))
            if not _near(whole, Decimal(report["total"][key]), len(figures)):
                yield f"by {grouping}: {key} of the parts is {whole}, of the total {report['total'][key]}"
        if grouping == "team" and split:
            continue  # engine seconds split it, see `teams`
        charges, unknown = _parted(report["charges"], grouping), _parted(report["unknown"], grouping)
        for name in figures.keys() | charges.keys() | unknown.keys():
            if name not in figures:
                yield f"by {grouping}: {name} is missing"
                continue
            yield from _of_figure(f"{grouping} {name}", figures[name], charges[name], unknown[name])


def _parted(rows: Iterable[dict[str, Any]], grouping: str) -> defaultdict[str, Rows]:
    found: defaultdict[str, Rows] = defaultdict(list)
    for row in rows:
        found[_group_of(row, grouping)].append(row)
    return found


def _of_figure(name: str, figure: Mapping[str, Any], charges: Rows, unknown: Rows) -> Iterator[str]:
    count = len(charges) + len(unknown)
    whole = sum((_usd(row["usd"]) for row in charges), Decimal(0))
    expected = {"usd": whole}
    for key, states in STATES.items():
        expected[key] = sum((_usd(row["usd"]) for row in charges if row["state"] in states), Decimal(0))
    spot = [row for row in charges if row["capacity_type"] == "spot" and row["on_demand_usd"] and row["usd"]]
    expected["spot_saving_usd"] = sum((_usd(row["on_demand_usd"]) - _usd(row["usd"]) for row in spot), Decimal(0))
    expected["on_demand_usd"] = sum(
        (_usd(row["usd"]) for row in charges if row["capacity_type"] == "on-demand" and row["kind"] != "shared"),
        Decimal(0),
    )
    expected["usd_at_least"] = whole - sum((_usd(u["usd"]) - _usd(u["usd_at_least"]) for u in unknown), Decimal(0))
    for key, usd in expected.items():
        if not _near(figure[key], usd, 2 * count):
            yield f"{name}: {key} is {figure[key]}, its charges make {usd}"
    unpriced = any(row["usd"] is None for row in charges)
    if figure["at_least"] is not unpriced:
        yield f"{name}: at_least is {figure['at_least']}"
    open_ended = unpriced or any(row["usd_at_most"] is None for row in unknown)
    most = None
    if not open_ended:
        most = whole + sum((_usd(u["usd_at_most"]) - _usd(u["usd"]) for u in unknown), Decimal(0))
    if (figure["usd_at_most"] is None) != (most is None) or (
        most and not _near(figure["usd_at_most"], most, 2 * count)
    ):
        yield f"{name}: usd_at_most is {figure['usd_at_most']}, not {most}"
    yield from _of_times(name, figure, charges)
    yield from _of_units(name, figure)


def _of_times(name: str, figure: Mapping[str, Any], charges: Rows) -> Iterator[str]:
    seconds: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in charges:
        if row["kind"] in LASTING:
            seconds[row["state"]] += Decimal(row["seconds"])
    if {state: Decimal(time) for state, time in figure["seconds"].items() if Decimal(time)} != {
        state: time for state, time in seconds.items() if time
    }:
        yield f"{name}: seconds are {figure['seconds']}, its charges make {dict(seconds)}"
    if figure["instances"] != len({row["resource"] for row in charges if row["kind"] == "time"}):
        yield f"{name}: {figure['instances']} instances"
    known, unmeasured = seconds["used"] + seconds["idle"], seconds["unmeasured"]
    coverage = known / (known + unmeasured) if known + unmeasured else None
    if (figure["coverage"] is None) != (coverage is None) or (
        coverage is not None and abs(Decimal(str(figure["coverage"])) - coverage) > Decimal("0.000001")
    ):
        yield f"{name}: coverage is {figure['coverage']}, not {coverage}"
    adjusted: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in charges:
        if row["kind"] not in LASTING and row["usd"] is not None:
            adjusted[row["kind"]] += Decimal(row["usd"])
    for kind in adjusted.keys() | figure["usd_adjustments"].keys():
        if not _near(figure["usd_adjustments"].get(kind, 0), adjusted[kind], len(charges)):
            yield f"{name}: {kind} is {figure['usd_adjustments'].get(kind)}, not {adjusted[kind]}"


def _of_units(name: str, figure: Mapping[str, Any]) -> Iterator[str]:
    tokens = figure["tokens"]
    for key, usd in (("usd_per_million_tokens", figure["usd"]), ("usd_per_million_tokens_usage", figure["usd_used"])):
        unit = figure[key]
        prompt, generation = tokens["prompt"], tokens["generation"]
        if prompt is None or generation is None or prompt + generation == 0:
            if unit["blended"] is not None:
                yield f"{name}: {key} without tokens"
            continue
        cost, computed = Decimal(usd), max(prompt - (tokens["cached"] or 0), 0)
        if tokens["prefill_ms"] and tokens["decode_ms"]:
            weights = (tokens["prefill_ms"], tokens["decode_ms"])
        else:
            weights = (computed, 4 * generation)
        into = cost * weights[0] / sum(weights) if sum(weights) else cost
        for part, amount, count in (
            ("blended", cost, prompt + generation), ("input", into, computed), ("output", cost - into, generation)
        ):  # fmt: skip
            expected = amount * 1_000_000 / count if count > 0 else None
            found = unit[part]
            if (found is None) != (expected is None) or (
                expected is not None and abs(Decimal(found) - expected) > NANO * (2 + Decimal(2_000_000) / count)
            ):
                yield f"{name}: {key} {part} is {found}, not {expected}"


def _of_teams(report: Mapping[str, Any]) -> Iterator[str]:
    for pool in {share["pool"] for share in report["teams"]}:
        shares = [share for share in report["teams"] if share["pool"] == pool]
        usd = Decimal(report["by"]["pool"][pool]["usd"])
        if not _near(sum(Decimal(share["usd"]) for share in shares), usd, len(shares)):
            yield f"teams of pool {pool} do not add up to {usd}"
        worked = sum(Decimal(share["engine_seconds"]) for share in shares)
        for share in shares:
            # each state's amount is split for itself, in steps of 1e-9 dollar-seconds
            if abs(Decimal(share["usd"]) - usd * Decimal(share["engine_seconds"]) / worked) > NANO * 20:
                yield f"team {share['team']} of pool {pool}: {share['usd']} USD"


COUNTERS: Final = ("prompt", "cached", "generation")


def _of_engines(report: Mapping[str, Any]) -> Iterator[str]:
    for engine in report["engines"]:
        base, last, tokens = engine["base"], engine["last"], engine["tokens"]
        for name in COUNTERS:
            if tokens["resets"] or tokens[name] is None or last[name] is None or (base and base[name] is None):
                continue
            if base is not None and last[name] - base[name] != tokens[name]:
                yield f"engine {engine['engine']} of {engine['instance']}: {name} is {tokens[name]}"
    for name in (*COUNTERS, "resets"):
        yield from _of_tokens(report, name)


def _of_tokens(report: Mapping[str, Any], name: str) -> Iterator[str]:
    """What engines of instances that the ledger knows served, under every grouping; all of them under the total."""
    whole = sum(engine["tokens"][name] or 0 for engine in report["engines"])
    if whole != (report["total"]["tokens"][name] or 0):
        yield f"total: {name} is {report['total']['tokens'][name]}, its engines make {whole}"
    known = [engine for engine in report["engines"] if engine["machine_type"] is not None]
    for grouping, figures in report["by"].items():
        if grouping == "team" and report["teams"]:
            continue
        parts: defaultdict[str, int] = defaultdict(int)
        for engine in known:
            parts[_group_of(engine, grouping)] += engine["tokens"][name] or 0
        for part, figure in figures.items():
            if (figure["tokens"][name] or 0) != parts[part]:
                yield f"{grouping} {part}: {name} is {figure['tokens'][name]}, its engines make {parts[part]}"
        yield from (f"{grouping} {part} is missing" for part in parts.keys() - figures.keys())


def _of_reservations(report: Mapping[str, Any]) -> Iterator[str]:
    """Unused seconds: those that the fleet's own instances and others leave, at the part that it declares."""
    for name in {row["reservation"] for row in report["reservations"]}:
        rows = [row for row in report["reservations"] if row["reservation"] == name]
        lives: defaultdict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
        for charge in report["charges"]:
            if charge["reservation"] == name and charge["kind"] == "time":
                lives[charge["resource"]].append((_time(charge["start"]), _time(charge["end"])))
        free = sum((_free(row, lives) for row in rows), timedelta(0))
        found = [row for row in report["charges"] if row["kind"] == "reserved, not used" and row["resource"] == name]
        seconds = sum((Decimal(row["seconds"]) for row in found), Decimal(0))
        if seconds != Decimal(free // timedelta(microseconds=1)) / 1_000_000:
            yield f"reservation {name}: {seconds} s are unused, its rows make {free.total_seconds()}"


def _free(row: Mapping[str, Any], lives: Mapping[str, list[tuple[datetime, datetime]]]) -> timedelta:
    since, until = _time(row["since"]), _time(row["until"])
    edges = {since, until, *(at for spans in lives.values() for span in spans for at in span if since < at < until)}
    ordered, free = sorted(edges), timedelta(0)
    for start, end in zip(ordered, ordered[1:], strict=False):
        used = sum(any(begin <= start < stop for begin, stop in spans) for spans in lives.values())
        free += (end - start) * max(0, row["instances"] - row["used_elsewhere"] - used)
    return free


def _of_time(report: Mapping[str, Any]) -> Iterator[str]:
    since, horizon = _time(report["since"]), min(_time(report["until"]), _time(report["made_at"]))
    missed = sum(
        (_time(one["end"]) - _time(one["start"]) for one in report["collected"]["not_looked_at"]), timedelta(0)
    )
    share = 1 - missed / (horizon - since) if horizon > since else 1
    if abs(share - report["collected"]["share"]) > 0.000001:
        yield f"collected: {report['collected']['share']}, not {share}"
    for row in report["unknown"]:
        at_most = row["usd_at_most"]
        if Decimal(row["usd_at_least"]) > Decimal(row["usd"]) or (at_most and Decimal(at_most) < Decimal(row["usd"])):
            yield f"unknown of {row['resource']}: what is charged is not within its bounds"


def main() -> int:
    found = [fault for name in sys.argv[1:] for fault in faults(json.loads(Path(name).read_text(encoding="utf-8")))]
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
