"""All that the local Google Cloud provider models."""

from __future__ import annotations

from localcloud.provider.gcp import balancing, capacity, dns, groups, iam, machines, network, storage, templates
from localcloud.provider.gcp.session import open_session
from localcloud.provider.resource import Resource
from localcloud.provider.server import Package

_RESOURCES: tuple[type[Resource], ...] = (
    balancing.ForwardingRule,
    balancing.HealthCheck,
    balancing.RegionBackendService,
    balancing.RegionHealthCheck,
    capacity.Disk,
    capacity.InstanceGroup,
    capacity.Reservation,
    dns.ManagedZone,
    dns.RecordSet,
    groups.InstanceGroupManager,
    groups.RegionInstanceGroupManager,
    iam.Account,
    iam.BucketIAMMember,
    iam.IAMCustomRole,
    iam.IAMMember,
    iam.SecretIamMember,
    machines.Instance,
    network.Firewall,
    network.Network,
    network.Router,
    network.RouterNat,
    network.Subnetwork,
    storage.Bucket,
    storage.BucketObject,
    templates.InstanceTemplate,
)

PACKAGE = Package(
    name="gcp",
    distribution="pulumi-gcp",
    resources={r.token: r() for r in _RESOURCES},
    functions={},
    open_session=open_session,
)
"""The package `gcp` as the engine sees it."""
