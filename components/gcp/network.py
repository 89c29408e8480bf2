"""The private network of an environment on Google Cloud."""

from dataclasses import dataclass

import pulumi
from pulumi_gcp import compute


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkArgs:
    region: str
    cidr: str
    nat_gateway: bool = False
    """Create one Cloud NAT for the region. Google bills it per hour, address and gigabyte."""


class Network(pulumi.ComponentResource):
    """A VPC with one private subnet across the region's zones and private access to Google's APIs. It accepts no
    inbound connections from outside.
    """

    id: pulumi.Output[str]
    subnet_id: pulumi.Output[str]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:gcp:Network", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        network = compute.Network(name, auto_create_subnetworks=False, opts=child)
        subnet = compute.Subnetwork(
            name,
            network=network.id,
            region=args.region,
            ip_cidr_range=args.cidr,
            # access to the bucket, the registry and the APIs without a public address
            private_ip_google_access=True,
            opts=child,
        )
        if args.nat_gateway:
            router = compute.Router(name, network=network.id, region=args.region, opts=child)
            compute.RouterNat(
                name,
                router=router.name,
                region=args.region,
                nat_ip_allocate_option="AUTO_ONLY",
                source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
                opts=child,
            )
        self.id, self.subnet_id = network.id, subnet.id
        self.register_outputs({"id": self.id, "subnetId": self.subnet_id})
