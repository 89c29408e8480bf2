"""The admin API's verbs of the emulated Google Cloud."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gpufleet.domain import tags
from localcloud.admin_api import (
    AdminError,
    CloudAdmin,
    Verb,
    count_of,
    kind_of,
    not_found,
    notice_seconds,
    selection,
    set_limit,
)
from localcloud.capacity_kind import Kind
from localcloud.gcp import groups, instances
from localcloud.gcp.machine import Machine
from localcloud.gcp.state import GoogleState

_BEFORE_END: Final = ("PROVISIONING", "STAGING", "RUNNING")
_POOL: Final = tags.label(tags.POOL)


@dataclass(slots=True, kw_only=True)
class GoogleAdmin(CloudAdmin):
    """The verbs of the emulated Google Cloud."""

    state: GoogleState

    def own_verbs(self) -> Mapping[tuple[str, str], Verb]:
        return {("POST", "maintain"): self._maintain, ("POST", "unhealthy"): self._fail_health_check}

    def overview(self) -> object:
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
        notice_s = None if body.get("notice_s") is None else notice_seconds(body["notice_s"])
        chosen = self._choose(
            body,
            lambda one: one.kind is Kind.SPOT and not one.is_preempted,
            "running spot instance without a notice",
        )
        if body.get("capacity_lost", False):
            pool = chosen.labels.get(_POOL)
            self.state.capacity.spot_lost.update(
                one.machine_type for one in self.state.machines.values() if one.labels.get(_POOL) == pool
            )
        notice = instances.notice_of(chosen) if notice_s is None else timedelta(seconds=notice_s)
        instances.preempt(self.state, chosen, notice)
        return self._shown(chosen)

    def _maintain(self, body: Mapping[str, Any]) -> object:
        """Send a maintenance event to one instance."""
        chosen = self._choose(body, lambda _: True, "running instance")
        instances.maintain(self.state, chosen)
        return self._shown(chosen)

    def _fail_health_check(self, body: Mapping[str, Any]) -> object:
        """Let one member of a group fail its health check."""
        chosen = self._choose(body, lambda one: one.group is not None, "running member of a group")
        for group in self.state.groups.values():
            for member in group.members:
                if member.name == chosen.name:
                    groups.fail_health_check(self.state, group, member)
        return self._shown(chosen)

    def instance_without_fault(self, body: Mapping[str, Any], fault: str) -> str:
        chosen = self._choose(
            body, lambda one: not self.faults.has(one.name, fault), "running instance without this fault"
        )
        return chosen.name

    def _choose(self, body: Mapping[str, Any], fits: Callable[[Machine], bool], what: str) -> Machine:
        """The oldest running instance that fits; one that is named may also be about to run."""
        wanted, pool = selection(body)
        states = _BEFORE_END if wanted is not None else ("RUNNING",)
        found = [
            machine
            for machine in self.state.machines.values()
            if machine.status in states
            and (wanted is None or machine.name == wanted)
            and (pool is None or machine.labels.get(_POOL) == pool)
            and fits(machine)
        ]
        if not found:
            raise not_found(what, wanted, pool)
        return min(found, key=lambda machine: (machine.row["creationTimestamp"], machine.name))

    def restore(self) -> object:
        self.state.capacity.restore()
        for group in self.state.groups.values():
            group.retry_at, group.failures = None, 0
        return self.state.capacity.as_json()

    def set_capacity(self, body: Mapping[str, Any]) -> object:
        """{"zone", "type", "kind", "count"}, {"kind", "gpus"} or {"gpus_all_regions"}; null removes a limit."""
        capacity = self.state.capacity
        if "gpus_all_regions" in body:
            capacity.all_regions = count_of(body["gpus_all_regions"])
            return capacity.as_json()
        kind = kind_of(body.get("kind"))
        if "gpus" in body:
            set_limit(capacity.quotas, kind, body["gpus"])
        elif body.get("zone") and body.get("type") and "count" in body:
            set_limit(capacity.limits, (body["zone"], body["type"], kind), body["count"])
        else:
            raise AdminError(
                'the body: expected {"zone", "type", "kind", "count"}, {"kind", "gpus"} or {"gpus_all_regions"},'
                f" got the keys {', '.join(sorted(body)) or 'none'}"
            )
        return capacity.as_json()
