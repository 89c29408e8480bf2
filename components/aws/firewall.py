"""Network access rules inside an environment on AWS."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pulumi
from pulumi_aws import ec2, vpc

ENGINE_PORT: Final = 8000
EXPORTER_PORT: Final = 9400
NODE_EXPORTER_PORT: Final = 9100
AGENT_PORT: Final = 9500
AGENT_CHECK_PORT: Final = 9501
ROUTER_PORT: Final = 8080
ROUTER_METRICS_PORT: Final = 8404
INSTANCE_PORTS: Final = (ENGINE_PORT, EXPORTER_PORT, AGENT_PORT, AGENT_CHECK_PORT)
PORTS_FOR_ROUTERS: Final = (ENGINE_PORT, AGENT_CHECK_PORT)
"""Ports of an instance that routers connect to: inference requests and the agent's readiness check."""
ANYWHERE: Final = "0.0.0.0/0"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallArgs:
    network_id: pulumi.Input[str]
    client_networks: Sequence[str] = ()
    """CIDR blocks of machines that may send requests to the router."""
    routers: bool = False
    """Whether routers run on their own machines behind a load balancer. Otherwise the control host is the router."""
    node_exporter: bool = False
    """Whether instances expose operating system metrics."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if ANYWHERE in self.client_networks:
            raise ValueError(
                f"client_networks: {ANYWHERE} contains all addresses; write the networks of your clients"
            )


class Firewall(pulumi.ComponentResource):
    """Security groups of an environment. The control host and routers reach the instances' ports, and the listed
    client networks reach routers. All other traffic is denied.
    """

    instances: pulumi.Output[str]
    """Security group of GPU instances."""
    control: pulumi.Output[str]
    """Security group of the control host."""
    routers: pulumi.Output[str]
    """Security group of routers and their load balancer. It is the control host's group if the control host is the
    router.
    """

    def __init__(self, name: str, args: FirewallArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Firewall", name, None, opts)
        self._name, self._args = name, args
        control = self._group("control", "Control host of gpu-fleet")
        instances = self._group("instances", "GPU instances of gpu-fleet")
        for port in (*INSTANCE_PORTS, *((NODE_EXPORTER_PORT,) if args.node_exporter else ())):
            self._from_group(f"{name}-instances-{port}", instances, control, port)
        routers, rules = control, list[pulumi.Resource]()
        if args.routers:
            routers = self._group("routers", "Routers of gpu-fleet")
            for port in PORTS_FOR_ROUTERS:
                rule = f"{name}-instances-{port}-routers"
                rules.append(self._from_group(rule, instances, routers, port, "from routers"))
            rules += [
                self._from_group(
                    f"{name}-routers-{ROUTER_PORT}", routers, routers, ROUTER_PORT, "from the load balancer"
                ),
                self._from_group(f"{name}-routers-{ROUTER_METRICS_PORT}", routers, control, ROUTER_METRICS_PORT),
            ]
        rules += [
            self._from_network(f"{name}-router-{client}", routers, client, ROUTER_PORT)
            for client in args.client_networks
        ]
        self.instances, self.control = instances.id, control.id
        # a router that moves into the group must be reachable immediately, so the id depends on the rules
        self.routers = pulumi.Output.all(routers.id, *(rule.urn for rule in rules)).apply(lambda known: known[0])
        self.register_outputs({"instances": self.instances, "control": self.control, "routers": self.routers})

    def _group(self, role: str, description: str) -> ec2.SecurityGroup:
        name, child = f"{self._name}-{role}", pulumi.ResourceOptions(parent=self)
        group = ec2.SecurityGroup(
            name,
            vpc_id=self._args.network_id,
            description=description,
            tags={"Name": name, **self._args.tags},
            opts=child,
        )
        vpc.SecurityGroupEgressRule(
            f"{name}-out",
            security_group_id=group.id,
            ip_protocol="-1",
            cidr_ipv4=ANYWHERE,
            description="the clouds' APIs and the bucket",
            opts=child,
        )
        return group

    def _from_group(  # noqa: PLR0913
        self,
        name: str,
        to: ec2.SecurityGroup,
        source: ec2.SecurityGroup,
        port: int,
        description: str = "from the control host",
    ) -> pulumi.Resource:
        return vpc.SecurityGroupIngressRule(
            name,
            security_group_id=to.id,
            referenced_security_group_id=source.id,
            ip_protocol="tcp",
            from_port=port,
            to_port=port,
            description=description,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _from_network(self, name: str, to: ec2.SecurityGroup, cidr: str, port: int) -> pulumi.Resource:
        return vpc.SecurityGroupIngressRule(
            name,
            security_group_id=to.id,
            cidr_ipv4=cidr,
            ip_protocol="tcp",
            from_port=port,
            to_port=port,
            description="from clients",
            opts=pulumi.ResourceOptions(parent=self),
        )
