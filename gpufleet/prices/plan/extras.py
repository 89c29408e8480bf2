"""The cost of a plan besides GPU instances: disks, NAT, endpoints, load balancers, small machines.

Each type of resource has a price per hour here, is free, or is billed by use (requests, stored bytes). A plan cannot
know the use, so it only names the types billed by use. Any other type is an error: a resource that costs money must
not count as 0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from gpufleet.prices.plan.groups import AWS_GROUP, AWS_RESERVATION, GCP_GROUPS, GCP_RESERVATION
from gpufleet.prices.plan.preview import UNKNOWN, PlannedResource, as_list, as_map


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A resource with a price per hour and unit."""

    name: str
    what: str
    sku: str
    units: Decimal


def extras(declared: Iterable[PlannedResource]) -> tuple[list[Extra], list[PlannedResource], list[PlannedResource]]:
    """Priced extras, resources billed by use, and resources of unknown kind."""
    priced: list[Extra] = []
    by_use: list[PlannedResource] = []
    unknown: list[PlannedResource] = []
    for resource in declared:
        kind = resource.type
        if kind in PRICED:
            priced += PRICED[kind](resource)
        elif kind in BY_USE:
            by_use.append(resource)
        elif not _costs_nothing(kind):
            unknown.append(resource)
    return priced, by_use, unknown


def volume_units(inputs: Mapping[str, Any], size_key: str) -> Iterator[tuple[str, str, Decimal]]:
    """The billed units of an EBS volume: kind of unit, sku and number."""
    kind = str(inputs.get("volumeType") or inputs.get("type") or "gp3")
    gib = int(inputs.get(size_key) or 0)
    if kind == "gp3":
        yield from gp3_units(gib, _stated(inputs, "iops", 0), _stated(inputs, "throughput", 0))
    else:
        yield "disk", f"aws:ebs:{kind}:gib", Decimal(gib)


def gp3_units(gib: int, iops: int, mib_per_second: int) -> Iterator[tuple[str, str, Decimal]]:
    """The billed units of a gp3 volume: GiB, IOPS above 3,000, MiB/s above 125 (AWS's terms of gp3)."""
    yield "disk", "aws:ebs:gp3:gib", Decimal(gib)
    if iops > 3000:
        yield "disk IOPS", "aws:ebs:gp3:iops", Decimal(iops - 3000)
    if mib_per_second > 125:
        yield "disk throughput", "aws:ebs:gp3:mib-per-second", Decimal(mib_per_second - 125)


def root_disk_units(template: PlannedResource) -> Iterator[tuple[str, Decimal]]:
    """The billed units of the root disk of each instance of a template; none if the resource is not a template."""
    if template.type == "aws:ec2/launchTemplate:LaunchTemplate":
        for mapping in map(as_map, as_list(template.inputs.get("blockDeviceMappings"))):
            for _, sku, units in volume_units(as_map(mapping.get("ebs")), "volumeSize"):
                yield sku, units
    elif template.type in _GCP_TEMPLATES:
        for disk in map(as_map, as_list(template.inputs.get("disks"))):
            if disk.get("boot"):
                kind = disk.get("diskType") or "pd-standard"
                yield f"gcp:disk:{kind}:gib", Decimal(int(disk.get("diskSizeGb") or 0))


def _stated(inputs: Mapping[str, Any], key: str, default: int) -> int:
    # a preview has a placeholder for a value that the cloud will set: then the cloud's default applies
    value = inputs.get(key)
    return default if value in (None, "", UNKNOWN) else int(str(value).split(".")[0])


def _aws_volume(resource: PlannedResource) -> Iterator[Extra]:
    for what, sku, units in volume_units(resource.inputs, "size"):
        yield Extra(name=resource.name, what=what, sku=sku, units=units)


def _aws_instance(resource: PlannedResource) -> Iterator[Extra]:
    machine = resource.inputs.get("instanceType")
    yield Extra(name=resource.name, what="machine", sku=f"aws:ec2:{machine}:on-demand", units=Decimal(1))
    root = as_map(resource.inputs.get("rootBlockDevice"))
    if root.get("volumeSize"):
        for what, sku, units in volume_units(root, "volumeSize"):
            yield Extra(name=resource.name, what=what, sku=sku, units=units)


def _one(what: str, sku: str) -> Callable[[PlannedResource], Iterator[Extra]]:
    def extra(resource: PlannedResource) -> Iterator[Extra]:
        yield Extra(name=resource.name, what=what, sku=sku, units=Decimal(1))

    return extra


def _endpoint(resource: PlannedResource) -> Iterator[Extra]:
    # gateway endpoints (S3) are free; an interface endpoint is billed per zone
    if resource.inputs.get("vpcEndpointType") == "Interface":
        zones = len(as_list(resource.inputs.get("subnetIds"))) or 1
        yield Extra(name=resource.name, what="endpoint", sku="aws:vpc:interface-endpoint", units=Decimal(zones))


def _gcp_instance(resource: PlannedResource) -> Iterator[Extra]:
    machine = resource.inputs.get("machineType")
    yield Extra(name=resource.name, what="machine", sku=f"gcp:compute:{machine}:on-demand", units=Decimal(1))
    root = as_map(as_map(resource.inputs.get("bootDisk")).get("initializeParams"))
    if root.get("size"):
        kind = root.get("type") or "pd-standard"
        yield Extra(name=resource.name, what="disk", sku=f"gcp:disk:{kind}:gib", units=Decimal(int(root["size"])))


def _gcp_disk(resource: PlannedResource) -> Iterator[Extra]:
    kind = resource.inputs.get("type") or "pd-balanced"
    size = Decimal(int(resource.inputs.get("size") or 0))
    yield Extra(name=resource.name, what="disk", sku=f"gcp:disk:{kind}:gib", units=size)


PRICED: Final[Mapping[str, Callable[[PlannedResource], Iterator[Extra]]]] = {
    "aws:ebs/volume:Volume": _aws_volume,
    "aws:ec2/instance:Instance": _aws_instance,
    "aws:ec2/natGateway:NatGateway": _one("NAT gateway", "aws:vpc:nat-gateway"),
    "aws:ec2/eip:Eip": _one("public address", "aws:vpc:public-ipv4"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": _endpoint,
    "aws:lb/loadBalancer:LoadBalancer": _one("load balancer", "aws:elb:load-balancer"),
    "aws:kms/key:Key": _one("key", "aws:kms:key"),
    "aws:route53/zone:Zone": _one("DNS zone", "aws:route53:zone"),
    "gcp:compute/instance:Instance": _gcp_instance,
    "gcp:compute/disk:Disk": _gcp_disk,
    "gcp:compute/routerNat:RouterNat": _one("NAT gateway", "gcp:network:nat-gateway"),
    "gcp:compute/address:Address": _one("address", "gcp:network:address"),
    "gcp:compute/forwardingRule:ForwardingRule": _one("load balancer", "gcp:network:forwarding-rule"),
    "gcp:kms/cryptoKey:CryptoKey": _one("key", "gcp:kms:key"),
    "gcp:dns/managedZone:ManagedZone": _one("DNS zone", "gcp:dns:zone"),
}

BY_USE: Final = frozenset(
    {
        "aws:s3/bucket:Bucket",
        "aws:s3/bucketV2:BucketV2",
        "aws:s3/bucketObjectv2:BucketObjectv2",
        "aws:s3/bucketObject:BucketObject",
        "aws:sqs/queue:Queue",
        "aws:cloudwatch/logGroup:LogGroup",
        # billed by the number of their metrics and conditions
        "aws:cloudwatch/metricAlarm:MetricAlarm",
        "gcp:monitoring/alertPolicy:AlertPolicy",
        "aws:ecr/repository:Repository",
        "gcp:storage/bucket:Bucket",
        "gcp:storage/bucketObject:BucketObject",
        "gcp:artifactregistry/repository:Repository",
        "gcp:pubsub/topic:Topic",
        "gcp:pubsub/subscription:Subscription",
        "gcp:secretmanager/secret:Secret",
    }
)

_GCP_TEMPLATES: Final = frozenset(
    {
        "gcp:compute/instanceTemplate:InstanceTemplate",
        "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
    }
)

FREE_TYPES: Final = frozenset(
    {
        AWS_GROUP,
        AWS_RESERVATION,
        GCP_RESERVATION,
        *GCP_GROUPS,
        "pulumi:pulumi:Stack",
        "aws:ec2/launchTemplate:LaunchTemplate",
        "aws:autoscaling/lifecycleHook:LifecycleHook",
        "aws:ec2/placementGroup:PlacementGroup",
        "aws:ec2/volumeAttachment:VolumeAttachment",
        "aws:ec2/capacityBlockReservation:CapacityBlockReservation",
        "aws:ssm/parameter:Parameter",
        "aws:lb/listener:Listener",
        "aws:lb/targetGroup:TargetGroup",
        "aws:lb/targetGroupAttachment:TargetGroupAttachment",
        "aws:autoscaling/attachment:Attachment",
        "aws:kms/alias:Alias",
        "aws:route53/record:Record",
        "aws:sqs/queuePolicy:QueuePolicy",
        "aws:ecr/lifecyclePolicy:LifecyclePolicy",
        "aws:cloudwatch/eventRule:EventRule",
        "aws:cloudwatch/eventTarget:EventTarget",
        "aws:ec2/vpcPeeringConnection:VpcPeeringConnection",
        "gcp:compute/networkPeering:NetworkPeering",
        *_GCP_TEMPLATES,
        "gcp:compute/healthCheck:HealthCheck",
        "gcp:compute/regionHealthCheck:RegionHealthCheck",
        "gcp:compute/regionBackendService:RegionBackendService",
        "gcp:compute/instanceGroup:InstanceGroup",
        "gcp:compute/resourcePolicy:ResourcePolicy",
        "gcp:compute/attachedDisk:AttachedDisk",
        "gcp:compute/router:Router",
        "gcp:compute/route:Route",
        "gcp:dns/recordSet:RecordSet",
        "gcp:kms/keyRing:KeyRing",
    }
)

FREE_PREFIXES: Final = (
    "gpu-fleet:",
    "pulumi:providers:",
    "aws:iam/",
    "aws:vpc/",
    "aws:ec2/vpc:",
    "aws:ec2/subnet:",
    "aws:ec2/route",
    "aws:ec2/mainRouteTableAssociation:",
    "aws:ec2/internetGateway:",
    "aws:ec2/securityGroup",
    "aws:ec2/networkAcl",
    "aws:s3/bucket",
    "gcp:compute/network:",
    "gcp:compute/subnetwork:",
    "gcp:compute/firewall:",
    "gcp:serviceaccount/",
    "gcp:projects/",
    "gcp:storage/bucketIAM",
    "gcp:secretmanager/secretIam",
    "gcp:secretmanager/secretIAM",
    "gcp:artifactregistry/repositoryIam",
    "gcp:compute/instanceIAM",
    "gcp:kms/cryptoKeyIAM",
    "gcp:iap/",
)
"""Prefixes of types that cost nothing by themselves (parts of a bucket, of a network, of permissions)."""


def _costs_nothing(kind: str) -> bool:
    return kind in FREE_TYPES or kind.startswith(FREE_PREFIXES)
