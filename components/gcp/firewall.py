"""Network access rules inside an environment on Google Cloud."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pulumi
from pulumi_gcp import compute

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
TUNNEL_NETWORK: Final = "35.235.240.0/20"
"""Source addresses of the Identity-Aware Proxy (Google's documentation of TCP forwarding)."""
PROBE_NETWORKS: Final = ("35.191.0.0/16", "130.211.0.0/22")
"""Source addresses of health checks (Google's documentation of health checks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallArgs:
    network_id: pulumi.Input[str]
    instance_account: pulumi.Input[str]
    """Service account of GPU instances."""
    control_account: pulumi.Input[str]
    """Service account of the control host."""
    router_account: pulumi.Input[str] | None = None
    """Service account of routers on their own machines. None: the control host is the router."""
    client_networks: Sequence[str] = ()
    """CIDR blocks of machines that may send requests to the router."""
    node_exporter: bool = False
    """Whether instances expose operating system metrics."""

    def __post_init__(self) -> None:
        if ANYWHERE in self.client_networks:
            raise ValueError(
                f"client_networks: {ANYWHERE} contains all addresses; write the networks of your clients"
            )


class Firewall(pulumi.ComponentResource):
    """Firewall rules of an environment. The control host and routers reach the instances' ports, the listed client
    networks reach routers, and operators connect through IAP. All other traffic is denied.
    """

    def __init__(self, name: str, args: FirewallArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:gcp:Firewall", name, None, opts)
        self._name, self._network = name, args.network_id
        self._allow(
            "instances",
            (*INSTANCE_PORTS, *((NODE_EXPORTER_PORT,) if args.node_exporter else ())),
            source_service_accounts=[args.control_account],
            target_service_accounts=[args.instance_account],
        )
        self._allow(
            "probes",
            (AGENT_PORT,),
            source_ranges=PROBE_NETWORKS,
            target_service_accounts=[args.instance_account],
        )
        control = [args.control_account]
        routers = control if args.router_account is None else [args.router_account]
        every = control if args.router_account is None else [*control, *routers]
        self._allow("tunnel", (22,), source_ranges=(TUNNEL_NETWORK,), target_service_accounts=every)
        self._allow("router-probes", (ROUTER_PORT,), source_ranges=PROBE_NETWORKS, target_service_accounts=routers)
        if args.router_account is not None:
            self._allow(
                "instances-routers",
                PORTS_FOR_ROUTERS,
                source_service_accounts=routers,
                target_service_accounts=[args.instance_account],
            )
            metrics = (ROUTER_METRICS_PORT,)
            self._allow("routers", metrics, source_service_accounts=control, target_service_accounts=routers)
        if args.client_networks:
            self._allow("router", (ROUTER_PORT,), source_ranges=args.client_networks, target_service_accounts=routers)
        self.register_outputs({})

    def _allow(
        self,
        what: str,
        ports: Sequence[int],
        *,
        target_service_accounts: Sequence[pulumi.Input[str]],
        source_service_accounts: Sequence[pulumi.Input[str]] | None = None,
        source_ranges: Sequence[str] | None = None,
    ) -> None:
        compute.Firewall(
            f"{self._name}-{what}",
            network=self._network,
            direction="INGRESS",
            allows=[compute.FirewallAllowArgs(protocol="tcp", ports=[str(port) for port in ports])],
            source_ranges=list(source_ranges) if source_ranges else None,
            source_service_accounts=list(source_service_accounts) if source_service_accounts else None,
            target_service_accounts=list(target_service_accounts),
            opts=pulumi.ResourceOptions(parent=self),
        )
