"""EC2 instances with states: pending, running, shutting-down, terminated. Each one is a machine on loopback.

moto starts and ends instances at once and shows the network of a terminated one; EC2 does neither.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from moto.ec2.exceptions import EC2ClientError, OperationDisableApiStopNotPermitted
from moto.ec2.models import EC2Backend
from moto.ec2.models import instances as moto_instances
from moto.ec2.models.instances import Instance, StateReason

from gpufleet.domain import tags
from localcloud.aws.capacity import Use
from localcloud.aws.events import Event, announce, announce_risk
from localcloud.aws.state import AwsState
from localcloud.aws.termination import BY_ITSELF, BY_PERSON, NOT_LAUNCHED, SPOT_TAKEN, End
from localcloud.billing_log import BilledRun
from localcloud.capacity_kind import Kind

PENDING: Final = ("pending", 0)
RUNNING: Final = ("running", 16)
SHUTTING_DOWN: Final = ("shutting-down", 32)
TERMINATED: Final = ("terminated", 48)
STOPPING: Final = ("stopping", 64)
STOPPED: Final = ("stopped", 80)

_PENDING: Final = timedelta(seconds=4)
"""How long an instance is pending before its machine begins to boot. Assumed."""
_SHOWN_AFTER_END: Final = timedelta(hours=1)
"""How long DescribeInstances shows a terminated instance."""


@dataclass(slots=True, kw_only=True)
class Notice:
    """An announced interruption of a spot instance."""

    at: datetime
    """When the instance will be ended."""


class StopRefusedError(EC2ClientError):
    """The instance is protected from being stopped. moto's own message is about a refused termination."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            "OperationNotPermitted",
            f"The instance '{instance_id}' may not be stopped. Modify its 'disableApiStop' instance attribute and try"
            " again.",
        )


class EmulatedInstance(Instance):
    """An EC2 instance whose state is that of its machine."""

    cloud_state: AwsState
    group_name: str | None = None
    notice: Notice | None = None
    rebalance_at: datetime | None = None
    capacity_reservation_id: str | None = None
    spot_instance_request_id: str | None = None
    shutdown_began: datetime | None = None
    ended_at: datetime | None = None
    _why: StateReason | None = None

    def set_state(self, state: tuple[str, int]) -> None:
        """Set the state that DescribeInstances returns."""
        self._state.name, self._state.code = state

    @property
    def state_reason(self) -> StateReason | None:
        """None: no reason is stated, as for every running instance."""
        return self._why

    @state_reason.setter
    def state_reason(self, reason: StateReason) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._why = reason if reason.code else None

    @property
    def launched(self) -> datetime:
        """When it was launched, or started again; moto stores UTC without a zone."""
        return self.launch_time.replace(tzinfo=UTC)

    @property
    def kind(self) -> Kind:
        return Kind.SPOT if self.lifecycle == "spot" else Kind.ON_DEMAND

    @property
    def why(self) -> str:
        """The message of its state reason; empty if there is none."""
        return self._why.message if self._why else ""

    @property
    def use(self) -> Use:
        return Use(zone=self.placement.zone or "", machine_type=self.instance_type, kind=self.kind)

    @property
    def occupies_capacity(self) -> bool:
        return self.state in ("pending", "running", "shutting-down", "stopping")

    @property
    def tag_map(self) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in self.get_tags()}

    @property
    def private_ip_address(self) -> str | None:
        return None if self.state == "terminated" else super().private_ip_address

    @property
    def subnet_id(self) -> str | None:
        return None if self.state == "terminated" else super().subnet_id

    @property
    def vpc_id(self) -> str | None:
        return None if self.state == "terminated" else super().vpc_id

    @property
    def address(self) -> str:
        """Its private address, also after its end."""
        found = super().private_ip_address
        if found is None:
            raise ValueError(f"instance {self.id} has no private address")
        return found

    @property
    def network_interfaces(self) -> list[Any]:
        return [] if self.state == "terminated" else super().network_interfaces

    def terminate(self) -> Any:
        """Begin to shut down; `advance` completes this when the machine has ended. Raises EC2ClientError."""
        if self.disable_api_stop:
            raise OperationDisableApiStopNotPermitted(self.id)
        return self.begin_end(BY_PERSON)

    def begin_end(self, end: End) -> Any:
        """Begin to shut down for this reason. Returns the previous state."""
        before = moto_instances.InstanceState(self._state.name, self._state.code)
        if self.state in ("shutting-down", "terminated"):
            return before
        self.set_state(SHUTTING_DOWN)
        now = self.cloud_state.now()
        self.shutdown_began = now
        self._give_reason(end, now)
        self.cloud_state.billing_log.close(self.id, now, end.code or "unstated")
        self.cloud_state.hardware.end(self.id)
        announce(Event.STATE, self.id, {"state": "shutting-down"}, now)
        return before

    def _give_reason(self, end: End, now: datetime) -> None:
        self.state_reason, self._reason = end.state_reason, end.transition_reason(now)

    def give_notice(self, at: datetime, now: datetime) -> None:
        """Announce the end of a spot instance: in its metadata and as an event."""
        self.notice = Notice(at=at)
        announce_risk(Event.INTERRUPTION, self.id, self.placement.zone or "", {"instance-action": "terminate"}, now)

    def advise_rebalance(self, now: datetime) -> None:
        """Send a rebalance recommendation, once."""
        if self.rebalance_at is None:
            self.rebalance_at = now
            announce_risk(Event.REBALANCE, self.id, self.placement.zone or "", {}, now)

    def stop(self) -> Any:
        before = moto_instances.InstanceState(self._state.name, self._state.code)
        if self.kind is Kind.SPOT:
            raise EC2ClientError(
                "UnsupportedOperation",
                f"You can't stop the Spot Instance '{self.id}' because it is associated with a one-time Spot Instance"
                " request. You can only stop Spot Instances associated with persistent Spot Instance requests.",
            )
        if self.state in ("pending", "running"):
            now = self.cloud_state.now()
            self.set_state(STOPPING)
            self._give_reason(BY_PERSON, now)
            self.cloud_state.billing_log.close(self.id, now, "stopped")
            self.cloud_state.hardware.end(self.id)
        return before

    def start(self) -> Any:
        before = moto_instances.InstanceState(self._state.name, self._state.code)
        if self.state == "stopped":
            self.set_state(PENDING)
            now = self.cloud_state.now()
            # the reason of its stop stays
            self.launch_time, self.notice = now, None
            self.cloud_state.billing_log.open(self.billed_run(now))
        return before

    def advance(self, now: datetime) -> None:
        """Update the state from what the machine did since the last round."""
        if self.state in ("pending", "running") and self.notice is not None and now >= self.notice.at:
            self.begin_end(SPOT_TAKEN)
        elif self.state == "pending":
            self._boot(now)
        elif self.state == "running":
            self._look(now)
        elif self.state == "shutting-down" and not self.cloud_state.hardware.is_alive(self.id):
            self._finish(now)
        elif self.state == "stopping" and not self.cloud_state.hardware.is_alive(self.id):
            self.set_state(STOPPED)

    def _boot(self, now: datetime) -> None:
        if self.cloud_state.hardware.is_alive(self.id):
            self.set_state(RUNNING)
            announce(Event.STATE, self.id, {"state": "running"}, now)
        elif now >= self.launched + self.cloud_state.time_scale.shorten(_PENDING):
            try:
                self.cloud_state.hardware.start(self)
            except OSError as error:
                print(f"{self.id} has no machine: {error}", file=sys.stderr, flush=True)
                self.begin_end(NOT_LAUNCHED)

    def _look(self, now: datetime) -> None:
        if self.cloud_state.hardware.is_alive(self.id):
            return
        # the guest powered itself off
        if self.instance_initiated_shutdown_behavior == "terminate":
            self.begin_end(BY_ITSELF)
        else:
            self._give_reason(BY_ITSELF, now)
            self.cloud_state.billing_log.close(self.id, now, "stopped")
            self.set_state(STOPPED)

    def _finish(self, now: datetime) -> None:
        reason, transition = self._why, self._reason
        # the address stays taken until EC2 forgets the instance: nothing new may be mistaken for it
        for nic in self.nics.values():
            nic.delete_on_termination = False
            self.ec2_backend.enis.pop(nic.id, None)
        # detach all volumes; moto then deletes those with DeleteOnTermination
        for disk in self.block_device_mapping.values():
            self.cloud_state.hardware.detach(self.id, disk.volume_id)
        super().terminate()
        self.set_state(TERMINATED)
        self._why, self._reason = reason, transition
        self.ended_at = now
        announce(Event.STATE, self.id, {"state": "terminated"}, now)

    def forget_tags(self) -> None:
        """Remove all tags: EC2 shows none for some ended instances."""
        self.ec2_backend.delete_tag_keys([self.id], [tag["key"] for tag in self.get_tags()])

    def release_address(self) -> None:
        """Let the subnet give the address to a new instance."""
        self.ec2_backend.get_subnet(self._subnet_id).del_subnet_ip(self.address)
        self._private_ips = set()

    def billed_run(self, now: datetime) -> BilledRun:
        """The entry that opens this run in the billing log."""
        return BilledRun(
            instance=self.id,
            machine_type=self.instance_type,
            zone=self.placement.zone or "",
            capacity_type="reserved" if self.capacity_reservation_id else str(self.kind),
            group=self.group_name,
            pool=self.tag_map.get(tags.POOL),
            reservation=self.capacity_reservation_id,
            launched=now,
        )


def shown_instances(backend: EC2Backend) -> Iterator[EmulatedInstance]:
    """Every instance that EC2 still shows."""
    for reservation in list(backend.reservations.values()):
        for instance in reservation.instances:
            if isinstance(instance, EmulatedInstance):
                yield instance


def advance_all(backend: EC2Backend, now: datetime) -> None:
    """One step for every instance; forgets those that ended long ago."""
    for instance in list(shown_instances(backend)):
        instance.advance(now)
    for key, reservation in list(backend.reservations.items()):
        members: list[Any] = reservation.instances
        if all(_ended_long_ago(instance, now) for instance in members):
            for instance in members:
                instance.release_address()
            del backend.reservations[key]


def _ended_long_ago(instance: Any, now: datetime) -> bool:
    ended = instance.ended_at
    return ended is not None and now - ended > instance.cloud_state.time_scale.shorten(_SHOWN_AFTER_END)
