"""The launch template of GPU instances. Its security settings are fixed and cannot be disabled."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_aws import ec2

from components.aws import fabric
from gpufleet.settings.environment import Reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The root disk (gp3). Models are stored on local NVMe, not on this disk."""

    gib: int = 100
    iops: int = 3000
    mib_per_second: int = 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The settings that all instances of a pool share."""

    image: pulumi.Input[str]
    """AMI id, or `resolve:ssm:<parameter>:<version>`."""
    instance_profile: pulumi.Input[str]
    """ARN of the instance profile."""
    security_group: pulumi.Input[str]
    disk: Disk = Disk()


def launch_template(  # noqa: PLR0913
    name: str,
    template: Template,
    *,
    user_data: str,
    tags: Mapping[str, str],
    opts: pulumi.ResourceOptions,
    reserved: Reserved | None = None,
    reservation: pulumi.Input[str] | None = None,
    machine_types: tuple[str, ...] = (),
    fabric_group: pulumi.Input[str] | None = None,
) -> ec2.LaunchTemplate:
    """Declare a launch template. With `reserved` and the id of its `reservation`, instances start only in that
    prepaid capacity.

    With a `fabric_group`, instances of `machine_types` also get all their EFA interfaces, protected by that security
    group.
    """
    return ec2.LaunchTemplate(
        name,
        image_id=template.image,
        instance_type=reserved.machine_type if reserved else None,
        user_data=base64.b64encode(user_data.encode()).decode(),
        update_default_version=True,
        ebs_optimized="true",
        iam_instance_profile=ec2.LaunchTemplateIamInstanceProfileArgs(arn=template.instance_profile),
        # a pool terminates instances that it no longer needs; a stopped instance would lose its cache and still incur
        # disk costs
        instance_initiated_shutdown_behavior="terminate",
        metadata_options=ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled",
            http_tokens="required",
            # the agent runs on the host itself; a response that would cross into a container's network is dropped
            http_put_response_hop_limit=1,
            instance_metadata_tags="disabled",
        ),
        block_device_mappings=[_root_disk(template.disk)],
        network_interfaces=_interfaces(template, machine_types, fabric_group),
        capacity_reservation_specification=_targeted(reservation),
        instance_market_options=(
            ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")
            if reserved and reserved.block
            else None
        ),
        tag_specifications=[
            ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=dict(tags))
            for kind in ("instance", "volume")
        ],
        tags=dict(tags),
        opts=opts,
    )


def _interfaces(
    template: Template, machine_types: tuple[str, ...], fabric_group: pulumi.Input[str] | None
) -> list[ec2.LaunchTemplateNetworkInterfaceArgs]:
    if fabric_group is not None:
        count = fabric.interface_count(machine_types)
        return fabric.interfaces(count, [template.security_group, fabric_group])
    return [
        ec2.LaunchTemplateNetworkInterfaceArgs(
            device_index=0,
            associate_public_ip_address="false",
            delete_on_termination="true",
            security_groups=[template.security_group],
        )
    ]


def _root_disk(disk: Disk) -> ec2.LaunchTemplateBlockDeviceMappingArgs:
    return ec2.LaunchTemplateBlockDeviceMappingArgs(
        device_name="/dev/sda1",
        ebs=ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
            volume_type="gp3",
            volume_size=disk.gib,
            iops=disk.iops,
            throughput=disk.mib_per_second,
            encrypted="true",
            delete_on_termination="true",
        ),
    )


def _targeted(
    reservation: pulumi.Input[str] | None,
) -> ec2.LaunchTemplateCapacityReservationSpecificationArgs | None:
    if reservation is None:
        return None
    return ec2.LaunchTemplateCapacityReservationSpecificationArgs(
        capacity_reservation_target=ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
            capacity_reservation_id=reservation
        )
    )
