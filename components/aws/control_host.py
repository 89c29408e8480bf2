"""The control host of an environment: watchdogs, Prometheus and router. Large environments have separate router
machines.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pulumi
from pulumi_aws import ebs, ec2, lb, route53

from components.aws.firewall import ROUTER_PORT
from components.capacity import CONTROL_ROOT_GIB
from gpufleet.domain.tags import CONTROL, ROLE, ROUTER

DATA_DEVICE: Final = "/dev/sdf"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineArgs:
    """A small machine without a GPU."""

    image: pulumi.Input[str]
    machine_type: str
    instance_profile: pulumi.Input[str]
    """Name of the instance profile."""
    security_group: pulumi.Input[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlHostArgs:
    machine: MachineArgs
    zone: str
    subnet_id: pulumi.Input[str]
    network_id: pulumi.Input[str]
    domain: str
    """Private DNS zone. The name of the host is `control.<domain>`."""
    data_gib: int
    """Size of the data volume in GiB. The volume keeps the ledger and metrics when the machine is replaced."""
    boot_data: Callable[[str], str] | None = None
    """Returns user data for the device of the data volume. None: the machine starts without software."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


class ControlHost(pulumi.ComponentResource):
    """A machine with SSM access only, a data volume that outlives the machine, and a DNS name inside the network."""

    domain_id: pulumi.Output[str]
    """Private DNS zone. Other components add their names to it."""

    def __init__(self, name: str, args: ControlHostArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:ControlHost", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        tags = {"Name": name, **args.tags}
        data = ebs.Volume(
            f"{name}-data",
            availability_zone=args.zone,
            size=args.data_gib,
            type="gp3",
            encrypted=True,
            tags={**tags, "Name": f"{name}-data"},
            # the ledger is stored on this volume
            opts=pulumi.ResourceOptions(parent=self, protect=True),
        )
        script = args.boot_data
        user_data = None if script is None else data.id.apply(lambda volume: script(device_of(volume)))
        machine = small_machine(name, args.machine, args.subnet_id, {**tags, ROLE: CONTROL}, child, user_data)
        ec2.VolumeAttachment(
            f"{name}-data",
            device_name=DATA_DEVICE,
            instance_id=machine.id,
            volume_id=data.id,
            # the old machine must detach the volume before the new one attaches it
            stop_instance_before_detaching=True,
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        zone = route53.Zone(
            name,
            name=args.domain,
            vpcs=[route53.ZoneVpcArgs(vpc_id=args.network_id)],
            comment="Names inside an environment of gpu-fleet",
            tags=dict(args.tags),
            opts=child,
        )
        route53.Record(
            f"{name}-control",
            zone_id=zone.zone_id,
            name=f"control.{args.domain}",
            type="A",
            ttl=30,
            records=[machine.private_ip],
            opts=child,
        )
        self.domain_id = zone.zone_id
        self.register_outputs({"domainId": self.domain_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutersArgs:
    machine: MachineArgs
    subnet_ids: Mapping[str, pulumi.Input[str]]
    """Maps the zone of each router to its subnet. There is one router per zone."""
    network_id: pulumi.Input[str]
    domain: str
    domain_id: pulumi.Input[str]
    boot_data: str | None = None
    """User data. None: the machines start without software."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


class Routers(pulumi.ComponentResource):
    """Routers in several zones behind an internal load balancer named `router.<domain>`."""

    def __init__(self, name: str, args: RoutersArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Routers", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        balancer = lb.LoadBalancer(
            name,
            internal=True,
            load_balancer_type="network",
            subnets=list(args.subnet_ids.values()),
            security_groups=[args.machine.security_group],
            enable_cross_zone_load_balancing=True,
            tags=dict(args.tags),
            opts=child,
        )
        targets = lb.TargetGroup(
            name,
            port=ROUTER_PORT,
            protocol="TCP",
            target_type="instance",
            vpc_id=args.network_id,
            health_check=lb.TargetGroupHealthCheckArgs(protocol="TCP", interval=10, healthy_threshold=2),
            tags=dict(args.tags),
            opts=child,
        )
        lb.Listener(
            name,
            load_balancer_arn=balancer.arn,
            port=ROUTER_PORT,
            protocol="TCP",
            default_actions=[lb.ListenerDefaultActionArgs(type="forward", target_group_arn=targets.arn)],
            tags=dict(args.tags),
            opts=child,
        )
        machines: list[ec2.Instance] = []
        for zone, subnet_id in args.subnet_ids.items():
            tags = {"Name": f"{name}-{zone}", **args.tags, ROLE: ROUTER}
            machine = small_machine(f"{name}-{zone}", args.machine, subnet_id, tags, child, args.boot_data)
            machines.append(machine)
            lb.TargetGroupAttachment(
                f"{name}-{zone}",
                target_group_arn=targets.arn,
                target_id=machine.id,
                port=ROUTER_PORT,
                opts=child,
            )
        route53.Record(
            name,
            zone_id=args.domain_id,
            name=f"router.{args.domain}",
            type="A",
            aliases=[
                route53.RecordAliasArgs(name=balancer.dns_name, zone_id=balancer.zone_id, evaluate_target_health=True)
            ],
            opts=child,
        )
        self.machines: pulumi.Output[list[str]] = pulumi.Output.all(*(machine.id for machine in machines))
        self.register_outputs({})


def small_machine(  # noqa: PLR0913
    name: str,
    args: MachineArgs,
    subnet_id: pulumi.Input[str],
    tags: Mapping[str, str],
    opts: pulumi.ResourceOptions,
    user_data: pulumi.Input[str] | None = None,
) -> ec2.Instance:
    """Declare a machine without a public address or SSH key. Operators connect through SSM."""
    return ec2.Instance(
        name,
        ami=args.image,
        instance_type=args.machine_type,
        subnet_id=subnet_id,
        vpc_security_group_ids=[args.security_group],
        associate_public_ip_address=False,
        iam_instance_profile=args.instance_profile,
        user_data=user_data,
        # user data runs only at the first boot of a machine
        user_data_replace_on_change=None if user_data is None else True,
        metadata_options=ec2.InstanceMetadataOptionsArgs(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        root_block_device=ec2.InstanceRootBlockDeviceArgs(
            volume_type="gp3", volume_size=CONTROL_ROOT_GIB, encrypted=True
        ),
        tags=dict(tags),
        opts=opts,
    )


def device_of(volume: str) -> str:
    """Return the path of a volume's device on a machine of the Nitro system. It does not depend on the attachment's
    device name.
    """
    return f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"


def zones_of_routers(zones: Sequence[str], count: int) -> tuple[str, ...]:
    """Return one zone for each router. Raises ValueError when there are fewer zones than routers."""
    if count > len(zones):
        raise ValueError(f"zones: expected at least {count}, one for each router, got {len(zones)}")
    return tuple(zones[:count])
