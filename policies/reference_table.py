"""Properties of the program's resource types that refer to other resources, with the allowed target types in the
plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from policies.resource import (
    ACCOUNT,
    AWS_GROUP,
    AWS_INSTANCE,
    GCP_GROUPS,
    LAUNCH_TEMPLATE,
    SECURITY_GROUP,
    SECURITY_GROUPS,
)


@dataclass(frozen=True, slots=True)
class ResourceReference:
    """A property that refers to another resource."""

    path: tuple[str, ...]
    """`[]` follows the name of a list."""
    of: frozenset[str]
    """Allowed types of the target. Empty: the property must be absent."""
    must: bool = False
    """Whether the property is required. Without it, a resource outside the plan would apply."""
    given: bool = False
    """Whether the settings may name the target."""

    @property
    def key(self) -> str:
        """The first property of the path."""
        return self.path[0].removesuffix("[]")


NOTHING: Final[frozenset[str]] = frozenset()


def _one(path: str, *of: str, must: bool = False, given: bool = False) -> ResourceReference:
    return ResourceReference(tuple(path.split(".")), frozenset(of), must, given)


def _must(path: str, *of: str, given: bool = False) -> ResourceReference:
    return _one(path, *of, must=True, given=given)


_VPC, _SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"
_ROUTE_TABLE: Final = "aws:ec2/routeTable:RouteTable"
_BALANCER, _TARGETS = "aws:lb/loadBalancer:LoadBalancer", "aws:lb/targetGroup:TargetGroup"
_QUEUE, _BUCKET, _VOLUME = "aws:sqs/queue:Queue", "aws:s3/bucket:Bucket", "aws:ebs/volume:Volume"
_WAYS: Final = (
    ("gatewayId", "aws:ec2/internetGateway:InternetGateway"),
    ("natGatewayId", "aws:ec2/natGateway:NatGateway"),
    ("vpcEndpointId", "aws:ec2/vpcEndpoint:VpcEndpoint"),
    ("vpcPeeringConnectionId", "aws:ec2/vpcPeeringConnection:VpcPeeringConnection"),
    *((key, None) for key in ("carrierGatewayId", "coreNetworkArn", "egressOnlyGatewayId", "instanceId")),
    *((key, None) for key in ("localGatewayId", "networkInterfaceId", "odbNetworkArn", "transitGatewayId")),
)
"""Properties with the target of an AWS route."""

_AWS: Final[Mapping[str, tuple[ResourceReference, ...]]] = {
    LAUNCH_TEMPLATE: (
        _must("networkInterfaces[].securityGroups[]", *SECURITY_GROUPS),
        _one("networkInterfaces[].subnetId", _SUBNET, given=True),
        _one("vpcSecurityGroupIds[]", *SECURITY_GROUPS),
        _one("securityGroupNames[]", *SECURITY_GROUPS),
        _one("blockDeviceMappings[].ebs.kmsKeyId"),
        _one("blockDeviceMappings[].ebs.snapshotId"),
    ),
    AWS_INSTANCE: (
        _must("vpcSecurityGroupIds[]", *SECURITY_GROUPS),
        _one("securityGroups[]", *SECURITY_GROUPS),
        _one("subnetId", _SUBNET, given=True),
        _one("rootBlockDevice.kmsKeyId"),
        _one("ebsBlockDevices[].kmsKeyId"),
        _one("ebsBlockDevices[].snapshotId"),
    ),
    AWS_GROUP: (
        _one("vpcZoneIdentifiers[]", _SUBNET, given=True),
        _one("targetGroupArns[]"),
        _one("loadBalancers[]"),
        _one("trafficSources[].identifier"),
        _one("initialLifecycleHooks[].notificationTargetArn"),
    ),
    "aws:autoscaling/lifecycleHook:LifecycleHook": (_one("notificationTargetArn"), _one("roleArn")),
    "aws:cloudwatch/eventTarget:EventTarget": (
        _one("arn", _QUEUE),
        _one("deadLetterConfig.arn", _QUEUE),
    ),
    "aws:ebs/volume:Volume": (_one("snapshotId"), _one("kmsKeyId")),
    "aws:ec2/internetGateway:InternetGateway": (_one("vpcId", _VPC),),
    "aws:ec2/natGateway:NatGateway": (_one("subnetId", _SUBNET),),
    "aws:ec2/route:Route": (
        _one("routeTableId", _ROUTE_TABLE),
        *(_one(key, *([kind] if kind else [])) for key, kind in _WAYS),
    ),
    _ROUTE_TABLE: (
        _one("vpcId", _VPC),
        _one("propagatingVgws[]"),
        *(_one(f"routes[].{key}", *([kind] if kind else [])) for key, kind in _WAYS),
    ),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": (
        _one("routeTableId", _ROUTE_TABLE),
        _one("subnetId", _SUBNET),
    ),
    SECURITY_GROUP: (_one("vpcId", _VPC, given=True), _one("ingress[].securityGroups[]", *SECURITY_GROUPS)),
    "aws:ec2/securityGroupRule:SecurityGroupRule": (
        _one("securityGroupId", *SECURITY_GROUPS),
        _one("sourceSecurityGroupId", *SECURITY_GROUPS),
    ),
    _SUBNET: (_one("vpcId", _VPC),),
    "aws:ec2/volumeAttachment:VolumeAttachment": (_one("instanceId", AWS_INSTANCE), _one("volumeId", _VOLUME)),
    "aws:ec2/vpcEndpoint:VpcEndpoint": (
        _one("vpcId", _VPC),
        _one("securityGroupIds[]", *SECURITY_GROUPS),
        _one("subnetIds[]", _SUBNET),
    ),
    "aws:lb/listener:Listener": (
        _one("loadBalancerArn", _BALANCER),
        _must("defaultActions[].targetGroupArn", _TARGETS),
        _one("defaultActions[].forward.targetGroups[].arn", _TARGETS),
    ),
    _BALANCER: (
        _must("securityGroups[]", *SECURITY_GROUPS),
        _one("subnets[]", _SUBNET, given=True),
        _one("subnetMappings[].subnetId", _SUBNET, given=True),
    ),
    _TARGETS: (_one("vpcId", _VPC, given=True),),
    "aws:lb/targetGroupAttachment:TargetGroupAttachment": (
        _one("targetGroupArn", _TARGETS),
        _one("targetId", AWS_INSTANCE),
    ),
    "aws:route53/record:Record": (
        _one("zoneId", "aws:route53/zone:Zone"),
        _one("records[]", AWS_INSTANCE),
        _one("aliases[].name", _BALANCER),
    ),
    "aws:route53/zone:Zone": (_must("vpcs[].vpcId", _VPC, given=True),),
    "aws:s3/bucketObjectv2:BucketObjectv2": (_one("bucket", _BUCKET, given=True),),
    _QUEUE: (_one("redrivePolicy"),),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": (_one("securityGroupId", *SECURITY_GROUPS),),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": (
        _one("securityGroupId", *SECURITY_GROUPS),
        _one("referencedSecurityGroupId", *SECURITY_GROUPS),
    ),
}

IMAGES: Final[Mapping[str, ResourceReference]] = {
    LAUNCH_TEMPLATE: _one("imageId"),
    AWS_INSTANCE: _one("ami"),
    "gcp:compute/instanceTemplate:InstanceTemplate": _one("disks[].sourceImage"),
    "gcp:compute/instance:Instance": _one("bootDisk.initializeParams.image"),
}
"""Properties with the image of machines. The settings list the allowed images."""

_NETWORK, _SUBNETWORK = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
_INSTANCE: Final = "gcp:compute/instance:Instance"
_FRONT: Final = "gcp:compute/forwardingRule:ForwardingRule"
_INTERFACES: Final = (
    _must("networkInterfaces[].subnetwork", _SUBNETWORK, given=True),
    _one("networkInterfaces[].networkAttachment"),
    _one("networkInterfaces[].subnetworkProject"),
)

_GCP: Final[Mapping[str, tuple[ResourceReference, ...]]] = {
    "gcp:compute/firewall:Firewall": (
        _one("network", _NETWORK, given=True),
        _must("targetServiceAccounts[]", ACCOUNT),
        _one("sourceServiceAccounts[]", ACCOUNT),
        _one("sourceTags[]"),
    ),
    _FRONT: (
        _one("backendService", "gcp:compute/regionBackendService:RegionBackendService"),
        _one("target"),
        _one("network", _NETWORK, given=True),
        _one("subnetwork", _SUBNETWORK, given=True),
    ),
    _INSTANCE: (
        *_INTERFACES,
        _one("attachedDisks[].source", "gcp:compute/disk:Disk"),
        _one("bootDisk.initializeParams.snapshot"),
        _one("bootDisk.source"),
        _one("bootDisk.kmsKeySelfLink"),
    ),
    "gcp:compute/instanceGroup:InstanceGroup": (_one("instances[]", _INSTANCE),),
    "gcp:compute/instanceTemplate:InstanceTemplate": (
        *_INTERFACES,
        _one("disks[].source"),
        _one("disks[].sourceSnapshot"),
        _one("disks[].diskEncryptionKey"),
    ),
    "gcp:compute/regionBackendService:RegionBackendService": (
        _one("backends[].group", "gcp:compute/instanceGroup:InstanceGroup"),
    ),
    **dict.fromkeys(GCP_GROUPS, (_one("targetPools[]"),)),
    "gcp:compute/reservation:Reservation": (_one("shareSettings"),),
    "gcp:compute/routerNat:RouterNat": (_one("natIps[]"),),
    "gcp:compute/router:Router": (_one("network", _NETWORK),),
    _SUBNETWORK: (_one("network", _NETWORK),),
    "gcp:compute/disk:Disk": tuple(
        map(
            _one,
            ("diskEncryptionKey", "image", "snapshot", "sourceDisk", "sourceInstantSnapshot", "sourceStorageObject"),
        )
    ),
    "gcp:dns/managedZone:ManagedZone": (
        _must("privateVisibilityConfig.networks[].networkUrl", _NETWORK, given=True),
        _one("forwardingConfig"),
        _one("peeringConfig"),
        _one("serviceDirectoryConfig"),
    ),
    "gcp:dns/recordSet:RecordSet": (
        _one("managedZone", "gcp:dns/managedZone:ManagedZone"),
        _one("rrdatas[]", _INSTANCE, _FRONT),
    ),
    "gcp:storage/bucketObject:BucketObject": (_one("bucket", "gcp:storage/bucket:Bucket", given=True),),
}

REFERENCES: Final[Mapping[str, tuple[ResourceReference, ...]]] = {**_AWS, **_GCP}
"""References by resource type."""
