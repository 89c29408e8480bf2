"""The private network of an environment on AWS."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pulumi
from pulumi_aws import ec2, vpc

ENGINE_PORT: Final = 8000
EXPORTER_PORT: Final = 9400
AGENT_PORT: Final = 9500
AGENT_CHECK_PORT: Final = 9501
INSTANCE_PORTS: Final = (ENGINE_PORT, EXPORTER_PORT, AGENT_PORT, AGENT_CHECK_PORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkArgs:
    region: str
    cidr: str
    zones: tuple[str, ...]
    zone_prefix: int = 20
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        subnet_cidrs(self.cidr, self.zone_prefix, len(self.zones))


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenNetworkArgs:
    """A network that somebody else owns."""

    id: str
    subnets: Mapping[str, str]


class Network(pulumi.ComponentResource):
    """A VPC with one private subnet per zone and the way to the bucket; no way in from outside."""

    id: pulumi.Output[str]
    subnet_ids: Mapping[str, pulumi.Output[str]]
    """Zone to subnet."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Network", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self._name, self._tags = name, dict(args.tags)

        network = ec2.Vpc(
            f"{name}-vpc",
            cidr_block=args.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self._named(name),
            opts=child,
        )
        routes = ec2.RouteTable(f"{name}-private", vpc_id=network.id, tags=self._named(f"{name}-private"), opts=child)
        cidrs = subnet_cidrs(args.cidr, args.zone_prefix, len(args.zones))
        self.subnet_ids = {
            zone: self._subnet(zone, cidr, network, routes) for zone, cidr in zip(args.zones, cidrs, strict=True)
        }
        ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=network.id,
            service_name=f"com.amazonaws.{args.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[routes.id],
            tags=self._named(f"{name}-s3"),
            opts=child,
        )
        self.id = network.id
        self.register_outputs({"id": self.id, "subnetIds": self.subnet_ids})

    def _subnet(self, zone: str, cidr: str, network: ec2.Vpc, routes: ec2.RouteTable) -> pulumi.Output[str]:
        name, child = f"{self._name}-{zone}", pulumi.ResourceOptions(parent=self)
        subnet = ec2.Subnet(
            name,
            vpc_id=network.id,
            availability_zone=zone,
            cidr_block=cidr,
            map_public_ip_on_launch=False,
            tags=self._named(name),
            opts=child,
        )
        ec2.RouteTableAssociation(name, subnet_id=subnet.id, route_table_id=routes.id, opts=child)
        return subnet.id

    def _named(self, name: str) -> dict[str, str]:
        return {"Name": name, **self._tags}


class Firewall(pulumi.ComponentResource):
    """Who may talk to whom: the control host to the instances' ports, nobody from outside."""

    instances: pulumi.Output[str]
    """Security group of GPU instances."""
    control: pulumi.Output[str]
    """Security group of the control host (router, Prometheus, watchdogs)."""

    def __init__(
        self,
        name: str,
        network_id: pulumi.Input[str],
        tags: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("gpu-fleet:aws:Firewall", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)

        def group(role: str, description: str) -> ec2.SecurityGroup:
            named = {"Name": f"{name}-{role}", **tags}
            made = ec2.SecurityGroup(
                f"{name}-{role}", vpc_id=network_id, description=description, tags=named, opts=child
            )
            vpc.SecurityGroupEgressRule(
                f"{name}-{role}-out",
                security_group_id=made.id,
                ip_protocol="-1",
                cidr_ipv4="0.0.0.0/0",
                description="answers, the clouds' APIs, the bucket",
                opts=child,
            )
            return made

        control = group("control", "Control host of gpu-fleet")
        instances = group("instances", "GPU instances of gpu-fleet")
        for port in INSTANCE_PORTS:
            vpc.SecurityGroupIngressRule(
                f"{name}-instances-{port}",
                security_group_id=instances.id,
                referenced_security_group_id=control.id,
                ip_protocol="tcp",
                from_port=port,
                to_port=port,
                description="from the control host",
                opts=child,
            )
        self.instances, self.control = instances.id, control.id
        self.register_outputs({"instances": self.instances, "control": self.control})


def subnet_cidrs(cidr: str, prefix: int, count: int) -> tuple[str, ...]:
    """`count` subnets of that prefix length; the very first is left free for what belongs to no zone.

    Raises ValueError when they do not fit.
    """
    network = ipaddress.ip_network(cidr)
    if prefix <= network.prefixlen or 2 ** (prefix - network.prefixlen) < count + 1:
        raise ValueError(f"{count} zones of /{prefix} do not fit into {cidr}; widen cidr or lengthen zone_prefix")
    subnets = network.subnets(new_prefix=prefix)
    next(subnets)
    return tuple(str(next(subnets)) for _ in range(count))
