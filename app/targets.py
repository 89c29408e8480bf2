"""Writes the file from which Prometheus reads its targets: the members of a fleet's pools, and its routers."""

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from app.errors import AppError
from app.router_fleet import LiveFleet
from app.wiring import AllInstances, inventory_of
from gpufleet.domain.files import write_atomically
from gpufleet.domain.model import InstanceList
from gpufleet.domain.parsed import is_map
from gpufleet.logs import Log, log_change
from gpufleet.settings.document import FleetDocument
from hosts.monitoring import prometheus

DOCUMENT_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TargetsFile:
    """A file of targets. An instance that could not be read keeps its previous target: it may still exist."""

    path: Path

    def write(self, found: InstanceList, environment: str, routers: Collection[str] | None = None) -> None:
        """Write the listed instances if they differ from the file. Raises OSError.

        `routers`: the ids in the fleet document; None: the document has none, so the tag identifies routers.
        """
        unread = found.errors.keys() - {one.id for one in found.instances}
        kept = [row for row in self._rows() if row["labels"]["instance_id"] in unread]
        rows = [*prometheus.targets(found.instances, environment, routers), *kept]
        rows.sort(key=lambda row: row["labels"]["instance_id"])
        write_changed(self.path, json.dumps(rows, indent=1).encode() + b"\n")

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        try:
            found: Any = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return
        rows = cast(list[Any], found) if isinstance(found, list) else []
        for row in rows:
            if is_map(row) and is_map(labels := row.get("labels")) and isinstance(labels.get("instance_id"), str):
                yield row


def write_changed(path: Path, body: bytes) -> None:
    """Write a file only if its content changes: Prometheus reloads it after each write. Raises OSError."""
    if not path.is_file() or path.read_bytes() != body:
        write_atomically(path, body)


def keep_written(url: str, path: Path, every_s: float, stop: threading.Event, log: Log) -> None:
    """Write the targets of the fleet at `url` repeatedly until `stop`. A failure leaves the file unchanged."""
    fleet, file, before = LiveFleet(url), TargetsFile(path), ""
    document: FleetDocument | None = None
    inventory: AllInstances | None = None
    due = 0.0
    log.info("process", outcome="started", path=path)
    while True:
        began = time.monotonic()
        try:
            if document is None or inventory is None or began >= due:
                due = began + DOCUMENT_EVERY_S
                if (read := fleet.document()) != document or inventory is None:
                    document, inventory = read, inventory_of(read)
            file.write(inventory.listed(), document.environment, document.router.machines)
            now = ""
        except (OSError, ValueError, AppError) as error:
            now = str(error)
        log_change(log, "targets", before, now)
        before = now
        if stop.wait(max(0.0, every_s - (time.monotonic() - began))):
            return
