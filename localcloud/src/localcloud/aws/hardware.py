"""Runs the instances of the emulated AWS: a machine and a metadata service for each."""

import base64
from typing import Any

from moto.ec2.models import EC2Backend
from moto.iam.models import iam_backends

from gpufleet.domain.model import Cloud
from localcloud.addresses import ACCOUNT, METADATA_PORT, REGION
from localcloud.aws.groups import EmulatedAutoScaling, Member
from localcloud.aws.instances import EmulatedInstance
from localcloud.aws.metadata import InstanceFacts, MetadataServer
from localcloud.callers import Callers
from localcloud.faults import Faults
from localcloud.machines.manager import MachineManager
from localcloud.machines.spec import Order
from localcloud.machines.volumes import Volume


class LoopbackMachines:
    """Machines of the machine manager, each with a metadata service (a `localcloud.aws.state.MachineBackend`)."""

    def __init__(self, manager: MachineManager, callers: Callers, faults: Faults) -> None:
        self._manager = manager
        self._faults = faults
        self._callers = callers
        self._metadata: dict[str, MetadataServer] = {}
        self._scaling: EmulatedAutoScaling | None = None
        self._ec2: EC2Backend | None = None

    def connect(self, ec2: EC2Backend, scaling: EmulatedAutoScaling) -> None:
        """Set the backends that know instances and groups."""
        self._ec2, self._scaling = ec2, scaling

    def start(self, instance: EmulatedInstance) -> None:
        """Start the metadata service, then the machine: user data may read metadata at once. Raises OSError."""
        if instance.id not in self._metadata:
            self._metadata[instance.id] = MetadataServer(
                instance.address,
                lambda: self._facts(instance),
                self._callers.hand_out_key,
                lambda: self._faults.has(instance.id, "metadata"),
            )
        self._manager.start(_order(instance))

    def is_alive(self, instance_id: str) -> bool:
        alive = self._manager.is_alive(instance_id)
        if not alive:
            server = self._metadata.pop(instance_id, None)
            if server is not None:
                server.close()
        return alive

    def end(self, instance_id: str) -> None:
        self._manager.end(instance_id)

    def attach(self, instance_id: str, volume_id: str) -> None:
        # a Nitro instance finds a volume by its id, whatever device name the attachment has
        device = f"nvme-Amazon_Elastic_Block_Store_{volume_id.replace('-', '')}"
        self._manager.attach(instance_id, Volume(id=volume_id, device=device))

    def detach(self, instance_id: str, volume_id: str) -> None:
        self._manager.detach(instance_id, volume_id)

    def is_mounted(self, instance_id: str, volume_id: str) -> bool:
        return self._manager.is_mounted(instance_id, volume_id)

    def discard(self, volume_id: str) -> None:
        self._manager.discard(volume_id)

    def close(self) -> None:
        """Free every address."""
        for server in self._metadata.values():
            server.close()
        self._metadata.clear()

    def _facts(self, instance: EmulatedInstance) -> InstanceFacts | None:
        role, profile_arn = self._role(instance)
        return InstanceFacts(
            instance_id=instance.id,
            machine_type=instance.instance_type,
            zone=instance.placement.zone or "",
            address=instance.address,
            image_id=instance.image_id,
            hostname=instance.private_dns_name,
            lifecycle=str(instance.kind),
            target_state=self._target_state(instance.id),
            interruption=instance.notice.at if instance.notice else None,
            rebalance=instance.rebalance_at,
            role=role,
            profile_arn=profile_arn,
            tags=_shown_tags(instance),
            user_data=_user_data(instance),
            launched=instance.launch_time,
            now=instance.cloud_state.now(),
        )

    def _role(self, instance: EmulatedInstance) -> tuple[str | None, str | None]:
        if self._ec2 is None:
            return None, None
        association = self._ec2.iam_instance_profile_associations.get(instance.id)
        if association is None:
            return None, None
        profile = iam_backends[ACCOUNT]["aws"].get_instance_profile(association.iam_instance_profile.name)
        roles = profile.roles
        return (roles[0].name if roles else None), profile.arn

    def _target_state(self, instance_id: str) -> str:
        if self._scaling is None:
            return ""
        for group in self._scaling.groups():
            for member in group.members:
                if member.instance.id == instance_id:
                    return _wanted(member)
        return ""


def _order(instance: EmulatedInstance) -> Order:
    return Order(
        instance=instance.id,
        uid=instance.id,
        address=instance.address,
        zone=instance.placement.zone or "",
        region=REGION,
        machine_type=instance.instance_type,
        cloud=Cloud.AWS,
        variables={
            "AWS_ENDPOINT_URL": instance.cloud_state.places.api_url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{instance.address}:{METADATA_PORT}",
            "AWS_DEFAULT_REGION": REGION,
        },
        script=_user_data(instance),
    )


def _wanted(member: Member) -> str:
    if member.leaving:
        return "Terminated"
    return "Standby" if member.lifecycle_state == "Standby" else "InService"


def _shown_tags(instance: EmulatedInstance) -> dict[str, str]:
    """The tags, if the template allows them in the metadata; else none."""
    if instance.metadata_options.instance_metadata_tags != "enabled":
        return {}
    return instance.tag_map


def _user_data(instance: Any) -> bytes | None:
    return None if instance.user_data is None else base64.b64decode(str(instance.user_data))
