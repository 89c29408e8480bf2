"""The private network of an environment on AWS."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
from pulumi_aws import ec2, vpc

from components.aws import endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkArgs:
    region: str
    account: str
    bucket: str
    """Name of the environment's bucket."""
    cidr: str
    zones: tuple[str, ...]
    zone_prefix: int = 20
    """Prefix length of each zone's subnet, in bits."""
    nat_gateway: bool = False
    """Create one NAT gateway for all zones. AWS bills it per hour and per gigabyte."""
    private_services: tuple[str, ...] = ()
    """AWS services with an endpoint inside the network, for example `ssm`. AWS bills each per hour and zone."""
    registries: tuple[str, ...] = ()
    """Accounts whose container images machines run, in addition to `account`."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        subnet_cidrs(self.cidr, self.zone_prefix, len(self.zones))


class Network(pulumi.ComponentResource):
    """A VPC with one private subnet per zone and an endpoint for the bucket. It accepts no inbound connections from
    outside.
    """

    id: pulumi.Output[str]
    subnet_ids: Mapping[str, pulumi.Output[str]]
    """Maps each zone to its private subnet."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Network", name, None, opts)
        self._name, self._args, self._child = name, args, pulumi.ResourceOptions(parent=self)
        network = ec2.Vpc(
            f"{name}-vpc",
            cidr_block=args.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self._named(name),
            opts=self._child,
        )
        outside, *cidrs = subnet_cidrs(args.cidr, args.zone_prefix, len(args.zones))
        routes = ec2.RouteTable(
            f"{name}-private", vpc_id=network.id, tags=self._named(f"{name}-private"), opts=self._child
        )
        self.id = network.id
        self.subnet_ids = {
            zone: self._subnet(zone, cidr, network, routes) for zone, cidr in zip(args.zones, cidrs, strict=True)
        }
        if args.nat_gateway:
            self._internet_route(network, routes, outside)
        self._bucket_endpoint(network, routes)
        self._service_endpoints(network)
        self.register_outputs({"id": self.id, "subnetIds": self.subnet_ids})

    def _subnet(self, zone: str, cidr: str, network: ec2.Vpc, routes: ec2.RouteTable) -> pulumi.Output[str]:
        name = f"{self._name}-{zone}"
        subnet = ec2.Subnet(
            name,
            vpc_id=network.id,
            availability_zone=zone,
            cidr_block=cidr,
            map_public_ip_on_launch=False,
            tags=self._named(name),
            opts=self._child,
        )
        ec2.RouteTableAssociation(name, subnet_id=subnet.id, route_table_id=routes.id, opts=self._child)
        return subnet.id

    def _internet_route(self, network: ec2.Vpc, private: ec2.RouteTable, cidr: str) -> None:
        name, child = f"{self._name}-out", self._child
        gateway = ec2.InternetGateway(name, vpc_id=network.id, tags=self._named(name), opts=child)
        public = ec2.RouteTable(name, vpc_id=network.id, tags=self._named(name), opts=child)
        ec2.Route(
            name, route_table_id=public.id, destination_cidr_block="0.0.0.0/0", gateway_id=gateway.id, opts=child
        )
        subnet = ec2.Subnet(
            name,
            vpc_id=network.id,
            availability_zone=self._args.zones[0],
            cidr_block=cidr,
            map_public_ip_on_launch=False,
            tags=self._named(name),
            opts=child,
        )
        ec2.RouteTableAssociation(name, subnet_id=subnet.id, route_table_id=public.id, opts=child)
        address = ec2.Eip(name, domain="vpc", tags=self._named(name), opts=child)
        nat = ec2.NatGateway(
            name,
            allocation_id=address.id,
            subnet_id=subnet.id,
            tags=self._named(name),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[gateway]),
        )
        ec2.Route(
            f"{self._name}-private",
            route_table_id=private.id,
            destination_cidr_block="0.0.0.0/0",
            nat_gateway_id=nat.id,
            opts=child,
        )

    def _bucket_endpoint(self, network: ec2.Vpc, routes: ec2.RouteTable) -> None:
        ec2.VpcEndpoint(
            f"{self._name}-s3",
            vpc_id=network.id,
            service_name=f"com.amazonaws.{self._args.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[routes.id],
            # with a NAT gateway the policy would isolate nothing, and would break other S3 downloads in this region
            policy=None
            if self._args.nat_gateway
            else endpoints.of_s3(region=self._args.region, account=self._args.account, bucket=self._args.bucket),
            tags=self._named(f"{self._name}-s3"),
            opts=self._child,
        )

    def _service_endpoints(self, network: ec2.Vpc) -> None:
        if not self._args.private_services:
            return
        name = f"{self._name}-services"
        group = ec2.SecurityGroup(
            name,
            vpc_id=network.id,
            description="Endpoints of AWS services",
            tags=self._named(name),
            opts=self._child,
        )
        vpc.SecurityGroupIngressRule(
            name,
            security_group_id=group.id,
            cidr_ipv4=self._args.cidr,
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            description="from this network",
            opts=self._child,
        )
        for service in self._args.private_services:
            ec2.VpcEndpoint(
                f"{self._name}-{service}",
                vpc_id=network.id,
                service_name=f"com.amazonaws.{self._args.region}.{service}",
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,
                subnet_ids=list(self.subnet_ids.values()),
                security_group_ids=[group.id],
                policy=endpoints.of_service(service, account=self._args.account, registries=self._args.registries),
                tags=self._named(f"{self._name}-{service}"),
                opts=self._child,
            )

    def _named(self, name: str) -> dict[str, str]:
        return {"Name": name, **self._args.tags}


def subnet_cidrs(cidr: str, prefix: int, zones: int) -> tuple[str, ...]:
    """Return subnets of that prefix length: first the subnet for public resources, then one per zone.

    Raises ValueError when they do not fit into `cidr`.
    """
    network = ipaddress.ip_network(cidr)
    if prefix <= network.prefixlen or 2 ** (prefix - network.prefixlen) < zones + 1:
        raise ValueError(f"{zones} zones of /{prefix} do not fit into {cidr}; widen cidr, or raise zone_prefix")
    subnets = network.subnets(new_prefix=prefix)
    return tuple(str(next(subnets)) for _ in range(zones + 1))
