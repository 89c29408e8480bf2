"""EC2 launch templates: each change of the template's data is a new version."""

from __future__ import annotations

from typing import Any

from localcloud.provider.aws.calls import first, listed, or_none
from localcloud.provider.aws.tags import ec2_specification, ec2_tags, update_ec2_tags
from localcloud.provider.checks import between, conflicts, matches
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import from_answer, input_shape, to_request
from localcloud.provider.wire import Properties

_DATA = frozenset(
    {
        "blockDeviceMappings", "capacityReservationSpecification", "cpuOptions", "creditSpecification",
        "disableApiStop", "disableApiTermination", "ebsOptimized", "enclaveOptions", "hibernationOptions",
        "iamInstanceProfile", "imageId", "instanceInitiatedShutdownBehavior", "instanceMarketOptions",
        "instanceRequirements", "instanceType", "keyName", "licenseSpecifications", "maintenanceOptions",
        "metadataOptions", "monitoring", "networkInterfaces", "networkPerformanceOptions", "placement",
        "privateDnsNameOptions", "tagSpecifications", "userData", "vpcSecurityGroupIds",
    }
)  # fmt: skip
_RENAMES = {
    "vpcSecurityGroupIds": "SecurityGroupIds",
    "networkInterfaces.securityGroups": "Groups",
    "placement.groupName": "GroupName",
    "privateDnsNameOptions.hostnameType": "HostnameType",
    "cpuOptions.nestedVirtualization": "NestedVirtualization",
}
_BOOLEAN_TEXT = frozenset({"true", "false"})
_NAMING = Naming(prefix_property="namePrefix", limit=125)


class LaunchTemplate(Resource):
    token = "aws:ec2/launchTemplate:LaunchTemplate"
    naming = _NAMING
    tagged = True
    force_new = frozenset({"name", "namePrefix"})
    mutable = _DATA | {"defaultVersion", "description", "updateDefaultVersion"}
    volatile = frozenset({"latestVersion", "defaultVersion"})
    enums = {
        "instanceMarketOptions.marketType": frozenset(
            {"spot", "capacity-block", "interruptible-capacity-reservation"}
        ),
        "instanceMarketOptions.spotOptions.spotInstanceType": frozenset({"one-time", "persistent"}),
        "instanceMarketOptions.spotOptions.instanceInterruptionBehavior": frozenset(
            {"hibernate", "stop", "terminate"}
        ),
        "instanceInitiatedShutdownBehavior": frozenset({"stop", "terminate"}),
        "metadataOptions.httpEndpoint": frozenset({"enabled", "disabled"}),
        "metadataOptions.httpTokens": frozenset({"optional", "required"}),
        "metadataOptions.instanceMetadataTags": frozenset({"enabled", "disabled"}),
        "metadataOptions.httpProtocolIpv6": frozenset({"enabled", "disabled"}),
        "capacityReservationSpecification.capacityReservationPreference": frozenset(
            {"capacity-reservations-only", "open", "none"}
        ),
        "blockDeviceMappings[*].ebs.volumeType": frozenset({"standard", "gp2", "gp3", "io1", "io2", "sc1", "st1"}),
        "blockDeviceMappings[*].ebs.encrypted": _BOOLEAN_TEXT,
        "blockDeviceMappings[*].ebs.deleteOnTermination": _BOOLEAN_TEXT,
        "ebsOptimized": _BOOLEAN_TEXT,
        "networkInterfaces[*].associatePublicIpAddress": _BOOLEAN_TEXT,
        "networkInterfaces[*].deleteOnTermination": _BOOLEAN_TEXT,
        "networkInterfaces[*].interfaceType": frozenset({"interface", "efa", "efa-only"}),
        "placement.tenancy": frozenset({"default", "dedicated", "host"}),
        "tagSpecifications[*].resourceType": frozenset(
            {"instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu"}
        ),
    }
    rules = (
        conflicts("name", "namePrefix"),
        conflicts("defaultVersion", "updateDefaultVersion"),
        conflicts("instanceType", "instanceRequirements"),
        conflicts("securityGroupNames", "vpcSecurityGroupIds"),
        matches("name", r"[a-zA-Z0-9()./_-]{3,128}", "a launch template name (3 to 128 of a-z A-Z 0-9 ( ) . / _ -)"),
        matches("userData", r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", "base64 text"),
        between("metadataOptions.httpPutResponseHopLimit", 1, 64),
        between("blockDeviceMappings[*].ebs.throughput", 125, 2000),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("ec2").create_launch_template(
            LaunchTemplateName=_NAMING.from_prefix(inputs),
            LaunchTemplateData=_data(cloud, inputs),
            VersionDescription=inputs.get("description", ""),
            TagSpecifications=ec2_specification("launch-template", inputs.get("tags")),
        )
        return str(answer["LaunchTemplate"]["LaunchTemplateId"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        ec2 = cloud.client("ec2")
        found = first(ec2.describe_launch_templates, "LaunchTemplates", LaunchTemplateIds=[ident])
        if found is None:
            return None
        call = ec2.describe_launch_template_versions
        versions = listed(call, "LaunchTemplateVersions", LaunchTemplateId=ident)
        if not versions:  # ended between the two calls
            return None
        latest = max(versions, key=lambda v: v["VersionNumber"])
        given = {k: v for k, v in state.items() if k in _DATA}
        return {
            **from_answer(given, _without_own_tags(latest["LaunchTemplateData"]), _RENAMES),
            "arn": f"arn:aws:ec2:{cloud.region}:{cloud.account}:launch-template/{ident}",
            "name": found["LaunchTemplateName"],
            "latestVersion": latest["VersionNumber"],
            "defaultVersion": found["DefaultVersionNumber"],
            "tags": ec2_tags(cloud, ident),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        ec2 = cloud.client("ec2")
        latest = change.state.get("latestVersion")
        if change.touches(*_DATA, "description"):
            made = ec2.create_launch_template_version(
                LaunchTemplateId=ident,
                LaunchTemplateData=_data(cloud, change.new),
                VersionDescription=change.new.get("description", ""),
            )
            latest = made["LaunchTemplateVersion"]["VersionNumber"]
        default = latest if change.new.get("updateDefaultVersion") else change.new.get("defaultVersion")
        if default is not None and default != change.state.get("defaultVersion"):
            ec2.modify_launch_template(LaunchTemplateId=ident, DefaultVersion=str(default))
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").delete_launch_template, LaunchTemplateId=ident)


def _without_own_tags(data: dict[str, Any]) -> dict[str, Any]:
    # moto shows the template's own tags among those that its instances get; EC2 does not
    specifications = [s for s in data.get("TagSpecifications", []) if s.get("ResourceType") != "launch-template"]
    return {**data, "TagSpecifications": specifications}


def _data(cloud: Cloud, inputs: Properties) -> Properties:
    shape = input_shape(cloud, "ec2", "CreateLaunchTemplate", "LaunchTemplateData")
    given = {k: v for k, v in inputs.items() if k in _DATA}
    specifications = [
        {
            "ResourceType": s.get("resourceType"),
            "Tags": [{"Key": k, "Value": v} for k, v in s.get("tags", {}).items()],
        }
        for s in given.pop("tagSpecifications", [])
    ]
    data: Properties = to_request(given, shape, _RENAMES)
    return data | ({"TagSpecifications": specifications} if specifications else {})
