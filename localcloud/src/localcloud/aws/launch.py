"""Launches one instance for a group: checks reservation, capacity and quota, then creates it with moto."""

import json
from collections.abc import Mapping
from typing import Any, Final

from moto.core.types import Base64EncodedString
from moto.ec2.models import EC2Backend

from localcloud.aws import placement_groups
from localcloud.aws.capacity import Use
from localcloud.aws.groups import EmulatedGroup, Member, Recipe
from localcloud.aws.instances import EmulatedInstance, shown_instances
from localcloud.aws.refusals import Refusal, Shortage
from localcloud.aws.reservations import claim, wants_block
from localcloud.aws.state import AwsState
from localcloud.capacity_kind import Kind
from localcloud.documents import inner, items

_PREFIX: Final = {
    Kind.SPOT: "Could not launch Spot Instances.",
    Kind.ON_DEMAND: "Could not launch On-Demand Instances.",
}


def launch_one(cloud_state: AwsState, ec2: EC2Backend, group: EmulatedGroup, cause: str) -> bool:
    """Try zones (emptiest first) and machine types (in their order) until one instance starts.

    Records an activity for the success, or one failed activity per zone. Returns whether an instance started.
    """
    recipe = group.recipe()
    kind = group.next_kind(recipe)
    now = cloud_state.now()
    for subnet in group.subnets():
        zone = subnet.availability_zone
        details = json.dumps({"Subnet ID": subnet.id, "Availability Zone": zone})
        refusals = list[Refusal]()
        for machine_type in recipe.machine_types:
            use = Use(zone=zone, machine_type=machine_type, kind=kind)
            refusal = placement_groups.refusal(ec2, recipe.data, group.placement_group, machine_type)
            claimed = refusal or claim(cloud_state, ec2, recipe.data, use)
            refusal = claimed if isinstance(claimed, Refusal) else _refusal(cloud_state, ec2, use, claimed)
            if refusal is not None:
                refusals.append(refusal)
                continue
            reservation = claimed if isinstance(claimed, str) else None
            try:
                instance = _run(cloud_state, ec2, group, recipe, use, subnet.id, reservation)
            except StopIteration:
                # moto raises this when a subnet has no free address
                refusals.append(_no_address(subnet.id))
                continue
            member = Member(instance, group, recipe)
            group.instance_states.append(member)
            member.launch = group.record(f"Launching a new EC2 instance: {instance.id}", cause, now, details)
            member.launch.advance("PreInService", 30)
            cloud_state.billing_log.open(instance.billed_run(now))
            return True
        _record_failure(group, refusals[0], kind, cause, details, cloud_state)
    return False


def _no_address(subnet_id: str) -> Refusal:
    message = (
        f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of instances."
    )
    return Refusal(code=Shortage.ADDRESSES, message=message)


def _refusal(cloud_state: AwsState, ec2: EC2Backend, use: Use, reservation: str | None) -> Refusal | None:
    if reservation is not None:
        return cloud_state.capacity.chosen_for(use)
    return cloud_state.capacity.refusal(use, [other.use for other in shown_instances(ec2) if other.occupies_capacity])


def _record_failure(  # noqa: PLR0913
    group: EmulatedGroup, refusal: Refusal, kind: Kind, cause: str, details: str, cloud_state: AwsState
) -> None:
    if group.mixed_instances_policy:
        message = f"{_PREFIX[kind]} {refusal.code} - {refusal.message}"
    else:
        message = refusal.without_mix.message
    now = cloud_state.now()
    activity = group.record("Launching a new EC2 instance", cause, now, details)
    activity.finish(now, code="Failed", message=f"{message.rstrip('.')}. Launching EC2 instance failed.")


def _run(  # noqa: PLR0913
    cloud_state: AwsState,
    ec2: EC2Backend,
    group: EmulatedGroup,
    recipe: Recipe,
    use: Use,
    subnet_id: str,
    reservation: str | None,
) -> EmulatedInstance:
    data = recipe.data
    interfaces = items(data, "NetworkInterfaces")
    group_ids = list(data.get("SecurityGroupIds") or [])
    for interface in interfaces:
        group_ids.extend(items(interface, "Groups"))
    extra: dict[str, Any] = {}
    disks = [disk for disk in items(data, "BlockDeviceMappings") if disk.get("Ebs")]
    if disks:
        extra["block_device_mappings"] = [_owned_disk(disk) for disk in disks]
    made = ec2.run_instances(
        data.get("ImageId") or "",
        1,
        user_data(data),
        list(data.get("SecurityGroups") or []),
        security_group_ids=group_ids,
        instance_type=use.machine_type,
        is_instance_type_default=False,
        placement=use.zone,
        subnet_id=subnet_id,
        region_name=group.region,
        tags={"instance": {**group.get_propagated_tags(), "aws:autoscaling:groupName": group.name}},
        launch_template={"LaunchTemplateId": recipe.template_id, "Version": recipe.version},
        lifecycle="spot" if use.kind is Kind.SPOT else _lifecycle(data),
        metadata_options=data.get("MetadataOptions") or {},
        # for an instance of a group, `stop` on shutdown is a termination
        instance_initiated_shutdown_behavior=data.get("InstanceInitiatedShutdownBehavior") or "stop",
        ebs_optimized=data.get("EbsOptimized") or False,
        monitoring_state="enabled" if inner(data, "Monitoring").get("Enabled") else "disabled",
        **extra,
    )
    instance = made.instances[0]
    if not isinstance(instance, EmulatedInstance):
        raise TypeError(f"instance {instance.id} was not created by the emulated EC2: call install() first")
    instance.group_name = group.name
    instance.placement.group_name = group.placement_group or ""
    instance.capacity_reservation_id = reservation
    attach_profile(ec2, instance, data.get("IamInstanceProfile") or {})
    prepare(instance)
    return instance


def _lifecycle(data: Mapping[str, Any]) -> str | None:
    """`InstanceLifecycle` of DescribeInstances; None for an on-demand instance."""
    return "capacity-block" if wants_block(data) else None


def prepare(instance: EmulatedInstance) -> None:
    """Set a new instance to pending; a spot instance gets the id of its request."""
    instance.launch_time = instance.cloud_state.now()
    instance.set_state(("pending", 0))
    if instance.kind is Kind.SPOT:
        instance.spot_instance_request_id = f"sir-{instance.id[-8:]}"


def attach_profile(ec2: EC2Backend, instance: EmulatedInstance, profile: Mapping[str, str]) -> None:
    """Give the instance the template's instance profile (name or ARN)."""
    if profile.get("Arn") or profile.get("Name"):
        ec2.associate_iam_instance_profile(
            instance_id=instance.id,
            iam_instance_profile_name=profile.get("Name"),
            iam_instance_profile_arn=profile.get("Arn"),
        )


def user_data(data: Mapping[str, Any]) -> Base64EncodedString | None:
    """The template's user data; newer versions of moto store it as text."""
    found = data.get("UserData")
    if found is None or isinstance(found, Base64EncodedString):
        return found
    return Base64EncodedString(str(found))


def _owned_disk(disk: Mapping[str, Any]) -> dict[str, Any]:
    # EC2 deletes a template's disks with the instance by default; moto keeps them
    return {**disk, "Ebs": {"DeleteOnTermination": True, "VolumeSize": 8, **disk["Ebs"]}}
