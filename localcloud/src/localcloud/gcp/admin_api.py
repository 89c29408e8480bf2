"""The control API of the embedded Google Cloud, `/_localcloud/`: what people and tests do to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gpufleet.domain import tags
from gpufleet.http_server import Answer
from localcloud.aws import api_faults
from localcloud.aws.api_faults import ApiFaults
from localcloud.aws.capacity import Kind
from localcloud.documents import is_document
from localcloud.faults import FAULTS, NUMBERED, Faults
from localcloud.gcp import groups, instances
from localcloud.gcp.errors import ApiError
from localcloud.gcp.exchange import Request, json_reply
from localcloud.gcp.machine import Machine
from localcloud.gcp.state import GoogleState

_PREFIX: Final = "/_localcloud"
_NAMED: Final = ("PROVISIONING", "STAGING", "RUNNING")
"""What is chosen by its name may also be one that is being made."""
_POOL: Final = tags.label(tags.POOL)


class AdminError(Exception):
    """A request that cannot be done; the message says what to change."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, kw_only=True)
class GoogleAdminApi:
    """The admin API over one emulated state."""

    state: GoogleState
    faults: Faults
    api_faults: ApiFaults

    def answer(self, request: Request) -> Answer:
        """JSON in, JSON out."""
        try:
            return json_reply(self._route(request))
        except AdminError as error:
            return json_reply({"error": str(error)}, error.status)
        except ApiError as error:
            return json_reply({"error": error.message}, int(error.status))

    def _route(self, request: Request) -> object:
        routes: dict[tuple[str, str], Callable[[Mapping[str, Any]], object]] = {
            ("GET", "/health"): lambda _: {"status": "ok"},
            ("GET", "/state"): lambda _: self.overview(),
            ("GET", "/calls"): lambda _: self.state.calls.as_json(),
            ("GET", "/books"): lambda _: self.state.books.as_json(),
            ("GET", "/fault"): lambda _: self.faults.as_json(),
            ("POST", "/preempt"): self.preempt,
            ("POST", "/maintain"): self.maintain,
            ("POST", "/unhealthy"): self.unhealthy,
            ("POST", "/restore"): lambda _: self.restore(),
            ("POST", "/capacity"): self.set_capacity,
            ("POST", "/fault"): self.add_fault,
            ("DELETE", "/fault"): self.drop_fault,
            ("GET", "/api-fault"): lambda _: self.api_faults.as_json(),
            ("POST", "/api-fault"): self.add_api_fault,
            ("DELETE", "/api-fault"): lambda _: self.api_faults.clear(),
        }
        found = routes.get((request.method, request.path.removeprefix(_PREFIX)))
        if found is None:
            known = ", ".join(f"{method} {_PREFIX}{path}" for method, path in routes)
            raise AdminError(f"no {request.method} {request.path}; there is {known}", 404)
        body: Any = request.json() or {}
        if not is_document(body):
            raise AdminError("the body must be a JSON object")
        with self.state.lock:
            return found(body)

    def overview(self) -> object:
        """Groups, instances and capacity, for people and for `gpufleet local status`."""
        return {
            "now": self.state.now().isoformat(),
            "instances": [self._shown(machine) for machine in self.state.machines.values()],
            "groups": [self._shown_group(group) for group in self.state.groups.values()],
            "capacity": self.state.capacity.as_json(),
            "faults": self.faults.as_json(),
        }

    def _shown(self, machine: Machine) -> dict[str, object]:
        return {
            "id": machine.name,
            "state": machine.status,
            "type": machine.machine_type,
            "zone": machine.zone,
            "kind": machine.bought_as,
            "address": machine.address,
            "group": machine.group[1] if machine.group else None,
            "pool": machine.labels.get(_POOL),
            "launched": machine.row["creationTimestamp"],
            "notice": machine.preempted_at.isoformat() if machine.preempted_at else None,
            "faults": self.faults.of(machine.name),
            "tags": machine.labels,
        }

    def _shown_group(self, group: groups.ManagedGroup) -> dict[str, object]:
        row = self.state.store.get(group.key)
        return {
            "name": group.key.name,
            "where": group.key.scope,
            "desired": row["targetSize"],
            "members": {member.name: member.action for member in group.members},
            "last_failure": group.errors[-1]["error"]["message"] if group.errors else None,
        }

    def preempt(self, body: Mapping[str, Any]) -> object:
        """Preempt one spot instance of a pool (the oldest, unless one is named)."""
        notice_s = None if body.get("notice_s") is None else float(body["notice_s"])
        if notice_s is not None and not 0 <= notice_s <= 600:
            raise AdminError(f"notice_s is {notice_s:g}; a notice is 0 to 600 seconds long")
        chosen = self._choose(body, lambda one: one.kind is Kind.SPOT and not one.is_preempted, "spot instance")
        if body.get("capacity_gone", False):
            pool = chosen.labels.get(_POOL)
            self.state.capacity.gone.update(
                one.machine_type for one in self.state.machines.values() if one.labels.get(_POOL) == pool
            )
        notice = instances.notice_of(chosen) if notice_s is None else timedelta(seconds=notice_s)
        instances.preempt(self.state, chosen, notice)
        return self._shown(chosen)

    def maintain(self, body: Mapping[str, Any]) -> object:
        """A maintenance event of one instance."""
        chosen = self._choose(body, lambda _: True, "instance")
        instances.maintain(self.state, chosen)
        return self._shown(chosen)

    def unhealthy(self, body: Mapping[str, Any]) -> object:
        """A member of a group fails its health check."""
        chosen = self._choose(body, lambda one: one.group is not None, "member of a group")
        for group in self.state.groups.values():
            for member in group.members:
                if member.name == chosen.name:
                    groups.fail_health_check(self.state, group, member)
        return self._shown(chosen)

    def _choose(self, body: Mapping[str, Any], fits: Callable[[Machine], bool], what: str) -> Machine:
        wanted, pool = body.get("instance"), body.get("pool")
        if wanted is None and pool is None:
            raise AdminError('name one: {"pool": NAME} or {"instance": NAME}')
        found = [
            machine
            for machine in self.state.machines.values()
            if machine.status in (_NAMED if wanted is not None else ("RUNNING",))
            and (wanted is None or machine.name == wanted)
            and (pool is None or machine.labels.get(_POOL) == pool)
            and fits(machine)
        ]
        if not found:
            named = f"instance {wanted}" if wanted is not None else f"pool {pool}"
            raise AdminError(f"no running {what} of that kind in {named}; see GET {_PREFIX}/state", 409)
        return min(found, key=lambda machine: (machine.row["creationTimestamp"], machine.name))

    def restore(self) -> object:
        """All capacity is there again; groups try at once."""
        self.state.capacity.restore()
        for group in self.state.groups.values():
            group.retry_at, group.failures = None, 0
        return self.state.capacity.as_json()

    def set_capacity(self, body: Mapping[str, Any]) -> object:
        """{"zone", "type", "kind", "count"}, {"kind", "gpus"} or {"gpus_all_regions"}; null means no limit."""
        if "gpus_all_regions" in body:
            self.state.capacity.all_regions = _count(body["gpus_all_regions"])
            return self.state.capacity.as_json()
        try:
            kind = Kind(str(body.get("kind")))
        except ValueError as error:
            raise AdminError(f"kind is {body.get('kind')!r}; it must be spot or on-demand") from error
        limits: tuple[dict[Any, int], Any, Any]
        if "gpus" in body:
            limits = (self.state.capacity.quotas, kind, body["gpus"])
        elif body.get("zone") and body.get("type") and "count" in body:
            limits = (self.state.capacity.limits, (body["zone"], body["type"], kind), body["count"])
        else:
            raise AdminError('give {"zone", "type", "kind", "count"}, {"kind", "gpus"} or {"gpus_all_regions"}')
        table, key, wanted = limits
        if (count := _count(wanted)) is None:
            table.pop(key, None)
        else:
            table[key] = count
        return self.state.capacity.as_json()

    def add_fault(self, body: Mapping[str, Any]) -> object:
        """Break something on one instance."""
        what, value = str(body.get("what")), body.get("value")
        if what not in FAULTS:
            raise AdminError(f"what is {what!r}; choose one of {', '.join(sorted(FAULTS))}")
        if (what in NUMBERED) != isinstance(value, int | float):
            wanted = "needs a number as value" if what in NUMBERED else "takes no value"
            raise AdminError(f"fault {what} {wanted}, not {value!r}")
        chosen = self._choose(body, lambda one: not self.faults.has(one.name, what), "instance without this fault")
        self.faults.add(chosen.name, what, float(value) if isinstance(value, int | float) else None)
        return {"instance": chosen.name, "what": what}

    def drop_fault(self, body: Mapping[str, Any]) -> object:
        """Mend one instance, or all."""
        self.faults.clear(body.get("instance"))
        return self.faults.as_json()

    def add_api_fault(self, body: Mapping[str, Any]) -> object:
        """Let calls fail: {"service": "compute", "operation": "instances.list", "code", "status", "times"}."""
        try:
            self.api_faults.add(api_faults.read(dict(body)))
        except ValueError as error:
            raise AdminError(str(error)) from error
        return self.api_faults.as_json()


def _count(wanted: object) -> int | None:
    """None: no limit. Raises ControlError."""
    if wanted is None or (isinstance(wanted, int) and wanted >= 0):
        return wanted
    raise AdminError(f"count is {wanted!r}; it must be a whole number from 0, or null for no limit")
