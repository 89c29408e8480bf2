"""The control host of an environment: watchdogs, Prometheus and router. Large environments have separate router
machines.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pulumi
from pulumi_gcp import compute, dns

from components.capacity import CONTROL_ROOT_GIB
from components.gcp.firewall import ROUTER_PORT
from components.gcp.templates import SCOPE
from gpufleet.domain.tags import CONTROL, ROLE, ROUTER, label

DATA_DEVICE: Final = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineArgs:
    """A small machine without a GPU."""

    image: pulumi.Input[str]
    machine_type: str
    service_account: pulumi.Input[str]
    """Email address of the service account."""
    subnet: pulumi.Input[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlHostArgs:
    machine: MachineArgs
    zone: str
    network_id: pulumi.Input[str]
    domain: str
    """Private DNS zone. The name of the host is `control.<domain>`."""
    data_gib: int
    """Size of the data disk in GiB. The disk keeps the ledger and metrics when the machine is replaced."""
    boot_data: Callable[[str], str] | None = None
    """Returns the startup script for the device of the data disk. None: the machine starts without software."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class ControlHost(pulumi.ComponentResource):
    """A machine with IAP access only, a data disk that outlives the machine, and a DNS name inside the network."""

    domain_id: pulumi.Output[str]
    """Private DNS zone. Other components add their names to it."""

    def __init__(self, name: str, args: ControlHostArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:gcp:ControlHost", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        data = compute.Disk(
            f"{name}-data",
            zone=args.zone,
            size=args.data_gib,
            type="pd-balanced",
            labels=dict(args.labels),
            # the ledger is stored on this disk
            opts=pulumi.ResourceOptions(parent=self, protect=True),
        )
        attached = [compute.InstanceAttachedDiskArgs(source=data.id, device_name=DATA_DEVICE)]
        script = None if args.boot_data is None else args.boot_data(f"/dev/disk/by-id/google-{DATA_DEVICE}")
        labels = {**args.labels, label(ROLE): CONTROL}
        # the old machine must detach the disk before the new one attaches it
        alone = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        machine = small_machine(name, args.machine, args.zone, labels, alone, attached, script)
        zone = dns.ManagedZone(
            name,
            dns_name=f"{args.domain}.",
            visibility="private",
            description="Names inside an environment of gpu-fleet",
            private_visibility_config=dns.ManagedZonePrivateVisibilityConfigArgs(
                networks=[dns.ManagedZonePrivateVisibilityConfigNetworkArgs(network_url=args.network_id)]
            ),
            labels=dict(args.labels),
            opts=child,
        )
        dns.RecordSet(
            f"{name}-control",
            managed_zone=zone.name,
            name=f"control.{args.domain}.",
            type="A",
            ttl=30,
            rrdatas=[_address(machine)],
            opts=child,
        )
        self.domain_id = zone.name
        self.register_outputs({"domainId": self.domain_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutersArgs:
    machine: MachineArgs
    zones: Sequence[str]
    """The zones. There is one router per zone."""
    region: str
    network_id: pulumi.Input[str]
    domain: str
    domain_id: pulumi.Input[str]
    boot_data: str | None = None
    """Startup script. None: the machines start without software."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    after: Sequence[pulumi.Resource] = ()
    """Resources that routers need to connect, to read and to be reachable."""


class Routers(pulumi.ComponentResource):
    """Routers in several zones behind an internal load balancer named `router.<domain>`."""

    def __init__(self, name: str, args: RoutersArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:gcp:Routers", name, None, opts)
        machines: list[compute.Instance] = []
        child = pulumi.ResourceOptions(parent=self)
        health = compute.RegionHealthCheck(
            name,
            region=args.region,
            tcp_health_check=compute.RegionHealthCheckTcpHealthCheckArgs(port=ROUTER_PORT),
            opts=child,
        )
        service = compute.RegionBackendService(
            name,
            region=args.region,
            protocol="TCP",
            load_balancing_scheme="INTERNAL",
            health_checks=health.id,
            backends=[
                compute.RegionBackendServiceBackendArgs(group=group, balancing_mode="CONNECTION")
                for group in self._routers(name, args, machines)
            ],
            opts=child,
        )
        rule = compute.ForwardingRule(
            name,
            region=args.region,
            load_balancing_scheme="INTERNAL",
            ip_protocol="TCP",
            ports=[str(ROUTER_PORT)],
            backend_service=service.id,
            network=args.network_id,
            subnetwork=args.machine.subnet,
            labels=dict(args.labels),
            opts=child,
        )
        dns.RecordSet(
            name,
            managed_zone=args.domain_id,
            name=f"router.{args.domain}.",
            type="A",
            ttl=30,
            rrdatas=[rule.ip_address],
            opts=child,
        )
        self.machines: pulumi.Output[list[str]] = pulumi.Output.all(*(machine.name for machine in machines))
        self.register_outputs({})

    def _routers(
        self, name: str, args: RoutersArgs, machines: list[compute.Instance]
    ) -> Iterator[pulumi.Output[str]]:
        """Yield the instance group of each router, and append the router to `machines`."""
        labels, after = {**args.labels, label(ROLE): ROUTER}, args.after
        for zone in args.zones:
            # one after the other: Google stops a machine for some changes, such as a new service account
            opts = pulumi.ResourceOptions(parent=self, depends_on=list(after))
            named = f"{name}-{zone}"
            machine = small_machine(named, args.machine, zone, labels, opts, (), args.boot_data)
            after = (machine,)
            machines.append(machine)
            child = pulumi.ResourceOptions(parent=self)
            yield compute.InstanceGroup(named, zone=zone, instances=[machine.self_link], opts=child).self_link


def small_machine(  # noqa: PLR0913
    name: str,
    args: MachineArgs,
    zone: str,
    labels: Mapping[str, str],
    opts: pulumi.ResourceOptions,
    attached: Sequence[compute.InstanceAttachedDiskArgs] = (),
    script: str | None = None,
) -> compute.Instance:
    """Declare a machine without a public address or SSH keys. Operators connect through IAP and OS Login."""
    return compute.Instance(
        name,
        zone=zone,
        machine_type=args.machine_type,
        boot_disk=compute.InstanceBootDiskArgs(
            initialize_params=compute.InstanceBootDiskInitializeParamsArgs(
                image=args.image, type="pd-balanced", size=CONTROL_ROOT_GIB
            )
        ),
        attached_disks=list(attached),
        # no access_configs: no public address
        network_interfaces=[compute.InstanceNetworkInterfaceArgs(subnetwork=args.subnet)],
        metadata={"enable-oslogin": "TRUE", "block-project-ssh-keys": "TRUE"},
        metadata_startup_script=script,
        service_account=compute.InstanceServiceAccountArgs(email=args.service_account, scopes=[SCOPE]),
        shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
            enable_secure_boot=True, enable_vtpm=True, enable_integrity_monitoring=True
        ),
        allow_stopping_for_update=True,
        labels=dict(labels),
        opts=opts,
    )


def _address(machine: compute.Instance) -> pulumi.Output[str]:
    return machine.network_interfaces.apply(lambda interfaces: (interfaces[0].network_ip if interfaces else "") or "")
