"""The Compute Engine API: matches a request with the discovery document and runs its handler."""

import time
from collections.abc import Mapping
from typing import Any, Final

from localcloud.gcp import catalogue, discovery, group_calls, instance_calls, resources
from localcloud.gcp.calls import Call, Handler, page
from localcloud.gcp.errors import ApiError, invalid, not_found
from localcloud.gcp.locations import PROJECT, PROJECT_NUMBER, REGION, ZONES
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Row

_WAIT_S: Final = 120.0
_LOOK_S: Final = 0.05
_FOREIGN: Final = ("images.get", "images.getFromFamily")
"""Calls about other projects: Google's own images."""


def _scope(call: Call) -> str:
    return call.scope


def _get_operation(state: GoogleState, call: Call) -> Row:
    found = state.operations.find(_scope(call), call.parameters["operation"])
    if found is None:
        raise not_found(call.path)
    return dict(found)


def _list_operations(state: GoogleState, call: Call) -> Row:
    rows = list(reversed(state.operations.list(_scope(call))))
    return page(call, [dict(row) for row in rows], "operationList")


def _delete_operation(state: GoogleState, call: Call) -> Row:
    state.operations.remove(_scope(call), call.parameters["operation"])
    return {}


def _aggregated_operations(state: GoogleState, call: Call) -> Row:
    from localcloud.gcp.calls import aggregated

    scopes = ["global", f"regions/{REGION}", *(f"zones/{zone}" for zone in ZONES)]
    rows = {scope: [dict(row) for row in state.operations.list(scope)] for scope in scopes}
    return aggregated(call, rows, "operationAggregatedList", "operations")


def _handlers() -> dict[str, Handler]:
    found: dict[str, Any] = {}
    for kind in ("zone", "region", "global"):
        found |= {
            f"{kind}Operations.get": _get_operation,
            f"{kind}Operations.list": _list_operations,
            f"{kind}Operations.delete": _delete_operation,
        }
    found["globalOperations.aggregatedList"] = _aggregated_operations
    found |= catalogue.handlers() | resources.handlers() | group_calls.handlers() | instance_calls.handlers()
    return found


class Compute:
    """The Compute Engine API over one emulated state."""

    def __init__(self, state: GoogleState) -> None:
        self._state = state
        self._handlers = _handlers()
        self._answered: dict[str, Row] = {}
        """Responses by requestId, for requests that are sent again."""

    def method_of(self, http_method: str, path: str) -> str:
        """The method's id, for `calls` and for faults; "" for an unknown call."""
        found = discovery.compute().match(http_method, path)
        return found.route.method_id if found else ""

    def answer(self, http_method: str, path: str, query: Mapping[str, str], body: Any) -> Row:
        """The body of the response. Raises ApiError."""
        document = discovery.compute()
        found = document.match(http_method, path)
        if found is None:
            raise ApiError(404, "notFound", f"The requested URL /compute/v1/{path} was not found on this server.")
        method_id = found.route.method_id
        document.check_query(found.route, query)
        self._check_place(method_id, found.parameters)
        call = Call(
            method_id=method_id,
            path=path,
            parameters=found.parameters,
            query=query,
            body=document.clean(found.route, body),
        )
        if method_id.endswith("Operations.wait"):
            return self._wait(call)
        handler = self._handlers.get(method_id)
        if handler is None:
            raise ApiError(501, "notImplemented", f"The embedded cloud does not answer compute.{method_id}.")
        request_id = query.get("requestId", "")
        with self._state.lock:
            if request_id and request_id in self._answered:
                return dict(self._answered[request_id])
            answered = dict(handler(self._state, call))
            if request_id:
                self._answered[request_id] = answered
            return answered

    def _check_place(self, method_id: str, parameters: Mapping[str, str]) -> None:
        project = parameters.get("project", PROJECT)
        if project not in (PROJECT, PROJECT_NUMBER) and method_id not in _FOREIGN:
            raise not_found(f"projects/{project}")
        zone, region = parameters.get("zone"), parameters.get("region")
        if zone is not None and zone not in ZONES:
            raise invalid("zone", zone, f"Unknown zone; the embedded cloud has {', '.join(ZONES)}.")
        if region is not None and region != REGION:
            raise invalid("region", region, f"Unknown region; the embedded cloud has {REGION}.")

    def _wait(self, call: Call) -> Row:
        """Wait until it is done, at most two minutes."""
        until = time.monotonic() + _WAIT_S
        while True:
            with self._state.lock:
                found = _get_operation(self._state, call)
            if found["status"] == "DONE" or time.monotonic() > until:
                return found
            time.sleep(_LOOK_S)
