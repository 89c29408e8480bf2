"""Compute Engine API calls. Reads all pages, counts calls, waits for operations, translates errors to CloudError."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import DeadlineExceeded, GoogleAPICallError, RetryError, ServiceUnavailable
from google.api_core.retry import Retry, if_exception_type
from google.auth.exceptions import GoogleAuthError
from google.cloud import compute_v1
from google.protobuf import json_format

from gpufleet.clouds.gcp.emulator import ENDPOINT as ENDPOINT
from gpufleet.clouds.gcp.emulator import emulator
from gpufleet.clouds.gcp.login import emulated
from gpufleet.domain.activity import CloudError
from gpufleet.domain.parsed import is_map

CALL_LIMIT_S: Final = 30.0
"""Time limit for a call, and for starting retries of a read. The last attempt may start at the limit and take as long
again.
"""
READS: Final = frozenset({"aggregated_list", "get", "list", "list_errors", "list_managed_instances"})
"""Read-only calls. They are retried if Google is temporarily unavailable."""
WAIT_CALL_LIMIT_S: Final = 150.0
"""Time limit of a wait call. Google responds after at most two minutes, even if the operation is not done."""
OPERATION_LIMIT_S: Final = 300.0
"""Time limit for an operation to finish."""
PAUSE_S: Final = 1.0
"""Minimum time between two wait calls. Under load, Google responds to a wait call immediately."""
_REQUEST: Final = re.compile(r"^[A-Z]+ https?://\S+: ")
"""The request that Google's client puts before the reason of a refusal."""
_NO_ANSWER: Final = (json_format.Error, UnicodeError)
"""Exceptions of the client for an incomplete or invalid response. GoogleAPICallError does not include them."""
CLIENTS: Final[Mapping[str, Callable[..., Any]]] = {
    "instances": compute_v1.InstancesClient,
    "instance_group_managers": compute_v1.InstanceGroupManagersClient,
    "region_instance_group_managers": compute_v1.RegionInstanceGroupManagersClient,
    "instance_templates": compute_v1.InstanceTemplatesClient,
    "zone_operations": compute_v1.ZoneOperationsClient,
    "region_operations": compute_v1.RegionOperationsClient,
    "global_operations": compute_v1.GlobalOperationsClient,
    "reservations": compute_v1.ReservationsClient,
    "region_commitments": compute_v1.RegionCommitmentsClient,
    "regions": compute_v1.RegionsClient,
}


class GoogleCalls:
    """The Compute Engine clients of one project. All calls use this class."""

    def __init__(
        self,
        project: str,
        call_limit_s: float = CALL_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is called before each request."""
        self.project = project
        self._before = before
        self._call_limit_s = call_limit_s
        self._clock, self._sleep = clock, sleep
        self.counts: dict[str, int] = {}
        self.unreachable: set[str] = set()
        """Paths of locations that were missing in lists with partial success."""
        self._clients: dict[str, Any] = {}

    def one(self, service: str, operation: str, /, **request: Any) -> Any:
        """Make one call that returns immediately. Raises CloudError with the operation and Google's message."""
        return self._guarded(service, operation, lambda: self._call(service, operation, request))

    def finish(self, service: str, operation: str, **request: Any) -> None:
        """Start an operation and wait until it is done. Raises CloudError.

        This does not use the client's `.result()`, which always calls the public endpoint, even for an emulator.
        """
        state = self.begin(service, operation, **request)
        end = self._clock() + OPERATION_LIMIT_S
        while state.status != compute_v1.Operation.Status.DONE:
            if self._clock() > end:
                raise CloudError(f"compute:{service}.{operation}: not done after {OPERATION_LIMIT_S:.0f} s")
            asked = self._clock()
            state = self._wait(state)
            if state.status != compute_v1.Operation.Status.DONE and self._clock() - asked < PAUSE_S:
                self._sleep(PAUSE_S)
        raise_failed(f"compute:{service}.{operation} in {self.project}", state)

    def begin(self, service: str, operation: str, /, **request: Any) -> Any:
        """Start an operation and return its initial state. Raises CloudError, also if it fails immediately."""
        state = self.one(service, f"{operation}_unary", **request)
        raise_failed(f"compute:{service}.{operation} in {self.project}", state)
        return state

    def _wait(self, operation: Any) -> Any:
        place: dict[str, str] = {"operation": operation.name}
        service = "global_operations"
        for scope in ("zone", "region"):
            if link := getattr(operation, scope):
                service, place[scope] = f"{scope}_operations", link.rsplit("/", 1)[-1]
        return self._guarded(service, "wait", lambda: self._call(service, "wait", place, WAIT_CALL_LIMIT_S))

    def pages(self, service: str, operation: str, **request: Any) -> Iterator[Any]:
        """All items of all pages. The time limit applies to each page.

        Raises CloudError if a page fails: partial lists are never returned.
        """
        yield from self._guarded(service, operation, lambda: self._read(service, operation, request))

    def newest(self, service: str, operation: str, is_old: Callable[[Any], bool], **request: Any) -> Sequence[Any]:
        """Items that are not old, newest first. Stops reading at the first page that ends with an old item.

        Compute Engine cannot filter operations by time, and rejects a filter combined with an order. Raises
        CloudError.
        """
        request = {**request, "order_by": "creationTimestamp desc"}
        found = self._guarded(service, operation, lambda: self._read(service, operation, request, is_old))
        return tuple(item for item in found if not is_old(item))

    def _read(
        self,
        service: str,
        operation: str,
        request: Mapping[str, Any],
        is_last: Callable[[Any], bool] = lambda _: False,
    ) -> list[Any]:
        found: list[Any] = []
        for page in self._call(service, operation, request).pages:
            found.extend(_items(page))
            self.unreachable.update(getattr(page, "unreachables", ()))
            if found and is_last(found[-1]):
                break
            if page.next_page_token:
                self._count(f"compute:{service}.{operation}")  # the client requests the next page
        return found

    def _call(self, service: str, operation: str, request: Mapping[str, Any], limit_s: float | None = None) -> Any:
        limit_s = self._call_limit_s if limit_s is None else limit_s
        # the client's default retry takes up to ten minutes regardless of the limit, as long as the lease of a run
        retry = _again(limit_s) if operation in READS else None
        call = getattr(self._client(service), operation)
        return call(request={"project": self.project, **request}, timeout=limit_s, retry=retry)

    def _guarded(self, service: str, operation: str, call: Callable[[], Any]) -> Any:
        name = f"compute:{service}.{operation}"
        self._count(name)
        try:
            return call()
        except GoogleAPICallError as error:
            code, message = _code(error), cast(str, error.message)
            reason = f"{code or type(error).__name__}: {_REQUEST.sub('', message)}"
            raise CloudError(f"{name} in {self.project} failed: {reason}", code) from error
        except GoogleAuthError as error:
            raise CloudError(f"{name} in {self.project} failed: {error}", type(error).__name__) from error
        except (RetryError, OSError, *_NO_ANSWER) as error:
            raise CloudError(f"{name} in {self.project} failed: {error}") from error

    def _count(self, name: str) -> None:
        self._before()
        self.counts[name] = self.counts.get(name, 0) + 1

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = CLIENTS[service](**_emulated())
        return self._clients[service]


def _items(page: Any) -> Iterable[Any]:
    """Items of a page. An aggregated list has pairs of location and list."""
    found = page.managed_instances if hasattr(page, "managed_instances") else page.items
    return found.items() if is_map(found) else found


def raise_failed(what: str, operation: Any) -> None:
    """Raise CloudError with the first error of an operation, if there is one. `what` describes the operation."""
    for error in operation.error.errors:
        raise CloudError(f"{what} failed: {error.code}: {error.message}", error.code)


def _again(limit_s: float) -> Retry:
    """The client's default retry for reads, with another time limit."""
    return Retry(
        if_exception_type(DeadlineExceeded, ServiceUnavailable),
        initial=0.1,
        maximum=60.0,
        multiplier=1.3,
        timeout=limit_s,
    )


def _emulated() -> dict[str, Any]:
    """Arguments for the client of an emulator; empty for the real cloud. Raises CloudError."""
    endpoint = emulator(ENDPOINT)
    if endpoint is None:
        return {}
    return {"client_options": ClientOptions(api_endpoint=endpoint), "credentials": emulated(endpoint)}


def _code(error: GoogleAPICallError) -> str:
    """Reason of the first error detail that has one (`ZONE_RESOURCE_POOL_EXHAUSTED`), else the HTTP status."""
    for detail in getattr(error, "errors", ()) or ():
        for key in ("reason", "code"):
            word = detail.get(key) if is_map(detail) else getattr(detail, key, None)
            if word:
                return str(word)
    return str(error.code) if error.code is not None else ""
