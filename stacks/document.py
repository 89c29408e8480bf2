"""The fleet document of a deployed environment."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal

from fleet import document
from fleet.document import FleetDocument, GroupEntry, Origin, Prices, Router, SharedEntry
from fleet.model import Cloud
from stacks.settings import MadeNetwork, Settings

LEDGER_ON_CONTROL_HOST: Final = "sqlite:////var/lib/gpu-fleet/ledger.db"


def describe(settings: Settings, groups: Mapping[str, Sequence[GroupEntry]], bucket_url: str, origin: Origin) -> str:
    """The document as text, from settings and from what the cloud called the groups of each pool."""
    return document.render(
        FleetDocument(
            version=document.VERSION,
            environment=settings.environment,
            cloud=settings.cloud,
            region=settings.region,
            account=settings.account,
            generated_by=origin,
            bucket=bucket_url,
            prometheus_url=settings.prometheus_url or f"http://control.{settings.domain}:9090",
            ledger_url=settings.ledger_url or LEDGER_ON_CONTROL_HOST,
            router=Router(url=settings.router_url or _router_url(settings)),
            notify=settings.notify,
            budget=settings.budget,
            budgets=settings.budgets,
            pools=tuple(
                document.Pool(
                    name=pool.name,
                    model=f"models/{pool.model}",
                    engine=pool.engine.kind,
                    owner=pool.owner,
                    team_split=pool.team_split,
                    target=pool.target,
                    spare=pool.spare,
                    min=pool.min,
                    max=pool.max,
                    drain_deadline=pool.drain_deadline,
                    groups=tuple(groups[pool.name]),
                    watchdogs=pool.watchdogs,
                )
                for pool in settings.pools
            ),
            prices=Prices(overrides=settings.prices),
            shared=shared_of(settings),
            commitments=settings.commitments,
        )
    )


def shared_of(settings: Settings) -> tuple[SharedEntry, ...]:
    """What the pools share, by the skus of `plan-cost`. An environment without a budget is not priced: nothing."""
    if settings.budget is None:
        return ()
    aws, machines = settings.cloud is Cloud.AWS, settings.machines
    service, disk = ("aws:ec2", "aws:ebs:gp3:gib") if aws else ("gcp:compute", "gcp:disk:pd-balanced:gib")
    found: list[SharedEntry] = []
    if isinstance(settings.network, MadeNetwork) and settings.network.internet == "nat":
        found.append(_entry("NAT gateway", "aws:vpc:nat-gateway" if aws else "gcp:network:nat-gateway", 1))
        if aws:
            found.append(_entry("public address", "aws:vpc:public-ipv4", 1))
    root = disk if aws else "gcp:disk:pd-ssd:gib"
    found.append(_entry("root disk", root, machines.disk_gib, per="instance"))
    if (control := settings.control) is not None:
        several = control.routers if control.routers > 1 else 0
        found.append(_entry("control host", f"{service}:{control.machine_type}:on-demand", 1))
        if several:
            found.append(_entry("routers", f"{service}:{control.machine_type}:on-demand", several))
        found.append(_entry("control host's disk", disk, control.data_gib))
    return tuple(found)


def _entry(name: str, sku: str, units: int, per: Literal["environment", "instance"] = "environment") -> SharedEntry:
    return SharedEntry(name=name, sku=sku, units=Decimal(units), per=per)


def _router_url(settings: Settings) -> str:
    host = "router" if settings.control and settings.control.routers > 1 else "control"
    return f"http://{host}.{settings.domain}:8080"
