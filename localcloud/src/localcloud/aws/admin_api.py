"""The admin API's verbs of the emulated AWS."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from moto.ec2.models import EC2Backend

from gpufleet.domain import tags
from localcloud.admin_api import (
    AdminError,
    CloudAdmin,
    Verb,
    kind_of,
    not_found,
    notice_seconds,
    selection,
    set_limit,
)
from localcloud.aws import capacity_blocks, refusals, reservations, termination
from localcloud.aws.groups import EmulatedAutoScaling, EmulatedGroup
from localcloud.aws.instances import EmulatedInstance, shown_instances
from localcloud.aws.state import AwsState
from localcloud.capacity_kind import Kind

_NOTICE: Final = timedelta(minutes=2)
_BEFORE_END: Final = frozenset({"pending", "running"})
_SPACES: Final = re.compile(r"\s+")


@dataclass(slots=True, kw_only=True)
class AwsAdmin(CloudAdmin):
    """The verbs of the emulated AWS."""

    cloud_state: AwsState
    ec2: EC2Backend
    scaling: EmulatedAutoScaling

    def own_verbs(self) -> Mapping[tuple[str, str], Verb]:
        return {
            ("POST", "block"): self._move_block,
            ("POST", "reservation"): self._use_reservation,
            ("POST", "end"): self._end,
            ("POST", "suspend"): self._suspend,
        }

    def overview(self) -> object:
        return {
            "now": self.cloud_state.now().isoformat(),
            "instances": [self._shown(instance) for instance in shown_instances(self.ec2)],
            "groups": [_shown_group(group) for group in self.scaling.groups()],
            "capacity": self.cloud_state.capacity.as_json(),
            "faults": self.faults.as_json(),
        }

    def preempt(self, body: Mapping[str, Any]) -> object:
        # the notice of the request is used as it is; the default is divided by the time scale
        default_s = self.cloud_state.time_scale.shorten(_NOTICE).total_seconds()
        notice_s = notice_seconds(body.get("notice_s", default_s))
        chosen = self._choose(
            body,
            lambda one: one.kind is Kind.SPOT and one.notice is None,
            "running spot instance without a notice",
            pending_by_id=True,
        )
        if body.get("capacity_lost", False):
            self.cloud_state.capacity.remove_spot(self._types_of(chosen))
        now = self.cloud_state.now()
        if body.get("rebalance", True):
            chosen.advise_rebalance(now)
        chosen.give_notice(now + timedelta(seconds=notice_s), now)
        return self._shown(chosen)

    def _move_block(self, body: Mapping[str, Any]) -> object:
        """Change the term of a purchased Capacity Block, so that a test need not wait for days."""
        try:
            return capacity_blocks.move(self.ec2, str(body.get("reservation")), body.get("starts"), body.get("ends"))
        except ValueError as error:
            raise AdminError(str(error)) from error

    def _use_reservation(self, body: Mapping[str, Any]) -> object:
        """Let another account, with which the reservation is shared, run `instances` instances in it."""
        found = reservations.of(self.ec2).by_id.get(str(body.get("reservation")))
        account, count = str(body.get("account")), body.get("instances")
        if found is None:
            raise AdminError(f"no reservation {body.get('reservation')}", HTTPStatus.CONFLICT)
        if not re.fullmatch(r"[0-9]{12}", account):
            raise AdminError(f"account: expected twelve digits, got {account!r}")
        most = found.total_instance_count - found.used_by_owner
        if not isinstance(count, int) or not 0 <= count <= most:
            raise AdminError(f"instances: expected a whole number from 0 to {most}, got {count!r}")
        found.used_by_others[account] = count
        return {"available": found.total_instance_count - found.used}

    def _end(self, body: Mapping[str, Any]) -> object:
        """End one instance with the reason `how`. Unlike an API call, this is not counted in `calls`."""
        how = str(body.get("how"))
        if how not in termination.CHOSEN:
            raise AdminError(f"how: expected one of {', '.join(sorted(termination.CHOSEN))}, got {how!r}")
        wanted = body.get("instance")
        found = [one for one in shown_instances(self.ec2) if one.id == wanted and one.state in _BEFORE_END]
        if not found:
            raise AdminError(f"no pending or running instance {wanted}", HTTPStatus.CONFLICT)
        found[0].begin_end(termination.CHOSEN[how])
        if body.get("tags_removed", False):
            found[0].forget_tags()
        return self._shown(found[0])

    def _suspend(self, body: Mapping[str, Any]) -> object:
        """Suspend the launches of a group, as Auto Scaling does after a day of failures."""
        name = body.get("group")
        found = [group for group in self.scaling.groups() if group.name == name]
        if not found:
            raise AdminError(f"no group {name}", HTTPStatus.CONFLICT)
        found[0].suspend_launches()
        return _shown_group(found[0])

    def instance_without_fault(self, body: Mapping[str, Any], fault: str) -> str:
        chosen = self._choose(
            body, lambda one: not self.faults.has(one.id, fault), "running instance without this fault"
        )
        return str(chosen.id)

    def _choose(
        self,
        body: Mapping[str, Any],
        fits: Callable[[EmulatedInstance], bool],
        what: str,
        *,
        pending_by_id: bool = False,
    ) -> EmulatedInstance:
        """The oldest running instance that fits; `pending_by_id`: one named by its id may be pending, too."""
        wanted, pool = selection(body)
        states = _BEFORE_END if pending_by_id and wanted is not None else {"running"}
        found = [
            instance
            for instance in shown_instances(self.ec2)
            if instance.state in states
            and (wanted is None or instance.id == wanted)
            and (pool is None or instance.tag_map.get(tags.POOL) == pool)
            and fits(instance)
        ]
        if not found:
            raise not_found(what, wanted, pool)
        return min(found, key=lambda instance: (instance.launch_time, instance.id))

    def _types_of(self, instance: EmulatedInstance) -> set[str]:
        """Every machine type that groups of the instance's pool may use."""
        pool = instance.tag_map.get(tags.POOL)
        found = {instance.instance_type}
        for group in self.scaling.groups():
            if group.get_propagated_tags().get(tags.POOL) == pool:
                found.update(group.recipe().machine_types)
        return found

    def restore(self) -> object:
        self.cloud_state.capacity.restore()
        for group in self.scaling.groups():
            group.acts_at = None
        return self.cloud_state.capacity.as_json()

    def set_capacity(self, body: Mapping[str, Any]) -> object:
        """{"zone", "type", "kind", "count"}, {"kind", "vcpus"} or {"refuse"}; null removes a limit."""
        if "refuse" in body:
            return self._refuse(body)
        capacity, kind = self.cloud_state.capacity, kind_of(body.get("kind"))
        if "vcpus" in body:
            set_limit(capacity.vcpu_limits, kind, body["vcpus"])
        elif body.get("zone") and body.get("type") and "count" in body:
            set_limit(capacity.limits, (body["zone"], body["type"], kind), body["count"])
        else:
            raise AdminError(
                'the body: expected {"zone", "type", "kind", "count"}, {"kind", "vcpus"} or {"refuse"},'
                f" got the keys {', '.join(sorted(body)) or 'none'}"
            )
        return capacity.as_json()

    def _refuse(self, body: Mapping[str, Any]) -> object:
        """Refuse every launch of this zone, type and kind; a key that is missing stands for any value."""
        kind = kind_of(body["kind"]) if body.get("kind") is not None else None
        where = (body.get("zone"), body.get("type"), kind)
        name = body["refuse"]
        if name is None:
            self.cloud_state.capacity.chosen.pop(where, None)
        elif name in refusals.CHOSEN:
            self.cloud_state.capacity.chosen[where] = name
        else:
            raise AdminError(f"refuse: expected null or one of {', '.join(sorted(refusals.CHOSEN))}, got {name!r}")
        return self.cloud_state.capacity.as_json()

    def _shown(self, instance: EmulatedInstance) -> dict[str, object]:
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
            "faults": self.faults.of(instance.id),
            "tags": instance.tag_map,
        }


def _shown_group(group: EmulatedGroup) -> dict[str, object]:
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
