"""High-speed networking between the instances of one pool on AWS: EFA interfaces, their security group and a
placement group.
"""

from collections.abc import Mapping

import pulumi
from pulumi_aws import ec2, vpc

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud


class Fabric(pulumi.ComponentResource):
    """A security group of one pool. Its members may exchange all traffic, as EFA requires; no other traffic is
    allowed.
    """

    group: pulumi.Output[str]
    """Security group of the EFA interfaces, in addition to the group of all GPU instances."""

    def __init__(
        self,
        name: str,
        network_id: pulumi.Input[str],
        tags: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("gpu-fleet:aws:Fabric", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = ec2.SecurityGroup(
            name, vpc_id=network_id, description="EFA of gpu-fleet", tags={"Name": name, **tags}, opts=child
        )
        # EFA is not IP, so a rule for 0.0.0.0/0 does not cover it: both directions name the group itself
        for direction, rule in (("in", vpc.SecurityGroupIngressRule), ("out", vpc.SecurityGroupEgressRule)):
            rule(
                f"{name}-{direction}",
                security_group_id=group.id,
                referenced_security_group_id=group.id,
                ip_protocol="-1",
                description="EFA among instances",
                opts=child,
            )
        self.group = group.id
        self.register_outputs({"group": self.group})


def interface_count(machine_types: tuple[str, ...]) -> int:
    """Return the number of EFA interfaces of these machine types. Raises ValueError when a type has none or the
    numbers differ.
    """
    found = {name: catalogue.machine(Cloud.AWS, name).efa_interfaces for name in machine_types}
    counts = set(found.values())
    count = counts.pop()
    if counts or not count:
        raise ValueError(f"machine types {found}: expected the same number of EFA interfaces for all, at least one")
    return count


def interfaces(count: int, security_groups: list[pulumi.Input[str]]) -> list[ec2.LaunchTemplateNetworkInterfaceArgs]:
    """Return one interface per network card. Only the first also carries the instance's IP address."""
    return [
        ec2.LaunchTemplateNetworkInterfaceArgs(
            device_index=min(card, 1),
            network_card_index=card,
            interface_type="efa-only" if card else "efa",
            associate_public_ip_address="false",
            delete_on_termination="true",
            security_groups=security_groups,
        )
        for card in range(count)
    ]


def close_together(name: str, tags: Mapping[str, str], parent: pulumi.Resource) -> ec2.PlacementGroup:
    """Declare a cluster placement group: its instances share one high-bandwidth segment of one zone's network."""
    return ec2.PlacementGroup(
        name,
        strategy="cluster",
        tags={"Name": name, **tags},
        opts=pulumi.ResourceOptions(parent=parent),
    )
