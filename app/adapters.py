"""Implements the watchdogs' ports: node agents, utilization, prices, and messages."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine

from app.ledgers import ledger_name
from gpufleet.clouds.agents import NodeAgents
from gpufleet.clouds.aws.cloudwatch import DELAY, CloudWatch
from gpufleet.domain.activity import CloudError
from gpufleet.domain.clocks import Clock
from gpufleet.domain.drains import DrainOwner, owner_of_reason
from gpufleet.domain.evidence import AgentStatus, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud, Instance, Phase
from gpufleet.ledger.outbox import OutboxMessages
from gpufleet.notify.buttons import with_buttons
from gpufleet.prices.book import PriceBook
from gpufleet.settings.document import FleetDocument

LONGEST_TEXT: Final = 1000
"""Longest text of a node agent, in characters. The text is stored in the ledger and sent to Slack."""


class FleetAgents:
    """The node agents as the watchdogs' port."""

    def __init__(self, agents: NodeAgents) -> None:
        self._agents = agents

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, AgentStatus]:
        found = {key: _status(raw) for key, raw in self._agents.statuses(instances).items()}
        return {key: status for key, status in found.items() if status is not None}

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
        status = _status(self._agents.drain(instance, by, reason, int(deadline.total_seconds())))
        if status is None:
            raise CloudError(f"{instance.id}: its agent sent an answer that this gpufleet does not support")
        return status


class FleetUtilization:
    """CloudWatch as the watchdogs' port. It reports GPU metrics only and no engine metrics."""

    def __init__(self, store: CloudWatch) -> None:
        self._store = store

    def gather(self, instance_ids: Sequence[str], window: timedelta, now: datetime) -> Mapping[str, Evidence]:
        return {
            key: Evidence(
                window=window,
                interval=DELAY,
                gpu=GpuEvidence(
                    gpus=use.gpus,
                    coverage=use.coverage,
                    missed=float(use.missed),
                    newest_age=now - use.newest,
                    util_max=use.utilization_max,
                    watts_max=use.watts_max,
                ),
            )
            for key, use in self._store.gpu_use(instance_ids, window, now).items()
        }


class FleetPrices:
    """Current prices of instances."""

    def __init__(self, book: PriceBook, cloud: Cloud, region: str, now: datetime) -> None:
        self._book = book
        self._cloud = cloud
        self._region = region
        self._now = now

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        return self._at(instance.machine_type, instance.capacity_type, instance.zone)

    def spot_usd_per_hour(self, machine_type: str, zone: str) -> Decimal | None:
        return self._at(machine_type, CapacityType.SPOT, zone)

    def on_demand_usd_per_hour(self, machine_type: str) -> Decimal | None:
        return self._at(machine_type, CapacityType.ON_DEMAND, None)

    def list_usd_per_hour(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        return self._at(machine_type, capacity_type, zone)

    def _at(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        return self._book.usd_per_hour(
            self._cloud, machine_type, capacity_type, region=self._region, zone=zone, at=self._now
        )


class FleetMessages:
    """The outbox of messages. Each key starts with the name of the fleet, so that it is unique to the fleet."""

    def __init__(self, engine: Engine, document: FleetDocument, clock: Clock) -> None:
        self._engine = engine
        self._prefix = ledger_name(document)
        self._channel = document.notify.slack_channel if document.notify is not None else ""
        self._buttons = document.notify is not None and bool(document.notify.keep_users)
        self._clock = clock

    def notify(self, key: str, text: str, detail: Mapping[str, Any]) -> None:
        if self._channel:
            name = f"{self._prefix}/{key}"
            if self._buttons and detail.get("may_keep"):
                blocks = with_buttons(text, self._prefix, str(detail["instance"]), name)
                detail = {**detail, "blocks": blocks}
            messages = OutboxMessages(self._engine, self._channel, self._clock.now())
            messages.notify(name, text, detail)


def lease_holder_name() -> str:
    """Identifies this process, so that other processes can detect whether it is alive.

    The parts are: machine name, boot id, PID namespace, process id, start time of the process.
    """
    return f"{platform.node()}/{_boot()}/{_processes()}/{os.getpid()}/{_process_start(os.getpid())}"


def is_dead_holder(holder: str) -> bool:
    """Whether the holder's process ran in our PID namespace and has ended: it was killed, or the machine restarted.

    For a holder in another container the answer is always False, even if both containers share the host's name: this
    process cannot see that holder.
    """
    parts = holder.rsplit("/", 4)
    if len(parts) != 5 or parts[0] != platform.node() or parts[2] != _processes() or not parts[3].isdigit():
        return False
    if parts[1] != _boot():
        return bool(_boot())
    return _process_start(int(parts[3])) != parts[4]


def _processes() -> str:
    """The PID namespace of this process; empty on a system without namespaces."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """The process's start in clock ticks since boot; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rsplit(")", 1)[-1].split()[19]


def _status(raw: Mapping[str, Any]) -> AgentStatus | None:
    """The parsed status; None when the data is not a valid agent status.

    A compromised agent may answer anything, and its answer must not fail the pass.
    """
    if not _is_sound(raw):
        return None
    try:
        since = _moment(raw.get("phase_since"))
        by, notice_at = _drain_of(raw, since)
        status = AgentStatus(
            phase=Phase(raw["phase"]),
            ready=raw["ready"],
            draining=raw["draining"],
            drained=raw["drained"],
            drain_by=by,
            reason=_text(raw.get("reason")),
            notice_at=notice_at,
            requests_running=raw.get("requests_running"),
            phase_since=since,
            error=_text(raw.get("error")),
            has_served=raw.get("has_served", False),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return status


def _drain_of(raw: Mapping[str, Any], since: datetime | None) -> tuple[DrainOwner | None, datetime | None]:
    """Owner of the drain, and the time of the cloud's notice."""
    if "by" not in raw:  # an agent of release 0.1
        owner, noticed = owner_of_reason(raw.get("reason") or "")
        return owner, since if noticed else None
    return DrainOwner(raw["by"]) if raw["by"] is not None else None, _moment(raw.get("notice_at"))


def _text(text: str | None) -> str | None:
    """The agent's text as every ledger accepts it: at most LONGEST_TEXT characters, all encodable, no NUL."""
    if text is None:
        return None
    return text[:LONGEST_TEXT].encode(errors="replace").decode().replace("\0", "?")


def _moment(text: str | None) -> datetime | None:
    """Raises ValueError for an invalid time, and for a time without a time zone."""
    if not text:
        return None
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text}: has no time zone")
    return found


def _is_sound(raw: Mapping[str, Any]) -> bool:
    """Whether each field has its type. For example, the text `"false"` is not a valid value of `drained`."""
    running = raw.get("requests_running")
    return (
        all(isinstance(raw.get(flag), bool) for flag in ("ready", "draining", "drained"))
        and isinstance(raw.get("has_served", False), bool)
        and all(raw.get(text) is None or isinstance(raw[text], str) for text in ("by", "reason", "error"))
        and (running is None or _is_count(running))
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
