"""Operations: each change returns one, which becomes PENDING, RUNNING and DONE over time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from localcloud.gcp.locations import PROJECT, PROJECT_NUMBER
from localcloud.gcp.store import Row, Store, stamp

_STARTS_AFTER: Final = timedelta(milliseconds=100)
_TAKES: Final = timedelta(milliseconds=400)
"""Assumed: recorded operations are shown before they end."""
_KEPT: Final = timedelta(days=14)
_OPERATION: Final = "operation"
_EVENT: Final = "systemevent"
"""Name prefixes of operations: of a user's calls, and of the cloud's own actions."""
USER: Final = "local@gpu-fleet-local.iam.gserviceaccount.com"
SYSTEM: Final = "system"
GROUPS: Final = f"{PROJECT_NUMBER}@cloudservices.gserviceaccount.com"
"""The user of operations of managed groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFailure:
    """The error of an operation: Compute Engine's code, message and HTTP status."""

    code: str
    message: str
    status: int = 400
    status_message: str = "BAD REQUEST"
    details: tuple[Row, ...] = ()
    """`errorDetails`: a link to the documentation, a localized message, and fields."""

    @property
    def error(self) -> Row:
        """The error as operations and managed instances show it."""
        shown: Row = {"code": self.code, "message": self.message}
        return {**shown, "errorDetails": list(self.details)} if self.details else shown


Progress = Callable[[], "OperationFailure | bool"]
"""Returns True when done, False while in progress, or the error."""


@dataclass(slots=True, kw_only=True)
class _Work:
    row: Row
    inserted: datetime
    progress: Progress


@dataclass(slots=True, kw_only=True)
class Operations:
    """All operations of the project, newest last."""

    store: Store
    now: Callable[[], datetime]
    _all: dict[tuple[str, str], _Work] = field(default_factory=dict[tuple[str, str], _Work])

    def start(  # noqa: PLR0913
        self,
        scope: str,
        operation_type: str,
        target: str,
        target_id: str,
        *,
        progress: Progress = lambda: True,
        user: str = USER,
        begins: str = _OPERATION,
    ) -> Row:
        """Add an operation, PENDING; `progress` is called until it is done."""
        now = self.now()
        number = self.store.number()
        name = f"{begins}-{_name(now, int(number))}"
        row: Row = {
            "kind": "compute#operation",
            "id": number,
            "name": name,
            "operationType": operation_type,
            "targetLink": self.store.url(target) if target.startswith("projects/") else target,
            "targetId": target_id,
            "status": "PENDING",
            "user": user,
            "progress": 0,
            "insertTime": stamp(now),
            "selfLink": self.store.url(f"projects/{PROJECT}/{scope}/operations/{name}"),
        }
        place, _, where = scope.partition("/")
        if where:
            row[place.removesuffix("s")] = self.store.url(f"projects/{PROJECT}/{scope}")
        self._all[scope, name] = _Work(row=row, inserted=now, progress=progress)
        return row

    def happened(self, scope: str, operation_type: str, target: str, target_id: str, message: str) -> Row:
        """Add an operation of the cloud itself, which is done at once."""
        row = self.start(scope, operation_type, target, target_id, user=SYSTEM, begins=_EVENT)
        moment = row["insertTime"]
        row.update(status="DONE", progress=100, statusMessage=message, startTime=moment, endTime=moment)
        return row

    def find(self, scope: str, name: str) -> Row | None:
        """By its name or its number."""
        self.advance()
        found = self._all.get((scope, name))
        if found is None:
            found = next((w for (s, _), w in self._all.items() if s == scope and w.row["id"] == name), None)
        return None if found is None else found.row

    def list(self, scope: str | None) -> list[Row]:
        self.advance()
        return [work.row for (where, _), work in self._all.items() if scope in (None, where)]

    def remove(self, scope: str, name: str) -> None:
        self._all.pop((scope, name), None)

    def advance(self) -> None:
        """Advance all unfinished operations; remove very old ones."""
        now = self.now()
        for key, work in list(self._all.items()):
            age = now - work.inserted
            if work.row["status"] == "DONE":
                if age > _KEPT:
                    del self._all[key]
                continue
            if age >= _STARTS_AFTER and work.row["status"] == "PENDING":
                work.row.update(status="RUNNING", startTime=stamp(now))
            if age < _TAKES:
                continue
            ended = work.progress()
            if ended is not False:
                _finish(work.row, now, ended)


def _name(now: datetime, number: int) -> str:
    """Milliseconds, microseconds in hexadecimal digits, and two random numbers."""
    micros = int(now.timestamp() * 1_000_000)
    return f"{micros // 1000}-{micros:x}-{number >> 32 & 0xFFFFFFFF:08x}-{number & 0xFFFFFFFF:08x}"


def _finish(row: Row, now: datetime, ended: Any) -> None:
    row.update(status="DONE", progress=100, endTime=stamp(now))
    row.setdefault("startTime", row["endTime"])
    if isinstance(ended, OperationFailure):
        row["error"] = {"errors": [ended.error]}
        row["httpErrorStatusCode"] = ended.status
        row["httpErrorMessage"] = ended.status_message
