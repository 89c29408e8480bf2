"""EBS volumes whose attachment has an effect: the machine finds a disk with the data of the last machine.

moto only records attachments, and it allows those in another zone or of an attached volume.
"""

from collections.abc import Iterator
from typing import Any, Final

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses._base_response import EC2BaseResponse

from localcloud.aws.instances import EmulatedInstance
from localcloud.aws.state import AwsState

_ATTACHABLE: Final = ("running", "stopped")
_BUSY: Final = "busy"
"""EC2's status of an attachment that is to end while the machine has the volume mounted."""


class VolumeCalls(EC2BaseResponse):
    """AttachVolume, DetachVolume and DeleteVolume."""

    def attach_volume(self) -> ActionResult:
        backend = self.ec2_backend
        volume_id, instance_id, device = (self._get_param(name) for name in ("VolumeId", "InstanceId", "Device"))
        _check(backend.get_volume(volume_id), backend.get_instance(instance_id), device)
        self.error_on_dryrun()
        EmulatedInstance.cloud_state.hardware.attach(instance_id, volume_id)
        return _attachment_result(backend.attach_volume(volume_id, instance_id, device), "attaching")

    def detach_volume(self) -> ActionResult:
        backend, cloud_state = self.ec2_backend, EmulatedInstance.cloud_state
        volume = backend.get_volume(self._get_param("VolumeId"))
        attachment = volume.attachment
        instance_id = self._get_param("InstanceId") or (attachment and attachment.instance.id)
        self.error_on_dryrun()
        if (
            attachment is not None
            and attachment.instance.id == instance_id
            and cloud_state.hardware.is_mounted(instance_id, volume.id)
            and not self._get_bool_param("Force")
        ):
            attachment.status = _BUSY
            return _attachment_result(attachment, _BUSY)
        ended = backend.detach_volume(volume.id, instance_id, self._get_param("Device"))
        cloud_state.hardware.detach(instance_id, volume.id)
        return _attachment_result(ended, "detaching")

    def delete_volume(self) -> ActionResult:
        volume_id = self._get_param("VolumeId")
        self.error_on_dryrun()
        self.ec2_backend.delete_volume(volume_id)
        EmulatedInstance.cloud_state.hardware.discard(volume_id)
        return EmptyResult()


def _check(volume: Any, instance: Any, device: str) -> None:
    """Raises EC2ClientError with EC2's message."""
    if volume.attachment is not None:
        raise EC2ClientError("VolumeInUse", f"{volume.id} is already attached to an instance")
    if instance.state not in _ATTACHABLE:
        raise EC2ClientError("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
    if volume.availability_zone != instance.placement.zone:
        message = f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'"
        raise EC2ClientError("InvalidVolume.ZoneMismatch", message)
    if device in instance.block_device_mapping:
        message = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
        raise EC2ClientError("InvalidParameterValue", message)


def _attachment_result(attachment: Any, state: str) -> ActionResult:
    return ActionResult(
        {
            "VolumeId": attachment.volume.id,
            "InstanceId": attachment.instance.id,
            "Device": attachment.device,
            "State": state,
            "AttachTime": attachment.attach_time,
        }
    )


def advance_volumes(backend: EC2Backend, cloud_state: AwsState) -> None:
    """Detach the busy volumes that are no longer mounted."""
    for attachment in list(_busy(backend)):
        if not cloud_state.hardware.is_mounted(attachment.instance.id, attachment.volume.id):
            backend.detach_volume(attachment.volume.id, attachment.instance.id, attachment.device)
            cloud_state.hardware.detach(attachment.instance.id, attachment.volume.id)


def _busy(backend: EC2Backend) -> Iterator[Any]:
    for volume in backend.volumes.values():
        if volume.attachment is not None and volume.attachment.status == _BUSY:
            yield volume.attachment
