"""Checks after the chaos run, from independent sources: the emulator's billing log, the Slack sink, sqlite3,
/proc.

This module contains no decision code of the product, so that a defect of the product cannot hide itself.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import boto3

from tests.chaos import notifications
from tests.chaos.evidence import REGION, TAKEN_BY_CLOUD, Places, RunRecord, Verdict, epoch, key, read
from tests.fixtures.local_token import KEYS

CENT: Final = Decimal("0.01")
SECOND_S: Final = 1.01
"""Clouds report times in whole seconds."""
UNDATED_S: Final = 60.0
"""An undated end has the time of a cost pass. A pass runs every few seconds, but some faults delay passes."""
FREE_IF_PREEMPTED_S: Final = 3600
"""AWS charges nothing for a spot instance that it interrupts within its first hour."""
TARGET: Final = 3
"""Replicas that chat needs."""


def after_chaos(places: Places, record: RunRecord, report: Mapping[str, Any]) -> list[Verdict]:
    """Checks while everything still runs. `report`: the current cost report as JSON."""
    billing_log = read(f"{places.cloud}/_localcloud/billing-log")
    state = read(f"{places.cloud}/_localcloud/state")
    with sqlite3.connect(f"file:{places.ledger}?mode=ro", uri=True) as ledger:
        ledger.row_factory = sqlite3.Row
        sink = read(f"{places.slack}/messages")
        return [
            requests(record),
            stops(billing_log, ledger, record),
            messages(ledger, sink),
            notifications.notified_events(billing_log, sink),
            notifications.alerts(notifications.fired(places.prometheus), sink, record),
            notifications.dry(notifications.refusals(places.cloud), sink, record),
            runs(ledger, billing_log),
            money(billing_log, report, places.cloud),
            sizes(state),
            marks(state),
        ]


def requests(record: RunRecord) -> Verdict:
    """Every request succeeds, except those in flight on a process that was killed."""
    lost = [
        f"{message} ({ended - began:.1f} s, ended at {datetime.fromtimestamp(ended, UTC):%H:%M:%S})"
        for began, ended, message in record.failures
        if not any(began <= killed and at <= ended for at, killed in record.kills)
    ]
    seen = f"{record.answered} answered, {len(record.failures)} failed, {len(record.failures) - len(lost)} of them"
    return Verdict(what="requests", seen=f"{seen} in flight on a killed process", wrong=tuple(lost))


def stops(billing_log: Sequence[Mapping[str, Any]], ledger: sqlite3.Connection, record: RunRecord) -> Verdict:
    """Only idle, broken, interrupted, fallback and surplus instances end, so that chat always serves."""
    ended = [one for one in billing_log if one["ended"] is not None]
    wrong = [
        f"{one['instance']} of {one['pool']} ({one['capacity_type']}): {one['why']}"
        for one in ended
        if one["pool"] == "chat"
        and one["capacity_type"] != "on-demand"
        and one["instance"] not in record.taken
        and _others(one, billing_log) < TARGET
    ]
    idle = "SELECT resource, reason FROM outcomes WHERE pool = 'chat' AND watchdog = 'idle' AND action = 'end'"
    wrong += [f"idle ended {row['resource']}: {row['reason']}" for row in ledger.execute(f"{idle} AND kind = 'done'")]
    seen = Counter(f"{one['pool']} {one['capacity_type']}" for one in ended)
    return Verdict(what="stops", seen=f"{len(ended)} ended: {dict(sorted(seen.items()))}", wrong=tuple(wrong))


def _others(ended: Mapping[str, Any], billing_log: Iterable[Mapping[str, Any]]) -> int:
    """How many other instances of the pool ran when this one ended."""
    at = epoch(ended["ended"])
    return sum(
        one["instance"] != ended["instance"]
        and one["pool"] == ended["pool"]
        and epoch(one["launched"]) < at
        and (one["ended"] is None or epoch(one["ended"]) > at)
        for one in billing_log
    )


def messages(ledger: sqlite3.Connection, sink: Iterable[Mapping[str, Any]]) -> Verdict:
    """Slack has every message of the outbox exactly once, and no others."""
    posted = Counter(key(one) for one in sink)
    rows = {row["key"]: row["state"] for row in ledger.execute("SELECT key, state FROM outbox")}
    wrong = [f"{key} is {state}" for key, state in rows.items() if state != "sent"]
    wrong += [f"lost: {key}" for key in rows if posted[key] == 0]
    wrong += [f"posted {count} times: {key}" for key, count in posted.items() if count > 1]
    wrong += [f"in no outbox: {key}" for key in posted if key not in rows]
    return Verdict(
        what="messages", seen=f"{len(rows)} in the outbox, {sum(posted.values())} in Slack", wrong=tuple(wrong)
    )


def runs(ledger: sqlite3.Connection, billing_log: Iterable[Mapping[str, Any]]) -> Verdict:
    """The ledger file is intact, and it has exactly the instance runs of the billing log, to the second.

    An end without a time from the cloud may be later in the ledger than in the billing log, by up to `UNDATED_S`.
    """
    wrong = [f"integrity: {row[0]}" for row in ledger.execute("PRAGMA integrity_check") if row[0] != "ok"]
    found = {
        row["instance_id"]: (row["started_at"] / 1e6, row["ended_at"] and row["ended_at"] / 1e6, row["exact"])
        for row in ledger.execute(
            "SELECT r.instance_id, r.started_at, min(e.ended_at) AS ended_at, max(e.exact) AS exact FROM runs r"
            " LEFT JOIN run_ends e USING (cloud, instance_id, started_at) GROUP BY r.instance_id, r.started_at"
        )
    }
    billed = {one["instance"]: (epoch(one["launched"]), one["ended"] and epoch(one["ended"])) for one in billing_log}
    wrong += [f"{name} is not in the ledger" for name in billed.keys() - found.keys()]
    wrong += [f"{name} is not in the billing log" for name in found.keys() - billed.keys()]
    for name in sorted(billed.keys() & found.keys()):
        *times, exact = found[name]
        for word, ours, theirs in zip(("launch", "end"), times, billed[name], strict=True):
            late = UNDATED_S if word == "end" and not exact else SECOND_S
            if (ours is None) != (theirs is None) or (ours and theirs and not -SECOND_S <= ours - theirs <= late):
                wrong.append(f"{word} of {name}: {ours} in the ledger, {theirs} in the billing log")
    return Verdict(
        what="ledger", seen=f"{len(found)} runs, {len(billed)} stays in the billing log", wrong=tuple(wrong)
    )


def money(billing_log: Sequence[Mapping[str, Any]], report: Mapping[str, Any], cloud: str) -> Verdict:
    """The seconds of the billing log times the cloud's prices equal the report, to the cent.

    The billing log has fractions of a second, the cloud API whole seconds. A running instance counts until the
    end of its charges.
    """
    charged: Counter[str] = Counter()
    credited: Counter[str] = Counter()
    until: dict[str, float] = {}
    for row in report["charges"]:
        if row["kind"] == "time":
            charged[row["resource"]] += Decimal(row["usd"])  # pyright: ignore[reportArgumentType]
            until[row["resource"]] = max(until.get(row["resource"], 0.0), epoch(row["end"]))
        elif row["kind"] == "interrupted by the cloud":
            credited[row["resource"]] += Decimal(row["usd"])  # pyright: ignore[reportArgumentType]
    prices = _Prices(cloud)
    wrong: list[str] = []
    total, reported = Decimal(0), Decimal(0)
    for stay in billing_log:
        name, start = stay["instance"], epoch(stay["launched"])
        end = epoch(stay["ended"]) if stay["ended"] else until.get(name, 0.0)
        usd = prices.of(stay, start, end)
        interrupted = stay["why"] == TAKEN_BY_CLOUD and end - start < FREE_IF_PREEMPTED_S
        if abs(usd - Decimal(charged[name])) > CENT / 2:
            wrong.append(f"{name}: {usd:.4f} USD by the billing log, {charged[name]:.4f} in the report")
        if (credited[name] != 0) is not interrupted:
            wrong.append(f"{name}: {stay['why']}, credited {credited[name]} USD")
        total, reported = total + usd, reported + Decimal(charged[name])
    if abs(total - reported) > CENT:
        wrong.append(f"{total:.4f} USD by the billing log, {reported:.4f} in the report")
    return Verdict(
        what="money", seen=f"{total:.4f} USD by the billing log, {reported:.4f} in the report", wrong=tuple(wrong)
    )


class _Prices:
    """Prices from the cloud's own price lists."""

    def __init__(self, cloud: str) -> None:
        session = boto3.Session(*KEYS.values(), region_name=REGION)
        self._ec2: Any = session.client("ec2", endpoint_url=cloud)
        self._pricing: Any = session.client("pricing", endpoint_url=cloud)

    def of(self, stay: Mapping[str, Any], start: float, end: float) -> Decimal:
        """USD of an instance run between two times."""
        if stay["capacity_type"] != "spot":
            return _usd(self._listed(stay["machine_type"]), start, end)
        history = self._ec2.describe_spot_price_history(
            InstanceTypes=[stay["machine_type"]],
            AvailabilityZone=stay["zone"],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.fromtimestamp(start, UTC),
        )["SpotPriceHistory"]
        changes = sorted((one["Timestamp"].timestamp(), Decimal(one["SpotPrice"])) for one in history)
        edges = [*(at for at, _ in changes[1:]), float("inf")]
        return sum(
            (_usd(price, max(at, start), min(edge, end)) for (at, price), edge in zip(changes, edges, strict=True)),
            Decimal(0),
        )

    def _listed(self, machine_type: str) -> Decimal:
        wanted = {"instanceType": machine_type, "capacitystatus": "Used"}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        [product] = self._pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        [term] = json.loads(product)["terms"]["OnDemand"].values()
        [dimension] = term["priceDimensions"].values()
        return Decimal(dimension["pricePerUnit"]["USD"])


def _usd(usd_per_hour: Decimal, start: float, end: float) -> Decimal:
    return usd_per_hour * Decimal(max(0.0, end - start)) / 3600


def sizes(state: Mapping[str, Any]) -> Verdict:
    """Chat has the sizes of its policy: one reserved, two spot, no on-demand. Idle batch is at its minimum."""
    alive = [one for one in state["instances"] if one["state"] in ("pending", "running")]
    found = Counter((one["pool"], one["kind"]) for one in alive)
    wanted = {("chat", "reserved"): 1, ("chat", "spot"): 2}
    desired = Counter[str]()
    for group in state["groups"]:
        desired[group["name"].split("-")[0]] += group["desired"]
    wrong = [] if dict(found) == wanted else [f"alive: {dict(found)}, wanted {wanted}"]
    wrong += [] if desired == Counter(chat=3, batch=0) else [f"desired: {dict(desired)}"]
    return Verdict(what="sizes", seen=f"alive {dict(found)}, desired {dict(desired)}", wrong=tuple(wrong))


def marks(state: Mapping[str, Any]) -> Verdict:
    """No serving instance carries a mark of a watchdog."""
    alive = [one for one in state["instances"] if one["state"] in ("pending", "running")]
    left = ("gpu-fleet:idle-since", "gpu-fleet:keep-until")
    wrong = [f"{one['id']} carries {tag}" for one in alive for tag in left if tag in one["tags"]]
    return Verdict(what="tags", seen=f"{len(alive)} instances looked at", wrong=tuple(wrong))


def left_over(folder: Path, network: str) -> Verdict:
    """After the shutdown: no process of the run, no listening socket on its network, no mount."""
    found = [f"process {pid}: {command}" for pid, command in _processes(folder)]
    found += [f"{address} listens" for address in _listeners(network)]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found += [f"mount {line.split()[1]}" for line in mounts if line.split()[1].startswith(f"{folder}/")]
    return Verdict(what="left over", seen=f"{len(found)} processes, sockets, mounts", wrong=tuple(found))


def _listeners(network: str) -> Iterator[str]:
    """Addresses `127.N.x.y:port` that TCP sockets listen on, from /proc/net/tcp."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        host, _, port = local.partition(":")
        numbers = [str(number) for number in reversed(bytes.fromhex(host))]  # little-endian
        if state == "0A" and ".".join(numbers).startswith(f"{network}."):
            yield f"{'.'.join(numbers)}:{int(port, 16)}"


def _processes(folder: Path) -> Iterator[tuple[int, str]]:
    """Processes whose environment or command names the folder of the run."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == "self":
            continue
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        text = command.replace(b"\0", b" ").decode(errors="replace")
        if f"GPUFLEET_CHAOS={folder}".encode() in environment.split(b"\0") or f"{folder}/" in text:
            yield int(entry.name), text[:160]
