"""All that the local AWS provider models."""

from __future__ import annotations

from localcloud.aws.sdk import BotoCoreError, ClientError, ResponseParserError
from localcloud.provider.aws import (
    autoscaling,
    balancing,
    capacity,
    dns,
    firewall,
    iam,
    keys,
    launch_template,
    machines,
    messages,
    network,
    routes,
    s3,
)
from localcloud.provider.aws.functions import FUNCTIONS
from localcloud.provider.aws.session import open_session
from localcloud.provider.resource import Resource
from localcloud.provider.server import Package

_RESOURCES: tuple[type[Resource], ...] = (
    autoscaling.Group,
    autoscaling.LifecycleHook,
    balancing.Listener,
    balancing.LoadBalancer,
    balancing.TargetGroup,
    balancing.TargetGroupAttachment,
    capacity.CapacityReservation,
    capacity.PlacementGroup,
    dns.Record,
    dns.Zone,
    firewall.SecurityGroup,
    firewall.SecurityGroupEgressRule,
    firewall.SecurityGroupIngressRule,
    iam.InstanceProfile,
    iam.Policy,
    iam.Role,
    iam.RolePolicy,
    iam.RolePolicyAttachment,
    keys.Alias,
    keys.Key,
    keys.Repository,
    launch_template.LaunchTemplate,
    machines.Instance,
    machines.Volume,
    machines.VolumeAttachment,
    messages.EventRule,
    messages.EventTarget,
    messages.Parameter,
    messages.Queue,
    messages.QueuePolicy,
    network.Eip,
    network.InternetGateway,
    network.NatGateway,
    network.Subnet,
    network.Vpc,
    network.VpcEndpoint,
    routes.Route,
    routes.RouteTable,
    routes.RouteTableAssociation,
    s3.Bucket,
    s3.BucketLifecycleConfiguration,
    s3.BucketObjectv2,
    s3.BucketOwnershipControls,
    s3.BucketPolicy,
    s3.BucketPublicAccessBlock,
    s3.BucketServerSideEncryptionConfiguration,
    s3.BucketVersioning,
)

PACKAGE = Package(
    name="aws",
    distribution="pulumi-aws",
    resources={r.token: r() for r in _RESOURCES},
    functions=FUNCTIONS,
    open_session=open_session,
    errors=(ClientError, BotoCoreError, ResponseParserError),
)
"""The package `aws` as the engine sees it."""
