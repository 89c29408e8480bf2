"""The control API of the embedded cloud, `/_localcloud/`: what people and tests do to it that no customer could."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from moto.ec2.models import EC2Backend

from gpufleet.domain import tags
from localcloud.aws import api_faults, capacity_blocks, refusals, reservations, termination
from localcloud.aws.api_faults import ApiFaults
from localcloud.aws.calls import Calls
from localcloud.aws.capacity import Kind
from localcloud.aws.groups import LivingAutoScaling, LivingGroup
from localcloud.aws.instances import LivingInstance, living
from localcloud.aws.state import AwsState
from localcloud.documents import is_document
from localcloud.faults import FAULTS, NUMBERED, Faults

_PREFIX: Final = "/_localcloud"
_NOTICE: Final = timedelta(minutes=2)
_AT_WORK: Final = frozenset({"pending", "running"})


class AdminError(Exception):
    """A request that cannot be done; the message says what to change."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, kw_only=True)
class AdminApi:
    """The admin API over one emulated state."""

    cloud_state: AwsState
    ec2: EC2Backend
    scaling: LivingAutoScaling
    calls: Calls
    faults: Faults
    api_faults: ApiFaults

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """WSGI: JSON in, JSON out."""
        status = HTTPStatus.OK
        try:
            answer = self._route(environ)
        except AdminError as error:
            answer, status = {"error": str(error)}, error.status
        body = json.dumps(answer, indent=1, default=str).encode() + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    def _route(self, environ: dict[str, Any]) -> object:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix(_PREFIX)
        routes: dict[tuple[str, str], Callable[[Mapping[str, Any]], object]] = {
            ("GET", "/health"): lambda _: {"status": "ok"},
            ("GET", "/state"): lambda _: self.overview(),
            ("GET", "/calls"): lambda _: self.calls.as_json(),
            ("GET", "/books"): lambda _: self.cloud_state.books.as_json(),
            ("GET", "/fault"): lambda _: self.faults.as_json(),
            ("POST", "/preempt"): self.preempt,
            ("POST", "/restore"): lambda _: self.restore(),
            ("POST", "/capacity"): self.set_capacity,
            ("POST", "/block"): self.move_block,
            ("POST", "/reservation"): self.use_reservation,
            ("POST", "/end"): self.end,
            ("POST", "/suspend"): self.suspend,
            ("POST", "/fault"): self.add_fault,
            ("DELETE", "/fault"): self.drop_fault,
            ("GET", "/api-fault"): lambda _: self.api_faults.as_json(),
            ("POST", "/api-fault"): self.add_api_fault,
            ("DELETE", "/api-fault"): lambda _: self.api_faults.clear(),
        }
        found = routes.get((method, path))
        if found is None:
            known = ", ".join(sorted(f"{m} {_PREFIX}{p}" for m, p in routes))
            raise AdminError(f"no {method} {_PREFIX}{path}; there is {known}", HTTPStatus.NOT_FOUND)
        body = _read_json(environ)
        with self.cloud_state.lock:
            return found(body)

    def overview(self) -> object:
        """Groups, instances and capacity, for people and for `gpufleet local status`."""
        return {
            "now": self.cloud_state.now().isoformat(),
            "instances": [_shown(instance, self.faults) for instance in living(self.ec2)],
            "groups": [_shown_group(group) for group in self.scaling.groups()],
            "capacity": self.cloud_state.capacity.as_json(),
            "faults": self.faults.as_json(),
        }

    def preempt(self, body: Mapping[str, Any]) -> object:
        """Announce the end of one spot instance of a pool (the oldest, unless one is named)."""
        # given: as it is; else that of the real cloud, divided like every waiting time
        real_s = self.cloud_state.time_scale.shorten(_NOTICE).total_seconds()
        notice_s = float(body.get("notice_s", real_s))
        if not 0 <= notice_s <= 600:
            raise AdminError(f"notice_s is {notice_s:g}; a notice is 0 to 600 seconds long")
        chosen = self._choose_spot(body)
        if body.get("capacity_gone", False):
            self.cloud_state.capacity.take_away(self._types_of(chosen))
        now = self.cloud_state.now()
        if body.get("rebalance", True):
            chosen.advise_rebalance(now)
        chosen.give_notice(now + timedelta(seconds=notice_s), now)
        return _shown(chosen, self.faults)

    def move_block(self, body: Mapping[str, Any]) -> object:
        """Give a Capacity Block that was bought another term: nobody waits for days to see it begin or end."""
        try:
            return capacity_blocks.move(self.ec2, str(body.get("reservation")), body.get("starts"), body.get("ends"))
        except ValueError as error:
            raise AdminError(str(error)) from error

    def use_reservation(self, body: Mapping[str, Any]) -> object:
        """Let another account, with which a reservation is shared, run so many instances in it."""
        found = reservations.of(self.ec2).by_id.get(str(body.get("reservation")))
        account, count = str(body.get("account")), body.get("instances")
        if found is None:
            raise AdminError(f"no reservation {body.get('reservation')}", HTTPStatus.CONFLICT)
        if not re.fullmatch(r"[0-9]{12}", account):
            raise AdminError(f"account is {account!r}; an account is twelve digits")
        if not isinstance(count, int) or not 0 <= count <= found.total_instance_count - found.used_by_owner:
            raise AdminError(f"instances is {count}; the reservation has {found.total_instance_count}")
        found.used_by_others[account] = count
        return {"available": found.total_instance_count - found.used}

    def end(self, body: Mapping[str, Any]) -> object:
        """End one instance, as `how` says, without a call to an API that could be seen in `calls`."""
        how = str(body.get("how"))
        if how not in termination.CHOSEN:
            raise AdminError(f"how is {how!r}; choose one of {', '.join(sorted(termination.CHOSEN))}")
        wanted = body.get("instance")
        found = [one for one in living(self.ec2) if one.id == wanted and one.state in _AT_WORK]
        if not found:
            raise AdminError(f"no pending or running instance {wanted}", HTTPStatus.CONFLICT)
        found[0].begin_end(termination.CHOSEN[how])
        if body.get("tags_gone", False):
            found[0].forget_tags()
        return _shown(found[0], self.faults)

    def suspend(self, body: Mapping[str, Any]) -> object:
        """Suspend the launches of a group as Auto Scaling does after a day of failures."""
        name = body.get("group")
        found = [group for group in self.scaling.groups() if group.name == name]
        if not found:
            raise AdminError(f"no group {name}", HTTPStatus.CONFLICT)
        found[0].suspend_launches()
        return _shown_group(found[0])

    def _choose_spot(self, body: Mapping[str, Any]) -> LivingInstance:
        wanted, pool = body.get("instance"), body.get("pool")
        found = [
            instance
            for instance in living(self.ec2)
            if (instance.state == "running" or (instance.state == "pending" and instance.id == wanted))
            and instance.kind is Kind.SPOT
            and instance.notice is None
            and (wanted is None or instance.id == wanted)
            and (pool is None or instance.tag_map.get(tags.POOL) == pool)
        ]
        if wanted is None and pool is None:
            raise AdminError('name who is to be preempted: {"pool": NAME} or {"instance": ID}')
        if not found:
            raise AdminError(
                f"no running spot instance without a notice in {_named(wanted, pool)}; see GET {_PREFIX}/state",
                HTTPStatus.CONFLICT,
            )
        return min(found, key=lambda instance: (instance.launch_time, instance.id))

    def _types_of(self, instance: LivingInstance) -> set[str]:
        """Every machine type that groups of the instance's pool may use."""
        pool = instance.tag_map.get(tags.POOL)
        found = {instance.instance_type}
        for group in self.scaling.groups():
            if group.get_propagated_tags().get(tags.POOL) == pool:
                found.update(group.recipe().machine_types)
        return found

    def restore(self) -> object:
        """All capacity is there again; groups try at once."""
        self.cloud_state.capacity.restore()
        for group in self.scaling.groups():
            group.acts_at = None
        return self.cloud_state.capacity.as_json()

    def set_capacity(self, body: Mapping[str, Any]) -> object:
        """{"zone", "type", "kind", "count"}, {"kind", "vcpus"} or {"refuse"}; null takes one back."""
        if "refuse" in body:
            return self._refuse(body)
        kind = _kind(body.get("kind"))
        limits: tuple[dict[Any, int], Any, Any]
        if "vcpus" in body:
            limits = (self.cloud_state.capacity.vcpu_limits, kind, body["vcpus"])
        elif body.get("zone") and body.get("type") and "count" in body:
            limits = (self.cloud_state.capacity.limits, (body["zone"], body["type"], kind), body["count"])
        else:
            raise AdminError('give {"zone", "type", "kind", "count"}, {"kind", "vcpus"} or {"refuse"}')
        table, key, count = limits
        if count is None:
            table.pop(key, None)
        elif isinstance(count, int) and count >= 0:
            table[key] = count
        else:
            raise AdminError(f"count is {count!r}; it must be a whole number from 0, or null for no limit")
        return self.cloud_state.capacity.as_json()

    def _refuse(self, body: Mapping[str, Any]) -> object:
        """A refusal for every launch of this zone, type and kind; what is not given is any."""
        kind = _kind(body["kind"]) if body.get("kind") is not None else None
        where = (body.get("zone"), body.get("type"), kind)
        name = body["refuse"]
        if name is None:
            self.cloud_state.capacity.chosen.pop(where, None)
        elif name in refusals.CHOSEN:
            self.cloud_state.capacity.chosen[where] = name
        else:
            raise AdminError(f"refuse is {name!r}; choose one of {', '.join(sorted(refusals.CHOSEN))}, or null")
        return self.cloud_state.capacity.as_json()

    def add_fault(self, body: Mapping[str, Any]) -> object:
        """Break something on one instance."""
        what = body.get("what")
        if what not in FAULTS:
            raise AdminError(f"what is {what!r}; choose one of {', '.join(sorted(FAULTS))}")
        value = _fault_value(str(what), body.get("value"))
        wanted, pool = body.get("instance"), body.get("pool")
        if wanted is None and pool is None:
            raise AdminError('name where: {"pool": NAME} or {"instance": ID}')
        found = [
            instance
            for instance in living(self.ec2)
            if instance.state == "running"
            and (wanted is None or instance.id == wanted)
            and (pool is None or instance.tag_map.get(tags.POOL) == pool)
            and not self.faults.has(instance.id, what)
        ]
        if not found:
            raise AdminError(
                f"no running instance without this fault in {_named(wanted, pool)}; see GET {_PREFIX}/state",
                HTTPStatus.CONFLICT,
            )
        chosen = min(found, key=lambda instance: (instance.launch_time, instance.id))
        self.faults.add(chosen.id, str(what), value)
        return {"instance": chosen.id, "what": what}

    def add_api_fault(self, body: Mapping[str, Any]) -> object:
        """Let calls of an AWS API fail: {"service", "operation", "code", "status", "times", "skip", "message"}."""
        try:
            self.api_faults.add(api_faults.read(dict(body)))
        except ValueError as error:
            raise AdminError(str(error)) from error
        return self.api_faults.as_json()

    def drop_fault(self, body: Mapping[str, Any]) -> object:
        """Mend one instance, or all."""
        self.faults.clear(body.get("instance"))
        return self.faults.as_json()


def _read_json(environ: dict[str, Any]) -> Mapping[str, Any]:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not length:
        return {}
    try:
        found = json.loads(environ["wsgi.input"].read(length))
    except ValueError as error:
        raise AdminError(f"the body is not JSON: {error}") from error
    if not is_document(found):
        raise AdminError("the body must be a JSON object")
    return found


def _fault_value(what: str, value: object) -> float | None:
    if (what in NUMBERED) != isinstance(value, int | float):
        wanted = "needs a number as value" if what in NUMBERED else "takes no value"
        raise AdminError(f"fault {what} {wanted}, not {value!r}")
    return float(value) if isinstance(value, int | float) else None


def _kind(value: object) -> Kind:
    try:
        return Kind(str(value))
    except ValueError as error:
        raise AdminError(f"kind is {value!r}; it must be spot or on-demand") from error


def _named(instance: object, pool: object) -> str:
    return f"instance {instance}" if instance is not None else f"pool {pool}"


def _shown(instance: LivingInstance, faults: Faults) -> dict[str, object]:
    return {
        "id": instance.id,
        "state": instance.state,
        "state_reason": instance.why,
        "type": instance.instance_type,
        "zone": instance.placement.zone,
        "kind": "reserved" if instance.capacity_reservation_id else str(instance.kind),
        "address": instance.private_ip_address,
        "group": instance.group_name,
        "pool": instance.tag_map.get(tags.POOL),
        "launched": instance.launch_time.isoformat(),
        "notice": instance.notice.at.isoformat() if instance.notice else None,
        "faults": faults.of(instance.id),
        "tags": instance.tag_map,
    }


_SPACES: Final = re.compile(r"\s+")


def _shown_group(group: LivingGroup) -> dict[str, object]:
    low, high = group.limits
    last = next((activity for activity in group.activities if activity.status_code == "Failed"), None)
    return {
        "name": group.name,
        "pool": group.get_propagated_tags().get(tags.POOL),
        "capacity_type": group.get_propagated_tags().get(tags.CAPACITY_TYPE),
        "desired": group.desired_capacity,
        "min": low,
        "max": high,
        "members": {member.instance.id: member.lifecycle_state for member in group.members},
        "status": group.status,
        "suspended": group.suspended_processes,
        "last_failure": _SPACES.sub(" ", last.status_message) if last and last.status_message else None,
    }
