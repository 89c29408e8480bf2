"""The admin API of the embedded clouds, `/_localcloud/`: changes to a cloud that no customer can make.

One address serves both clouds. The query parameter `cloud` selects one, `aws` by default; both have the same verbs,
plus those that only one of the real clouds has.
"""

import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from gpufleet.domain.model import Cloud
from localcloud import api_faults
from localcloud.api_faults import ApiFaults
from localcloud.billing_log import BillingLog
from localcloud.calls import Calls
from localcloud.capacity_kind import Kind
from localcloud.documents import is_document
from localcloud.faults import FAULTS, NUMBERED, WORDED, Faults

PREFIX: Final = "/_localcloud"
_LONGEST_NOTICE_S: Final = 600
_VALUES: Final = re.compile(r"[A-Za-z0-9.+:_-]+(,[A-Za-z0-9.+:_-]+)*")
Verb = Callable[[Mapping[str, Any]], object]
"""Takes the JSON object of the request, returns what is sent back as JSON. Raises AdminError."""


class AdminError(Exception):
    """A request that cannot be executed; the message states what to change."""

    def __init__(self, message: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)


@dataclass(slots=True, kw_only=True)
class CloudAdmin(ABC):
    """The verbs of one emulated cloud."""

    lock: threading.RLock
    """Held while a verb runs."""
    billing_log: BillingLog
    calls: Calls
    faults: Faults
    api_faults: ApiFaults

    @abstractmethod
    def overview(self) -> object:
        """Groups, instances, capacity and faults, for `gpufleet local status`."""

    @abstractmethod
    def preempt(self, body: Mapping[str, Any]) -> object:
        """Preempt one spot instance: the oldest of `pool`, or `instance`. `capacity_lost`: its pool gets no other."""

    @abstractmethod
    def restore(self) -> object:
        """Remove all capacity limits; groups retry at once."""

    @abstractmethod
    def set_capacity(self, body: Mapping[str, Any]) -> object:
        """Set or remove one limit."""

    @abstractmethod
    def instance_without_fault(self, body: Mapping[str, Any], fault: str) -> str:
        """The oldest running instance of `pool`, or `instance`, on which the fault is off. Raises AdminError."""

    @abstractmethod
    def own_verbs(self) -> Mapping[tuple[str, str], Verb]:
        """The verbs that only this cloud has, by method and path."""

    def call(self, method: str, path: str, body: Mapping[str, Any]) -> object:
        """Run one verb; `path` has no leading slash. Raises AdminError."""
        verbs = self._verbs()
        verb = verbs.get((method, path))
        if verb is None:
            known = ", ".join(sorted(f"{one} {PREFIX}/{name}" for one, name in verbs))
            raise AdminError(f"unknown call {method} {PREFIX}/{path}; use one of {known}", HTTPStatus.NOT_FOUND)
        with self.lock:
            return verb(body)

    def _verbs(self) -> Mapping[tuple[str, str], Verb]:
        return {
            ("GET", "health"): lambda _: {"status": "ok"},
            ("GET", "state"): lambda _: self.overview(),
            ("GET", "calls"): lambda _: self.calls.as_json(),
            ("GET", "billing-log"): lambda _: self.billing_log.as_json(),
            ("GET", "fault"): lambda _: self.faults.as_json(),
            ("POST", "fault"): self._add_fault,
            ("DELETE", "fault"): self._clear_faults,
            ("GET", "api-fault"): lambda _: self.api_faults.as_json(),
            ("POST", "api-fault"): self._add_api_fault,
            ("DELETE", "api-fault"): lambda _: self.api_faults.clear(),
            ("POST", "preempt"): self.preempt,
            ("POST", "restore"): lambda _: self.restore(),
            ("POST", "capacity"): self.set_capacity,
            **self.own_verbs(),
        }

    def _add_fault(self, body: Mapping[str, Any]) -> object:
        what, value = str(body.get("what")), body.get("value")
        if what not in FAULTS:
            raise AdminError(f"what: expected one of {', '.join(sorted(FAULTS))}, got {body.get('what')!r}")
        given = _value(what, value)
        instance = self.instance_without_fault(body, what)
        self.faults.add(instance, what, given)
        return {"instance": instance, "what": what}

    def _clear_faults(self, body: Mapping[str, Any]) -> object:
        self.faults.clear(body.get("instance"))
        return self.faults.as_json()

    def _add_api_fault(self, body: Mapping[str, Any]) -> object:
        try:
            self.api_faults.add(api_faults.read(dict(body)))
        except ValueError as error:
            raise AdminError(str(error)) from error
        return self.api_faults.as_json()


def _value(what: str, value: object) -> float | str | None:
    """The value of a fault. Raises AdminError."""
    if what in WORDED and isinstance(value, str) and _VALUES.fullmatch(value):
        return value
    if what in NUMBERED and isinstance(value, int | float):
        return float(value)
    if value is None and what not in NUMBERED | WORDED:
        return None
    kinds = (("a number", NUMBERED), ("words separated by commas", WORDED))
    expected = " or ".join(name for name, faults in kinds if what in faults) or "none"
    raise AdminError(f"value: expected {expected} for the fault {what}, got {value!r}")


class AdminApi:
    """The WSGI application: JSON in, JSON out."""

    def __init__(self, clouds: Mapping[Cloud, CloudAdmin]) -> None:
        self._clouds = clouds

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        status = HTTPStatus.OK
        try:
            path = str(environ["PATH_INFO"]).removeprefix(f"{PREFIX}/")
            answer = self._cloud(environ).call(environ["REQUEST_METHOD"], path, _read_json(environ))
        except AdminError as error:
            answer, status = {"error": str(error)}, error.status
        body = json.dumps(answer, indent=1, default=str).encode() + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    def _cloud(self, environ: Mapping[str, Any]) -> CloudAdmin:
        name = parse_qs(environ.get("QUERY_STRING", "")).get("cloud", [str(Cloud.AWS)])[-1]
        for cloud, admin in self._clouds.items():
            if cloud == name:
                return admin
        raise AdminError(f"cloud: expected one of {', '.join(self._clouds)}, got {name!r}")


def notice_seconds(value: object) -> float:
    """The length of a preemption notice. Raises AdminError."""
    if isinstance(value, int | float) and 0 <= value <= _LONGEST_NOTICE_S:
        return float(value)
    raise AdminError(f"notice_s: expected a number from 0 to {_LONGEST_NOTICE_S}, got {value!r}")


def kind_of(value: object) -> Kind:
    """From `kind` of a request. Raises AdminError."""
    try:
        return Kind(str(value))
    except ValueError as error:
        raise AdminError(f"kind: expected spot or on-demand, got {value!r}") from error


def count_of(value: object) -> int | None:
    """A limit; None removes it. Raises AdminError."""
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    raise AdminError(f"count: expected a whole number from 0, or null for no limit, got {value!r}")


def set_limit(table: dict[Any, int], key: object, value: object) -> None:
    """Set one limit of a table, or remove it. Raises AdminError."""
    if (count := count_of(value)) is None:
        table.pop(key, None)
    else:
        table[key] = count


def selection(body: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Instance and pool that a request names. Raises AdminError where it names neither."""
    instance, pool = body.get("instance"), body.get("pool")
    if instance is None and pool is None:
        raise AdminError('the body names no instance: add {"pool": NAME} or {"instance": ID}')
    return instance, pool


def not_found(what: str, instance: object, pool: object) -> AdminError:
    """The error where no instance fits the selection."""
    where = f"instance {instance}" if instance is not None else f"pool {pool}"
    return AdminError(f"{where} has no {what}; see GET {PREFIX}/state", HTTPStatus.CONFLICT)


def _read_json(environ: Mapping[str, Any]) -> Mapping[str, Any]:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not length:
        return {}
    try:
        found = json.loads(environ["wsgi.input"].read(length))
    except ValueError as error:
        raise AdminError(f"the body is not JSON: {error}") from error
    if not is_document(found):
        raise AdminError("the body: expected a JSON object")
    return found
