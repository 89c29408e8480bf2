"""Compute Engine calls: paged to the end, counted, operations waited for, errors in our words."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import DeadlineExceeded, GoogleAPICallError, RetryError, ServiceUnavailable
from google.api_core.retry import Retry, if_exception_type
from google.auth.exceptions import GoogleAuthError
from google.cloud import compute_v1
from google.protobuf import json_format

from gpufleet.clouds.gcp.emulator import emulator
from gpufleet.clouds.gcp.login import emulated
from gpufleet.domain.activity import CloudError
from gpufleet.domain.parsed import is_map

ENDPOINT: Final = "GPUFLEET_COMPUTE_ENDPOINT"
"""An emulator's address on loopback. Compute Engine has no standard variable for that."""
CALL_LIMIT_S: Final = 30.0
"""For a call, and for all attempts at a read; the last attempt may begin at its end and take as long again."""
READS: Final = frozenset({"aggregated_list", "get", "list", "list_errors", "list_managed_instances"})
"""Calls that change nothing, so that they may be made again where Google is not there for a moment."""
WAIT_CALL_LIMIT_S: Final = 150.0
"""Google answers a wait after two minutes at the latest, done or not."""
OPERATION_LIMIT_S: Final = 300.0
PAUSE_S: Final = 1.0
"""Between two waits for an operation: Google, when it has much to do, answers one at once."""
_NO_ANSWER: Final = (json_format.Error, UnicodeError)
"""What the client raises for an answer that was cut, or is no JSON: neither is of its own family."""
CLIENTS: Final[Mapping[str, Callable[..., Any]]] = {
    "instances": compute_v1.InstancesClient,
    "instance_group_managers": compute_v1.InstanceGroupManagersClient,
    "region_instance_group_managers": compute_v1.RegionInstanceGroupManagersClient,
    "instance_templates": compute_v1.InstanceTemplatesClient,
    "zone_operations": compute_v1.ZoneOperationsClient,
    "region_operations": compute_v1.RegionOperationsClient,
    "global_operations": compute_v1.GlobalOperationsClient,
    "reservations": compute_v1.ReservationsClient,
    "regions": compute_v1.RegionsClient,
}


class GoogleCalls:
    """The clients of one project. Every call goes through here."""

    def __init__(
        self,
        project: str,
        call_limit_s: float = CALL_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.project = project
        self._call_limit_s = call_limit_s
        self._clock, self._sleep = clock, sleep
        self.counts: dict[str, int] = {}
        self._clients: dict[str, Any] = {}

    def one(self, service: str, operation: str, /, **request: Any) -> Any:
        """One call that answers at once. Raises CloudError with the operation and the cloud's words."""
        return self._guarded(service, operation, lambda: self._call(service, operation, request))

    def finish(self, service: str, operation: str, **request: Any) -> None:
        """One call that starts an operation, and its end. Raises CloudError.

        The client's own `.result()` is not used: it asks the public endpoint, whatever endpoint the client has.
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
        """One call that starts an operation, as it is then. Raises CloudError, also when it has failed at once."""
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
        """Every item of every page, each of which has a limit of its own.

        A page that fails raises: a part is not the whole.
        """

        yield from self._guarded(service, operation, lambda: self._read(service, operation, request))

    def newest(self, service: str, operation: str, is_old: Callable[[Any], bool], **request: Any) -> Sequence[Any]:
        """Items from the newest on until one is old: no page after that one is asked for. Raises CloudError.

        Compute Engine filters no operations by time, and refuses a filter together with an order.
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
            if found and is_last(found[-1]):
                break
            if page.next_page_token:
                self._count(f"compute:{service}.{operation}")  # the client asks for that one next
        return found

    def _call(self, service: str, operation: str, request: Mapping[str, Any], limit_s: float | None = None) -> Any:
        limit_s = self._call_limit_s if limit_s is None else limit_s
        # the client's own retry goes on for ten minutes, whatever the limit: as long as the term of a run's lease
        retry = _again(limit_s) if operation in READS else None
        call = getattr(self._client(service), operation)
        return call(request={"project": self.project, **request}, timeout=limit_s, retry=retry)

    def _guarded(self, service: str, operation: str, call: Callable[[], Any]) -> Any:
        name = f"compute:{service}.{operation}"
        self._count(name)
        try:
            return call()
        except GoogleAPICallError as error:
            raise CloudError(f"{name} in {self.project} was refused: {error.message}", _code(error)) from error
        except (GoogleAuthError, RetryError, OSError, *_NO_ANSWER) as error:
            raise CloudError(f"{name} in {self.project} failed: {error}") from error

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = CLIENTS[service](**_emulated())
        return self._clients[service]


def _items(page: Any) -> Iterable[Any]:
    """What a page lists: pairs of place and list, where it is of all places."""
    found = page.managed_instances if hasattr(page, "managed_instances") else page.items
    return found.items() if is_map(found) else found


def raise_failed(what: str, operation: Any) -> None:
    """Raises CloudError with the first error of an operation, if it has one. `what`: what it does."""
    for error in operation.error.errors:
        raise CloudError(f"{what} failed: {error.code}: {error.message}", error.code)


def _again(limit_s: float) -> Retry:
    """The client's own way to try a read again, but for its time."""
    return Retry(
        if_exception_type(DeadlineExceeded, ServiceUnavailable),
        initial=0.1,
        maximum=60.0,
        multiplier=1.3,
        timeout=limit_s,
    )


def _emulated() -> dict[str, Any]:
    """Arguments for a client of an emulator; none for the real cloud. Raises CloudError."""
    endpoint = emulator(ENDPOINT)
    if endpoint is None:
        return {}
    return {"client_options": ClientOptions(api_endpoint=endpoint), "credentials": emulated(endpoint)}


def _code(error: GoogleAPICallError) -> str:
    """The reason word of the first detail (`ZONE_RESOURCE_POOL_EXHAUSTED`), else the HTTP status."""
    for detail in getattr(error, "errors", ()) or ():
        for key in ("reason", "code"):
            word = detail.get(key) if is_map(detail) else getattr(detail, key, None)
            if word:
                return str(word)
    return str(error.code) if error.code is not None else ""
