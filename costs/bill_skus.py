"""What clouds call in their bills what this fleet's document lists as shared. Pure.

Names of usage types: AWS "Data Exports: CUR 2.0 table dictionary" and the bills of each service; Google Cloud's SKU
descriptions. What is not here (traffic, requests, taxes) is billed by use and compared with nothing.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_AWS: Final = tuple(
    (re.compile(pattern), sku, counts_hours)
    for pattern, sku, counts_hours in (
        (r"(^|-)NatGateway-Hours$", "aws:vpc:nat-gateway", True),
        (r"(^|-)PublicIPv4:(InUse|Idle)Address$", "aws:vpc:public-ipv4", True),
        (r"(^|-)VpcEndpoint-Hours$", "aws:vpc:interface-endpoint", True),
        (r"(^|-)LoadBalancerUsage$", "aws:elb:load-balancer", True),
        # by the month: how many hours a month has is the cloud's choice, so no hours are compared
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
    """Our sku of a usage type ("" for none), and whether its amount is in hours."""
    for pattern, sku, counts_hours in _AWS:
        if (found := pattern.search(usage_type)) is not None:
            return sku.format(**found.groupdict()), counts_hours
    return "", False


def machine_of_aws(usage_type: str) -> str:
    """The sku of an instance's usage type, `aws:ec2:t3.medium:on-demand`; "" for another one."""
    found = _AWS_MACHINE.search(usage_type)
    if found is None:
        return ""
    return f"aws:ec2:{found['type']}:{'spot' if found['way'] == 'Spot' else 'on-demand'}"


def of_google(description: str) -> str:
    """Our sku of an SKU's description; "" for none."""
    return next((sku for pattern, sku in _GOOGLE if pattern.search(description)), "")


def machine_of_google(labels: Iterable[Mapping[str, Any]]) -> str:
    """The sku of an instance by the labels that the system gave its row; "" where they do not tell."""
    kind = next((str(label.get("value")) for label in labels if label.get("key") == _GOOGLE_MACHINE), "")
    return f"gcp:compute:{kind}:on-demand" if kind else ""
