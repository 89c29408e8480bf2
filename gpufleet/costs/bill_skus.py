"""Maps the names of shared resources in bills to skus, and skus to services. Pure.

Names of usage types: AWS "Data Exports: CUR 2.0 table dictionary" and the bills of each service; Google Cloud's SKU
descriptions. Other items (traffic, requests, taxes) are billed by use and not compared. Categories and
subcategories of services: FOCUS 1.2, "Service Category" and "Service Subcategory".
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.domain.model import Cloud

_AWS: Final = tuple(
    (re.compile(pattern), sku, counts_hours)
    for pattern, sku, counts_hours in (
        (r"(^|-)NatGateway-Hours$", "aws:vpc:nat-gateway", True),
        (r"(^|-)PublicIPv4:(InUse|Idle)Address$", "aws:vpc:public-ipv4", True),
        (r"(^|-)VpcEndpoint-Hours$", "aws:vpc:interface-endpoint", True),
        (r"(^|-)LoadBalancerUsage$", "aws:elb:load-balancer", True),
        # billed by the month: its number of hours is the cloud's choice, so hours are not compared
        (r"(^|-)EBS:VolumeUsage\.(?P<kind>\w+)$", "aws:ebs:{kind}:gib", False),
        (r"(^|-)EBS:VolumeP-IOPS\.gp3$", "aws:ebs:gp3:iops", False),
        (r"(^|-)EBS:VolumeP-Throughput\.gp3$", "aws:ebs:gp3:mib-per-second", False),
        (r"(^|-)HostedZone$", "aws:route53:zone", False),
        (r"(^|-)KMS-Keys$", "aws:kms:key", False),
    )
)
_AWS_MACHINE: Final = re.compile(r"(?P<way>Box|Spot)Usage:(?P<type>[\w.-]+)$")

_GOOGLE: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), sku)
    for pattern, sku in (
        (r"nat gateway.*uptime", "gcp:network:nat-gateway"),
        (r"forwarding rule", "gcp:network:forwarding-rule"),
        (r"managed ?zone", "gcp:dns:zone"),
        (r"balanced pd capacity", "gcp:disk:pd-balanced:gib"),
        (r"ssd backed pd capacity", "gcp:disk:pd-ssd:gib"),
        (r"storage pd capacity", "gcp:disk:pd-standard:gib"),
    )
)
_GOOGLE_MACHINE: Final = "compute.googleapis.com/machine_spec"


def of_aws(usage_type: str) -> tuple[str, bool]:
    """The sku of a usage type ("" if unknown), and whether its amount is in hours."""
    for pattern, sku, counts_hours in _AWS:
        if (found := pattern.search(usage_type)) is not None:
            return sku.format(**found.groupdict()), counts_hours
    return "", False


def machine_of_aws(usage_type: str) -> str:
    """The sku of an instance's usage type, such as `aws:ec2:t3.medium:on-demand`; "" for other usage types."""
    found = _AWS_MACHINE.search(usage_type)
    if found is None:
        return ""
    return f"aws:ec2:{found['type']}:{'spot' if found['way'] == 'Spot' else 'on-demand'}"


def of_google(description: str) -> str:
    """The price book's sku for the description of a Google SKU; "" if there is none."""
    return next((sku for pattern, sku in _GOOGLE if pattern.search(description)), "")


def machine_of_google(labels: Iterable[Mapping[str, Any]]) -> str:
    """The sku of an instance by the system labels of its row; "" if they do not name a machine type."""
    kind = next((str(label.get("value")) for label in labels if label.get("key") == _GOOGLE_MACHINE), "")
    return f"gcp:compute:{kind}:on-demand" if kind else ""


@dataclass(frozen=True, slots=True)
class BilledService:
    """The service of a cloud to which a sku belongs, in the terms of FOCUS."""

    name: str
    category: str
    subcategory: str
    resource_type: str
    meter: str
    unit: str = "Hours"


MACHINES: Final = {
    cloud: BilledService(name, "Compute", "Virtual Machines", "Virtual Machine", "Compute Usage")
    for cloud, name in ((Cloud.AWS, "Amazon Elastic Compute Cloud"), (Cloud.GCP, "Compute Engine"))
}
COMMITMENTS: Final = {
    Cloud.AWS: BilledService("AWS Savings Plans", "Compute", "Other (Compute)", "Savings Plan", "Commitment", "USD"),
    Cloud.GCP: BilledService(
        "Committed Use Discounts", "Compute", "Other (Compute)", "Committed Use Discount", "Commitment", "USD"
    ),
}
_NETWORKING, _STORAGE, _SECURITY = "Networking", "Storage", "Security"
_INFRASTRUCTURE: Final = "Network Infrastructure"
_BALANCING: Final = ("Application Networking", "Load Balancer", "Load Balancer Usage")
_DISK: Final = ("Block Storage", "Disk")
_SERVICES: Final = tuple(
    (re.compile(pattern), service)
    for pattern, service in (
        (
            r"^aws:.*nat-gateway",
            BilledService(
                "Amazon Virtual Private Cloud", _NETWORKING, _INFRASTRUCTURE, "NAT Gateway", "NAT Gateway Usage"
            ),
        ),
        (
            r"^aws:vpc:interface-endpoint",
            BilledService(
                "Amazon Virtual Private Cloud", _NETWORKING, _INFRASTRUCTURE, "VPC Endpoint", "VPC Endpoint Usage"
            ),
        ),
        (
            r"^aws:vpc:public-ipv4",
            BilledService(
                "Amazon Virtual Private Cloud", _NETWORKING, _INFRASTRUCTURE, "IP Address", "IP Address Usage"
            ),
        ),
        (r"^aws:elb:|^aws:.*load-balancer", BilledService("Elastic Load Balancing", _NETWORKING, *_BALANCING)),
        (
            r"^aws:route53:",
            BilledService("Amazon Route 53", _NETWORKING, _INFRASTRUCTURE, "DNS Zone", "DNS Zone Usage"),
        ),
        (
            r"^aws:ebs:.*:iops$",
            BilledService("Amazon Elastic Block Store", _STORAGE, *_DISK, "Provisioned IOPS", "IOPS-Hours"),
        ),
        (
            r"^aws:ebs:.*:mib-per-second$",
            BilledService("Amazon Elastic Block Store", _STORAGE, *_DISK, "Provisioned Throughput", "MiB/s-Hours"),
        ),
        (
            r"^aws:ebs:",
            BilledService("Amazon Elastic Block Store", _STORAGE, *_DISK, "Block Volume Usage", "GiB-Hours"),
        ),
        (
            r"^aws:kms:",
            BilledService("AWS Key Management Service", _SECURITY, "Secret Management", "Key", "Key Storage"),
        ),
        (r"^aws:ec2:", MACHINES[Cloud.AWS]),
        (
            r"^gcp:.*nat-gateway",
            BilledService("Cloud NAT", _NETWORKING, _INFRASTRUCTURE, "NAT Gateway", "NAT Gateway Usage"),
        ),
        (r"^gcp:.*(forwarding-rule|load-balancer)", BilledService("Cloud Load Balancing", _NETWORKING, *_BALANCING)),
        (r"^gcp:dns:", BilledService("Cloud DNS", _NETWORKING, _INFRASTRUCTURE, "DNS Zone", "DNS Zone Usage")),
        (r"^gcp:disk:", BilledService("Persistent Disk", _STORAGE, *_DISK, "Block Volume Usage", "GiB-Hours")),
        (r"^gcp:compute:", MACHINES[Cloud.GCP]),
    )
)


def service_of(sku: str) -> BilledService:
    """The service of a sku of the price book; "Other" for an unknown sku."""
    found = next((service for pattern, service in _SERVICES if pattern.search(sku)), None)
    return found or BilledService(":".join(sku.split(":")[:2]), "Other", "Other (Other)", "Other", sku)
