"""EC2 machines that no group holds, and their disks."""

from __future__ import annotations

from typing import Any

from localcloud.documents import inner
from localcloud.provider.aws.calls import delete_when_free, first, or_none, present
from localcloud.provider.aws.tags import ec2_specification, tag_map, update_ec2_tags
from localcloud.provider.checks import between, conflicts
from localcloud.provider.errors import NotReadyError
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import from_answer, input_shape, to_request
from localcloud.provider.wire import Properties, decode_base64, sha1

_DIRECT = frozenset(
    {
        "capacityReservationSpecification", "cpuOptions", "creditSpecification", "disableApiStop",
        "disableApiTermination", "ebsOptimized", "instanceInitiatedShutdownBehavior", "instanceType", "keyName",
        "maintenanceOptions", "metadataOptions", "privateIp",
    }
)  # fmt: skip
_RENAMES = {"privateIp": "PrivateIpAddress"}
_NEEDS_STOP = frozenset({"instanceType", "userData", "userDataBase64"})
_DISK_FIELDS = frozenset({"iops", "throughput", "volumeSize", "volumeType"})
_DISK_TYPES = frozenset({"standard", "gp2", "gp3", "io1", "io2", "sc1", "st1"})
_DEFAULT_ROOT = "/dev/xvda"
_DEFAULT_ROOT_GIB = 8


class Instance(Resource):
    token = "aws:ec2/instance:Instance"
    tagged = True
    force_new = frozenset(
        {
            "ami", "associatePublicIpAddress", "availabilityZone", "capacityReservationSpecification", "cpuOptions",
            "ebsOptimized", "keyName", "placementGroup", "placementPartitionNumber", "privateIp", "subnetId",
            "tenancy",
        }
    )  # fmt: skip
    mutable = frozenset(
        {
            "creditSpecification", "disableApiStop", "disableApiTermination", "iamInstanceProfile",
            "instanceInitiatedShutdownBehavior", "instanceType", "maintenanceOptions", "metadataOptions",
            "monitoring", "rootBlockDevice", "sourceDestCheck", "userData", "userDataBase64",
            "userDataReplaceOnChange", "volumeTags", "vpcSecurityGroupIds",
        }
    )  # fmt: skip
    enums = {
        "instanceInitiatedShutdownBehavior": frozenset({"stop", "terminate"}),
        "metadataOptions.httpEndpoint": frozenset({"enabled", "disabled"}),
        "metadataOptions.httpTokens": frozenset({"optional", "required"}),
        "metadataOptions.instanceMetadataTags": frozenset({"enabled", "disabled"}),
        "rootBlockDevice.volumeType": _DISK_TYPES,
        "tenancy": frozenset({"default", "dedicated", "host"}),
    }
    rules = (conflicts("userData", "userDataBase64"), between("metadataOptions.httpPutResponseHopLimit", 1, 64))

    def replaces(self, path: str, new: Properties) -> bool:
        if path in {"userData", "userDataBase64"}:
            return bool(new.get("userDataReplaceOnChange"))
        if path.startswith("rootBlockDevice") and path.rpartition(".")[2] in {"encrypted", "kmsKeyId"}:
            return True
        return super().replaces(path, new)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        ec2 = cloud.client("ec2")
        given = {k: v for k, v in inputs.items() if k in _DIRECT}
        request = to_request(given, input_shape(cloud, "ec2", "RunInstances"), _RENAMES)
        tags = ec2_specification("instance", inputs.get("tags")) + ec2_specification(
            "volume", inputs.get("volumeTags")
        )
        answer = ec2.run_instances(
            ImageId=inputs.get("ami"),
            MinCount=1,
            MaxCount=1,
            TagSpecifications=tags,
            **request,
            **_placement(inputs),
            **_network(inputs),
            **_root_disk(cloud, inputs),
            **_start_up(inputs),
        )
        return str(answer["Instances"][0]["InstanceId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        _wait_until_running(cloud, ident)
        if inputs.get("sourceDestCheck") is False:
            cloud.client("ec2").modify_instance_attribute(InstanceId=ident, SourceDestCheck={"Value": False})

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = _find(cloud, ident)
        if found is None or found["State"]["Name"] in {"terminated", "shutting-down"}:
            return None
        given = {k: v for k, v in state.items() if k in _DIRECT - {"disableApiStop", "disableApiTermination"}}
        profile = found.get("IamInstanceProfile", {}).get("Arn", "")
        interfaces = found.get("NetworkInterfaces", [])
        groups = found.get("SecurityGroups") or [g for i in interfaces[:1] for g in i.get("Groups", [])]
        return {
            **from_answer(given, found, _RENAMES),
            "ami": found["ImageId"],
            "arn": f"arn:aws:ec2:{cloud.region}:{cloud.account}:instance/{ident}",
            "availabilityZone": found["Placement"]["AvailabilityZone"],
            "iamInstanceProfile": profile.rpartition("/")[2] or None,
            "instanceState": found["State"]["Name"],
            "instanceType": found["InstanceType"],
            "primaryNetworkInterfaceId": next((i.get("NetworkInterfaceId") for i in interfaces), None),
            "privateDns": found.get("PrivateDnsName"),
            "privateIp": found.get("PrivateIpAddress"),
            "publicDns": found.get("PublicDnsName") or "",
            "publicIp": found.get("PublicIpAddress") or "",
            "subnetId": found.get("SubnetId"),
            "vpcSecurityGroupIds": sorted(g["GroupId"] for g in groups),
            "tags": tag_map(cloud, found.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        ec2 = cloud.client("ec2")
        if change.touches("vpcSecurityGroupIds"):
            groups = change.new.get("vpcSecurityGroupIds", [])
            ec2.modify_instance_attribute(InstanceId=ident, Groups=groups)
        if change.touches("metadataOptions"):
            shape = input_shape(cloud, "ec2", "ModifyInstanceMetadataOptions")
            options = to_request(change.new.get("metadataOptions", {}), shape)
            ec2.modify_instance_metadata_options(InstanceId=ident, **options)
        if change.touches("iamInstanceProfile"):
            _set_profile(cloud, ident, change.new.get("iamInstanceProfile"))
        if change.touches("rootBlockDevice"):
            _set_disk(cloud, ident, change.new.get("rootBlockDevice", {}))
        _set_flags(ec2, ident, change)
        if change.touches(*_NEEDS_STOP):
            _change_while_stopped(cloud, ident, change)
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").terminate_instances, InstanceIds=[ident])
        cloud.wait(f"{ident} to be terminated", lambda: _state(cloud, ident) in {None, "terminated"})


def _find(cloud: Cloud, ident: str) -> dict[str, Any] | None:
    reservation = first(cloud.client("ec2").describe_instances, "Reservations", InstanceIds=[ident])
    return reservation["Instances"][0] if reservation else None


def _state(cloud: Cloud, ident: str) -> str | None:
    found = _find(cloud, ident)
    return found["State"]["Name"] if found else None


def _wait_until_running(cloud: Cloud, ident: str) -> None:
    """Raises NotReadyError at once when the machine ended instead."""

    def running() -> bool:
        state = _state(cloud, ident)
        if state in {None, "terminated", "shutting-down"}:
            reason = inner(_find(cloud, ident), "StateReason").get("Message", "no reason given")
            raise NotReadyError(f"{ident} ended while it was starting: {reason}")
        return state == "running"

    cloud.wait(f"{ident} to run", running)


def _placement(inputs: Properties) -> Properties:
    placement = present(
        AvailabilityZone=inputs.get("availabilityZone"),
        GroupName=inputs.get("placementGroup"),
        PartitionNumber=inputs.get("placementPartitionNumber"),
        Tenancy=inputs.get("tenancy"),
    )
    return {"Placement": placement} if placement else {}


def _network(inputs: Properties) -> Properties:
    groups = inputs.get("vpcSecurityGroupIds")
    public = inputs.get("associatePublicIpAddress")
    if public is None:
        return present(SubnetId=inputs.get("subnetId"), SecurityGroupIds=groups)
    interface = present(
        DeviceIndex=0, SubnetId=inputs.get("subnetId"), Groups=groups, AssociatePublicIpAddress=public
    )
    return {"NetworkInterfaces": [interface]}


def _root_disk(cloud: Cloud, inputs: Properties) -> Properties:
    disk = inputs.get("rootBlockDevice")
    if not disk:
        return {}
    image = first(cloud.client("ec2").describe_images, "Images", ImageIds=[inputs.get("ami")]) or {}
    root = image.get("RootDeviceName") or _DEFAULT_ROOT
    mapped = {m["DeviceName"]: m.get("Ebs", {}) for m in image.get("BlockDeviceMappings", [])}
    shape = input_shape(cloud, "ec2", "RunInstances", "BlockDeviceMappings").members["Ebs"]
    # EC2 takes the size of the image's root disk where none is given; the emulated one requires the size
    size = {"VolumeSize": mapped.get(root, {}).get("VolumeSize") or _DEFAULT_ROOT_GIB}
    ebs = size | to_request({k: v for k, v in disk.items() if k != "tags"}, shape)
    return {"BlockDeviceMappings": [{"DeviceName": root, "Ebs": ebs}]}


def _start_up(inputs: Properties) -> Properties:
    profile = inputs.get("iamInstanceProfile")
    text = inputs.get("userData")
    if "userDataBase64" in inputs:
        text = decode_base64(inputs["userDataBase64"], "userDataBase64").decode()
    monitoring = inputs.get("monitoring")
    return present(
        IamInstanceProfile={"Name": profile} if profile else None,
        UserData=text,
        Monitoring={"Enabled": monitoring} if monitoring is not None else None,
    )


def _set_profile(cloud: Cloud, ident: str, profile: str | None) -> None:
    ec2 = cloud.client("ec2")
    filters = [{"Name": "instance-id", "Values": [ident]}]
    answer = ec2.describe_iam_instance_profile_associations(Filters=filters)
    for association in answer["IamInstanceProfileAssociations"]:
        ec2.disassociate_iam_instance_profile(AssociationId=association["AssociationId"])
    if profile:
        ec2.associate_iam_instance_profile(InstanceId=ident, IamInstanceProfile={"Name": profile})


def _set_disk(cloud: Cloud, ident: str, disk: Properties) -> None:
    found = _find(cloud, ident) or {}
    root = found.get("RootDeviceName")
    for mapping in found.get("BlockDeviceMappings", []):
        if mapping["DeviceName"] == root:
            shape = input_shape(cloud, "ec2", "ModifyVolume")
            wanted = {k: v for k, v in disk.items() if k in _DISK_FIELDS}
            request = to_request(wanted, shape, {"volumeSize": "Size"})
            cloud.client("ec2").modify_volume(VolumeId=mapping["Ebs"]["VolumeId"], **request)


def _set_flags(ec2: Any, ident: str, change: Change) -> None:
    for name, field, default in (
        ("disableApiStop", "DisableApiStop", False),
        ("disableApiTermination", "DisableApiTermination", False),
        ("sourceDestCheck", "SourceDestCheck", True),
        ("instanceInitiatedShutdownBehavior", "InstanceInitiatedShutdownBehavior", "stop"),
    ):
        if change.touches(name):
            ec2.modify_instance_attribute(InstanceId=ident, **{field: {"Value": change.new.get(name, default)}})
    if change.touches("monitoring"):
        call = ec2.monitor_instances if change.new.get("monitoring") else ec2.unmonitor_instances
        call(InstanceIds=[ident])


def _change_while_stopped(cloud: Cloud, ident: str, change: Change) -> None:
    ec2 = cloud.client("ec2")
    ec2.stop_instances(InstanceIds=[ident])
    cloud.wait(f"{ident} to stop", lambda: _state(cloud, ident) == "stopped")
    if change.touches("instanceType"):
        ec2.modify_instance_attribute(InstanceId=ident, InstanceType={"Value": change.new["instanceType"]})
    if change.touches("userData", "userDataBase64"):
        text = _start_up(change.new).get("UserData", "")
        ec2.modify_instance_attribute(InstanceId=ident, UserData={"Value": text})
    ec2.start_instances(InstanceIds=[ident])
    _wait_until_running(cloud, ident)


class Volume(Resource):
    token = "aws:ebs/volume:Volume"
    tagged = True
    force_new = frozenset({"availabilityZone", "encrypted", "kmsKeyId", "multiAttachEnabled", "snapshotId"})
    mutable = frozenset({"iops", "size", "throughput", "type"})
    enums = {"type": _DISK_TYPES}
    rules = (between("size", 1, 65_536), between("throughput", 125, 2000))

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        given = {k: v for k, v in inputs.items() if k in (self.force_new | self.mutable)}
        shape = input_shape(cloud, "ec2", "CreateVolume")
        answer = cloud.client("ec2").create_volume(
            TagSpecifications=ec2_specification("volume", inputs.get("tags")),
            **to_request(given, shape, {"type": "VolumeType"}),
        )
        return str(answer["VolumeId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        cloud.wait(f"{ident} to be available", lambda: (self._find(cloud, ident) or {}).get("State") == "available")

    def _find(self, cloud: Cloud, ident: str) -> dict[str, Any] | None:
        return first(cloud.client("ec2").describe_volumes, "Volumes", VolumeIds=[ident])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        volume = self._find(cloud, ident)
        return volume and {
            "arn": f"arn:aws:ec2:{cloud.region}:{cloud.account}:volume/{ident}",
            "availabilityZone": volume["AvailabilityZone"],
            "encrypted": volume.get("Encrypted", False),
            "kmsKeyId": volume.get("KmsKeyId"),
            "iops": volume.get("Iops"),
            "size": volume["Size"],
            "snapshotId": volume.get("SnapshotId") or None,
            "throughput": volume.get("Throughput"),
            "type": volume.get("VolumeType"),
            "createTime": volume["CreateTime"].isoformat(),
            "tags": tag_map(cloud, volume.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        wanted = {k: change.new[k] for k in change.keys & self.mutable if k in change.new}
        if wanted:
            request = to_request(wanted, input_shape(cloud, "ec2", "ModifyVolume"), {"type": "VolumeType"})
            cloud.client("ec2").modify_volume(VolumeId=ident, **request)
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        delete_when_free(cloud, ident, cloud.client("ec2").delete_volume, VolumeId=ident)


class VolumeAttachment(Resource):
    token = "aws:ec2/volumeAttachment:VolumeAttachment"
    force_new = frozenset({"deviceName", "instanceId", "volumeId"})
    mutable = frozenset({"forceDetach", "skipDestroy", "stopInstanceBeforeDetaching"})

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        cloud.client("ec2").attach_volume(
            Device=inputs["deviceName"], InstanceId=inputs["instanceId"], VolumeId=inputs["volumeId"]
        )
        return "vai-" + sha1("-".join(inputs[k] for k in sorted(self.force_new)))[:10]

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        attachment = self._find(cloud, state)
        return attachment and {
            "deviceName": attachment["Device"],
            "instanceId": attachment["InstanceId"],
            "volumeId": attachment["VolumeId"],
        }

    def _find(self, cloud: Cloud, state: Properties) -> dict[str, Any] | None:
        volume = first(cloud.client("ec2").describe_volumes, "Volumes", VolumeIds=[state["volumeId"]]) or {}
        for attachment in volume.get("Attachments", []):
            if attachment["InstanceId"] == state["instanceId"]:
                return attachment
        return None

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        """All that can change is how the attachment will end."""

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        if state.get("skipDestroy") or self._find(cloud, state) is None:
            return
        ec2 = cloud.client("ec2")
        instance = state["instanceId"]
        if state.get("stopInstanceBeforeDetaching") and _state(cloud, instance) == "running":
            ec2.stop_instances(InstanceIds=[instance])
            cloud.wait(f"{instance} to stop", lambda: _state(cloud, instance) == "stopped")
        or_none(
            ec2.detach_volume,
            VolumeId=state["volumeId"],
            InstanceId=instance,
            Force=bool(state.get("forceDetach")),
        )
        cloud.wait(f"{state['volumeId']} to be detached", lambda: self._find(cloud, state) is None)
