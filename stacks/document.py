"""Creates the fleet document of a deployed environment."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal

from components.capacity import CONTROL_ROOT_GIB
from gpufleet.domain.model import Cloud
from gpufleet.prices.plan.extras import gp3_units
from gpufleet.settings import document
from gpufleet.settings.document import FleetDocument, GroupEntry, Origin, Router
from gpufleet.settings.document.money import PriceSettings, SharedEntry
from gpufleet.settings.document.orders import OrderKeys
from gpufleet.settings.environment import MadeNetwork, Settings
from stacks import pools

LEDGER_ON_CONTROL_HOST: Final = "sqlite:////var/lib/gpu-fleet/ledger.db"


def describe(
    settings: Settings,
    groups: Mapping[str, Sequence[GroupEntry]],
    bucket_url: str,
    origin: Origin,
    routers: Sequence[str] = (),
) -> str:
    """Return the document as text. It combines the settings with the cloud's names of each pool's groups.

    `routers` identifies routers on their own machines (AWS: instance ids; Google Cloud: names).
    """
    sources = {model.name: model.source for model in settings.models}
    return document.render(
        FleetDocument(
            version=document.VERSION,
            environment=settings.environment,
            cloud=settings.cloud,
            region=settings.region,
            zones=settings.zones,
            account=settings.account,
            generated_by=origin,
            bucket=bucket_url,
            engine_key=pools.secret_place(settings, settings.engine_key),
            orders=OrderKeys(
                private_key=pools.secret_place(settings, settings.orders.private_key),
                public_keys=pools.order_keys(settings),
            ),
            prometheus_url=settings.prometheus_url or f"http://control.{settings.domain}:9090",
            ledger_url=settings.ledger_url or LEDGER_ON_CONTROL_HOST,
            router=Router(url=settings.router_url or _router_url(settings), machines=tuple(routers)),
            node_exporter=settings.machines.node_exporter_image is not None,
            notify=settings.notify,
            budget=settings.budget,
            budgets=settings.budgets,
            orphans=settings.orphans,
            pools=tuple(
                document.Pool(
                    name=pool.name,
                    model=f"models/{pool.model}",
                    model_source=sources.get(pool.model),
                    served_name=pool.served_name,
                    adapters={name: f"models/{model}" for name, model in pool.adapters.items()},
                    engine=pool.engine.kind,
                    owner=pool.owner,
                    team_split=pool.team_split,
                    target=pool.target,
                    spare=pool.spare,
                    min=pool.min,
                    max=pool.max,
                    drain_deadline=pool.drain_deadline,
                    boot_limit=pools.boot_limits(pool).total,
                    groups=tuple(groups[pool.name]),
                    watchdogs=pool.watchdogs,
                    objectives=pool.objectives,
                )
                for pool in settings.pools
            ),
            prices=PriceSettings(overrides=settings.prices),
            shared=shared_of(settings),
            commitments=settings.commitments,
            carbon=settings.carbon,
            alerts=settings.alerts,
        )
    )


def shared_of(settings: Settings) -> tuple[SharedEntry, ...]:
    """Return what the environment pays for besides GPU instances, by the SKUs of `plan-cost`.

    Return nothing for an environment without a budget, because it has no prices.
    """
    if settings.budget is None:
        return ()
    return (*_of_network(settings), *_of_instances(settings), *_of_control(settings))


def _of_network(settings: Settings) -> Iterator[SharedEntry]:
    network, aws = settings.network, settings.cloud is Cloud.AWS
    if not isinstance(network, MadeNetwork):
        return  # the owner of an external bucket pays for it
    if network.internet == "nat":
        yield _entry("NAT gateway", "aws:vpc:nat-gateway" if aws else "gcp:network:nat-gateway", 1)
        if aws:
            yield _entry("public address", "aws:vpc:public-ipv4", 1)
    if aws and network.private_services:
        # each service has one interface per zone, and each interface is billed
        endpoints = len(network.private_services) * len(settings.zones)
        yield _entry("interface endpoints", "aws:vpc:interface-endpoint", endpoints)


def _of_instances(settings: Settings) -> Iterator[SharedEntry]:
    machines = settings.machines
    if settings.cloud is Cloud.GCP:
        yield _entry("root disk", "gcp:disk:pd-ssd:gib", machines.disk_gib, per="instance")
        return
    for what, sku, units in gp3_units(machines.disk_gib, machines.disk_iops, machines.disk_mib_per_second):
        yield _entry(f"root {what}", sku, units, per="instance")


def _of_control(settings: Settings) -> Iterator[SharedEntry]:
    control, aws = settings.control, settings.cloud is Cloud.AWS
    if control is None:
        return
    machine = f"{'aws:ec2' if aws else 'gcp:compute'}:{control.machine_type}:on-demand"
    disk = "aws:ebs:gp3:gib" if aws else "gcp:disk:pd-balanced:gib"
    yield _entry("control host", machine, 1)
    yield _entry("control host's disks", disk, control.data_gib + CONTROL_ROOT_GIB)
    yield _entry("DNS zone", "aws:route53:zone" if aws else "gcp:dns:zone", 1)
    if control.routers > 1:
        yield _entry("routers", machine, control.routers)
        yield _entry("routers' disks", disk, control.routers * CONTROL_ROOT_GIB)
        balancer = "aws:elb:load-balancer" if aws else "gcp:network:forwarding-rule"
        yield _entry("load balancer of the routers", balancer, 1)


def _entry(
    name: str, sku: str, units: Decimal | int, per: Literal["environment", "instance"] = "environment"
) -> SharedEntry:
    return SharedEntry(name=name, sku=sku, units=Decimal(units), per=per)


def _router_url(settings: Settings) -> str:
    host = "router" if settings.control and settings.control.routers > 1 else "control"
    return f"http://{host}.{settings.domain}:8080"
