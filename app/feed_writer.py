"""Writes the state of a fleet's cloud into files on this machine (`app.feed`), for processes without credentials."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app import quotas
from app.errors import AppError
from app.feed import SEEN, FeedPaths, Seen
from app.router_fleet import LiveFleet
from app.targets import DOCUMENT_EVERY_S, TargetsFile, write_changed
from app.wiring import AllInstances, inventory_of
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.files import write_atomically, write_private
from gpufleet.domain.model import InstanceList
from gpufleet.logs import Log, log_change
from gpufleet.settings.document import FleetDocument, render
from gpufleet.settings.quotas import QuotaNeed, needs
from serving.router.policy import render_policy

LIMITS_EVERY_S: Final = 3600.0
WRITTEN_EVERY_S: Final = 5.0
"""Unchanged instances are written again after this time: the file's time shows readers that the writer still runs."""
KEY_MODE: Final = 0o640
"""The group of its folder is the router's."""


@dataclass(slots=True, kw_only=True)
class Feeder:
    """Writes the files of a feed. If a source cannot be read, its file stays unchanged, and the log has the error."""

    fleet: LiveFleet
    paths: FeedPaths
    log: Log
    inventory: Callable[[FleetDocument], AllInstances] = inventory_of
    limits: Callable[[FleetDocument, Sequence[QuotaNeed]], Mapping[str, float]] = quotas.limits
    clock: Callable[[], float] = time.time
    """Seconds since 1970."""
    problems: dict[str, str] = field(default_factory=dict[str, str])
    """Current errors by source; empty text: no error."""
    _document: FleetDocument | None = None
    _inventory: AllInstances | None = None
    _written: tuple[InstanceList | None, float] = (None, 0.0)
    _due: dict[str, float] = field(default_factory=dict[str, float])

    def tick(self) -> None:
        """Read all sources that are due."""
        if self._is_due("document", DOCUMENT_EVERY_S):
            self._try("fleet document", self._read_document)
            self._try("routing policy", self._read_policy)
        if self._document is None:
            return
        document = self._document
        if self._is_due("engine key", DOCUMENT_EVERY_S):
            self._try("engines' key", lambda: self._read_engine_key(document))
        self._try("instances", lambda: self._read_instances(document))
        if self._is_due("limits", LIMITS_EVERY_S):
            self._try("quotas", lambda: self._read_limits(document))

    def _is_due(self, what: str, every_s: float) -> bool:
        now = self.clock()
        if 0 <= now - self._due.get(what, -every_s) < every_s:
            return False
        self._due[what] = now
        return True

    def _try(self, what: str, step: Callable[[], None]) -> None:
        try:
            step()
            now = ""
        except (OSError, ValueError, AppError, UnknownMachineError) as error:
            now = str(error)
        log_change(self.log, what, self.problems.get(what), now)
        self.problems[what] = now

    def _read_document(self) -> None:
        found = self.fleet.document()
        if found == self._document:
            return
        write_atomically(self.paths.document, render(found).encode())
        self._document, self._inventory = found, self.inventory(found)

    def _read_policy(self) -> None:
        write_changed(self.paths.policy, render_policy(self.fleet.policy()).encode())

    def _read_engine_key(self, document: FleetDocument) -> None:
        key = self.fleet.engine_key(document)
        write_private(self.paths.engine_key, key + "\n", KEY_MODE)

    def _read_instances(self, document: FleetDocument) -> None:
        assert self._inventory is not None
        at, found = self.clock(), self._inventory.listed()
        before, written_at = self._written
        if found == before and 0 <= at - written_at < WRITTEN_EVERY_S:
            return
        seen = Seen(at=at, instances=tuple(found.instances), errors=found.errors)
        write_atomically(self.paths.instances, SEEN.dump_json(seen) + b"\n")
        TargetsFile(self.paths.targets).write(found, document.environment, document.router.machines)
        self._written = (found, at)

    def _read_limits(self, document: FleetDocument) -> None:
        limits = self.limits(document, needs(document))
        write_changed(self.paths.limits, json.dumps(dict(limits)).encode() + b"\n")
